"""Fits against hooks and autograd by hand; and what must not change them: rewrites, batch sizes, company."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from authoring import LOGITS, document, observe, patching, site, write_document, write_table
from conftest import ROOT
from reference import fit_by_hand, ids_of

from causalab_mini.engine.job import rate_of
from causalab_mini.errors import DocumentError
from causalab_mini.experiment import Watcher, load
from causalab_mini.ops.featurizers import Rotation, TrainedGate, draw_gate, random_basis
from causalab_mini.plan.spec import Optimizer

pytestmark = pytest.mark.tiny

PAIRS = json.loads((ROOT / "data" / "successor" / "pairs.json").read_text(encoding="utf-8"))
GPT2_PAIRS = json.loads((ROOT / "data" / "successor" / "gpt2_pairs.json").read_text(encoding="utf-8"))
ROTATION = {"kind": "subspace", "k": 4}


def fitting(featurizers, *, layer=2, pos=-1, component="block_output", place=None, name="rotation", **step):
    """Returns a document with one fit over `train`, judged on `test`, of a swap in a featurizer's coordinates."""
    stream = place or site(component, layer)
    intervention = patching(
        {"site": stream, "pos": pos, "mechanism": "swap", "operand": "source", "featurizer": name},
        {"site": stream, "pos": pos, "featurizer": name},
        metrics={
            "follows": {"kind": "match", "of": "prediction", "expected": "cf_answer"},
            "loss": {"kind": "cross_entropy", "of": "prediction", "target": "cf_answer"},
        },
    )
    fit = {
        "kind": "fit",
        "rows": {"base": "train", "counterfactual": "train"},
        "interventions": "swap",
        "params": [name],
        "objective": [[1, "loss"]],
        "epochs": 3,
        "pairs": 5,
        "optimizer": {"name": "adam", "lr": 0.02},
        "eval": {"rows": {"base": "test", "counterfactual": "test"}},
    }
    raw = document({"swap": intervention}, {"train": fit | step})
    return raw | {"featurizers": featurizers}


def tables(rows=None):
    rows = PAIRS if rows is None else rows
    return {"train": rows[:13], "test": rows[13:20]}


def losses(result, step="train"):
    return [line["objective"] for line in result.step(step).results["train/loss"]]


def by_hand(plain_models, name, module, *, layer, pairs=5, epochs=3, seed=0, lr=0.02, temperature=lambda update: 1.0, penalty=None):
    """Returns the losses and the module of a fit as a script would do it: hooks, one row at a time, autograd."""
    model, tokenizer = plain_models(name)
    rows = tables(PAIRS if name == "successor-llama" else GPT2_PAIRS)["train"]
    examples = []
    for row in rows:
        (target,) = tokenizer(row["cf_answer"].strip() if name == "successor-llama" else row["cf_answer"], add_special_tokens=False)[
            "input_ids"
        ]
        base, other = (ids_of(tokenizer, text)[0] for text in (row["input"], row["counterfactual_inputs"][0]))
        examples.append((base, other, target))
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    generator, found, update = torch.Generator().manual_seed(seed), [], 0
    for _ in range(epochs):
        order = torch.randperm(len(examples), generator=generator).tolist()
        for start in range(0, len(order), pairs):
            batch = [examples[index] for index in order[start : start + pairs]]
            optimizer.zero_grad()
            coordinates = module.coordinates(temperature(update))
            loss = fit_by_hand(model, layer, batch, coordinates.encode, coordinates.decode)
            loss = loss if penalty is None else loss + penalty(coordinates)
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
            update += 1
    return found, module


@pytest.mark.parametrize("parametrization", ["cayley", "householder", "qr"])
@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2"])
def test_a_fit_is_that_of_hooks_and_autograd_by_hand(carry_out, plain_models, name, parametrization):
    rows = tables(PAIRS if name == "successor-llama" else GPT2_PAIRS)
    featurizer = ROTATION | {"parametrization": parametrization, "seed": 3}
    run = carry_out(fitting({"rotation": featurizer}), rows, name)
    expected, module = by_hand(plain_models, name, Rotation(random_basis(64, 4, 3), parametrization), layer=2)
    assert losses(run) == pytest.approx(expected, rel=1e-4)
    found = run.step("train").results
    assert found["fit"]["level"] == "token"
    last = found["fit"]["kept_epoch"] == found["fit"]["epochs"]
    if last:
        torch.testing.assert_close(found["weights"]["rotation"]["basis"], module.tensors()["basis"], rtol=0, atol=1e-4)


