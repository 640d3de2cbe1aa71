"""The language and the logical plan: from a file to what it means. Imports no torch.

`load_spec` → `Document` (its points are `Spec`s) → `build_request` → `Request` (its points are `Plan`s).
Names are looked up in their modules when they are first used, so that judging a file alone imports no more than that needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from causalab_mini.plan.build import build_request
    from causalab_mini.plan.load import Document, load_raw, load_spec
    from causalab_mini.plan.plan import Forward, Observe, Plan, Request
    from causalab_mini.plan.spec import Spec

__all__ = ["Document", "Forward", "Observe", "Plan", "Request", "Spec", "build_request", "load_raw", "load_spec"]

_HOMES = {
    "Document": "load",
    "Forward": "plan",
    "Observe": "plan",
    "Plan": "plan",
    "Request": "plan",
    "Spec": "spec",
    "build_request": "build",
    "load_raw": "load",
    "load_spec": "load",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"causalab_mini.plan.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
