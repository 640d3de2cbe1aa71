"""Four kinds of tokenizer, trained on a small text: what a prompt's tokens are made of differs in each."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = """If today is Thursday, tomorrow is Friday. If today is Saturday, tomorrow is Sunday. The day after Monday is Tuesday.
The capital of France is Paris, the capital of Japan is Tokyo. What is the capital of Spain? The capital of Spain is Madrid.
café naïve Zürich 日本語 東京 👩‍🚀 🙂 system user assistant answer: yes, no. [one] {two} <three> aaaa aaa aa a
"""
TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}<|{{ turn['role'] }}|>\n{{ turn['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TRIMMING = TEMPLATE.replace("turn['content']", "turn['content'] | trim")


def wrapped(tokenizer, template=TEMPLATE, **special):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)


def sentencepiece(template=TEMPLATE):
    """Metaspace pieces, bytes for characters that are in no piece, and a BOS: as Llama 2."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=["▁"],
        limit_alphabet=70,
        show_progress=False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.pre_tokenizer = None
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return wrapped(tokenizer, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def byte_level(template=TEMPLATE):
    """Merged bytes, no BOS: as GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return wrapped(tokenizer, template, eos_token="<|end|>")


def wordpiece(template=TEMPLATE):
    """Words and their continuations (`##day`), unknown words as one token: as BERT, cased."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=220, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]"))])
    return wrapped(tokenizer, template, unk_token="[UNK]", cls_token="[CLS]", bos_token="[CLS]")


def pure_bytes(template=TEMPLATE):
    """Every byte a token, no BOS: as ByT5 without its special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=257, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([""], trainer)
    return wrapped(tokenizer, template)


KINDS = {"sentencepiece": sentencepiece, "byte_level": byte_level, "wordpiece": wordpiece, "pure_bytes": pure_bytes}