def test_a_gate_with_a_penalty_and_a_temperature_is_that_of_autograd_by_hand(carry_out, plain_models):
    raw = fitting(
        {"gate": {"kind": "gate", "seed": 1}},
        name="gate",
        objective=[[1, "loss"], [0.5, "gate.mask"], [0.01, "gate.units"]],
        anneal={"gate": {"start": 2.0, "end": 0.1}},
        keep="last",
    )
    run = carry_out(raw, tables())
    expected, module = by_hand(
        plain_models,
        "successor-llama",
        TrainedGate(draw_gate(64, 1)),
        layer=2,
        temperature=lambda update: 2.0 * (0.1 / 2.0) ** (update / 8),
        penalty=lambda gate: 0.5 * gate.mask.mean() + 0.01 * gate.mask.sum(),
    )
    assert losses(run) == pytest.approx(expected, rel=1e-4)
    found = run.step("train").results
    torch.testing.assert_close(found["weights"]["gate"]["theta"], module.theta.detach(), rtol=0, atol=1e-4)
    hard = (module.theta > 0).float()
    assert found["train/eval"][-1]["gate.units"] == hard.sum()
    assert found["train/eval"][-1]["gate.mask"] == pytest.approx(float(hard.mean()))
    assert [line["gate.temperature"] for line in found["train/loss"]] == pytest.approx([2.0 * 0.05 ** (n / 8) for n in range(9)])


@pytest.mark.parametrize("featurizer", ["rotation", "gate", "chain"])
def test_rewrites_and_batch_sizes_leave_a_fit_as_it_is(carry_out, featurizer):
    featurizers = {
        "rotation": ROTATION,
        "gate": {"kind": "gate"},
        "turn": ROTATION,
        "units": {"kind": "gate"},
        "chain": {"kind": "chain", "of": ["turn", "units"]},
    }
    params = ["turn", "units"] if featurizer == "chain" else [featurizer]
    raw = fitting(featurizers, name=featurizer, params=params, pos={"all": True, "scope": {"variable": "entity"}}, layer=1)
    first = losses(carry_out(raw, tables()))
    assert len(set(first)) == 9
    for options in ({"rewrites": ()}, {"batch_size": 1}, {"batch_size": 3}, {"kind": "hooks"}):
        assert losses(carry_out(raw, tables(), **options)) == pytest.approx(first, rel=2e-5), options


def test_fits_of_a_sweep_are_those_of_each_alone(carry_out):
    layers, ranks = [0, 1, 2, 3], [1, 8]
    raw = fitting({"rotation": ROTATION | {"k": {"sweep": ranks, "as": "k"}}}, layer={"sweep": layers, "as": "layer"})
    together = carry_out(raw, tables())
    for layer in layers:
        for k in ranks:
            alone = carry_out(fitting({"rotation": ROTATION | {"k": k}}, layer=layer), tables())
            point = together.point(
                f"layer={layer},k={k}" if f"layer={layer},k={k}" in {p.label for p in together.points} else f"k={k},layer={layer}"
            )
            assert point.step("train").results["fit"]["trained_together"] == 8
            assert alone.step("train").results["fit"]["trained_together"] == 1
            assert losses(point) == pytest.approx(losses(alone), rel=1e-4)
            one, other = (r.step("train").results["weights"]["rotation"]["basis"] for r in (point, alone))
            torch.testing.assert_close(one, other, rtol=0, atol=2e-3)  # 1e-6 of rounding, carried on through nine updates


def test_seeds_train_together_too_and_differ(carry_out):
    raw = fitting({"rotation": ROTATION}, seed={"sweep": [0, 1, 2]})
    run = carry_out(raw, tables())
    curves = [losses(point) for point in run.points]
    assert len({tuple(curve) for curve in curves}) == 3
    assert curves[1] == pytest.approx(losses(carry_out(fitting({"rotation": ROTATION}, seed=1), tables())), rel=1e-4)


