"""Where a run reads and writes, in a few rows of every step: what `places.json` holds. Knows plans and prompts, no numbers.

It is known before the first forward, so that a run that fails or is continued has it too; what only exists when the model has said it
(positions of the generated frame) is added point by point.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from causalab_mini.data.prompts import Prompt
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.explain import change_of
from causalab_mini.probing.spec import compile_point
from causalab_mini.results.store import RunFolder
from causalab_mini.schedule.locate import locate

if TYPE_CHECKING:
    from causalab_mini.engine.run import PointResult

PLACES = "places.json"
N_SAMPLES = 8
"""Rows of a step of which every token is kept."""
MAX_TEXTS, MAX_CHARACTERS, MAX_TOKENS = 400, 400, 2048
"""Of a role: prompts that are kept as text, characters of each, and tokens of a sample."""
MAX_POINTS = 1000
"""Points of a sweep whose places are looked up."""
MAX_SAID = 64
"""Points of a sweep of which it is kept what models said."""

Data = dict[str, Any]


class Places:
    """What `places.json` will say.

    Attributes:
        prompts: of every ref and field that a step has: texts by row, and the tokens of the samples.
        rows: of every step, which prompts each role has, and the labels of its rows.
        places: reads, writes and extraction points, with their tokens in the samples; `points` of a sweep that have them alike, null for all.
        files: where each value that is saved lies, below the folder of its point.
        said: what models said on the samples, and which tokens of it are read and written.
    """

    def __init__(self, request: nodes.Request) -> None:
        self.request = request
        self.order = {point.label: place for place, point in enumerate(request.points)}
        self.numbers: dict[nodes.RowsKey, int] = {}
        self.prompts: list[Data] = []
        self.entries: dict[str, dict[str, Data]] = {"rows": {}, "places": {}, "files": {}}
        self.said: list[Data] = []
        labels = [point.label for point in request.points[:MAX_POINTS]]
        for point in request.points[:MAX_POINTS]:
            for step in point.plan.steps:
                self.note(point.label, step)
        for entry in (entry for kind in self.entries.values() for entry in kind.values()):
            if entry["points"] == labels:
                entry["points"] = None

    def as_data(self) -> Data:
        """Returns the file's data."""
        found = {name: list(entries.values()) for name, entries in self.entries.items()}
        n = len(self.request.points)
        return {"n_points": n, "n_points_located": min(n, MAX_POINTS), "prompts": self.prompts, **found, "said": self.said}

    def write(self, folder: RunFolder) -> None:
        """Writes the file, unless that is what it holds."""
        folder.write_if_other(PLACES, self.as_data())

    def continue_from(self, folder: RunFolder, run: Container[str]) -> None:
        """Takes over what an earlier run has heard models say at points that do not run again, and writes the file.

        Args:
            folder: of the run.
            run: the points that run.
        """
        earlier = folder.read_json(PLACES)
        said = earlier.get("said") if isinstance(earlier, dict) else None
        kept = [entry for entry in said if isinstance(entry, dict)] if isinstance(said, list) else []
        self.said = [entry for entry in kept if entry.get("point") in self.order and entry.get("point") not in run]
        self.write(folder)

    def point(self, point: PointResult, folder: RunFolder) -> None:
        """Adds what models said at a point, if they said anything, and writes the file then."""
        new = [entry for name, step in point.steps.items() for entry in _said(point.label, name, step.node, step.results)]
        others = [entry for entry in self.said if entry["point"] != point.label]
        if new and len({entry["point"] for entry in others}) < MAX_SAID:
            self.said = sorted(others + new, key=lambda entry: self.order[entry["point"]])
            self.write(folder)

    def note(self, label: str, step: nodes.Step) -> None:
        """Notes a step of a point."""
        match step:
            case nodes.Observe():
                self.observe(label, step.name, "", step)
            case nodes.Fit():
                self.observe(label, step.name, "training", step.training)
                self.observe(label, step.name, "eval", step.evaluation)
            case nodes.Attribute():
                self.observe(label, step.name, "", step.observed)
            case nodes.Stream():
                self.stream(label, step)
            case nodes.FitProbe():
                self.rows(label, step.name, "", step.labels, step.rows)
            case nodes.Weights():
                pass
        for save in [*step.saves, *(step.evaluation.saves if isinstance(step, nodes.Fit) else ())]:
            path = "/".join(part for part in (save.intervention, save.file_path) if part)
            self.add("files", label, {"step": step.name, "value": save.value, "path": path})

    def observe(self, label: str, step: str, of: str, observed: nodes.Observe) -> None:
        """Notes the rows of what runs over rows, and its reads and writes."""
        self.rows(label, step, of, observed.labels, observed.rows)
        for intervention in observed.interventions:
            for forward in intervention.runs:
                for place in forward.places:
                    if not (isinstance(place, nodes.Read) and place.is_hidden):
                        self.place(label, {"step": step, "of": of, "intervention": intervention.name}, forward, place)

    def place(self, label: str, where: Data, forward: nodes.Forward, place: nodes.Read | nodes.Write) -> None:
        """Notes a read or a write."""
        prompts = self.request.prompts[forward.rows][:N_SAMPLES]
        site, is_write = place.site, isinstance(place, nodes.Write)
        data: Data = {
            **where,
            "model": forward.model,
            "role": forward.role,
            "prompts": self.number(forward.rows),
            "kind": "write" if is_write else "read",
            "name": place.name,
            "component": site.component,
            "layers": list(site.layers),
            "heads": None if site.heads is None else list(site.heads),
            "n_units": None if site.units is None else len(site.units),
            "pos": str(place.pos),
            "featurizers": [] if place.featurizer is None else [str(place.featurizer)],
            "changes": [change_of(place)] if isinstance(place, nodes.Write) else [],
        }
        for key, pos, anchors in (("tokens", place.pos, place.anchors), ("keys", place.keys, place.key_anchors)):
            if pos is None or pos.is_generated:
                data[key] = None
                continue
            windows = [locate(pos, None if anchors is None else anchors[row], prompt) for row, prompt in enumerate(prompts)]
            data[key] = [list(window.tokens) for window in windows]
            if any(window.reason for window in windows):
                data["reasons"] = [window.reason for window in windows]
        self.add("places", label, data, merged=("layers", "featurizers", "changes"))

    def stream(self, label: str, step: nodes.Stream) -> None:
        """Notes the rows of a stream, and its extraction points in its prompts."""
        self.rows(label, step.name, "", step.labels, {step.role: step.rows})
        prompts = self.request.prompts[step.rows][:N_SAMPLES]
        for point in step.spec:
            found = [compile_point(point, prompt.n_tokens, step.decode.max_new_tokens) for prompt in prompts]
            tokens = [[token - prompt.n_prefix for token in one.prompt] for one, prompt in zip(found, prompts, strict=True)]
            data = {
                "step": step.name,
                "of": "",
                "intervention": "",
                "model": "original",
                "role": step.role,
                "prompts": self.number(step.rows),
                "kind": "read",
                "name": point.name,
                "component": point.tensor_type,
                "layers": list(point.layers or ()),
                "heads": None,
                "n_units": None,
                "pos": str(point.position),
                "featurizers": [],
                "changes": [],
                "tokens": tokens,
                "keys": None,
            }
            self.add("places", label, data)

    def rows(self, label: str, step: str, of: str, labels: Sequence[str], rows: Mapping[str, nodes.RowsKey]) -> None:
        """Notes which prompts a step has."""
        roles = {role: self.number(key) for role, key in rows.items()}
        self.add("rows", label, {"step": step, "of": of, "n": len(labels), "labels": list(labels[:MAX_TEXTS]), "roles": roles})

    def number(self, key: nodes.RowsKey) -> int:
        """Returns which of `prompts` are those of a ref and field, noted if they are not yet."""
        if key not in self.numbers:
            prompts = self.request.prompts[key]
            self.numbers[key] = len(self.prompts)
            texts = [_cut(prompt.text) for prompt in prompts[:MAX_TEXTS]]
            samples = [_sample(prompt) for prompt in prompts[:N_SAMPLES]]
            self.prompts.append({"ref": key[0], "field": key[1], "n_rows": len(prompts), "texts": texts, "samples": samples})
        return self.numbers[key]

    def add(self, kind: str, label: str, data: Data, merged: tuple[str, ...] = ()) -> None:
        """Adds an entry, or a point to one that is the same but for some lists, which are joined."""
        key = json.dumps({name: value for name, value in data.items() if name not in merged}, sort_keys=True, default=str)
        entry = self.entries[kind].setdefault(key, {"points": [], **data})
        if label not in entry["points"][-1:]:
            entry["points"].append(label)
        for name in merged:
            entry[name] = sorted({*entry[name], *data[name]})


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _sample(prompt: Prompt) -> Data:
    """Returns a prompt as its tokens' texts; those before the text (`n_prefix`) are the tokenizer's own."""
    tokens = [prompt.text[start:end] for start, end in prompt.spans[:MAX_TOKENS]]
    return {"n_prefix": prompt.n_prefix, "tokens": tokens, "n_tokens": prompt.n_content}


