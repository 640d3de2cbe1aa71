"""Tables below a data root: what a ref reads, what it may not reach, and where the root is."""

import hashlib
import json

import pytest

from causalab_mini.data.table import find_data_root, open_table, problem_of_ref, shipped_documents
from causalab_mini.errors import DataError

pytestmark = pytest.mark.plain

ROWS = [{"input": "a", "split": "train"}, {"input": "é\n", "split": "test"}, {"input": "c", "split": "train"}]
TEXTS = {
    ".json": json.dumps(ROWS),
    ".jsonl": "\n".join(map(json.dumps, ROWS)) + "\n\n",
    ".csv": 'input,split\r\na,train\r\n"é\n",test\r\nc,train\r\n',
}


def refusal(ref, root):
    with pytest.raises(DataError) as caught:
        open_table(ref, root)
    return caught.value


@pytest.mark.parametrize(("suffix", "text"), TEXTS.items())
def test_a_ref_reads_the_table_of_its_name(tmp_path, suffix, text):
    file = tmp_path / "folder" / f"rows{suffix}"
    file.parent.mkdir()
    file.write_bytes(text.encode())
    table = open_table("folder/rows", tmp_path)
    assert list(table.rows) == ROWS
    assert table.path == file
    assert table.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert table.columns == ("input", "split")
    assert table.splits == ("test", "train")


@pytest.mark.parametrize(("suffix", "text"), TEXTS.items())
def test_a_split_keeps_its_rows_in_their_order(tmp_path, suffix, text):
    (tmp_path / f"rows{suffix}").write_bytes(text.encode())
    assert [row["input"] for row in open_table("rows#train", tmp_path).rows] == ["a", "c"]


def test_parquet_is_read_and_what_is_no_parquet_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert list(open_table("rows", tmp_path).rows) == ROWS
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but no more")
    assert "expected a parquet table, got " in refusal("broken", tmp_path).text()


