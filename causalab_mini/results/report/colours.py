"""Colours of numbers: two ramps for light and for dark, in steps, each with an ink that can be read on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

N_STEPS = 17
"""Steps of a ramp; odd, so that a diverging one has a middle."""

Colour = tuple[int, int, int]

MORE = {
    "light": ((243, 246, 249), (190, 216, 236), (107, 166, 210), (33, 110, 173), (8, 62, 118)),
    "dark": ((30, 36, 43), (31, 64, 95), (36, 104, 158), (86, 156, 214), (176, 216, 250)),
}
"""From little to much."""
BOTH_WAYS = {
    "light": ((146, 58, 12), (214, 128, 66), (245, 205, 165), (245, 246, 247), (173, 208, 234), (70, 140, 196), (10, 72, 130)),
    "dark": ((255, 190, 130), (204, 122, 62), (112, 66, 36), (34, 38, 43), (32, 72, 106), (62, 134, 194), (160, 210, 250)),
}
"""From far below nought to far above it; orange and blue, which are told apart by everyone."""
SERIES = {
    "light": ("#0b5cad", "#b3480b", "#007a5e", "#8a3d8f", "#6b6100", "#b01e4a"),
    "dark": ("#7cb7ff", "#ffab73", "#4fd0ac", "#dfa0e6", "#d9cc52", "#ff8fb0"),
}
"""Of lines."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Which numbers a ramp's ends stand for."""

    low: float
    high: float
    is_diverging: bool = False

    def step(self, value: float) -> int:
        """Returns which step of the ramp a number has."""
        share = 0.0 if self.high == self.low else (value - self.low) / (self.high - self.low)
        return round(min(1.0, max(0.0, share)) * (N_STEPS - 1))


def scale_of(values: Sequence[float], unit: str) -> Scale:
    """Returns the scale of numbers of a unit: fixed ends where the unit has them, else as far as they reach, about nought if on both sides."""
    if unit in ("fraction", "probability") and all(0 <= value <= 1 for value in values):
        return Scale(0.0, 1.0)
    if unit == "cosine":
        return Scale(-1.0, 1.0, True)
    most = max((abs(value) for value in values), default=0.0) or 1.0
    if any(value < 0 for value in values):
        return Scale(-most, most, True)
    return Scale(0.0, most)


def ramp(stops: Sequence[Colour]) -> list[Colour]:
    """Returns the steps between some colours."""
    found = []
    for step in range(N_STEPS):
        place = step / (N_STEPS - 1) * (len(stops) - 1)
        left = min(int(place), len(stops) - 2)
        share = place - left
        red, green, blue = (round(a + (b - a) * share) for a, b in zip(stops[left], stops[left + 1], strict=True))
        found.append((red, green, blue))
    return found


def luminance(colour: Colour) -> float:
    """Returns the relative luminance of a colour. Source: WCAG 2.2, relative luminance."""
    red, green, blue = (part / 255 for part in colour)
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: Colour, other: Colour) -> float:
    """Returns the contrast ratio of two colours. Source: WCAG 2.2, contrast ratio."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink(ground: Colour) -> Colour:
    """Returns the colour of text on a ground: nearly black or white, pure where that is needed to be read."""
    for soft in ((23, 27, 32), (255, 255, 255)):
        if contrast(soft, ground) >= 6:
            return soft
    return max(((0, 0, 0), (255, 255, 255)), key=lambda each: contrast(each, ground))


def hexadecimal(colour: Colour) -> str:
    """Returns a colour as CSS has it."""
    return "#" + "".join(f"{part:02x}" for part in colour)


def rules(theme: str) -> str:
    """Returns the style rules of every step of both ramps, and of lines, in a theme."""
    lines = []
    for name, stops in (("m", MORE[theme]), ("d", BOTH_WAYS[theme])):
        for step, ground in enumerate(ramp(stops)):
            lines.append(f".{name}{step}{{background:{hexadecimal(ground)};color:{hexadecimal(ink(ground))}}}")
    for number, colour in enumerate(SERIES[theme]):
        lines.append(f".s{number}{{stroke:{colour}}}.k{number}{{fill:{colour};stroke:{colour};background:{colour}}}")
    return "\n".join(lines)


def ticks(low: float, high: float, n: int = 4) -> list[float]:
    """Returns round numbers within a range, about as many as asked for."""
    if high <= low:
        return [low]
    rough = (high - low) / n
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda each: abs(each - rough))
    first = -(-low // step)
    return [round((first + k) * step, 10) for k in range(n * 3) if (first + k) * step <= high + step * 1e-6]
