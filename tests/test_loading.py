"""Checkpoints as they come: GGUF files, folders in shards, tokenizers that transformers reads another way, chat templates."""

import json
import random
import shutil
import sys

import pytest
import torch
from authoring import LOGITS, document, observe, site, write_document, write_table
from conftest import random_config, save_random, small_tokenizer
from gguf_files import (
    CONTROL,
    EXPRESSIONS,
    NORMAL,
    as_stored,
    byte_characters,
    cut,
    merges_of,
    plain_bpe,
    strange_texts,
    weights_of,
    write_gguf,
)

from causalab_mini.engine import gguf as converter
from causalab_mini.engine.engines.hooks import HooksEngine
from causalab_mini.engine.engines.nnterp import NNterpEngine
from causalab_mini.engine.loading import open_checkpoint, open_tokenizer
from causalab_mini.errors import ModelError
from causalab_mini.plan.spec import ModelSpec

pytestmark = pytest.mark.tiny

TEMPLATE = "{% for turn in messages %}<{{ turn['role'] }}> {{ turn['content'] }}\n{% endfor %}"
SHAPE = {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAUSALAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def byte_tokenizer():
    from transformers import AutoTokenizer

    from causalab_mini.model.source import BUNDLED

    return AutoTokenizer.from_pretrained(BUNDLED / "successor-gpt2")


@pytest.fixture(scope="module")
def llama(byte_tokenizer):
    """Returns a function that makes a random Llama in which every parameter matters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(**changes):
        settings = {"vocab_size": len(byte_tokenizer), "max_position_embeddings": 64, "tie_word_embeddings": False, **SHAPE, **changes}
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.15)
        return model

    return make


@pytest.fixture
def write(tmp_path, llama, byte_tokenizer):
    """Returns a function that writes a GGUF file."""

    def make(model=None, kind="F32", **changes):
        return write_gguf(tmp_path / "model.gguf", model or llama(), byte_tokenizer, kind, **changes)

    return make


def opened(path, **more):
    return open_checkpoint(ModelSpec(key=str(path), dtype="fp32", **more))


def loaded(path, kind=HooksEngine):
    return kind.load(ModelSpec(key=str(path), dtype="fp32"), device_map="cpu").loaded()


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


def saved_weights(path):
    from safetensors.torch import load_file

    found = {}
    for file in converter.converted_folder(path).glob("*.safetensors"):
        found |= load_file(file)
    return found


def refusal(path):
    with pytest.raises(ModelError) as caught:
        opened(path)
    return str(caught.value)


# GGUF: weights


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"])
def test_a_folder_made_of_a_gguf_file_holds_its_tensors_to_the_bit(write, llama, kind):
    path = write(kind=kind)
    found = saved_weights(path)
    expected = {name: as_stored(weight, kind) for name, weight in weights_of(llama()).items()}
    assert opened(path).config.dtype == expected["model.embed_tokens.weight"].dtype
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == weight.dtype, name
        assert torch.equal(found[name], weight), name


@pytest.mark.parametrize("kind", [NNterpEngine, HooksEngine])
def test_a_gguf_file_computes_what_it_was_made_of(write, llama, kind):
    model = llama()
    ids = list(range(5, 25))
    assert torch.equal(logits(loaded(write(), kind), ids), logits(model, ids))


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"head_dim": 32},
        {"num_key_value_heads": 4},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rms_norm_eps": 1e-6},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
    ],
    ids=lambda changes: next(iter(changes)) + str(len(str(changes))),
)
def test_what_a_llama_may_have_beside_the_usual_comes_through(write, llama, changes):
    model = llama(**changes)
    ids = list(range(5, 25))
    tensors = {}
    if model.config.rope_parameters["rope_type"] == "llama3":
        plain = 1.0 / (5e5 ** (torch.arange(0, model.config.head_dim, 2).float() / model.config.head_dim))
        tensors = {"rope_freqs.weight": (plain / model.model.rotary_emb.inv_freq).numpy()}
        assert tensors["rope_freqs.weight"].max() > 31
    found = loaded(write(model, tensors=tensors))
    assert torch.allclose(logits(found, ids), logits(model, ids), rtol=0, atol=1e-6)
    assert found.config.tie_word_embeddings == model.config.tie_word_embeddings
    assert found.config.rms_norm_eps == model.config.rms_norm_eps


def test_weights_above_the_size_of_a_shard_are_written_in_several(write, llama, monkeypatch):
    from causalab_mini.engine.gguf import llama as writing

    monkeypatch.setattr(writing, "SHARD_BYTES", 200_000)
    path = write()
    assert len(list(converter.converted_folder(path).glob("model-*-of-*.safetensors"))) > 2
    assert torch.equal(logits(loaded(path), [5, 6, 7]), logits(llama(), [5, 6, 7]))


# GGUF: refusals


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architecture": "gemma3"}, "expected a GGUF file with the architecture `llama`, got the architecture `gemma3` in "),
        ({"metadata": {"llama.attention.sliding_window": 16}}, "what a plain Llama has, got `llama.attention.sliding_window` = `16`"),
        ({"metadata": {"llama.expert_count": 8}}, "what a plain Llama has, got `llama.expert_count` = `8`"),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "what a plain Llama has, got `llama.rope.scaling.type` = `yarn`"),
        ({"metadata": {"llama.rope.dimension_count": 12}}, "`llama.rope.dimension_count` = 24 (the width of a head), got 12"),
        ({"metadata": {"llama.block_count": None}}, "expected a GGUF file with `llama.block_count` in its metadata, got none"),
        ({"metadata": {"llama.block_count": "two"}}, "expected a GGUF file with `llama.block_count` to be int, got `two`"),
        ({"metadata": {"llama.block_count": 3}}, "every tensor of a plain Llama, got no `model.layers.2."),
        ({"metadata": {"llama.block_count": 4000}}, "expected a GGUF file with tensors for every block, got 4000 blocks, 21 tensors"),
        ({"metadata": {"llama.attention.head_count": 7}}, "expected a GGUF file with the sizes of a Llama, got "),
        ({"metadata": {"llama.feed_forward_length": 64}}, "of the sizes that its metadata says, got `blk.0.ffn_gate.weight`"),
        ({"without": ["blk.1.attn_k.weight"]}, "every tensor of a plain Llama, got no `model.layers.1.self_attn.k_proj.weight`"),
        ({"without": ["token_embd.weight"]}, "expected a GGUF file with the tensor `token_embd.weight`, got none"),
        ({"tensors": {"blk.0.attn_q_norm.weight": [1.0] * 24}}, "of a plain Llama, got the tensor `blk.0.attn_q_norm.weight`"),
        ({"tensors": {"rope_freqs.weight": [1.0] * 11 + [7.0]}}, "the rotation of Llama 3.1, or a plain one, got other factors"),
        ({"kind": "F64"}, "weights in a type that the `gguf` package reads, got `F64`"),
        ({"metadata": {"tokenizer.ggml.model": "llama"}}, "the kind `gpt2` (byte-level BPE), got one of the kind `llama`"),
        ({"metadata": {"tokenizer.ggml.pre": "deepseek-llm"}}, "(`tokenizer.ggml.pre`), got `deepseek-llm`"),
        ({"metadata": {"tokenizer.ggml.pre": None}}, "expected a GGUF file with `tokenizer.ggml.pre` in its metadata, got none"),
        ({"metadata": {"tokenizer.ggml.merges": ["q zz"]}}, "expected a GGUF file with merges of its own tokens, got `q zz`"),
        ({"metadata": {"tokenizer.ggml.eos_token_id": 9999}}, "`tokenizer.ggml.eos_token_id` below 713, got `9999`"),
        ({"metadata": {"tokenizer.ggml.add_bos_token": True}}, "a `bos_token`, which it says to add, got none"),
    ],
)
def test_a_gguf_file_that_is_no_plain_llama_is_refused_by_name(write, cache, changes, text):
    import numpy as np

    if "tensors" in changes:
        changes = {"tensors": {name: np.array(values, dtype=np.float32) for name, values in changes["tensors"].items()}}
    message = refusal(write(**changes))
    assert text in message
    assert message.startswith("error: model.key: expected a GGUF file with ")
    assert not list(cache.glob("gguf/*"))


def test_a_damaged_gguf_file_is_refused_wherever_it_ends(write, tmp_path):
    whole = write().read_bytes()
    generator = random.Random(5)
    ends = [0, 3, 4, 11, 23, 60, *(generator.randrange(24, len(whole)) for _ in range(40)), len(whole) - 1]
    for end in ends:
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:end])
        message = refusal(path)
        assert "expected a whole GGUF file" in message
        assert message.endswith("hint: the file is damaged: copy it anew")


def test_bytes_that_were_changed_are_refused_or_change_nothing_but_numbers(write, tmp_path):
    """The first bytes hold the metadata: a change there is an error in our words, or another valid file; never a traceback."""
    whole = write().read_bytes()
    generator = random.Random(6)
    path = tmp_path / "changed.gguf"
    n_refused = 0
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(3):
            changed[generator.randrange(0, 2500)] = generator.randrange(256)
        path.write_bytes(changed)
        try:
            opened(path)
        except ModelError:
            n_refused += 1
    assert n_refused > 30


def test_what_is_no_gguf_file_is_refused(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("not weights\n" * 100, encoding="utf-8")
    assert "expected a whole GGUF file, got " in refusal(path)
    assert "expected a GGUF file that exists, got " in refusal(tmp_path / "absent.gguf")


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_weights_that_are_not_finite_are_refused(write, llama, kind):
    import numpy as np

    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    with np.errstate(all="ignore"):
        path = write(model, kind)
    assert "expected a GGUF file with finite weights, got NaN or infinity in `blk.1.ffn_up.weight`" in refusal(path)


def test_without_the_package_the_way_to_install_it_is_named(write, monkeypatch):
    path = write()
    monkeypatch.setitem(sys.modules, "gguf", None)
    message = refusal(path)
    assert "expected the package `gguf`, which reads GGUF files, got none installed" in message
    assert message.endswith("hint: pip install 'causalab-mini[gguf]'")


def test_a_gguf_file_has_no_revision(write):
    path = write()
    with pytest.raises(ModelError, match=r"model\.revision: expected no revision \(the model is a file\), got `main`"):
        opened(path, revision="main")
    with pytest.raises(ModelError, match=r"--revision: expected no revision \(the model is a file\), got `main`"):
        open_tokenizer(str(path), "main")


# GGUF: the cache


def test_a_second_load_does_not_convert_again(write, monkeypatch):
    path = write()
    folder = opened(path).source.location
    for name in ("_write", "GgufFile"):
        monkeypatch.setattr(converter, name, lambda *arguments: pytest.fail("it was converted again"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert opened(path).source.location == folder
    copy = path.with_name("copy.gguf")
    shutil.copy(path, copy)
    assert opened(copy).source.location == folder


def test_another_file_and_another_converter_have_folders_of_their_own(write, llama, monkeypatch):
    first = converter.converted_folder(write())
    second = converter.converted_folder(write(llama(tie_word_embeddings=True)))
    monkeypatch.setattr(converter, "VERSION", converter.VERSION + 1)
    third = converter.converted_folder(write(llama(tie_word_embeddings=True)))
    assert len({first, second, third}) == 3


def test_a_conversion_that_was_broken_off_leaves_nothing(write, cache, monkeypatch):
    def broken_off(*arguments):
        raise KeyboardInterrupt

    path = write()
    with monkeypatch.context() as patch:
        patch.setattr(converter, "write_weights", broken_off)
        with pytest.raises(KeyboardInterrupt):
            opened(path)
    assert list((cache / "gguf").iterdir()) == []
    assert loaded(path) is not None


def test_a_folder_that_is_not_whole_is_made_anew(write, llama):
    path = write()
    folder = converter.converted_folder(path)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for spoil in (lambda: weights.write_bytes(whole[:1000]), weights.unlink, (folder / converter.MARKER).unlink):
        spoil()
        assert not converter.is_whole(folder)
        assert converter.converted_folder(path) == folder
        assert weights.read_bytes() == whole
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]


def test_what_another_process_left_half_written_is_not_used(write, cache):
    path = write()
    (cache / "gguf" / ".abc").mkdir(parents=True)
    (cache / "gguf" / ".abc" / "config.json").write_text("{}", encoding="utf-8")
    assert loaded(path) is not None


def test_a_cache_that_cannot_be_written_is_named(write, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("CAUSALAB_CACHE", str(tmp_path / "file"))
    message = refusal(write())
    assert "expected a cache folder that can be written, got " in message
    assert "CAUSALAB_CACHE" in message


def test_the_cache_is_where_the_system_has_caches(monkeypatch, tmp_path):
    from causalab_mini.model.source import cache_folder

    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("CAUSALAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "causalab-mini"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "causalab-mini"


# GGUF: tokenizers


def trained(pre, special):
    """Returns ids and merges of a byte-level BPE, trained on a text that is cut as the name says."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from tokenizers_of_ours import TEXT

    from causalab_mini.engine.gguf.tokenizer import CUTS

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = CUTS[pre].pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=620, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT + " 1234567 12 123 don't WE'LL we'll ... ?! \n\n  x"] * 3, trainer)
    return tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe"])
