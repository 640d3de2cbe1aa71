"""What a probe answers, as JSON data; and what an error says, whatever its own methods do."""

from __future__ import annotations

import math
from typing import Any

from causalab_mini.probing.probes.base import Action, Verdict

MAX_DEPTH = 50
"""Of lists and dicts in each other, in a value."""


def verdict_of(value: Any) -> Verdict | None:
    """Returns a probe's answer as a verdict with JSON data.

    Raises:
        TypeError: the value is none that JSON has.
        ValueError: the action is none.
    """
    if value is None:
        return None
    if not isinstance(value, Verdict):
        return Verdict(_json(value))
    try:
        action = Action(value.action)
    except ValueError:
        raise ValueError(f"expected an action (`continue` or `abort`), got `{value.action}`") from None
    return Verdict(_json(value.value), action, str(value.reason))


def _json(value: Any, depth: int = 0) -> Any:
    """Returns a value as JSON data: tensors and arrays as lists, numbers that are not finite as None."""
    if depth > MAX_DEPTH:
        raise TypeError(f"expected a value that JSON has, got one of more than {MAX_DEPTH} levels")
    if hasattr(value, "tolist") and not isinstance(value, str | bytes):
        value = value.detach().float().tolist() if hasattr(value, "detach") and value.is_floating_point() else value.tolist()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            raise TypeError("expected a value that JSON has, got a dict with keys that are no text")
        return {key: _json(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(inner, depth + 1) for inner in value]
    raise TypeError(f"expected a value that JSON has, got a {type(value).__name__}")


def said_by(error: BaseException, with_type: bool = True) -> str:
    """Returns what an error says; one that can't say it is named."""
    try:
        text = str(error)
    except Exception:
        return f"{type(error).__name__}, which can't say more"
    return f"{type(error).__name__}: {text}" if with_type else text
