"""The router: hands activations to probes, at once or behind the generation's back, and gathers what they say."""

from causalab_mini.probing.router.results import Abort, Counts, Failure, Outcome, ProbeResult

__all__ = ["Abort", "Counts", "Failure", "Outcome", "ProbeResult"]
