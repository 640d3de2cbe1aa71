"""A plan as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from causalab_mini.plan import plan as nodes
from causalab_mini.plan.sweep import show_value


def explain(request: nodes.Request) -> str:
    """Returns what a request will do, one line a forward, a read and a write; positions as they were written."""
    if not request.axes:
        return "\n".join(["<root>: Plan", *_plan_lines(request.points[0].plan)])
    axes = " × ".join(f"{name} ({len(values)})" for name, values in request.axes.items())
    n = len(request.points)
    lines = [f"<root>: Sweep  {n} point{'s' if n != 1 else ''}  {axes}"]
    for name, values in request.axes.items():
        lines.append(f"  {name}: {', '.join(show_value(value) for value in values)}")
    shown = request.points[0]
    lines += [f"  first point {shown.label}: Plan", *("  " + line for line in _plan_lines(shown.plan))]
    return "\n".join(lines)


def explain_data(request: nodes.Request) -> dict[str, Any]:
    """Returns what a request will do as JSON data."""
    return {
        "digest": request.digest,
        "model": {"key": request.facts.key, "revision": request.facts.revision, "dtype": request.facts.dtype},
        "axes": {name: list(values) for name, values in request.axes.items()},
        "points": [
            {
                "label": point.label,
                "values": dict(point.values),
                "digest": point.digest,
                "steps": [_step_data(step) for step in point.plan.steps],
            }
            for point in request.points
        ],
    }


def _plan_lines(plan: nodes.Plan) -> Iterator[str]:
    for step in plan.steps:
        metrics = [f"{metric.name}/{metric.kind}" for item in step.interventions for metric in item.metrics]
        line = f"  {step.name}: Observe  metrics={metrics}  saves={[_file(save) for save in step.saves]}"
        if step.outputs:
            line += f"  outputs={[_output(output) for output in step.outputs]}"
        if step.where is not None:
            line += f"  where={_where(step.where)}"
        yield line
        for item in step.interventions:
            if step.is_list:
                yield f"    {item.name}: Intervention  metrics={[f'{metric.name}/{metric.kind}' for metric in item.metrics]}"
            for forward in item.forwards:
                answers = "" if forward.appended is None else " + answers"
                yield f"      forward '{forward.model}' on '{forward.role}'{answers}  ({forward.n_rows} rows x {forward.n_tokens} tokens)"
                for place in forward.places:
                    yield "        " + _place(place)


def _place(place: nodes.Read | nodes.Write) -> str:
    keys = "" if place.keys is None else f" keys={place.keys}"
    if isinstance(place, nodes.Write):
        return f"write '{place.name}' at {place.site} pos={place.pos}{keys} {_change(place)} via 'identity'"
    view = "" if place.view == "raw" else f" as {place.view}"
    return f"read  '{place.name}' at {place.site} pos={place.pos}{keys}{view} via 'identity'"


def _change(write: nodes.Write) -> str:
    arguments = []
    match write.operand:
        case nodes.FromRead() as operand:
            arguments.append(operand.read if operand.derangement is None else "another row")
        case nodes.FromOutput() as operand:
            arguments.append(operand.output)
        case nodes.Constant() as operand:
            arguments.append(f"{operand.value:g}")
    arguments += [f"{name}={value:g}" for name, value in write.params.spelled().items()]
    if write.align != "exact":
        arguments.append(f"align={write.align}")
    return f"{write.mechanism}({', '.join(arguments)})"


def _output(output: nodes.Output | nodes.Difference) -> str:
    if isinstance(output, nodes.Difference):
        return f"{output.name}={output.minuend}-{output.subtrahend}"
    return f"{output.name}={output.reduce}({output.read})"


def _where(where: nodes.Where) -> str:
    least = "" if where.least is None else f"{where.least:g} <= "
    greatest = "" if where.greatest is None else f" <= {where.greatest:g}"
    return f"{least}{where.step}.{where.metric}{greatest}"


def _file(save: nodes.SaveNode) -> str:
    return save.file_path if save.intervention is None else f"{save.intervention}/{save.file_path}"


def _step_data(step: nodes.Observe) -> dict[str, Any]:
    return {
        "name": step.name,
        "kind": "observe",
        "rows": {role: {"ref": ref, "field": field} for role, (ref, field) in step.rows.items()},
        "n_rows": step.n_rows,
        "interventions": [
            {
                "name": item.name,
                "metrics": [
                    {"name": metric.name, "kind": metric.kind, "of": metric.reads["of"], "unit": metric.unit} for metric in item.metrics
                ],
                "forwards": [
                    {
                        "model": forward.model,
                        "role": forward.role,
                        "n_rows": forward.n_rows,
                        "n_tokens": forward.n_tokens,
                        "places": [_place_data(place) for place in forward.places],
                    }
                    for forward in item.forwards
                ],
            }
            for item in step.interventions
        ],
        "where": None if step.where is None else _where(step.where),
        "outputs": [_output(output) for output in step.outputs],
        "saves": [{"value": save.value, "file": _file(save)} for save in step.saves],
    }


def _place_data(place: nodes.Read | nodes.Write) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": "write" if isinstance(place, nodes.Write) else "read",
        "name": place.name,
        "site": str(place.site),
        "pos": str(place.pos),
        **({} if place.keys is None else {"keys": str(place.keys)}),
    }
    return data | ({"change": _change(place)} if isinstance(place, nodes.Write) else {"view": place.view})
