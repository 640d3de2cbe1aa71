"""A table of bad inputs: what each is, how it is made, and the command that is given it.

`python tests/bad_inputs.py --write` gives each to the program and writes what it says to `docs/bad_inputs.md`; a test holds the page fresh.
Every one has to be refused in words, with the exit code of its kind, and with nothing left behind that was not there.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "bad_inputs.md"
CASES = ROOT / "tests" / "cases"
MODEL = "bundled:successor-llama"
BUNDLED = ROOT / "causalab_mini" / "model" / "bundled" / "successor-llama"

WRONG, FAILED = 2, 1
OPENED: dict[Any, Any] = {}
"""Bundled checkpoints, by what a document says of them."""
OF_A_FAILED_RUN = {"out", *(f"out/{name}" for name in (".lock", "document.json", "places.json", "run.json", "summary.json"))}
"""What a run leaves that failed when the weights were loaded: whole files, whose record says so."""


class BadInput(NamedTuple):
    """One bad input.

    Attributes:
        section: of the page.
        what: it is, in a few words.
        command: the arguments; of a request, `POST PATH BODY`.
        files: by path below the folder that it is run in: bytes and text as they are, a function that makes it, anything else as JSON.
        code: the exit code; of a request, the status.
    """

    section: str
    what: str
    command: tuple[Any, ...]
    files: Mapping[str, Any]
    code: int


class Outcome(NamedTuple):
    """What came of a bad input.

    Attributes:
        code: as of the input.
        out, err: what was printed; of a request, `err` is the body of the answer.
        changed: files that were not there before, or were others.
        seconds: of the command alone.
    """

    code: int
    out: str
    err: str
    changed: tuple[str, ...]
    seconds: float


# making files

GONE = object()
"""In edits: the key is taken out."""


def edited(document: Any, edits: Mapping[str, Any]) -> Any:
    """Returns a document with values put in, or taken out, by path: `steps/patch/kind`."""
    found = copy.deepcopy(document)
    for path, value in edits.items():
        *parents, last = path.split("/")
        here = found
        for part in parents:
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
        key: Any = int(last) if isinstance(here, list) else last
        if value is GONE:
            del here[key]
        else:
            here[key] = value
    return found


def safetensors(tensors: Mapping[str, tuple[str, list[int], bytes]], metadata: Any = None, header: bytes | None = None) -> bytes:
    """Returns a safetensors file of tensors as (dtype, shape, bytes); with another header, the same bytes behind it."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(entries).encode() if header is None else header
    return struct.pack("<Q", len(head)) + head + b"".join(data for _, _, data in tensors.values())


def floats(*shape: int, value: float = 0.5) -> tuple[str, list[int], bytes]:
    """Returns a tensor of one number."""
    n = 1
    for size in shape:
        n *= size
    return "F32", list(shape), struct.pack("<f", value) * n


def orthonormal(d: int, k: int) -> tuple[str, list[int], bytes]:
    """Returns the first k unit vectors as columns."""
    return "F32", [d, k], b"".join(struct.pack("<f", float(row == column)) for row in range(d) for column in range(k))


def checkpoint(**files: Any) -> Callable[[Path], None]:
    """Returns what makes a copy of a bundled model with files changed (`None` for gone; a function of the old bytes; data)."""

    def make(folder: Path) -> None:
        shutil.copytree(BUNDLED, folder)
        for name, value in files.items():
            path = folder / name.replace("__", ".")
            old = path.read_bytes() if path.exists() else b""
            if value is None:
                path.unlink()
            else:
                path.write_bytes(as_bytes(value(old) if callable(value) else value))

    return make


def results(edits: Mapping[str, Any] | None = None) -> Callable[[Path], None]:
    """Returns what makes a folder of results with files changed (`None` for gone; a function of the old data; bytes, text or data)."""

    def make(folder: Path) -> None:
        shutil.copytree(finished_run(), folder)
        for name, value in (edits or {}).items():
            path = folder / name
            if value is None:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(as_bytes(value(json.loads(path.read_bytes())) if callable(value) else value))

    return make


@cache
def finished_run() -> Path:
    """Returns a folder of results: a sweep over two layers with tables as JSON and CSV and a tensor."""
    folder = Path(tempfile.mkdtemp(prefix="causalab-mini-bad-"))
    for name, value in {"d.json": SWEEP, **TABLE}.items():
        write(folder / name, value)
    with inside(folder):
        outcome = said("run", "d.json", "--out", "out", "--check", "off")
    assert outcome.code == 0, outcome.err
    return folder / "out"


def as_bytes(value: Any) -> bytes:
    """Returns what stands in a file."""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def write(path: Path, value: Any) -> None:
    """Makes one file of an input."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(value):
        value(path)
    else:
        path.write_bytes(as_bytes(value))


def folder(path: Path) -> None:
    """Makes a folder."""
    path.mkdir()


# running


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Has the working directory be a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def state_of(folder: Path) -> dict[str, str]:
    """Returns what a folder holds, folders included."""
    return {
        path.relative_to(folder).as_posix(): "" if not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
    }


class Answer(NamedTuple):
    """What a command printed, and left with."""

    code: int
    out: str
    err: str


def said(*arguments: str) -> Answer:
    """Returns what a command printed in this process, and what it left with."""
    from causalab_mini.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as leaving:
            code = leaving.code or 0
    return Answer(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def opened_once() -> Iterator[None]:
    """Has bundled checkpoints be opened once in this process: nothing that judges a document changes one."""
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    load = NNterpEngine.load

    def load_once(model: Any, *options: Any, **more: Any) -> Any:
        if not model.key.startswith("bundled:"):
            return load(model, *options, **more)
        if model not in OPENED:
            OPENED[model] = load(model, *options, **more)
        return OPENED[model]

    with mock.patch.object(NNterpEngine, "load", load_once):
        yield


def outcome_of(case: BadInput) -> Outcome:
    """Returns what comes of an input, in a folder of its own."""
    home = Path(tempfile.mkdtemp(prefix="causalab-mini-bad-")).resolve()
    try:
        for name, value in case.files.items():
            write(home / name, value)
        before = state_of(home)
        began = time.process_time()
        with inside(home), opened_once() if case.command[0] == "validate" else contextlib.nullcontext():
            answer = asked(*case.command[1:]) if case.command[0] == "POST" else said(*map(str, case.command))
        seconds = time.process_time() - began
        after = state_of(home)
        changed = tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))
        if changed and {*changed} <= OF_A_FAILED_RUN and json.loads((home / "out" / "run.json").read_bytes())["status"] == "failed":
            changed = ()
        out, err = (text.replace(str(home), "HOME").replace(str(ROOT), "ROOT") for text in (answer.out, answer.err))
        return Outcome(answer.code, out, err, changed, seconds)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@cache
def server() -> Any:
    """Returns a client of the server, whose generations are said by hand."""
    from starlette.testclient import TestClient
    from streams_by_hand import StreamByHand

    from causalab_mini.data.prompts import make_prompt
    from causalab_mini.engine.loading import open_facts, open_tokenizer
    from causalab_mini.plan.spec import ModelSpec
    from causalab_mini.probing.request import watch
    from causalab_mini.probing.router import Router
    from causalab_mini.probing.serve.app import Served, make_app
    from causalab_mini.probing.serve.desk import Desk, Room
    from causalab_mini.probing.serve.gate import Rules
    from causalab_mini.probing.spec import parse_dict

    tokenizer = open_tokenizer(MODEL, None)
    watched = watch(parse_dict(SPEC), open_facts(ModelSpec(key=MODEL, dtype="fp32")), tokenizer)
    desk = Desk(lambda: StreamByHand(tokenizer), make_prompt(tokenizer, "Sunday"), Router(watched.spec, watched.probes), Room(n_waiting=8))
    served = Served("tiny", watched, tokenizer, n_tokens=64, n_prompt_tokens=128)
    return TestClient(make_app(desk, served, Rules(n_body_bytes=4096)), raise_server_exceptions=False)


def asked(path: str, body: Any, *headers: str) -> Answer:
    """Returns the server's answer to a request."""
    named = dict(header.split(": ") for header in headers)
    answer = server().post(path, content=as_bytes(body), headers={"content-type": "application/json", **named})
    return Answer(answer.status_code, "", answer.text)


# the inputs that others are made of


def pair(day: str, answer: str, other: str, other_answer: str, **more: Any) -> dict[str, Any]:
    """Returns a row."""
    return {
        "input": f"If today is {day}, tomorrow is",
        "entity": day,
        "base_answer": answer,
        "cf_answer": other_answer,
        "counterfactual_inputs": [f"If today is {other}, tomorrow is"],
        "counterfactual_inputs_variables": [{"entity": other}],
        **more,
    }


ROWS = [
    pair("Saturday", " Sunday", "Tuesday", " Wednesday", split="a", number=1),
    pair("Sunday", " Monday", "Tuesday", " Wednesday", split="a", number=2),
    pair("Thursday", " Friday", "Sunday", " Monday", split="b", number=3),
]
TABLE = {"data/rows.json": ROWS}
BASE = json.loads((CASES / "base.json").read_text(encoding="utf-8"))
TRAINED = json.loads((CASES / "trained.json").read_text(encoding="utf-8"))
READ = {"site": "stream", "pos": -1, "input": "base"}
SMALL = {
    "model": {"key": MODEL, "dtype": "fp32"},
    "roles": {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}},
    "sites": {"stream": {"component": "block_output", "layers": 1}, "logits": {"component": "logits"}},
    "interventions": {
        "patching": {
            "reads": {
                "source": {"site": "stream", "pos": -1, "input": "counterfactual"},
                "prediction": {"site": "logits", "pos": -1, "model": "patched"},
            },
            "writes": {"patch": {"site": "stream", "pos": -1, "mechanism": "swap", "operand": "source"}},
            "models": {"patched": {"input": "base", "writes": ["patch"]}},
            "metrics": {"follows": {"kind": "match", "of": "prediction", "expected": "cf_answer"}},
        }
    },
    "steps": {
        "patch": {
            "kind": "observe",
            "rows": {"base": "rows", "counterfactual": "rows"},
            "interventions": "patching",
            "saves": [{"value": "follows", "file_path": "follows.json"}],
        }
    },
}
SWEEP = edited(
    SMALL,
    {
        "sites/stream/layers": {"sweep": [0, 1], "as": "layer"},
        "steps/patch/outputs": {"mean": {"read": "source", "reduce": "mean"}},
        "steps/patch/saves": [
            {"value": "follows", "file_path": "follows.json"},
            {"value": "follows", "file_path": "tables/follows.csv"},
            {"value": "mean", "file_path": "mean.safetensors"},
        ],
    },
)
STEP, SOURCE, PREDICTION = "steps/patch", "interventions/patching/reads/source", "interventions/patching/reads/prediction"
PATCH, METRIC = "interventions/patching/writes/patch", "interventions/patching/metrics/follows"
POINT = {
    "name": "watched",
    "layers": [1],
    "tensor_type": "residual_stream",
    "position": "generated[*]",
    "probe_type": "norm_monitor",
    "probe_kind": "trajectory",
}
SPEC = {"version": "1", "extraction_points": [POINT]}


