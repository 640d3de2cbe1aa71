"""The language and the logical plan: from a file to what it means. Imports no torch.

`load_spec` → `Document` (its points are `Spec`s) → `build_request` → `Request` (its points are `Plan`s).
"""

from causalab_mini.plan.build import build_request
from causalab_mini.plan.explain import explain
from causalab_mini.plan.load import Document, load_raw, load_spec
from causalab_mini.plan.plan import Forward, Observe, Plan, Request
from causalab_mini.plan.spec import Spec

__all__ = ["Document", "Forward", "Observe", "Plan", "Request", "Spec", "build_request", "explain", "load_raw", "load_spec"]
