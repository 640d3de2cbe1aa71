"""Sinks: every event that was put stands in exactly one place, whatever the disk, the server or the other processes do."""

import copy
import errno
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causalab_mini.errors import UsageError
from causalab_mini.probing.sinks import KINDS, EventKind, NdjsonSink, Redacting, Sinks, WebhookSink, fan_out

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


# webhook


class Receiver(ThreadingHTTPServer):
    """Answers each POST with what its script says next, the last entry for ever: a status, (status, headers), "hang" or "cut"."""

    daemon_threads = True

    def __init__(self, *script):
        self.script = list(script or [200])
        self.released = threading.Event()
        self.asked = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.requests = []
        super().__init__(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self.server_port}/hook"

    def handle_error(self, *_):
        pass

    @property
    def received(self):
        """The numbers of all events that came with a request that was answered with 200."""
        return [number for request in self.requests if request["step"] == 200 for number in request["numbers"]]


class Answering(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            step = server.script.pop(0) if len(server.script) > 1 else server.script[0]
            step = step() if callable(step) else step
            request = {"path": self.path, "headers": self.headers, "body": body, "numbers": numbers(body["events"]), "step": step}
            server.requests.append(request)
        server.asked.release()
        if step == "hang":
            server.released.wait(LONG)
        if step in ("hang", "cut"):
            self.close_connection = True
            return
        status, headers = step if isinstance(step, tuple) else (step, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")


@pytest.fixture
def receiver():
    """Returns a function that starts a receiver with a script."""
    servers = []

    def start(*script):
        server = Receiver(*script)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def webhook(tmp_path):
    """Returns a function that makes a sink with short waits; its thread is gone when the test is."""
    sinks = []

    def make(url, **options):
        sink = WebhookSink(url, tmp_path / "dead.ndjson", **{"backoff_s": 0.001, "timeout_s": LONG, **options})
        sinks.append(sink)
        return sink

    yield make
    for sink in sinks:
        sink.close(0)


def letters(sink):
    return lines(sink._dead_letters.path)


def assert_conserved(sink):
    """Asserts that every event has one fate, and that the file has the letters that are counted."""
    data = sink.as_data()
    assert data["n_put"] == data["n_delivered"] + data["n_dead"]
    assert (data["n_waiting"], data["n_lost"]) == (0, 0)
    assert len(letters(sink)) == data["n_dead"]
    return data


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_events_are_delivered_in_order_in_batches(receiver, webhook):
    server = receiver(200, "hang", 204)
    sink = webhook(server.url + "?a=b", batch=10, token="s3cret-token", headers={"X-Team": "blue"})
    sink.put(event(0, value=math.nan))
    server.asked.acquire()
    sink.put(event(1))
    server.asked.acquire()  # hangs until all others wait
    for number in range(2, 25):
        sink.put(event(number))
    server.released.set()
    sink.close(LONG)
    assert [request["numbers"] for request in server.requests] == [[0], [1], [1], [*range(2, 12)], [*range(12, 22)], [*range(22, 25)]]
    first = server.requests[0]
    assert first["body"] == {"events": [event(0, value=None)]}
    assert first["path"] == "/hook?a=b"
    assert {name: first["headers"][name] for name in ("Authorization", "X-Team", "Content-Type")} == {
        "Authorization": "Bearer s3cret-token",
        "X-Team": "blue",
        "Content-Type": "application/json",
    }
    keys = [request["headers"]["Idempotency-Key"] for request in server.requests]
    assert keys[1] == keys[2]
    assert len({*keys}) == 5
    assert assert_conserved(sink)["n_delivered"] == 25


@pytest.mark.parametrize("bad", [500, 503, 429, (429, {"Retry-After": "0"}), (503, {"Retry-After": "soon"}), "cut"])
def test_what_may_pass_is_tried_again_under_the_same_key(receiver, webhook, bad):
    server = receiver(bad, bad, 200)
    sink = webhook(server.url)
    sink.put(event(0))
    sink.close(LONG)
    assert [request["numbers"] for request in server.requests] == [[0]] * 3
    assert len({request["headers"]["Idempotency-Key"] for request in server.requests}) == 1
    data = assert_conserved(sink)
    assert (data["n_delivered"], data["n_retries"]) == (1, 2)


def test_a_server_that_is_too_slow_is_tried_again(receiver, webhook):
    server = receiver("hang", 200)
    sink = webhook(server.url, timeout_s=0.1)
    sink.put(event(0))
    sink.close(LONG)
    data = assert_conserved(sink)
    assert (data["n_delivered"], data["n_retries"], data["error"]) == (1, 1, "ReadTimeout: timed out")


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 302, 304])
def test_other_answers_are_final(receiver, webhook, status):
    server = receiver((status, {"Location": "/elsewhere"}))
    sink = webhook(server.url)
    sink.put(event(0, text="kept"))
    sink.close(LONG)
    assert len(server.requests) == 1
    (letter,) = letters(sink)
    assert letter.pop("time")
    assert letter == {
        "url": f"http://127.0.0.1:{server.server_port}/…",
        "idempotency_key": server.requests[0]["headers"]["Idempotency-Key"],
        "tries": 1,
        "status": status,
        "error": f"HTTP {status}",
        "event": event(0, text="kept"),
    }
    assert_conserved(sink)