def test_a_fit_that_needs_an_earlier_step_is_trained_alone(carry_out):
    raw = fitting({"rotation": ROTATION | {"k": {"sweep": [1, 2], "as": "k"}}}, where={"step": "look", "metric": "swap_loss", "max": 100.0})
    look = {
        "reads": {"logits": {"site": LOGITS, "pos": -1, "input": "base"}},
        "metrics": {"swap_loss": {"kind": "cross_entropy", "of": "logits", "target": "base_answer"}},
    }
    raw["interventions"]["look"] = look
    raw["steps"] = {"look": observe("look", "train", both=False), **raw["steps"]}
    run = carry_out(raw, tables())
    assert [point.step("train").results["fit"]["trained_together"] for point in run.points] == [1, 1]


def test_what_stays_the_same_is_run_once(carry_out, engines):
    engine = engines("successor-llama")
    engine.load_weights()
    counts = {index: [0, 0] for index in range(4)}
    handles = [
        layer.mlp.register_forward_hook(lambda module, args, output, index=index: counts[index].__setitem__(0, counts[index][0] + 1))
        for index, layer in enumerate(engine.loaded().model.layers)
    ]
    try:
        carry_out(
            fitting({"rotation": ROTATION}, epochs=20, layer=2),
            tables(),
        )
    finally:
        for handle in handles:
            handle.remove()
    n_updates, n_evaluations = 20 * 3, 21
    assert counts[3][0] >= n_updates + n_evaluations
    assert counts[0][0] < 20  # sources, clean runs, the comparison with plain passes and the last evaluation: never once an update
    assert counts[2][0] < 20


def test_the_best_epoch_is_kept_and_not_the_last(carry_out):
    raw = fitting({"rotation": ROTATION}, epochs=8, optimizer={"name": "sgd", "lr": 30.0})
    found = carry_out(raw, tables()).step("train").results
    curve = [line["objective"] for line in found["train/eval"]]
    assert min(curve[1:]) < curve[-1]  # the rate is far too high: it wanders off
    assert found["fit"]["kept_epoch"] == 1 + curve[1:].index(min(curve[1:]))
    kept = [row["value"] for row in found["metrics"]["loss"]]
    assert math.fsum(kept) / len(kept) == pytest.approx(min(curve[1:]), rel=1e-4)
    last = (
        carry_out(fitting({"rotation": ROTATION}, epochs=8, optimizer={"name": "sgd", "lr": 30.0}, keep="last"), tables())
        .step("train")
        .results
    )
    kept = [row["value"] for row in last["metrics"]["loss"]]
    assert math.fsum(kept) / len(kept) == pytest.approx(curve[-1], rel=1e-3)


def test_early_stopping_goes_by_its_metric_and_patience(carry_out):
    raw = fitting(
        {"rotation": ROTATION},
        epochs=30,
        early_stop={"metric": "follows", "mode": "max", "patience": 2},
        optimizer={"name": "adam", "lr": 1e-6},
    )
    found = carry_out(raw, tables()).step("train").results
    assert found["fit"]["stopped_early"]
    assert found["fit"]["epochs"] == 3  # the first is the best there is; two more are no better
    assert found["fit"]["kept_epoch"] == 1
    assert found["fit"]["kept_value"] == found["train/eval"][1]["follows"]


