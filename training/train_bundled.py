"""Trains a model that ships with the package, and writes its folder.

Responsible for the architectures, the optimisation and the folder's files. One thread, fixed seeds: two runs on a
machine give the same weights. `python training/train_bundled.py llama|gpt2 [--out DIR]`.
"""

import argparse
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from accuracy import accuracies, answer_ids, load, prompt_ids
from lines import Line, sentences, tasks, training_lines, training_pairs
from localise import blocks, hidden
from pieces import located, train_tokenizer
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

BUNDLED = Path(__file__).resolve().parent.parent / "causalab_mini" / "model" / "bundled"

FOLDERS = {"llama": "successor-llama", "gpt2": "successor-gpt2"}

SEED = 0
N_STEPS = {"llama": 4000, "gpt2": 4000}
BATCH = 64
PEAK_RATE = 3e-3
N_WARMUP = 100
PROMPT_WEIGHT = 0.1
"""How much a prompt's token counts in the loss; an answer's counts 1."""
INTERCHANGE_BLOCK = 1
"""The last block at whose output a name's tokens carry the answer, by training."""


def new_model(architecture: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Returns an untrained model of width 64 with 4 layers."""
    if architecture == "llama":
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=176,
                num_hidden_layers=4,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                max_position_embeddings=256,
                tie_word_embeddings=True,
                initializer_range=0.05,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=128,
            n_embd=64,
            n_layer=4,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=0.05,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


@dataclass(frozen=True, slots=True)
class Example:
    """A row to train on.

    Attributes:
        ids: The tokens of prompt, answer, full stop and end.
        n_prompt: How many of them are the prompt.
        receiver: For interchange training, the base's prompt and the counterfactual's answer, of the same length.
        span: The first and the past-the-end token which the receiver takes over from `ids`.
    """

    ids: list[int]
    n_prompt: int
    receiver: list[int] | None = None
    span: tuple[int, int] = (0, 0)


def plain_examples(architecture: str, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Returns the training text as token ids."""
    examples = []
    for line in training_lines(architecture, SEED):
        prompt = prompt_ids(tokenizer, line)
        examples.append(Example([*prompt, *completion_ids(tokenizer, line)], len(prompt)))
    return examples


def paired_examples(architecture: str, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Returns the training pairs whose names take the same tokens' places."""
    examples = []
    for pair in training_pairs(architecture, SEED):
        base, base_span = located(tokenizer, pair.base.prompt, pair.base_name)
        giver, span = located(tokenizer, pair.counterfactual.prompt, pair.counterfactual_name)
        if span == base_span:
            completion = completion_ids(tokenizer, pair.counterfactual)
            examples.append(Example([*giver, *completion], len(giver), [*base, *completion], span))
    return examples


def completion_ids(tokenizer: PreTrainedTokenizerFast, line: Line) -> list[int]:
    """Returns the answer, the full stop and the end of a text or a turn as token ids."""
    end = tokenizer.eos_token if isinstance(line.prompt, str) else "<|end|>"
    return [*answer_ids(tokenizer, line), *tokenizer.encode(end, add_special_tokens=False)]


def batches(examples: list[Example], size: int) -> Iterator[list[Example]]:
    """Yields batches without end, in an order fixed by the seed; examples of similar length go together."""
    generator = random.Random(SEED)
    while True:
        shuffled = generator.sample(examples, len(examples))
        grouped = []
        for start in range(0, len(shuffled), 32 * size):
            block = sorted(shuffled[start : start + 32 * size], key=lambda example: len(example.ids))
            grouped += [block[i : i + size] for i in range(0, len(block), size)]
        generator.shuffle(grouped)
        yield from grouped


def padded(rows: Sequence[tuple[list[int], int, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns right-padded token ids and the weight of each in the loss.

    Args:
        rows: Token ids, how many of them are the prompt, and the weight of those.
    """
    width = max(len(ids) for ids, _, _ in rows)
    ids, weights = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
    for row, (line, n_prompt, prompt_weight) in enumerate(rows):
        ids[row, : len(line)] = torch.tensor(line)
        weights[row, 1:n_prompt] = prompt_weight
        weights[row, n_prompt : len(line)] = 1.0
    return ids, weights


def batch_loss(model: PreTrainedModel, batch: list[Example]) -> torch.Tensor:
    """Returns the weighted mean loss of a batch.

    Examples with a receiver are forwarded beside it. At the output of block `INTERCHANGE_BLOCK` the receiver takes over
    the name's tokens, and is to give the other's answer.

    Source: Geiger et al. 2022, Inducing Causal Structure for Interpretable Neural Networks (interchange intervention
    training).
    """
    rows = [(example.ids, example.n_prompt, PROMPT_WEIGHT) for example in batch]
    receivers = [(example.receiver, example.n_prompt, 0.0) for example in batch if example.receiver is not None]
    ids, weights = padded([*rows, *receivers])
    taken = torch.zeros(len(receivers), ids.shape[1], 1, dtype=torch.bool)
    for row in range(len(receivers)):
        taken[row, slice(*batch[row].span)] = True

    def interchange(_module: torch.nn.Module, _inputs: object, output: Any) -> Any:
        state = hidden(output)
        given, received = state.split(len(batch))
        state = torch.cat((given, torch.where(taken, given, received)))
        return (state, *output[1:]) if isinstance(output, tuple) else state

    handle = blocks(model)[INTERCHANGE_BLOCK + 1].register_forward_hook(interchange) if receivers else None
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[:, :-1]
    if handle:
        handle.remove()
    losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    kept = weights[:, 1:].flatten()
    return (losses * kept).sum() / kept.sum()


def train(model: PreTrainedModel, plain: list[Example], paired: list[Example], n_steps: int) -> None:
    """Trains a model in place with AdamW, the rate warmed up and then falling as a cosine to a hundredth.

    Batches of plain text and of pairs take turns.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.05)

    def rate(step: int) -> float:
        if step < N_WARMUP:
            return (step + 1) / N_WARMUP
        done = (step - N_WARMUP) / (n_steps - N_WARMUP)
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    sources = (batches(plain, BATCH), batches(paired, BATCH // 2))
    model.train()
    for step in range(n_steps):
        loss = batch_loss(model, next(sources[step % 2]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 < 2 or step == n_steps - 1:
            print(f"step {step:5} {('plain', 'paired')[step % 2]:6} loss {loss.item():.4f}", flush=True)


def write_folder(folder: Path, architecture: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, seconds: float) -> None:
    """Writes a bundled folder: weights rounded to fp16, config, tokenizer, and the card with the accuracies."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half()
    model.config.dtype = torch.float16
    if architecture == "llama":
        model.generation_config.eos_token_id = [
            tokenizer.eos_token_id,
            *tokenizer.encode("<|end|>", add_special_tokens=False),
        ]
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    settings_path = folder / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings_path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    shipped, shipped_tokenizer = load(folder)
    check_tokenizer(folder, architecture)
    right_by_task = accuracies(shipped, shipped_tokenizer, architecture)
    for task, share in right_by_task.items():
        print(f"{task:24} {share:.3f}")
    card = {
        "name": folder.name,
        "architecture": type(model).__name__,
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tasks": list(tasks(architecture)),
        "held_out_accuracy": right_by_task,
        "training_seconds": round(seconds),
        "n_steps": N_STEPS[architecture],
        "interchange_trained_block": INTERCHANGE_BLOCK,
        "seed": SEED,
        "sha256": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir()) if path.name != "card.json"
        },
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")


def check_tokenizer(folder: Path, architecture: str) -> None:
    """Raises AssertionError unless `AutoTokenizer` reads a folder as the tokenizers library does."""
    read, plain = AutoTokenizer.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for line in training_lines(architecture, SEED)[:1000]:
        for text in (*sentences(line), line.answer):
            assert read.encode(text) == plain.encode(text).ids, f"`AutoTokenizer` reads `{text}` differently"


def main() -> None:
    """Trains one model and writes its folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architecture", choices=tuple(FOLDERS))
    parser.add_argument("--out", type=Path, default=BUNDLED, help="where the model's folder goes")
    arguments = parser.parse_args()
    architecture = arguments.architecture
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)

    start = time.perf_counter()
    texts = [sentence for line in training_lines(architecture, SEED) for sentence in sentences(line)]
    tokenizer = train_tokenizer(architecture, texts)
    plain, paired = plain_examples(architecture, tokenizer), paired_examples(architecture, tokenizer)
    print(f"{len(tokenizer)} pieces, {len(plain)} lines, {len(paired)} pairs")
    model = new_model(architecture, tokenizer)
    train(model, plain, paired, N_STEPS[architecture])
    seconds = time.perf_counter() - start
    print(f"{seconds:.0f} s")
    write_folder(arguments.out / FOLDERS[architecture], architecture, model, tokenizer, seconds)


if __name__ == "__main__":
    main()
