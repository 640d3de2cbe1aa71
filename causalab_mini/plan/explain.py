"""A plan as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from causalab_mini.plan import plan as nodes
from causalab_mini.plan.spec.decoding import SAMPLING, Decode
from causalab_mini.plan.sweep import show_value
from causalab_mini.probing.probes import RECORD
from causalab_mini.probing.spec import CompiledSelector, ExecutionMode, ExtractionPoint, OnTimeout, compile_point, extraction_point_to_dict

MAX_LENGTHS = 3
"""Lengths of prompts, and tokens of a run, that are all shown."""


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
            case nodes.Stream():
                yield from _stream_lines(step)
            case nodes.FitProbe():
                yield from _probe_lines(step)


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
            yield f"      generates '{forward.model}' on '{forward.role}'  ({forward.n_rows} rows, {_decode(forward.decode)})"
            for place in forward.places:
                yield "        " + _place(place)


def _stream_lines(step: nodes.Stream) -> Iterator[str]:
    yield f"  {step.name}: Stream  points={list(step.spec.names)}  saves={_saves(step.saves)}"
    yield f"      generates 'original' on '{step.role}'  ({step.n_rows} rows, {_decode(step.decode)})"
    for point in step.spec:
        layers = "" if not point.layers else str(list(point.layers))
        keys = ("stride", "until", "count", "token")
        given = "".join(f" {key}={value}" for key, value in extraction_point_to_dict(point).items() if key in keys)
        probe = "" if point.probe_type == RECORD else f"  asks {point.probe_type}{_how(point)}"
        yield f"        point '{point.name}' of {point.tensor_type}{layers} at {point.position}{given} → {_tokens_of(point, step)}{probe}"


def _how(point: ExtractionPoint) -> str:
    """Returns how a point's probe is asked, where it is not the usual way."""
    if point.execution_mode is ExecutionMode.ASYNC:
        return " (async)"
    policy = point.intervention
    if policy is None or policy.timeout_ms is None:
        return ""
    return f" (waits {policy.timeout_ms} ms, then {'aborts' if policy.on_timeout is OnTimeout.ABORT else 'goes on'})"


def _tokens_of(point: ExtractionPoint, step: nodes.Stream) -> str:
    """Returns which tokens a point takes, as far as that is known before anything is said, on rows of the lengths that there are."""
    by_length = {n: _tokens_at(compile_point(point, n, step.decode.max_new_tokens)) for n in sorted(set(step.n_tokens))}
    if len(set(by_length.values())) == 1:
        return next(iter(by_length.values()))
    shown = [f"{words} (prompts of {n})" for n, words in list(by_length.items())[:MAX_LENGTHS]]
    return "; ".join(shown + (["…"] if len(by_length) > MAX_LENGTHS else []))


def _tokens_at(found: CompiledSelector) -> str:
    if found.reason:
        return f"none: {found.reason}"
    parts = [f"{name} {_indices(tokens)}" for name, tokens in (("prompt", found.prompt), ("generated", found.generated)) if tokens]
    if found.from_end is not None:
        at_least = f", if {found.n_needed} or more are generated" if found.n_needed > 1 else ""
        parts.append("the last token of all" if found.from_end == 1 else f"token {found.from_end} from the end of all{at_least}")
    return ", ".join(parts)


def _indices(tokens: range) -> str:
    if len(tokens) <= MAX_LENGTHS:
        return ", ".join(map(str, tokens))
    if tokens.step == 1:
        return f"{tokens[0]} to {tokens[-1]}"
    return f"{tokens[0]}, {tokens[1]}, … {tokens[-1]}"


def _stream_data(step: nodes.Stream) -> dict[str, Any]:
    ref, field = step.rows
    return {
        "name": step.name,
        "kind": "stream",
        "rows": {step.role: {"ref": ref, "field": field}},
        "n_rows": step.n_rows,
        "decode": dict(step.decode.spelled()),
        "points": [{**extraction_point_to_dict(point), "tokens": _tokens_of(point, step)} for point in step.spec],
        "saves": [{"value": save.value, "file": _file(save)} for save in step.saves],
    }


def _probe_lines(step: nodes.FitProbe) -> Iterator[str]:
    yield f"  {step.name}: FitProbe  {step.probe}  label={step.column}  features={step.features}  saves={_saves(step.saves)}"
    n_labelled = sum(target is not None for target in step.targets)
    what = f"of {len(step.classes)} classes" if step.classes else "with a number"
    groups = len({group for group, target in zip(step.groups, step.targets, strict=True) if target is not None})
    yield f"      trains on '{step.read.name}' of '{step.source}' at {step.read.site} pos={step.read.pos}  ({step.n_rows} rows)"
    yield f"      {n_labelled} rows {what}, {groups} distinct prompts in {step.folds} folds, seed={step.seed}; no forward"


def _probe_data(step: nodes.FitProbe) -> dict[str, Any]:
    return {
        "name": step.name,
        "kind": "fit_probe",
        "rows": {role: {"ref": ref, "field": field} for role, (ref, field) in step.rows.items()},
        "n_rows": step.n_rows,
        "features": step.features,
        "source": {"step": step.source, "intervention": step.intervention, "read": step.read.name, "site": str(step.read.site)},
        "label": step.column,
        "classes": list(step.classes),
        "n_labelled": sum(target is not None for target in step.targets),
        "n_groups": max(step.groups) + 1,
        "probe": step.probe,
        "folds": step.folds,
        "seed": step.seed,
        "saves": [{"value": save.value, "file": _file(save)} for save in step.saves],
    }


def _decode(decode: Decode | None) -> str:
    """Returns how a continuation is generated, in words."""
    assert decode is not None
    how = "drawn" if decode.do_sample else "greedy"
    given = [f"{name}={getattr(decode, name):g}" for name in SAMPLING if getattr(decode, name) is not None]
    given += [f"stop={list(decode.stop)}"] if decode.stop else []
    most = f"{decode.max_new_tokens} tokens" if decode.ignore_eos else f"at most {decode.max_new_tokens} tokens"
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
        return f"write '{place.name}' at {place.site} pos={place.pos}{keys} {change_of(place)} via {_coordinates(place)}"
    view = "" if place.view == "raw" else f" as {place.view}"
    return f"read  '{place.name}' at {place.site} pos={place.pos}{keys}{view} via {_coordinates(place)}"


def _coordinates(place: nodes.Read | nodes.Write) -> str:
    name = "'identity'" if place.featurizer is None else f"'{place.featurizer.name}'"
    features = place.features if isinstance(place, nodes.Write) else None
    return name if features is None else f"{name} features={list(features)}"


def change_of(write: nodes.Write) -> str:
    """Returns what a write does, such as `swap(source)`."""
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
        case nodes.Stream():
            return _stream_data(step)
        case nodes.FitProbe():
            return _probe_data(step)
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
    return data | ({"change": change_of(place)} if isinstance(place, nodes.Write) else {"view": place.view})