def test_learning_rates_follow_their_schedule():
    def rates(**more):
        return [rate_of(Optimizer(name="adam", lr=1.0, **more), update, 10) for update in range(10)]

    assert rates() == [1.0] * 10
    assert rates(warmup=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(schedule="linear") == pytest.approx([1 - n / 10 for n in range(10)])
    assert rates(schedule="cosine", warmup=2)[2:] == pytest.approx([0.5 * (1 + math.cos(math.pi * n / 8)) for n in range(8)])


def test_a_loss_that_is_not_finite_is_an_error_that_says_where(carry_out):
    from causalab_mini.errors import RunError

    raw = fitting({"rotation": ROTATION}, objective=[[1e39, "loss"]])
    with pytest.raises(RunError, match=r"expected a finite loss and gradient at every update, got .* at update"):
        carry_out(raw, tables())


@pytest.mark.parametrize("init", ["random", "pca"])
def test_a_basis_stays_orthonormal_and_begins_where_it_is_said(carry_out, init):
    raw = fitting({"rotation": ROTATION | {"init": init}}, epochs=1, optimizer={"name": "sgd", "lr": 1e-12})
    found = carry_out(raw, tables()).step("train").results["weights"]["rotation"]["basis"]
    torch.testing.assert_close(found.T @ found, torch.eye(4), rtol=0, atol=1e-5)
    assert torch.allclose(found, random_basis(64, 4, 0), atol=1e-5) == (init == "random")


def test_a_pca_start_is_that_of_the_training_rows(carry_out, plain_models):
    from reference import forward, spot

    model, tokenizer = plain_models("successor-llama")
    values = []
    for row in tables()["train"]:
        for text in (row["input"], row["counterfactual_inputs"][0]):
            ids, _ = ids_of(tokenizer, text)
            values.append(forward(model, ids, {"x": spot(model, "block_output", 2, [len(ids) - 1])})["x"])
    data = torch.cat(values).unique(dim=0).double()
    directions = torch.linalg.svd(data - data.mean(dim=0)).Vh[:4]
    raw = fitting({"rotation": ROTATION | {"init": "pca"}}, epochs=1, optimizer={"name": "sgd", "lr": 1e-12})
    found = carry_out(raw, tables()).step("train").results["weights"]["rotation"]["basis"].double()
    torch.testing.assert_close(found @ found.T, directions.T @ directions, rtol=0, atol=1e-4)


def test_rows_that_are_judged_may_not_be_trained_on(carry_out):
    from causalab_mini.errors import PlanError

    rows = {"train": PAIRS[:13], "test": [*PAIRS[13:20], PAIRS[4] | {"split": "other"}]}
    with pytest.raises(
        PlanError, match=r"steps.train.eval.rows: expected rows whose prompts are not among those .* got row `7`, which is row `4`"
    ):
        carry_out(fitting({"rotation": ROTATION}), rows)


def test_an_interrupted_fit_leaves_its_best_and_says_so(tmp_path):
    raw = fitting({"rotation": ROTATION}, epochs=50)
    for name, rows in tables().items():
        write_table(tmp_path / "data", name, rows)
    file = write_document(tmp_path, raw)
    seen = []

    def interrupt(jobs):
        seen.append(jobs[0].n_done)
        if len(seen) == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(file).run(tmp_path / "out", Watcher(on_fit=interrupt))
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    (fit,) = record["fits"]
    assert record["status"] == "interrupted"
    assert fit["updates"] == 50
    assert 1 <= fit["kept_epoch"] <= 16
    path = "out/" + fit["checkpoint"]
    later = raw | {"steps": {"apply": observe("swap", "test")}, "featurizers": {"rotation": ROTATION | {"file_path": path}}}
    run = load(write_document(tmp_path, later, "later.json")).run(tmp_path / "applied")
    values = [row["value"] for row in run.step("apply").results["metrics"]["loss"]]
    assert math.fsum(values) / len(values) == pytest.approx(fit["kept_value"], rel=1e-4)


def test_what_was_fitted_applies_to_other_rows_as_a_second_document(tmp_path):
    raw = fitting({"rotation": ROTATION})
    raw["steps"]["save"] = {"kind": "weights", "names": ["rotation"], "saves": [{"value": "rotation", "file_path": "rotation.safetensors"}]}
    raw["steps"]["apply"] = observe("swap", "other")
    for name, rows in (tables() | {"other": PAIRS[20:40]}).items():
        write_table(tmp_path / "data", name, rows)
    first = load(write_document(tmp_path, raw)).run(tmp_path / "out")
    second = raw | {"steps": {"apply": observe("swap", "other")}}
    second["featurizers"] = {"rotation": ROTATION | {"file_path": "out/rotation.safetensors"}}
    applied = load(write_document(tmp_path, second, "second.json")).run(tmp_path / "second")
    found, expected = ([row["value"] for row in run.step("apply").results["metrics"]["loss"]] for run in (applied, first))
    assert found == pytest.approx(expected, rel=1e-5)
    record = json.loads((tmp_path / "second" / "run.json").read_text())
    assert list(record["files"]) == ["out/rotation.safetensors"]


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"layer": 1}, "layer"),
        ({"component": "mlp_output"}, "component"),
        ({"featurizer": {"parametrization": "qr"}}, "parametrization"),
        ({"dtype": "bf16"}, "dtype"),
    ],
)
def test_parameters_of_another_place_are_refused_by_their_stamp(tmp_path, changed, key):
    from causalab_mini.errors import PlanError

    for name, rows in tables().items():
        write_table(tmp_path / "data", name, rows)
    raw = fitting({"rotation": ROTATION}, epochs=1)
    raw["steps"]["save"] = {"kind": "weights", "names": ["rotation"], "saves": [{"value": "rotation", "file_path": "rotation.safetensors"}]}
    load(write_document(tmp_path, raw)).run(tmp_path / "out")
    places = {name: value for name, value in changed.items() if name in ("layer", "component")}
    featurizer = ROTATION | {"file_path": "out/rotation.safetensors"} | changed.get("featurizer", {})
    other = fitting({"rotation": featurizer}, **places)
    other["model"]["dtype"] = changed.get("dtype", "fp32")
    other["steps"] = {"apply": observe("swap", "test")}
    with pytest.raises(PlanError, match=f"featurizers.rotation.file_path: expected parameters whose `{key}` is"):
        load(write_document(tmp_path, other, "other.json")).run(tmp_path / "second")