def test_a_batch_that_fails_to_the_end_is_a_dead_letter_and_the_next_goes_on(receiver, webhook):
    server = receiver(500, 500, 500, 200)
    sink = webhook(server.url, n_tries=3, batch=1)
    sink.put(event(0))
    sink.put(event(1))
    sink.close(LONG)
    assert [(letter["event"]["number"], letter["tries"], letter["status"]) for letter in letters(sink)] == [(0, 3, 500)]
    assert server.received == [1]
    assert_conserved(sink)


def test_a_refused_connection_is_said_in_the_dead_letter(webhook):
    sink = webhook(f"http://127.0.0.1:{closed_port()}", n_tries=2)
    sink.put(event(0))
    sink.close(LONG)
    (letter,) = letters(sink)
    assert (letter["tries"], letter["status"]) == (2, None)
    assert letter["error"].startswith("ConnectError: ")
    assert "refused" in letter["error"]
    assert_conserved(sink)


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        ("7", 7, 7),
        (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=120), usegmt=True), 60, 120),
        (lambda: format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), 0.005, 0.015),
        ("9" * 500, 300, 300),
        ("-5", 0.005, 0.015),
        ("1e3", 0.005, 0.015),
        ("Mon, 99 Foo 2026", 0.005, 0.015),
        ("", 0.005, 0.015),
    ],
)
def test_a_server_says_how_long_it_wants_to_be_left_alone(receiver, webhook, asked, least, most):
    server = receiver(lambda: (429, {"Retry-After": asked() if callable(asked) else asked}), 200)
    sink = webhook(server.url, backoff_s=0.01)
    waits = []
    sink._pause = lambda seconds: waits.append(seconds) or True
    sink.put(event(0))
    sink.close(LONG)
    (wait,) = waits
    assert least <= wait <= most
    assert assert_conserved(sink)["n_delivered"] == 1


def test_waits_double_with_some_chance_up_to_a_limit(receiver, webhook):
    server = receiver(500)
    sink = webhook(server.url, backoff_s=1.0, n_tries=40)
    waits = []
    sink._pause = lambda seconds: waits.append(seconds) or True
    sink.put(event(0))
    sink.close(LONG)
    assert len(waits) == 39
    assert all(0.5 <= wait / min(2.0**n, 60) <= 1.5 for n, wait in enumerate(waits))
    assert len({*waits}) == 39


def test_what_a_full_queue_can_not_take_is_a_dead_letter(receiver, webhook):
    server = receiver("hang", 200)
    sink = webhook(server.url, queue=3)
    sink.put(event(0))
    server.asked.acquire()
    for number in range(1, 6):
        sink.put(event(number))
    assert sink.as_data()["n_waiting"] == 4
    server.released.set()
    sink.close(LONG)
    assert [(letter["event"]["number"], letter["error"], letter["idempotency_key"]) for letter in letters(sink)] == [
        (4, "queue full", None),
        (5, "queue full", None),
    ]
    assert server.received == [0, 1, 2, 3]
    assert_conserved(sink)


