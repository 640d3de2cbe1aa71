"""Where a run reads and writes, as sample rows whose tokens are marked: made of `places.json`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from causalab_mini.results.report.figures import shown_value
from causalab_mini.results.report.folder import Folder

MAX_GROUPS = 6
"""Sets of places of a step that are shown; a sweep over positions may have very many."""
AROUND, SHORT = 8, 80
"""Tokens that are shown beside a mark, and how many a prompt has that is shown whole."""

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A read or a write of some tokens."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens one after another that the same places mark; `n_hidden`: how many are not shown, and then there are none."""

    tokens: tuple[str, ...]
    marks: tuple[Mark, ...] = ()
    n_hidden: int = 0

    @property
    def kind(self) -> str:
        """`read`, `write`, `both`, or nothing."""
        kinds = {mark.kind for mark in self.marks}
        return "both" if len(kinds) > 1 else next(iter(kinds), "")


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward over a row: whose prompt, its runs of tokens, and what the model says after it."""

    model: str
    role: str
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    said: str | None = None
    in_said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A read or a write in words."""

    kind: str
    name: str
    on: str
    site: str
    pos: str
    change: str


@dataclass(frozen=True, slots=True)
class Group:
    """Places that go together, in words and in rows."""

    title: str
    places: tuple[Place, ...]
    rows: tuple[tuple[str, tuple[Pass, ...]], ...]


@dataclass(frozen=True, slots=True)
class Located:
    """A step's groups; `left_out`: how many more there are."""

    step: str
    groups: tuple[Group, ...]
    left_out: int


def located(folder: Folder) -> tuple[Located, ...]:
    """Returns where every step reads and writes."""
    places = folder.places
    if places is None:
        return ()
    found = []
    for step, of in dict.fromkeys((entry["step"], entry["of"]) for entry in places["places"]):
        own = [entry for entry in places["places"] if (entry["step"], entry["of"]) == (step, of)]
        groups = list(_groups(folder, own))
        name = f"{step} ({of})" if of else step
        found.append(
            Located(name, tuple(_group(folder, step, of, *group) for group in groups[:MAX_GROUPS]), max(0, len(groups) - MAX_GROUPS))
        )
    return tuple(found)


def _groups(folder: Folder, entries: Sequence[Data]) -> Iterator[tuple[str, list[Data]]]:
    """Yields the sets of places that points have together, each once, with what those points have in common."""
    by_set: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for label in folder.points:
        here = [number for number, entry in enumerate(entries) if entry["points"] is None or label in entry["points"]]
        for intervention in dict.fromkeys(entries[number]["intervention"] for number in here):
            own = tuple(number for number in here if entries[number]["intervention"] == intervention)
            by_set.setdefault((intervention, own), []).append(label)
    several = len({intervention for intervention, _ in by_set}) > 1
    for (intervention, numbers), labels in by_set.items():
        axes = {axis: {shown_value(folder.points[label][axis]) for label in labels} for axis in folder.points[labels[0]]}
        everywhere = {axis: {shown_value(values[axis]) for values in folder.points.values() if axis in values} for axis in axes}
        said = [f"{axis} {next(iter(values))}" for axis, values in axes.items() if len(values) == 1 and len(everywhere[axis]) > 1]
        chosen = sorted((entries[k] for k in numbers), key=lambda entry: (entry["model"] != "original", entry["kind"] == "read"))
        yield ", ".join(([intervention] if several and intervention not in " ".join(said) else []) + said), chosen


def _group(folder: Folder, step: str, of: str, title: str, entries: Sequence[Data]) -> Group:
    places = folder.places or {}
    rows = next((each for each in places["rows"] if (each["step"], each["of"]) == (step, of) and _meet(each, entries[0])), None)
    said = [each for each in places["said"] if each["step"] == step and _meet(entries[0], {"points": [each["point"]]})]
    n_samples = max((len(places["prompts"][entry["prompts"]]["samples"]) for entry in entries), default=0)
    shown = []
    for row in range(n_samples):
        label = rows["labels"][row] if rows is not None and row < len(rows["labels"]) else str(row)
        passes = []
        for model, role in dict.fromkeys((entry["model"], entry["role"]) for entry in entries):
            own = [entry for entry in entries if (entry["model"], entry["role"]) == (model, role)]
            passes.append(_pass(places, model, role, own, row, label, said))
        shown.append((label, tuple(passes)))
    return Group(title, tuple(_place(entry) for entry in entries), tuple(shown))


