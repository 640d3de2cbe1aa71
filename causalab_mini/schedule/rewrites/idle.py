"""*skip no-ops*: a row on which every write puts back what stands there is not run: the model's own run is the answer.

A swap takes from another prompt what that prompt has up to its token; where both prompts are the same up to there, so is the value. And what
stands before the first written token, or below the first written layer, is read off the model's own run as well. 1e-6 relative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from causalab_mini.data.prompts import Prompt
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.physical import Part, Physical
from causalab_mini.schedule.rewrites.common import added, by_rows, give, own_operands, without

Sources = Mapping[str, tuple[nodes.Read, Part]]
"""Reads of the model's own runs, by what they are, with their pass."""
Prompts = Mapping[nodes.RowsKey, Sequence[Prompt]]


def skip_no_ops(physical: Physical) -> Physical:
    """Returns a schedule without the rows on which nothing would change."""
    passes, idle = dict(physical.passes), dict(physical.idle)
    sources = {read.name: (read, one.part) for one in passes.values() if not one.has_writes for read in one.part.forward.reads}
    for clean, written in by_rows(physical.passes):
        rows = {name: _idle_rows(one.part, sources, physical.prompts) for name, one in written}
        if clean is None:
            if not written or sum(map(len, rows.values())) <= len(written[0][1].part.rows):
                continue  # the model's own run would cost more than what is saved
            clean = added(written[0][1])
        key, base = clean
        for name, one in written:
            moved = _out_of_reach(one.part, rows[name])
            base = give(base, one.part, moved)
            part = without(replace(one.part, rows=tuple(row for row in one.part.rows if row not in rows[name])), moved)
            if rows[name]:
                idle[part.name] = rows[name]
            passes[name] = replace(one, parts=(part,))
            if not part.rows:
                del passes[name]
        if key in passes or base.places:
            passes = {key: base} | {name: one for name, one in passes.items() if name != key}
    return physical.rewritten("skip no-ops", passes=passes, idle=idle)


def _idle_rows(part: Part, sources: Sources, prompts: Prompts) -> frozenset[int]:
    """Returns the rows on which every write of a part provably changes nothing."""
    return frozenset(
        row
        for row in part.rows
        if row in part.one.missing or all(_is_idle(part, write, row, sources, prompts) for write in part.forward.writes)
    )


def _is_idle(part: Part, write: nodes.Write, row: int, sources: Sources, prompts: Prompts) -> bool:
    """Returns whether a write gives a row what stands there."""
    operand = write.operand
    if write.is_control or write.mechanism != "swap" or not isinstance(operand, nodes.FromRead) or operand.derangement is not None:
        return False
    if operand.read not in sources or write.site.component in ("attention_scores", "attention_probs"):
        return False
    read, source = sources[operand.read]
    if read.view != "raw" or replace(read.site, is_stacked=False) != replace(write.site, is_stacked=False):
        return False
    own, other = prompts[part.forward.rows][row], prompts[source.forward.rows][row]
    written = [token + own.n_prefix for token in part.one.windows[write.name][row].tokens]
    taken = [token + other.n_prefix for token in source.one.windows[read.name][row].tokens]
    if not written or written != taken or (write.align == "mean" and len(written) > 1):
        return False
    end = max(written) + 1
    return len(own.ids) >= end and own.ids[:end] == other.ids[:end]


def _out_of_reach(part: Part, idle: frozenset[int]) -> dict[str, set[int]]:
    """Returns, for the reads of a part, the rows on which no write reaches them; all reads, where every row is idle."""
    own, found = own_operands(part), dict[str, set[int]]()
    lowest = min(write.site.rank for write in part.forward.writes)
    is_gone = idle >= set(part.rows)
    firsts = {row: min(_written(part, row), default=None) for row in part.rows}
    for read in part.forward.reads:
        windows = part.one.windows[read.name]
        rows = set(idle)
        if read.name not in own and read.site.last_rank < lowest:
            rows = set(part.rows)
        elif read.name not in own:
            rows |= {row for row, first in firsts.items() if first is not None and max(windows[row].tokens, default=first) < first}
        rows = {row for row in rows if windows[row].tokens}
        if rows or is_gone:
            found[read.name] = rows
    return found


def _written(part: Part, row: int) -> list[int]:
    return [token for write in part.forward.writes for token in part.one.windows[write.name][row].tokens]
