"""The language reference as Markdown, from the models' docstrings and the tables that judge documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from causalab_mini.plan.schema import schema
from causalab_mini.plan.vocabulary import vocabulary

INTRODUCTION = """# The document language

Generated from the code (`make docs`): the tables that stand here are those that judge a document.

A document is one JSON object in one file, read strictly: no repeated keys, no NaN, no text after the end. Every object is closed, and
types are strict (`true` is not `1`). All mistakes come at once, each with its path. In place of any value outside `model` and `header` may
stand a sweep: `{"sweep": [values]}`, `{"sweep": {"range": [start, stop, step]}}`, or, for layers and heads, `{"sweep": "all"}`; each with
an optional `"as": NAME`. Sweeps without a name multiply in reading order, those of one name move together. A point's folder is named
`axis=value`, joined by commas; a text stands there as it is, other values as compact JSON with what file names can't hold percent-encoded.

An int is short for a position's `index`. A *stacked* site has several layers; its reads have a layer axis, and tables a `layer` field.
"""

MAX_OPTIONS = 8
ORDER = (
    "Header", "ModelSpec", "Role", "Site", "Intervention", "Read", "Write", "Params", "OutputRef", "ModelDef", "Position", "Anchor", "Observe",
    "Output", "Difference", "Save", "Where",
)  # fmt: skip


def reference() -> str:
    """Returns the whole reference."""
    made = schema()
    definitions = made["$defs"]
    others = [name for name in definitions if name not in ORDER]
    parts = [INTRODUCTION, "## Objects\n", *_object("the document", made)]
    for name in (*ORDER, *sorted(others)):
        definition = definitions[name]
        parts += _object(name, definition["anyOf"][1] if name == "Position" else definition)
    parts.append("## Words\n")
    for section, words in vocabulary().items():
        parts.append(f"### {section.capitalize()}\n")
        parts.append(
            "\n".join(["| word | meaning |", "| --- | --- |", *(f"| `{word}` | {_cell(meaning)} |" for word, meaning in words.items())])
            + "\n"
        )
    return "\n".join(parts)


def _object(name: str, definition: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n\n{definition.get('description', '')}\n"
    required = definition.get("required", [])
    rows = []
    for key, value in definition["properties"].items():
        plain = value["anyOf"][0] if "anyOf" in value and "sweep" in json.dumps(value["anyOf"][-1]) else value
        default = "required" if key in required else f"`{json.dumps(plain['default'])}`" if "default" in plain else "–"
        description = plain.get("description", value.get("description", "")).partition("\n")[0]
        rows.append(f"| `{key}` | {_cell(_kind(plain))} | {default} | {_cell(description)} |")
    yield "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _kind(value: Any) -> str:
    """Returns a schema in a few words."""
    if not isinstance(value, dict):
        return "any"
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    options = value.get("anyOf") or value.get("oneOf")
    if options:
        words = [_kind(option) for option in options if not (isinstance(option, dict) and "sweep" in option.get("properties", {}))]
        return " or ".join(dict.fromkeys(words)) if len(words) < MAX_OPTIONS else f"one of {len(words)} kinds, below"
    if value.get("type") == "array":
        items = value.get("prefixItems")
        return "[" + ", ".join(_kind(item) for item in items) + "]" if items else f"list of {_kind(value.get('items', {}))}"
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"{{name: {_kind(value['additionalProperties'])}}}"
    return str(value.get("type", "any"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
