"""JSON files are read strictly: what is refused, with its line and column."""

import json

import pytest

from causalab_mini.data import strict_json
from causalab_mini.errors import DocumentError

pytestmark = pytest.mark.plain

REFUSED = {
    "a repeated key": ('{"a": 1,\n "b": 2,\n "a": 3}', 3, 2, "each key once", "`a` again"),
    "a repeated key inside": ('{"a": {"b": 1, "c": [{}], "b": 1}}', 1, 27, "each key once", "`b` again"),
    "a key repeated in another spelling": ('{"a": 1, "\\u0061": 1}', 1, 10, "each key once", "`a` again"),
    "NaN": ('{"a":\n  NaN}', 2, 3, "a finite number", "`NaN`"),
    "Infinity": ('{"a": Infinity}', 1, 7, "a finite number", "`Infinity`"),
    "minus Infinity": ('{"a": [-Infinity]}', 1, 8, "a finite number", "`-Infinity`"),
    "a number that is infinite": ('{"a": 1e999}', 1, 7, "a finite number", "`1e999`"),
    "a negative number that is infinite": ("[1,\n\n-1E+400]", 3, 1, "a finite number", "`-1E+400`"),
    "a number of very many digits": ("[" + "9" * 5000 + "]", 1, 2, "a number of at most 400 digits", "5000 digits"),
    "text after the document": ("{}\n{}", 2, 1, "the end of the text", "`{}`"),
    "half a character as an escape": ('{"a": "x\\ud83d"}', 1, 7, "text", "half a character in 'x\\ud83d'"),
    "half a character in a key": ('{"\\udc00": 1}', 1, 2, "text", "half a character in '\\udc00'"),
    "more than 100 levels": ("[" * 101 + "]" * 101, 1, 101, "at most 100 levels", "level 101"),
    "more than 100 levels of objects": ('{"a":' * 101 + "1" + "}" * 101, 1, 501, "at most 100 levels", "level 101"),
    "a comma at the end": (
        '{"a": 1,\n}',
        2,
        1,
        "JSON (something after the comma)",
        "`}`",
    ),
    "a single quote": ("{'a': 1}", 1, 2, "JSON (expecting property name enclosed in double quotes)", "`'a': 1}`"),
    "a comment": ("{} // here", 1, 4, "the end of the text", "`// here`"),
    "a line end in a string": ('{"a": "x\ny"}', 1, 9, "JSON (invalid control character at)", "``"),
    "a document that is cut off": ('{"a": [1, 2', 1, 12, "JSON (expecting ',' delimiter)", "the end of the text"),
    "an empty file": ("", 1, 1, "JSON (expecting value)", "the end of the text"),
    "an open string": ('{"a": "b', 1, 7, "JSON (unterminated string starting at)", '`"b`'),
}


@pytest.mark.parametrize(("text", "line", "column", "expected", "got"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_strict_json_is_refused_with_its_line_and_column(tmp_path, text, line, column, expected, got):
    file = tmp_path / "a.json"
    file.write_bytes(text.encode())
    with pytest.raises(DocumentError) as caught:
        strict_json.read_json(file, DocumentError)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (line, column)
    assert problem.expected == expected
    assert problem.got == got
    assert caught.value.text().startswith(f"error: {file}:{line}:{column}: expected ")


BYTES = {
    "a byte that is no UTF-8": (b'{"a":\n "\xff"}', 2, 3, "UTF-8", "the byte `0xff`"),
    "Latin-1": ('{"a": "é"}'.encode("latin-1"), 1, 8, "UTF-8", "the byte `0xe9`"),
    "half a character as bytes": (b'["\xed\xa0\xbd"]', 1, 3, "UTF-8", "the byte `0xed`"),
    "a byte order mark": (b"\xef\xbb\xbf{}", 1, 1, "UTF-8 without a byte order mark", "a byte order mark"),
    "UTF-16": ("{}".encode("utf-16"), 1, 1, "UTF-8", "the byte `0xff`"),
}


@pytest.mark.parametrize(("data", "line", "column", "expected", "got"), BYTES.values(), ids=BYTES.keys())
def test_what_is_not_utf_8_is_refused_with_its_line_and_column(tmp_path, data, line, column, expected, got):
    file = tmp_path / "a.json"
    file.write_bytes(data)
    with pytest.raises(DocumentError) as caught:
        strict_json.read_json(file, DocumentError)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.expected, problem.got) == (line, column, expected, got)


def test_a_file_above_the_limit_is_refused_with_its_size(tmp_path):
    file = tmp_path / "a.json"
    file.write_text("[" + " " * (strict_json.MAX_BYTES - 2) + "]")
    assert strict_json.read_json(file, DocumentError) == []
    file.write_text("[" + " " * (strict_json.MAX_BYTES - 1) + "]")
    with pytest.raises(DocumentError, match="expected at most 16,777,216 bytes, got 16,777,217 bytes"):
        strict_json.read_json(file, DocumentError)


@pytest.mark.parametrize(("make", "got"), [(lambda file: None, "no such file"), (lambda file: file.mkdir(), "is a directory")])
def test_a_file_that_can_not_be_read_is_refused(tmp_path, make, got):
    make(tmp_path / "a.json")
    with pytest.raises(DocumentError) as caught:
        strict_json.read_json(tmp_path / "a.json", DocumentError)
    assert caught.value.problems[0].got == got


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]},
        {"NaN": "Infinity", "text": 'a "NaN" \\ , "a": {[', "é": "日本語 👩‍🚀"},
        [1e308, -0.5, 10**300, True, None, ""],
        json.loads("[" * 100 + "]" * 100),
        {"key": "\ud83d\ude00"},
    ],
)
def test_strict_json_is_read_as_it_is(tmp_path, value):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(value))
    assert strict_json.read_json(file, DocumentError) == json.loads(json.dumps(value))
