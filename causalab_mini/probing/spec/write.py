"""Points and specs as the data and the YAML that they are read from; what is at its default is left out."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

import yaml

from causalab_mini.probing.spec.point import ExtractionPoint, InterventionPolicy, ProbeSpec, thawed

_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_-]*")


def probe_spec_to_dict(spec: ProbeSpec) -> dict[str, Any]:
    """Returns the data that `parse_dict` makes this spec of."""
    return {"version": spec.version, "extraction_points": [extraction_point_to_dict(point) for point in spec]}


def extraction_point_to_dict(point: ExtractionPoint) -> dict[str, Any]:
    """Returns the data of one point."""
    data: dict[str, Any] = {}
    for key in fields(ExtractionPoint):
        value = getattr(point, key.name)
        default = key.default_factory() if key.default_factory is not MISSING else key.default
        if default is not MISSING and value == default:
            continue
        match key.name:
            case "layers":
                data["layers"] = value[0] if len(value) == 1 else list(value)
            case "position":
                data["position"] = value.to_raw()
            case "probe_args":
                data["probe_args"] = thawed(value)
            case "intervention":
                data["intervention"] = _policy(value)
            case _:
                data[key.name] = str(value) if isinstance(value, str) else value
    return data


def to_yaml(spec: ProbeSpec) -> str:
    """Returns the YAML that `parse_yaml` makes this spec of."""
    text = yaml.dump(probe_spec_to_dict(spec), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return str(text)


def _policy(policy: InterventionPolicy) -> dict[str, Any]:
    default = InterventionPolicy()
    data: dict[str, Any] = {"mode": str(policy.mode)}
    if policy.timeout_ms is not None:
        data["timeout_ms"] = policy.timeout_ms
    if policy.on_timeout != default.on_timeout:
        data["on_timeout"] = str(policy.on_timeout)
    return data


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes short lists on one line, and text in quotes wherever a reader could take it for something else."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if _PLAIN.fullmatch(value) else '"')


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> Any:
    is_short = not any(isinstance(part, dict | list) for part in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_short)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
