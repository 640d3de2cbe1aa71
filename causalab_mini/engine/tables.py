"""Scores of a step as table rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from causalab_mini.data.patterns import MAX_SECONDS, PatternTimeoutError, is_in
from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.given import Prompts
from causalab_mini.engine.observe import Observed, write_key
from causalab_mini.engine.scores import one_token, score
from causalab_mini.errors import Problem, RunError, quoted
from causalab_mini.ops.metrics import top_k
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.locate import Window
from causalab_mini.schedule.located import StepSchedule, Windows, metric_reasons

ESTIMAND_VERSION = "v1"


def metric_rows(
    schedule: StepSchedule, intervention: nodes.Intervention, metric: nodes.Metric, observed: Observed, prompts: Prompts, tokenizer: Any
) -> list[dict[str, Any]]:
    """Returns a metric's table: one row a row of the step, or one a row and layer for stacked reads."""
    step = schedule.step
    active = set(observed.rows)
    reasons = [reason if row in active else "filtered" for row, reason in enumerate(metric_reasons(schedule, intervention, metric))]
    for windows_of in (observed.windows[read] for read in metric.reads.values() if read in observed.windows):
        reasons = [reason or windows_of[row].reason for row, reason in enumerate(reasons)]
    rows = [row for row, reason in enumerate(reasons) if not reason]
    if metric.run is not None:
        return _match_rows(step, intervention, metric, observed, reasons)
    forward = intervention.forward_of(metric.reads["of"])
    read = intervention.read(metric.reads["of"])
    windows = schedule.windows(intervention.name, read.name)
    role_prompts = prompts[forward.rows]
    columns = None if forward.is_plain else padded(windows, role_prompts)
    texts = [prompt.text_of(window.tokens) if window.tokens else None for prompt, window in zip(role_prompts, windows, strict=True)]
    if read.name in observed.windows:
        columns, texts = _said(observed, forward, observed.windows[read.name], role_prompts)
    by_layer = values_of(metric, observed, rows, tokenizer)
    table = []
    for entry, layer in enumerate(read.site.addresses):
        values = dict(zip(rows, by_layer[entry], strict=True))
        for row, label in enumerate(step.labels):
            value = _finite(values.get(row))
            reason = reasons[row] or (
                "" if value is not None else "not_finite" if row in values and metric.kind != "recovered" else "zero_denominator"
            )
            line = {
                "example_id": label,
                "metric": metric.name,
                "value": value,
                "eligible": not reasons[row],
                "positions": None if columns is None or reason == "filtered" else list(columns[row]),
                "reason": reason,
                "unit": _unit(metric, read),
                "estimand_version": f"{metric.kind}/{ESTIMAND_VERSION}",
                "tokens": texts[row],
                "produced_by": f"{step.name}/{intervention.name}/{forward.model}/{forward.role}",
            }
            table.append(line | ({"layer": layer} if read.site.is_stacked else {}))
    return table


