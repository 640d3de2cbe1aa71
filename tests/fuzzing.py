"""Properties of whatever is given to the program: it is taken, or refused in words; nothing else ever comes out, and it takes no time.

What is drawn is near to what is right, so that it comes far: documents and their rows are compiled against a checkpoint, tables are read to
their tokens, files of parameters are loaded, folders of results are shown. `test_fuzz.py` draws each a number of times, always the same;
`python tests/fuzzing.py --seconds 600` (`make fuzz`) draws others until the time is over, and says by which seed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bad_inputs import MODEL, POINT, ROOT, ROWS, SMALL, SPEC, STAMP, SWEEP, finished_run, floats, orthonormal, safetensors, said
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

MAX_SECONDS = 20.0
N_PLACES = 4000
"""Of a document, at most: what is drawn from is small."""


class Property(NamedTuple):
    """What holds of everything that is drawn.

    Attributes:
        drawn: what is drawn.
        holds: asserts it of one.
        n: how many are drawn by the tests.
    """

    drawn: st.SearchStrategy[Any]
    holds: Callable[[Any], None]
    n: int


# what is asserted


def answered(act: Callable[[], Any]) -> Any:
    """Returns what was taken; asserts of a refusal that it is in words, and of both that they took no time."""
    from causalab_mini.errors import CausalabError

    began = time.monotonic()
    try:
        taken = act()
    except CausalabError as refusal:
        error = refusal
    else:
        assert time.monotonic() - began < MAX_SECONDS
        return taken
    assert time.monotonic() - began < MAX_SECONDS
    assert error.problems
    for problem in error.problems:
        assert problem.expected
        assert problem.got
        assert problem.text(error.file).count("\n") == bool(problem.hint)
    json.dumps(error.as_data(), allow_nan=False).encode()
    return None


@cache
def engine() -> Any:
    """Returns a checkpoint without weights."""
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.plan.spec import ModelSpec

    return HooksEngine.load(ModelSpec(key=MODEL, dtype="fp32"), device_map="cpu")


@cache
def warm() -> None:
    """Has everything imported that takes seconds."""
    with contextlib.suppress(AssertionError):  # of the first time, which may be long
        compiled(SMALL)
    for verb in VERBS:
        shown(("run.json", (finished_run() / "run.json").read_bytes(), verb))


@cache
def home() -> Path:
    """Returns a folder with a table."""
    folder = Path(tempfile.mkdtemp(prefix="causalab-mini-fuzz-"))
    (folder / "data").mkdir()
    (folder / "data" / "rows.json").write_text(json.dumps(ROWS), encoding="utf-8")
    (folder / "f.safetensors").write_bytes(safetensors({"basis": orthonormal(64, 2)}))
    return folder


def compiled(document: Any) -> None:
    """Compiles a document, and schedules every point of it."""
    from causalab_mini.plan.build import build_request
    from causalab_mini.plan.explain import explain
    from causalab_mini.plan.load import load_raw
    from causalab_mini.schedule.located import build_schedule

    def act() -> None:
        request = build_request(load_raw(document, home() / "d.json"), home() / "data", engine())
        for point in request.points[:4]:
            build_schedule(request, point)
        assert explain(request)

    answered(act)


def tabled(file: tuple[str, bytes]) -> None:
    """Reads a table to its tokens."""
    from causalab_mini.data.table import open_table
    from causalab_mini.plan.rows import Rows
    from causalab_mini.plan.spec import Role

    suffix, data = file
    folder = home() / "tables"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / f"t{suffix}").write_bytes(data)

    def act() -> None:
        table = open_table("t", folder)
        assert table.rows
        assert table.columns is not None
        assert all(isinstance(row, dict) for row in table.rows)
        source = Rows(folder, engine().tokenizer, None)
        source.labels("t", "rows")
        assert len(source.prompts_of("t", Role(field="input"), "rows", "roles.base")) == len(table.rows)

    answered(act)


def located(value: Any) -> None:
    """Reads a position, and looks for it in rows."""
    outcome = said_of("tokens", MODEL, "--data", "rows", "--data-root", str(home() / "data"), "--pos", json.dumps(value))
    assert outcome.code in (0, 2)


def overridden(pair: tuple[str, str]) -> None:
    """Puts a value into a document by its path."""
    file = home() / "small.json"
    file.write_text(json.dumps(SMALL), encoding="utf-8")
    assert said_of("validate", "--no-model", str(file), "--set", "=".join(pair)).code in (0, 2)


def featurized(data: bytes) -> None:
    """Reads a file of featurizers, and every tensor that is found in it."""
    from causalab_mini.data.parameters import PARAMETERS, find_parameters, read_header
    from causalab_mini.ops import featurizers as ops

    file = home() / "parameters.safetensors"
    file.write_bytes(data)

    def act() -> None:
        header = read_header(file)
        for kind in PARAMETERS:
            found = answered(lambda kind=kind: find_parameters(header, "f", kind, "relu" if kind == "sae" else None))
            if found is not None:
                assert set(ops.load(found)) == set(found.tensors)

    answered(act)


def probed(data: bytes) -> None:
    """Reads a file of a linear probe, and asks the probe."""
    import torch

    from causalab_mini.ops.linear_probe import LinearProbe

    file = home() / "probe.safetensors"
    file.write_bytes(data)

    def act() -> None:
        probe = LinearProbe.from_file(file)
        assert probe.weight.isfinite().all()
        assert torch.zeros(probe.weight.shape[1]) @ probe.weight.T is not None

    answered(act)


def specified(document: Any) -> None:
    """Reads an extraction spec, and fits it to a checkpoint."""
    import warnings

    from causalab_mini.probing.request import watch
    from causalab_mini.probing.spec import parse_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        answered(lambda: watch(parse_dict(document), engine().facts, engine().tokenizer))


def shown(change: tuple[str, bytes, str]) -> None:
    """Shows a folder of results of which one file is another."""
    name, data, verb = change
    folder = home() / "out"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished_run(), folder)
    (folder / name).write_bytes(data)
    tables = home() / "exported"
    shutil.rmtree(tables, ignore_errors=True)
    more = {"export": [str(tables)], "compare": [str(finished_run())]}.get(verb, [])
    assert said_of(verb, str(folder), *more).code in (0, 1, 2)


def said_of(*arguments: str) -> Any:
    """Returns what a command said, which is no bug of ours."""
    began = time.monotonic()
    outcome = said(*arguments)
    assert time.monotonic() - began < MAX_SECONDS
    assert "Traceback" not in outcome.err, outcome.err
    assert outcome.code == 0 or any(line.startswith("error: ") for line in outcome.err.splitlines()), outcome
    return outcome


# what is drawn

WORDS = [
    *("base", "counterfactual", "original", "patched", "patch", "source", "prediction", "stream", "logits", "follows", "mean", "rows"),
    *("input", "entity", "number", "split", "cf_answer", "base_answer", "counterfactual_inputs[0]", "rows#a", "rows#b"),
    *(
        "block_output",
        "block_input",
        "attention_z",
        "attention_probs",
        "attention_key",
        "mlp_activation",
        "input_ids",
        "ln_final",
        "lm_head",
    ),
    *("swap", "add_scaled", "lerp", "gaussian", "clamp", "renormalize", "project_out", "permute", "knockout"),
    *("match", "logit_diff", "token_prob", "rank", "kl", "cosine", "value", "top_k", "class_match", "answer_logprob", "generated_match"),
    *("none", "std", "pca", "mean_by", "all", "only", "first", "last", "exact", "bare", "as_written", "id", "eager", "sdpa"),
    *("prompt[-1]", "prompt[0]", "prompt[*]", "prompt[-1]+1", "generated[0]", "generated[*]", "5", "f", "f.safetensors"),
]
numbers = st.integers(-9, 9) | st.sampled_from([64, 65, 2**31, 2**63, 10**30, -(10**30), 0.5, 1.0, -0.0, 1e308, 5e-324])
scalars = st.one_of(numbers, st.sampled_from(WORDS), st.booleans(), st.none(), st.text(max_size=4))
anchors = st.fixed_dictionaries(
    {},
    optional={
        "variable": st.sampled_from(["entity", "split", "number", "nothing"]),
        "text": st.sampled_from(["day", "today", " is", "is", "", "\n", "Sunday"]) | st.text(max_size=3),
        "column": st.sampled_from(["entity", "input", "number", "counterfactual_inputs[0]", "x"]),
        "segment": st.sampled_from(["user", "user[1]", "prefix", "eos", "system"]),
        "occurrence": st.sampled_from(["only", "first", "last"]) | st.integers(-3, 3),
    },
)
objects = st.fixed_dictionaries(
    {},
    optional={
        "index": numbers,
        "span": st.lists(st.integers(-9, 9), min_size=1, max_size=3),
        "last": numbers,
        "all": st.booleans(),
        "scope": anchors,
        "stride": numbers,
        "offset": numbers,
        "frame": st.sampled_from(["prompt", "generated"]),
    },
)
cuts = st.one_of(
    st.fixed_dictionaries({"index": st.integers(-9, 9)}, optional={"scope": anchors, "offset": st.integers(-3, 3)}),
    st.fixed_dictionaries({"last": st.integers(1, 4)}, optional={"scope": anchors, "stride": st.integers(1, 3)}),
    st.fixed_dictionaries({"all": st.just(True)}, optional={"scope": anchors, "stride": st.integers(1, 3), "offset": st.integers(-2, 2)}),
    st.fixed_dictionaries({"span": st.lists(st.integers(-9, 9), min_size=2, max_size=2)}, optional={"scope": anchors}),
)
positions = st.one_of(cuts, objects, numbers, st.sampled_from([word for word in WORDS if "[" in word]))
sweeps = st.one_of(
    st.builds(lambda values: {"sweep": values}, st.lists(scalars | positions, min_size=1, max_size=3)),
    st.builds(lambda bounds: {"sweep": {"range": bounds}}, st.lists(st.integers(-4, 6), min_size=2, max_size=3)),
    st.just({"sweep": "all"}),
)
values = st.one_of(scalars, positions, sweeps, st.lists(scalars, max_size=3), anchors)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of everything in data but itself."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def nudged(draw: Any, bases: list[Any], drawn: st.SearchStrategy[Any] = values, keys: tuple[str, ...] = ()) -> Any:
    """Returns data of which one to three things are others, gone, twice, or new."""
    found = json.loads(json.dumps(draw(st.sampled_from(bases))))
    for _ in range(draw(st.integers(1, 3))):
        paths = list(places(found))[:N_PLACES]
        if not paths:
            break
        *parents, key = draw(st.sampled_from(paths))
        here = found
        for part in parents:
            here = here[part]
        match draw(st.sampled_from(["replace", "replace", "replace", "delete", "copy", "add"])):
            case "replace":
                here[key] = draw(drawn)
            case "delete":
                del here[key]
            case "copy":
                other: Any = found
                for part in draw(st.sampled_from(paths)):
                    other = other[part]
                here[key] = json.loads(json.dumps(other))
            case "add" if isinstance(here, dict) and keys:
                here[draw(st.sampled_from(keys))] = draw(drawn)
    return found


@st.composite
def spliced(draw: Any, bases: list[bytes], pieces: list[bytes]) -> bytes:
    """Returns bytes of which a few are others, gone, or new."""
    found = draw(st.sampled_from(bases))
    for _ in range(draw(st.integers(0, 4))):
        at, n = draw(st.integers(0, len(found))), draw(st.integers(0, 8))
        found = found[:at] + draw(st.sampled_from([b"", *pieces]) | st.binary(max_size=4)) + found[at + n :]
    return found


@st.composite
def with_header(draw: Any, bases: list[bytes], drawn: st.SearchStrategy[Any] = values) -> bytes:
    """Returns a safetensors file whose header says something else; its length is right."""
    data = draw(st.sampled_from(bases))
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    said = draw(nudged([header], drawn | st.sampled_from(DTYPES) | st.lists(st.integers(0, 600), max_size=3), ("shape", "dtype", "x")))
    text = json.dumps(said).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + n :]


DTYPES = ["F32", "F16", "BF16", "F64", "I64", "BOOL", "F8_E4M3", "F4", "C64"]
KEYS = (
    *("decode", "view", "featurizer", "keys", "heads", "units", "align", "features", "params", "where", "controls", "outputs", "mode"),
    *("k", "t", "lo", "hi", "scale", "seed", "expected", "target", "token", "against", "a", "b", "classes", "metric", "clean", "corrupt"),
)
SHIPPED = [
    json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "documents").glob("*.json"))
]  # fmt: skip
DOCUMENTS = [
    SMALL,
    SWEEP,
    {**SMALL, "featurizers": {"f": {"kind": "subspace", "k": 2, "file_path": "f.safetensors"}}},
    *(
        json.loads(
            json.dumps(raw)
            .replace('"successor/pairs', '"rows')
            .replace('"weekdays/train', '"rows')
            .replace("#train", "#a")
            .replace("#test", "#b")
        )
        for raw in SHIPPED
        if raw["model"]["key"] == MODEL
    ),
]
CSV = b'input,entity,number\nIf today is Monday,Monday,1\n"Monday, then","a ""b""",2\n'
TABLES = {
    ".csv": [CSV, CSV.replace(b"\n", b"\r\n")],
    ".json": [json.dumps(ROWS[:2]).encode()],
    ".jsonl": [b"".join(json.dumps(row).encode() + b"\n" for row in ROWS[:2])],
}  # fmt: skip
PIECES = [b'"', b",", b"\n", b"\r", b"\0", b"\\", b"{", b"}", b"[", b"]", b":", b"\xef\xbb\xbf", b"\xff", b"null", b"1e999", b'\\ud800', b"example_id"]  # fmt: skip
PROBE_METADATA = {"format": "causalab-mini linear probe 1", "probe": "logistic", "classes": '["a", "b"]', "stamp": "{}"}
PROBES = [
    safetensors({"weight": floats(1, 8), "bias": floats(1)}, PROBE_METADATA),
    safetensors({"weight": floats(3, 4), "bias": floats(3)}, PROBE_METADATA | {"classes": "[1, 2, 3]"}),
    safetensors({"weight": floats(1, 4), "bias": floats(1)}, PROBE_METADATA | {"probe": "ridge", "classes": "[]"}),
]
OURS = {"format": "causalab-mini/featurizers/1", "digest": "0", "stamps": json.dumps({"f": {**STAMP, "d": 8}})}
FEATURIZERS = [
    safetensors({"f.basis": orthonormal(8, 2)}, OURS),
    safetensors({"W_enc": floats(4, 6), "W_dec": floats(6, 4), "b_enc": floats(6), "b_dec": floats(4)}),
    safetensors({"mean": floats(4), "std": floats(4), "theta": floats(4)}),
]
RESULTS = ("run.json", "summary.json", "points.json", "document.json", "layer=0/follows.json")
VERBS = ("show", "export", "compare")
"""Not `report` and `plot`: they look further into what a run has written than the shapes of its files are judged."""


