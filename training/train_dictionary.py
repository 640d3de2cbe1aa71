"""A small sparse dictionary of `successor-llama`: trained, written, and tried by ablation and steering.

Responsible for `documents/dictionaries/`, and for the latents and numbers which a document can rely on: the latents are
chosen on training prompts, the numbers come from the tables. Plain PyTorch hooks, one prompt at a time. Deterministic.
`python training/train_dictionary.py [--out FILE]`.
"""

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accuracy import load
from lines import Line, draw_pair, tasks, training_lines
from localise import blocks, hidden
from pieces import located
from safetensors.torch import load_file, save_file
from torch import Tensor
from train_bundled import BUNDLED, FOLDERS
from transformers import PreTrainedModel, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "documents" / "dictionaries" / "successor-llama-block2.safetensors"

LAYER = 2
"""The block whose output is taken, at the last token: the answer has moved there (see README.md)."""

SEED = 0
N_LATENTS = 128
N_STEPS = 3000
BATCH = 512
PEAK_RATE = 2e-3
SPARSITY = 1.0
"""Weight of the L1 penalty, for states scaled to a mean norm of the square root of the width."""
RIDGE = 1e-2
"""How much the refitted decoder is held at the trained one, beside a latent's mean square."""

ABLATED_TASK = "day_previous"
MIRROR_TASK = "day_next"
"""The task whose own latents, as many, are the second control."""
N_ABLATED = 10
MIN_SHARE = 0.8
"""How much of a latent's activation, each task and answer counted once, must fall on a task for the latent to be the task's."""
N_CONTROLS = 20
N_HELD_OUT = 100
"""Held-out prompts a task, beside the tables."""
HELD_OUT_SEED = 1_000_003


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A relu dictionary: `f = relu((x - decoder_bias) @ encoder + encoder_bias)`, `x ≈ f @ decoder + decoder_bias`.

    Source: Cunningham et al. 2023, Sparse Autoencoders Find Highly Interpretable Features in Language Models; Bricken et
    al. 2023, Towards Monosemanticity (the decoder's bias taken off before the encoder).

    Attributes:
        encoder: Width by latents.
        decoder: Latents by width; rows of norm 1.
        encoder_bias: One a latent.
        decoder_bias: One a feature.
    """

    encoder: Tensor
    decoder: Tensor
    encoder_bias: Tensor
    decoder_bias: Tensor

    def encode(self, states: Tensor) -> Tensor:
        """Returns the latents of states, the last axis of both."""
        return torch.relu((states - self.decoder_bias) @ self.encoder + self.encoder_bias)

    def decode(self, latents: Tensor) -> Tensor:
        """Returns the states that latents stand for."""
        return latents @ self.decoder + self.decoder_bias

    def written(self, latents: Sequence[int], value: float) -> Callable[[Tensor], Tensor]:
        """Returns the function that sets some latents of a state to a value and keeps the rest, the error too."""
        chosen = list(latents)

        def write(states: Tensor) -> Tensor:
            return states + (value - self.encode(states)[..., chosen]) @ self.decoder[chosen]

        return write


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as token ids.

    Attributes:
        ids: Token ids.
        answer_id: The answer's first token.
        answer: The answer, with its leading space.
        task: Such as `day_next`.
    """

    ids: tuple[int, ...]
    answer_id: int
    answer: str
    task: str


def tokenized(tokenizer: PreTrainedTokenizerFast, line: Line) -> Prompt:
    """Returns a line as token ids."""
    answer_id = tokenizer.encode(line.answer, add_special_tokens=False)[0]
    return Prompt(tuple(located(tokenizer, line.prompt, "")[0]), answer_id, line.answer, line.task)


def training_prompts(tokenizer: PreTrainedTokenizerFast) -> list[Prompt]:
    """Returns the distinct plain prompts of the model's training text."""
    lines = [line for line in training_lines("llama", SEED) if isinstance(line.prompt, str)]
    return list(dict.fromkeys(tokenized(tokenizer, line) for line in lines))


def held_out_prompts(tokenizer: PreTrainedTokenizerFast) -> list[Prompt]:
    """Returns `N_HELD_OUT` prompts a plain task of the split `test`."""
    generator = random.Random(HELD_OUT_SEED)
    plain = [task for task in tasks("llama") if not task.startswith("chat_")]
    return [tokenized(tokenizer, draw_pair(generator, task, "test").base) for task in plain for _ in range(N_HELD_OUT)]


def table_prompts(tokenizer: PreTrainedTokenizerFast, name: str) -> list[Prompt]:
    """Returns the base prompts of a table below `data/`."""
    rows = json.loads((ROOT / "data" / name).read_text())
    return [tokenized(tokenizer, Line(row["input"], row["base_answer"], row["task"])) for row in rows]


@torch.no_grad()
def states_of(model: PreTrainedModel, prompts: Sequence[Prompt]) -> Tensor:
    """Returns the states at the block's output and the last token, a row a prompt."""
    stored: list[Tensor] = []
    place = blocks(model)[LAYER + 1]
    handle = place.register_forward_hook(lambda _module, _inputs, output: stored.append(hidden(output)[0, -1].clone()))
    for prompt in prompts:
        model(input_ids=torch.tensor([prompt.ids]), use_cache=False)
    handle.remove()
    return torch.stack(stored)


@torch.no_grad()
def predictions(model: PreTrainedModel, prompts: Sequence[Prompt], change: Callable[[Tensor], Tensor]) -> list[int]:
    """Returns the most likely next token of every prompt with the last token's state at the block's output changed."""

    def write(_module: torch.nn.Module, _inputs: object, output: Any) -> Any:
        state = hidden(output).clone()
        state[:, -1] = change(state[:, -1])
        return (state, *output[1:]) if isinstance(output, tuple) else state

    handle = blocks(model)[LAYER + 1].register_forward_hook(write)
    found = [int(model(input_ids=torch.tensor([prompt.ids]), use_cache=False).logits[0, -1].argmax()) for prompt in prompts]
    handle.remove()
    return found


def trained(states: Tensor) -> Dictionary:
    """Returns the dictionary of states: Adam on the squared error and the L1 norm of the latents, then a refitted decoder."""
    width = states.shape[1]
    generator = torch.Generator().manual_seed(SEED)
    scale = math.sqrt(width) / states.norm(dim=1).mean()
    scaled = states * scale
    decoder = torch.nn.functional.normalize(torch.randn(N_LATENTS, width, generator=generator), dim=1)
    encoder, encoder_bias, decoder_bias = decoder.T.clone(), torch.zeros(N_LATENTS), scaled.mean(0)
    parameters = [tensor.requires_grad_() for tensor in (encoder, decoder, encoder_bias, decoder_bias)]
    optimizer = torch.optim.Adam(parameters, lr=PEAK_RATE)
    dictionary = Dictionary(*parameters)
    for step in range(N_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1.0, (N_STEPS - step) / (0.3 * N_STEPS))
        batch = scaled[torch.randint(len(scaled), (BATCH,), generator=generator)]
        latents = dictionary.encode(batch)
        error = (dictionary.decode(latents) - batch).square().sum(1).mean()
        loss = error + SPARSITY * min(1.0, step / (0.1 * N_STEPS)) * latents.sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            decoder /= decoder.norm(dim=1, keepdim=True)
    found = [tensor.detach() for tensor in parameters]
    return refitted(Dictionary(found[0], found[1], found[2] / scale, found[3] / scale), states)


def refitted(dictionary: Dictionary, states: Tensor) -> Dictionary:
    """Returns the dictionary with the decoder that fits the states best, its rows' norms moved into the encoder.

    An L1 penalty makes latents too small, and what they lack stays in the error, where an ablation does not reach it.

    Source: Wright and Sharkey 2024, Addressing Feature Suppression in SAEs (the problem; the remedy here is a ridge
    regression).
    """
    latents, wanted = dictionary.encode(states).double(), (states - dictionary.decoder_bias).double()
    ridge = RIDGE * len(states)
    gram = latents.T @ latents + ridge * torch.eye(N_LATENTS, dtype=torch.float64)
    decoder = torch.linalg.solve(gram, latents.T @ wanted + ridge * dictionary.decoder.double())
    norms = decoder.norm(dim=1)
    return Dictionary(
        encoder=(dictionary.encoder * norms).float(),
        decoder=(decoder / norms[:, None]).float(),
        encoder_bias=(dictionary.encoder_bias * norms).float(),
        decoder_bias=dictionary.decoder_bias,
    )


def write_file(path: Path, dictionary: Dictionary) -> None:
    """Writes a dictionary as fp32, under the names that dictionaries are passed around with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        "W_enc": dictionary.encoder,
        "W_dec": dictionary.decoder,
        "b_enc": dictionary.encoder_bias,
        "b_dec": dictionary.decoder_bias,
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(0o644)


def read_file(path: Path) -> Dictionary:
    """Returns the dictionary in a file."""
    tensors = load_file(path)
    return Dictionary(tensors["W_enc"], tensors["W_dec"], tensors["b_enc"], tensors["b_dec"])


def fit(dictionary: Dictionary, states: Tensor) -> str:
    """Returns the share of the states' variance that a dictionary explains, and how many latents are above zero."""
    latents = dictionary.encode(states)
    left, whole = (states - dictionary.decode(latents)).square().sum(), (states - states.mean(0)).square().sum()
    return f"variance explained {1 - left / whole:.4f}, mean L0 {(latents > 0).sum(1).float().mean():.2f}"


@dataclass(frozen=True, slots=True)
class Meanings:
    """What the latents stand for on training prompts.

    Attributes:
        kinds: The pairs of task and answer.
        means: The mean activation of every latent on every kind, kinds by latents.
        maxima: The largest activation of every latent.
    """

    kinds: tuple[tuple[str, str], ...]
    means: Tensor
    maxima: Tensor

    def of_task(self, task: str, n: int) -> list[int]:
        """Returns the `n` latents with the largest mean activation on a task among those that are the task's."""
        inside = torch.tensor([kind[0] == task for kind in self.kinds])
        share = self.means[inside].sum(0) / self.means.sum(0).clamp(min=1e-9)
        return (self.means[inside].mean(0) * (share > MIN_SHARE)).topk(n).indices.tolist()

    def of_latent(self, latent: int) -> tuple[str, str]:
        """Returns the task and the answer on which a latent's mean activation is largest."""
        return self.kinds[int(self.means[:, latent].argmax())]

    def active(self, task: str) -> list[int]:
        """Returns the latents that are above zero on some prompt of a task."""
        inside = torch.tensor([kind[0] == task for kind in self.kinds])
        return self.means[inside].sum(0).nonzero().flatten().tolist()


def meanings(dictionary: Dictionary, prompts: Sequence[Prompt], states: Tensor) -> Meanings:
    """Returns what the latents stand for."""
    latents = dictionary.encode(states)
    labels = [(prompt.task, prompt.answer) for prompt in prompts]
    kinds = tuple(sorted(set(labels)))
    means = torch.stack([latents[torch.tensor([label == kind for label in labels])].mean(0) for kind in kinds])
    return Meanings(kinds, means, latents.max(0).values)


def accuracy_by_task(prompts: Sequence[Prompt], found: Sequence[int]) -> dict[str, float]:
    """Returns the share of prompts whose answer's first token was found, by task."""
    right: dict[str, list[bool]] = {}
    for prompt, token in zip(prompts, found, strict=True):
        right.setdefault(prompt.task, []).append(token == prompt.answer_id)
    return {task: sum(hits) / len(hits) for task, hits in right.items()}


def show_ablation(model: PreTrainedModel, prompts: Sequence[Prompt], dictionary: Dictionary, lists: dict[str, list[int]]) -> None:
    """Prints the accuracies by task with each list of latents set to zero, after those of the model left alone."""
    names = sorted({prompt.task for prompt in prompts})
    print(f"  {'':22}" + "".join(f"{name:>17}" for name in names))
    for label, latents in lists.items():
        by_task = accuracy_by_task(prompts, predictions(model, prompts, dictionary.written(latents, 0.0)))
        print(f"  {label:22}" + "".join(f"{by_task[name]:17.4f}" for name in names))


def show_steering(
    model: PreTrainedModel, prompts: Sequence[Prompt], dictionary: Dictionary, latent: int, value: float, answer_id: int
) -> None:
    """Prints how many prompts that have another answer got the latent's answer, before and with the latent set, by family."""
    others = [prompt for prompt in prompts if prompt.answer_id != answer_id]
    before, after = (predictions(model, others, dictionary.written(chosen, value)) for chosen in ([], [latent]))
    for family in sorted({prompt.task.split("_")[0] for prompt in others}):
        at = [i for i, prompt in enumerate(others) if prompt.task.split("_")[0] == family]
        n_before, n_after = (sum(found[i] == answer_id for i in at) for found in (before, after))
        print(f"  {family:8}{n_before}/{len(at)} before, {n_after}/{len(at)} after")


def main() -> None:
    """Trains the dictionary, writes its file, reads it, and prints what it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="where the file goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model, tokenizer = load(BUNDLED / FOLDERS["llama"])
    prompts, held_out = training_prompts(tokenizer), held_out_prompts(tokenizer)
    states = states_of(model, prompts)
    write_file(arguments.out, trained(states))
    dictionary = read_file(arguments.out)
    found = meanings(dictionary, prompts, states)
    print(f"{arguments.out.name}: block {LAYER}, last token, {N_LATENTS} latents, {arguments.out.stat().st_size} bytes")
    print(f"{len(prompts)} training prompts: {fit(dictionary, states)}, {int((found.maxima == 0).sum())} dead latents")
    print(f"{len(held_out)} held-out prompts: {fit(dictionary, states_of(model, held_out))}")

    ablated = found.of_task(ABLATED_TASK, N_ABLATED)
    print(f"\nlatents of {ABLATED_TASK}: {ablated}")
    for latent in ablated:
        task, answer = found.of_latent(latent)
        print(
            f"  {latent:4} {task}{answer}: mean {found.means[found.kinds.index((task, answer)), latent]:.2f}, max {found.maxima[latent]:.2f}"
        )
    generator = torch.Generator().manual_seed(SEED)
    rest = torch.tensor([latent for latent in found.active(ABLATED_TASK) if latent not in ablated])
    controls = [sorted(rest[torch.randperm(len(rest), generator=generator)[:N_ABLATED]].tolist()) for _ in range(N_CONTROLS)]
    print(f"control, of the {len(rest)} others above zero on some prompt of {ABLATED_TASK}: {controls[0]}")
    mirror = found.of_task(MIRROR_TASK, N_ABLATED)
    print(f"second control, the latents of {MIRROR_TASK}: {mirror}")
    lists = {"none": [], "set to zero": ablated, "control": controls[0], "second control": mirror}

    by_place = {f"data/{name}": table_prompts(tokenizer, name) for name in ("successor/all.json", "successor/pairs.json")}
    by_place["held-out prompts"] = held_out
    for place, rows in by_place.items():
        print(f"\nablation, {place}, {len(rows)} rows")
        show_ablation(model, rows, dictionary, lists)
    rows = by_place["data/successor/all.json"]
    of_controls = [accuracy_by_task(rows, predictions(model, rows, dictionary.written(control, 0.0)))[ABLATED_TASK] for control in controls]
    print(f"{N_CONTROLS} controls, {ABLATED_TASK}: mean {sum(of_controls) / N_CONTROLS:.4f}, lowest {min(of_controls):.4f}")
    losing = [prompt for prompt in rows if prompt.task == ABLATED_TASK]
    instead = Counter(
        f"{prompt.answer.strip()} → {tokenizer.decode([token]).strip()}"
        for prompt, token in zip(losing, predictions(model, losing, dictionary.written(ablated, 0.0)), strict=True)
    )
    print(f"answers instead: {dict(instead.most_common())}")

    latent, value = ablated[0], round(float(found.maxima[ablated[0]]), 1)
    answer = found.of_latent(latent)[1]
    answer_id = tokenizer.encode(answer, add_special_tokens=False)[0]
    print(f"\nsteering: latent {latent} set to {value}, its largest value rounded, for the answer `{answer}`")
    by_place["data/successor/steering.json"] = table_prompts(tokenizer, "successor/steering.json")
    for place, rows in by_place.items():
        print(place)
        show_steering(model, rows, dictionary, latent, value, answer_id)


if __name__ == "__main__":
    main()