def test_a_queue_is_full_by_bytes_too(receiver, webhook, monkeypatch):
    monkeypatch.setattr("causalab_mini.probing.sinks.webhook.MAX_QUEUE_BYTES", 2000)
    monkeypatch.setattr("causalab_mini.probing.sinks.webhook.MAX_BATCH_BYTES", 500)
    server = receiver("hang", 200)
    sink = webhook(server.url)
    sink.put(event(0))
    server.asked.acquire()
    sink.put(event(1, text="x" * 1500))
    sink.put(event(2, text="x" * 1500))
    sink.put(event(3))
    server.released.set()
    sink.close(LONG)
    assert [request["numbers"] for request in server.requests] == [[0], [0], [1], [3]]
    assert numbers(letter["event"] for letter in letters(sink)) == [2]
    assert_conserved(sink)


def test_what_is_no_json_is_a_dead_letter_without_its_event(receiver, webhook):
    server = receiver()
    sink = webhook(server.url)
    sink.put(event(0, value=object()))
    sink.close(LONG)
    assert [(letter["event"], letter["error"]) for letter in letters(sink)] == [(None, "no JSON data")]
    assert server.requests == []
    assert_conserved(sink)


def test_a_close_does_not_wait_for_a_server_that_hangs(receiver, webhook):
    server = receiver("hang")
    sink = webhook(server.url, batch=2)
    sink.put(event(0))
    server.asked.acquire()
    for number in range(1, 5):
        sink.put(event(number))
    sink.close(0.05)
    found = letters(sink)
    assert numbers(letter["event"] for letter in found) == [0, 1, 2, 3, 4]
    assert [letter["tries"] for letter in found] == [1, 0, 0, 0, 0]
    assert {letter["error"] for letter in found} == {"closed"}
    before = assert_conserved(sink)
    server.released.set()
    sink._thread.join()
    assert assert_conserved(sink) == before
    assert len(server.requests) == 1


def test_a_close_does_not_wait_for_a_retry_that_is_too_far_away(receiver, webhook):
    server = receiver((503, {"Retry-After": "200"}))
    sink = webhook(server.url, batch=1)
    reached = threading.Event()
    pause = sink._pause
    sink._pause = lambda seconds: reached.set() or pause(seconds)
    sink.put(event(0))
    sink.put(event(1))
    reached.wait()
    sink.close(100)
    assert [(letter["event"]["number"], letter["tries"], letter["status"], letter["error"]) for letter in letters(sink)] == [
        (0, 1, 503, "closed; HTTP 503"),
        (1, 1, 503, "closed; HTTP 503"),
    ]
    assert_conserved(sink)


def test_a_close_ends_after_the_dead_letters_that_are_being_written(webhook):
    sink = webhook(f"http://127.0.0.1:{closed_port()}", n_tries=1)
    is_writing, may_write = threading.Event(), threading.Event()
    write = sink._dead_letters.write_line
    sink._dead_letters.write_line = lambda line: is_writing.set() or (may_write.wait(LONG) and write(line))
    sink.put(event(0))
    is_writing.wait()
    closer = threading.Thread(target=sink.close, args=(0,))
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    may_write.set()
    closer.join()
    assert assert_conserved(sink)["n_dead"] == 1


def test_an_event_after_the_close_is_a_dead_letter(receiver, webhook):
    server = receiver()
    sink = webhook(server.url)
    sink.put(event(0))
    sink.close(LONG)
    sink.close(LONG)
    sink.put(event(1))
    assert [(letter["event"]["number"], letter["error"]) for letter in letters(sink)] == [(1, "closed")]
    assert assert_conserved(sink)["n_delivered"] == 1


