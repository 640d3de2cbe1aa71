"""Sinks: every event that was put stands in exactly one place, whatever the disk, the server or the other processes do."""

import copy
import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causalab_mini.errors import UsageError
from causalab_mini.probing.sinks import EventKind, NdjsonSink, Redacting, Sinks, fan_out

pytestmark = pytest.mark.plain

ROOT = Path(__file__).resolve().parent.parent
LONG = 60.0


def event(number, kind="result", **more):
    return {"event": kind, "time": "2026-01-01T00:00:00+00:00", "request": "r", "point": "p", "number": number, **more}


def lines(path):
    """Returns the events of a file whose every line is whole."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def numbers(events):
    return [entry["number"] for entry in events]


def rotated(path, most=10_000):
    """Returns the files of a sink, oldest first."""
    older = [path.with_name(f"{path.stem}.{n}{path.suffix}") for n in range(most, 0, -1)]
    return [file for file in [*older, path] if file.exists()]


def python(code, *arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)


def finish(process):
    _, said = process.communicate(timeout=LONG)
    assert (process.returncode, said) == (0, "")


# ndjson


def test_every_event_is_one_line(tmp_path):
    sink = NdjsonSink(tmp_path / "events.ndjson")
    events = [event(0), event(1, text="two\nlines\r\u2028\x85 und \x00"), event(2, value=[1, None, {"a": (True, 0.5)}])]
    for one in events:
        sink.put(one)
    sink.close()
    assert lines(sink.path) == json.loads(json.dumps(events))
    assert sink.as_data() == {"kind": "ndjson", "path": str(tmp_path / "events.ndjson"), "n_written": 3, "n_failed": 0}


def test_what_json_lacks_becomes_null_and_what_utf_8_lacks_is_escaped(tmp_path):
    sink = NdjsonSink(tmp_path / "events.ndjson")
    given = event(0, value={"a": math.nan, "b": [math.inf, (-math.inf, 1.5)]}, text="\ud800é")
    sink.put(given)
    sink.close()
    assert lines(sink.path) == [event(0, value={"a": None, "b": [None, [None, 1.5]]}, text="\ud800é")]
    assert math.isnan(given["value"]["a"])


def test_what_is_no_json_is_counted_and_never_raises(tmp_path):
    class Bad(dict):
        def items(self):
            raise RuntimeError("no")

    ring = event(2)
    ring["value"] = [ring]
    deep = []
    for _ in range(100_000):
        deep = [deep]
    sink = NdjsonSink(tmp_path / "events.ndjson")
    for one in (event(0, value=object()), event(1, value={1, 2}), ring, event(3, value=deep), Bad(a=math.nan)):
        sink.put(one)
    sink.put(event(4))
    sink.close()
    assert (sink.n_written, sink.n_failed) == (1, 5)
    assert numbers(lines(sink.path)) == [4]
    while deep:
        deep = deep.pop()


def test_a_file_that_is_full_is_renamed_and_the_oldest_deleted(tmp_path):
    sink = NdjsonSink(tmp_path / "events.ndjson", max_bytes=200, keep=2)
    for number in range(11):
        sink.put(event(number))
    sink.close()
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["events.1.ndjson", "events.2.ndjson", "events.ndjson"]
    assert [numbers(lines(file)) for file in rotated(sink.path)] == [[6, 7], [8, 9], [10]]
    assert (sink.n_written, sink.n_failed) == (11, 0)


def test_a_line_longer_than_a_file_has_one_of_its_own(tmp_path):
    sink = NdjsonSink(tmp_path / "events", max_bytes=200, keep=9)
    for number in range(4):
        sink.put(event(number, text="x" * 500 * (number % 2)))
    sink.close()
    assert [numbers(lines(file)) for file in rotated(sink.path)] == [[0], [1], [2], [3]]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 120), max_size=30), max_bytes=st.integers(1, 400))
def test_files_one_after_the_other_hold_every_event_in_order(tmp_path_factory, sizes, max_bytes):
    path = tmp_path_factory.mktemp("sink") / "a.b.ndjson"
    sink = NdjsonSink(path, max_bytes=max_bytes, keep=40)
    for number, size in enumerate(sizes):
        sink.put(event(number, text="é" * size))
    sink.close()
    files = [lines(file) for file in rotated(path, 50)]
    assert [number for file in files for number in numbers(file)] == list(range(len(sizes)))
    for file, entries in zip(rotated(path, 50), files, strict=True):
        assert file.stat().st_size <= max_bytes or len(entries) == 1


def test_threads_and_sinks_that_share_a_file_lose_nothing_while_it_is_rotated(tmp_path):
    path = tmp_path / "events.ndjson"
    sinks = [NdjsonSink(path, max_bytes=3000, keep=1000) for _ in range(2)]

    def work(sink, writer):
        for number in range(100):
            sink.put(event(number, writer=writer, text="x" * (number % 50)))

    threads = [threading.Thread(target=work, args=(sink, f"{index}.{n}")) for index, sink in enumerate(sinks) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.close()
    assert [(sink.n_written, sink.n_failed) for sink in sinks] == [(400, 0), (400, 0)]
    files = rotated(path)
    assert all(file.stat().st_size <= 3000 for file in files)
    assert_all_in_order([entry for file in files for entry in lines(file)], n_writers=8, n_each=100)


def assert_all_in_order(entries, n_writers, n_each):
    by_writer = {}
    for entry in entries:
        by_writer.setdefault(entry["writer"], []).append(entry["number"])
    assert len(by_writer) == n_writers
    assert all(found == list(range(n_each)) for found in by_writer.values())


WRITER = """
import sys
from causalab_mini.probing.sinks import NdjsonSink
path, writer, n = sys.argv[1:]
sink = NdjsonSink(path, max_bytes=4000, keep=1000)
for number in range(int(n)):
    sink.put({"event": "result", "writer": writer, "number": number, "text": "x" * (number % 97)})
