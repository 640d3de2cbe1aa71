"""Scores of what was read, as tensors: what tables are made of, and what is differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from causalab_mini.engine.observe import Observed
from causalab_mini.ops import metrics as scores
from causalab_mini.plan import plan as nodes


def score(metric: nodes.Metric, observed: Observed, rows: Sequence[int]) -> Tensor:
    """Returns a metric's values on some rows of the step, (layer, row); nan where one is undefined.

    Args:
        metric: one whose value is a number.
        observed: what its intervention's passes found.
        rows: that can be scored.
    """
    n_layers = observed.values[metric.reads["of"]].data.shape[0]
    if not rows:
        return torch.zeros(n_layers, 0)
    if metric.kind == "answer_logprob":
        return _answer_logprob(metric, observed, rows)
    if metric.kind == "recovered":
        return _recovered(metric, observed, rows)
    of = one_token(observed, metric.reads["of"], rows)
    against = one_token(observed, metric.reads["against"], rows) if "against" in metric.reads else None
    pattern = observed.patterns.get(metric.reads["of"])
    is_key = None if pattern is None else pattern.is_key(rows).to(of.device)
    tokens = {key: torch.tensor([cells[row] for row in rows], device=of.device) for key, cells in metric.tokens.items() if key != "classes"}
    classes = _classes(metric, rows, of.device)
    how = metric.options.get("how", "")
    function = scores.METRICS[metric.kind]
    return torch.stack(
        [
            function(
                scores.Scored(of[entry], None if against is None else against[min(entry, len(against) - 1)], tokens, classes, how, is_key)
            )
            for entry in range(n_layers)
        ]
    )


def one_token(observed: Observed, read: str, rows: Sequence[int]) -> Tensor:
    """Returns a one-token read on some rows of the step, (layer, row, feature) in fp32, in its own coordinates."""
    where = {row: index for index, row in enumerate(observed.rows)}
    return observed.value(read).one_token([where[row] for row in rows]).float()


def _classes(metric: nodes.Metric, rows: Sequence[int], device: torch.device) -> Tensor | None:
    cells = metric.tokens.get("classes", ())
    if not cells:
        return None
    longest = max(len(cells[row]) for row in rows)
    return torch.tensor([[*cells[row], *[cells[row][0]] * (longest - len(cells[row]))] for row in rows], device=device)


def _answer_logprob(metric: nodes.Metric, observed: Observed, rows: Sequence[int]) -> Tensor:
    """Returns Σ log p of each row's answer, token after token. Source: the chain rule of probability."""
    value = observed.value(metric.reads["answer"])
    where = {row: index for index, row in enumerate(observed.rows)}
    by_row = []
    for row in rows:
        logits = value.row(where[row]).float()
        tokens = torch.tensor(metric.tokens["target"][row], device=logits.device)
        by_row.append(torch.stack([scores.log_probs(layer, tokens).sum() for layer in logits]))
    return torch.stack(by_row, dim=1)


def _recovered(metric: nodes.Metric, observed: Observed, rows: Sequence[int]) -> Tensor:
    """Returns (m(of) − m(corrupt)) / (m(clean) − m(corrupt)) of the inner metric, nan where the denominator is 0.

    Source: the normalised logit difference of Wang et al. 2022, "Interpretability in the wild"; Zhang and Nanda 2023, section 2.
    """
    assert metric.inner is not None
    found = {}
    for key in ("of", "clean", "corrupt"):
        reads = {**metric.inner.reads, "of": metric.reads[key], "answer": metric.reads.get(f"{key} answer", "")}
        inner = nodes.Metric(metric.inner.name, metric.inner.kind, metric.inner.unit, reads, metric.inner.tokens, metric.inner.options)
        found[key] = score(inner, observed, rows).double()
    denominator = found["clean"] - found["corrupt"]
    is_zero = denominator == 0
    share = (found["of"] - found["corrupt"]) / torch.where(is_zero, torch.ones_like(denominator), denominator)
    return torch.where(is_zero, torch.full_like(share, float("nan")), share)
