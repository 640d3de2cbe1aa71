"""Everything that a document may say, by section, from the tables that judge it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan.docstrings import field_docstrings
from causalab_mini.plan.position import Anchor, Position
from causalab_mini.plan.spec import FEATURIZER_MODELS, MECHANISM_RULES, METRIC_MODELS, STEP_MODELS, TokenForm
from causalab_mini.plan.spec.saves import Reduce
from causalab_mini.plan.spec.selected import CONTROLS
from causalab_mini.plan.strict import Strict

REDUCTIONS = {
    "none": "every row's own values",
    "mean": "over rows; of a ragged read, over all its tokens",
    "std": "standard deviation, as `mean`",
    "pca": "`k` directions of greatest variance",
    "mean_by": "the mean of each group of rows, named by the column `by`",
}
REASONS = {
    "alignment_missing": "the text or segment is not in the row",
    "alignment_ambiguous": "it is there more than once, and `occurrence` is `only`",
    "out_of_range": "the cut or offset does not fit",
    "filtered": "the row failed a `where`",
    "column_missing": "the row's cell of a metric's column, or of a probe's label, is empty",
    "zero_denominator": "`recovered` where clean and corrupt are equal",
    "not_finite": "the number is NaN or infinite",
}
CONTROL_MEANINGS = {
    "self_swap": "every swap puts back the base's own value: the metric must be that of no intervention",
    "shuffled_source": "operands are those of other rows, by a derangement; `n` draws (1) from `seed`",
    "random_subspace": "subspaces of the same rank that are drawn and not trained; `n` draws (3) from `seed`",
    "full_component": "the whole value is written: no featurizer, all features",
}
TOKEN_FORMS = {
    "space_prefixed": "one space, then the stripped text",
    "bare": "the stripped text",
    "as_written": "the text as it stands in the column",
    "id": "the column holds token ids",
}


def vocabulary() -> Mapping[str, Mapping[str, str]]:
    """Returns what a document may say: by section, each word with its meaning."""
    assert set(REDUCTIONS) == set(get_args(Reduce))
    assert set(CONTROL_MEANINGS) == set(CONTROLS)
    assert set(TOKEN_FORMS) == set(get_args(TokenForm))
    return {
        "components": {
            name: f"{component.meaning}; {'a layer' if component.per_layer else 'whole model'}, width {component.width}"
            + (f", {component.heads} heads" if component.heads else "")
            + ("" if component.is_writable else ", read-only")
            for name, component in COMPONENTS.items()
        },
        "positions": _fields(Position),
        "anchors": _fields(Anchor),
        "mechanisms": {
            name: f"{rule.meaning}; operand {'required' if rule.has_operand else 'refused'}"
            + (f"; params {', '.join(rule.params)}" if rule.params else "")
            for name, rule in MECHANISM_RULES.items()
        },
        "featurizers": {name: _first_line(model) for name, model in FEATURIZER_MODELS.items()},
        "controls": CONTROL_MEANINGS,
        "metrics": {
            **{name: f"{_first_line(model)} [{model.unit}]" for name, model in METRIC_MODELS.items()},
        },
        "token forms": TOKEN_FORMS,
        "reductions": REDUCTIONS,
        "steps": {name: _first_line(model) for name, model in STEP_MODELS.items()},
        "reasons": REASONS,
    }


def _fields(model: type[Strict]) -> dict[str, str]:
    docstrings = field_docstrings(model)
    return {name: docstring.replace("\n", " ") for name, docstring in docstrings.items()}


def _first_line(model: type[Strict]) -> str:
    return (model.__doc__ or "").strip().partition("\n")[0]
