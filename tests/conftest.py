"""Checkpoints that tests share: the two that ship, small random ones of every family, and a hub cache of our own.

Nothing here imports torch until a test asks for a checkpoint, so that the plain tier stays plain.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings

HUB = Path(tempfile.mkdtemp(prefix="causalab-mini-hub-"))
os.environ["HF_HUB_CACHE"] = str(HUB)  # huggingface_hub reads both when it is imported
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

settings.register_profile("slow machines", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("slow machines")

ROOT = Path(__file__).resolve().parent.parent
SEED_MODEL = "hf-internal-testing/tiny-random-LlamaForCausalLM"
SEED_REVISION = "9fb191250dd56d0ba7ec9785a025ed29c03d5998"
BUNDLED = ("successor-llama", "successor-gpt2")
RANDOM = ("llama-grouped", "gpt2-untied", "gpt2-tied", "llama-tied", "mistral", "qwen2", "qwen3")
BYTE_LEVEL = ("gpt2-untied", "gpt2-tied", "qwen2")  # transformers makes any tokenizer of a Qwen 2 folder a byte-level one


def pytest_unconfigure():
    shutil.rmtree(HUB, ignore_errors=True)
    if tracing := sys.modules.get("nnsight.intervention.tracing.util"):
        tracing._devnull.close()  # it opens /dev/null when it is imported, and leaves it open


def small_tokenizer():
    """Returns a tokenizer of the Llama kind with the seed page's pieces: `▁Th urs day`, `▁Friday`, `▁tom orrow`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    merges = [("d", "a"), ("da", "y"), ("u", "r"), ("ur", "s"), ("e", "s"), ("u", "es"), ("o", "r"), ("r", "or"), ("o", "w")]
    merges += [("▁", "T"), ("▁T", "h"), ("o", "r"), ("or", "r"), ("orr", "ow"), ("▁", "t"), ("▁t", "o"), ("▁to", "day"), ("▁to", "m")]
    for first, rest in (("▁F", "ri"), ("▁S", "un"), ("▁M", "on"), ("▁i", "s"), ("▁I", "f"), ("▁s", "o")):
        merges += [("▁", first[1]), *((first + rest[:n], rest[n]) for n in range(len(rest)))]
    merges += [("▁S", "a"), ("▁Sa", "t"), ("▁Sat", "ur"), *((stem, "day") for stem in ("▁Fri", "▁Satur", "▁Sun", "▁Mon"))]
    merges = [merge for merge in dict.fromkeys(merges) if merge != ("r", "or")]
    characters = [*map(chr, range(33, 127)), "▁"]
    pieces = ["<unk>", "<s>", "</s>", *characters, *("".join(merge) for merge in merges)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def random_config(name, vocabulary):
    """Returns a small config: widths above 64, ungrouped and grouped heads, tied and untied unembeddings."""
    from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    gpt2 = {"vocab_size": vocabulary, "n_embd": 72, "n_head": 6, "n_layer": 3, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    grouped = {
        "vocab_size": vocabulary,
        "hidden_size": 80,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {
        "llama-grouped": lambda: LlamaConfig(**grouped, tie_word_embeddings=False),
        "llama-tied": lambda: LlamaConfig(**grouped | {"num_key_value_heads": 4}, tie_word_embeddings=True),
        "gpt2-untied": lambda: GPT2Config(**gpt2, tie_word_embeddings=False),
        "gpt2-tied": lambda: GPT2Config(**gpt2, tie_word_embeddings=True),
        "mistral": lambda: MistralConfig(**grouped, sliding_window=None),
        "qwen2": lambda: Qwen2Config(**grouped),
        "qwen3": lambda: Qwen3Config(**grouped, head_dim=24),
    }[name]()


def save_random(folder, config, tokenizer, seed=0):
    """Writes a checkpoint whose every parameter is random, norms and biases too, and large enough to matter."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.15)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def hub():
    """Returns the hub cache, with a tiny random Llama of ours under the id and revision of the seed page."""
    from transformers import LlamaConfig

    home = HUB / f"models--{SEED_MODEL.replace('/', '--')}"
    if not home.is_dir():
        tokenizer = small_tokenizer()
        (home / "refs").mkdir(parents=True)
        (home / "refs" / "main").write_text(SEED_REVISION, encoding="utf-8")
        shape = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = LlamaConfig(vocab_size=len(tokenizer), **shape, bos_token_id=1, eos_token_id=2)
        save_random(home / "snapshots" / SEED_REVISION, config, tokenizer)
    return HUB


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Returns a function that gives a checkpoint's folder by name."""
    from causalab_mini.model.source import BUNDLED as SHIPPED

    made = {}

    def folder_of(name):
        if name in BUNDLED:
            return SHIPPED / name
        if name not in made:
            from transformers import AutoTokenizer

            folder = tmp_path_factory.mktemp(name)
            tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "successor-gpt2") if name in BYTE_LEVEL else small_tokenizer()
            save_random(folder, random_config(name, len(tokenizer)), tokenizer)
            made[name] = folder
        return made[name]

    return folder_of


@pytest.fixture(scope="session")
def engines(checkpoints):
    """Returns a function that gives an opened engine by checkpoint and kind, each opened once."""
    made = {}

    def engine_of(name, kind="nnterp"):
        from causalab_mini.engine.engines.hooks import HooksEngine
        from causalab_mini.engine.engines.nnterp import NNterpEngine
        from causalab_mini.plan.spec import ModelSpec

        if (name, kind) not in made:
            key = f"bundled:{name}" if name in BUNDLED else str(checkpoints(name))
            made[name, kind] = {"nnterp": NNterpEngine, "hooks": HooksEngine}[kind].load(ModelSpec(key=key, dtype="fp32"), device_map="cpu")
        return made[name, kind]

    return engine_of


@pytest.fixture(scope="session")
def plain_models(checkpoints):
    """Returns a function that gives a checkpoint as transformers loads it, with its tokenizer: what the reference runs."""
    made = {}

    def model_of(name):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if name not in made:
            folder = checkpoints(name)
            made[name] = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder))
        return made[name]

    return model_of


@pytest.fixture(scope="session")
def rows_of():
    """Returns a function that gives a checkpoint's ragged pairs, whose entities have as many pieces on both sides."""
    from authoring import RAGGED_PAIRS

    def rows(name):
        if name in RANDOM and name not in BYTE_LEVEL:
            return RAGGED_PAIRS
        table = "pairs" if name == "successor-llama" else "gpt2_pairs"
        every = json.loads((ROOT / "data" / "successor" / f"{table}.json").read_text(encoding="utf-8"))
        return [every[index] for index in (4, 8, 0, 10, 5)]

    return rows


@pytest.fixture(scope="session")
def carry_out(engines, tmp_path_factory):
    """Returns a function that runs a document over rows given as data, through the Python front."""
    from authoring import write_table

    def run(raw, rows, name="successor-llama", kind="nnterp", **options):
        from causalab_mini.plan.build import build_request

        root = tmp_path_factory.mktemp("data")
        for table, entries in (rows if isinstance(rows, dict) else {"rows": rows}).items():
            write_table(root, table, entries)
        engine = engines(name, kind)
        return engine.execute(build_request(raw, root, engine), **{"check": "off", **options})

    return run


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys):
    """Returns a function that runs a command in this process: exit code, stdout, stderr."""

    def run(*arguments):
        from causalab_mini.cli.app import main

        capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run
