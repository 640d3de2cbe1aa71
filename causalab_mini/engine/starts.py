"""Values at the places of a featurizer before anything is trained: what directions of greatest variance are taken of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.given import Given
from causalab_mini.engine.kept import Kept
from causalab_mini.engine.observe import Ran, run_batch
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Pass, StepSchedule
from causalab_mini.schedule.physical import Part, PhysicalPass, lengths_of

MAX_ROWS = 64
"""Rows that are read at once."""


def values_at(
    param: nodes.Featurizer, engine: Engine, request: nodes.Request, schedule: StepSchedule, rows: Sequence[int], featurizers: Featurizers
) -> Tensor:
    """Returns what stands at the places of a featurizer in the model without writes, on the CPU.

    Args:
        param: the featurizer, or a part of a chain; of a part, its values are features of the parts before it.
        engine: the checkpoint, with its weights.
        request: what is run.
        schedule: of the step that trains.
        rows: of the step.
        featurizers: of the point.

    Returns:
        (token, unit): of every row, the tokens that writes in its coordinates land on, and those of their operands.
    """
    found: list[Tensor] = []
    for passes in schedule.passes.values():
        reads = {read.name: (one, read) for one in passes for read in one.forward.reads if not one.forward.writes}
        for one in passes:
            for write in one.forward.writes:
                if write.featurizer is None or param.name not in {part.name for part in write.featurizer.all}:
                    continue
                places = [(one, nodes.Read("own", write.site, write.pos, write.anchors), write.name)]
                if isinstance(write.operand, nodes.FromRead) and write.operand.read in reads:
                    places.append((*reads[write.operand.read], write.operand.read))
                for owner, read, name in places:
                    value = _read(owner, read, name, engine, request, rows)
                    for part in write.featurizer.parts:
                        if part.name == param.name:
                            break
                        value = featurizers.of(part).encode(value)[0]
                    found.append(value.cpu())
    distinct: Tensor = torch.unique(torch.cat(found), dim=0)
    return distinct


def _read(owner: Pass, read: nodes.Read, name: str, engine: Engine, request: nodes.Request, rows: Sequence[int]) -> Tensor:
    """Returns the tokens of a place in the model's own run on a role, (token, unit)."""
    forward = replace(owner.forward, model="original", places=(replace(read, name="own", featurizer=None),), appended=None)
    one = Pass(forward, {"own": owner.windows[name]}, {}, {})
    lengths = lengths_of(forward, request.prompts)
    last = max(read.site.layers, default=None)
    physical = PhysicalPass((Part("own", "own", one, 1, tuple(rows)),), "", lengths, stops_after=last, is_direct=True)
    chunks: list[Tensor] = []
    for batch in physical.batches(rows, MAX_ROWS):
        ran = Ran(Kept(lengths))
        run_batch(engine, physical, batch, Given(request.prompts, {}, {}, rows, Featurizers({}), mode="constant"), ran)
        chunks += [value.data[0].float() for _, value in ran.values["own"].chunks]
    return torch.cat(chunks)