@st.composite
def broken_results(draw: Any) -> tuple[str, bytes, str]:
    """Returns a file of a run with other content, and a verb that reads it."""
    name = draw(st.sampled_from(RESULTS))
    data = (finished_run() / name).read_bytes()
    if draw(st.integers(0, 4)):
        found = draw(nudged([json.loads(data)], scalars | st.lists(scalars, max_size=2) | st.just({})))
        data = json.dumps(found).encode()
    else:
        data = draw(spliced([data], PIECES))
    return name, data, draw(st.sampled_from(VERBS))


paths = st.one_of(
    st.sampled_from(
        ["sites.stream.layers", "model.dtype", "steps.patch.saves[0].value", "interventions.patching.reads.source.pos", "header"]
    ),
    st.lists(st.sampled_from(["sites", "steps", "patch", ".", "[0]", "[9999999999]", "stream", "x", "\n", " "]), max_size=5).map("".join),
)
texts = st.one_of(
    values.map(json.dumps), st.text(max_size=10), st.sampled_from(["[" * 3000, '{"a":1,"a":2}', "NaN", "1e999", '"\\ud800"', "9" * 5000])
)

PROPERTIES = {
    "documents compiled": Property(nudged(DOCUMENTS, values, KEYS), compiled, 120),
    "tables read to their tokens": Property(
        st.sampled_from(sorted(TABLES)).flatmap(lambda suffix: st.tuples(st.just(suffix), spliced(TABLES[suffix], PIECES))), tabled, 300
    ),
    "positions in rows": Property(positions, located, 80),
    "values of --set": Property(st.tuples(paths, texts), overridden, 100),
    "files of featurizers": Property(spliced(FEATURIZERS, [b'"', b"\0", b"9", b"F16", b"{", b"\xff"]) | with_header(FEATURIZERS), featurized, 300),
    "files of linear probes": Property(spliced(PROBES, [b'"', b"\0", b"9", b"F16", b"{", b"\xff"]) | with_header(PROBES), probed, 300),
    "specs on a model": Property(nudged([SPEC, {**SPEC, "extraction_points": [POINT, {**POINT, "name": "b", "position": "prompt[-1]+1"}]}]), specified, 200),
    "folders of results": Property(broken_results(), shown, 60),
}  # fmt: skip


