"""Rows, positions and places that random documents are made of, and who draws them."""

import json
from dataclasses import dataclass, field
from typing import Any

from authoring import pair
from families_by_hand import present

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

    lead = words(*random.choice(((0, 3), (0, 3), (0, 3), (8, 9))))
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
MAY_VANISH = ("attention_output", "mlp_output", "attention_query", "attention_key")
"""Where a value may be left that is nothing but rounding: no norm follows that would make it large."""
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


@dataclass(frozen=True)
class Kept:
    """An output of a step, as an operand.

    Attributes:
        name: of the output.
        place: of its read.
        shape: `vector`, `window` or `rows`.
        width: how many tokens; None where rows have their own numbers.
        pos, role: of its read.
        is_safe: whether what is put in a stream by it is no rounding error.
    """

    name: str
    place: Place
    shape: str
    width: int | None
    pos: Any
    role: str
    is_safe: bool = True


@dataclass
class Author:
    """Draws what a document is put together from, and remembers what must fit.

    Attributes:
        random: what is drawn from.
        family, n_layers: of the model.
        is_eager: whether patterns can be read and written.
        is_rectangular: whether both sides of every pair have as many tokens.
        kept: outputs of earlier steps.
        axes: what is swept, by name.
        table: of the step that is written.
        n_rows: of that table.
        featurizers: by name.
    """

    random: Any
    family: str
    n_layers: int
    is_eager: bool
    is_rectangular: bool
    kept: list[Kept] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)
    table: str = "rows"
    n_rows: int = 0
    featurizers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        self.there = present(self.family)
        self.draw_axes()

    def chance(self, percent):
        return self.random.randrange(100) >= 100 - percent

    def pick(self, choices):
        return self.random.choice(tuple(choices))

    # sweeps

    def draw_axes(self):
        """Draws what will be swept wherever it may be: at most two things."""
        if self.chance(45):
            few = self.random.sample(range(self.n_layers), self.pick((2, 3)))
            self.axes["layer"] = self.pick(("all", {"range": [1, self.n_layers]}, few))
        if self.chance(20):
            self.axes["pos"] = self.pick(POS_AXES)
        if len(self.axes) < 2 and self.chance(25):
            self.axes["strength"] = self.pick(([0.5, 1.0], [0.0, 2.0], [-0.7, 0.0, 1.0]))
        if len(self.axes) < 2 and self.chance(25):
            self.axes["head"] = self.pick(([[0], [1]], [[0], [1]] if self.axes else "all"))

    def swept(self, axis, percent):
        """Returns the wrapper of an axis, sometimes, if there is such an axis."""
        return {"sweep": self.axes[axis], "as": axis} if axis in self.axes and self.chance(percent) else None

    def swept_layers(self):
        axis = self.axes["layer"]
        return list(range(self.n_layers)) if axis == "all" else list(range(*axis["range"])) if isinstance(axis, dict) else axis

    def strength(self, choices):
        return self.swept("strength", 70) or self.pick(choices)

    # places

    def place(self, width, part=(), n_stacked=None, above=None):
        """Returns a place.

        Args:
            width: of what class.
            part: which part of its width; empty to draw it.
            n_stacked: of how many layers; None to draw it.
            above: a place that it must be strictly below in a forward; None where there is none such.
        """
        names = [name for name in CLASSES[width] if name in self.there]
        if n_stacked:
            names = [name for name in names if COMPONENTS[name].per_layer]
        top = self.n_layers
        if above is not None:
            top = max(0, above.low)
            if "embeddings" not in names or above.component == "embeddings" or top:
                names = [name for name in names if name not in ("embeddings", "ln_final")]
            else:
                names = ["embeddings"]
        component = self.pick(names)
        part = self.draw_part(width) if part == () else part
        site: dict[str, Any] = {"component": component}
        if part is not None:
            site[part[0]] = self.indices(width, part[1])
        if not COMPONENTS[component].per_layer:
            return Place(site, -1 if component == "embeddings" else self.n_layers, 0, part)
        if n_stacked is None:
            n_stacked = self.pick((0, 0, 0, 0, 0, 2, self.n_layers)) if above is None and width != "keys" else 0
        if n_stacked and n_stacked <= top:
            layers = sorted(self.random.sample(range(top), n_stacked))
            is_all = n_stacked == self.n_layers and self.chance(80)
            return Place(site | {"layers": "all" if is_all else layers}, layers[0], n_stacked, part)
        if "layer" in self.axes and max(self.swept_layers()) < top and (wrapper := self.swept("layer", 75)):
            return Place(site | {"layers": wrapper}, min(self.swept_layers()), 0, part)
        layer = self.random.randrange(top)
        return Place(site | {"layers": layer - self.n_layers if self.chance(15) else layer}, layer, 0, part)

    def draw_part(self, width):
        if width in ("heads", "kv_heads", "keys"):
            return ("heads", self.pick((1, 2))) if "head" in self.axes or self.chance(60) else None
        return ("units", self.pick((1, 3))) if self.chance(80 if width == "intermediate" else 8) and width != "vocabulary" else None

    def indices(self, width, n):
        """Returns which heads or units, some of them swept."""
        if n == 1 and width in ("heads", "kv_heads", "keys") and (wrapper := self.swept("head", 80)):
            return wrapper
        most = {"heads": 4, "keys": 4, "kv_heads": 2}.get(width, 60)
        return self.random.sample(range(most), n)

    def pos(self, width, is_read=False):
        """Returns a position of some width."""
        if width == 1 and (wrapper := self.swept("pos", 60)):
            return wrapper
        if is_read and self.chance(12) and width in MISSING:
            return self.pick(MISSING[width])
        return self.pick(POSITIONS[width])

    def likes(self, name, is_added):
        """Returns what was kept and may stand where something else kept does, with a factor or without: the same place, reduced otherwise."""
        one = next(kept for kept in self.kept if kept.name == name)
        shape = (one.shape, one.width, one.place)
        alike = [kept for kept in self.kept if kept is not one and (kept.shape, kept.width, kept.place) == shape]
        return [kept for kept in alike if kept.is_safe or is_added]