class Table(list[BadInput]):
    """Bad inputs, as they are listed."""

    def add(self, section: str, what: str, *command: Any, files: Mapping[str, Any] | None = None, code: int = WRONG) -> None:
        """Lists an input."""
        self.append(BadInput(section, what, command, files or {}, code))


def bad_inputs() -> list[BadInput]:
    """Returns every bad input, section by section."""
    table = Table()
    for section in (
        add_texts,
        add_documents,
        add_trained,
        add_compiled,
        add_tables,
        add_specs,
        add_positions,
        add_overrides,
        add_featurizers,
        add_probes,
        add_models,
        add_options,
        add_results,
        add_requests,
    ):
        section(table)
    return table


def add_texts(table: Table) -> None:
    """Lists files that are no strict JSON."""
    text = json.dumps(BASE)
    for what, content in {
        "an empty file": "",
        "blanks alone": " \n\t ",
        "a file that ends early": text[: len(text) // 2],
        "text after the document": f"{text} x",
        "two documents in one file": f"{text}\n{text}",
        "a comma too many": '{"model": {"key": "x",}}',
        "a comma missing": '{"model": {} "roles": {}}',
        "single quotes": "{'model': 1}",
        "a key without quotes": "{model: 1}",
        "a comment": "// a document\n{}",
        "a key twice": '{"model": {}, "model": {}}',
        "a key twice, once escaped": '{"steps": {"a": 1, "\\u0061": 2}}',
        "NaN": '{"version": NaN}',
        "an infinity": '{"version": -Infinity}',
        "a number that is infinite": '{"version": 1e999}',
        "a number of a thousand digits": f'{{"version": {"1" * 1000}}}',
        "a hundred and one levels": "[" * 101 + "]" * 101,
        "a hundred thousand levels": "[" * 100_000,
        "half a character": '{"header": {"title": "\\ud800"}}',
        "a line break in a text": '{"header": {"title": "a\nb"}}',
        "an escape that is none": '{"header": {"title": "\\x"}}',
        "a number with a leading zero": '{"version": 01}',
        "a byte order mark": b"\xef\xbb\xbf" + text.encode(),
        "UTF-16": text.encode("utf-16"),
        "Latin-1": text.replace("clean", "\u00e9t\u00e9").encode("latin-1"),
        "a zero byte": text.encode() + b"\0",
        "random bytes": bytes(range(128, 256)),
        "17 MiB": " " * (17 * 1024 * 1024),
        "a list": "[]",
        "a number": "1",
        "a text": '"document"',
        "null": "null",
        "an empty object": "{}",
        "YAML": "model:\n  key: x\n",
    }.items():
        table.add("Files of documents", what, "validate", "--no-model", "d.json", files={"d.json": content})
    table.add("Files of documents", "a file that is not there", "validate", "--no-model", "d.json")
    table.add("Files of documents", "a folder", "validate", "--no-model", "d.json", files={"d.json": folder})
    table.add("Files of documents", "a file below a file", "validate", "--no-model", "d.json/e.json", files={"d.json": BASE})
    table.add("Files of documents", "a name of 300 characters", "validate", "--no-model", "d" * 300)
    table.add("Files of documents", "an empty name", "validate", "--no-model", "")
    table.add("Files of documents", "a bundled document that is not there", "validate", "--no-model", "bundled:quikstart")
    table.add("Files of documents", "a bundled document outside of the package", "explain", "bundled:../../etc/passwd")
    table.add("Files of documents", "`fmt` of no JSON", "fmt", "d.json", files={"d.json": "{"})
    table.add("Files of documents", "`fmt` of a list", "fmt", "d.json", files={"d.json": "[1]"})
    table.add("Files of documents", "`fmt` of a file that is not there", "fmt", "d.json")
    table.add("Files of documents", "`fmt` of a folder", "fmt", "d.json", files={"d.json": folder})
    table.add("Files of documents", "`diff` with a wrong document", "diff", "d.json", "e.json", files={"d.json": BASE, "e.json": "{}"})
    table.add("Files of documents", "`diff` with a file that is not there", "diff", "d.json", "e.json", files={"d.json": BASE})
    table.add(
        "Files of documents", "a link to itself", "validate", "--no-model", "d.json", files={"d.json": lambda p: p.symlink_to(p.name)}
    )


def add_documents(table: Table) -> None:
    """Lists documents that are wrong in themselves."""
    base, clean = "interventions/patching", "interventions/clean"
    for what, edits in {
        "an unknown key at the top": {"modle": {}},
        "an unknown key deep down": {f"{base}/reads/source/position": -1},
        "a key in capitals": {"Steps": {}},
        "no model": {"model": GONE},
        "no roles": {"roles": GONE},
        "no steps": {"steps": GONE},
        "steps without a step": {"steps": {}},
        "a version of the future": {"version": 2},
        "a version as a text": {"version": "1"},
        "a version that is `true`": {"version": True},
        "a model as a text": {"model": "gpt2"},
        "a model of a number": {"model/key": 7},
        "an empty model key": {"model/key": ""},
        "no dtype": {"model/dtype": GONE},
        "a dtype that is none": {"model/dtype": "int8"},
        "an attention that is none": {"model/attn_implementation": "flash"},
        "a revision of a bundled model": {"model/revision": "main"},
        "a swept model": {"model/key": {"sweep": ["a", "b"]}},
        "a swept header": {"header": {"title": {"sweep": ["a"]}}},
        "a header that is a text": {"header": "mine"},
        "tags that are a text": {"header": {"tags": "a"}},
        "no role `base`": {"roles": {"left": {"field": "input"}}},
        "a role as a text": {"roles/base": "input"},
        "a field that is no path": {"roles/base/field": "input..x"},
        "a field with a negative index": {"roles/base/field": "input[-1]"},
        "a name with a dot": {"sites/a.b": {"component": "logits"}},
        "a name with a slash": {"sites/a/b": 1, "sites/a": GONE, "interventions/a~b": {"reads": {}}},
        "an empty name": {"sites/": {"component": "logits"}},
        "a name of 101 characters": {f"sites/{'a' * 101}": {"component": "logits"}},
        "a name with a line break": {"sites/a\nb": {"component": "logits"}},
        "a component that is none": {"sites/stream/component": "residual"},
        "no component": {"sites/stream/component": GONE},
        "no layers": {"sites/stream/layers": GONE},
        "layers of a whole-model place": {"sites/logits/layers": 0},
        "a layer that is a fraction": {"sites/stream/layers": 1.0},
        "a layer that is `true`": {"sites/stream/layers": True},
        "no layer in a list": {"sites/stream/layers": []},
        "a layer twice": {"sites/stream/layers": [1, 1]},
        "a word for layers": {"sites/stream/layers": "every"},
        "heads of a place without": {"sites/stream/heads": [0]},
        "a negative head": {"sites/stream": {"component": "attention_z", "layers": 0, "heads": [-1]}},
        "a head twice": {"sites/stream": {"component": "attention_z", "layers": 0, "heads": [1, 1]}},
        "heads beside units": {"sites/stream": {"component": "attention_z", "layers": 0, "heads": [0], "units": [0]}},
        "no unit in a list": {"sites/stream/units": []},
        "a site that is not declared": {f"{base}/reads/source/site": "straem"},
        "a site that is a number": {f"{base}/reads/source/site": 3},
        "no position": {f"{base}/reads/source/pos": GONE},
        "a position that is a fraction": {f"{base}/reads/source/pos": 0.5},
        "a position that is null": {f"{base}/reads/source/pos": None},
        "a position without a cut": {f"{base}/reads/source/pos": {"scope": {"variable": "entity"}}},
        "a position of two cuts": {f"{base}/reads/source/pos": {"index": 0, "last": 1}},
        "an empty span": {f"{base}/reads/source/pos": {"span": [2, 2]}},
        "a reversed span": {f"{base}/reads/source/pos": {"span": [3, 1]}},
        "a span of three numbers": {f"{base}/reads/source/pos": {"span": [0, 1, 2]}},
        "the last 0 tokens": {f"{base}/reads/source/pos": {"last": 0}},
        "`all` that is false": {f"{base}/reads/source/pos": {"all": False}},
        "a stride of 0": {f"{base}/reads/source/pos": {"all": True, "stride": 0}},
        "a stride of one token": {f"{base}/reads/source/pos": {"index": 0, "stride": 2}},
        "an empty anchor": {f"{base}/reads/source/pos": {"index": 0, "scope": {}}},
        "an anchor of two texts": {f"{base}/reads/source/pos": {"index": 0, "scope": {"variable": "a", "text": "b"}}},
        "an anchor of an empty text": {f"{base}/reads/source/pos": {"index": 0, "scope": {"text": ""}}},
        "an occurrence that is none": {f"{base}/reads/source/pos": {"index": 0, "scope": {"text": "a", "occurrence": "second"}}},
        "an occurrence of nothing": {f"{base}/reads/source/pos": {"index": 0, "scope": {"segment": "user", "occurrence": 1}}},
        "a segment that is none": {f"{base}/reads/source/pos": {"index": 0, "scope": {"segment": "user[x]"}}},
        "a frame that is none": {f"{base}/reads/source/pos": {"index": 0, "frame": "future"}},
        "a generated position without `decode`": {f"{base}/reads/source/pos": {"index": 0, "frame": "generated"}},
        "a selector with blanks": {f"{base}/reads/source/pos": "prompt[ -1 ]"},
        "a selector of a word": {f"{base}/reads/source/pos": "last"},
        "a selector of an empty run": {f"{base}/reads/source/pos": "prompt[3:3]"},
        "an input that is no role": {f"{base}/reads/source/input": "counterfact"},
        "a read of the original model without an input": {f"{base}/reads/source/input": GONE},
        "a model that is not declared": {f"{base}/reads/prediction/model": "pached"},
        "a read without a model's write": {f"{base}/models/patched/writes": ["path"]},
        "a model that writes nothing": {f"{base}/models/patched/writes": []},
        "a write listed twice": {f"{base}/models/patched/writes": ["patch", "patch"]},
        "a view that is none": {f"{base}/reads/source/view": "tokens"},
        "a view of logits as logits": {f"{base}/reads/prediction/view": "logits"},
        "keys of a place without": {f"{base}/reads/source/keys": 0},
        "no reads": {f"{base}/reads": GONE},
        "reads that are a list": {f"{base}/reads": []},
        "a mechanism that is none": {f"{base}/writes/patch/mechanism": "replace"},
        "a swap without an operand": {f"{base}/writes/patch/operand": GONE},
        "an operand that is not declared": {f"{base}/writes/patch/operand": "sauce"},
        "an operand of a later output": {f"{base}/writes/patch/operand": {"ref": "later"}},
        "noise with an operand": {f"{base}/writes/patch/mechanism": "gaussian"},
        "a parameter that is none": {f"{base}/writes/patch/params": {"skale": 1}},
        "a lerp without `t`": {f"{base}/writes/patch/mechanism": "lerp"},
        "a clamp whose bounds are the wrong way round": {
            f"{base}/writes/patch/mechanism": "clamp",
            f"{base}/writes/patch/operand": GONE,
            f"{base}/writes/patch/params": {"lo": 1, "hi": 0},
        },
        "a write of token ids": {f"{base}/writes/patch/site": {"component": "input_ids"}},
        "a landing that is none": {f"{base}/writes/patch/align": "middle"},
        "a renormalize that is the only write": {f"{base}/writes/patch/mechanism": "renormalize", f"{base}/writes/patch/operand": GONE},
        "an operand of another width": {f"{base}/reads/source/pos": {"last": 3}},
        "a metric that is none": {f"{base}/metrics/follows/kind": "accuracy"},
        "a metric without a kind": {f"{base}/metrics/follows/kind": GONE},
        "a metric of a read that is not declared": {f"{base}/metrics/follows/of": "prediktion"},
        "a metric of tokens over a stream": {f"{base}/metrics/follows/of": "source"},
        "a metric without its column": {f"{base}/metrics/follows/expected": GONE},
        "another metric's column": {f"{base}/metrics/follows/target": "answer"},
        "a token form that is none": {f"{base}/metrics/follows/token_form": "plain"},
        "the 0 most likely tokens": {f"{base}/metrics/top": {"kind": "top_k", "of": "prediction", "k": 0}},
        "a regular expression that is none": {
            f"{base}/decode": 3,
            f"{base}/metrics/said": {"kind": "generated_match", "model": "patched", "expected": "cf_answer", "how": "rgx"},
        },
        "a divergence from nothing": {f"{base}/metrics/far": {"kind": "kl", "of": "prediction"}},
        "a `decode` below zero": {f"{clean}/decode": -1},
        "sampling without a seed": {f"{clean}/decode": {"max_new_tokens": 3, "do_sample": True}},
        "a temperature of greedy decoding": {f"{clean}/decode": {"max_new_tokens": 3, "temperature": 0.5}},
        "a temperature of 0": {f"{clean}/decode": {"max_new_tokens": 3, "do_sample": True, "seed": 0, "temperature": 0}},
        "an empty stop text": {f"{clean}/decode": {"max_new_tokens": 3, "stop": [""]}},
        "a kind of step that is none": {"steps/patch/kind": "obsreve"},
        "a step without a kind": {"steps/patch/kind": GONE},
        "a step without rows": {"steps/patch/rows": GONE},
        "a step of no interventions": {"steps/patch/interventions": []},
        "an intervention twice": {"steps/patch/interventions": ["patching", "patching"]},
        "an intervention that is not declared": {"steps/patch/interventions": "paching"},
        "rows of a role too few": {"steps/patch/rows/counterfactual": GONE},
        "rows of a role too many": {"steps/measure/rows/counterfactual": "successor/pairs"},
        "an output of a read that is not declared": {"steps/measure/outputs/mean/read": "straem"},
        "a reduction that is none": {"steps/measure/outputs/mean/reduce": "median"},
        "a `pca` without `k`": {"steps/measure/outputs/mean/reduce": "pca"},
        "a `mean_by` without a column": {"steps/measure/outputs/mean/reduce": "mean_by"},
        "a difference of one output": {"steps/measure/outputs/d": {"difference": ["mean"]}},
        "a difference of itself": {"steps/measure/outputs/d": {"difference": ["d", "mean"]}},
        "a save of nothing": {"steps/patch/saves/0/value": "folows"},
        "a save out of the folder": {"steps/patch/saves/0/file_path": "../x.json"},
        "a save at an absolute path": {"steps/patch/saves/0/file_path": "/tmp/x.json"},
        "a save without an ending": {"steps/patch/saves/0/file_path": "follows"},
        "a table saved as tensors": {"steps/patch/saves/0/file_path": "follows.safetensors"},
        "a save over the record": {"steps/patch/saves/0/file_path": "run.json"},
        "two saves into one file": {"steps/patch/saves/0/file_path": "right.json"},
        "a save with a zero character": {"steps/patch/saves/0/file_path": "a\0.json"},
        "a control that is none": {"steps/patch/controls": ["placebo"]},
        "no draws of a control": {"steps/patch/controls": [{"kind": "shuffled_source", "n": 0}]},
        "a `where` of a later step": {"steps/measure/where": {"step": "patch", "metric": "follows", "min": 1}},
        "a `where` without a bound": {"steps/patch/where": {"step": "measure", "metric": "right"}},
        "a `where` of bounds the wrong way round": {"steps/patch/where": {"step": "measure", "metric": "right", "min": 1, "max": 0}},
        "a `where` of a metric that is not there": {"steps/patch/where/metric": "wrong"},
        "a sweep of nothing": {"sites/stream/layers": {"sweep": []}},
        "a sweep that is a text": {"sites/stream/layers": {"sweep": "some"}},
        "a sweep of all of what can't be counted": {f"{base}/reads/source/pos": {"sweep": "all"}},
        "a range that is empty": {"sites/stream/layers": {"sweep": {"range": [3, 3]}}},
        "a range with a step of 0": {"sites/stream/layers": {"sweep": {"range": [0, 3, 0]}}},
        "a range of a billion": {"sites/stream/layers": {"sweep": {"range": [0, 1000000000]}}},
        "a sweep twice over one value": {"sites/stream/layers": {"sweep": [1, 1]}},
        "a sweep in a sweep": {"sites/stream/layers": {"sweep": [{"sweep": [0, 1]}, 2]}},
        "an axis without a name": {"sites/stream/layers": {"sweep": [0, 1], "as": ""}},
        "axes of one name and two lengths": {
            "sites/stream/layers": {"sweep": [0, 1], "as": "x"},
            f"{base}/reads/source/pos": {"sweep": [-1, -2, -3], "as": "x"},
        },
        "a sweep beside another key": {"sites/stream/layers": {"sweep": [0, 1], "name": "layer"}},
        "more than 100,000 points": {
            "sites/stream/layers": {"sweep": {"range": [0, 1000]}},
            f"{base}/reads/source/pos": {"sweep": {"range": [0, 1000]}},
        },
        "the whole document swept": {"sweep": [1, 2]},
    }.items():
        document = edited(BASE, edits)
        table.add("Documents", what, "validate", "--no-model", "d.json", files={"d.json": document})


def add_trained(table: Table) -> None:
    """Lists documents with wrong featurizers, fits, attributions, streams and linear probes."""
    rows = {"base": "successor/pairs#train", "counterfactual": "successor/pairs#train"}
    stream = {"kind": "stream", "rows": {"base": "successor/pairs"}, "input": "base", "decode": {"max_new_tokens": 3}, "points": [POINT]}
    probe = {
        "kind": "fit_probe",
        "rows": {"base": "successor/pairs#train"},
        "features": "vectors",
        "label": "entity",
        "probe": "logistic",
        "folds": 3,
    }
    vectors = {"steps/measure/outputs/vectors": {"read": "stream"}}
    for what, edits in {
        "a kind of featurizer that is none": {"featurizers/rotation/kind": "rotation"},
        "a featurizer without a kind": {"featurizers/rotation/kind": GONE},
        "a rank of 0": {"featurizers/rotation/k": 0},
        "no rank": {"featurizers/rotation/k": GONE},
        "a rank of a gate": {"featurizers/mask/k": 3},
        "a parametrization that is none": {"featurizers/rotation/parametrization": "givens"},
        "directions from nowhere": {"featurizers/directions/from": GONE},
        "directions from two places": {"featurizers/directions/file_path": "a.safetensors"},
        "directions from an output that is not there": {"featurizers/directions/from": "varianse"},
        "directions from a mean": {"featurizers/directions/from": "mean"},
        "more directions than were found": {"featurizers/directions/k": 4},
        "an autoencoder without a file": {"featurizers/latents/file_path": GONE},
        "an activation that is none": {"featurizers/latents/activation": "gelu"},
        "a scale from one output": {"featurizers/scaled/from": "mean"},
        "a chain of nothing": {"featurizers/both": {"kind": "chain", "parts": []}},
        "a chain of itself": {"featurizers/both": {"kind": "chain", "of": ["both"]}},
        "a featurizer that is not declared": {"interventions/swap/reads/source/featurizer": "rotaton"},
        "a read and a write in other coordinates": {"interventions/swap/reads/source/featurizer": GONE},
        "features beyond the rank": {"interventions/swap/writes/patch/features": [4]},
        "a featurizer at two sites": {
            "interventions/masked/reads/source/featurizer": "rotation",
            "interventions/masked/writes/patch/featurizer": "rotation",
        },
        "a fit of nothing": {"steps/train/params": []},
        "a fit of what can't be trained": {"steps/train/params": ["directions"]},
        "a fit of what is not used": {"steps/train/params": ["mask"]},
        "a fit without an objective": {"steps/train/objective": []},
        "an objective that is not there": {"steps/train/objective": [[1, "lost"]]},
        "an objective without a gradient": {"steps/train/objective": [[1, "follows"]]},
        "an objective of a weight alone": {"steps/train/objective": [[1]]},
        "0 epochs": {"steps/train/epochs": 0},
        "0 rows an update": {"steps/train/pairs": 0},
        "an optimizer that is none": {"steps/train/optimizer/name": "lion"},
        "a learning rate below zero": {"steps/train/optimizer/lr": -1},
        "no learning rate": {"steps/train/optimizer/lr": GONE},
        "betas of `sgd`": {"steps/sparse/optimizer/betas": [0.9, 0.99]},
        "betas above 1": {"steps/train/optimizer/betas": [0.9, 1.5]},
        "annealing of what has no temperature": {"steps/train/anneal": {"rotation": {"start": 1, "end": 0.1}}},
        "annealing to 0": {"steps/sparse/anneal/mask/end": 0},
        "a patience of 0": {"steps/train/early_stop/patience": 0},
        "stopping by a metric that is not there": {"steps/train/early_stop/metric": "folows"},
        "no rows to judge by": {"steps/train/eval": GONE},
        "keeping the worst": {"steps/train/keep": "worst"},
        "publishing what is not declared": {"steps/publish/names": ["rotaton"]},
        "publishing nothing": {"steps/publish/names": []},
        "an attribution of a metric without a gradient": {"steps/explain/metric": "follows"},
        "a method that is none": {"steps/explain/method": "lrp"},
        "steps of a method without": {"steps/explain/method": "atp"},
        "0 steps of integration": {"steps/explain/ig_steps": 0},
        "a stream without points": {"steps/s": {**stream, "points": []}},
        "a stream of a point that is wrong": {"steps/s": {**stream, "points": [{**POINT, "layers": -1}]}},
        "a stream that says nothing": {"steps/s": {**stream, "decode": 0}},
        "a stream of a role that is not there": {"steps/s": {**stream, "input": "left"}},
        "a linear probe of what is not there": {**vectors, "steps/p": {**probe, "features": "vektors"}},
        "a linear probe of a mean": {**vectors, "steps/p": {**probe, "features": "mean"}},
        "a linear probe that is none": {**vectors, "steps/p": {**probe, "probe": "svm"}},
        "a linear probe of 1 fold": {**vectors, "steps/p": {**probe, "folds": 1}},
        "a linear probe of other rows": {**vectors, "steps/p": {**probe, "rows": rows}},
    }.items():
        table.add("Featurizers, fits and other steps", what, "validate", "--no-model", "d.json", files={"d.json": edited(TRAINED, edits)})


def add_compiled(table: Table) -> None:
    """Lists documents that do not fit their rows or their model."""
    generating = {"interventions/patching/decode": 2}
    for what, edits in {
        "a layer that the model has not": {"sites/stream/layers": 4},
        "a layer too far from the top": {"sites/stream/layers": -5},
        "a swept layer that the model has not": {"sites/stream/layers": {"sweep": [3, 4]}},
        "one layer named twice": {"sites/stream/layers": [3, -1]},
        "a head that the model has not": {"sites/stream": {"component": "attention_z", "layers": 0, "heads": [4]}},
        "a key/value head that the model has not": {"sites/stream": {"component": "attention_key", "layers": 0, "heads": [2]}},
        "a unit beyond the width": {"sites/stream/units": [64]},
        "patterns without eager attention": {"sites/stream": {"component": "attention_probs", "layers": 0}},
        "experts of a model without": {"sites/stream": {"component": "router_logits", "layers": 0}},
        "a position beyond a row": {f"{SOURCE}/pos": 99},
        "a position too far from the end": {f"{PATCH}/pos": -99},
        "more last tokens than a row has": {f"{SOURCE}/pos": {"last": 99}, f"{PATCH}/pos": {"last": 99}},
        "an offset beyond the row": {f"{PATCH}/pos": {"index": -1, "offset": 1}},
        "a variable that no row has": {f"{PATCH}/pos": {"index": 0, "scope": {"variable": "entiti"}}},
        "a column that no row has": {f"{PATCH}/pos": {"index": 0, "scope": {"column": "entiti"}}},
        "a column that is a number": {f"{PATCH}/pos": {"index": 0, "scope": {"column": "number"}}},
        "a text that is not in a row": {f"{PATCH}/pos": {"index": 0, "scope": {"text": "Saturday"}}},
        "a text that is there twice": {f"{PATCH}/pos": {"index": 0, "scope": {"text": "day"}}},
        "an occurrence that is not there": {f"{PATCH}/pos": {"index": 0, "scope": {"text": "day", "occurrence": 5}}},
        "a segment of a plain prompt": {f"{PATCH}/pos": {"index": 0, "scope": {"segment": "user"}}},
        "a prompt token that is not there": {f"{PATCH}/pos": "prompt[99]"},
        "a generated token beyond the last": {**generating, f"{PREDICTION}/pos": {"index": 2, "frame": "generated"}},
        "a field that no row has": {"roles/base/field": "inptu"},
        "a field that is a number": {"roles/base/field": "number"},
        "a field of a list that is too short": {"roles/counterfactual/field": "counterfactual_inputs[1]"},
        "a chat without a template": {"roles/base/field": "turns", "model/key": "bundled:successor-gpt2"},
        "an answer that is no column": {f"{METRIC}/expected": "cf_anser"},
        "an answer of several tokens": {f"{METRIC}/expected": "input"},
        "an answer that is a list": {f"{METRIC}/expected": "counterfactual_inputs"},
        "two equal answers": {METRIC: {"kind": "logit_diff", "of": "prediction", "a": "cf_answer", "b": "cf_answer"}},
        "a token id that is none": {f"{METRIC}/token_form": "id"},
        "classes without the answer": {
            METRIC: {"kind": "class_match", "of": "prediction", "expected": "cf_answer", "classes": [" Sunday"]}
        },
        "a regular expression that can't be read": {
            **generating,
            "interventions/patching/metrics/said": {"kind": "generated_match", "model": "patched", "expected": "pattern", "how": "regex"},
        },
        "a table that is not there": {f"{STEP}/rows/base": "rwos"},
        "a split that is not there": {f"{STEP}/rows/base": "rows#c"},
        "roles of unequal length": {f"{STEP}/rows/base": "rows#a"},
        "a table with its ending": {f"{STEP}/rows/base": "rows.json"},
        "a ref that is no path": {f"{STEP}/rows/base": "a##b"},
        "a ref out of the data root": {f"{STEP}/rows/base": "../secret"},
        "an absolute ref": {f"{STEP}/rows/base": "/etc/passwd"},
        "a group that is no column": {f"{STEP}/outputs": {"m": {"read": "source", "reduce": "mean_by", "by": "day"}}},
        "more directions than rows": {f"{STEP}/outputs": {"m": {"read": "source", "reduce": "pca", "k": 65}}},
        "a bundled model that is not there": {"model/key": "bundled:successor-lama"},
        "a model of nobody": {"model/key": "nobody/nothing", "model/revision": "main"},
        "a model that is a path to nothing": {"model/key": "./nothing"},
        "a model that is a GGUF file that is not there": {"model/key": "nothing.gguf"},
        "a rank above the width": {
            "featurizers": {"f": {"kind": "subspace", "k": 65}},
            f"{SOURCE}/featurizer": "f",
            f"{PATCH}/featurizer": "f",
        },
    }.items():
        rows = [{**row, "turns": [{"role": "user", "content": "x"}], "pattern": "(["} for row in ROWS]
        table.add("Documents and their rows", what, "validate", "d.json", files={"d.json": edited(SMALL, edits), "data/rows.json": rows})
    empty = [{**row, "cf_answer": None} for row in ROWS]
    table.add(
        "Documents and their rows", "answers that are all empty", "validate", "d.json", files={"d.json": SMALL, "data/rows.json": empty}
    )
    for what, change in {
        "a prompt that is empty": {"input": ""},
        "a prompt that is null": {"input": None},
        "a prompt that is a list": {"input": ["a"]},
        "a turn without content": {"input": [{"role": "user"}]},
    }.items():
        rows = [ROWS[0], {**ROWS[1], **change}, ROWS[2]]
        table.add("Documents and their rows", what, "validate", "d.json", files={"d.json": SMALL, "data/rows.json": rows})
    twice = [{**row, "example_id": "one"} for row in ROWS]
    table.add("Documents and their rows", "an `example_id` twice", "validate", "d.json", files={"d.json": SMALL, "data/rows.json": twice})
    table.add(
        "Documents and their rows", "a data root that is a file", "validate", "d.json", "--data-root", "d.json", files={"d.json": SMALL}
    )
    table.add(
        "Documents and their rows",
        "a wrong document that is run",
        "run",
        "d.json",
        "--out",
        "out",
        files={"d.json": edited(SMALL, {"sites/stream/layers": 9}), **TABLE},
    )


def add_tables(table: Table) -> None:
    """Lists tables that can't be read."""
    good = "input,answer\nMonday,Tuesday\n"
    long = "x" * 200_000
    for what, name, content in (
        ("an empty file", "t.json", ""),
        ("no rows", "t.json", "[]"),
        ("an object", "t.json", '{"input": "a"}'),
        ("a row that is a text", "t.json", '[{"input": "a"}, "b"]'),
        ("a row that is a list", "t.json", "[[1]]"),
        ("a row that is null", "t.json", "[null]"),
        ("a row twice a key", "t.json", '[{"a": 1, "a": 2}]'),
        ("NaN in a cell", "t.json", '[{"a": NaN}]'),
        ("lines of JSON in a `.json` file", "t.json", '{"a": 1}\n{"a": 2}\n'),
        ("a byte order mark", "t.json", b'\xef\xbb\xbf[{"a": 1}]'),
        ("UTF-16", "t.json", '[{"a": 1}]'.encode("utf-16")),
        ("a byte that is no text", "t.json", b'[{"a": "\xff"}]'),
        ("a zero byte", "t.json", b'[{"a": "\0"}]'),
        ("a file that ends early", "t.json", '[{"a": 1}, {"a"'),
        ("an empty file", "t.jsonl", ""),
        ("blank lines alone", "t.jsonl", "\n\n"),
        ("a line that is no JSON", "t.jsonl", '{"a": 1}\n{"a": 2\n'),
        ("a line that is a number", "t.jsonl", '{"a": 1}\n2\n'),
        ("two objects on a line", "t.jsonl", '{"a": 1} {"a": 2}\n'),
        ("a list of rows", "t.jsonl", '[{"a": 1}]\n'),
        ("a byte order mark", "t.jsonl", b'\xef\xbb\xbf{"a": 1}\n'),
        ("an empty file", "t.csv", ""),
        ("a head alone", "t.csv", "input,answer\n"),
        ("a line too short", "t.csv", f"{good}Sunday\n"),
        ("a line too long", "t.csv", f"{good}Sunday,Monday,Tuesday\n"),
        ("a column twice", "t.csv", "input,input\na,b\n"),
        ("a column without a name", "t.csv", "input,\na,b\n"),
        ("a quote that is not closed", "t.csv", f'{good}"Sunday,Monday\n'),
        ("text after a quote", "t.csv", f'{good}"Sunday"x,Monday\n'),
        ("a zero byte", "t.csv", f"{good}Sun\0day,Monday\n"),
        ("a cell of 200,000 characters", "t.csv", f"{good}{long},Monday\n"),
        ("Latin-1", "t.csv", "input\ncaf\u00e9\n".encode("latin-1")),
        ("a byte order mark", "t.csv", b"\xef\xbb\xbf" + good.encode()),
        ("semicolons and a line of another length", "t.csv", "input;answer\na,b;c\n"),
        ("an empty file", "t.parquet", b""),
        ("a text", "t.parquet", good),
        ("a file cut off", "t.parquet", b"PAR1" + b"\0" * 40 + b"PAR1"),
    ):
        table.add("Tables", f"{what} (`{name[1:]}`)", "data", "t", "--data-root", "data", files={f"data/{name}": content})
    for what, arguments, files in (
        ("a table that is not there", ["rwos"], TABLE),
        ("a folder of that name", ["t"], {"data/t.json": folder}),
        ("two tables of one name", ["t"], {"data/t.json": ROWS, "data/t.csv": good}),
        ("a link out of the data root", ["t"], {"t.json": ROWS, "data/t.json": lambda path: path.symlink_to("../t.json")}),
        ("a ref with an ending", ["rows.json"], TABLE),
        ("a ref that goes up", ["../data/rows"], TABLE),
        ("an absolute ref", ["/rows"], TABLE),
        ("a ref with two splits", ["rows#a#b"], TABLE),
        ("a ref with an empty split", ["rows#"], TABLE),
        ("an empty ref", [""], TABLE),
        ("a ref with a zero character", ["ro\0ws"], TABLE),
        ("a ref with a name of 300 characters", ["r" * 300], TABLE),
        ("a ref with a backslash", ["a\\rows"], TABLE),
        ("a split that is not there", ["rows#c"], TABLE),
        ("a split of a table without", ["t#a"], {"data/t.csv": good}),
    ):
        table.add("Tables", what, "data", *arguments, "--data-root", "data", files=files)
    table.add("Tables", "a data root that is not there", "data", "rows", "--data-root", "nowhere", files=TABLE)
    for what, arguments in {
        "a task that is none": ["succesor"],
        "no task": [],
        "0 pairs": ["successor", "--n", "0"],
        "more pairs than there are": ["ioi", "--n", "100000000"],
        "an option that is none": ["successor", "--set", "hop=2"],
        "an option of another kind": ["successor", "--set", 'hops="far"'],
        "a value that is no name": ["ioi", "--set", "names=7"],
        "a seed below zero": ["successor", "--seed", "-1"],
        "a file that is no `.json`": ["successor", "--out", "t.csv"],
        "a file that is there": ["successor", "--out", "data/rows.json"],
        "a file below a file": ["successor", "--out", "data/rows.json/t.json"],
        "a revision without a model": ["successor", "--revision", "main"],
        "a model that is not there": ["successor", "--model", "bundled:nothing"],
    }.items():
        table.add("New tables", what, "data", "new", *arguments, files=TABLE)


def add_specs(table: Table) -> None:
    """Lists extraction specs that are wrong."""
    yaml = 'version: "1"\nextraction_points:\n  - name: a\n    layers: 1\n    tensor_type: mlp_out\n    position: "prompt[-1]"\n'
    rest = "    probe_type: norm_monitor\n    probe_kind: single_shot\n"
    good = yaml + rest
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
    )
    for what, content in {
        "an empty file": "",
        "a comment alone": "# nothing\n",
        "a text": "hello\n",
        "a list": "- a\n- b\n",
        "a tab for blanks": good.replace("    layers", "\tlayers"),
        "a quote that is not closed": good.replace('"prompt[-1]"', '"prompt[-1]'),
        "a bracket that is not closed": good.replace("layers: 1", "layers: [1"),
        "a key twice": good + "    layers: 2\n",
        "two documents": f"{good}---\n{good}",
        "a tag that makes objects": good.replace("layers: 1", "layers: !!python/object/apply:os.getcwd []"),
        "a tag that is none": good.replace("layers: 1", "layers: !mine 1"),
        "an alias of nothing": good.replace("layers: 1", "layers: *a"),
        "an alias of itself": "a: &a [*a]\n",
        "aliases that grow": bomb,
        "a merge key": good + "    <<: {stride: 2}\n",
        "a number as version": good.replace('"1"', "1"),
        "a version of the future": good.replace('"1"', '"2"'),
        "an unknown key": good + "    postion: 1\n",
        "no points": 'version: "1"\nextraction_points: []\n',
        "points that are an object": 'version: "1"\nextraction_points: {}\n',
        "a point that is a text": 'version: "1"\nextraction_points: [a]\n',
        "two points of one name": good + (good.split("\n", 2)[2]),
        "a name that is a number": good.replace("name: a", "name: 1"),
        "an empty name": good.replace("name: a", 'name: ""'),
        "yes for a number": good.replace("layers: 1", "layers: yes"),
        "a negative layer": good.replace("layers: 1", "layers: -1"),
        "a layer that is a fraction": good.replace("layers: 1", "layers: 1.5"),
        "NaN": good.replace("layers: 1", "layers: .nan"),
        "a date": good.replace("layers: 1", "layers: 2024-01-01"),
        "an octal number": good.replace("layers: 1", "layers: 0o7"),
        "no layers": good.replace("    layers: 1\n", ""),
        "an older name beside the new one": good + "    layer: 1\n",
        "a tensor type that is none": good.replace("mlp_out", "mlp"),
        "a position with blanks": good.replace("prompt[-1]", "prompt[ -1 ]"),
        "a position that is negative": good.replace('"prompt[-1]"', "-1"),
        "a reversed slice": good.replace("prompt[-1]", "generated[5:2]"),
        "a slice without a start": good.replace("prompt[-1]", "generated[:2]"),
        "an offset of a number": good.replace("prompt[-1]", "5+1"),
        "an offset of a run": good.replace("prompt[-1]", "generated[*]+1"),
        "a stride of one token": good + "    stride: 2\n",
        "an end of one token": good + "    until: generation_end\n",
        "a stride of 0": good.replace("prompt[-1]", "generated[*]").replace("single_shot", "trajectory") + "    stride: 0\n",
        "a kind of probe that is none": good.replace("single_shot", "once"),
        "no probe": yaml,
        "async of a single shot": good + "    execution_mode: async\n",
        "a queue without async": good + "    queue_depth: 2\n",
        "arguments that are a list": good + "    probe_args: [1]\n",
        "blocking without a limit": good + "    intervention: {mode: block_until_signal}\n",
        "a limit of no blocking": good + "    intervention: {mode: reject, timeout_ms: 5}\n",
        "a mode that is none": good + "    intervention: {mode: maybe}\n",
        "Latin-1": good.replace("name: a", "name: \u00e9").encode("latin-1"),
        "a zero byte": good.encode() + b"\0",
        "a control character": good + "# \x07\n",
        "a hundred and fifty levels": "a: " + "[" * 150 + "]" * 150,
    }.items():
        table.add("Extraction specs", what, "validate", "s.yaml", files={"s.yaml": content})
    for what, content in {
        "a comma too many": '{"version": "1", "extraction_points": [],}',
        "a key twice": '{"version": "1", "extraction_points": [], "version": "1"}',
        "NaN": '{"version": "1", "extraction_points": [{"layers": NaN}]}',
        "a point of nothing": '{"version": "1", "extraction_points": [{}]}',
    }.items():
        table.add("Extraction specs", f"{what} (`.json`)", "validate", "s.json", files={"s.json": content})
    table.add("Extraction specs", "a file that is not there", "validate", "s.yaml")
    table.add("Extraction specs", "a folder", "validate", "s.yaml", files={"s.yaml": folder})
    table.add("Extraction specs", "`--set` beside a spec", "validate", "s.yaml", "--set", "version=2", files={"s.yaml": good})
    watch = ["probe", "s.yaml", "--model", MODEL, "--out", "out", "--max-new-tokens", "2", "--prompt", "Sunday"]
    for what, point in {
        "a layer that the model has not": {"layers": [4]},
        "a tensor that the model has not": {"tensor_type": "router_logits"},
        "a probe that is not registered": {"probe_type": "norm_moniter"},
        "an argument that the probe has not": {"probe_args": {"thresold": 1}},
        "an argument of another kind": {"probe_args": {"threshold": "high"}},
        "a stop token of two tokens": {"until": "stop_token", "token": "Saturday morning"},
        "a linear probe without a file": {"probe_type": "linear_probe"},
    }.items():
        table.add(
            "Extraction specs",
            f"{what} (on a model)",
            *watch,
            files={"s.yaml": json.dumps({**SPEC, "extraction_points": [{**POINT, **point}]})},
        )


