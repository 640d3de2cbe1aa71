"""An event as one line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

NO_JSON = (TypeError, ValueError, RecursionError)
"""What `json_line` raises on what is no JSON data."""


def json_line(event: Mapping[str, Any]) -> bytes:
    """Returns an event as JSON in UTF-8, without a line's end and with none inside.

    JSON has no NaN and no infinities: they become null. A lone surrogate, which UTF-8 lacks, is escaped.

    Raises:
        TypeError, ValueError, RecursionError: the event is no JSON data.
    """
    try:
        text = _dumped(event)
    except ValueError:
        text = _dumped(_finite(event))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text)).encode()


def _dumped(event: Any) -> str:
    return json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_mapping)


def _mapping(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no JSON data")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
    return value