def _match_rows(
    step: nodes.Observe, intervention: nodes.Intervention, metric: nodes.Metric, observed: Observed, reasons: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns the table of a metric of what is said."""
    assert metric.run is not None
    model, role = metric.run
    said = observed.said[metric.run]
    table = []
    for row, label in enumerate(step.labels):
        is_scored = not reasons[row]
        value = None
        if is_scored:
            expected = metric.tokens["expected"][row]
            try:
                value = float(matches(said[row].text, expected, metric.options["how"]))
            except PatternTimeoutError as error:
                where = f"interventions.{intervention.name}.metrics.{metric.name}.expected"
                got = f"{quoted(expected)} on row {quoted(label)} ({error} with {len(said[row].text):,} characters)"
                hint = "repeats inside repeats, such as `(a+)+`, are what takes long"
                raise RunError(Problem(where, f"a regular expression that takes {MAX_SECONDS:g} s at most", got, hint, "timeout")) from None
        table.append(
            {
                "example_id": label,
                "metric": metric.name,
                "value": value,
                "eligible": is_scored,
                "positions": None,
                "reason": reasons[row],
                "unit": metric.unit,
                "estimand_version": f"{metric.kind}/{ESTIMAND_VERSION}",
                "tokens": said[row].text if row in said else None,
                "produced_by": f"{step.name}/{intervention.name}/{model}/{role}",
            }
        )
    return table


def matches(said: str, expected: str, how: str) -> bool:
    """Returns whether what a model says is what is expected, white space at both ends aside; a regular expression is looked for as it is."""
    if how == "regex":
        return is_in(expected, said)
    said, expected = said.strip(), expected.strip()
    return {"exact": said == expected, "prefix": said.startswith(expected), "contains": expected in said}[how]


def continuations(schedule: StepSchedule, intervention: nodes.Intervention, observed: Observed) -> dict[str, list[dict[str, Any]]]:
    """Returns what an intervention's models said, by the name of the continuation, one row a row of the step that ran."""
    step, found = schedule.step, {}
    for forward in intervention.generations:
        said = observed.said[forward.model, forward.role]
        found[intervention.name_of_generation(forward)] = [
            {
                "example_id": step.labels[row],
                "ids": list(said[row].ids),
                "text": said[row].text,
                "ended": said[row].ended,
                "produced_by": f"{step.name}/{intervention.name}/{forward.model}/{forward.role}",
            }
            for row in observed.rows
        ]
    return found


def _said(
    observed: Observed, forward: nodes.Forward, windows: Mapping[int, Window], prompts: Sequence[Prompt]
) -> tuple[list[tuple[int, ...]], list[str | None]]:
    """Returns where a place is in rows of which each is padded to the longest prompt, and what stands there."""
    said = observed.said[forward.model, forward.role]
    longest = max(prompt.n_tokens for prompt in prompts)
    tokens = [windows[row].tokens if row in windows else () for row in range(len(prompts))]
    columns = [tuple(longest + token for token in own) for own in tokens]
    return columns, [said[row].prompt.text_of(own) if own else None for row, own in enumerate(tokens)]


def padded(windows: Windows, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Returns windows as indices in rows that are padded on the left to the longest of all rows."""
    longest = max(prompt.n_tokens for prompt in prompts)
    return [tuple(longest - prompt.n_content + token for token in window.tokens) for window, prompt in zip(windows, prompts, strict=True)]


def positions(schedule: StepSchedule, prompts: Prompts, observed: Mapping[str, Observed]) -> dict[str, dict[str, Any]]:
    """Returns where every read and write of a step is: padded indices, text, reason and content indices, row by row."""
    record: dict[str, dict[str, Any]] = {}
    for intervention in schedule.step.interventions:
        found, in_what_is_said = observed[intervention.name], set[str]()
        for one in schedule.every(intervention.name):
            role_prompts = prompts[one.forward.rows]
            for place in one.forward.places:
                if isinstance(place, nodes.Read) and place.is_hidden:
                    continue
                windows = one.windows[place.name]
                name = f"{intervention.name}/{place.name}" if schedule.step.is_list else place.name
                if place.pos.is_generated:
                    key = place.name if isinstance(place, nodes.Read) else write_key(intervention, one.forward, place)
                    own = found.windows[key]
                    columns, texts = _said(found, one.forward, own, role_prompts)
                    if name in in_what_is_said:
                        continue
                    in_what_is_said.add(name)
                    every = [own.get(row, Window((), "filtered")) for row in range(len(columns))]
                    record[name] = {
                        "rows": tuple(columns),
                        "tokens": tuple(repr(text or "") for text in texts),
                        "reason": tuple(window.reason for window in every),
                        "content": tuple(window.tokens for window in every),
                    }
                    continue
                record.setdefault(
                    name,
                    {
                        "rows": tuple(padded(windows, role_prompts)),
                        "tokens": tuple(repr(prompt.text_of(window.tokens)) for window, prompt in zip(windows, role_prompts, strict=True)),
                        "reason": tuple(window.reason for window in windows),
                        "content": tuple(window.tokens for window in windows),
                    },
                )
    return record


def values_of(metric: nodes.Metric, observed: Observed, rows: Sequence[int], tokenizer: Any) -> list[list[Any]]:
    """Returns a metric's values on some rows of the step, layer by layer; None where one is undefined."""
    if metric.kind == "top_k" and rows:
        return [_top_k(layer, metric.options["k"], tokenizer) for layer in one_token(observed, metric.reads["of"], rows)]
    found = score(metric, observed, rows).tolist()
    if metric.kind != "recovered":
        return found
    return [[None if math.isnan(value) else value for value in layer] for layer in found]


def _top_k(logits: Tensor, k: int, tokenizer: Any) -> list[list[list[Any]]]:
    tokens, probabilities = top_k(logits, k)
    return [
        [[tokenizer.decode([token]), probability] for token, probability in zip(*pair, strict=True)]
        for pair in zip(tokens.tolist(), probabilities.tolist(), strict=True)
    ]


def _unit(metric: nodes.Metric, read: nodes.Read) -> str:
    return "probability" if metric.kind == "value" and read.site.component == "attention_probs" else metric.unit


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