def add_positions(table: Table) -> None:
    """Lists positions and fields on the command line."""
    show = ["tokens", MODEL, "--data", "rows", "--data-root", "data", "--pos"]
    for what, position in {
        "a word": "last",
        "an empty position": "",
        "no JSON": "{index: 1}",
        "a fraction": "0.5",
        "`true`": "true",
        "null": "null",
        "a list": "[1]",
        "an unknown key": '{"idx": 1}',
        "no cut": "{}",
        "two cuts": '{"index": 1, "last": 2}',
        "the last -1 tokens": '{"last": -1}',
        "an empty span": '{"span": [1, 1]}',
        "a span of one number": '{"span": [1]}',
        "a stride below 1": '{"all": true, "stride": 0}',
        "an anchor that is a text": '{"index": 0, "scope": "entity"}',
        "a variable that no row has": '{"index": 0, "scope": {"variable": "entiti"}}',
        "an unknown key of an anchor": '{"index": 0, "scope": {"varable": "entity"}}',
        "a key twice": '{"index": 0, "index": 1}',
        "NaN": "NaN",
        "a selector with blanks": '"prompt[ 1 ]"',
        "a selector with a sign": '"-1"',
        "a selector with an offset of a number": '"5+1"',
        "a selector with an empty slice": '"prompt[2:2]"',
        "a selector with a negative start": '"prompt[-3:]"',
        "a selector that is not closed": '"prompt[1"',
        "a selector in other digits": '"prompt[\u0661]"',
        "a generated token": '"generated[0]"',
        "a position in what is generated": '{"index": 0, "frame": "generated"}',
    }.items():
        table.add("Positions on the command line", what, *show, position, files=TABLE)
    for what, arguments in {
        "a field that is no path": ["--field", "a..b"],
        "a field that no row has": ["--field", "inptu"],
        "a table that is not there": ["--data", "rwos"],
        "a model that is not there": [],
    }.items():
        model = "bundled:nothing" if not arguments else MODEL
        given = {"--data": "rows", "--data-root": "data"} | dict(zip(arguments[::2], arguments[1::2], strict=True))
        table.add("Positions on the command line", what, "tokens", model, *(word for both in given.items() for word in both), files=TABLE)
    table.add("Positions on the command line", "neither texts nor rows", "tokens", MODEL)
    table.add("Positions on the command line", "texts and rows", "tokens", MODEL, "x", "--data", "rows", files=TABLE)
    table.add("Positions on the command line", "a position without rows", "tokens", MODEL, "x", "--pos", "-1")


