"""A plan as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from causalab_mini.plan import plan as nodes
from causalab_mini.plan.spec.decoding import SAMPLING
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
        match step:
            case nodes.Observe():
                yield from _observe_lines(step)
            case nodes.Fit():
                yield from _fit_lines(step)
            case nodes.Weights():
                yield f"  {step.name}: Weights  names={[each.name for each in step.featurizers]}  saves={_saves(step.saves)}"
            case nodes.Attribute():
                steps = "" if step.method == "atp" else f"  ig_steps={step.n_steps}"
                verified = "" if step.verify_top is None else f"  verify_top={step.verify_top}"
                yield f"  {step.name}: Attribute  metric={step.metric}  method={step.method}{steps}{verified}  saves={_saves(step.saves)}"
                yield from _experiment_lines(step.observed)


def _observe_lines(step: nodes.Observe) -> Iterator[str]:
    metrics = [f"{metric.name}/{metric.kind}" for item in step.interventions for metric in item.metrics]
    line = f"  {step.name}: Observe  metrics={metrics}  saves={_saves(step.saves)}"
    if step.outputs:
        line += f"  outputs={[_output(output) for output in step.outputs]}"
    if step.where is not None:
        line += f"  where={_where(step.where)}"
    yield line + _controls(step)
    yield from _experiment_lines(step)


def _fit_lines(step: nodes.Fit) -> Iterator[str]:
    line = f"  {step.name}: Fit  params={[str(param) for param in step.params]}  objective={_objective(step)}"
    line += f"  {step.epochs} epochs of {step.n_rows} rows, {step.pairs} an update  {step.optimizer.name} lr={step.optimizer.lr:g}"
    line += f"  keep={step.keep}  saves={_saves(step.saves)}"
    if step.training.where is not None:
        line += f"  where={_where(step.training.where)}"
    yield line
    yield from _experiment_lines(step.training)
    yield f"    judged on {step.evaluation.n_rows} rows  saves={_saves(step.evaluation.saves)}{_controls(step.evaluation)}"


def _experiment_lines(step: nodes.Observe) -> Iterator[str]:
    for item in step.interventions:
        if step.is_list:
            yield f"    {item.name}: Intervention  metrics={[f'{metric.name}/{metric.kind}' for metric in item.metrics]}"
        for forward in item.forwards:
            answers = "" if forward.appended is None else " + answers"
            yield f"      forward '{forward.model}' on '{forward.role}'{answers}  ({forward.n_rows} rows x {forward.n_tokens} tokens)"
            for place in forward.places:
                yield "        " + _place(place)
        for forward in item.generations:
            yield f"      generates '{forward.model}' on '{forward.role}'  ({forward.n_rows} rows, {_decode(forward)})"
            for place in forward.places:
                yield "        " + _place(place)


def _decode(forward: nodes.Forward) -> str:
    """Returns how a continuation is generated, in words."""
    decode = forward.decode
    assert decode is not None
    how = "drawn" if decode.do_sample else "greedy"
    given = [f"{name}={getattr(decode, name):g}" for name in SAMPLING if getattr(decode, name) is not None]
    given += [f"stop={list(decode.stop)}"] if decode.stop else []
    most = f"{decode.max_new_tokens} tokens" if decode.is_full else f"at most {decode.max_new_tokens} tokens"
    return ", ".join([f"{most} each", " ".join([how, *given])])


def _objective(step: nodes.Fit) -> str:
    terms = [f"{term.weight:g}·{term.metric or f'{term.gate}.{term.penalty}'}" for term in step.objective]
    return " + ".join(terms)


def _controls(step: nodes.Observe) -> str:
    kinds = {control.kind: len(control.draws) for control in step.controls}
    return f"  controls={[kind if n == 1 else f'{kind} × {n}' for kind, n in kinds.items()]}" if kinds else ""


def _saves(saves: tuple[nodes.SaveNode, ...]) -> list[str]:
    return [_file(save) for save in saves]


def _place(place: nodes.Read | nodes.Write) -> str:
    keys = "" if place.keys is None else f" keys={place.keys}"
    if isinstance(place, nodes.Write):
        return f"write '{place.name}' at {place.site} pos={place.pos}{keys} {_change(place)} via {_coordinates(place)}"
    view = "" if place.view == "raw" else f" as {place.view}"
    return f"read  '{place.name}' at {place.site} pos={place.pos}{keys}{view} via {_coordinates(place)}"


def _coordinates(place: nodes.Read | nodes.Write) -> str:
    name = "'identity'" if place.featurizer is None else f"'{place.featurizer.name}'"
    features = place.features if isinstance(place, nodes.Write) else None
    return name if features is None else f"{name} features={list(features)}"


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


def _step_data(step: nodes.Step) -> dict[str, Any]:
    match step:
        case nodes.Observe():
            return {"name": step.name, "kind": "observe", **_observed_data(step)}
        case nodes.Fit():
            return {
                "name": step.name,
                "kind": "fit",
                **_observed_data(step.training),
                "params": [str(param) for param in step.params],
                "objective": _objective(step),
                "epochs": step.epochs,
                "pairs": step.pairs,
                "n_updates": step.n_updates,
                "saves": [{"value": save.value, "file": _file(save)} for save in step.saves],
                "eval": _observed_data(step.evaluation),
            }
        case nodes.Weights():
            return {
                "name": step.name,
                "kind": "weights",
                "names": [str(featurizer) for featurizer in step.featurizers],
                "saves": [{"value": save.value, "file": _file(save)} for save in step.saves],
            }
        case nodes.Attribute():
            return {
                "name": step.name,
                "kind": "attribute",
                **_observed_data(step.observed),
                "metric": step.metric,
                "method": step.method,
                "n_steps": step.n_steps,
                "verify_top": step.verify_top,
                "saves": [{"value": save.value, "file": _file(save)} for save in step.saves],
            }


def _observed_data(step: nodes.Observe) -> dict[str, Any]:
    return {
        "rows": {role: {"ref": ref, "field": field} for role, (ref, field) in step.rows.items()},
        "n_rows": step.n_rows,
        "interventions": [
            {
                "name": item.name,
                "metrics": [
                    {
                        "name": metric.name,
                        "kind": metric.kind,
                        "of": metric.reads.get("of") or "/".join(metric.run or ()),
                        "unit": metric.unit,
                    }
                    for metric in item.metrics
                ],
                "forwards": [
                    {
                        "model": forward.model,
                        "role": forward.role,
                        "n_rows": forward.n_rows,
                        "n_tokens": forward.n_tokens,
                        "places": [_place_data(place) for place in forward.places],
                        **({} if forward.decode is None else {"decode": dict(forward.decode.spelled())}),
                    }
                    for forward in item.runs
                ],
            }
            for item in step.interventions
        ],
        "where": None if step.where is None else _where(step.where),
        "outputs": [_output(output) for output in step.outputs],
        "saves": [{"value": save.value, "file": _file(save)} for save in step.saves],
        **({"controls": [control.kind for control in step.controls]} if step.controls else {}),
    }


def _place_data(place: nodes.Read | nodes.Write) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": "write" if isinstance(place, nodes.Write) else "read",
        "name": place.name,
        "site": str(place.site),
        "pos": str(place.pos),
        **({} if place.keys is None else {"keys": str(place.keys)}),
        **({} if place.featurizer is None else {"featurizer": str(place.featurizer)}),
    }
    return data | ({"change": _change(place)} if isinstance(place, nodes.Write) else {"view": place.view})