@pytest.mark.parametrize("seed", range(4))
def test_delivered_and_dead_are_all_that_was_put_whatever_happens(receiver, webhook, seed):
    import random

    choice = random.Random(seed)
    weights = [[6, 1, 1, 1, 0], [1, 3, 1, 3, 0], [2, 1, 2, 1, 0], [40, 1, 1, 1, 1]][seed]
    server = receiver(lambda: choice.choices([200, 500, 400, "cut", "hang"], weights)[0])
    sink = webhook(server.url, batch=7, queue=[10_000, 50, 10_000, 200][seed], n_tries=3)
    n_threads, n_each = 6, 80
    half = threading.Barrier(n_threads + 1)

    def work(thread):
        for number in range(n_each):
            if number == n_each // 2:
                half.wait()
            sink.put(event(thread * n_each + number))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(n_threads)]
    for thread in threads:
        thread.start()
    half.wait()
    closers = [threading.Thread(target=sink.close, args=([LONG, 0.02, 0, 0.05][seed],)) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in [*closers, *threads]:
        thread.join()
    data = assert_conserved(sink)
    assert data["n_put"] == n_threads * n_each
    dead = numbers(letter["event"] for letter in letters(sink))
    assert len({*dead}) == len(dead)
    delivered = {*range(n_threads * n_each)} - {*dead}
    assert len(delivered) == data["n_delivered"]
    assert delivered <= {*server.received}


def test_what_not_even_the_dead_letters_can_take_is_counted(webhook, monkeypatch):
    sink = webhook(f"http://127.0.0.1:{closed_port()}", n_tries=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: 0)
        sink.put(event(0))
        sink.close(LONG)
    data = sink.as_data()
    assert (data["n_put"], data["n_delivered"], data["n_dead"], data["n_lost"]) == (1, 0, 0, 1)
    assert data["dead_letters"]["n_failed"] == 1


NEVER_CLOSED = """
import sys
from causalab_mini.probing.sinks import WebhookSink
sink = WebhookSink(sys.argv[1], sys.argv[2], backoff_s=30.0)
for number in range(5):
    sink.put({"event": "result", "number": number})
"""

FORKED_WEBHOOK = """
import os, sys
from causalab_mini.probing.sinks import WebhookSink
sink = WebhookSink(sys.argv[1], sys.argv[2], backoff_s=30.0)
for number in range(4):
    sink.put({"event": "result", "number": number})
if not (child := os.fork()):
    sink.put({"event": "result", "number": 4})
    sink.close()
    data = sink.as_data()
    assert (data["n_put"], data["n_dead"], data["n_waiting"]) == (1, 1, 0)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("code", [NEVER_CLOSED, FORKED_WEBHOOK])
def test_a_sink_that_nobody_closes_leaves_its_dead_letters_once(tmp_path, code):
    if code == FORKED_WEBHOOK:
        code = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)" + code  # Python warns of a fork beside threads
    finish(python(code, f"http://127.0.0.1:{closed_port()}", tmp_path / "dead.ndjson"))
    assert sorted(numbers(letter["event"] for letter in lines(tmp_path / "dead.ndjson"))) == [0, 1, 2, 3, 4]


def test_secrets_are_said_nowhere(receiver, webhook, caplog):
    caplog.set_level(logging.DEBUG)
    server = receiver(400)
    origin = f"http://127.0.0.1:{server.server_port}"
    for url in (f"{origin}/services/hunter2?key=hunter2", f"http://127.0.0.1:{closed_port()}/hunter2"):
        sink = webhook(url, token="hunter2", headers={"X-Key": "hunter2"}, n_tries=1)
        sink.put(event(0))
        sink.close(LONG)
        said = [repr(sink), str(Sinks([sink])), json.dumps(sink.as_data()), repr(sink._endpoint), json.dumps(letters(sink)), caplog.text]
        assert all("hunter2" not in text for text in said)
    assert server.requests[0]["path"] == "/services/hunter2?key=hunter2"
    assert origin in caplog.text


def test_an_error_that_says_a_secret_is_scrubbed(webhook):
    sink = webhook("http://127.0.0.1:1/hunter2?key=other2", token="token2", headers={"X-Key": "header2"})

    def failing(*_, **__):
        raise RuntimeError("/hunter2?key=other2 key=other2 Bearer token2 token2 header2")

    sink._client.stream = failing
    sink.put(event(0))
    sink.close(LONG)
    assert [(letter["error"], letter["tries"]) for letter in letters(sink)] == [("RuntimeError: " + " ".join(["[redacted]"] * 5), 1)]
    assert_conserved(sink)


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("ftp://host/hunter2", {}, "url: expected an http or https URL, got one of another scheme"),
        ("hunter2", {}, "url: expected an http or https URL, got one of another scheme"),
        ("file:///hunter2", {}, "url: expected an http or https URL, got one of another scheme"),
        ("http:///hunter2", {}, "url: expected an http or https URL, got one without a host"),
        ("http://[1:hunter2]/", {}, "url: expected an http or https URL, got no URL"),
        ("http://host:hunter2/", {}, "url: expected an http or https URL, got no URL"),
        ("http://xn--/hunter2", {}, "url: expected an http or https URL, got no URL"),
        (None, {}, "url: expected an http or https URL, got no URL"),
        ("https://me:hunter2@host/", {}, "url: expected a URL without user and password, got one with them"),
        ("https://hunter2@host/", {}, "url: expected a URL without user and password, got one with them"),
        ("http://host", {"token": "hunter2\n"}, "token: expected values of printable ASCII characters, got another in `Authorization`"),
        ("http://host", {"headers": {"X": "hünter2"}}, "headers: expected values of printable ASCII characters, got another in `X`"),
        ("http://host", {"headers": {"a b": "hunter2"}}, "headers: expected names of headers, got `a b`"),
        ("http://host", {"headers": {"content-length": "1"}}, "headers: expected headers other than `Content-Length`"),
        ("http://host", {"token": "hunter2", "headers": {"authorization": "x"}}, "token: expected a token or an `Authorization` header"),
        ("http://host", {"batch": 0, "n_tries": 0}, "batch: expected a number from 1, got `0`\nerror: n_tries: expected a number from 1"),
        ("http://host", {"timeout_s": math.nan}, "timeout_s: expected a number from 0.001, got `nan`"),
    ],
)
def test_what_can_not_be_delivered_to_is_refused_without_its_secrets(tmp_path, url, options, said):
    n_threads = threading.active_count()
    with pytest.raises(UsageError) as raised:
        WebhookSink(url, tmp_path / "dead.ndjson", **options)
    assert said in raised.value.text()
    assert "hunter2" not in raised.value.text()
    assert (threading.active_count(), list(tmp_path.iterdir())) == (n_threads, [])


def test_dead_letters_that_can_not_be_written_are_refused(tmp_path):
    with pytest.raises(UsageError, match="dead_letters: expected a file that can be appended to"):
        WebhookSink("http://127.0.0.1:1", tmp_path / "none" / "dead.ndjson")


def test_without_httpx_the_package_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(UsageError) as raised:
        WebhookSink("http://127.0.0.1:1", tmp_path / "dead.ndjson")
    assert raised.value.text() == (
        "error: url: expected httpx, to deliver to a webhook, got no such package\nhint: pip install 'causalab-mini[serve]'"
    )


def test_no_proxy_stands_between_us_and_this_machine(receiver, webhook, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    sink = webhook(receiver().url)
    sink.put(event(0))
    sink.close(LONG)
    assert assert_conserved(sink)["n_delivered"] == 1


@pytest.mark.parametrize(
    ("url", "is_loopback"),
    [
        ("https://example.com/x", False),
        ("https://localhost:8443", True),
        ("http://a.localhost./", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:1/", True),
        ("http://[::ffff:127.0.0.1]/", True),
        ("http://0.0.0.0/", True),
        ("http://localhost.example.com", False),
        ("http://10.0.0.1", False),
    ],
)
def test_certificates_are_verified_and_the_environment_is_for_other_machines(webhook, monkeypatch, url, is_loopback):
    import ssl

    import httpx

    made = []
    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: made.append(options) or client(**options))
    webhook(url)
    (options,) = made
    assert options["trust_env"] is not is_loopback
    assert (options["verify"].verify_mode, options["verify"].check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(("name", "value"), [("SSL_CERT_FILE", "/none"), ("https_proxy", "gopher://127.0.0.1")])
def test_an_environment_that_can_not_be_used_is_refused(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="url: expected an environment whose proxies and certificates can be used, got "):
        WebhookSink("https://example.com", tmp_path / "dead.ndjson")


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


def test_dead_letters_are_redacted_too(webhook):
    sink = webhook(f"http://127.0.0.1:{closed_port()}", n_tries=1)
    redacting = Redacting(sink, ["text"])
    redacting.put(event(0, value={"text": "private"}))
    redacting.close(LONG)
    assert letters(sink)[0]["event"] == event(0, value={"text": "[redacted]"})
    assert redacting.as_data()["redacted"] == ["text"]


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


def test_kinds_take_activations_only_when_told(tmp_path, receiver):
    assert {*KINDS} == {"ndjson", "webhook"}
    for sink in (NdjsonSink(tmp_path / "a"), WebhookSink(receiver().url, tmp_path / "b")):
        assert not sink.wants_activations
        assert sink.as_data()["kind"] in KINDS
        sink.close(LONG)


def test_sinks_load_neither_torch_nor_httpx():
    finish(python("import sys, causalab_mini.probing.sinks\nassert not {'torch', 'httpx', 'pydantic'} & set(sys.modules)"))