def add_overrides(table: Table) -> None:
    """Lists `--set` options."""
    for what, pair in {
        "no value": "model.dtype",
        "no path": "=fp32",
        "a path that is none": "model..dtype=fp32",
        "a path with a blank": "model. dtype=fp32",
        "a path through nothing": "modle.dtype=fp32",
        "a path through a text": "model.key.x=1",
        "an index beyond the list": "steps.patch.saves[7].value=x",
        "an index of an object": "steps[0]=x",
        "a negative index": "steps.patch.saves[-1].value=x",
        "an unknown key": "model.dtyp=fp32",
        "a value of another kind": "model.dtype=7",
        "a value that is no JSON": "sites.stream.layers=[1",
        "NaN": "sites.stream.layers=NaN",
        "an infinite value": "sites.stream.layers=1e999",
        "a value with a key twice": 'sites.stream={"component": "logits", "component": "logits"}',
        "half a character": 'header={"title": "\\ud800"}',
        "a hundred and one levels": "header=" + "[" * 101 + "]" * 101,
        "a hundred thousand levels": "header=" + "[" * 100_000,
        "the whole document": ".=1",
    }.items():
        table.add("`--set`", what, "validate", "--no-model", "d.json", "--set", pair, files={"d.json": SMALL})
    table.add("`--set`", "without a kind", "new", "--set", "a=1")
    table.add("`--set`", "a new document that is wrong", "new", "quickstart", "n.json", "--set", "model.dtype=int8")
    table.add("`--set`", "a kind of document that is none", "new", "quikstart")
    table.add("`--set`", "a new document over another", "new", "quickstart", "d.json", files={"d.json": SMALL})
    table.add("`--set`", "a new document below a file", "new", "quickstart", "d.json/n.json", files={"d.json": SMALL})


