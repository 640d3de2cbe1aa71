"""`causalab-mini validate`: whether documents and extraction specs are right, with every mistake at once."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import EXIT_INPUT_WRONG, InputError, Problem, UsageError, quoted


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def validate(
        documents: Annotated[list[str], typer.Argument(metavar="DOC…", help="Documents (files, or `bundled:NAME`) and extraction specs.")],
        no_model: Annotated[bool, typer.Option("--no-model", help="Judge the files alone: no checkpoint, no tables.")] = False,
        data_root: options.DataRoot = None,
        set_: options.Set = None,
        trust_remote_code: options.TrustRemoteCode = False,
        as_json: options.AsJson = False,
    ) -> None:
        """Check documents: the files, then their rows, tokens and positions against the checkpoint's config. Loads no weights.

        An extraction spec (`.yaml`, `.yml`, or JSON with `extraction_points`) names no checkpoint: its file alone is judged.
        """
        from causalab_mini.plan.load import load_spec
        from causalab_mini.probing.spec.parse import is_spec_file
        from causalab_mini.shipped import find_document

        if no_model and data_root is not None:
            raise UsageError(
                Problem("--data-root", "no data root beside `--no-model` (no table is opened)", quoted(str(data_root)), code="usage")
            )
        found: list[dict[str, Any]] = []
        counted: tuple[str | None, int | None]
        for name in documents:
            try:
                if is_spec_file(Path(name)):
                    n_in_spec = _spec_points(name, set_)
                    found.append({"document": name, "valid": True, "n_points": n_in_spec})
                    if not as_json:
                        print(f"ok {name}  ({_points(n_in_spec)})")
                    continue
                if no_model:
                    document = load_spec(find_document(name), options.overrides(set_))
                    counted = (document.digest, len(document.points)) if document.counts_all else (None, None)
                else:
                    from causalab_mini.experiment import Options, load

                    experiment = load(
                        name, data_root=data_root, overrides=options.overrides(set_), options=Options(trust_remote_code=trust_remote_code)
                    )
                    request, _, _ = experiment.compile()
                    counted = (request.digest, len(request.points))
            except InputError as error:
                found.append({"document": name, "valid": False, **error.as_data()})
                if not as_json:
                    print(error.text(), file=sys.stderr)
                continue
            digest, n = counted
            found.append({"document": name, "valid": True, "digest": digest, "n_points": n})
            if not as_json:
                said = "`all` is counted with the model" if digest is None else f"{_points(n)}, digest {digest[:12]}"
                print(f"ok {name}  ({said})")
        if as_json:
            print(json.dumps(found, indent=1, ensure_ascii=False))
        if not all(entry["valid"] for entry in found):
            sys.exit(EXIT_INPUT_WRONG)


def _spec_points(name: str, set_: list[str] | None) -> int:
    """Returns how many points an extraction spec has, and passes on what it says of older names."""
    from causalab_mini.probing.spec import load_yaml_file

    if set_:
        raise UsageError(Problem("--set", "documents (an extraction spec is changed in its file)", quoted(name), code="usage"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DeprecationWarning)
        n = len(load_yaml_file(name))
    for warning in said:
        print(f"warning: {warning.message}", file=sys.stderr)
    return n


def _points(n: int | None) -> str:
    return f"{n} point{'s' if n != 1 else ''}"
