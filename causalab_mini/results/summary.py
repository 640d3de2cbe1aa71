"""The summary of a run: every metric of every point with its count, mean, interval and controls; and which point is best, on which rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from causalab_mini.evidence.intervals import LEVEL, interval, of_fraction
from causalab_mini.plan import plan as nodes

MAX_REASONS = 3
BINARY_KINDS = ("match", "class_match", "generated_match")
MORE_IS_BETTER = ("fraction", "probability", "logit")
"""Units of metrics of which the point with most is the best; others have no best point."""

Rows = Sequence[Mapping[str, Any]]


def summarise(
    point: str, values: Mapping[str, Any], step: str, metric: str, rows: Rows, controls: Iterable[Mapping[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """Yields one entry a metric, or one a layer for stacked reads.

    Args:
        point: label of the sweep's point.
        values: of its axes.
        step: name of the step.
        metric: name, with its intervention in a step of several.
        rows: the metric's table.
        controls: of the step, each with its `kind`, `metric` and `tables`.
    """
    of_metric = [control for control in controls if control["metric"] == metric]
    for layer, lines in _by_layer(rows).items():
        kind, numbers = str(lines[0]["estimand_version"]).partition("/")[0], _numbers(lines)
        entry: dict[str, Any] = {
            "point": point,
            "axes": dict(values),
            "step": step,
            "metric": metric,
            "kind": kind,
            "unit": lines[0]["unit"],
            "n": len(lines),
            "eligible": sum(bool(line["eligible"]) for line in lines),
            **spread(list(numbers.values()), lines[0]["unit"], kind in BINARY_KINDS),
        }
        if layer is not None:
            entry["layer"] = layer
        if of_metric:
            entry["controls"] = {
                control["kind"]: _control([_by_layer(table)[layer] for table in control["tables"]]) for control in of_metric
            }
        yield entry


def seen_rows(step: nodes.Observe, request: nodes.Request, plan: nodes.Plan) -> dict[str, dict[str, int]]:
    """Returns, for a step in coordinates that fits have trained, how many of its rows those were trained on, and chosen by."""
    places = [place for item in step.interventions for forward in item.runs for place in forward.places]
    trained = {part.trained_by for place in places if place.featurizer is not None for part in place.featurizer.all} - {None}
    own, found = _contents(step, request), dict[str, dict[str, int]]()
    for fit in (fit for fit in plan.steps if isinstance(fit, nodes.Fit) and fit.name in trained):
        counts = {"trained_on": len(own & _contents(fit.training, request)), "chosen_by": len(own & _contents(fit.evaluation, request))}
        if any(counts.values()):
            found[fit.name] = {key: n for key, n in counts.items() if n}
    return found


def spread(numbers: Sequence[float], unit: str, is_binary: bool) -> dict[str, Any]:
    """Returns a mean with its interval, None where there is none."""
    mean = sum(numbers) / len(numbers) if numbers else None
    is_averaged = is_binary and any(number not in (0.0, 1.0) for number in numbers)
    found = of_fraction(mean, len(numbers)) if mean is not None and is_averaged else interval(numbers, unit, is_binary)
    return {
        "mean": mean,
        "interval": None if found is None else {"low": found.low, "high": found.high, "level": LEVEL, "method": found.method},
    }


def _control(draws: Sequence[Rows]) -> dict[str, Any]:
    """Returns the entry of a control: the mean over rows of each row's mean over draws, and the mean of each draw."""
    by_draw = [_numbers(lines) for lines in draws]
    labels = [label for label in by_draw[0] if all(label in numbers for numbers in by_draw)]
    means = [sum(numbers[label] for numbers in by_draw) / len(by_draw) for label in labels]
    kind, unit = str(draws[0][0]["estimand_version"]).partition("/")[0], draws[0][0]["unit"]
    entry = {"eligible": len(labels), **spread(means, unit, kind in BINARY_KINDS)}
    if len(draws) > 1:
        entry["draws"] = [sum(numbers.values()) / len(numbers) if numbers else None for numbers in by_draw]
    return entry