STAMP = {
    "model": MODEL, "revision": None, "dtype": "fp32", "component": "block_output", "layer": 1, "heads": None, "units": None,
    "kind": "subspace", "k": 2, "d": 64, "parametrization": "cayley",
}  # fmt: skip


def ours(stamp: Any = None, tensors: Mapping[str, Any] | None = None, **metadata: Any) -> bytes:
    """Returns a featurizer file as this package writes it."""
    said = {"format": "causalab-mini/featurizers/1", "digest": "0", "stamps": json.dumps({"f": STAMP if stamp is None else stamp})}
    return safetensors(tensors or {"f.basis": orthonormal(64, 2)}, said | metadata)


def add_featurizers(table: Table) -> None:
    """Lists files of featurizers that can't be used."""
    basis = {"basis": orthonormal(64, 2)}
    good = safetensors(basis)
    header = json.dumps({"basis": {"dtype": "F32", "shape": [64, 2], "data_offsets": [0, 512]}})

    def lying(**change: Any) -> bytes:
        return safetensors(basis, header=json.dumps({"basis": {**json.loads(header)["basis"], **change}}).encode())

    subspace = {"kind": "subspace", "k": 2, "file_path": "f.safetensors"}
    used = {f"{SOURCE}/featurizer": "f", f"{PATCH}/featurizer": "f"}
    for what, content in {
        "an empty file": b"",
        "7 bytes": b"1234567",
        "a file that ends in its header": good[:40],
        "a file that ends in its numbers": good[:-10],
        "bytes behind the numbers": good + b"0",
        "a header of 2⁶³ bytes": struct.pack("<Q", 2**63) + good[8:],
        "a header that is no JSON": safetensors(basis, header=b"{nothing"),
        "a header that is a list": safetensors(basis, header=b"[]"),
        "a header in Latin-1": safetensors(basis, header=b'{"\xe9": 1}'),
        "a tensor twice": safetensors(basis, header=(header[:-1] + ", " + header[1:]).encode()),
        "a shape of more numbers than there are": lying(shape=[64, 4]),
        "a negative size": lying(shape=[-64, -2]),
        "a size that is a fraction": lying(shape=[64.0, 2]),
        "a size of 2⁶⁴": lying(shape=[2**64, 0]),
        "offsets the wrong way round": lying(data_offsets=[512, 0]),
        "offsets beyond the file": lying(data_offsets=[0, 2**40]),
        "a hole before the numbers": lying(data_offsets=[8, 520]),
        "a dtype that is none": lying(dtype="F33"),
        "whole numbers": safetensors({"basis": ("I32", [64, 2], bytes(512))}),
        "metadata of numbers": safetensors(basis, {"a": 1}),
        "no tensors": safetensors({}),
        "two matrices of other names": safetensors({"a": floats(64, 2), "b": floats(64, 2)}),
        "a cube": safetensors({"basis": floats(4, 4, 4)}),
        "a matrix of another width": safetensors({"basis": orthonormal(32, 2)}),
        "a matrix of another rank": safetensors({"basis": orthonormal(64, 3)}),
        "a matrix of nothing": safetensors({"basis": ("F32", [64, 0], b"")}),
        "a text file": "not safetensors, but long enough to be read",
        "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07pickled\x94.",
        "a zip file": b"PK\x03\x04" + bytes(60),
        "a format of the future": ours(format="causalab-mini/featurizers/2"),
        "stamps that are no JSON": ours(stamps="{"),
        "stamps that are a list": ours(stamps="[]"),
        "a stamp that is a text": ours("x"),
        "a stamp with a key too few": ours({key: value for key, value in STAMP.items() if key != "layer"}),
        "a stamp of another layer": ours({**STAMP, "layer": 2}),
        "a stamp of another model": ours({**STAMP, "model": "gpt2"}),
        "a stamp of another dtype": ours({**STAMP, "dtype": "bf16"}),
        "a stamp of another kind": ours({**STAMP, "kind": "gate", "k": None}, {"f.theta": floats(64)}),
        "a stamp of another rank": ours({**STAMP, "k": 3}),
        "a stamp of a width that its tensors have not": ours({**STAMP, "d": 32}),
        "a stamp without its tensor": ours(None, {"g.basis": orthonormal(64, 2)}),
    }.items():
        document = edited(SMALL, {"featurizers": {"f": subspace}, **used})
        table.add("Files of featurizers", what, "validate", "d.json", files={"d.json": document, "f.safetensors": content, **TABLE})
    sae = {"kind": "sae", "activation": "relu", "file_path": "f.safetensors"}
    parts = {"W_enc": floats(64, 8), "W_dec": floats(8, 64), "b_enc": floats(8), "b_dec": floats(64)}
    for what, featurizer, content, more in (
        ("a file that is not there", {**subspace, "file_path": "g.safetensors"}, good, {}),
        ("a folder", {**subspace, "file_path": "data"}, good, {}),
        ("a file of PyTorch's own format", {**subspace, "file_path": "f.pt"}, good, {"f.pt": b"PK\x03\x04" + bytes(60)}),
        ("an autoencoder without a decoder", sae, safetensors({k: v for k, v in parts.items() if k != "W_dec"}), {}),
        ("an autoencoder whose parts do not fit", sae, safetensors(parts | {"b_enc": floats(9)}), {}),
        (
            "an autoencoder of another width",
            sae,
            safetensors({"W_enc": floats(32, 8), "W_dec": floats(8, 32), "b_enc": floats(8), "b_dec": floats(32)}),
            {},
        ),
        ("a JumpReLU without a threshold", {**sae, "activation": "jumprelu"}, safetensors(parts), {}),
        ("a `cfg.json` that is no JSON", sae, safetensors(parts), {"cfg.json": "{"}),
        ("a `cfg.json` of another activation", sae, safetensors(parts), {"cfg.json": {"activation_fn": "topk"}}),
        ("a `cfg.json` of another width", sae, safetensors(parts), {"cfg.json": {"d_in": 65}}),
        ("a gate of another width", {"kind": "gate", "file_path": "f.safetensors"}, safetensors({"theta": floats(32)}), {}),
        ("a scale without deviations", {"kind": "standardize", "file_path": "f.safetensors"}, safetensors({"mean": floats(64)}), {}),
    ):
        document = edited(SMALL, {"featurizers": {"f": featurizer}, **used})
        table.add("Files of featurizers", what, "validate", "d.json", files={"d.json": document, "f.safetensors": content, **TABLE, **more})
    for what, featurizer, tensors in (
        ("numbers that are no numbers", subspace, {"basis": floats(64, 2, value=float("nan"))}),
        ("directions that are not orthonormal", subspace, {"basis": floats(64, 2)}),
        ("an infinite encoder", sae, parts | {"W_enc": floats(64, 8, value=float("inf"))}),
        (
            "an infinite deviation",
            {"kind": "standardize", "file_path": "f.safetensors"},
            {"mean": floats(64), "std": floats(64, value=float("inf"))},
        ),
    ):
        document = edited(SMALL, {"featurizers": {"f": featurizer}, **used})
        files = {"d.json": document, "f.safetensors": safetensors(tensors), **TABLE}
        table.add("Files of featurizers", what, "run", "d.json", "--out", "out", files=files)


