"""Whatever is done to a document, it is loaded or refused in words; nothing else ever comes out."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_errors import BASE, TRAINED

from causalab_mini.data.strict_json import parse_json
from causalab_mini.errors import DocumentError
from causalab_mini.plan.load import Document, load_raw

pytestmark = pytest.mark.plain

ROOT = Path(__file__).resolve().parent.parent / "documents"
DOCUMENTS = [
    BASE,
    TRAINED,
    *(json.loads(file.read_text(encoding="utf-8")) for file in sorted(ROOT.rglob("*.json")) if "data" not in file.parts),
]
WORDS = [
    "base",
    "original",
    "all",
    "sweep",
    "as",
    "range",
    "kind",
    "ref",
    "layers",
    "prompt[-1]",
    "bundled:",
    "$schema",
    "..",
    "\x00",
    "\u2028",
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**300, -(2**63) - 1, 2**64, 1e308, -0.0, 1.0, 0.5, 5e-324]),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


def places(value, path=()):
    """Yields the path of everything in a document but itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def at(document, path):
    for part in path:
        document = document[part]
    return document


@st.composite
def mutated(draw):
    """Returns a document of which one to four things were taken out, renamed, replaced, wrapped or added."""
    document = json.loads(json.dumps(draw(st.sampled_from(DOCUMENTS))))
    for _ in range(draw(st.integers(1, 4))):
        found = list(places(document))
        if not found:
            break
        *parents, key = draw(st.sampled_from(found))
        here = at(document, parents)
        old = here[key]
        match draw(st.sampled_from(["delete", "replace", "add", "rename", "move", "wrap", "sweep", "empty"])):
            case "delete":
                del here[key]
            case "replace":
                here[key] = draw(values)
            case "add":
                if isinstance(old, dict):
                    old[draw(st.sampled_from(WORDS) | st.text(max_size=5))] = draw(values)
                elif isinstance(old, list):
                    old.append(draw(values))
            case "rename":
                if isinstance(here, dict):
                    here[f"{key}{draw(st.text(max_size=2))}"] = here.pop(key)
            case "move":
                here[key] = json.loads(json.dumps(at(document, draw(st.sampled_from(found)))))
            case "wrap":
                here[key] = draw(st.sampled_from([[old], {"a": old}, {"index": old}, {"sweep": old}]))
            case "sweep":
                here[key] = {"sweep": draw(st.lists(st.just(old) | values, max_size=3))} | draw(
                    st.sampled_from([{}, {"as": "x"}, {"as": 1}])
                )
            case "empty":
                here[key] = type(old)()
    return document


def judged(document):
    """Returns the problems of a document, each of them checked; none where it is valid."""
    try:
        loaded = load_raw(document)
    except DocumentError as refusal:
        error = refusal
    else:
        assert isinstance(loaded, Document)
        assert loaded.points
        assert len(loaded.digest) == 64
        return ()
    assert error.problems
    for problem in error.problems:
        assert problem.expected
        assert problem.got
        assert problem.code
        assert problem.text().count("\n") == bool(problem.hint)
        json.dumps(problem.as_data(), allow_nan=False).encode()
    return error.problems


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_documents_are_valid(document):
    assert judged(document) == ()


@given(mutated())
@settings(max_examples=300, deadline=None)
def test_a_mutated_document_is_loaded_or_refused_in_words(document):
    judged(document)


@given(values)
@settings(max_examples=100, deadline=None)
def test_any_json_is_loaded_or_refused_in_words(value):
    assert judged(value)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_an_unknown_key_is_never_accepted(data):
    document = json.loads(json.dumps(data.draw(st.sampled_from(DOCUMENTS))))
    objects = [(), *(path for path in places(document) if isinstance(at(document, path), dict))]
    at(document, data.draw(st.sampled_from(objects)))["unknown_key"] = data.draw(values)
    assert judged(document)


@given(mutated())
@settings(max_examples=50, deadline=None)
def test_a_document_means_the_same_whatever_the_order_of_its_named_things(document):
    if judged(document):
        return
    turned = {**document, "sites": dict(reversed(document.get("sites", {}).items()))}
    if "sweep" not in json.dumps(document):
        assert load_raw(turned).digest == load_raw(document).digest


@given(st.text(alphabet='{}[]:,"\\0123eE+-.nulltrueNaIfy \n\ud800é', max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_json_or_refused_with_its_place(text):
    try:
        value = parse_json(text, "a.json", DocumentError)
    except DocumentError as refusal:
        (problem,) = refusal.problems
    else:
        json.dumps(value, allow_nan=False)
        assert value == json.loads(text)
        return
    lines = text.split("\n")
    assert problem.expected
    assert problem.got
    assert 1 <= problem.line <= len(lines)
    assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