@pytest.mark.parametrize(("number", "code", "status"), [(signal.SIGTERM, 143, "interrupted"), (signal.SIGKILL, -9, "running")])
def test_a_fit_that_is_killed_leaves_its_best_weights_and_a_record_of_how_far_it_was(tmp_path, number, code, status):
    for name, rows in tables().items():
        write_table(tmp_path / "data", name, rows)
    raw = fitting({"rotation": ROTATION}, epochs=1_000_000)
    file = write_document(tmp_path, raw)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "causalab_mini", "run", str(file), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        path = tmp_path / "out" / "checkpoints" / "train.safetensors"
        record_path = tmp_path / "out" / "run.json"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (path.is_file() and "fits" in json.loads(record_path.read_text())):
            time.sleep(0.05)
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
    assert running.returncode == code, said
    record = json.loads(record_path.read_text())
    (fit,) = record["fits"]
    assert record["status"] == status
    assert not fit["is_finished"]
    assert fit["updates"] < fit["of_updates"]
    assert number == signal.SIGKILL or f"its best so far (epoch {fit['kept_epoch']}) is in" in said
    later = raw | {
        "steps": {"apply": observe("swap", "test")},
        "featurizers": {"rotation": ROTATION | {"file_path": f"out/{fit['checkpoint']}"}},
    }
    run = load(write_document(tmp_path, later, "later.json")).run(tmp_path / "applied")
    values = [row["value"] for row in run.step("apply").results["metrics"]["loss"]]
    assert math.fsum(values) / len(values) <= fit["kept_value"] * 1.0001


def test_a_whole_answer_of_one_token_is_minus_its_cross_entropy(carry_out):
    raw = fitting({"rotation": ROTATION}, objective=[[-1, "answer"]])
    raw["interventions"]["swap"]["metrics"]["answer"] = {"kind": "answer_logprob", "of": "prediction", "target": "cf_answer"}
    assert losses(carry_out(raw, tables())) == pytest.approx(losses(carry_out(fitting({"rotation": ROTATION}), tables())), rel=1e-4)