def add_probes(table: Table) -> None:
    """Lists files of linear probes that can't be used."""
    tensors = {"weight": floats(1, 64), "bias": floats(1)}
    said = {"format": "causalab-mini linear probe 1", "probe": "logistic", "classes": '["a", "b"]', "stamp": "{}"}

    def probe(change: Mapping[str, Any] | None = None, **more: Any) -> bytes:
        metadata = {key: value for key, value in {**said, **more}.items() if value is not None}
        return safetensors(tensors if change is None else change, metadata)

    for what, content in {
        "an empty file": b"",
        "a file that ends early": probe()[:-3],
        "another format": probe(format="x"),
        "no format": probe(format=None),
        "no classes": probe(classes=None),
        "a kind that is none": probe(probe="svm"),
        "classes that are no JSON": probe(classes="a, b"),
        "one class": probe(classes='["a"]'),
        "a class twice": probe(classes='["a", "a"]'),
        "classes that are not sorted": probe(classes='["b", "a"]'),
        "classes of two kinds": probe(classes='["a", 1]'),
        "classes of a regression": probe(probe="ridge"),
        "a stamp that is no object": probe(stamp="[]"),
        "no bias": probe({"weight": floats(1, 64)}),
        "a tensor too many": probe(tensors | {"scale": floats(1)}),
        "a weight of three classes": probe(tensors | {"weight": floats(3, 64)}),
        "a weight of another width": probe({"weight": floats(1, 32), "bias": floats(1)}),
        "a weight of half precision": probe(tensors | {"weight": ("F16", [1, 64], bytes(128))}),
        "numbers that are no numbers": probe(tensors | {"weight": floats(1, 64, value=float("nan"))}),
        "a stamp of another layer": probe(stamp=json.dumps({"model": MODEL, "layer": 3, "component": "block_output"})),
    }.items():
        point = {**POINT, "probe_type": "linear_probe", "probe_args": {"file": "p.safetensors"}}
        files = {"s.yaml": json.dumps({**SPEC, "extraction_points": [point]}), "p.safetensors": content}
        command = ["probe", "s.yaml", "--model", MODEL, "--out", "out", "--max-new-tokens", "2", "--prompt", "Sunday"]
        table.add("Files of linear probes", what, *command, files=files)