def test_a_tokenizer_of_a_gguf_file_gives_the_ids_of_plain_bpe(llama, tmp_path, pre):
    """The reference cuts with llama.cpp's own regular expressions and merges one pair at a time."""
    from transformers import PreTrainedTokenizerFast

    special = ["<|end|>", "<|user|>"]
    plain = trained(pre, special)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|end|>")
    wrapped.backend_tokenizer.add_special_tokens(special)
    ids = plain.get_vocab(with_added_tokens=True)
    changes = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE}
    path = write_gguf(tmp_path / "model.gguf", llama(vocab_size=len(ids)), wrapped, metadata=changes)
    tokenizer = open_tokenizer(str(path), None)
    assert tokenizer.padding_side == "left"
    texts = ["", " ", "<|user|> hi<|end|>", *strange_texts(random.Random(8), 600)]
    for text in texts:
        found = tokenizer(text)["input_ids"]
        assert found == plain_bpe(text, ids, merges_of(plain), pre, special), text
        assert tokenizer.decode(found) == text
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<user> hi\n"


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe"])
def test_text_is_cut_where_llama_cpp_cuts_it(pre):
    from causalab_mini.engine.gguf.tokenizer import CUTS

    assert set(CUTS) == set(EXPRESSIONS)
    characters = byte_characters()
    for text in strange_texts(random.Random(9), 1500):
        words = ["".join(characters[byte] for byte in word.encode()) for word in cut(text, EXPRESSIONS[pre])]
        assert [word for word, _ in CUTS[pre].pre_tokenizer.pre_tokenize_str(text)] == words, text


