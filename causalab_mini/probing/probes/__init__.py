"""Probes: what judges activations while a model generates.

A probe is a class (`SingleShotProbe`, `TrajectoryProbe`, or `Probe` for both kinds) or a function; it is found under the name that it is
registered with.
"""

from causalab_mini.probing.probes.base import (
    Action,
    ActivationRecord,
    Arguments,
    End,
    Probe,
    ProbeMisfit,
    SingleShotProbe,
    Start,
    TrajectoryProbe,
    Verdict,
)

__all__ = [
    "Action",
    "ActivationRecord",
    "Arguments",
    "End",
    "Probe",
    "ProbeMisfit",
    "SingleShotProbe",
    "Start",
    "TrajectoryProbe",
    "Verdict",
]