def add_models(table: Table) -> None:
    """Lists folders that are no checkpoint."""

    def config(**change: Any) -> Callable[[bytes], Any]:
        return lambda old: {key: value for key, value in {**json.loads(old), **change}.items() if value is not GONE}

    for what, make in {
        "no config": checkpoint(config__json=None),
        "an empty config": checkpoint(config__json=""),
        "a config that is no JSON": checkpoint(config__json="{model_type"),
        "a config that is a list": checkpoint(config__json=[]),
        "a config in UTF-16": checkpoint(config__json="{}".encode("utf-16")),
        "a config without a family": checkpoint(config__json={}),
        "a family that is none": checkpoint(config__json=config(model_type="lama")),
        "a family without proved places": checkpoint(config__json=config(model_type="bert")),
        "a family that is a number": checkpoint(config__json=config(model_type=7)),
        "layers that are a text": checkpoint(config__json=config(num_hidden_layers="four")),
        "a width that is a fraction": checkpoint(config__json=config(hidden_size=64.5)),
        "no heads": checkpoint(config__json=config(num_attention_heads=0)),
        "layers below zero": checkpoint(config__json=config(num_hidden_layers=-4)),
        "quantised weights": checkpoint(config__json=config(quantization_config={"quant_method": "gptq", "bits": 4})),
        "code of its own": checkpoint(config__json=config(model_type="mine", auto_map={"AutoConfig": "mine.Config"})),
        "an empty folder": folder,
    }.items():
        table.add("Folders of models", what, "model", "./m", files={"m": make})
    for what, make in {
        "no tokenizer": checkpoint(tokenizer__json=None, tokenizer_config__json=None),
        "a tokenizer that ends early": checkpoint(tokenizer__json=lambda old: old[:1000]),
        "an empty tokenizer": checkpoint(tokenizer__json=""),
        "a tokenizer of nothing": checkpoint(tokenizer__json={}),
        "a tokenizer of a kind that is none": checkpoint(tokenizer__json=lambda old: {**json.loads(old), "model": {"type": "None"}}),
        "a tokenizer's config that is no JSON": checkpoint(tokenizer_config__json="{"),
    }.items():
        table.add("Folders of models", what, "tokens", "./m", "Sunday", files={"m": make})
    document = edited(SMALL, {"model/key": "./m"})
    for what, make in {
        "no weights": checkpoint(model__safetensors=None),
        "empty weights": checkpoint(model__safetensors=b""),
        "weights that end early": checkpoint(model__safetensors=lambda old: old[: len(old) // 2]),
        "weights whose header is no JSON": checkpoint(model__safetensors=lambda old: old[:8] + b"x" * 100 + old[108:]),
        "weights of another shape": checkpoint(config__json=config(hidden_size=128)),
        "weights of fewer layers": checkpoint(config__json=config(num_hidden_layers=6)),
        "weights that are another file": checkpoint(model__safetensors=safetensors({"x": floats(2)})),
    }.items():
        table.add("Folders of models", what, "run", "d.json", "--out", "out", files={"d.json": document, "m": make, **TABLE})
    for what, content in {
        "an empty file": b"",
        "a text": "GGUF",
        "a version of the future": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        "counts beyond the file": b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
        "no metadata": b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    }.items():
        table.add("Folders of models", f"{what} (`.gguf`)", "model", "m.gguf", files={"m.gguf": content})
    for what, arguments in {
        "a bundled model that is not there": ["bundled:successor-lama"],
        "a hub id without a revision": ["gpt2"],
        "a hub id that is not in the cache": ["nobody/nothing", "--revision", "main"],
        "a path to nothing": ["./nothing"],
        "an empty key": [""],
        "a key with a zero character": ["a\0b"],
        "a revision of a folder": ["./m", "--revision", "main"],
        "a dtype that is none": [MODEL, "--dtype", "int8"],
        "an attention that is none": [MODEL, "--attention", "flash"],
        "a device without weights": [MODEL, "--device-map", "cpu"],
        "a spec over a file": [MODEL, "--emit-spec", "m/config.json"],
    }.items():
        table.add("Folders of models", what, "model", *arguments, files={"m": checkpoint()})


def add_options(table: Table) -> None:
    """Lists command lines."""
    good = {"d.json": SMALL, "s.yaml": json.dumps(SPEC), **TABLE}
    probe = ["probe", "s.yaml", "--model", MODEL, "--out", "out", "--max-new-tokens", "2"]
    prompted = [*probe, "--prompt", "Sunday"]
    serve = ["serve", "s.yaml", "--model", MODEL]
    run = ["run", "d.json", "--out", "out"]
    for what, arguments in {
        "a verb that is none": ["rnu", "d.json"],
        "an option that is none": [*run, "--wiat"],
        "an option before the verb": ["--fresh", "run"],
        "no document": ["run", "--out", "out"],
        "no folder": ["run", "d.json"],
        "an option without its value": ["run", "d.json", "--out"],
        "a flag with a value": [*run, "--fresh=yes"],
        "two documents": ["run", "d.json", "d.json", "--out", "out"],
        "a batch of 0": [*run, "--batch-size", "0"],
        "a batch of -1": [*run, "--batch-size", "-1"],
        "a batch in words": [*run, "--batch-size", "many"],
        "a batch in other digits": [*run, "--batch-size", "\u0663\u00b2"],
        "a batch of 5,000 digits": [*run, "--batch-size", "9" * 5000],
        "a check that is none": [*run, "--check", "some"],
        "an engine that is none": [*run, "--engine", "jax"],
        "a device that is none": [*run, "--device-map", "tpu:x"],
        "a device beyond the last": [*run, "--device-map", "cuda:99"],
        "a data root that is not there": [*run, "--data-root", "nowhere"],
        "a folder that is a file": ["run", "d.json", "--out", "d.json"],
        "a folder that holds something else": ["run", "d.json", "--out", "data"],
        "an empty folder name": ["run", "d.json", "--out", ""],
        "a folder with a zero character": ["run", "d.json", "--out", "a\0b"],
        "a data root of no table": ["validate", "--no-model", "d.json", "--data-root", "data"],
        "no document to validate": ["validate"],
        "no verb to describe": ["explain"],
        "an option of another verb": ["explain", "d.json", "--out", "out"],
        "no prompt": probe,
        "prompts from two places": [*prompted, "--data", "rows"],
        "rows without a field": [*probe, "--data", "rows"],
        "a field that no row has": [*probe, "--data", "rows", "--field", "inptu"],
        "a field that is no path": [*probe, "--data", "rows", "--field", "a["],
        "a field without rows": [*prompted, "--field", "input"],
        "an empty prompt": [*probe, "--prompt", ""],
        "0 new tokens": [*probe[:-1], "0", "--prompt", "Sunday"],
        "new tokens in words": [*probe[:-1], "few", "--prompt", "Sunday"],
        "sampling without a seed": [*prompted, "--do-sample"],
        "a temperature without sampling": [*prompted, "--temperature", "0.5"],
        "a temperature below zero": [*prompted, "--do-sample", "--seed", "0", "--temperature", "-1"],
        "a temperature that is no number": [*prompted, "--do-sample", "--seed", "0", "--temperature", "nan"],
        "a nucleus above 1": [*prompted, "--do-sample", "--seed", "0", "--top-p", "2"],
        "an empty stop text": [*prompted, "--stop", ""],
        "an argument that names no probe": [*prompted, "--probe-arg", "threshold=1"],
        "an argument of a probe that is not asked": [*prompted, "--probe-arg", "other.threshold=1"],
        "a file of probes that is not there": [*prompted, "--probes", "nothing.py"],
        "a file of probes that is no Python": [*prompted, "--probes", "s.yaml"],
        "a probe's limit of 0": [*prompted, "--probe-timeout", "0"],
        "a probe's limit that is no number": [*prompted, "--probe-timeout", "nan"],
        "a probe's limit without end": [*prompted, "--probe-timeout", "inf"],
        "redaction without a sink": [*prompted, "--redact", "value"],
        "a sink that is a folder": [*prompted, "--ndjson", "data"],
        "a sink in no folder": [*prompted, "--ndjson", "no/where.ndjson"],
        "a URL that is none": [*prompted, "--webhook", "example"],
        "a URL of a file": [*prompted, "--webhook", "file:///etc/passwd"],
        "a token that is not in the environment": [*prompted, "--webhook", "http://127.0.0.1:1/", "--webhook-token-env", "NO_SUCH_TOKEN"],
        "dead letters without a URL": [*prompted, "--dead-letters", "x"],
        "a port beyond the last": [*serve, "--port", "70000"],
        "a port in words": [*serve, "--port", "http"],
        "the world without a token": [*serve, "--host", "0.0.0.0"],
        "a host that is none": [*serve, "--host", "no host", "--allow-remote"],
        "a token from two places": [*serve, "--token-env", "A", "--token-file", "d.json"],
        "a token that is empty": [*serve, "--token-env", "NO_SUCH_TOKEN"],
        "a token's file that is not there": [*serve, "--token-file", "nothing"],
        "a token with blanks": [*serve, "--token-file", "d.json"],
        "0 generations together": [*serve, "--max-rows", "0"],
        "a limit that is no number": [*serve, "--timeout", "nan"],
        "a served spec that is not there": ["serve", "t.yaml", "--model", MODEL],
        "a served model that is not there": ["serve", "s.yaml", "--model", "bundled:nothing"],
        "no rows to show": ["tokens", MODEL, "--data", "rows", "--rows", "0"],
    }.items():
        table.add("Command lines", what, *arguments, files=good)
    for what, out in {"a folder below a file": "d.json/out", "a folder with a name of 300 characters": "o" * 300}.items():
        table.add("Command lines", what, "run", "d.json", "--out", out, files=good, code=FAILED)


def add_results(table: Table) -> None:
    """Lists folders that are no results, or broken ones."""
    verbs: dict[str, list[str]] = {
        "show": ["show", "out"],
        "report": ["report", "out"],
        "plot": ["plot", "out"],
        "export": ["export", "out", "tables"],
        "compare": ["compare", "out", "out"],
    }
    for what, make in {
        "a folder that is not there": None,
        "a file": "x",
        "an empty folder": folder,
        "a foreign folder": lambda path: write(path / "notes.txt", "hello"),
        "a record that ends early": results({"run.json": '{"status": "fin'}),
    }.items():
        for verb, arguments in verbs.items():
            table.add("Folders of results", f"{what} (`{verb}`)", *arguments, files={} if make is None else {"out": make})
    table.add("Folders of results", "the folder of one point", "show", "out/layer=0", files={"out": results()})
    for what, verb, edits in (
        ("a record that is a list", "show", {"run.json": []}),
        ("a record without a status", "show", {"run.json": {}}),
        ("a status that is a number", "show", {"run.json": {"status": 1}}),
        ("a record with NaN", "show", {"run.json": '{"status": "finished", "seconds": NaN}'}),
        ("a record in Latin-1", "show", {"run.json": b'{"status": "\xe9"}'}),
        ("a record of other kinds", "show", {"run.json": lambda old: {**old, "model": "gpt2", "steps": 7}}),
        ("steps that are texts", "show", {"run.json": lambda old: {**old, "steps": ["a"]}}),
        ("an error that is a text", "show", {"run.json": lambda old: {**old, "status": "failed", "error": "x"}}),
        ("a document that ends early", "show", {"document.json": "{"}),
        ("a document that is a list", "report", {"document.json": []}),
        ("no document", "report", {"document.json": None}),
        ("points that are a list", "show", {"points.json": []}),
        ("points that lead out of the folder", "show", {"points.json": {"../x": {"layer": 0}}}),
        ("points that are numbers", "show", {"points.json": {"layer=0": 0}}),
        ("no points", "export", {"points.json": {}}),
        ("a summary that is a list", "show", {"summary.json": []}),
        ("a summary that ends early", "show", {"summary.json": '{"metrics": ['}),
        ("metrics that are a text", "show", {"summary.json": lambda old: {**old, "metrics": "x"}}),
        ("a metric without a name", "show", {"summary.json": lambda old: {**old, "metrics": [{}]}}),
        ("a mean that is a text", "show", {"summary.json": lambda old: {**old, "metrics": [{**old["metrics"][0], "mean": "high"}]}}),
        ("an interval of one number", "show", {"summary.json": lambda old: {**old, "metrics": [{**old["metrics"][0], "interval": [1]}]}}),
        ("axes that are a list", "export", {"summary.json": lambda old: {**old, "metrics": [{**old["metrics"][0], "axes": []}]}}),
        ("metrics that are numbers", "report", {"summary.json": lambda old: {**old, "metrics": [1]}}),
        ("metrics that are numbers", "plot", {"summary.json": lambda old: {**old, "metrics": [1]}}),
        ("metrics that are numbers", "compare", {"summary.json": lambda old: {**old, "metrics": [1]}}),
        ("places that are a list", "report", {"places.json": []}),
        ("places that end early", "report", {"places.json": "{"}),
        ("places of other kinds", "report", {"places.json": {"files": 7, "steps": 7}}),
        ("a table that ends early", "export", {"layer=0/follows.json": '[{"example_id": '}),
        ("a table that is an object", "export", {"layer=0/follows.json": {}}),
        ("a table of numbers", "export", {"layer=0/follows.json": [1]}),
        ("a CSV table of uneven lines", "export", {"layer=0/tables/follows.csv": "a,b\n1\n"}),
        ("a CSV table in Latin-1", "export", {"layer=0/tables/follows.csv": b"a\n\xe9\n"}),
    ):
        table.add("Folders of results", f"{what} (`{verb}`)", *verbs[verb], files={"out": results(edits)})
    for what, arguments, edits in (
        ("a table that is not there", ["show", "out", "folows"], {}),
        ("a point that is not there", ["show", "out", "follows", "--point", "layer=7"], {}),
        ("a table that ends early", ["show", "out", "follows.json"], {"layer=1/follows.json": "["}),
        ("tensors that end early", ["show", "out", "mean"], {"layer=1/mean.safetensors": b"\x08\0\0"}),
        ("tensors that are a text", ["show", "out", "mean"], {"layer=1/mean.safetensors": "tensors, it says"}),
        ("tensors whose header lies", ["show", "out", "mean"], {"layer=1/mean.safetensors": safetensors({"a": ("F32", [9], bytes(4))})}),
        ("a format that is none", ["export", "out", "tables", "--to", "xlsx"], {}),
        ("tables into the results", ["export", "out", "out/tables"], {}),
        ("tables over others", ["export", "out", "tables"], {}),
        ("tables below a file", ["export", "out", "file/tables"], {}),
        ("a picture that is none", ["plot", "out", "--format", "gif"], {}),
        ("a tolerance below zero", ["compare", "out", "out", "--tolerance", "-1"], {}),
        ("a tolerance that is no number", ["compare", "out", "out", "--tolerance", "nan"], {}),
        ("a run and nothing", ["compare", "out", "nothing"], {}),
        ("one folder", ["compare", "out"], {}),
    ):
        files = {"out": results(edits), "file": "x", "tables/follows.csv": "a\n"}
        code = FAILED if what == "tables below a file" else WRONG
        table.add("Folders of results", what, *arguments, files=files, code=code)
    table.add(
        "Folders of results",
        "a page below a file",
        "report",
        "out",
        "--to",
        "file/r.html",
        files={"out": results(), "file": "x"},
        code=FAILED,
    )
    table.add(
        "Folders of results",
        "a page that is a folder",
        "report",
        "out",
        "--to",
        "pages",
        files={"out": results(), "pages": folder},
        code=FAILED,
    )
    other = {"d.json": edited(SWEEP, {"sites/stream/layers": 2}), **TABLE}
    broken = {"document.json": None, "run.json": None, ".points": None}
    table.add(
        "Folders of results",
        "what no run has left (`run` into it)",
        "run",
        "d.json",
        "--out",
        "out",
        files={"out": results(broken), **other},
    )


def add_requests(table: Table) -> None:
    """Lists requests to the server; the code is the status of the answer."""
    completion, chat = "/v1/completions", "/v1/chat/completions"
    good = {"model": "tiny", "prompt": "Sunday", "max_tokens": 2}
    said = {"model": "tiny", "messages": [{"role": "user", "content": "Sunday"}]}
    for what, path, body, code in (
        ("an empty body", completion, "", 400),
        ("a body that is no JSON", completion, "{", 400),
        ("a body in Latin-1", completion, b'{"model": "\xe9"}', 400),
        ("a list", completion, [], 400),
        ("half a character", completion, '{"model": "tiny", "prompt": "\\ud800"}', 400),
        ("a hundred levels", completion, "[" * 200 + "]" * 200, 400),
        ("no model", completion, {"prompt": "Sunday"}, 400),
        ("another model", completion, {**good, "model": "gpt-4"}, 404),
        ("no prompt", completion, {"model": "tiny"}, 400),
        ("a prompt that is a number", completion, {**good, "prompt": 7}, 400),
        ("an empty list of prompts", completion, {**good, "prompt": []}, 400),
        ("a token id that is negative", completion, {**good, "prompt": [-1]}, 400),
        ("a token id beyond the last", completion, {**good, "prompt": [10**6]}, 400),
        ("a prompt that is too long", completion, {**good, "prompt": [5] * 129}, 400),
        ("more prompts than places", completion, {**good, "prompt": ["a"] * 9}, 400),
        ("an unknown key", completion, {**good, "max_token": 1}, 400),
        ("0 tokens", completion, {**good, "max_tokens": 0}, 400),
        ("more tokens than there may be", completion, {**good, "max_tokens": 65}, 400),
        ("tokens as a text", completion, {**good, "max_tokens": "2"}, 400),
        ("a temperature above 2", completion, {**good, "temperature": 3}, 400),
        ("NaN", completion, '{"model": "tiny", "prompt": "a", "temperature": NaN}', 400),
        ("an empty stop text", completion, {**good, "stop": ""}, 400),
        ("a hundred stop texts", completion, {**good, "stop": ["."] * 100}, 400),
        ("what is not supported", completion, {**good, "logprobs": 5}, 400),
        ("options of a stream without one", completion, {**good, "stream_options": {"include_usage": True}}, 400),
        ("a body that is too large", completion, {**good, "prompt": "x" * 5000}, 413),
        ("no messages", chat, {**said, "messages": []}, 400),
        ("a role that is none", chat, {**said, "messages": [{"role": "god", "content": "x"}]}, 400),
        ("a message without content", chat, {**said, "messages": [{"role": "user"}]}, 400),
        ("an image", chat, {**said, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
        ("two lengths", chat, {**said, "max_tokens": 1, "max_completion_tokens": 1}, 400),
        ("tools", chat, {**said, "tools": [{"type": "function"}]}, 400),
        ("a route that is not there", "/v1/embeddings", good, 404),
        ("a route of another method", "/v1/models", good, 405),
    ):
        table.add("Requests to `serve`", what, "POST", path, body, code=code)


# the page

HEAD = """# Bad inputs

Generated by `python tests/bad_inputs.py --write` (`make docs`): {n} inputs that are wrong, and what the program says of each. The tests give
it every one of them: it has to end with the exit code of its kind (2 where the input is wrong, 1 where the run failed), say in words what
was expected and what was got, show no traceback, and leave no file behind.

<div class="wrapped" markdown>
"""
MAX_COMMAND, MAX_ERROR = 90, 260
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def first_line(case: BadInput, outcome: Outcome) -> str:
    """Returns the first line of the error, as the page shows it."""
    if case.command[0] == "POST":
        return str(json.loads(outcome.err)["error"]["message"])
    return next((line for line in outcome.err.splitlines() if line.startswith("error: ")), "")


def page_of(outcomes: Mapping[BadInput, Outcome] | list[tuple[BadInput, Outcome]]) -> str:
    """Returns the page as Markdown."""
    pairs = list(outcomes.items()) if isinstance(outcomes, Mapping) else outcomes
    lines = [HEAD.format(n=len(pairs))]
    section = ""
    for case, outcome in pairs:
        if case.section != section:
            section = case.section
            code = "status" if case.command[0] == "POST" else "exit code"
            lines += ["", f"## {section}", "", f"| what | command | {code} | what is said |", "| --- | --- | --- | --- |"]
        lines.append(
            f"| {case.what} | {_cell(_shown(case), MAX_COMMAND)} | {outcome.code} | {_cell(first_line(case, outcome), MAX_ERROR)} |"
        )
    return "\n".join([*lines, "", "</div>"]).replace("\n\n\n", "\n\n") + "\n"


def _shown(case: BadInput) -> str:
    words = [as_bytes(word).decode("utf-8", "replace") for word in case.command]
    if case.command[0] == "POST":
        return " ".join(words)
    return " ".join(word if re.fullmatch(r"[\w.,:=/\[\]#+-]+", word) else f"'{word}'" for word in words)


def _cell(text: str, most: int) -> str:
    text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in _ADDRESS.sub("0x…", text))
    text = text if len(text) <= most else text[: most - 1] + "…"
    ticks = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}".replace("|", "\\|")


def main() -> None:
    """Writes the page, with `--write`; else prints what came of every input whose section or description has a word in it."""
    cases = bad_inputs()
    if "--write" in sys.argv:
        text = page_of([(case, outcome_of(case)) for case in cases])
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            PAGE.write_text(text, encoding="utf-8")
            print(f"wrote docs/{PAGE.name}")
        return
    for case in cases:
        if all(word in f"{case.section} {case.what}" for word in sys.argv[1:]):
            outcome = outcome_of(case)
            mark = "" if outcome.code == case.code else "!!! "
            print(
                f"{mark}{case.section}: {case.what}\n    {_shown(case)[:200]}\n    {outcome.code} {outcome.seconds:.2f} s {outcome.changed}"
            )
            print("".join(f"    | {line[:400]}\n" for line in f"{outcome.out}{outcome.err}".splitlines()[:8]), end="")


if __name__ == "__main__":
    main()
