"""Writes the tables of the pages on SmolLM2-135M-Instruct: pairs that the model answers right on both sides.

Responsible for splits that can be held apart: no base prompt of one is in another. Deterministic.
`python training/make_smollm2_tables.py` takes the checkpoint that `tests/smollm2.py` fetches.
"""

import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from causalab_mini.data.tasks import Row, ioi, successor
from causalab_mini.engine.gguf import converted_folder

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
SEED = 5
N_MONTHS = {"train": 96, "dev": 48, "test": 48}
N_IOI = {"dev": 32, "test": 32}
N_DRAWN = 120


def load() -> tuple[torch.nn.Module, AutoTokenizer]:
    """Returns the checkpoint in fp32, with its tokenizer."""
    from smollm2 import gguf_file

    folder = converted_folder(gguf_file())
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)


class Judge:
    """Says whether the most likely next token of a prompt is its answer; each prompt is run once, alone."""

    def __init__(self, model: torch.nn.Module, tokenizer: AutoTokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.known: dict[tuple[str, str], bool] = {}

    @torch.no_grad()
    def is_right(self, prompt: str, answer: str) -> bool:
        """Returns whether the answer is one token, and the most likely one."""
        if (prompt, answer) not in self.known:
            (*more, token) = self.tokenizer(answer, add_special_tokens=False).input_ids
            logits = self.model(torch.tensor([self.tokenizer(prompt).input_ids])).logits[0, -1]
            self.known[prompt, answer] = not more and int(logits.argmax()) == token
        return self.known[prompt, answer]

    def keep(self, row: Row) -> bool:
        """Returns whether both sides of a row are answered right."""
        sides = ((row["input"], row["base_answer"]), (row["counterfactual_inputs"][0], row["cf_answer"]))
        return row["base_answer"] != row["cf_answer"] and all(self.is_right(*side) for side in sides)


def apart(rows: Iterable[Row], counts: dict[str, int], key: Callable[[Row], str]) -> list[Row]:
    """Returns rows in splits of some sizes, all rows of one base prompt in one split."""
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(key(row), []).append(row)
    generator, splits = random.Random(SEED), {name: list[Row]() for name in counts}
    for base in generator.sample(sorted(by_key), len(by_key)):
        name = max(counts, key=lambda split: counts[split] - len(splits[split]))
        splits[name] += by_key[base][: max(0, counts[name] - len(splits[name]))]
    return [row | {"split": name} for name, own in splits.items() for row in own]


def months(judge: Judge) -> list[Row]:
    """Returns every pair of months in every wording without filler that the model answers right."""
    wordings: Sequence[str] = sorted({template.text for template in successor.TEMPLATES["month", "next"]})
    rows = []
    for number, wording in enumerate(wordings):
        try:
            drawn = successor.make_pairs(
                n=N_DRAWN,
                seed=SEED + number,
                families=("month",),
                directions=("next",),
                templates=(wording,),
                fillers=False,
                splits=("train", "test"),
            )
        except ValueError:
            continue
        rows += [row for row in drawn if judge.keep(row)]
    return apart(rows, N_MONTHS, lambda row: row["input"])


def objects(judge: Judge) -> list[Row]:
    """Returns pairs whose indirect object and subject change places."""
    rows = ioi.make_pairs(n=sum(N_IOI.values()), seed=SEED, fillers=False, change="swap", keep=judge.keep, splits=("train",))
    return apart(rows, N_IOI, lambda row: row["input"])


def main() -> None:
    """Writes the tables."""
    torch.set_num_threads(1)
    judge = Judge(*load())
    for name, rows in (("months", months(judge)), ("ioi", objects(judge))):
        path = ROOT / "data" / "smollm2" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
        counts = {split: sum(row["split"] == split for row in rows) for split in dict.fromkeys(row["split"] for row in rows)}
        print(f"{len(rows):4} {path} {counts}")
    prompts = list(judge.known.values())
    print(f"{sum(prompts)} of {len(prompts)} prompts answered right")


if __name__ == "__main__":
    main()
