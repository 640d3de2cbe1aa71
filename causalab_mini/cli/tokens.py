"""`causalab-mini tokens`: how a checkpoint's tokenizer cuts texts."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from causalab_mini.cli import options


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def tokens(
        model: Annotated[str, typer.Argument(metavar="MODEL", help="A hub id, a folder, or `bundled:NAME`.")],
        texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Texts, as they would stand in a column.")],
        revision: options.Revision = None,
        as_json: options.AsJson = False,
    ) -> None:
        """Print how many tokens each text is; a metric column needs one, an anchor any number."""
        from causalab_mini.engine.loading import open_tokenizer

        tokenizer = open_tokenizer(model, revision)
        rows = [{"text": text, "ids": list(tokenizer(text, add_special_tokens=False)["input_ids"])} for text in texts]
        if as_json:
            for row in rows:
                row["pieces"] = tokenizer.convert_ids_to_tokens(row["ids"])
            print(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        for row in rows:
            n = len(row["ids"])
            print(f"{row['text']!r:<24} {n} token(s)" + ("" if n == 1 else "  <- not usable as a metric column"))
