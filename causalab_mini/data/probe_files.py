"""Files of linear probes (safetensors), judged from the header alone: what they hold, of which shape, for which labels.

Reads no tensor, so that a file that is named anywhere can be judged before torch is there.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from causalab_mini.data.parameters import read_header
from causalab_mini.data.strict_json import parse_json
from causalab_mini.errors import DataError, Problem, listed, quoted

FORMAT = "causalab-mini linear probe 1"
"""Held equal to the writer's by a test: tensors know nothing of data."""
PROBES = ("logistic", "ridge")
TENSORS = ("weight", "bias")
MAX_BYTES = 256 * 1024 * 1024
"""Of a file: 1,000 classes of 65,536 features."""


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """What a file of a linear probe says of itself.

    Attributes:
        path: of the file.
        probe: `logistic` or `ridge`.
        classes: the labels, sorted; empty for `ridge`.
        stamp: what it was trained on and how.
        n_lines: of its weight: one for `ridge` and for two classes, else one a class.
        n_features: what a value has to have.
    """

    path: Path
    probe: str
    classes: tuple[str | int | bool, ...]
    stamp: Mapping[str, Any]
    n_lines: int
    n_features: int


def read_probe_file(path: str | Path) -> ProbeFile:
    """Returns what a file of a linear probe holds.

    Raises:
        DataError: it can't be read, is too large, is no safetensors file, is of another format, or its tensors, shapes or labels do not fit
            each other.
    """
    path = Path(path)
    if path.is_file() and (size := path.stat().st_size) > MAX_BYTES:
        refuse(path, f"a file of at most {MAX_BYTES:,} bytes", f"{size:,} bytes")
    header = read_header(path)
    if (found := header.metadata.get("format")) != FORMAT:
        refuse(path, f"the format {quoted(FORMAT)}", "none" if found is None else quoted(found), "__metadata__.format")
    for key in ("probe", "classes", "stamp"):
        if key not in header.metadata:
            refuse(path, f"a {quoted(key)}", "none", "__metadata__")
    probe = header.metadata["probe"]
    if probe not in PROBES:
        refuse(path, f"one of {listed(PROBES)}", quoted(probe), "__metadata__.probe")
    classes = _classes(path, probe, header.metadata["classes"])
    stamp = parse_json(header.metadata["stamp"], f"{path}: __metadata__.stamp", DataError)
    if not isinstance(stamp, dict):
        refuse(path, "an object", quoted(header.metadata["stamp"]), "__metadata__.stamp")
    if missing := [name for name in TENSORS if name not in header.shapes]:
        refuse(path, f"the tensors {listed(TENSORS)}", f"none called {listed(missing)}")
    if more := [name for name in header.shapes if name not in TENSORS]:
        refuse(path, f"no tensors but {listed(TENSORS)}", listed(more[:12]))
    for name in TENSORS:
        if header.dtypes[name] != "F32":
            refuse(path, "`F32`", quoted(header.dtypes[name]), f"{name}.dtype")
    n_lines = 1 if len(classes) <= 2 else len(classes)
    weight, bias = (header.shapes[name] for name in TENSORS)
    if len(weight) != 2 or weight[0] != n_lines or not weight[1]:
        refuse(path, f"a matrix ({n_lines}, features), as its labels have it", str(weight), "weight")
    if bias != (n_lines,):
        refuse(path, f"a vector ({n_lines},)", str(bias), "bias")
    return ProbeFile(path, probe, classes, stamp, n_lines, weight[1])


def refuse(path: Path, expected: str, got: str, place: str = "") -> NoReturn:
    """Refuses a file of a linear probe.

    Raises:
        DataError: always.
    """
    raise DataError(Problem(place, expected, got, code="probe"), str(path))


def _classes(path: Path, probe: str, text: str) -> tuple[str | int | bool, ...]:
    place = "__metadata__.classes"
    classes = parse_json(text, f"{path}: {place}", DataError)
    if probe == "ridge":
        if classes != []:
            refuse(path, "an empty list (`ridge` has no classes)", quoted(text), place)
        return ()
    if not isinstance(classes, list) or len(classes) < 2:
        refuse(path, "a list of at least two labels", quoted(text), place)
    kinds = {type(label) for label in classes}
    if len(kinds) != 1 or not kinds <= {str, int, bool}:
        refuse(path, "labels that are all texts, all whole numbers, or `false` and `true`", quoted(text), place)
    if any(first >= second for first, second in itertools.pairwise(classes)):
        refuse(path, "distinct labels, sorted", quoted(json.dumps(classes, ensure_ascii=False)), place)
    return tuple(classes)
