"""The probes that ship: a trained linear probe, a projection, the norm, and an aggregate over a request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causalab_mini.data.opening import A_PICKLE, INSTEAD, is_pickle
from causalab_mini.errors import CausalabError, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.probing.probes.base import Action, ActivationRecord, End, Probe, ProbeMisfit, Start, TrajectoryProbe, Verdict
from causalab_mini.probing.probes.registry import register
from causalab_mini.probing.spec import ExtractionPoint

if TYPE_CHECKING:
    from torch import Tensor

    from causalab_mini.model.facts import ModelFacts
    from causalab_mini.ops.linear_probe import LinearProbe

ABOVE, BELOW = "above", "below"
HOW = ("mean", "max", "last")
STAMPED = ("model", "revision", "component", "layer")
MAX_BYTES = 1 << 30


class Threshold:
    """What is done about a score: nothing, or an abort where it is beyond a threshold.

    Args:
        threshold: that a score is compared with; None for none.
        when: whether a score `above` (or at) it counts, or one `below`.
        action: `abort`, or `continue`, which only notes it.

    Raises:
        ProbeMisfit: a value is none of these, or an abort has no threshold.
    """

    def __init__(self, threshold: float | None, when: str, action: str) -> None:
        if threshold is not None:
            _number("threshold", threshold)
        _one_of("when", when, (ABOVE, BELOW))
        _one_of("action", action, tuple(each.value for each in Action))
        if action == Action.ABORT and threshold is None:
            raise ProbeMisfit("threshold", "a number (`action: abort` needs it)", "none")
        self._threshold, self._when, self._action = threshold, when, Action(action)

    def verdict(self, value: Any, score: float, what: str) -> Verdict:
        """Returns the verdict on a score; `value` is what it says of it."""
        is_within = self._threshold is None or (score < self._threshold if self._when == ABOVE else score >= self._threshold)
        if is_within:  # a score that is no number is not
            return Verdict(value)
        sign = "≥" if self._when == ABOVE else "<"
        return Verdict(value, self._action, f"{what} {score:.4g} {sign} {self._threshold:g}")


@register("linear_probe")
class Linear(Probe):
    """A linear probe that `fit_probe` has trained, from its file.

    The value is a probability of a class where two were learned, or one was named; else the likeliest class with its probability; of a ridge
    probe, what it predicts.

    Args:
        file: of the probe.
        target: the class whose probability is the value; the second of two, unless it is named.
        threshold: of that probability (0.5 unless it is given, where there is one), or of a prediction.
        when: whether values `above` (or at) the threshold count, or those `below`.
        action: what is done about those: `continue`, or `abort`.
        check_stamp: whether the file has to be of this model, component and layer.
    """

    files = ("file",)

    def __init__(
        self,
        file: str,
        target: Any = None,
        threshold: float | None = None,
        when: str = ABOVE,
        action: str = "continue",
        check_stamp: bool = True,
    ) -> None:
        self.trained = _linear_probe(file)
        classes = self.trained.classes
        if target is not None and target not in classes:
            expected = f"a class of the probe ({listed(classes)})" if classes else "no class (it was trained by ridge regression)"
            raise ProbeMisfit("target", expected, quoted(target))
        self.entry = classes.index(target) if target is not None else 1 if len(classes) == 2 else None
        is_scored = not classes or self.entry is not None
        if not is_scored and (threshold is not None or action != "continue"):
            raise ProbeMisfit("target", f"a class ({listed(classes)}) whose probability the threshold is of", "none")
        if threshold is None and self.entry is not None:
            threshold = 0.5
        self.rule = Threshold(threshold, when, action)
        self.check_stamp = _flag("check_stamp", check_stamp)
        self.weight, self.bias = self.trained.weight, self.trained.bias

    def fits(self, point: ExtractionPoint, facts: ModelFacts) -> None:
        """Judges width, and what the file says of model, component and layer."""
        _fits_width(point, facts, self.weight.shape[-1], "file")
        if not self.check_stamp:
            return
        own: dict[str, list[Any]] = {
            "model": [facts.key],
            "revision": [facts.revision],
            "component": list(point.components),
            "layer": [*point.layers] if point.layers else [None],
        }
        for key in STAMPED:
            if key in self.trained.stamp and own[key] != [self.trained.stamp[key]]:
                there = own[key][0] if len(own[key]) == 1 else own[key]
                hint = "`check_stamp: false` takes it anyway"
                raise ProbeMisfit("file", f"a probe whose `{key}` is {quoted(there)}", quoted(self.trained.stamp[key]), hint)

    def on_activation(self, record: ActivationRecord) -> Verdict:
        """Returns what the probe makes of an activation."""
        x = record.activation.float()
        if self.weight.device != x.device:
            self.weight, self.bias = self.weight.to(x.device), self.bias.to(x.device)
        logits: list[float] = (self.weight @ x + self.bias).tolist()
        classes = self.trained.classes
        if not classes:
            return self.rule.verdict(logits[0], logits[0], "prediction")
        probabilities = _probabilities(logits)
        if self.entry is None:
            best = max(range(len(classes)), key=probabilities.__getitem__)
            return Verdict({"class": classes[best], "probability": probabilities[best]})
        found = probabilities[self.entry]
        return self.rule.verdict(found, found, f"probability of {quoted(classes[self.entry])}")


@register("projection")
class Projection(Probe):
    """How far an activation goes along a direction: x·d, with d of length 1.

    Args:
        direction: the numbers.
        file: a safetensors file with them, instead.
        tensor: its name in the file; it may be left out where there is one.
        normalize: whether the direction is made one of length 1.
        threshold: of the projection.
        when: whether values `above` (or at) the threshold count, or those `below`.
        action: what is done about those: `continue`, or `abort`.
    """

    files = ("file",)

    def __init__(
        self,
        direction: Sequence[float] | None = None,
        file: str | None = None,
        tensor: str | None = None,
        normalize: bool = True,
        threshold: float | None = None,
        when: str = ABOVE,
        action: str = "continue",
    ) -> None:
        if (direction is None) == (file is None):
            raise ProbeMisfit("direction", "one of `direction` and `file`", "both" if file is not None else "neither")
        if tensor is not None and file is None:
            raise ProbeMisfit("tensor", "no `tensor` without `file`", quoted(tensor))
        self.direction = _given(direction) if file is None else _tensor(file, tensor)
        length = float(self.direction.norm())
        if not (length > 0 and math.isfinite(length)):
            raise ProbeMisfit(
                "direction" if file is None else "file", "a direction whose length is above 0 and finite", f"one of length {length:g}"
            )
        if _flag("normalize", normalize):
            self.direction = self.direction / length
        self.from_file = file is not None
        self.rule = Threshold(threshold, when, action)

    def fits(self, point: ExtractionPoint, facts: ModelFacts) -> None:
        """Judges the width."""
        _fits_width(point, facts, len(self.direction), "file" if self.from_file else "direction")

    def on_activation(self, record: ActivationRecord) -> Verdict:
        """Returns the projection."""
        x = record.activation.float()
        if self.direction.device != x.device:
            self.direction = self.direction.to(x.device)
        found = float(x @ self.direction)
        return self.rule.verdict(found, found, "projection")


@register("norm_monitor")
class NormMonitor(Probe):
    """The Euclidean norm of an activation, and what is done where it leaves its bounds.

    Args:
        max: the largest norm that is within bounds.
        min: the smallest.
        action: what is done about others: `continue`, or `abort`.
    """

    def __init__(self, max: float | None = None, min: float | None = None, action: str = "continue") -> None:
        for name, bound in (("max", max), ("min", min)):
            if bound is not None and _number(name, bound) < 0:
                raise ProbeMisfit(name, "a norm, 0 or above", quoted(bound))
        if max is not None and min is not None and min > max:
            raise ProbeMisfit("min", f"at most `max`, which is {max:g}", quoted(min))
        _one_of("action", action, tuple(each.value for each in Action))
        if action == Action.ABORT and max is None and min is None:
            raise ProbeMisfit("max", "a bound (`action: abort` needs `max`, `min` or both)", "none")
        self._max, self._min, self._action = max, min, Action(action)

    def on_activation(self, record: ActivationRecord) -> Verdict:
        """Returns the norm."""
        found = float(record.activation.float().norm())
        if self._max is not None and not found <= self._max:
            return Verdict(found, self._action, f"norm {found:.4g} > {self._max:g}")
        if self._min is not None and not found >= self._min:
            return Verdict(found, self._action, f"norm {found:.4g} < {self._min:g}")
        return Verdict(found)


@register("aggregator")
class Aggregator(TrajectoryProbe):
    """The mean, the largest (feature by feature) or the last of a request's activations, at its end.

    The value is `{"n": how many, "values": {place: the numbers}}`, a place being `component/layer`.

    Args:
        how: `mean`, `max` or `last`.
    """

    def __init__(self, how: str = "mean") -> None:
        _one_of("how", how, HOW)
        self._how = how

    def fits(self, point: ExtractionPoint, facts: ModelFacts) -> None:
        """Refuses patterns of attention: those of two tokens have as many keys as the tokens have."""
        _fits_width(point, facts, None, "")

    def on_start(self, start: Start) -> None:
        """Begins with nothing."""
        self._found: dict[str, Tensor] = {}
        self._n: dict[str, int] = {}

    def on_activation(self, record: ActivationRecord) -> None:
        """Takes an activation in."""
        place = record.component if record.layer is None else f"{record.component}/{record.layer}"
        x, before = record.activation.float(), self._found.get(place)
        self._n[place] = self._n.get(place, 0) + 1
        if before is None or self._how == "last":
            self._found[place] = x.clone()
        elif self._how == "max":
            self._found[place] = before.maximum(x)
        else:
            self._found[place] = before + (x - before) / self._n[place]

    def on_end(self, end: End) -> Verdict | None:
        """Returns what came together; nothing where there was no activation."""
        if not self._found:
            return None
        return Verdict({"n": max(self._n.values()), "values": {place: found.tolist() for place, found in self._found.items()}})


def _linear_probe(file: str) -> LinearProbe:
    from causalab_mini.ops.linear_probe import LinearProbe

    status = Path(file).stat()
    key = (file, status.st_mtime_ns, status.st_size)
    if key not in _PROBES:
        try:
            found = LinearProbe.from_file(file)
        except CausalabError as error:
            problem = error.problems[0]
            raise ProbeMisfit("file", problem.expected, problem.got, problem.hint) from None
        if len(_PROBES) >= MAX_CACHED:
            _PROBES.clear()
        _PROBES[key] = found
    return _PROBES[key]


_PROBES: dict[tuple[str, int, int], LinearProbe] = {}
"""Files that were read: their tensors are only read, so that the probes of all requests have the same."""
MAX_CACHED = 64


def _tensor(file: str, name: str | None) -> Tensor:
    """Returns a vector of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    if is_pickle(file):
        raise ProbeMisfit("file", "a safetensors file", f"{quoted(file)}, {A_PICKLE}", INSTEAD)
    if Path(file).stat().st_size > MAX_BYTES:
        raise ProbeMisfit("file", f"a file of at most {MAX_BYTES:,} bytes", f"{Path(file).stat().st_size:,} bytes")
    try:
        with safe_open(file, framework="pt") as tensors:
            names = sorted(tensors.keys())
            if name is None and len(names) != 1:
                raise ProbeMisfit("tensor", f"the name of one of its tensors ({listed(names) if names else 'it has none'})", "none")
            own = names[0] if name is None else name
            if own not in names:
                raise ProbeMisfit("tensor", f"a tensor of the file ({listed(names)})", quoted(name))
            found: Tensor = tensors.get_tensor(own).float()
    except (SafetensorError, OSError) as error:
        raise ProbeMisfit("file", "a safetensors file", f"{quoted(file)}: {error}") from None
    found = found.squeeze()
    if found.dim() != 1:
        raise ProbeMisfit("tensor", "a vector", f"{quoted(own)} of shape {quoted(list(found.shape))}")
    return found


