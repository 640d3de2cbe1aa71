"""What a pass stands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.gradients import Mode
from causalab_mini.engine.kept import Kept
from causalab_mini.engine.made import OutputTensors
from causalab_mini.engine.probes import Probe
from causalab_mini.ops.windows import Value
from causalab_mini.plan import plan as nodes

Prompts = Mapping[nodes.RowsKey, tuple[Prompt, ...]]


@dataclass(frozen=True, slots=True)
class Given:
    """What a pass is given.

    Attributes:
        prompts: of the request.
        values: what earlier passes read, of the rows that run, by the names that operands have.
        outputs: of earlier steps, by the names that operands have.
        rows: of the step, that run, ascending.
        featurizers: of its writes, by the names that they have there.
        resumed: what the pass left that kept the streams it resumes from.
        prefix: what the pass left that kept the keys and values before its tokens.
        mode: whether it can be differentiated; then no write's evidence is noted.
        scopes: by read of `values`, the rows that it has, where those are not `rows`.
        probe: stands in for the writes of the pass; None for nothing.
    """

    prompts: Prompts
    values: Mapping[str, Value]
    outputs: OutputTensors
    rows: Sequence[int]
    featurizers: Featurizers
    resumed: Kept | None = None
    prefix: Kept | None = None
    mode: Mode = "off"
    scopes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    probe: Probe | None = None
