"""The ways that run in this environment: plain forwards, hooks by hand, nnterp's loops, and this package."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from measure import Meter, Run, Way
from torch import Tensor
from work import Point, Work

from causalab_mini.engine.engines.nnterp import NNterpEngine
from causalab_mini.plan import build_request
from causalab_mini.plan.spec import ModelSpec
from causalab_mini.schedule.located import build_schedule

BARE, HOOKS = "plain forwards", "hooks by hand"
TRACES, SESSION = "nnterp, a trace a pass", "nnterp, a session with the source once"
PLAIN, OURS, CHECKED = "this package, no rewrites", "this package", "this package, with its checks"


class Models:
    """One checkpoint opened three times, so that no way is run on a model that another has altered.

    Attributes:
        plain: as transformers loads it.
        nnterp: as nnterp loads it.
        engine: this package's.
    """

    def __init__(self, folder: Path) -> None:
        from nnterp import StandardizedTransformer
        from transformers import AutoModelForCausalLM

        self.folder = folder
        self.plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
        self.nnterp = StandardizedTransformer(str(folder), device_map="cpu", dtype=torch.float32)
        self.engine = NNterpEngine.load(ModelSpec(key=str(folder), dtype="fp32"), device_map="cpu")
        self.engine.load_weights()

    def weights(self) -> tuple[int, int]:
        """Returns how many weights one layer multiplies by, and how many the unembedding does."""
        layer = sum(parameter.numel() for parameter in self.plain.model.layers[0].parameters())
        return layer, self.plain.lm_head.weight.numel()


class Local:
    """The ways to do one work in this environment.

    Attributes:
        compile_seconds: CPU time from the document to its schedules.
        physical: what this package ran with its rewrites, once it has.
    """

    def __init__(self, models: Models, work: Work, folder: Path, sample: Sequence[int]) -> None:
        self.models = models
        self.work = work
        self.rows = torch.arange(len(work.rows))
        self.base, self.counterfactual = inputs(work.base), inputs(work.counterfactual)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rows.json").write_text(json.dumps(work.rows), encoding="utf-8")
        started = time.process_time()
        self.compiled = self.compile(None)
        self.compile_seconds = time.process_time() - started
        self.single = {index: self.compile(work.points[index]) for index in sample}
        self.physical: Any = None

    def ways(self) -> dict[str, Way]:
        """Returns all of them, by name."""
        return {
            BARE: Way(self.bare),
            HOOKS: Way(self.hooks),
            TRACES: Way(self.traces, may_fail=True),
            SESSION: Way(self.session, may_fail=True),
            PLAIN: Way(self.plain),
            OURS: Way(self.ours("off"), does_all=True),
            CHECKED: Way(self.ours("sample"), does_all=True, n_repeats=1),
        }

    def compile(self, point: Point | None) -> tuple[Any, list[Any]]:
        """Returns the request and the schedules of all points, or of one."""
        request = build_request(self.work.document(str(self.models.folder), point), self.folder, self.models.engine)
        return request, [build_schedule(request, planned) for planned in request.points]

    def warm_up(self) -> None:
        """Runs every way on one row at one point, so that nothing is loaded or parsed while it is measured."""
        index = next(iter(self.single))
        small = Local(self.models, self.work.first_row(index), self.folder / "first", [0])
        with torch.inference_mode():
            for way in small.ways().values():
                with suppress(Exception if way.may_fail else ()):  # the measured run notes it
                    way.run(Meter.started(), [0])

    def bare(self, meter: Meter, points: Sequence[int]) -> None:
        """One plain forward a point, with all its logits; of a single pass, one a role."""
        for inputs in [self.base, self.counterfactual] if self.work.name == "d" else [self.base] * len(points):
            self.models.plain(**inputs)
            meter.keep(None)

    def hooks(self, meter: Meter, points: Sequence[int]) -> None:
        """One source and one patched forward a point."""
        for index in points:
            meter.keep(self.patched_by_hand(self.work.points[index]))

    def patched_by_hand(self, point: Point) -> Tensor:
        """Returns the logits of one point, (row, vocabulary)."""
        kept: list[Tensor] = []
        with _Hook(self.models.plain, point, lambda value: kept.append(value[self.source(point)].clone())):
            self.models.plain(**self.counterfactual)
        with _Hook(self.models.plain, point, lambda value: _put(value, self.target(point), kept[0])):
            logits: Tensor = self.models.plain(**self.base).logits
        return logits[:, -1].clone()

    def traces(self, meter: Meter, points: Sequence[int]) -> None:
        """One trace for the source and one for the patched forward, at each point."""
        model = self.models.nnterp
        for point in (self.work.points[index] for index in points):
            layer, there, here = point.layer, self.source(point), self.target(point)
            with outside(), model.trace(**self.counterfactual):
                found = model.layers[layer].self_attn.o_proj.input if point.head is not None else model.layers_output[layer]
                value = found[there].save()
            with outside(), model.trace(**self.base):
                found = model.layers[layer].self_attn.o_proj.input if point.head is not None else model.layers_output[layer]
                found[here] = value
                logits = model.logits[:, -1].save()
            meter.keep(logits)

    def session(self, meter: Meter, points: Sequence[int]) -> None:
        """One session: a trace that reads every source, then one for each patched forward."""
        model, work = self.models.nnterp, self.work
        with outside(), model.session():
            values = {}
            with model.trace(**self.counterfactual):
                for point in work.points:
                    found = model.layers[point.layer].self_attn.o_proj.input if point.head is not None else model.layers_output[point.layer]
                    values[point] = found[self.source(point)].save()
            meter.source_done()
            for point in [work.points[index] for index in points]:
                with model.trace(**self.base):
                    found = model.layers[point.layer].self_attn.o_proj.input if point.head is not None else model.layers_output[point.layer]
                    found[self.target(point)] = values[point]
                    logits = model.logits[:, -1].save()
                meter.keep(logits)

    def plain(self, meter: Meter, points: Sequence[int]) -> None:
        """The plan's own passes, a request a point."""
        for request, schedules in [self.single[index] for index in points]:
            self.models.engine.execute(
                request, schedules=schedules, check="off", rewrites=(), on_point=lambda one: meter.keep(logits_of(one))
            )

    def ours(self, check: str) -> Run:
        """Returns the whole document, as this package runs it."""

        def run(meter: Meter, points: Sequence[int]) -> None:
            request, schedules = self.compiled
            self.models.engine.execute(
                request,
                schedules=schedules,
                check=check,
                on_scheduled=lambda physical: setattr(self, "physical", physical),
                on_point=lambda one: meter.keep(logits_of(one)),
            )

        return run

    def source(self, point: Point) -> tuple[Any, ...]:
        """Returns the index of a point's value in the counterfactual."""
        return self.index(point, self.work.counterfactual.columns[point.place])

    def target(self, point: Point) -> tuple[Any, ...]:
        """Returns the index of a point's place in the base."""
        return self.index(point, self.work.base.columns[point.place])

    def index(self, point: Point, columns: Sequence[int]) -> tuple[Any, ...]:
        """Returns the index of one token a row, and of one head where there is one, in a (row, token, feature) tensor."""
        where = (self.rows, torch.tensor(columns))
        if point.head is None:
            return where
        width = self.models.plain.config.head_dim
        return (*where, slice(point.head * width, (point.head + 1) * width))


