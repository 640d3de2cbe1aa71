"""Which runs of the checkpoint an intervention asks for."""

from __future__ import annotations

from causalab_mini.plan.spec import Intervention, Read


def forward_of(read: Read, intervention: Intervention) -> tuple[str, str] | None:
    """Returns which model on which role a read is of, or None where the document does not say."""
    role = read.input
    if role is None and read.model in intervention.models:
        role = intervention.models[read.model].input
    return None if role is None else (read.model, role)


def forwards_of(intervention: Intervention) -> list[tuple[str, str]]:
    """Returns every (model, role) that an intervention runs, in the order in which its reads name them."""
    found = [forward_of(read, intervention) for read in intervention.reads.values()]
    return list(dict.fromkeys(forward for forward in found if forward is not None))
