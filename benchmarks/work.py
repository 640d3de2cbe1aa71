"""What is measured: rows, places and points of each work, as token ids for those who write loops and as documents for this package."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from causalab_mini.data.tasks.rows import FILLERS
from causalab_mini.data.tasks.successor import FAMILIES, TEMPLATES

WORKS = {
    "a": "all layers at two positions",
    "a2": "the full grid of layers and positions",
    "b": "all layers on long prompts, near their end",
    "c": "every head of a middle layer",
    "d": "one patched pass",
}
ENTITY = {"index": -1, "scope": {"variable": "entity"}}
LAST = -1
LONG = 256
OPENERS = (
    "We all know",
    "You all know",
    "They all know",
    "We both know",
    "You both say",
    "They all say",
    "We all think",
    "They both think",
)
MIDDLE = "{opener} that if this month is {entity}, then the month that follows is"
QUESTION = "If this month is {entity}, next month is"


@dataclass(frozen=True, slots=True)
class Side:
    """One role's prompts, padded on the left.

    Attributes:
        ids, mask, positions: (row, token); positions count from each row's first own token.
        columns: of each place, the token's column on every row.
    """

    ids: list[list[int]]
    mask: list[list[int]]
    positions: list[list[int]]
    columns: dict[str, list[int]]

    def arguments(self) -> dict[str, list[list[int]]]:
        """Returns the arguments of a plain forward, as lists."""
        return {"input_ids": self.ids, "attention_mask": self.mask, "position_ids": self.positions}

    def first_row(self) -> Side:
        """Returns the first prompt alone."""
        return Side(self.ids[:1], self.mask[:1], self.positions[:1], {name: found[:1] for name, found in self.columns.items()})


@dataclass(frozen=True, slots=True)
class Point:
    """One interchange."""

    layer: int
    head: int | None
    place: str


@dataclass(frozen=True, slots=True)
class Work:
    """One work on one model.

    Attributes:
        name: a key of `WORKS`.
        rows: of the table, as the documents have them.
        layers: that are patched, in order.
        heads: of the attention that are patched one by one; none where a block's output is.
        places: the patched token as a document's position, by name.
        base, counterfactual: the prompts.
        points: in the order in which the document has them.
        lengths: least and most tokens of a row.
        differs_at: the first token at which base and counterfactual differ, least and most over the rows.
    """

    name: str
    rows: list[dict[str, Any]]
    layers: list[int]
    heads: list[int]
    places: Mapping[str, Any]
    base: Side
    counterfactual: Side
    points: list[Point]
    lengths: tuple[int, int]
    differs_at: tuple[int, int]

    @property
    def n_bare(self) -> int:
        """How many plain forwards the ratios are of: one a point, or the two of a single patched pass."""
        return 2 if self.name == "d" else len(self.points)

    def first_row(self, index: int) -> Work:
        """Returns one point on the first row."""
        point = self.points[index]
        return replace(
            self,
            rows=self.rows[:1],
            layers=[point.layer],
            heads=[] if point.head is None else [point.head],
            places={point.place: self.places[point.place]},
            base=self.base.first_row(),
            counterfactual=self.counterfactual.first_row(),
            points=[point],
        )

    def document(self, key: str, point: Point | None = None) -> dict[str, Any]:
        """Returns the work as a document with one sweep over all points, or one point of it."""
        layers, heads, places = self.layers, self.heads, list(self.places.values())
        if point is not None:
            layers, heads, places = [point.layer], [] if point.head is None else [point.head], [self.places[point.place]]
        pos = _swept(places, "place")
        site: dict[str, Any] = {"component": "attention_premix" if heads else "block_output", "layers": _swept(layers, "layer")}
        if heads:
            site["heads"] = _swept([[head] for head in heads], "head")
        patching = {
            "reads": {
                "source": {"site": "place", "pos": pos, "input": "counterfactual"},
                "prediction": {"site": {"component": "logits"}, "pos": -1, "model": "patched"},
            },
            "writes": {"patch": {"site": "place", "pos": pos, "mechanism": "swap", "operand": "source"}},
            "models": {"patched": {"input": "base", "writes": ["patch"]}},
        }
        step = {
            "kind": "observe",
            "rows": {"base": "rows", "counterfactual": "rows"},
            "interventions": "patching",
            "outputs": {"prediction": "prediction"},
        }
        return {
            "model": {"key": key, "dtype": "fp32"},
            "roles": {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}},
            "sites": {"place": site},
            "interventions": {"patching": patching},
            "steps": {"patch": step},
        }


def make_work(name: str, tokenizer: Any, n_layers: int, n_heads: int) -> Work:
    """Returns a work for a model; the same rows for the same tokenizer."""
    generator = random.Random(0)
    layers, heads = list(range(n_layers)), list[int]()
    places: dict[str, Any] = {"entity": ENTITY, "last": LAST}
    if name == "a2":
        rows = _grid_rows(tokenizer)
        places = {str(index): index for index in range(_n_content(tokenizer, rows[0]["input"]))}
    elif name == "b":
        rows = [_drawn(tokenizer, generator, LONG, [QUESTION]) for _ in range(4)]
        places = {"near": _from_end(tokenizer, rows)}
    else:
        rows = [_drawn(tokenizer, generator, 15 + index // 2, _questions()) for index in range(32)]
        generator.shuffle(rows)
    if name in ("c", "d"):
        layers = [n_layers // 2]
    if name == "c":
        heads, places = list(range(n_heads)), {"last": LAST}
    if name == "d":
        places = {"entity": ENTITY}
    base = side(tokenizer, [(row["input"], row["entity"]) for row in rows], places)
    others = [(row["counterfactual_inputs"][0], row["counterfactual_inputs_variables"][0]["entity"]) for row in rows]
    counterfactual = side(tokenizer, others, places)
    points = [Point(layer, head, place) for layer in layers for head in (heads or [None]) for place in places]
    lengths = [sum(mask) for mask in base.mask]
    pairs = zip(base.ids, base.mask, counterfactual.ids, strict=True)
    first = [next(i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b) - mask.index(1) for x, mask, y in pairs]
    return Work(name, rows, layers, heads, places, base, counterfactual, points, (min(lengths), max(lengths)), (min(first), max(first)))


def sampled(n: int, n_wanted: int) -> list[int]:
    """Returns some of the points, the same ones every time; all where as many are wanted."""
    return list(range(n)) if n_wanted >= n else sorted(random.Random(0).sample(range(n), n_wanted))


def _swept(values: Sequence[Any], axis: str) -> Any:
    return values[0] if len(values) == 1 else {"sweep": list(values), "as": axis}


def _questions() -> list[str]:
    """Returns wordings in which the month stands at most nine tokens before the end."""
    return [template.text for direction in ("next", "previous") for template in TEMPLATES["month", direction]]


def _months(tokenizer: Any) -> list[str]:
    """Returns the months that are one token, so that a pair has as many tokens on both sides."""
    return [month for month in FAMILIES["month"].entities if len(tokenizer(f" {month}", add_special_tokens=False).input_ids) == 1]


def _row(text: str, entity: str, other: str) -> dict[str, Any]:
    return {
        "input": text.format(entity=entity),
        "entity": entity,
        "counterfactual_inputs": [text.format(entity=other)],
        "counterfactual_inputs_variables": [{"entity": other}],
    }


def _drawn(tokenizer: Any, generator: random.Random, n_tokens: int, questions: Sequence[str]) -> dict[str, Any]:
    """Returns a random pair of exactly so many tokens: sentences that say nothing about months, then a question about one."""
    months = _months(tokenizer)
    n_of = {filler: len(tokenizer(f" {filler}", add_special_tokens=False).input_ids) for filler in FILLERS}
    while True:
        question, (entity, other) = generator.choice(questions), generator.sample(months, 2)
        n_left, sentences = n_tokens - len(tokenizer(question.format(entity=entity)).input_ids), list[str]()
        while n_left > 0:
            sentences.append(generator.choice(FILLERS))
            n_left -= n_of[sentences[-1]]
        row = _row(" ".join([*sentences, question]), entity, other)
        both = {len(tokenizer(text).input_ids) for text in (row["input"], row["counterfactual_inputs"][0])}
        if sentences and both == {n_tokens}:
            return row


def _grid_rows(tokenizer: Any) -> list[dict[str, Any]]:
    """Returns eight pairs of equally many tokens, with the month at the same one."""
    months = _months(tokenizer)
    by_shape: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for turn in range(len(OPENERS)):
        for index, opener in enumerate(OPENERS):
            entity, other = (months[(index + turn + shift) % len(months)] for shift in (0, 1 + len(months) // 2))
            row = _row(MIDDLE.replace("{opener}", opener), entity, other)
            encoded = _Encoded(tokenizer, row["input"], entity)
            by_shape.setdefault((len(encoded.ids), encoded.entity), []).append(row)
    return max(by_shape.values(), key=len)[:8]


def _from_end(tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> int:
    """Returns where the entity stands, counted from the end: four tokens follow it."""
    encoded = [_Encoded(tokenizer, row["input"], row["entity"]) for row in rows]
    (found,) = {one.entity - len(one.ids) for one in encoded}
    return found


def _n_content(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False).input_ids)


class _Encoded:
    """A prompt's tokens, and which of them holds the entity's end."""

    def __init__(self, tokenizer: Any, text: str, entity: str) -> None:
        encoding = tokenizer(text, return_offsets_mapping=True)
        self.ids: list[int] = encoding.input_ids
        start = text.index(entity)
        spans: Iterator[tuple[int, tuple[int, int]]] = enumerate(encoding.offset_mapping)
        self.entity = max(index for index, (a, b) in spans if a < start + len(entity) and b > start)
        self.n_prefix = len(self.ids) - _n_content(tokenizer, text)

    def token(self, pos: Any) -> int:
        """Returns the index of the token at a document's position."""
        if pos == ENTITY:
            return self.entity
        return len(self.ids) + int(pos) if pos < 0 else self.n_prefix + int(pos)


def side(tokenizer: Any, prompts: Sequence[tuple[str, str]], places: Mapping[str, Any]) -> Side:
    """Returns prompts, each with its entity, as token ids."""
    encoded = [_Encoded(tokenizer, text, entity) for text, entity in prompts]
    longest = max(len(one.ids) for one in encoded)
    gaps = [longest - len(one.ids) for one in encoded]
    return Side(
        [[0] * gap + one.ids for gap, one in zip(gaps, encoded, strict=True)],
        [[0] * gap + [1] * len(one.ids) for gap, one in zip(gaps, encoded, strict=True)],
        [[0] * gap + list(range(len(one.ids))) for gap, one in zip(gaps, encoded, strict=True)],
        {name: [gap + one.token(pos) for gap, one in zip(gaps, encoded, strict=True)] for name, pos in places.items()},
    )
