"""Control experiments: what an intervention becomes when that which should matter is taken out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from causalab_mini.errors import PlanError, Problem
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.spec import DrawnControl
from causalab_mini.plan.spec.selected import DRAWS


def control_of(intervention: nodes.Intervention, control: DrawnControl, path: str) -> nodes.Control | None:
    """Returns a control of an intervention, None where it can't have it but another one of the step can.

    Raises:
        PlanError: the control can't be made of what the intervention writes.
    """
    writes = [write for forward in intervention.runs for write in forward.writes]
    kind, seed, n_draws = control.kind, control.seed or 0, control.n or DRAWS.get(control.kind, 1)
    if not writes:
        return None
    match kind:
        case "self_swap":
            unpatched = replace(
                intervention,
                name=f"{intervention.name}~unpatched",
                forwards=_without_writes(intervention.forwards),
                generations=_without_writes(intervention.generations),
            )
            return nodes.Control(kind, intervention.name, (_self_swap(intervention),), unpatched)
        case "shuffled_source":
            if not any(isinstance(write.operand, nodes.FromRead) for write in writes):
                return None
            draws = tuple(_shuffled(intervention, draw, f"{seed}/{draw}", path) for draw in range(n_draws))
        case "random_subspace":
            if not any(write.featurizer is not None and _has_subspace(write.featurizer) for write in writes):
                return None
            draws = tuple(_random(intervention, draw, seed) for draw in range(n_draws))
        case "full_component":
            if all(write.featurizer is None and write.features is None for write in writes):
                return None
            draws = (_full(intervention),)
    return nodes.Control(kind, intervention.name, draws)


def _changed(
    intervention: nodes.Intervention, name: str, change: Callable[[nodes.Forward, nodes.Write], nodes.Write]
) -> nodes.Intervention:
    """Returns an intervention with every write changed."""

    def all_of(forwards: tuple[nodes.Forward, ...]) -> tuple[nodes.Forward, ...]:
        return tuple(
            replace(forward, places=tuple(change(forward, place) if isinstance(place, nodes.Write) else place for place in forward.places))
            for forward in forwards
        )

    forwards, generations = all_of(intervention.forwards), all_of(intervention.generations)
    return replace(intervention, name=f"{intervention.name}~{name}", forwards=forwards, generations=generations)


def _without_writes(forwards: tuple[nodes.Forward, ...]) -> tuple[nodes.Forward, ...]:
    return tuple(replace(forward, places=tuple(place for place in forward.places if isinstance(place, nodes.Read))) for forward in forwards)


def _self_swap(intervention: nodes.Intervention) -> nodes.Intervention:
    """Returns an intervention whose swaps put back what the model's own run on the same prompt has there."""
    own: dict[str, list[nodes.Read]] = {}

    def change(forward: nodes.Forward, write: nodes.Write) -> nodes.Write:
        name = f"{write.name}@self@{forward.role}"
        read = nodes.Read(name, write.site, write.pos, write.anchors, is_hidden=True, keys=write.keys, key_anchors=write.key_anchors)
        reads = own.setdefault(forward.role, [])
        if all(other.name != name for other in reads):
            reads.append(read)
        like = write.operand.read if isinstance(write.operand, nodes.FromRead) else None
        return replace(write, operand=nodes.FromRead(name), align="exact", is_control=True, like=like)

    changed = _changed(intervention, "self_swap", change)
    forwards = []
    for role, reads in own.items():
        like = next(forward for forward in intervention.runs if forward.role == role and forward.writes)
        places: list[nodes.Write | nodes.Read] = sorted(reads, key=lambda read: read.site.rank)
        forwards.append(replace(like, model="original", places=tuple(places), appended=None, decode=None))
    return replace(changed, forwards=(*forwards, *changed.forwards))


def _shuffled(intervention: nodes.Intervention, draw: int, seed: str, path: str) -> nodes.Intervention:
    """Returns an intervention whose operands are those of other rows: of one other row, for all writes that take as many tokens."""

    def change(forward: nodes.Forward, write: nodes.Write) -> nodes.Write:
        if not isinstance(write.operand, nodes.FromRead) or write.operand.derangement is not None:
            return write
        if forward.n_rows < 2:
            raise PlanError(Problem(path, "at least two rows (`shuffled_source` takes another row's operand)", "one", code="control"))
        return replace(write, operand=nodes.FromRead(write.operand.read, seed), is_control=True)

    return _changed(intervention, f"shuffled_source.{draw}", change)


def _random(intervention: nodes.Intervention, draw: int, seed: int) -> nodes.Intervention:
    """Returns an intervention in other subspaces of the same rank."""

    def change(forward: nodes.Forward, write: nodes.Write) -> nodes.Write:
        return write if write.featurizer is None else replace(write, featurizer=_drawn(write.featurizer, draw, seed))

    return _changed(intervention, f"random_subspace.{draw}", change)


def _drawn(featurizer: nodes.Featurizer, draw: int, seed: int) -> nodes.Featurizer:
    """Returns a featurizer whose directions are drawn; what is no subspace stays."""
    if featurizer.parts:
        parts = tuple(_drawn(part, draw, seed) for part in featurizer.parts)
        return replace(featurizer, name=f"{featurizer.name}~{draw}", parts=parts)
    if featurizer.kind not in ("subspace", "pca"):
        return featurizer
    own = drawn_seed(seed, draw, featurizer.name)
    name, d, k = f"{featurizer.name}~{draw}", featurizer.d, featurizer.n_features
    return nodes.Featurizer(name, "subspace", featurizer.site, d, k, seed=own, parametrization="cayley")


def drawn_seed(seed: int, draw: int, featurizer: str) -> int:
    """Returns the seed of a random subspace: another one for every draw and featurizer, and none that a training starts from."""
    key = hashlib.sha256(f"random_subspace/{seed}/{draw}/{featurizer}".encode()).digest()
    return int.from_bytes(key[:7], "big")


def _has_subspace(featurizer: nodes.Featurizer) -> bool:
    return any(part.kind in ("subspace", "pca") for part in featurizer.all)


def _full(intervention: nodes.Intervention) -> nodes.Intervention:
    """Returns an intervention that writes whole values."""

    def change(forward: nodes.Forward, write: nodes.Write) -> nodes.Write:
        return replace(write, featurizer=None, features=None)

    return _changed(intervention, "full_component", change)
