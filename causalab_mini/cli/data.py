"""`causalab-mini data`: what a table holds."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from causalab_mini.cli import options


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def data(
        ref: Annotated[
            str, typer.Argument(metavar="REF", help="A table below the data root, such as `weekdays/train` or `weekdays/train#all`.")
        ],
        data_root: options.DataRoot = None,
        as_json: options.AsJson = False,
    ) -> None:
        """Print a table's rows, columns and splits, and its first row."""
        from causalab_mini.data.table import find_data_root, open_table

        table = open_table(ref, find_data_root(data_root, None))
        if as_json:
            facts = {"ref": ref, "path": str(table.path), "n_rows": len(table.rows), "columns": table.columns, "splits": table.splits}
            print(json.dumps({**facts, "sha256": table.sha256, "sample": table.rows[0]}, indent=1, ensure_ascii=False))
            return
        n = len(table.rows)
        print(f"{ref}: {n} row{'s' if n != 1 else ''}")
        print(f"  columns: {', '.join(table.columns)}")
        print(f"  splits:  {', '.join(table.splits) or 'none'}")
        print(f"  sample:  {json.dumps(table.rows[0], sort_keys=True, ensure_ascii=False)}")