sink.close()
assert (sink.n_written, sink.n_failed) == (int(n), 0), sink.as_data()
"""


def test_processes_that_share_a_file_lose_nothing_while_it_is_rotated(tmp_path):
    path = tmp_path / "events.ndjson"
    for process in [python(WRITER, path, writer, 300) for writer in range(4)]:
        finish(process)
    files = rotated(path)
    assert len(files) > 20
    assert all(file.stat().st_size <= 4000 for file in files)
    assert_all_in_order([entry for file in files for entry in lines(file)], n_writers=4, n_each=300)


FORKED = """
import os, sys
from causalab_mini.probing.sinks import NdjsonSink
sink = NdjsonSink(sys.argv[1], max_bytes=4000, keep=1000)
sink.put({"event": "result", "writer": "before", "number": 0})
children = []
for writer in ("a", "b", "c"):
    if not (child := os.fork()):
        for number in range(200):
            sink.put({"event": "result", "writer": writer, "number": number})
        os._exit((sink.n_written, sink.n_failed) != (200, 0))
    children.append(child)
for number in range(200):
    sink.put({"event": "result", "writer": "parent", "number": number})
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
assert sink.n_failed == 0
"""


def test_a_forked_process_opens_the_file_for_itself(tmp_path):
    finish(python(FORKED, tmp_path / "events.ndjson"))
    entries = [entry for file in rotated(tmp_path / "events.ndjson") for entry in lines(file)]
    assert Counter(entry["writer"] for entry in entries) == {"before": 1, "a": 200, "b": 200, "c": 200, "parent": 200}
    assert_all_in_order([entry for entry in entries if entry["writer"] != "before"], n_writers=4, n_each=200)


FORKED_WHILE_HELD = """
import os, select, sys
from causalab_mini.probing.sinks import NdjsonSink
sink = NdjsonSink(sys.argv[1])
end, start = os.pipe()
sink._lock.acquire()
sink._hold()
if not (child := os.fork()):
    sink.put({"event": "result", "number": 0})
    os.write(start, b"x")
    os._exit(0)
