"""What every object of the language is: closed, strict, immutable; and the words its refusals are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field
from pydantic_core import PydanticCustomError

from causalab_mini.errors import did_you_mean, listed, quoted

MAX_SEED = 2**62
"""The largest seed: what every generator takes."""
NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*$"
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)]


class Strict(BaseModel):
    """A closed, strictly typed, immutable object whose field docstrings are its documentation."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=False,
        protected_namespaces=(),
    )

    def spelled(self) -> dict[str, Any]:
        """Returns the fields whose value is not their default."""
        fields = type(self).model_fields
        return {name: value for name in fields if (value := getattr(self, name)) != fields[name].get_default(call_default_factory=True)}


class FrozenDict(dict[str, Any]):
    """A dict that can be hashed and not changed."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a loaded document is immutable")

    __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return (FrozenDict, (dict(self),))


__all__ = [
    "MAX_SEED",
    "NAME_PATTERN",
    "FrozenDict",
    "Name",
    "Named",
    "Strict",
    "Tuple",
    "invalid",
    "not_yet",
    "one_of",
    "shown",
    "tag_by",
    "tag_by_kind",
]

_T = TypeVar("_T")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if TYPE_CHECKING:
    from builtins import tuple as Tuple  # noqa: N812

    Named = dict[str, _T]
else:

    class Named:
        """Declared things by name, in the order in which they were declared: `Named[Read]`."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Annotated[dict[Name, item], AfterValidator(FrozenDict)]

    class Tuple:
        """A JSON list as a tuple: `Tuple[int, ...]`."""

        def __class_getitem__(cls, items: Any) -> Any:
            return Annotated[tuple[items], BeforeValidator(_as_tuple)]


def invalid(expected: str, got: Any, hint: str = "", code: str = "invalid", key: str = "") -> PydanticCustomError:
    """Returns an error that a validator raises.

    Args:
        expected: a phrase.
        got: a phrase, or a value that is quoted (a text that a user wrote goes through `shown`).
        hint: where one is sure to help.
        code: for `--json`.
        key: the key of the object that is at fault, where it is one.
    """
    phrase = got if isinstance(got, str) else shown(got)
    return PydanticCustomError("said", "{expected}", {"expected": expected, "got": phrase, "hint": hint, "code": code, "key": key})


def shown(value: Any) -> str:
    """Returns a value as JSON in backticks, shortened to what a line can hold."""
    return quoted(json.dumps(value, default=str, ensure_ascii=False))


def not_yet(what: str, key: str = "") -> PydanticCustomError:
    """Returns the refusal of a part of the language that this release does not have."""
    return invalid("what this release can do", f"{what} (not there yet)", code="not_yet", key=key)


def one_of(words: tuple[str, ...], otherwise: str) -> BeforeValidator:
    """Returns a validator for a value that is one of some words or something else, which its type then judges."""

    def judge(value: Any) -> Any:
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if value in words or (is_int and "integer" in otherwise) or (isinstance(value, list) and "list" in otherwise):
            return value
        raise invalid(f"{listed(words)} or {otherwise}", shown(value))

    return BeforeValidator(judge)


def tag_by(expected: str, tags: Mapping[type, str]) -> Discriminator:
    """Returns a discriminator that picks a union's member by the JSON type of the value.

    Args:
        expected: what is said where a value has none of these types.
        tags: of the members, by type; a bool is no int.
    """

    def tag(value: Any) -> str | None:
        kinds = {} if isinstance(value, bool) else tags
        return next((name for kind, name in kinds.items() if isinstance(value, kind)), None)

    return Discriminator(tag, custom_error_type="type", custom_error_message=expected)


def tag_by_kind(
    kinds: Iterable[str], later: tuple[str, ...], hints: Mapping[str, str] = FrozenDict()
) -> tuple[Discriminator, BeforeValidator]:
    """Returns what picks a union's member by its `kind`, and what refuses an unknown one, or one that is not there yet.

    Args:
        kinds: that are known.
        later: those that are not there yet.
        hints: of words that some may take for a kind.
    """
    known = tuple(kinds)

    def judge(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value
        if not isinstance(value, dict):
            raise invalid(f"an object with a `kind` ({listed(known)})", shown(value))
        kind = value.get("kind")
        if kind in later:
            raise not_yet(f"the kind `{kind}`", "kind")
        if kind not in known:
            hint = hints.get(kind) or did_you_mean(kind, known) if isinstance(kind, str) else ""
            raise invalid(listed(known), shown(kind) if "kind" in value else "none", hint, "kind", "kind")
        return value

    def tag(value: Any) -> str:
        return f"<{value['kind'] if isinstance(value, dict) else value.kind}>"

    return Discriminator(tag), BeforeValidator(judge)
