"""`schema`, `vocab`, `new`, `fmt`, `diff`: the language, without any model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import EXIT_RUN_FAILED, DocumentError, Problem, UsageError, did_you_mean, listed, quoted


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(schema)
    app.command()(vocab)
    app.command()(new)
    app.command()(fmt)
    app.command()(diff)


def schema(as_json: options.AsJson = False) -> None:
    """Print the JSON Schema of documents, for editors to complete, explain and check with."""
    from causalab_mini.plan.schema import schema as make

    print(json.dumps(make(), indent=1, ensure_ascii=False))


def vocab(as_json: options.AsJson = False) -> None:
    """Print everything that a document may say, from the tables that the program itself uses."""
    from causalab_mini.plan.vocabulary import vocabulary

    words = vocabulary()
    if as_json:
        print(json.dumps(words, indent=1, ensure_ascii=False))
        return
    for section, entries in words.items():
        print(section)
        width = max(len(name) for name in entries)
        for name, meaning in entries.items():
            print(f"  {name:<{width}}  {meaning}")


def new(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Which kind; without it, the kinds are listed.")] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to write; without it, the document is printed.")] = None,
    set_: options.Set = None,
    as_json: options.AsJson = False,
) -> None:
    """Start a document: a working example of a kind of experiment, to be changed. `--set` changes values at once."""
    from causalab_mini.plan.layout import formatted
    from causalab_mini.plan.load import load_raw, override
    from causalab_mini.shipped import example_documents

    kinds = example_documents()
    raws = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in kinds.items()}
    if kind is None:
        if set_:
            raise UsageError(Problem("new", "a KIND beside `--set`", "none", code="usage"))
        if as_json:
            print(json.dumps({name: raw["header"] for name, raw in raws.items()}, indent=1, ensure_ascii=False))
            return
        width = max(map(len, raws))
        for name, raw in raws.items():
            print(f"{name:<{width}}  {raw['header'].get('title', '')}")
        return
    if kind not in raws:
        raise UsageError(Problem("KIND", f"a kind of experiment ({listed(raws)})", quoted(kind), did_you_mean(kind, list(raws)), "usage"))
    raw = raws[kind]
    for path, value in options.overrides(set_).items():
        raw = override(raw, path, value)
    load_raw(raw)
    text = formatted(raw)
    if file is None:
        print(text, end="")
        return
    options.write(file, text)
    if as_json:
        print(json.dumps({"file": str(file)}, indent=1))
        return
    print(file)
    print(f"next: causalab-mini explain {file}; causalab-mini run {file} --out out", file=sys.stderr)


def fmt(
    documents: Annotated[list[Path], typer.Argument(metavar="DOC…", help="Documents, rewritten in place.")],
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a document would change.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Lay documents out in one way: keys in the order of the reference, what fits on a line on one line."""
    from causalab_mini.data.strict_json import parse_json, read_text
    from causalab_mini.plan.layout import formatted
    from causalab_mini.results.store import write_atomically

    changed = []
    for path in documents:
        before = read_text(path, DocumentError)
        document = parse_json(before, str(path), DocumentError)
        if not isinstance(document, dict):
            raise DocumentError(Problem("", "an object (a document)", f"{quoted(before.strip())}", code="type"), str(path))
        after = formatted(document)
        if after != before:
            changed.append(str(path))
            if not check:
                write_atomically(path, after.encode())
    if as_json:
        print(json.dumps({"changed": changed, "written": not check}, indent=1))
    else:
        for name in changed:
            print(f"{'would change' if check else 'changed'} {name}")
    if check and changed:
        sys.exit(EXIT_RUN_FAILED)


def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="A document.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    as_json: options.AsJson = False,
) -> None:
    """Tell whether two documents are the same experiment (exit 0), or where they differ (exit 1). Headers and spelling don't count."""
    from causalab_mini.plan.layout import document_differences
    from causalab_mini.plan.load import load_spec
    from causalab_mini.shipped import find_document

    one, other = (load_spec(find_document(name)) for name in (left, right))
    found = document_differences(one, other)
    if as_json:
        data = [{"path": path, "a": a, "b": b} for path, a, b in found]
        print(json.dumps({"same": not found, "digests": [one.digest, other.digest], "differences": data}, indent=1, ensure_ascii=False))
    elif not found:
        print(f"same experiment, digest {one.digest}")
    else:
        for path, a, b in found:
            print(f"{path}: {_side(a, 'A')} → {_side(b, 'B')}")
    if found:
        sys.exit(EXIT_RUN_FAILED)


def _side(value: Any, name: str) -> str:
    if value is None:
        return f"not in {name}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