assert select.select([end], [], [], 0.1)[0] == []
sink._free()
assert select.select([end], [], [], 60)[0] == [end]
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_process_that_is_forked_in_the_midst_of_a_write_waits_for_its_end(tmp_path):
    finish(python(FORKED_WHILE_HELD, tmp_path / "events.ndjson"))
    assert numbers(lines(tmp_path / "events.ndjson")) == [0]


KILLED_IN_A_WRITE = """
import os, signal, sys
from causalab_mini.probing.sinks import NdjsonSink
sink = NdjsonSink(sys.argv[1])
sink.put({"event": "result", "number": 0})
whole = os.write
def half(handle, data):
    whole(handle, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = half
sink.put({"event": "result", "number": 1, "text": "never whole"})
"""


@pytest.mark.parametrize("is_open_before", [True, False])
def test_a_line_torn_by_a_kill_is_ended_before_the_next(tmp_path, is_open_before):
    path = tmp_path / "events.ndjson"
    sink = NdjsonSink(path) if is_open_before else None
    process = python(KILLED_IN_A_WRITE, path)
    process.communicate(timeout=LONG)
    assert process.returncode == -signal.SIGKILL
    sink = sink or NdjsonSink(path)
    sink.put(event(2))
    sink.put(event(3))
    sink.close()
    first, torn, *rest, end = path.read_bytes().split(b"\n")
    assert json.loads(first)["number"] == 0
    assert torn.startswith(b'{"event":"result","num')
    assert not torn.endswith(b"}")
    assert [json.loads(line)["number"] for line in rest] == [2, 3]
    assert end == b""


def test_a_torn_line_is_ended_before_its_file_is_renamed(tmp_path):
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"torn": ' + b"1" * 190)
    sink = NdjsonSink(path, max_bytes=200)
    sink.put(event(0))
    sink.close()
    assert (tmp_path / "events.1.ndjson").read_bytes() == b'{"torn": ' + b"1" * 190 + b"\n"
    assert numbers(lines(path)) == [0]


ENDLESS = """
import itertools, sys
from causalab_mini.probing.sinks import NdjsonSink
sink = NdjsonSink(sys.argv[1])
for number in itertools.count():
    sink.put({"event": "result", "number": number, "text": "x" * 100_000})
"""


def test_a_kill_at_any_moment_costs_one_line_at_most(tmp_path):
    path = tmp_path / "events.ndjson"
    process = python(ENDLESS, path)
    while not (path.exists() and path.stat().st_size > 3_000_000):
        assert process.poll() is None
    process.kill()
    process.communicate(timeout=LONG)
    sink = NdjsonSink(path)
    sink.put(event("last"))
    sink.close()
    found = path.read_bytes().split(b"\n")[:-1]
    assert json.loads(found[-1]) == event("last")
    whole = [line for line in found[:-1] if line.endswith(b'x"}')]
    assert len(found) - 2 <= len(whole) <= len(found) - 1
    assert [json.loads(line)["number"] for line in whole] == list(range(len(whole)))