def test_the_split_of_a_ref_may_be_empty_of_rows_and_is_then_refused(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    assert refusal("rows#tran", tmp_path).text() == (
        f"error: {tmp_path}/rows.json: rows#tran: expected rows whose `split` is `tran`, got splits `test`, `train`\n"
        "hint: did you mean `train`?"
    )
    (tmp_path / "plain.json").write_text('[{"input": "a"}]')
    assert refusal("plain#train", tmp_path).problems[0].got == "a table without a `split` column"


@pytest.mark.parametrize(
    "ref",
    ["", "/rows", "../rows", "a/../../rows", "./rows", "a//rows", "rows/", "a\\rows", "rows#", "#train", "rows#a#b", "ro\nws", "r" * 300],
)
def test_a_ref_that_is_no_path_below_the_root_is_refused(tmp_path, ref):
    root = tmp_path / "root"
    root.mkdir()
    for file in (tmp_path / "rows.json", root / "rows.json"):
        file.write_text(json.dumps(ROWS))
    assert refusal(ref, root).problems[0].code == "ref"


def test_a_link_out_of_the_root_is_refused_and_one_inside_is_read(tmp_path):
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    (root / "out.json").symlink_to(tmp_path / "rows.json")
    (root / "folder").symlink_to(tmp_path)
    (root / "a" / "rows.json").write_text(json.dumps(ROWS))
    (root / "b").symlink_to(root / "a")
    for ref in ("out", "folder/rows"):
        assert refusal(ref, root).problems[0].got == f"a link to `{tmp_path / 'rows.json'}`"
    assert len(open_table("b/rows", root).rows) == 3


def test_a_root_that_is_a_link_itself_is_followed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.json").write_text(json.dumps(ROWS))
    (tmp_path / "linked").symlink_to(tmp_path / "data")
    assert len(open_table("rows", tmp_path / "linked").rows) == 3


def test_two_tables_of_one_name_are_ambiguous(tmp_path):
    for suffix in (".json", ".csv"):
        (tmp_path / f"rows{suffix}").write_text(TEXTS[suffix])
    assert refusal("rows", tmp_path).text() == (
        "error: expected one table of the name `rows`, got `rows.json`, `rows.csv`\nhint: rename or remove one of them"
    )


def test_a_table_that_is_not_there_names_the_nearest(tmp_path):
    (tmp_path / "weekdays").mkdir()
    (tmp_path / "weekdays" / "train.json").write_text("[{}]")
    assert refusal("weekday/train", tmp_path).text() == (
        "error: expected a table `weekday/train.json` (or .jsonl, .csv, .parquet), got no such file\nhint: did you mean `weekdays/train`?"
    )
    assert refusal("zzz", tmp_path).problems[0].hint == f"the data root is `{tmp_path}`"


BROKEN = {
    "a table is a list": (".json", '{"input": "a"}', "{file}: expected a list of objects (rows), got an object"),
    "a row is an object": (".json", '[{}, "a"]', "{file}: [1]: expected an object (a row), got a string"),
    "a table has a row": (".json", "[]", "{file}: expected at least one row, got an empty table"),
    "a JSON table is strict": (".json", '[{"a": 1,\n "a": 2}]', "{file}:2:2: expected each key once, got `a` again"),
    "a line is an object": (".jsonl", "{}\n[1]\n", "{file}: [1]: expected an object (a row), got a list"),
    "a line of JSON is strict": (".jsonl", '{"a": 1}\n\n{"a": NaN}', "{file}:3:7: expected a finite number, got `NaN`"),
    "a line that is cut off": (".jsonl", '{"a": 1}\n{"a"', "{file}:2:5: expected JSON (expecting ':' delimiter), got the end of the text"),
    "a CSV row is as long as the header": (".csv", "a,b\n1,2\n3\n", "{file}:3:1: expected 2 cells, got a row of another length"),
    "a CSV row is no longer than the header": (".csv", "a,b\n1,2,3\n", "{file}:2:1: expected 2 cells, got a row of another length"),
    "a CSV column has one name": (".csv", "a,a\n1,2\n", "{file}:1:1: expected each column once, got `a`, `a`"),
    "a CSV line is counted through quotes": (".csv", 'a,b\n1,"2\n2"\n3\n', "{file}:4:1: expected 2 cells, got a row of another length"),
    "a CSV quote is closed": (".csv", 'a,b\n1,"2\n', "{file}:2:1: expected CSV, got unexpected end of data"),
    "a CSV table has a row": (".csv", "a,b\n", "{file}: expected at least one row, got an empty table"),
}


@pytest.mark.parametrize(("suffix", "text", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_table_is_refused_where_it_breaks(tmp_path, suffix, text, message):
    file = tmp_path / f"rows{suffix}"
    file.write_text(text)
    assert refusal("rows", tmp_path).text().startswith("error: " + message.format(file=file))


def test_the_data_root_is_searched_in_order(tmp_path, monkeypatch):
    elsewhere, project = tmp_path / "elsewhere", tmp_path / "project"
    document = project / "documents" / "deep" / "a.json"
    for folder in (elsewhere, document.parent, tmp_path / "work" / "documents" / "data"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    order = [project / "data", project / "documents" / "data", document.parent / "data"]
    in_working_directory = tmp_path / "work" / "documents" / "data"
    assert find_data_root(None, document) == in_working_directory
    for folder in order:
        folder.mkdir()
        assert find_data_root(None, document) == folder
    assert find_data_root(elsewhere, document) == elsewhere
    assert find_data_root(None, None) == in_working_directory
    monkeypatch.chdir(elsewhere)
    assert find_data_root(None, None) == (shipped_documents() / "data").resolve()
    assert (shipped_documents() / "data" / "successor" / "pairs.json").is_file()


def test_a_data_root_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="error: --data-root: expected a folder, got"):
        find_data_root(tmp_path / "nothing", None)


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("folder/mine.csv", "the table of that file is `folder/mine`, below the data root"),
        ("/home/me/mine.csv", "the table of that file is `mine` with `--data-root /home/me`"),
    ],
)
def test_a_file_in_place_of_a_ref_is_told_what_to_say(ref, hint):
    assert problem_of_ref(ref).hint == hint