def test_rows_without_a_place_are_left_out_of_the_mean(carry_out):
    """Two of the rows lack the variable that the operand is read at: the fit is that of the others."""
    place = {"index": -1, "scope": {"variable": "marked"}}
    rows = [row | {"counterfactual_inputs_variables": [{"marked": row["counterfactual_inputs_variables"][0]["entity"]}]} for row in PAIRS]
    rows = [row | {"marked": row["entity"]} for row in rows]
    for number in (3, 8):
        rows[number] = rows[number] | {"counterfactual_inputs_variables": [{"marked": "Nowhere"}]}
    found = carry_out(fitting({"rotation": ROTATION}, layer=1, pos=place, pairs=13, epochs=2), {"train": rows[:13], "test": rows[13:20]})
    others = [row for number, row in enumerate(rows[:13]) if number not in (3, 8)]
    expected = carry_out(fitting({"rotation": ROTATION}, layer=1, pos=place, pairs=13, epochs=2), {"train": others, "test": rows[13:20]})
    assert losses(found) == pytest.approx(losses(expected), rel=1e-5)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_coarse_weights_are_fitted_in_fp32(tmp_path, dtype):
    for name, rows in tables().items():
        write_table(tmp_path / "data", name, rows)
    raw = fitting({"rotation": ROTATION | {"k": 16}}, epochs=8)
    raw["model"]["dtype"] = dtype
    run = load(write_document(tmp_path, raw)).run(tmp_path / "out")
    curve = losses(run)
    assert sum(curve[-3:]) < 0.6 * sum(curve[:3])
    basis = run.step("train").results["weights"]["rotation"]["basis"]
    assert basis.dtype == torch.float32
    torch.testing.assert_close(basis.T @ basis, torch.eye(16), rtol=0, atol=1e-5)


def test_two_fits_of_one_document_build_on_each_other(carry_out):
    """The second trains a gate over the coordinates that the first has found, as a chain would have them; the first stays as it is."""
    raw = fitting({"rotation": ROTATION | {"k": 8}})
    later = fitting({"gate": {"kind": "gate"}}, name="gate", layer=3, objective=[[1, "loss"], [0.01, "gate.units"]])
    raw["featurizers"] |= later["featurizers"]
    both = json.loads(json.dumps(raw["interventions"]["swap"]))
    both["reads"]["upper"] = later["interventions"]["swap"]["reads"]["source"]
    both["writes"]["close"] = later["interventions"]["swap"]["writes"]["patch"] | {"operand": "upper"}
    both["models"]["patched"]["writes"] = ["patch", "close"]
    raw["interventions"]["both"] = both
    raw["steps"]["again"] = later["steps"]["train"] | {"interventions": "both"}
    raw["steps"]["use"] = observe("both", "test")
    run = carry_out(raw, tables())
    assert run.step("again").results["fit"]["updates"] == 9
    used = [row["value"] for row in run.step("use").results["metrics"]["loss"]]
    judged = [row["value"] for row in run.step("again").results["metrics"]["loss"]]
    assert used == pytest.approx(judged, rel=1e-5)
    assert losses(run) == pytest.approx(losses(carry_out(fitting({"rotation": ROTATION | {"k": 8}}), tables())), rel=1e-5)


def test_patience_counts_from_the_best_epoch_where_the_last_is_kept(carry_out):
    more = {"epochs": 20, "optimizer": {"name": "sgd", "lr": 30.0}, "early_stop": {"metric": "loss", "mode": "min", "patience": 3}}
    ends = [
        carry_out(fitting({"rotation": {"kind": "subspace", "k": 4}}, layer=1, keep=keep, **more), tables())
        .step("train")
        .results["fit"]["epochs"]
        for keep in ("best", "last")
    ]
    assert ends[0] == ends[1]


def test_the_second_principal_start_of_a_chain_is_of_features_of_the_first(carry_out):
    parts = {"a": {"kind": "subspace", "k": 8, "init": "pca"}, "b": {"kind": "subspace", "k": 2, "init": "pca"}}
    raw = fitting(
        parts | {"c": {"kind": "chain", "of": ["a", "b"]}}, name="c", params=["a", "b"], epochs=1, optimizer={"name": "sgd", "lr": 1e-12}
    )
    found = carry_out(raw, tables()).step("train").results["weights"]["b"]["basis"]
    torch.testing.assert_close(found.abs(), torch.eye(8)[:, :2], rtol=0, atol=1e-2)  # principal coordinates are uncorrelated


