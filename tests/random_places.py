"""Rows, positions and places that random documents are made of."""

import json
from dataclasses import dataclass
from typing import Any

from authoring import pair

from causalab_mini.model.components import COMPONENTS

# rows

DAYS = ("Friday", "Sunday", "Monday", "Saturday")
LONG_DAYS = ("Thursday", "Tuesday")
ONE_PIECE = ("is", "so", "If", "today", "to")
WORDS = (*ONE_PIECE, "tomorrow", "or,")
ANSWERS = ("Friday", "Sunday", "Monday", "today", "is")


def draw_table(random, is_rectangular):
    """Returns the rows of a table: ragged, and on both sides of a pair alike up to some token, or to the end, or not at all.

    Args:
        random: what is drawn from.
        is_rectangular: whether both sides of every pair have as many tokens.
    """

    def words(least, most, among=ONE_PIECE if is_rectangular else WORDS):
        return [random.choice(among) for _ in range(random.randint(least, most))]

    lead = words(0, 3)
    rows = []
    for number in range(random.randint(2, 5)):
        head, tail = words(0, 2), words(3, 5)
        day = random.choice(DAYS if is_rectangular else (*DAYS, *LONG_DAYS))
        other_head, other_day, other_tail = head, day, tail
        match random.choice(("last", "entity", "tail", "equal", "apart")):
            case "last":
                other_tail = [*tail[:-1], random.choice([word for word in ONE_PIECE if word != tail[-1]])]
            case "entity":
                other_day = random.choice([entry for entry in DAYS if entry != day])
            case "tail":
                other_tail = words(len(tail), len(tail)) if is_rectangular else words(3, 6)
            case "apart":
                other_day = random.choice(DAYS)
                other_head = words(len(head), len(head)) if is_rectangular else words(0, 3)
                other_tail = words(len(tail), len(tail)) if is_rectangular else words(3, 6)
        name = day if number == 0 else random.choice((day, *WORDS, None))
        answer = random.choice(ANSWERS)
        row = pair(
            " ".join([*lead, *head, day, *tail]),
            day,
            " ".join([*lead, *other_head, other_day, *other_tail]),
            other_day,
            name=name,
            answer=None if number and random.randrange(7) == 6 else answer,
            other=random.choice([word for word in ANSWERS if word != answer]),
            answer_text=random.choice(("Sunday", "tomorrow is Thursday", "so is today")),
            group=random.choice("ab") if number > 1 else "ab"[number],
        )
        row["counterfactual_inputs_variables"][0]["name"] = other_day if number == 0 else name
        rows.append(row)
    return rows


# positions, by how many tokens they are

ENTITY = {"variable": "entity"}
NAME = {"variable": "name"}
"""Not on every row, or there twice."""
ONE = (-1, -2, 0, 1, -3, {"index": -1, "scope": ENTITY}, {"index": 0, "scope": ENTITY}, {"index": -2, "offset": 1})
PREFIX = {"index": 0, "scope": {"segment": "prefix"}}
TWO = ({"last": 2}, {"span": [0, 2]}, {"span": [-3, -1]}, {"last": 3, "stride": 2}, {"span": [0, 2], "offset": 1})
THREE = ({"last": 3}, {"span": [0, 3]})
RAGGED = ({"all": True}, {"all": True, "scope": ENTITY}, {"span": [1, -1]}, {"all": True, "stride": 2})
POSITIONS = {1: (*ONE, PREFIX), 2: TWO, 3: THREE, None: RAGGED}
SELDOM = ({"index": 1, "scope": ENTITY}, {"last": 2, "scope": ENTITY})
"""Positions that perhaps no row has."""
MISSING = {1: ({"index": -1, "scope": NAME}, SELDOM[0]), 2: (SELDOM[1],), None: ({"all": True, "scope": NAME},)}
"""Positions that some rows may not have, which only reads may name."""
POS_AXES = ([-1, -2], [0, -1], [1, {"index": -1, "scope": ENTITY}], [-1, 0, {"index": 0, "scope": ENTITY}], [-2, -1, 1])
"""Positions that are swept, all one token wide."""


def is_scoped(pos):
    """Returns whether a position, or one of a sweep of them, is looked for by a text."""
    return "scope" in json.dumps(pos)


# places

CLASSES = {
    "hidden": (
        "block_output",
        "block_output",
        "attention_output",
        "mlp_output",
        "block_input",
        "block_mid",
        "attention_input_norm",
        "mlp_input",
        "embeddings",
        "ln_final",
    ),
    "heads": ("attention_z", "attention_z", "attention_premix", "attention_query"),
    "kv_heads": ("attention_value", "attention_key"),
    "intermediate": ("mlp_neuron_output", "mlp_activation"),
    "vocabulary": ("logits", "lm_head"),
    "keys": ("attention_probs", "attention_probs", "attention_scores"),
}
SUMMANDS = (
    "attention_output",
    "mlp_output",
    *CLASSES["heads"],
    *CLASSES["kv_heads"],
    *CLASSES["intermediate"],
)
"""Where nothing may be left without harm: what is added to a stream, or goes into what is added."""
ORDER = list(COMPONENTS)


@dataclass(frozen=True)
class Place:
    """A site, and what must be known of it to put something else there.

    Attributes:
        site: as the document has it.
        low: its lowest layer; the number of layers for what comes after them, -1 for what comes before.
        n_stacked: how many layers its values have; 0 without layer axis.
        part: of which kind, and how many, of its heads or units; None for all.
    """

    site: dict[str, Any]
    low: int
    n_stacked: int
    part: tuple[str, int] | None

    @property
    def component(self):
        return self.site["component"]

    @property
    def width(self):
        return COMPONENTS[self.component].width
