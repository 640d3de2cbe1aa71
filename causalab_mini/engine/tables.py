"""Scores of a step as table rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.given import Prompts
from causalab_mini.engine.observe import Observed
from causalab_mini.engine.scores import one_token, score
from causalab_mini.ops.metrics import top_k
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import StepSchedule, Windows, metric_reasons

ESTIMAND_VERSION = "v1"


def metric_rows(
    schedule: StepSchedule, intervention: nodes.Intervention, metric: nodes.Metric, observed: Observed, prompts: Prompts, tokenizer: Any
) -> list[dict[str, Any]]:
    """Returns a metric's table: one row a row of the step, or one a row and layer for stacked reads."""
    step = schedule.step
    active = set(observed.rows)
    reasons = [reason if row in active else "filtered" for row, reason in enumerate(metric_reasons(schedule, intervention, metric))]
    rows = [row for row, reason in enumerate(reasons) if not reason]
    forward = intervention.forward_of(metric.reads["of"])
    read = intervention.read(metric.reads["of"])
    windows = schedule.windows(intervention.name, read.name)
    role_prompts = prompts[forward.rows]
    columns = None if forward.is_plain else padded(windows, role_prompts)
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
                "tokens": role_prompts[row].text_of(windows[row].tokens) if windows[row].tokens else None,
                "produced_by": f"{step.name}/{intervention.name}/{forward.model}/{forward.role}",
            }
            table.append(line | ({"layer": layer} if read.site.is_stacked else {}))
    return table


def padded(windows: Windows, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Returns windows as indices in rows that are padded on the left to the longest of all rows."""
    longest = max(prompt.n_tokens for prompt in prompts)
    return [tuple(longest - prompt.n_content + token for token in window.tokens) for window, prompt in zip(windows, prompts, strict=True)]


def positions(schedule: StepSchedule, prompts: Prompts) -> dict[str, dict[str, Any]]:
    """Returns where every read and write of a step is: padded indices, text, reason and content indices, row by row."""
    record: dict[str, dict[str, Any]] = {}
    for intervention in schedule.step.interventions:
        for one in schedule.passes[intervention.name]:
            role_prompts = prompts[one.forward.rows]
            for place in one.forward.places:
                if isinstance(place, nodes.Read) and place.is_hidden:
                    continue
                windows = one.windows[place.name]
                name = f"{intervention.name}/{place.name}" if schedule.step.is_list else place.name
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