def test_words_that_are_pieces_are_taken_whole_where_the_rule_says_so(llama, tmp_path):
    """Llama 3 has pieces that its merges do not reach; a piece added here without a merge is found under its rule, and not under GPT-2's."""
    from transformers import PreTrainedTokenizerFast

    lone = "zyx"
    for pre in ("gpt-2", "llama-bpe"):
        plain = trained(pre, ["<|end|>"])
        tokens = sorted(plain.get_vocab(), key=plain.get_vocab().get)
        changes = {
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": [*tokens, lone],
            "tokenizer.ggml.token_type": [CONTROL] + [NORMAL] * len(tokens),
            "tokenizer.ggml.bos_token_id": 0,
        }
        wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|end|>")
        path = write_gguf(tmp_path / f"{pre}.gguf", llama(vocab_size=len(tokens) + 1), wrapped, metadata=changes)
        ids = open_tokenizer(str(path), None)(lone)["input_ids"]
        assert ids == ([0, len(tokens)] if pre == "llama-bpe" else [tokens.index(character) for character in lone])


@pytest.mark.parametrize(
    ("adds", "around"), [({}, (0, 0)), ({"bos": True}, (1, 0)), ({"bos": True, "eos": True}, (1, 1)), ({"eos": True}, (0, 1))]
)
def test_tokens_are_put_around_a_text_as_the_file_says(write, adds, around):
    changes = {f"tokenizer.ggml.add_{which}_token": value for which, value in adds.items()}
    tokenizer = open_tokenizer(str(write(metadata={"tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.eos_token_id": 0, **changes})), None)
    inside = tokenizer("tomorrow", add_special_tokens=False)["input_ids"]
    assert tokenizer("tomorrow")["input_ids"] == [3] * around[0] + inside + [0] * around[1]


