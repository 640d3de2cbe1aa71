"""Scores of a step as table rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.observe import Observed, Prompts
from causalab_mini.ops import metrics as scores
from causalab_mini.ops.windows import Value
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
    by_layer = score(metric, observed, rows, tokenizer)
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


def score(metric: nodes.Metric, observed: Observed, rows: Sequence[int], tokenizer: Any) -> list[list[Any]]:
    """Returns a metric's values on some rows of the step, layer by layer."""
    n_layers = observed.values[metric.reads["of"]].data.shape[0]
    if not rows:
        return [[] for _ in range(n_layers)]
    if metric.kind == "answer_logprob":
        return _answer_logprob(metric, observed, rows)
    if metric.kind == "recovered":
        return _recovered(metric, observed, rows, tokenizer)
    of = _of(observed, metric.reads["of"], rows)
    against = _of(observed, metric.reads["against"], rows) if "against" in metric.reads else None
    if metric.kind == "top_k":
        return [_top_k(layer, metric.options["k"], tokenizer) for layer in of]
    pattern = observed.patterns.get(metric.reads["of"])
    is_key = None if pattern is None else pattern.is_key(rows).to(of.device)
    tokens = {key: torch.tensor([cells[row] for row in rows], device=of.device) for key, cells in metric.tokens.items() if key != "classes"}
    classes = _classes(metric, rows, of.device)
    how = metric.options.get("how", "")
    function = scores.METRICS[metric.kind]
    return [
        function(
            scores.Scored(of[entry], None if against is None else against[min(entry, len(against) - 1)], tokens, classes, how, is_key)
        ).tolist()
        for entry in range(n_layers)
    ]


def _of(observed: Observed, read: str, rows: Sequence[int]) -> Tensor:
    """Returns a one-token read on some rows of the step, (layer, row, feature) in fp32."""
    where = {row: index for index, row in enumerate(observed.rows)}
    return observed.values[read].one_token([where[row] for row in rows]).float()


def _classes(metric: nodes.Metric, rows: Sequence[int], device: torch.device) -> Tensor | None:
    cells: Sequence[Any] = metric.tokens.get("classes", ())
    if not cells:
        return None
    longest = max(len(cells[row]) for row in rows)
    return torch.tensor([[*cells[row], *[cells[row][0]] * (longest - len(cells[row]))] for row in rows], device=device)


def _top_k(logits: Tensor, k: int, tokenizer: Any) -> list[list[list[Any]]]:
    tokens, probabilities = scores.top_k(logits, k)
    return [
        [[tokenizer.decode([token]), probability] for token, probability in zip(*pair, strict=True)]
        for pair in zip(tokens.tolist(), probabilities.tolist(), strict=True)
    ]


def _answer_logprob(metric: nodes.Metric, observed: Observed, rows: Sequence[int]) -> list[list[float]]:
    """Returns Σ log p of each row's answer, token after token. Source: the chain rule of probability."""
    value: Value = observed.values[metric.reads["answer"]]
    where = {row: index for index, row in enumerate(observed.rows)}
    by_layer: list[list[float]] = [[] for _ in range(value.data.shape[0])]
    for row in rows:
        logits = value.row(where[row]).float()
        tokens = torch.tensor(metric.tokens["target"][row], device=logits.device)
        for entry, layer in enumerate(logits):
            by_layer[entry].append(float(scores.log_probs(layer, tokens).sum()))
    return by_layer


def _recovered(metric: nodes.Metric, observed: Observed, rows: Sequence[int], tokenizer: Any) -> list[list[float | None]]:
    """Returns (m(of) − m(corrupt)) / (m(clean) − m(corrupt)) of the inner metric, null where the denominator is 0.

    Source: the normalised logit difference of Wang et al. 2022, "Interpretability in the wild"; Zhang and Nanda 2023, section 2.
    """
    assert metric.inner is not None
    found = {}
    for key in ("of", "clean", "corrupt"):
        reads: Mapping[str, str] = {**metric.inner.reads, "of": metric.reads[key], "answer": metric.reads.get(f"{key} answer", "")}
        inner = nodes.Metric(metric.inner.name, metric.inner.kind, metric.inner.unit, reads, metric.inner.tokens, metric.inner.options)
        found[key] = score(inner, observed, rows, tokenizer)
    recovered: list[list[float | None]] = []
    for entry, layer in enumerate(found["of"]):
        clean, corrupt = (found[key][min(entry, len(found[key]) - 1)] for key in ("clean", "corrupt"))
        recovered.append([None if c == b else (v - b) / (c - b) for v, c, b in zip(layer, clean, corrupt, strict=True)])
    return recovered


def _unit(metric: nodes.Metric, read: nodes.Read) -> str:
    return "probability" if metric.kind == "value" and read.site.component == "attention_probs" else metric.unit


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
