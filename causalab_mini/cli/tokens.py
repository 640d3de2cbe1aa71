"""`causalab-mini tokens`: how a checkpoint's tokenizer cuts texts, and where positions land in the rows of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import PlanError, Problem, UsageError, listed, quoted

if TYPE_CHECKING:
    from rich.text import Text

    from causalab_mini.data.prompts import Prompt
    from causalab_mini.schedule.locate import Window

COLOURS = (
    "black on bright_yellow",
    "black on bright_cyan",
    "black on bright_magenta",
    "black on bright_green",
    "white on blue",
    "white on red",
)
MAX_ROWS = 40
FIELD = "input"


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def tokens(
        model: Annotated[str, typer.Argument(metavar="MODEL", help="A hub id, a folder, or `bundled:NAME`.")],
        texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts, as they would stand in a column.")] = None,
        data: Annotated[str | None, typer.Option("--data", metavar="REF", help="Show the rows of a table instead.")] = None,
        field: Annotated[str, typer.Option("--field", help="The field path of the rows' prompts.")] = FIELD,
        pos: Annotated[list[str] | None, typer.Option("--pos", help="A position (JSON) to mark; may be repeated.")] = None,
        rows: Annotated[int, typer.Option("--rows", min=1, help="How many rows are shown.")] = MAX_ROWS,
        data_root: options.DataRoot = None,
        pieces: Annotated[bool, typer.Option("--pieces", help="Print each text's tokens too.")] = False,
        revision: options.Revision = None,
        as_json: options.AsJson = False,
    ) -> None:
        """Print how many tokens each text is; a metric column needs one, an anchor any number.

        With --data, print each row's tokens with the windows of positions marked in colour and by brackets, so that it can be seen where
        they land.
        """
        if (data is None) == (not texts):
            raise UsageError(Problem("tokens", "texts, or `--data REF`", "both" if texts else "neither", code="usage"))
        if data is not None:
            _rows(model, revision, data, field, pos or [], rows, data_root, as_json)
            return
        given = {"--field": field != FIELD, "--pos": pos, "--rows": rows != MAX_ROWS, "--data-root": data_root}
        if unused := [name for name, value in given.items() if value]:
            raise UsageError(Problem("tokens", "`--data REF` beside options of rows", listed(unused), code="usage"))
        from causalab_mini.engine.loading import open_tokenizer

        tokenizer = open_tokenizer(model, revision)
        found: list[dict[str, Any]] = [
            {"text": text, "ids": list(tokenizer(text, add_special_tokens=False)["input_ids"])} for text in texts or []
        ]
        if as_json:
            for row in found:
                row["pieces"] = tokenizer.convert_ids_to_tokens(row["ids"])
            print(json.dumps(found, indent=1, ensure_ascii=False))
            return
        for row in found:
            n = len(row["ids"])
            print(f"{row['text']!r:<24} {n} token(s)" + ("" if n == 1 else "  <- not usable as a metric column"))
            if pieces:
                names = tokenizer.convert_ids_to_tokens(row["ids"])
                print("  " + " ".join(f"{name!r}={token}" for name, token in zip(names, row["ids"], strict=True)))


def _rows(
    model: str, revision: str | None, ref: str, field: str, spelled: Sequence[str], n_rows: int, data_root: Path | None, as_json: bool
) -> None:
    from rich.console import Console

    from causalab_mini.data.fields import parse_field
    from causalab_mini.data.table import find_data_root
    from causalab_mini.engine.loading import open_tokenizer
    from causalab_mini.plan.rows import Rows
    from causalab_mini.plan.spec import Role
    from causalab_mini.schedule.locate import locate

    tokenizer = open_tokenizer(model, revision)
    positions = [_position(text) for text in spelled]
    if parse_field(field) is None:
        raise UsageError(Problem("--field", "a field path like `input` or `counterfactual_inputs[0]`", quoted(field), code="usage"))
    role = Role.model_validate({"field": field})
    source = Rows(find_data_root(data_root, None), tokenizer, None)
    table = source.table(ref, "--data")
    prompts = source.prompts_of(ref, role, "--data", "--field")
    anchors = [source.anchors(position.scope, ref, role, "--pos") for position in positions]
    labels = source.labels(ref, "--data")
    console = Console(highlight=False, soft_wrap=True)
    if not as_json:
        for index, position in enumerate(positions):
            console.print(f"{index + 1} [{COLOURS[index % len(COLOURS)]}] {position} [/]", highlight=False)
    shown = []
    for row, prompt in enumerate(prompts[:n_rows]):
        windows = [
            locate(position, None if texts is None else texts[row], prompt) for position, texts in zip(positions, anchors, strict=True)
        ]
        shown.append(
            {
                "row": labels[row],
                "tokens": [prompt.text_of([token]) for token in range(prompt.n_content)],
                "windows": [
                    {"pos": str(p), "content": list(w.tokens), "text": prompt.text_of(w.tokens), "reason": w.reason}
                    for p, w in zip(positions, windows, strict=True)
                ],
            }
        )
        if not as_json:
            console.print(_line(labels[row], prompt, windows))
    if as_json:
        print(json.dumps(shown, indent=1, ensure_ascii=False))
    elif len(table.rows) > n_rows:
        console.print(f"and {len(table.rows) - n_rows} more rows (--rows)")


def _line(label: str, prompt: Prompt, windows: Sequence[Window]) -> Text:
    """Returns a row with its tokens set apart by `|`; marked ones are in colour, and in brackets with the position's number."""
    from rich.text import Text

    line = Text(f"{label:>4}  ")
    for token in range(-prompt.n_prefix, prompt.n_content):
        piece = "·" if token < 0 else prompt.text_of([token]).replace("\n", "↵")
        marks = [index for index, window in enumerate(windows) if token in window.tokens]
        if marks:
            numbers = "".join(str(index + 1) for index in marks)
            line.append(f"[{piece}]{numbers}", style=COLOURS[marks[0] % len(COLOURS)])
        else:
            line.append(piece, style="dim" if token < 0 else "")
        line.append("|", style="dim")
    for index, window in enumerate(windows):
        if window.reason:
            line.append(f"  {index + 1}: {window.reason}", style="bold red")
    return line


def _position(text: str) -> Any:
    from pydantic import ValidationError
    from pydantic_core import PydanticCustomError

    from causalab_mini.plan.position import Position, as_position
    from causalab_mini.plan.problems import problems_of

    value = options.json_or_text("--pos", text)
    if value == text:  # no JSON: that of a text has quotes around it
        expected = 'a position as JSON, such as -1, "prompt[-1]" or {"index": -1, "scope": {"variable": "entity"}}'
        raise UsageError(Problem("--pos", expected, quoted(text), code="usage"))
    try:
        found = as_position(value)
        if found.is_generated:
            expected, hint = (
                "a position in the prompt (nothing is generated here)",
                "a run's results say where positions in what is said are",
            )
            raise UsageError(Problem("--pos", expected, quoted(text), hint, "usage"))
        return found
    except PydanticCustomError as error:  # of a selector string, which no model is around
        said = error.context or {}
        raise PlanError(Problem("--pos", said["expected"], said["got"], said["hint"], said["code"])) from None
    except ValidationError as error:
        raise PlanError(
            [Problem(f"--pos {p.path}".strip(), p.expected, p.got, p.hint, p.code) for p in problems_of(error, Position)]
        ) from None
