"""A spec's text as plain data with the place of every value; YAML is taken where a reader of JSON would understand the same.

YAML has many spellings that two readers take for different things (`on`, `012`, `1:30`, dates), and some that no spec needs
(tags, merge keys, several documents). They are refused here, each with its line and what to write instead.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from causalab_mini.data.strict_json import MAX_DEPTH, json_marks, parse_json
from causalab_mini.errors import Issue, SpecValidationError, quoted

MAX_BYTES = 1024 * 1024
MAX_ALIASES = 100
MAX_VALUES = 100_000
MAX_NUMBER = 400

Path = tuple[str | int, ...]
Mark = tuple[int, int]
"""Line and column, from 1."""

_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_OTHER_NUMBER = re.compile(r"[+-]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][+-]?[0-9]+)?|0o[0-7]+")
"""What YAML 1.2 takes for a number, beside what 1.1 does."""
_WORDS = {"true": True, "false": False, "null": None}
_TAG = "tag:yaml.org,2002:"


@dataclass(slots=True)
class Tree:
    """Plain data, where its values and keys stand, and what is wrong with it as yet.

    Attributes:
        value: dicts, lists, text, numbers, booleans, None.
        values: where each value begins; empty of data that was never a text.
        keys: where each key begins.
        problems: with their paths; what is at these paths (None, or nothing) is not to be judged again.
    """

    value: Any = None
    values: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    problems: list[tuple[Path, Issue]] = field(default_factory=list)

    def mark(self, path: Path, *, of_key: bool = False) -> Mark | tuple[None, None]:
        """Returns where something stands, or what is around it."""
        if of_key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
        return self.values.get(path, (None, None))

    def refuse(self, path: Path, mark: Mark | None, refusal: _Refusal) -> None:
        """Notes that something is wrong."""
        line, column = mark or (None, None)
        self.problems.append((path, Issue("", refusal.expected, refusal.got, refusal.hint, refusal.code, line, column)))


@dataclass(frozen=True, slots=True)
class _Refusal:
    expected: str
    got: str
    hint: str = ""
    code: str = "yaml"


@dataclass(slots=True, eq=False)
class _Node:
    """A node of a YAML text: a scalar's value or refusal, a list's parts, a mapping's keys and values in turn."""

    mark: Mark
    value: Any = None
    kind: str = "scalar"
    parts: list[_Node] = field(default_factory=list)
    refusal: _Refusal | None = None
    text: str = ""