def test_the_reference_has_a_character_for_each_byte():
    from tokenizers import pre_tokenizers

    assert set(byte_characters().values()) == set(pre_tokenizers.ByteLevel.alphabet())


# GGUF: a document


def test_a_document_runs_on_a_gguf_file_beside_it(command, write, llama, byte_tokenizer, tmp_path):
    path = write(kind="Q8_0")
    rows = [{"input": "If today is Thursday, tomorrow is"}, {"input": "Today"}]
    write_table(tmp_path / "data", "rows", rows)
    look = {
        "reads": {"z": {"site": LOGITS, "pos": -1, "input": "base"}, "b": {"site": site("block_output", 1), "pos": -1, "input": "base"}}
    }
    step = observe("look", both=False, saves=[{"value": "z", "file_path": "z.safetensors"}], outputs={"z": "z"})
    file = write_document(tmp_path, document({"look": look}, {"s": step}, path.name, {"base": {"field": "input"}}))
    code, _, err = command("run", file, "--out", tmp_path / "out", "--check", "full")
    assert (code, "warning" in err) == (0, False), err
    record = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert record["model"] == {"key": "model.gguf", "revision": f"sha256:{converter.converted_folder(path).name[:64]}", "dtype": "fp32"}
    model = llama()
    model.load_state_dict({name: as_stored(weight, "Q8_0") for name, weight in weights_of(model).items()})
    from safetensors.torch import load_file

    found = next(value for value in load_file(tmp_path / "out" / "z.safetensors").values() if value.shape[-1] == len(byte_tokenizer))
    for row, entry in enumerate(rows):
        expected = logits(model, byte_tokenizer(entry["input"])["input_ids"])[0, -1]
        assert torch.allclose(found.reshape(len(rows), -1)[row], expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


# folders


@pytest.mark.parametrize("kind", [NNterpEngine, HooksEngine])
def test_a_folder_in_shards_is_the_model(llama, byte_tokenizer, tmp_path, kind):
    model = llama()
    model.save_pretrained(tmp_path / "sharded", max_shard_size="150KB")
    byte_tokenizer.save_pretrained(tmp_path / "sharded")
    assert len(list((tmp_path / "sharded").glob("model-*-of-*.safetensors"))) > 2
    assert torch.equal(logits(loaded(tmp_path / "sharded", kind), [5, 6, 7, 8]), logits(model, [5, 6, 7, 8]))


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_template_is_found_in_either_file(llama, byte_tokenizer, tmp_path, where):
    folder = tmp_path / "chat"
    llama().save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    if where == "chat_template.jinja":
        (folder / where).write_text(TEMPLATE, encoding="utf-8")
    else:
        config = json.loads((folder / where).read_text(encoding="utf-8"))
        (folder / where).write_text(json.dumps(config | {"chat_template": TEMPLATE}), encoding="utf-8")
    tokenizer = opened(folder).tokenizer
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<user> hi\n"


# tokenizers


@pytest.fixture
def qwen(tmp_path):
    """Returns a Qwen 2 folder with a tokenizer that is not Qwen's."""
    tokenizer = small_tokenizer()
    tokenizer.chat_template = TEMPLATE
    save_random(tmp_path / "qwen", random_config("qwen2", len(tokenizer)), tokenizer)
    return tmp_path / "qwen"


TODAY = "If today is Thursday, tomorrow is"


def test_a_tokenizer_that_transformers_reads_another_way_is_read_from_its_file(qwen):
    from transformers import AutoTokenizer

    expected = small_tokenizer()(TODAY)["input_ids"]
    assert AutoTokenizer.from_pretrained(qwen)(TODAY)["input_ids"] != expected, "transformers reads it now: the fallback can go"
    checkpoint = opened(qwen)
    tokenizer = checkpoint.tokenizer
    assert tokenizer(TODAY)["input_ids"] == expected
    assert open_tokenizer(str(qwen), None)(TODAY)["input_ids"] == expected
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, tokenizer.padding_side) == ("<s>", "</s>", "<unk>", "left")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<user> hi\n"
    assert checkpoint.warnings == (
        "transformers reads this checkpoint's tokenizer as `Qwen2Tokenizer`, which gives 19 tokens for "
        f"`{TODAY}` where its tokenizer.json gives 11; tokenizer.json is used",
    )


