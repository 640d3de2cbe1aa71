"""Kills runs and fits at random until each has been, and compares every folder with that of an undisturbed run.

`python tests/endurance.py [--kills 100] [--seed N]`: children of one warm process are killed (SIGKILL, now and then SIGTERM or SIGINT) at a moment
drawn from how long they take, and continued; a document is done when it has got through, and begun anew in a new folder. The seed is printed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from authoring import write_document, write_table
from folders import contents, difference, in_child
from test_endurance import PAIRS, fits, sweep

from causalab_mini.engine.engines.nnterp import NNterpEngine
from causalab_mini.experiment import Experiment, Options, load
from causalab_mini.plan.spec import ModelSpec
from causalab_mini.results import writer

SIGNALS = (signal.SIGKILL,) * 8 + (signal.SIGTERM, signal.SIGINT)


def stream():
    """Returns a sweep with a step that generates."""
    raw = sweep((0, 1))
    raw["steps"]["speak"] = {
        "kind": "stream",
        "rows": {"base": "rows"},
        "decode": {"max_new_tokens": 4},
        "points": [
            {
                "name": "last",
                "tensor_type": "residual_stream",
                "layers": [1],
                "position": "generated[*]",
                "probe_type": "record",
                "probe_kind": "trajectory",
            }
        ],
        "saves": [{"value": "last", "file_path": "last.safetensors"}, {"value": "records", "file_path": "records.json"}],
    }
    return raw


def main():
    """Kills and compares; leaves with 1 at the first difference, its folders kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    chance = random.Random(given.seed)
    writer.MIN_SECONDS = 0.0  # the best of a fit is written at every epoch: more to interrupt
    engine = NNterpEngine.load(ModelSpec(key="bundled:successor-llama", dtype="fp32"), device_map="cpu")
    engine.load_weights()
    Experiment.open = lambda self: engine
    home = Path(tempfile.mkdtemp(prefix="causalab-mini-endurance-"))
    write_table(home / "data", "rows", PAIRS[20:28])
    write_table(home / "data", "train", PAIRS[:12])
    documents = {"sweep": sweep(), "fits": fits((1, 2), 12), "one fit": fits((2,), 12), "stream": stream()}
    n_killed, n_done, seconds, expected = 0, 0, {}, {}

    def act(name, out):
        load(write_document(home, documents[name], f"{name}.json"), options=Options(check="off")).run(out)

    for name in documents:
        act(name, home / f"first {name}")  # what is found out once about a checkpoint is found out here
        before = time.monotonic()
        code = in_child(lambda name=name: act(name, home / f"undisturbed {name}"))
        assert code == 0, f"{name}: exit code {code} undisturbed"
        seconds[name], expected[name] = time.monotonic() - before, contents(home / f"undisturbed {name}")
        print(f"{name}: {seconds[name]:.2f} s, {len(expected[name])} files", flush=True)
    while n_killed < given.kills:
        name = chance.choice(list(documents))
        out, n_own = home / f"{n_done} {name}", 0
        while True:
            number = chance.choice(SIGNALS)
            after = chance.uniform(0, 1.5 * seconds[name]) if n_own < 20 else None
            code = in_child(lambda name=name, out=out: act(name, out), kill_after=after, number=number)
            if code == 0:
                break
            if code not in (-signal.SIGKILL, -signal.SIGTERM, 130):
                sys.exit(f"{name}: exit code {code} after a {number.name} in {out} (seed {given.seed})")
            n_own += 1
        n_killed, n_done = n_killed + n_own, n_done + 1
        if said := difference(contents(out), expected[name]):
            sys.exit(f"{name}: killed {n_own} times, and then {said} in {out} (seed {given.seed})")
        shutil.rmtree(out)
    shutil.rmtree(home)
    print(json.dumps({"killed": n_killed, "done": n_done, "differences": 0}))


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # OpenMP's threads are not there in a child, which would wait for them
    main()