@pytest.mark.parametrize("n_bytes", [0, 1, 50])
def test_a_line_that_finds_no_room_leaves_nothing_behind(tmp_path, monkeypatch, n_bytes):
    sink = NdjsonSink(tmp_path / "events.ndjson")
    whole = os.write
    sink.put(event(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: whole(handle, data[:n_bytes]))
        sink.put(event(1))
        sink.put(event(2))
    assert numbers(lines(sink.path)) == [0]
    assert sink.as_data() | {"path": ""} == {
        "kind": "ndjson",
        "path": "",
        "n_written": 1,
        "n_failed": 2,
        "error": "no space left on device",
    }
    sink.put(event(3))
    sink.close()
    assert numbers(lines(sink.path)) == [0, 3]


def test_a_write_that_fails_after_some_bytes_leaves_nothing_behind(tmp_path, monkeypatch):
    sink = NdjsonSink(tmp_path / "events.ndjson")
    whole = os.write

    def failing(handle, data):
        whole(handle, data[:9])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        sink.put(event(0))
    sink.put(event(1))
    sink.close()
    assert numbers(lines(sink.path)) == [1]
    assert (sink.n_written, sink.n_failed) == (1, 1)


def test_a_file_that_can_not_be_opened_is_refused_before_anything_runs(tmp_path, monkeypatch):
    with pytest.raises(UsageError) as raised:
        NdjsonSink(tmp_path / "none" / "events.ndjson")
    assert raised.value.text() == (
        f"error: path: expected a file that can be appended to, got `{tmp_path}/none/events.ndjson` (no such file or directory)\n"
        f"hint: make the folder `{tmp_path}/none` first"
    )
    with pytest.raises(UsageError, match="is a directory"):
        NdjsonSink(tmp_path)
    with pytest.raises(UsageError, match="no regular file"):
        NdjsonSink("/dev/null")

    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(UsageError, match="read-only file system"):
        NdjsonSink(tmp_path / "events.ndjson")


@pytest.mark.parametrize("arguments", [{"max_bytes": 0}, {"keep": 0}, {"max_bytes": -1}])
def test_sizes_out_of_range_are_refused(tmp_path, arguments):
    with pytest.raises(UsageError, match="at least 1"):
        NdjsonSink(tmp_path / "events.ndjson", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_someone_takes_away_is_made_anew(tmp_path):
    sink = NdjsonSink(tmp_path / "events.ndjson")
    sink.put(event(0))
    sink.path.rename(tmp_path / "taken")
    sink.put(event(1))
    sink.path.unlink()
    sink.path.mkdir()
    sink.put(event(2))
    sink.path.rmdir()
    sink.put(event(3))
    sink.close()
    assert numbers(lines(tmp_path / "taken")) == [0]
    assert numbers(lines(sink.path)) == [3]
    assert (sink.n_written, sink.n_failed) == (3, 1)


def test_a_file_that_can_not_be_renamed_grows_on(tmp_path):
    (tmp_path / "events.1.ndjson" / "in the way").mkdir(parents=True)
    sink = NdjsonSink(tmp_path / "events.ndjson", max_bytes=100, keep=1)
    for number in range(4):
        sink.put(event(number))
    sink.close()
    assert numbers(lines(sink.path)) == [0, 1, 2, 3]
    assert sink.error.startswith("can't be rotated: ")


def test_an_event_after_the_close_is_written_and_the_file_let_go(tmp_path):
    sink = NdjsonSink(tmp_path / "events.ndjson")
    sink.close(0)
    sink.close(0)
    sink.put(event(0))
    assert numbers(lines(sink.path)) == [0]
    assert sink._handle is None


# redaction


class Kept:
    def __init__(self, wants_activations=False, fails=False):
        self.wants_activations, self.fails = wants_activations, fails
        self.events, self.limits = [], []

    def put(self, event):
        if self.fails:
            raise RuntimeError("no room")
        self.events.append(event)

    def close(self, timeout_s):
        if self.fails:
            raise RuntimeError("no end")
        self.limits.append(timeout_s)


def redacted(event, *keys):
    kept = Kept()
    Redacting(kept, keys).put(event)
    return kept.events[0]


def test_values_of_keys_are_replaced_at_any_depth_and_of_paths_where_they_lead():
    given = {"event": "result", "text": "a", "value": {"Text": ["b"], "texts": "c", "rows": [{"text": None, "id": 1}], "id": {"id": 2}}}
    before = copy.deepcopy(given)
    assert redacted(given, "TEXT") == {
        "event": "result",
        "text": "[redacted]",
        "value": {"Text": "[redacted]", "texts": "c", "rows": [{"text": "[redacted]", "id": 1}], "id": {"id": 2}},
    }
    assert redacted(given, "value.text", "value.rows.ID", "id.id") == {
        "event": "result",
        "text": "a",
        "value": {"Text": "[redacted]", "texts": "c", "rows": [{"text": None, "id": "[redacted]"}], "id": {"id": 2}},
    }
    assert redacted(given) == given == before


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "[redacted]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "A", "b", "ß", "SS", "a.b", "c"]), inner, max_size=4),
    max_leaves=20,
)


def paths(value, above=()):
    """Yields every path of keys with the value below it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*above, key), inner
            yield from paths(inner, (*above, key))
    if isinstance(value, list):
        for inner in value:
            yield from paths(inner, above)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("aAbc"), VALUES), st.sets(st.sampled_from(["a", "B", "c", "ss", "a.b", "b.a.c", "A.A"]), max_size=3))
def test_nothing_below_a_key_gets_through_and_all_else_does(given, keys):
    before = copy.deepcopy(given)
    found = redacted(given, *keys)
    assert given == before
    folded = {key.casefold() for key in keys}

    def is_secret(path):
        return path[-1].casefold() in folded or ".".join(path).casefold() in folded

    secret = [path for path, _ in paths(given) if is_secret(path)]
    expected = [path for path, _ in paths(given) if not any(path[:n] in secret for n in range(1, len(path)))]
    assert Counter(path for path, _ in paths(found)) == Counter(expected)
    assert all((value == "[redacted]") == is_secret(path) or value == "[redacted]" for path, value in paths(found))
    if not secret:
        assert found == given


def test_an_event_that_can_not_be_looked_through_stays_here():
    ring = event(0)
    ring["value"] = [ring]
    kept = Kept(wants_activations=True)
    sink = Redacting(kept, ["text"])
    sink.put(ring)
    sink.close(3)
    assert (kept.events, kept.limits, sink.wants_activations) == ([], [3], True)
    assert sink.as_data() == {"kind": "Kept", "redacted": ["text"], "n_refused": 1}


@pytest.mark.parametrize("keys", ["text", [""], ["a..b"], [".a"], [1]])
def test_keys_that_mean_nothing_are_refused(keys):
    with pytest.raises(UsageError, match="keys: expected a list of names and dotted paths"):
        Redacting(Kept(), keys)


# fan-out


def test_one_failing_sink_never_affects_another():
    first, failing, last = Kept(), Kept(fails=True), Kept()
    sinks = Sinks([first, failing, last])
    sinks.put(event(0))
    sinks.put(event(1))
    sinks.close(5)
    assert numbers(first.events) == numbers(last.events) == [0, 1]
    assert first.limits == last.limits == [5]
    assert sinks.as_data() == [{"kind": "Kept"}, {"kind": "Kept", "n_raised": 3, "raised": "RuntimeError: no end"}, {"kind": "Kept"}]
    assert (len(sinks), list(sinks), sinks[2]) == (3, [first, failing, last], last)


def test_activations_go_only_where_they_are_asked_for(tmp_path):
    without, with_them = Kept(), Kept(wants_activations=True)
    file = NdjsonSink(tmp_path / "events.ndjson", wants_activations=True)
    sinks = Sinks([without, with_them, Redacting(file, ["text"])])
    for kind in EventKind:
        sinks.put(event(0, kind))
    sinks.close(5)
    kinds = ["result", "failure", "activation", "end"]
    assert [entry["event"] for entry in without.events] == ["result", "failure", "end"]
    assert [entry["event"] for entry in with_them.events] == kinds
    assert [entry["event"] for entry in lines(file.path)] == kinds
    assert sinks.wants_activations
    assert not Sinks([without]).wants_activations
    assert not Sinks().wants_activations


def test_a_sink_that_never_closes_is_left_behind(monkeypatch):
    class Hanging(Kept):
        def close(self, timeout_s):
            released.wait(LONG)

        def as_data(self):
            raise RuntimeError("no counters")

    monkeypatch.setattr(fan_out, "GRACE_S", 0.05)
    released = threading.Event()
    after = Kept()
    sinks = Sinks([Hanging(), after])
    sinks.close(0)
    assert after.limits == [0]
    assert sinks.as_data()[0] == {
        "kind": "Hanging",
        "error": "RuntimeError: no counters",
        "n_raised": 1,
        "raised": "TimeoutError: close did not end within its limit",
    }
    released.set()


def test_sinks_load_neither_torch_nor_httpx():
    finish(python("import sys, causalab_mini.probing.sinks\nassert not {'torch', 'httpx', 'pydantic'} & set(sys.modules)"))
