"""Writes the tables the documents use, from the tasks and the bundled models.

Responsible for which pairs a document can rely on: the names of a pair take the same tokens' places, both answers are
one token, and the model gives both; `successor/all.json` alone holds any pair. Deterministic.
`python training/make_tables.py [--models DIR] [--out DIR]`.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from accuracy import is_right, load
from lines import Line
from localise import equal_pieces
from pieces import piece_count
from train_bundled import BUNDLED, FOLDERS
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from causalab_mini.data.tasks import Row, ioi, successor

DATA = Path(__file__).resolve().parent.parent / "data"

SEED = 11
N_PAIRS = 48
N_ALL = 96
N_INTERCHANGE = 288
"""Pairs to train with, to choose by and to report on."""


def interchangeable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Callable[[Row], bool]:
    """Returns whether a row's names take the same tokens' places and the model gives both of its one-token answers."""
    same_places = equal_pieces(tokenizer)

    def keep(row: Row) -> bool:
        sides = [(row["input"], row["base_answer"]), (row["counterfactual_inputs"][0], row["cf_answer"])]
        return (
            all(piece_count(tokenizer, answer.strip()) == 1 for _, answer in sides)
            and same_places(row)
            and all(is_right(model, tokenizer, Line(prompt, answer, row["task"])) for prompt, answer in sides)
        )

    return keep


def with_choices(rows: list[Row]) -> list[Row]:
    """Returns rows with both neighbours of the name beside them, in the column `choices`."""
    choices: dict[str, list[str]] = {}
    for family, listed in successor.FAMILIES.items():
        for direction, step in successor.STEPS.items():
            for entity in successor.entities(family, direction):
                other = listed.entities[(listed.entities.index(entity) + step) % len(listed.entities)]
                choices.setdefault(entity, []).append(f" {other}")
    return [row | {"choices": choices[row["entity"]]} for row in rows if len(choices[row["entity"]]) == 2]


def in_three(rows: list[Row]) -> list[Row]:
    """Returns rows for training, for choosing and for reporting: half `train`, a quarter each `dev` and `test`, tasks evenly in each."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(row)
    splits = ("train", "dev", "train", "test")
    return [row | {"split": splits[number % 4]} for of_task in by_task.values() for number, row in enumerate(of_task)]


def tables(models: Path) -> dict[str, list[Row]]:
    """Returns the rows of every table by its path below `data/`."""
    llama, llama_tokenizer = load(models / FOLDERS["llama"])
    gpt2, gpt2_tokenizer = load(models / FOLDERS["gpt2"])
    of_llama = interchangeable(llama, llama_tokenizer)
    of_gpt2 = interchangeable(gpt2, gpt2_tokenizer)
    one_piece_names = [name for name in ioi.NAMES if piece_count(gpt2_tokenizer, name) == 1]
    fits = equal_pieces(llama_tokenizer)

    def n_pieces(text: str) -> int:
        return piece_count(llama_tokenizer, text.strip())

    def has_one_shape(row: Row) -> bool:
        prompts = (row["input"], row["counterfactual_inputs"][0])
        return len({len(llama_tokenizer(prompt)["input_ids"]) for prompt in prompts}) == 1

    def is_steerable(row: Row) -> bool:
        other = row["counterfactual_inputs_variables"][0]["entity"]
        return (row["entity"], other) == ("Tuesday", "Saturday") and of_llama(row)

    def asks_back(row: Row) -> bool:
        users = [turn["content"] for turn in row["input"] if turn["role"] == "user"]
        return len(users) == 2 and row["entity"] in users[0] and of_llama(row)

    def has_long_answers(row: Row) -> bool:
        sides = [(row["input"], row["base_answer"]), (row["counterfactual_inputs"][0], row["cf_answer"])]
        is_long = all(n_pieces(answer) > 1 for _, answer in sides) and fits(row)
        return is_long and all(is_right(llama, llama_tokenizer, Line(prompt, answer, row["task"])) for prompt, answer in sides)

    pairs = successor.make_pairs(n=N_PAIRS, seed=SEED, keep=of_llama)
    interchange = in_three(successor.make_pairs(n=N_INTERCHANGE, seed=SEED + 1, keep=of_llama))
    return {
        "successor/pieces.json": successor.make_pairs(n=32, seed=SEED, keep=lambda row: n_pieces(row["entity"]) > 1 and of_llama(row)),
        "successor/same_shape.json": successor.make_pairs(n=32, seed=SEED, keep=lambda row: of_llama(row) and has_one_shape(row)),
        "successor/choices.json": with_choices([row for row in pairs if n_pieces(row["entity"]) > 1]),
        "successor/steering.json": successor.make_pairs(n=32, seed=SEED, families=("day",), keep=is_steerable),
        "successor/long_answers.json": successor.make_pairs(n=32, seed=SEED, keep=has_long_answers),
        "chat/two_turns.json": successor.make_pairs(n=32, seed=SEED, form="chat", keep=asks_back),
        "successor/pairs.json": pairs,
        "successor/by_task.json": [row | {"split": row["task"], "steered_answer": " Sunday"} for row in pairs],
        "successor/interchange.json": interchange,
        "successor/months.json": [row for row in interchange if row["task"].startswith("month")],
        "successor/gpt2_pairs.json": successor.make_pairs(n=N_PAIRS, seed=SEED, keep=of_gpt2),
        "successor/all.json": successor.make_pairs(n=N_ALL, seed=SEED),
        "ioi/pairs.json": ioi.make_pairs(n=N_PAIRS, seed=SEED, names=one_piece_names, keep=of_gpt2),
        "chat/pairs.json": successor.make_pairs(n=N_PAIRS, seed=SEED, form="chat", keep=of_llama),
    }


def main() -> None:
    """Writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=BUNDLED, help="where the models' folders are")
    parser.add_argument("--out", type=Path, default=DATA, help="where the tables go")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, rows in tables(arguments.models).items():
        path = arguments.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{len(rows):4} {path}")


if __name__ == "__main__":
    main()