FOUND: list[tuple[str, Any]] = [
    ("folders of results", ("summary.json", b'{"metrics": [{"point": "", "axes": {}, "step": "a", "metric": "b", "kind": "match", "unit": "logit", "n": 1, "eligible": 1, "mean": 0.5}]}', "plot")),
    ("folders of results", ("layer=0/follows.json", b'[{"example_id": "0", "metric": "follows", "value": 0.0, "produced_by": 7}]', "compare")),
    ("folders of results", ("layer=0/follows.json", b'[{"example_id": "0", "metric": "follows", "value": 0.0, "produced_by": "a"}]', "compare")),
    ("values of --set", ("header", "[" * 100_000)),
    ("positions in rows", "prompt[ 1 ]"),
    ("positions in rows", "-1"),
]  # fmt: skip
"""What was once neither taken nor refused in words."""


def drawn(name: str, n: int, seeded: int | None = None) -> None:
    """Draws of a property; the same ones where no seed is given."""
    warm()
    one = PROPERTIES[name]
    how = settings(
        max_examples=n,
        deadline=None,
        derandomize=seeded is None,
        print_blob=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    def holds(value: Any) -> None:
        one.holds(value)

    holds.__qualname__ = holds.__name__ = re.sub(r"\W+", "_", name)
    test = how(given(value=one.drawn)(holds))
    (test if seeded is None else seed(seeded)(test))()


def main() -> None:
    """Draws until the time is over; leaves with 1 where something else came out than what was promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next ones follow on it")
    parser.add_argument("--only", choices=sorted(PROPERTIES), help="one property")
    options = parser.parse_args()
    first = secrets.randbelow(2**32) if options.seed is None else options.seed
    ends, n_rounds, failed = time.monotonic() + options.seconds, 0, False
    print(f"--seed {first}", flush=True)
    while time.monotonic() < ends:
        for name in [options.only] if options.only else PROPERTIES:
            if time.monotonic() >= ends:
                break
            try:
                drawn(name, PROPERTIES[name].n, first + n_rounds)
            except Exception:
                import traceback

                traceback.print_exc()
                print(f"FAILED: {name}; again: --seed {first + n_rounds} --only '{name}'", flush=True)
                failed = True
        n_rounds += 1
    print(f"{n_rounds} rounds of {sum(one.n for one in PROPERTIES.values())} draws, by seeds from {first}")
    with contextlib.suppress(OSError):
        shutil.rmtree(home())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
