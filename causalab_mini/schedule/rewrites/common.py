"""What several rewrites do: find or add the model's own run over some rows, and hand reads from one pass to another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.identity import hashed
from causalab_mini.schedule.locate import Window
from causalab_mini.schedule.located import Pass
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass


def give(clean: PhysicalPass, source: Part, moved: Mapping[str, Collection[int]]) -> PhysicalPass:
    """Returns the model's own run with reads that it gives for another pass.

    Args:
        clean: the run.
        source: the part whose reads they are.
        moved: by read, the rows.
    """
    if not moved:
        return clean
    part = clean.part
    windows, keys = dict(part.one.windows), dict(part.one.keys)
    reads = {read.name: read for read in part.forward.reads}
    nothing = (Window(()),) * part.forward.n_rows
    for read in source.forward.reads:
        if read.name in moved:
            found, before = source.one.windows[read.name], windows.get(read.name, nothing)
            windows[read.name] = tuple(found[row] if row in moved[read.name] else before[row] for row in range(len(nothing)))
            reads.setdefault(read.name, read)
            if read.name in source.one.keys:
                keys.setdefault(read.name, source.one.keys[read.name])
    places: list[nodes.Write | nodes.Read] = sorted(reads.values(), key=lambda place: place.site.rank)
    one = Pass(replace(part.forward, places=tuple(places)), windows, keys, part.one.missing, part.one.whole)
    return replace(clean, parts=(replace(part, one=one),))


def by_rows(passes: Mapping[str, PhysicalPass]) -> Iterator[tuple[tuple[str, PhysicalPass] | None, list[tuple[str, PhysicalPass]]]]:
    """Yields, for every set of rows, the model's own run over them, if there is one, and the passes with writes."""
    groups: dict[object, list[tuple[str, PhysicalPass]]] = {}
    for name, one in passes.items():
        groups.setdefault(one.rows_key, []).append((name, one))
    for group in groups.values():
        clean = next((entry for entry in group if not entry[1].has_writes and entry[1].until is None), None)
        written = [entry for entry in group if entry[1].has_writes]
        yield clean, written


def added(like: PhysicalPass) -> tuple[str, PhysicalPass]:
    """Returns the model's own run over the rows of another pass, with nothing to read."""
    forward = replace(like.forward, model="original", places=())
    key = hashed("clean", like.scope, forward.rows, forward.appended)
    part = Part(key, key, Pass(forward, {}, {}, {}), 0, tuple(range(forward.n_rows)))
    return key, PhysicalPass((part,), like.scope, like.lengths)


def without(part: Part, gone: Mapping[str, Collection[int]]) -> Part:
    """Returns a part that leaves some rows of some reads to another; a read of which nothing is left is gone."""
    windows = dict(part.one.windows)
    for name, rows in gone.items():
        windows[name] = tuple(Window(()) if row in rows else window for row, window in enumerate(windows[name]))
    left = tuple(
        place
        for place in part.forward.places
        if isinstance(place, nodes.Write) or place.name not in gone or any(windows[place.name][row].tokens for row in part.rows)
    )
    return replace(part, one=part.one.only(left, windows))


def own_operands(part: Part) -> set[str]:
    """Returns the reads of a part that its own writes take."""
    reads = {read.name for read in part.forward.reads}
    return {write.operand.read for write in part.forward.writes if isinstance(write.operand, nodes.FromRead)} & reads


def children(physical: Physical, name: str) -> list[PhysicalPass]:
    """Returns the passes that resume from one."""
    return [one for one in physical.passes.values() if name in (one.resumes, one.prefix)]