class _Count:
    """How many values were met; more than a spec can need are refused."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.n = 0

    def add(self, depth: int) -> None:
        self.n += 1
        if depth > MAX_DEPTH:
            raise SpecValidationError(Issue("", f"at most {MAX_DEPTH} levels", f"level {depth}", code="too_deep"), self.file)
        if self.n > MAX_VALUES:
            raise SpecValidationError(Issue("", f"at most {MAX_VALUES:,} values", "more", code="too_large"), self.file)


def tree_of_data(data: Any, file: str = "") -> Tree:
    """Returns the tree of data that was parsed already, judged by the rules of JSON."""
    tree = Tree()
    tree.value = _plain(data, (), tree, _Count(file))
    return tree


def tree_of_json(text: str, file: str) -> Tree:
    """Returns the tree of a JSON text.

    Raises:
        SpecValidationError: it is not strict JSON.
    """
    tree = tree_of_data(parse_json(text, file, SpecValidationError), file)
    starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def marks(places: dict[Path, int]) -> dict[Path, Mark]:
        lines = {path: bisect_right(starts, at) for path, at in places.items()}
        return {path: (line, places[path] - starts[line - 1] + 1) for path, line in lines.items()}

    values, keys = json_marks(text)
    tree.values, tree.keys = marks(values), marks(keys)
    return tree


def tree_of_yaml(text: str, file: str) -> Tree:
    """Returns the tree of a YAML text.

    Raises:
        SpecValidationError: it is no YAML, or so large or deep that it is not read.
    """
    tree = Tree()
    tree.value = _data(_root(text, file), (), tree, _Count(file))
    return tree


def _plain(data: Any, path: Path, tree: Tree, count: _Count) -> Any:
    count.add(len(path))
    if data is None or isinstance(data, bool):
        return data
    if isinstance(data, int):
        if abs(data) < 10**MAX_NUMBER:
            return int(data)
        tree.refuse(path, None, _Refusal(f"a number of at most {MAX_NUMBER} digits", "a longer one", code="number"))
    elif isinstance(data, float):
        if math.isfinite(data):
            return float(data)
        tree.refuse(path, None, _Refusal("a finite number", quoted(data), code="number"))
    elif isinstance(data, str):
        if _is_text(data):
            return "".join(data)
        tree.refuse(path, None, _half(data))
    elif isinstance(data, list):
        return [_plain(part, (*path, index), tree, count) for index, part in enumerate(data)]
    elif isinstance(data, dict):
        found = {}
        for key, value in data.items():
            if isinstance(key, str) and _is_text(key):
                found["".join(key)] = _plain(value, (*path, "".join(key)), tree, count)
            else:
                tree.refuse(path, None, _half(key) if isinstance(key, str) else _Refusal("keys that are text", f"a {type(key).__name__}"))
        return found
    else:
        expected = "text, a number, `true`, `false`, `null`, a list or an object"
        tree.refuse(path, None, _Refusal(expected, f"a {type(data).__name__}", code="type"))
    return None


def _root(text: str, file: str) -> _Node:
    """Returns the one node of a text; iterative, so that no depth of the text can exhaust the stack."""

    def fail(mark: Mark, expected: str, got: str, hint: str = "", code: str = "yaml") -> SpecValidationError:
        return SpecValidationError(Issue("", expected, got, hint, code, *mark), file)

    top, n_aliases, n_documents = _Node((1, 1), kind="list"), 0, 0
    open_nodes, anchors = [top], dict[str, _Node]()
    for event, resolve in _events(text, file):
        mark = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            n_documents += 1
            if n_documents > 1:
                raise fail(mark, "one document", "a second one", "take out the `---` before it")
        elif isinstance(event, yaml.CollectionEndEvent):
            open_nodes.pop()
        elif isinstance(event, yaml.AliasEvent):
            n_aliases += 1
            if n_aliases > MAX_ALIASES:
                raise fail(mark, f"at most {MAX_ALIASES} aliases", "more", code="too_large")
            target = anchors.get(event.anchor)
            if target is None or target in open_nodes:
                why = "that no anchor before it has" if target is None else "inside what it stands for"
                hint = "text that begins with `*` is put in quotes" if target is None else ""
                raise fail(mark, "an alias of something before it", f"`*{event.anchor}` {why}", hint)
            open_nodes[-1].parts.append(_Node(mark, target.value, target.kind, target.parts, target.refusal, target.text))
        elif isinstance(event, yaml.NodeEvent):
            node = _Node(mark)
            if event.tag is not None:
                node.refusal = _Refusal("a value without a tag", quoted(event.tag.replace(_TAG, "!!")), "take the tag out")
            elif isinstance(event, yaml.ScalarEvent):
                node.text = event.value
                node.value = _scalar(event, resolve)
                if isinstance(node.value, _Refusal):
                    node.value, node.refusal = None, node.value
            if event.anchor is not None:
                if event.anchor in anchors:
                    raise fail(mark, "each anchor once", f"`&{event.anchor}` again")
                anchors[event.anchor] = node
            open_nodes[-1].parts.append(node)
            if isinstance(event, yaml.CollectionStartEvent):
                node.kind = "map" if isinstance(event, yaml.MappingStartEvent) else "list"
                open_nodes.append(node)
                if len(open_nodes) - 1 > MAX_DEPTH:
                    raise fail(mark, f"at most {MAX_DEPTH} levels", f"level {len(open_nodes) - 1}", code="too_deep")
    if not top.parts:
        raise fail((1, 1), "an extraction spec", "an empty text")
    return top.parts[0]


def _events(text: str, file: str) -> Iterator[tuple[Any, Callable[[str], str]]]:
    """Yields the events of a YAML text, each with what says how YAML 1.1 reads a plain scalar."""
    if (half := next((at for at, character in enumerate(text) if not _is_text(character)), None)) is not None:
        mark = (text.count("\n", 0, half) + 1, half - text.rfind("\n", 0, half))
        raise SpecValidationError(Issue("", "text", f"half a character in {text[half]!a}", "", "encoding", *mark), file)
    loader = None
    try:
        loader = yaml.SafeLoader(text)

        def resolve(value: str) -> str:
            return str(loader.resolve(yaml.ScalarNode, value, (True, False))).removeprefix(_TAG)

        while loader.check_event():
            yield loader.get_event(), resolve
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = (before.count("\n") + 1, error.position - before.rfind("\n"))
        got = f"the character {quoted(f'U+{error.character:04X}')}" if isinstance(error.character, int) else "another"
        raise SpecValidationError(Issue("", "printable characters", got, "", "encoding", *mark), file) from None
    except yaml.MarkedYAMLError as error:
        raise SpecValidationError(_syntax(text, error.problem or "", error.problem_mark or error.context_mark), file) from None
    except (yaml.YAMLError, ValueError, OverflowError):
        raise SpecValidationError(_syntax(text, "a number or an escape that is out of range", loader and loader.get_mark()), file) from None


def _syntax(text: str, why: str, mark: Any) -> Issue:
    line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
    lines = text.splitlines()
    rest = lines[line - 1][column - 1 :].strip() if line <= len(lines) else ""
    got = quoted(rest) if rest else "the end of the line" if line <= len(lines) else "the end of the text"
    hint = ""
    if "'\\t'" in why:
        got, hint = "a tab", "YAML is indented with spaces"
    elif why.endswith("but got '['"):
        hint = "in `{…}` and `[…]`, a selector is put in quotes"
    return Issue("", f"YAML ({' '.join(why.split())})" if why else "YAML", got, hint, "yaml", line, column)


def _scalar(event: Any, resolve: Callable[[str], str]) -> Any:
    """Returns a scalar's value, or its refusal."""
    text = event.value
    if not event.implicit[0]:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return text if _is_text(text) else _half(text)
    if not text:
        return _Refusal("a value", "nothing", "leave the key out for its default, or write `null` inside `probe_args`", "type")
    if text in _WORDS:
        return _WORDS[text]
    if number := _JSON_NUMBER.fullmatch(text):
        if len(text) > MAX_NUMBER:
            return _Refusal(f"a number of at most {MAX_NUMBER} digits", f"{len(text)} characters", code="number")
        value = float(text) if number[2] or number[3] else int(text)
        return value if math.isfinite(value) else _Refusal("a finite number", quoted(text), code="number")
    kind = "int" if _OTHER_NUMBER.fullmatch(text) else resolve(text)
    if kind == "str":
        return text
    in_quotes = f'`"{text}"`'
    match kind:
        case "bool":
            word = "true" if text.lower() in ("yes", "on", "true") else "false"
            return _Refusal("`true`, `false` or text in quotes", _either(text), f"write `{word}` or {in_quotes}", "ambiguous")
        case "null":
            return _Refusal("`null` or text in quotes", _either(text), f"write `null` or {in_quotes}", "ambiguous")
        case "timestamp":
            return _Refusal("text in quotes", f"{quoted(text)} (a date to some readers of YAML)", f"write {in_quotes}", "ambiguous")
        case "merge":
            return _Refusal("keys that are written out", f"{quoted(text)} (a merge)", "write them where they are wanted", "ambiguous")
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        return _Refusal("a finite number", quoted(text), code="number")
    return _Refusal("a number as JSON writes it, or text in quotes", _either(text), f"as text it is {in_quotes}", "ambiguous")