def _meet(one: Data, other: Data) -> bool:
    return one["points"] is None or other["points"] is None or not set(one["points"]).isdisjoint(other["points"])


def _place(entry: Data) -> Place:
    layers = [int(layer) for layer in entry["layers"]]
    of_layers = f" {_ranges(layers)}" if layers else ""
    heads = "" if entry["heads"] is None else f", head{'s' if len(entry['heads']) > 1 else ''} {_ranges(entry['heads'])}"
    units = "" if entry["n_units"] is None else f", {entry['n_units']} unit{'s' if entry['n_units'] > 1 else ''}"
    via = f" via {', '.join(entry['featurizers'])}" if entry["featurizers"] else ""
    on = f"{entry['model']} on {entry['role']}"
    return Place(
        entry["kind"], entry["name"], on, f"{entry['component']}{of_layers}{heads}{units}{via}", entry["pos"], ", ".join(entry["changes"])
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Returns whole numbers with runs of them by their ends."""
    found = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        own = [number for _, number in run]
        found.append(f"{own[0]}–{own[-1]}" if len(own) > 2 else ", ".join(map(str, own)))
    return ", ".join(found)


def _pass(places: Data, model: str, role: str, entries: Sequence[Data], row: int, label: str, said: Sequence[Data]) -> Pass:
    samples = places["prompts"][entries[0]["prompts"]]["samples"]
    if row >= len(samples):
        return Pass(model, role, (), ("this row is not kept",))
    sample = samples[row]
    marks: dict[int, list[Mark]] = {}
    notes, names = list[str](), set[str]()
    for entry in entries:
        names |= {entry["name"], f"{entry['intervention']}/{entry['name']}"}
        for key, suffix in (("tokens", ""), ("keys", " keys")):
            for token in (entry[key] or [()] * (row + 1))[row] if entry.get(key) else ():
                mark = Mark(entry["kind"], entry["name"] + suffix)
                if mark not in marks.setdefault(token, []):
                    marks[token].append(mark)
        if reason := (entry.get("reasons") or [""] * (row + 1))[row]:
            notes.append(f"{entry['name']}: {reason.replace('_', ' ')}")
    tokens = ["⟨start⟩"] * sample["n_prefix"] + sample["tokens"]
    marked = {token + sample["n_prefix"]: tuple(own) for token, own in marks.items()}
    if sample["n_tokens"] > len(sample["tokens"]):
        notes.append(f"{sample['n_tokens'] - len(sample['tokens'])} more tokens are not kept")
    spoken = [
        each for each in said if each["kind"] == "said" and each["name"].split(".generated")[0].split("/")[-1] in (model, f"{model}.{role}")
    ]
    text = next((line["text"] for each in spoken for line in each["rows"] if line["example_id"] == label), None)
    generated = {each["name"] for each in spoken}
    heard = [
        f"{each['kind']} {each['name']} at {each['pos']}: "
        + (f"‘{line['text']}’" if line["text"] else line.get("reason", "nothing").replace("_", " "))
        for each in said
        if each["kind"] != "said" and each["name"] in names and (each["of"] in generated or each["of"].split("/")[-1] in generated)
        for line in each["rows"]
        if line["example_id"] == label
    ]
    return Pass(model, role, tuple(_runs(tokens, marked)), tuple(notes), text, tuple(heard))


def _runs(tokens: Sequence[str], marks: Mapping[int, tuple[Mark, ...]]) -> Iterator[Run]:
    """Yields the runs of a prompt; of a long one, only what stands near a mark, its begin and its end."""
    n = len(tokens)
    near = {near for token in (*marks, 0, n - 1) for near in range(token - AROUND, token + AROUND + 1)} if n > SHORT else set(range(n))
    if n > SHORT and len(near & set(range(n))) > 4 * SHORT:
        near = {token for token in range(n) if token < 2 * SHORT or token >= n - 2 * SHORT}
    for key, run in itertools.groupby(range(n), key=lambda token: (marks.get(token, ()), True) if token in near else ((), False)):
        own = list(run)
        if key[1]:
            yield Run(tuple(tokens[token].replace("\n", "⏎\n") for token in own), key[0])
        else:
            yield Run((), (), len(own))
