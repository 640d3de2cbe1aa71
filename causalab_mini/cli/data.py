"""`causalab-mini data`: what a table holds, and new tables made from small causal models."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import Problem, UsageError, did_you_mean, listed, quoted

N_PAIRS = 100
MAX_PAIRS = 100_000
"""What is drawn in a minute or two, and fits into memory many times."""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def data(
        ref: Annotated[
            str, typer.Argument(metavar="REF|new", help="A table below the data root (`weekdays/train`, `weekdays/train#all`), or `new`.")
        ],
        task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="After `new`: `successor`, `ioi` or `capitals`.")] = None,
        data_root: options.DataRoot = None,
        n: Annotated[int, typer.Option("--n", min=1, max=MAX_PAIRS, help="new: how many pairs.")] = N_PAIRS,
        seed: Annotated[int, typer.Option("--seed", min=0, help="new: seed of the draw.")] = 0,
        out: Annotated[Path | None, typer.Option("--out", help="new: the .json file; without it, the table is printed.")] = None,
        set_: Annotated[
            list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="new: an option of the task; may be repeated.")
        ] = None,
        model: Annotated[
            str | None,
            typer.Option("--model", help="new: keep pairs with one-token answers and names of equally many tokens under this tokenizer."),
        ] = None,
        revision: options.Revision = None,
        as_json: options.AsJson = False,
    ) -> None:
        """Print a table's rows, columns and splits, and its first row; or make a new table of paired prompts."""
        if ref == "new":
            _new(task, n, seed, out, options.overrides(set_), model, revision, as_json)
            return
        if task is not None:
            raise UsageError(Problem("data", "one REF, or `new TASK`", quoted(f"{ref} {task}"), code="usage"))
        given = {"--n": n != N_PAIRS, "--seed": seed, "--out": out, "--set": set_, "--model": model, "--revision": revision}
        if unused := [name for name, value in given.items() if value]:
            raise UsageError(Problem("data", "`new TASK` beside options of a new table", listed(unused), code="usage"))
        from causalab_mini.data.table import find_data_root, open_table

        table = open_table(ref, find_data_root(data_root, None))
        if as_json:
            facts = {"ref": ref, "path": str(table.path), "n_rows": len(table.rows), "columns": table.columns, "splits": table.splits}
            print(json.dumps({**facts, "sha256": table.sha256, "sample": table.rows[0]}, indent=1, ensure_ascii=False))
            return
        n_rows = len(table.rows)
        print(f"{ref}: {n_rows} row{'s' if n_rows != 1 else ''}")
        print(f"  columns: {', '.join(table.columns)}")
        print(f"  splits:  {', '.join(table.splits) or 'none'}")
        print(f"  sample:  {json.dumps(table.rows[0], sort_keys=True, ensure_ascii=False)}")


def _new(
    task: str | None, n: int, seed: int, out: Path | None, settings: dict[str, Any], model: str | None, revision: str | None, as_json: bool
) -> None:
    from causalab_mini.data.tasks import TASKS

    if task not in TASKS:
        raise UsageError(
            Problem(
                "data new", f"a task ({listed(TASKS)})", quoted(task) if task else "none", did_you_mean(task or "", list(TASKS)), "usage"
            )
        )
    make = TASKS[task]
    known = [name for name in inspect.signature(make).parameters if name not in ("n", "seed", "keep")]
    for name in settings:
        if name not in known:
            raise UsageError(
                Problem("--set", f"an option of {quoted(task)} ({listed(known)})", quoted(name), did_you_mean(name, known), "usage")
            )
    if revision is not None and model is None:
        raise UsageError(Problem("--revision", "`--model` beside it (whose tokenizer judges the rows)", quoted(revision), code="usage"))
    keep = None if model is None else _fits(model, revision)
    try:
        rows = make(n=n, seed=seed, keep=keep, **settings)
    except (ValueError, KeyError, TypeError) as error:
        got = str(error).partition(" distinct pairs, got ")[2] or str(error)
        raise UsageError(Problem("data new", f"a table of {n} pairs", got, code="usage")) from None
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    if out is None:
        print(text, end="")
        return
    if out.suffix != ".json":
        raise UsageError(Problem("--out", "a file name ending in `.json`", quoted(out), code="usage"))
    options.write(out, text)
    if as_json:
        print(json.dumps({"file": str(out), "n_rows": n}, indent=1))
        return
    print(f"{out}: {n} rows")
    print(
        f"next: the ref {quoted(out.stem)} with `--data-root {out.parent}`; documents find tables in `data/` beside them", file=sys.stderr
    )


def _fits(model: str, revision: str | None) -> Any:
    """Returns whether a row suits metrics of one token and swaps of whole names, under a tokenizer."""
    from causalab_mini.engine.loading import open_tokenizer

    tokenizer = open_tokenizer(model, revision)

    def n_tokens(text: object) -> int:
        return len(tokenizer(f" {str(text).strip()}", add_special_tokens=False)["input_ids"])

    def keep(row: dict[str, Any]) -> bool:
        (other,) = row["counterfactual_inputs_variables"]
        same = all(n_tokens(row[name]) == n_tokens(text) for name, text in other.items())
        return same and n_tokens(row["base_answer"]) == n_tokens(row["cf_answer"]) == 1

    return keep
