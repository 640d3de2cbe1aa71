"""The shape of a task's rows, and drawing distinct ones.

Responsible for what every task shares: the row type, the filler sentences, and the loop which gathers rows. It knows no
task, no tokenizer and no model; what depends on a tokenizer comes in as a callable.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]
"""One line of a table: column name to JSON value."""

Keep: TypeAlias = Callable[[Row], bool]
"""Whether a drawn row is wanted."""

SPLITS: Final = ("train", "test")

FILLERS: Final = (
    "The sun is warm.",
    "We had a long walk by the river.",
    "The train was late again.",
    "My sister likes green apples.",
    "It rained all night.",
    "The garden looks nice.",
    "A dog sleeps by the door.",
    "They drank tea and talked.",
    "The shop around the corner was closed.",
    "He read a book about birds.",
    "Her car is red.",
    "The children played outside with a ball.",
)
"""Sentences which say nothing about any task; none holds a name of one, even inside a word."""

TRIES_PER_ROW: Final = 2000


def is_held_out(template_index: int, *fillers: str) -> bool:
    """Whether a template with these fillers stays out of the training text.

    A quarter of the combinations does; every filler and every template is trained on in other combinations, and a
    template without fillers always is.

    Args:
        template_index: The template's place in its table.
        fillers: The filler sentences, `""` for none.
    """
    indices = [FILLERS.index(filler) + 1 for filler in fillers if filler]
    return bool(indices) and (template_index + sum(indices)) % 4 == 0


def draw_distinct(n: int, draws: Sequence[Callable[[], Row]], keep: Keep | None = None) -> list[Row]:
    """Returns `n` distinct rows, taken from `draws` in turn.

    A draw that gives no new wanted row in `TRIES_PER_ROW` tries is left out from there on.

    Args:
        n: How many rows.
        draws: Functions that each give one random row.
        keep: Whether a row is wanted; all are by default.

    Raises:
        ValueError: There are fewer than `n` distinct rows, as far as was tried.
    """
    rows: list[Row] = []
    seen: set[str] = set()
    live = list(draws)
    turn = 0
    while len(rows) < n:
        if not live:
            raise ValueError(f"expected {n} distinct pairs, got {len(rows)}: ask for fewer, or restrict them less")
        turn %= len(live)
        for _ in range(TRIES_PER_ROW):
            row = live[turn]()
            key = json.dumps([row["input"], row["counterfactual_inputs"]])
            if key not in seen and (keep is None or keep(row)):
                seen.add(key)
                rows.append(row)
                turn += 1
                break
        else:
            del live[turn]
    return rows
