"""The docstrings below fields: what a schema, the vocabulary and the reference say of a key.

pydantic can attach them to every model when it is made (`use_attribute_docstrings`); that costs each start of the program a tenth
of a second of parsing which only three verbs need, so they are read here, when asked for.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache

from causalab_mini.plan.strict import Strict


@cache
def field_docstrings(model: type[Strict]) -> dict[str, str]:
    """Returns the docstring of each key of a model, inherited ones included."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, Strict):
            found |= dict(_in_body(kind))
    return {field.alias or name: found[name] for name, field in model.model_fields.items() if name in found}


def models() -> dict[str, type[Strict]]:
    """Returns every model of the language by its class's name."""
    found: dict[str, type[Strict]] = {}
    pending: list[type[Strict]] = [Strict]
    while pending:
        kind = pending.pop()
        found[kind.__name__] = kind
        pending += kind.__subclasses__()
    return found


def _in_body(model: type) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    for before, statement in zip(definition.body, definition.body[1:], strict=False):
        is_field = isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if (
            is_field
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            yield before.target.id, inspect.cleandoc(statement.value.value)  # type: ignore[attr-defined]