def _by_layer(rows: Rows) -> dict[int | None, list[Mapping[str, Any]]]:
    found: dict[int | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row.get("layer"), []).append(row)
    return found


def _numbers(lines: Rows) -> dict[str, float]:
    return {line["example_id"]: float(line["value"]) for line in lines if isinstance(line["value"], int | float)}


def summarise_attribution(
    point: str, values: Mapping[str, Any], step: str, rows: Rows, agreement: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the entry of an attribution: each component with its mean estimate, those with the largest first."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["write"], row.get("layer"), row.get("head"), row["token"]), []).append(row)
    components = []
    for lines in groups.values():
        numbers = [line["value"] for line in lines if line["value"] is not None]
        exact = [line["exact"] for line in lines if line["exact"] is not None]
        place = {key: lines[0][key] for key in ("write", "layer", "head", "token") if key in lines[0]}
        entry = {**place, "n": len(lines), "eligible": len(numbers), **spread(numbers, lines[0]["unit"], False)}
        components.append(entry | ({"exact": sum(exact) / len(exact)} if exact else {}))
    components.sort(key=lambda entry: -abs(entry["mean"] or 0.0))
    return {
        "point": point,
        "axes": dict(values),
        "step": step,
        "metric": rows[0]["metric"],
        "method": str(rows[0]["estimand_version"]).partition("/")[0],
        "unit": rows[0]["unit"],
        "components": components,
        "agreement": None if agreement is None else dict(agreement),
    }


def summarise_fit(point: str, values: Mapping[str, Any], step: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of a fit: which epoch is kept, and what was found there on the rows that it is judged on, gates counted."""
    fit = results["fit"]
    kept: Mapping[str, Any] = next((line for line in results["train/eval"] if line["epoch"] == fit["kept_epoch"]), {})
    gates = {name: tensors["theta"] for name, tensors in results["weights"].items() if "theta" in tensors}
    return {
        "point": point,
        "axes": dict(values),
        "step": step,
        **{key: fit[key] for key in ("epochs", "updates", "kept_epoch", "stopped_early")},
        "at_kept_epoch": {key: value for key, value in kept.items() if key not in ("epoch", "update", "is_best")},
        **({"gates": {name: _gate(theta) for name, theta in gates.items()}} if gates else {}),
    }


def summarise_stream(point: str, values: Mapping[str, Any], step: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of a stream: of each of its points, how often it could fire, how often it did, and why not more often, row by row."""
    return {"point": point, "axes": dict(values), "step": step, "n_forwards": results["n_forwards"], "points": results["fired"]}


def points_to_tell(label: str, step: str, results: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the user is told of a stream's points: those that fired at nothing, and what probes came to beside verdicts."""
    where = f"{label}: " if label else ""
    for point in results["fired"]:
        if not point["fired"]:
            reasons = list(dict.fromkeys(line["reason"] for line in point["requests"] if line["reason"]))
            more = f", and {len(reasons) - 1} more reason{'s' if len(reasons) > 2 else ''}" if len(reasons) > 1 else ""
            yield f"{where}point `{point['point']}` of `{step}` fired at nothing: {reasons[0]}{more}"
        for said in probe_lines(point, len(point["requests"])):
            yield f"{where}point `{point['point']}` of `{step}` {said}"


def probe_lines(point: Mapping[str, Any], n_requests: int) -> Iterator[str]:
    """Yields what a point's probe came to, beside its verdicts: what it ended, what it failed at, what it did not get."""
    probe = point.get("probe")
    if probe is None:
        return
    if probe["aborted"]:
        reasons = "; ".join(list(dict.fromkeys(probe["reasons"]))[:MAX_REASONS])
        yield f"ended {len(probe['aborted'])} of {n_requests} requests{f': {reasons}' if reasons else ''}"
    failures: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in probe["failures"]:
        failures.setdefault((failure["call"], failure["what"]), []).append(failure)
    for (call, what), many in failures.items():
        times = "once" if len(many) == 1 else f"{len(many)} times"
        first = many[0].get("example_id", many[0]["request"])
        yield f"failed: `{call}` {what.replace('_', ' ')} {times}, first at request {first}: {many[0]['message']}"
    if dropped := probe["activations"]["dropped"]:
        counts = ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in dropped.items())
        yield f"dropped {sum(dropped.values())} of {probe['activations']['fired']} activations ({counts})"


def summarise_probe(point: str, values: Mapping[str, Any], step: str, results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields one entry a score of a linear probe, beside what it is without features and on shuffled labels."""
    summary = results["summary"]
    for name, score in summary["scores"].items():
        counted = {"eligible": summary["eligible"]}
        beside: dict[str, Any] = {}
        if score["baseline"] is not None:
            beside["majority_class" if summary["probe"] == "logistic" else "mean_label"] = {
                **counted,
                "mean": score["baseline"],
                "interval": None,
            }
        if (shuffled := score["shuffled"]) is not None:
            spread_of_draws = {"low": shuffled["low"], "high": shuffled["high"], "level": None, "method": "range"}
            beside["shuffled_labels"] = {**counted, "mean": shuffled["mean"], "interval": spread_of_draws}
            beside["shuffled_labels"] |= {"draws": shuffled["draws"], "p_value": shuffled["p_value"]}
        yield {
            "point": point,
            "axes": dict(values),
            "step": step,
            "metric": name,
            "kind": f"{summary['probe']}_probe",
            "unit": score["unit"],
            "n": summary["n"],
            **counted,
            "mean": score["value"],
            "interval": score["interval"],
            "controls": beside,
        }


def probe_entry(point: str, values: Mapping[str, Any], step: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a linear probe was trained: on which rows, of which classes, and which rows were left out."""
    how = {key: value for key, value in results["summary"].items() if key != "scores"}
    return {"point": point, "axes": dict(values), "step": step, **how}


def _gate(theta: Any) -> dict[str, Any]:
    units = [unit for unit, value in enumerate(theta.tolist()) if value > 0]
    return {"on": len(units), "of": len(theta), "units": units}


def best_points(entries: Sequence[Mapping[str, Any]], request: nodes.Request) -> list[dict[str, Any]]:
    """Returns, for every metric of a sweep of which more is better, the point with most, and what it is on rows that had no say in that.

    The best of several points looks better on the rows that it is picked by than it is. Where another step of the same point has the same
    metric on other rows, that is given beside it.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["unit"] in MORE_IS_BETTER and entry["mean"] is not None:
            groups.setdefault((entry["step"], entry["metric"]), []).append(entry)
    plans = {point.label: point.plan for point in request.points}
    found = []
    for (step, metric), group in groups.items():
        if len({entry["mean"] for entry in group}) < 2:
            continue  # nothing was picked
        best = max(group, key=lambda entry: entry["mean"])
        own = _contents(plans[best["point"]].step(step), request)
        others = [
            entry
            for entry in entries
            if entry["point"] == best["point"]
            and entry["step"] != step
            and entry["metric"] == metric
            and entry.get("layer") == best.get("layer")
            and "epoch_is_picked_on_these_rows" not in entry
            and not own & _contents(plans[entry["point"]].step(entry["step"]), request)
        ]
        keys = ("step", "mean", "interval", "eligible")
        found.append(
            {
                "step": step,
                "metric": metric,
                "point": best["point"],
                **({"layer": best["layer"]} if "layer" in best else {}),
                "mean": best["mean"],
                "interval": best["interval"],
                "unit": best["unit"],
                "of": len(group),
                "n_as_good": sum(entry["mean"] == best["mean"] for entry in group) - 1,
                "is_picked_on_the_rows_that_it_is_of": True,
                "held_out": [{key: entry[key] for key in keys} for entry in others],
            }
        )
    return found


def _contents(step: nodes.Step, request: nodes.Request) -> set[tuple[tuple[int, ...], ...]]:
    """Returns what the rows of a step say to the model, of those that its metrics are of."""
    observed = nodes.observed_by(step)
    if not observed and not isinstance(step, nodes.FitProbe):
        return set()
    own = step.rows if isinstance(step, nodes.FitProbe) else observed[-1].rows
    prompts = [request.prompts[rows] for _, rows in sorted(own.items())]
    return {tuple(prompt.ids for prompt in row) for row in zip(*prompts, strict=True)}