@pytest.mark.parametrize("where", ["fit", "featurizer", "control"])
def test_a_seed_beyond_64_bits_is_refused(carry_out, where):
    big = 2**70
    raw = fitting(
        {"rotation": {"kind": "subspace", "k": 4} | ({"seed": big} if where == "featurizer" else {})},
        epochs=1,
        **({"seed": big} if where == "fit" else {}),
        **({"controls": [{"kind": "random_subspace", "seed": big}]} if where == "control" else {}),
    )
    with pytest.raises(DocumentError, match="seed: expected a number at most 4611686018427387904"):
        carry_out(raw, tables())


def test_a_permute_of_what_is_trained_is_refused_and_one_below_it_is_that_of_the_step(carry_out):
    from causalab_mini.errors import PlanError

    def permuting(layer):
        raw = fitting({"rotation": ROTATION})
        item = raw["interventions"]["swap"]
        item["writes"]["p"] = {"site": site("mlp_output", layer), "pos": -1, "mechanism": "permute", "params": {"seed": 1}}
        item["models"]["patched"]["writes"].append("p")
        return raw

    with pytest.raises(
        PlanError, match=r"writes.p: expected `permute` of values that the training does not change .* got values behind `rotation`"
    ):
        carry_out(permuting(3), tables())
    assert losses(carry_out(permuting(1), tables(), batch_size=2)) == pytest.approx(losses(carry_out(permuting(1), tables())), rel=1e-4)


def test_a_basis_of_another_length_is_refused_before_weights_are_loaded(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    from causalab_mini.engine.engines.nnterp import NNterpEngine
    from causalab_mini.errors import PlanError

    monkeypatch.setattr(NNterpEngine, "load_weights", lambda self: pytest.fail("weights"))
    for name, rows in tables().items():
        write_table(tmp_path / "data", name, rows)
    save_file({"basis": 3 * torch.randn(64, 1, generator=torch.Generator().manual_seed(0))}, tmp_path / "long.safetensors")
    raw = fitting({"rotation": {"kind": "pca", "k": 1, "file_path": "long.safetensors"}}) | {"steps": {"do": observe("swap", "test")}}
    with pytest.raises(
        PlanError, match=r"featurizers.rotation.file_path: expected directions of length 1 at right angles, got lengths from 25.1"
    ):
        load(write_document(tmp_path, raw)).run(tmp_path / "out")


def test_a_file_may_be_a_folder_with_one(tmp_path):
    from safetensors.torch import save_file

    for name, rows in tables().items():
        write_table(tmp_path / "data", name, rows)
    for folder, names in (("sae", ["weights"]), ("two", ["a", "b"])):
        (tmp_path / folder).mkdir()
        for name in names:
            save_file({"basis": random_basis(64, 4, 0).contiguous()}, tmp_path / folder / f"{name}.safetensors")
    raw = fitting({"rotation": ROTATION | {"file_path": "sae"}}) | {"steps": {"do": observe("swap", "test")}}
    load(write_document(tmp_path, raw)).run(tmp_path / "out")
    raw["featurizers"]["rotation"]["file_path"] = "two"
    with pytest.raises(
        Exception, match=r"expected a safetensors file, or a folder with one, got `two` with `a.safetensors`, `b.safetensors`"
    ):
        load(write_document(tmp_path, raw)).compile()


def test_who_reports_on_rows_that_a_fit_has_seen_is_told(tmp_path, command):
    for name, rows in tables().items():
        write_table(tmp_path / "data", name, rows)
    raw = fitting({"rotation": ROTATION}, epochs=1)
    raw["steps"] |= {"again": observe("swap", "train"), "chosen": observe("swap", "test")}
    said = command("run", write_document(tmp_path, raw), "--out", tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    seen = {entry["step"]: entry.get("rows_seen_by") for entry in summary["metrics"]}
    assert seen == {"train": None, "again": {"train": {"trained_on": 13}}, "chosen": {"train": {"chosen_by": 7}}}
    assert "`again` reports on rows that `train` has seen: of 13, 13 that it was trained on" in " ".join(said.err.split())


def test_the_curve_of_an_evaluation_has_every_score_of_what_is_read(carry_out):
    line = carry_out(fitting({"rotation": ROTATION}, epochs=1), tables()).step("train").results["train/eval"][-1]
    assert list(line) == ["epoch", "update", "objective", "loss", "follows", "is_best"]
