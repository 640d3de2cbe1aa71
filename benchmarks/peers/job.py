"""The work as a peer's script is given it, and what the script hands back. Needs torch and numpy alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Meter, Way, first_line, measure

BARE = "plain forwards"


class Job:
    """One work.

    Attributes:
        model: the folder of the checkpoint.
        base, counterfactual: arguments of a plain forward: `input_ids`, `attention_mask`, `position_ids`.
        points: each with its layer, its head or None, and the columns of the patched token on every row of base and counterfactual.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.model: str = raw["model"]
        self.base = {name: torch.tensor(value) for name, value in raw["base"].items()}
        self.counterfactual = {name: torch.tensor(value) for name, value in raw["counterfactual"].items()}
        self.points: list[dict[str, Any]] = raw["points"]
        self.is_single: bool = raw["is_single"]
        self.rows = torch.arange(len(self.base["input_ids"]))

    def bare(self, forward: Callable[[dict[str, Any]], Any]) -> Way:
        """Returns plain forwards as a way: one a point, or one a role where the work is a single pass."""

        def run(meter: Meter, points: Sequence[int]) -> None:
            for inputs in [self.base, self.counterfactual] if self.is_single else [self.base] * len(points):
                forward(inputs)
                meter.keep(None)

        return Way(run)

    @contextmanager
    def first_row(self) -> Iterator[None]:
        """Has only the first row until it is left."""
        whole = dict(self.__dict__)
        self.base, self.counterfactual = ({name: value[:1] for name, value in side.items()} for side in (self.base, self.counterfactual))
        columns = ("base_columns", "source_columns")
        self.points = [{name: value[:1] if name in columns else value for name, value in point.items()} for point in self.points]
        self.rows = self.rows[:1]
        yield
        self.__dict__.update(whole)

    def load(self) -> Any:
        """Returns the checkpoint as transformers loads it."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).eval().requires_grad_(False)


def main(packages: Sequence[str], make_ways: Callable[[Job], Mapping[str, Way]]) -> None:
    """Measures the ways of a peer on the job that the command line names, and writes what was found beside it."""
    torch.set_num_threads(1)
    file = Path(sys.argv[1])
    raw = json.loads(file.read_text(encoding="utf-8"))
    job = Job(raw)
    found: dict[str, Any] = {"versions": {name: version(name) for name in packages}}
    try:
        ways = make_ways(job)
        sample, n_points = raw["sample"], len(job.points)
        with torch.inference_mode(), job.first_row():
            for way in ways.values():
                with suppress(Exception):  # the measured run notes it
                    way.run(Meter.started(), sample[:1])
        measured = measure(ways, n_points, sample, raw["n_repeats"], sample)
    except Exception as error:
        found["error"] = first_line(error)
    else:
        found["ways"] = {name: {"costs": [asdict(cost) for cost in one.costs], "error": one.error} for name, one in measured.items()}
        for number, one in enumerate(measured.values()):
            if one.logits:
                points = sorted(one.logits)
                np.savez(file.with_name(f"logits-{number}.npz"), points=points, logits=torch.stack([one.logits[p] for p in points]).numpy())
    file.with_name("found.json").write_text(json.dumps(found), encoding="utf-8")