def _either(text: str) -> str:
    return f"{quoted(text)} (readers of YAML differ on it)"


def _data(node: _Node, path: Path, tree: Tree, count: _Count) -> Any:
    """Returns a node as data, and notes the places of everything in it."""
    count.add(len(path))
    tree.values[path] = node.mark
    if node.refusal is not None:
        tree.refuse(path, node.mark, node.refusal)
        return None
    if node.kind == "list":
        return [_data(part, (*path, index), tree, count) for index, part in enumerate(node.parts)]
    if node.kind != "map":
        return node.value
    found: dict[str, Any] = {}
    for key, value in _pairs(node.parts):
        here = (*path, key.text or "?")
        if key.refusal is not None:
            is_word = key.refusal.code == "ambiguous" and key.text != "<<"
            in_quotes = _Refusal("a key in quotes", key.refusal.got, f'write `"{key.text}"`', "ambiguous")
            tree.refuse(here, key.mark, in_quotes if is_word else key.refusal)
        elif not isinstance(key.value, str):
            got = quoted(key.text) if key.kind == "scalar" else f"a {'list' if key.kind == 'list' else 'mapping'}"
            hint = f'write `"{key.text}"`' if key.kind == "scalar" else ""
            tree.refuse(here, key.mark, _Refusal("a key that is text", got, hint))
        elif key.value in found:
            tree.refuse((*path, key.value), key.mark, _Refusal("each key once", f"{quoted(key.value)} again", code="duplicate_key"))
        else:
            tree.keys[*path, key.value] = key.mark
            found[key.value] = _data(value, (*path, key.value), tree, count)
    return found


def _pairs(parts: list[_Node]) -> Iterable[tuple[_Node, _Node]]:
    return zip(parts[::2], parts[1::2], strict=True)


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _half(text: str) -> _Refusal:
    return _Refusal("text", f"half a character in {text[:40]!a}", code="encoding")
