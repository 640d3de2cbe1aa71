"""Probes: what judges activations while a model generates.

A probe is a class (`SingleShotProbe`, `TrajectoryProbe`, or `Probe` for both kinds) or a function; it is found under the name that it is
registered with. Those that ship: `linear_probe`, `projection`, `norm_monitor`, `aggregator`.
"""

from causalab_mini.probing.probes.base import (
    Action,
    ActivationRecord,
    End,
    Probe,
    ProbeMisfit,
    SingleShotProbe,
    Start,
    TrajectoryProbe,
    Verdict,
)
from causalab_mini.probing.probes.bound import Binding, BoundProbe, problems_of_record
from causalab_mini.probing.probes.registry import RECORD, REGISTRY, Registry, async_probe, inline_probe, register
from causalab_mini.probing.probes.shipped import Aggregator, Linear, NormMonitor, Projection

__all__ = [
    "RECORD",
    "REGISTRY",
    "Action",
    "ActivationRecord",
    "Aggregator",
    "Binding",
    "BoundProbe",
    "End",
    "Linear",
    "NormMonitor",
    "Probe",
    "ProbeMisfit",
    "Projection",
    "Registry",
    "SingleShotProbe",
    "Start",
    "TrajectoryProbe",
    "Verdict",
    "async_probe",
    "inline_probe",
    "problems_of_record",
    "register",
]
