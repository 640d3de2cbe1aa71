"""The tokenizers of the bundled models, trained on the training text.

Responsible for vocabulary, pieces and the chat template. Which names are one piece is set by the sample the tokenizer
is trained on: every name is repeated there, and a name of `CUTS` stands in it cut, so that its parts never merge.
"""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from causalab_mini.data.tasks import ioi, successor

CUT = "|"

CUTS = (
    *("Tues|day", "Th|ur|sday", "Satur|day"),
    *("Feb|ru|ary", "Ap|ril", "J|une", "Aug|ust", "Oct|o|ber", "De|cember"),
    *("tw|o", "fo|ur", "si|x", "eigh|t"),
    *("fo|ur|teen", "si|x|teen", "eigh|teen", "tw|en|ty"),
    *("Pe|ter", "Da|vid", "Al|ice"),
)
"""The names of several pieces. Their neighbours in order are one piece, so that their answers are."""

PIECE_COUNTS = {cut.replace(CUT, ""): len(cut.split(CUT)) for cut in CUTS}
"""How many pieces a name takes after a space; one where it is absent."""

NAME_REPEATS = 2000
"""How often each name is repeated in the sample: more than any other word, so that names merge first."""

N_MERGES = {"llama": 480, "gpt2": 600}

LLAMA_SPECIALS = ("<unk>", "<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|> ' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""A space comes before a turn's content, so that its words have the pieces they have elsewhere."""


def names(architecture: str) -> list[str]:
    """Returns every name the tasks of an architecture use."""
    entities = [entity for family in successor.FAMILIES.values() for entity in family.entities]
    return [*entities, *ioi.NAMES] if architecture == "gpt2" else entities


def sample(architecture: str, texts: Sequence[str]) -> list[str]:
    """Returns what the tokenizer is trained on: the texts, and each name repeated, those of `CUTS` cut."""
    whole = {cut.replace(CUT, ""): cut for cut in CUTS}
    cut_texts = [" ".join(_cut(word, whole) for word in text.split(" ")) for text in texts]
    repeated = [whole.get(name, name) for name in names(architecture)]
    return [*cut_texts, *(f"{name} {name}" for name in repeated for _ in range(NAME_REPEATS))]


def _cut(word: str, whole: dict[str, str]) -> str:
    bare = word.rstrip(".,")
    return whole.get(bare, bare) + word[len(bare) :]


def train_tokenizer(architecture: str, texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of an architecture, trained on the training text.

    Raises:
        AssertionError: A name has another number of pieces than `PIECE_COUNTS` says.
    """
    tokenizer = _llama(texts) if architecture == "llama" else _gpt2(texts)
    check_pieces(tokenizer, architecture)
    return tokenizer


def piece_count(tokenizer: PreTrainedTokenizerFast, name: str) -> int:
    """Returns the number of pieces of a name after a space."""
    return len(tokenizer.encode(f" {name}", add_special_tokens=False))


def check_pieces(tokenizer: PreTrainedTokenizerFast, architecture: str) -> None:
    """Raises AssertionError unless every name has the number of pieces it should have."""
    for name in names(architecture):
        expected = PIECE_COUNTS.get(name, 1)
        pieces = tokenizer.tokenize(f" {name}", add_special_tokens=False)
        assert len(pieces) == expected, f"expected {expected} pieces for ` {name}`, got {pieces}"
        if expected == 1:
            first = tokenizer.tokenize(name, add_special_tokens=False)
            assert len(first) == 1, f"expected `{name}` to be one piece where a text begins, got {first}"


def located(tokenizer: PreTrainedTokenizerFast, prompt: str | list[successor.Message], name: str) -> tuple[list[int], tuple[int, int]]:
    """Returns a prompt's token ids, and the first and the past-the-end token of a name's first occurrence.

    A text gets whatever the tokenizer puts before one; a conversation is rendered, with the header of the answer.
    """
    if isinstance(prompt, str):
        encoding = tokenizer(prompt, return_offsets_mapping=True)
        text = prompt
    else:
        text = str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True))
        encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    start = text.index(name)
    end = start + len(name)
    inside = [i for i, (left, right) in enumerate(encoding["offset_mapping"]) if max(left, start) < min(right, end)]
    return encoding["input_ids"], (inside[0], inside[-1] + 1) if name else (0, 0)


def _llama(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [metaspace, pre_tokenizers.Split(CUT, "removed"), pre_tokenizers.Punctuation("isolated")]
    )
    characters = sorted(set("".join(texts)) - {" "} | {"▁"})
    trainer = trainers.BpeTrainer(vocab_size=len(characters) + N_MERGES["llama"], initial_alphabet=characters, show_progress=False)
    learner.train_from_iterator(sample("llama", texts), trainer)
    learned = json.loads(learner.to_str())["model"]
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*LLAMA_SPECIALS, *byte_pieces, *sorted(learned["vocab"], key=learned["vocab"].__getitem__)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[(left, right) for left, right in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens([AddedToken(special, normalized=False, special=True) for special in LLAMA_SPECIALS])
    tokenizer.pre_tokenizer = metaspace
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", pieces.index("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=list(LLAMA_SPECIALS[4:]),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def _gpt2(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(CUT, "removed"), byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=257 + N_MERGES["gpt2"],
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(sample("gpt2", texts), trainer)
    learner.pre_tokenizer = byte_level
    learner.decoder = decoders.ByteLevel()
    learner.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=learner,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )
