"""The colours of maps, on the terminal and in notebooks."""

from __future__ import annotations

import itertools

STOPS = ((0.0, (68, 1, 84)), (0.33, (49, 104, 142)), (0.66, (53, 183, 121)), (1.0, (253, 231, 37)))
"""Source: viridis, from dark blue to yellow, at a third of its length each."""


def on_scale(value: float, low: float, high: float) -> tuple[str, str]:
    """Returns the colour of a number between two others, as `#rrggbb`, and the ink that can be read on it."""
    share = 0.0 if high == low else min(1.0, max(0.0, (value - low) / (high - low)))
    for (start, left), (end, right) in itertools.pairwise(STOPS):
        if share <= end:
            part = (share - start) / (end - start)
            red, green, blue = (round(a + (b - a) * part) for a, b in zip(left, right, strict=True))
            break
    return f"#{red:02x}{green:02x}{blue:02x}", "black" if share > 0.6 else "white"