def test_the_user_is_told_of_it(command, qwen, tmp_path):
    write_table(tmp_path / "data", "rows", [{"input": TODAY}, {"input": "today is Friday"}])
    look = {"reads": {"z": {"site": LOGITS, "pos": -1, "input": "base"}}}
    step = observe("look", both=False, saves=[{"value": "z", "file_path": "z.safetensors"}], outputs={"z": "z"})
    file = write_document(tmp_path, document({"look": look}, {"s": step}, str(qwen), {"base": {"field": "input"}}))
    code, _, err = command("run", file, "--out", tmp_path / "out")
    assert code == 0, err
    assert "warning: transformers reads this checkpoint's tokenizer as `Qwen2Tokenizer`" in err
    record = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert [text[:40] for text in record["warnings"]] == ["transformers reads this checkpoint's tok"]


def test_what_tokenizer_config_asks_for_is_no_misreading(llama, byte_tokenizer, tmp_path):
    """GPT-2's `add_prefix_space` is no part of tokenizer.json: transformers puts it in, and is right."""
    folder = tmp_path / "prefix"
    llama().save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"add_prefix_space": True, "tokenizer_class": "GPT2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    checkpoint = opened(folder)
    assert checkpoint.tokenizer(TODAY)["input_ids"] != byte_tokenizer(TODAY)["input_ids"]
    assert checkpoint.tokenizer(TODAY)["input_ids"] == byte_tokenizer(f" {TODAY}")["input_ids"]
    assert checkpoint.warnings == ()


def test_a_beginning_that_transformers_drops_is_read_from_the_file(tmp_path, byte_tokenizer):
    """Every piece is right there, and the BOS that tokenizer.json puts first is lost."""
    from tokenizers import processors
    from transformers import AutoTokenizer

    folder = tmp_path / "qwen-with-bos"
    save_random(folder, random_config("qwen2", len(byte_tokenizer)), byte_tokenizer)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    template = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer["post_processor"] = json.loads(template.__getstate__())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    inside = byte_tokenizer(TODAY)["input_ids"]
    lost = AutoTokenizer.from_pretrained(folder)(TODAY)["input_ids"]
    checkpoint = opened(folder)
    assert checkpoint.tokenizer(TODAY)["input_ids"] == [0, *inside]
    assert bool(checkpoint.warnings) == (lost != [0, *inside])


@pytest.mark.parametrize("name", ["llama-grouped", "mistral", "qwen3", "gpt2-tied", "successor-llama", "successor-gpt2"])
def test_tokenizers_that_are_read_rightly_bring_no_warning(checkpoints, name):
    assert opened(checkpoints(name)).warnings == ()