class _Hook:
    """A hook at a point's module while it is entered; its function gets the tensor that leaves it, or of a head enters its mixing."""

    def __init__(self, module: Any, point: Point, do: Callable[[Tensor], Any]) -> None:
        block = module.model.layers[point.layer]
        if point.head is None:
            self.handle = block.register_forward_hook(lambda module, args, output: do(output))
        else:
            self.handle = block.self_attn.o_proj.register_forward_pre_hook(lambda module, args: do(args[0]))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self.handle.remove()


@contextmanager
def outside() -> Iterator[None]:
    """Leaves inference mode for `no_grad`: nnsight runs what stands in a trace on a thread of its own, which may not alter inference tensors."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _put(value: Tensor, at: tuple[Any, ...], new: Tensor) -> Tensor:
    """Returns a tensor with a value put into it."""
    changed = value.clone()
    changed[at] = new
    return changed


def inputs(side: Any) -> dict[str, Any]:
    """Returns the arguments of a forward over one role's rows."""
    return {name: torch.tensor(values) for name, values in side.arguments().items()} | {"use_cache": False}


def logits_of(point: Any) -> Tensor:
    """Returns the logits that a point of this package's results holds, (row, vocabulary)."""
    found: Tensor = point.step("patch").results["outputs"]["prediction"].value.data[0]
    return found
