"""Answer columns as tokens: what a metric compares the model's prediction with."""

from __future__ import annotations

from typing import Any, Literal

from causalab_mini.errors import CellError, quoted

TokenForm = Literal["space_prefixed", "bare", "as_written", "id"]


class AnswerError(CellError):
    """A cell can't become the tokens that were asked for."""


def answer_tokens(tokenizer: Any, value: object, form: TokenForm) -> tuple[int, ...]:
    """Returns the token ids of a cell, without the tokenizer's own prefix.

    Args:
        tokenizer: of the model that is scored.
        value: the cell.
        form: `space_prefixed` puts one space before the stripped text, `bare` strips it, `as_written` leaves it, `id` takes an id, a number or its digits.

    Raises:
        AnswerError: the cell is no text (or no id), or has no tokens.
    """
    if form == "id":
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(tokenizer):
            raise AnswerError(f"a token id below {len(tokenizer)}", quoted(value))
        return (value,)
    if not isinstance(value, str):
        raise AnswerError("a text", quoted(value))
    text = {"space_prefixed": f" {value.strip()}", "bare": value.strip(), "as_written": value}[form]
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids or not text.strip():
        raise AnswerError("a text of at least one token", quoted(value))
    return ids


def answer_token(tokenizer: Any, value: object, form: TokenForm) -> int:
    """Returns the one token id of a cell.

    Raises:
        AnswerError: as `answer_tokens`, or the cell is several tokens.
    """
    ids = answer_tokens(tokenizer, value, form)
    if len(ids) != 1:
        pieces = ", ".join(repr(tokenizer.convert_ids_to_tokens(token)) for token in ids)
        raise AnswerError("one token", f"{len(ids)} ({pieces}) for {quoted(value)}")
    return ids[0]
