"""The laws that a physical schedule keeps, whatever rewrites made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass, givers, is_at_head, needs


def verify(physical: Physical) -> list[str]:
    """Returns the laws that a physical schedule breaks; an empty list is a sound one.

    Every use has its reads given, and its part, where that writes, run or idle; an operand is read by an earlier pass or lower in the same
    part; a part that skips layers, or tokens, reads and writes nothing there, and an earlier pass over the same rows kept them; a pass that
    stops early reads nothing above, and keeps what it says; logits are written only where all are computed; an output is made before it is
    taken.
    """
    facts, by_read = physical.facts, givers(physical.passes)
    broken: list[str] = []
    earlier: dict[str, PhysicalPass] = {}
    parts: set[str] = set()
    for name, one in physical.passes.items():
        broken += [f"`{name}` needs `{other}`, which runs later" for other in needs(one, by_read) if other not in earlier]
        for part in one.parts:
            parts.add(part.name)
            broken += [f"`{name}` writes `{read}`, which nobody reads" for read in part.operands if read not in by_read]
            broken += [f"`{name}` {law}" for law in _broken(part, one, earlier, physical)]
        if any(later.n_skipped < part.n_skipped for part, later in zip(one.parts, one.parts[1:], strict=False)):
            broken.append(f"`{name}` has a part that enters below an earlier one")
        if one.reach(facts) > one.top(facts) or (one.stops_after is not None and any(place.site.rank[0] == 2 for place in one.places)):
            broken.append(f"`{name}` stops before its last place")
        if one.is_narrow and any(is_at_head(place) for place in one.places if isinstance(place, nodes.Write)):
            broken.append(f"`{name}` writes logits that it does not compute")
        earlier[name] = one
    written = {part.key for one in physical.plain.passes.values() for part in one.parts if part.forward.writes}
    broken += [f"`{name}` takes an output before it is made" for name in too_early(physical)]
    for use, (part_name, values) in physical.uses.items():
        broken += [f"{use}: nobody gives `{read}`" for read, key in values.items() if key not in by_read]
        if part_name not in parts and part_name not in physical.idle and part_name.partition("/")[0] in written:
            broken.append(f"{use}: `{part_name}` is not run")
    return broken


def _broken(part: Part, one: PhysicalPass, earlier: Mapping[str, PhysicalPass], physical: Physical) -> Iterable[str]:
    prompts, top = physical.prompts[part.forward.rows], one.top(physical.facts)
    if part.n_skipped:
        source = earlier.get(one.resumes or "")
        if source is None or part.n_skipped - 1 not in source.keeps or source.rows_key != one.rows_key:
            yield "resumes from a stream that nobody kept"
        for place in part.forward.places:
            least = min(place.site.layers, default=part.n_skipped)
            if place.site.rank[0] == 0 or least < part.n_skipped - (place.site.component == "block_output"):
                yield "skips layers that it reads or writes"
    if part.first is not None and any(part.first[row] for row in part.rows):
        source = earlier.get(one.prefix or "")
        if source is None or not source.keeps_tokens or (part.n_skipped < top and source.top(physical.facts) < top):
            yield "resumes from keys and values that nobody kept"
        for row in part.rows:
            if any(token + prompts[row].n_prefix < part.first[row] for token in part.tokens(row)):
                yield f"skips tokens of row {row} that it reads or writes"
            if (resumed := earlier.get(one.resumes or "")) is not None and part.n_skipped:
                kept = resumed.part.first
                if kept is not None and kept[row] > part.first[row]:
                    yield f"resumes row {row} before the tokens whose stream was kept"


def too_early(physical: Physical) -> set[str]:
    """Returns the passes that would be needed, as the plan asks for its own in turn, before an output that they take is made."""
    by_read, homes = givers(physical.passes), {part.name: name for name, one in physical.passes.items() for part in one.parts}
    steps = {(use.point, use.step) for use in physical.uses}
    made = {key for step, keys in physical.learned.items() if step not in steps for key in keys.values()}  # by what ran before
    left = [(key, output) for key, output in physical.made.items()]
    made |= {output for (point, step_name, _), output in left if (point, step_name) not in steps}  # by what only generates
    broken: set[str] = set()
    has_run: set[str] = set()

    def run(name: str) -> None:
        if name not in has_run:
            has_run.add(name)
            one = physical.passes[name]
            for other in needs(one, by_read):
                run(other)
            if any(output not in made for part in one.parts for output in part.made):
                broken.add(name)

    step: tuple[str, str] | None = None
    for use, (part, values) in physical.uses.items():
        if step is not None and step != (use.point, use.step):
            made |= {output for (point, name, _), output in left if (point, name) == step}
        made |= set(physical.learned.get((use.point, use.step), {}).values())
        step = (use.point, use.step)
        for name in dict.fromkeys(
            [*([homes[part]] if part in homes else []), *(n for key in values.values() for n in by_read.get(key, ()))]
        ):
            run(name)
    return broken
