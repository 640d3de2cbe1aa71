"""Tasks: small causal models that write prompts with known answers.

Responsible for prompts and answers as text. Needs the standard library alone; knows no tokenizer and no model.
"""

from collections.abc import Callable
from typing import Final

from causalab_mini.data.tasks import capitals, ioi, successor
from causalab_mini.data.tasks.rows import Keep, Row

__all__ = ["TASKS", "Keep", "Row", "capitals", "ioi", "successor"]

TASKS: Final[dict[str, Callable[..., list[Row]]]] = {
    "successor": successor.make_pairs,
    "ioi": ioi.make_pairs,
    "capitals": capitals.make_pairs,
}
"""The function that makes a task's pairs, by the task's name."""