def _given(direction: Any) -> Tensor:
    import torch

    if not isinstance(direction, list | tuple) or not direction:
        raise ProbeMisfit("direction", "a list of numbers", quoted(direction))
    for number in direction:
        _number("direction", number)
    return torch.tensor(direction, dtype=torch.float32)


def _probabilities(logits: Sequence[float]) -> list[float]:
    """Returns probabilities of classes; one logit is that of the second of two."""
    if len(logits) == 1:
        logits = (0.0, logits[0])
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def _fits_width(point: ExtractionPoint, facts: ModelFacts, width: int | None, argument: str) -> None:
    """Refuses patterns, and a vector that is longer or shorter than what the point takes."""
    for component in point.components:
        if COMPONENTS[component].has_keys:
            raise ProbeMisfit("", f"{quoted(point.probe_type)} at a tensor with features", f"{quoted(component)}, which has keys")
        own = facts.width(component)
        if width is not None and own != width:
            raise ProbeMisfit(argument, f"{own} features ({quoted(component)} of {quoted(facts.key)})", str(width))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ProbeMisfit(name, "a number", quoted(value))
    return float(value)


def _one_of(name: str, value: Any, words: Sequence[str]) -> None:
    if value not in words:
        raise ProbeMisfit(name, listed(words), quoted(value))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ProbeMisfit(name, "`true` or `false`", quoted(value))
    return value
