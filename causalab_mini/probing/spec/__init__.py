"""Extraction specs: which activations are taken while a model generates, at which tokens, and which probe gets them.

A spec is read (`load_yaml_file`, `parse_yaml`, `parse_dict`) into a `ProbeSpec` of `ExtractionPoint`s, or refused with a
`SpecValidationError` that has everything that is wrong. A point's `position` is a `PositionSelector`. Whoever runs a spec asks a
point token by token (`ExtractionPoint.matches`, `advance` where `until` counts too), or once a request for sets of indices
(`compile_point`, `compile_selector`). Knows no model, no tokenizer and no tensor; imports no torch.
"""

from causalab_mini.errors import Issue, SpecValidationError
from causalab_mini.plan.selector import PositionKind, PositionSelector, parse_position
from causalab_mini.probing.spec.compiled import CompiledSelector, compile_point, compile_selector
from causalab_mini.probing.spec.firing import Progress, advance
from causalab_mini.probing.spec.parse import combinations, is_spec_file, load_yaml_file, parse_dict, parse_yaml, point_of, verify_point
from causalab_mini.probing.spec.point import ExtractionPoint, InterventionPolicy, ProbeSpec
from causalab_mini.probing.spec.words import (
    ExecutionMode,
    InterventionMode,
    OnTimeout,
    Overflow,
    ProbeKind,
    TensorType,
    Until,
    components_of,
)
from causalab_mini.probing.spec.write import extraction_point_to_dict, probe_spec_to_dict, to_yaml

__all__ = [
    "CompiledSelector",
    "ExecutionMode",
    "ExtractionPoint",
    "InterventionMode",
    "InterventionPolicy",
    "Issue",
    "OnTimeout",
    "Overflow",
    "PositionKind",
    "PositionSelector",
    "ProbeKind",
    "ProbeSpec",
    "Progress",
    "SpecValidationError",
    "TensorType",
    "Until",
    "advance",
    "combinations",
    "compile_point",
    "compile_selector",
    "components_of",
    "extraction_point_to_dict",
    "is_spec_file",
    "load_yaml_file",
    "parse_dict",
    "parse_position",
    "parse_yaml",
    "point_of",
    "probe_spec_to_dict",
    "to_yaml",
    "verify_point",
]