def _said(label: str, step: str, node: nodes.Step, results: Mapping[str, Any]) -> Iterator[Data]:
    """Yields what models said in a step, on the rows of the samples, and what was read and written in it."""
    where = {"point": label, "step": step}
    for name, lines in results.get("generated", {}).items():
        rows = [{key: line[key] for key in ("example_id", "text", "ended") if key in line} for line in lines[:N_SAMPLES]]
        yield {**where, "kind": "said", "name": name, "rows": rows}
    for observed in nodes.observed_by(node)[-1:]:
        for item in observed.interventions:
            for forward in item.generations:
                for place in (place for place in forward.places if place.pos.is_generated):
                    name = f"{item.name}/{place.name}" if observed.is_list else place.name
                    if name in results.get("positions", {}):
                        kind = "write" if isinstance(place, nodes.Write) else "read"
                        rows = _windows(observed.labels, results["positions"][name])
                        yield {
                            **where,
                            "kind": kind,
                            "name": name,
                            "of": item.name_of_generation(forward),
                            "pos": str(place.pos),
                            "rows": rows,
                        }
    if isinstance(node, nodes.Stream):
        heard: dict[str, dict[str, dict[int, str]]] = {}
        labels = set(node.labels[:N_SAMPLES])
        for line in (line for line in results["records"] if line["generated_index"] is not None and line["example_id"] in labels):
            heard.setdefault(line["point"], {}).setdefault(line["example_id"], {})[line["generated_index"]] = line["token"]
        for point in (point for point in node.spec if point.name in heard):
            rows = [{"example_id": row, "tokens": sorted(tokens), "text": _joined(tokens)} for row, tokens in heard[point.name].items()]
            yield {**where, "kind": "read", "name": point.name, "of": "original.generated", "pos": str(point.position), "rows": rows}


def _joined(tokens: Mapping[int, str]) -> str:
    """Returns the text of tokens by index, with dots where some are left out."""
    return "".join(tokens[token] + ("" if token + 1 in tokens or token == max(tokens) else " … ") for token in sorted(tokens))


def _windows(labels: Sequence[str], record: Mapping[str, Any]) -> list[Data]:
    """Returns where a place was found in what was said on the rows of the samples."""
    found = zip(labels[:N_SAMPLES], record["content"], record["tokens"], record["reason"], strict=False)
    return [
        {"example_id": row, "tokens": list(tokens), "text": ast.literal_eval(text), **({"reason": reason} if reason else {})}
        for row, tokens, text, reason in found
    ]
