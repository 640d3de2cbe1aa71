"""Exact greedy accuracy on held-out prompts, one unpadded prompt at a time.

Responsible for scoring a model on the tasks' `test` split. `python training/accuracy.py FOLDER` prints it.
"""

import argparse
import random
from pathlib import Path

import torch
from lines import Line, draw_pair, tasks
from pieces import located
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

N_PROMPTS = 200
"""Held-out prompts a task."""

HELD_OUT_SEED = 1_000_003


def prompt_ids(tokenizer: PreTrainedTokenizerFast, line: Line) -> list[int]:
    """Returns a line's prompt as token ids, with whatever the tokenizer puts before a text."""
    return located(tokenizer, line.prompt, "")[0]


def answer_ids(tokenizer: PreTrainedTokenizerFast, line: Line) -> list[int]:
    """Returns a line's answer and the full stop after it as token ids."""
    return tokenizer.encode(f"{line.answer}.", add_special_tokens=False)


@torch.no_grad()
def is_right(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, line: Line) -> bool:
    """Whether greedy decoding gives the answer and the full stop after it, exactly.

    The right tokens are fed, and each must be the most likely one: greedy decoding passes exactly then.
    """
    prompt, answer = prompt_ids(tokenizer, line), answer_ids(tokenizer, line)
    logits = model(input_ids=torch.tensor([prompt + answer])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer


def accuracies(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, architecture: str, n_prompts: int = N_PROMPTS
) -> dict[str, float]:
    """Returns the share of `n_prompts` held-out prompts answered right, by task."""
    model.eval()
    generator = random.Random(HELD_OUT_SEED)
    right_by_task: dict[str, float] = {}
    for task in tasks(architecture):
        lines = [draw_pair(generator, task, "test").base for _ in range(n_prompts)]
        right_by_task[task] = sum(is_right(model, tokenizer, line) for line in lines) / n_prompts
    return right_by_task


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Returns a bundled folder's model in fp32, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(folder)


def main() -> None:
    """Prints the accuracies of a bundled folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(arguments.folder)
    for task, share in accuracies(model, tokenizer, model.config.model_type).items():
        print(f"{task:24} {share:.3f}")


if __name__ == "__main__":
    main()
