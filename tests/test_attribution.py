"""Attributions against autograd and differences by hand, and against what each component alone really does."""

import json

import pytest
import torch
from authoring import ENTITY, LOGITS, document, observe, patching, site, write_document, write_table
from conftest import ROOT
from reference import forward, ids_of, spot
from test_fits import fitting, tables

from causalab_mini.evidence.agreement import agreement, rank_correlation, sign_agreement
from causalab_mini.experiment import load

pytestmark = pytest.mark.tiny

PAIRS = json.loads((ROOT / "data" / "successor" / "pairs.json").read_text(encoding="utf-8"))
ROWS = {"rows": [PAIRS[index] for index in (4, 8, 0, 10, 5)]}
DIFF = {"diff": {"kind": "logit_diff", "of": "prediction", "a": "cf_answer", "b": "base_answer"}}


def attributing(place, *, pos=-1, metrics=None, write=None, featurizers=None, **step):
    source = {"site": place, "pos": pos} | ({"featurizer": write["featurizer"]} if write and "featurizer" in write else {})
    intervention = patching(
        {"site": place, "pos": pos, "mechanism": "swap", "operand": "source"} | (write or {}), source, metrics=metrics or DIFF
    )
    rows = {"base": "rows", "counterfactual": "rows"}
    raw = document({"swap": intervention}, {"look": {"kind": "attribute", "rows": rows, "intervention": "swap", "metric": "diff"} | step})
    return raw | ({"featurizers": featurizers} if featurizers else {})


def table(run):
    """Returns estimates and exact values by layer, head, token and row."""
    found = run.step("look").results["attributions"]
    return {(row.get("layer"), row.get("head"), row["token"], int(row["example_id"])): row for row in found}


def answers(tokenizer, row):
    return [tokenizer(row[key].strip(), add_special_tokens=False)["input_ids"][0] for key in ("cf_answer", "base_answer")]


def difference(model, tokenizer, row, writes=()):
    """Returns logit of the counterfactual answer minus that of the base's, under writes by hand."""
    ids, _ = ids_of(tokenizer, row["input"])
    logits = forward(model, ids, {"logits": spot(model, "logits", None, [len(ids) - 1])}, writes)["logits"][0]
    a, b = answers(tokenizer, row)
    return float(logits[a] - logits[b])


def by_autograd(model, tokenizer, row, layer, share=0.0):
    """Returns gradient · (source − base) of each unit of a block's output at the last token, by plain autograd, at a share of the way."""
    base, other = (ids_of(tokenizer, text)[0] for text in (row["input"], row["counterfactual_inputs"][0]))
    reads = [forward(model, ids, {"x": spot(model, "block_output", layer, [len(ids) - 1])})["x"][0] for ids in (base, other)]
    leaf = (reads[0] + share * (reads[1] - reads[0])).clone().requires_grad_(True)

    def put(module, args, output):
        return torch.cat([output[:, :-1], leaf[None, None]], dim=1)

    handle = model.model.layers[layer].register_forward_hook(put)
    try:
        logits = model(torch.tensor([list(base)])).logits[0, -1]
    finally:
        handle.remove()
    a, b = answers(tokenizer, row)
    (gradient,) = torch.autograd.grad(logits[a] - logits[b], leaf)
    return float((gradient * (reads[1] - reads[0])).sum())


@pytest.mark.parametrize("rewrites", ["all", "none"])
def test_an_estimate_is_the_gradient_times_the_change_by_plain_autograd(carry_out, plain_models, rewrites):
    options = {} if rewrites == "all" else {"rewrites": ()}
    found = table(carry_out(attributing(site("block_output", "all")), ROWS, **options))
    assert len(found) == 4 * len(ROWS["rows"])
    for layer in range(4):
        for number, row in enumerate(ROWS["rows"]):
            expected = by_autograd(*plain_models("successor-llama"), row, layer)
            assert found[layer, None, 0, number]["value"] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_integrated_gradients_are_the_mean_of_gradients_on_the_way(carry_out, plain_models):
    found = table(carry_out(attributing(site("block_output", [1, 3]), method="ig", ig_steps=4), ROWS))
    for layer in (1, 3):
        for number, row in enumerate(ROWS["rows"]):
            steps = [by_autograd(*plain_models("successor-llama"), row, layer, (n + 0.5) / 4) for n in range(4)]
            assert found[layer, None, 0, number]["value"] == pytest.approx(sum(steps) / 4, rel=1e-3, abs=1e-3)


def test_a_gradient_is_that_of_small_differences(carry_out, plain_models):
    """`lerp` with a small share is the patch made by that share: its exact effect is the estimate of the whole, times the share."""
    share = 1e-2
    raw = attributing(site("attention_output", "all"), write={"mechanism": "lerp", "params": {"t": share}}, verify_top=4)
    found = table(carry_out(raw, ROWS))
    pairs = [(row["value"], row["exact"]) for row in found.values()]
    assert max(abs(exact) for _, exact in pairs) > 1e-3
    for estimate, exact in pairs:
        assert estimate == pytest.approx(exact, rel=0.15, abs=2e-4)  # fp32: the difference of two logits of some tens


def test_the_last_layers_stream_is_estimated_exactly_where_the_head_is_linear(carry_out):
    found = table(carry_out(attributing(site("ln_final"), verify_top=1), ROWS))
    for row in found.values():
        assert row["value"] == pytest.approx(row["exact"], rel=1e-4)


def test_integrated_gradients_add_up_to_what_the_whole_layer_does(carry_out):
    raw = attributing(site("attention_z", 2), method="ig", ig_steps=200)
    found = table(carry_out(raw, ROWS))
    intervention = raw["interventions"]["swap"]
    clean = {"reads": {"prediction": {"site": LOGITS, "pos": -1, "input": "base"}}, "metrics": DIFF}
    exact = document({"swap": intervention, "clean": clean}, {"do": observe(["swap", "clean"])})
    metrics = carry_out(exact, ROWS).step("do").results["metrics"]
    for number in range(len(ROWS["rows"])):
        whole = metrics["swap/diff"][number]["value"] - metrics["clean/diff"][number]["value"]
        assert sum(found[2, head, 0, number]["value"] for head in range(4)) == pytest.approx(whole, rel=2e-2, abs=2e-2)


def test_what_is_run_exactly_is_the_patch_of_one_head_at_one_token_by_hand(carry_out, plain_models):
    model, tokenizer = plain_models("successor-llama")
    raw = attributing(site("attention_premix", [1, 2]), pos={"last": 2}, verify_top=16)
    found = table(carry_out(raw, ROWS))
    assert all(row["exact"] is not None for row in found.values())

    def reading(ids, layer):
        kept = []
        handle = model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(lambda module, args: kept.append(args[0].clone()))
        try:
            model(torch.tensor([list(ids)]))
        finally:
            handle.remove()
        return kept[0][0]

    for (layer, head, token, number), row in found.items():
        entry = ROWS["rows"][number]
        base, other = (ids_of(tokenizer, text)[0] for text in (entry["input"], entry["counterfactual_inputs"][0]))
        with torch.no_grad():
            source = reading(other, layer)

            def put(module, args, source=source, head=head, token=token):
                changed = args[0].clone()
                changed[0, -2 + token, head * 16 : head * 16 + 16] = source[-2 + token, head * 16 : head * 16 + 16]
                return (changed,)

            handle = model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(put)
            try:
                logits = model(torch.tensor([list(base)])).logits[0, -1]
            finally:
                handle.remove()
        a, b = answers(tokenizer, entry)
        change = float(logits[a] - logits[b]) - difference(model, tokenizer, entry)
        assert row["exact"] == pytest.approx(change, rel=1e-3, abs=1e-3)


def test_windows_of_names_are_estimated_token_by_token(carry_out):
    found = table(carry_out(attributing(site("block_output", [0, 1]), pos=ENTITY, verify_top=100), ROWS))
    by_row = {}
    for (_, _, token, row), entry in found.items():
        if entry["value"] is not None:
            by_row.setdefault(row, set()).add(token)
            assert entry["exact"] is not None
        else:
            assert entry["reason"] == "out_of_range"
    lengths = sorted(len(tokens) for tokens in by_row.values())
    assert lengths[0] < lengths[-1]


def test_writes_in_a_subspace_are_estimated_by_what_they_change(carry_out):
    raw = attributing(
        site("block_output", 2), write={"featurizer": "turn"}, featurizers={"turn": {"kind": "subspace", "k": 64, "seed": 1}}, verify_top=1
    )
    plain = attributing(site("block_output", 2), verify_top=1)
    found, expected = (table(carry_out(each, ROWS)) for each in (raw, plain))
    for key, row in found.items():
        assert row["value"] == pytest.approx(expected[key]["value"], rel=1e-3, abs=1e-4)
        assert row["exact"] == pytest.approx(expected[key]["exact"], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 2}, {"kind": "hooks"}])
def test_batches_leave_estimates_as_they_are(carry_out, options):
    raw = attributing(site("mlp_output", "all"), verify_top=2)
    found, expected = table(carry_out(raw, ROWS, **options)), table(carry_out(raw, ROWS))
    for key, row in found.items():
        assert row["value"] == pytest.approx(expected[key]["value"], rel=1e-4, abs=1e-5)


def test_patterns_are_estimated_head_by_head(tmp_path):
    rows = json.loads((ROOT / "data" / "successor" / "same_shape.json").read_text(encoding="utf-8"))[:4]
    write_table(tmp_path / "data", "rows", rows)
    raw = attributing(site("attention_probs", [1, 2]), verify_top=8)
    raw["model"]["attn_implementation"] = "eager"
    found = table(load(write_document(tmp_path, raw)).run(tmp_path / "out"))
    assert {(layer, head) for layer, head, _, _ in found} == {(layer, head) for layer in (1, 2) for head in range(4)}
    means = {}
    for (layer, head, _, _), row in found.items():
        means.setdefault((layer, head), []).append((row["value"], row["exact"]))
    agreed = agreement(list(means.values()))
    assert agreed["rank_correlation"] > 0.8
    assert agreed["sign_agreement"] >= 0.75


def test_agreement_is_of_ranks_and_signs():
    assert rank_correlation([(1, 10), (2, 20), (3, 15)]) == pytest.approx(0.5)
    assert rank_correlation([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.8660254)
    assert rank_correlation([(1, 1)]) is None
    assert rank_correlation([(1, 1), (1, 2)]) is None
    assert sign_agreement([(1, 2), (-1, 1), (0, 0), (0, 1)]) == pytest.approx(1 / 3)
    assert sign_agreement([(0, 0)]) is None
    found = agreement([[(1.0, 2.0), (1.0, 0.0)], [(-1.0, -3.0), (0.5, 1.0)]])
    assert found["n_components"] == 2
    assert found["n_values"] == 4
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert found["sign_agreement_rows"] == pytest.approx(0.75)


PREDICTION = {"site": LOGITS, "pos": -1, "model": "patched"}
SOURCE = {"site": site("block_output", 1), "pos": -1, "input": "counterfactual"}
SWAP = {"site": site("block_output", 1), "pos": -1, "mechanism": "swap", "operand": "source"}


def attribution(writes, reads=None, metrics=None, **more):
    item = {
        "reads": {"source": SOURCE, "prediction": PREDICTION} | (reads or {}),
        "writes": writes,
        "models": {"patched": {"input": "base", "writes": list(writes)}},
        "metrics": metrics or DIFF,
    }
    rows = {"base": "rows", "counterfactual": "rows"}
    return document({"swap": item}, {"look": {"kind": "attribute", "rows": rows, "intervention": "swap", "metric": "diff", **more}})


def test_verify_top_of_two_writes(carry_out):
    other = {"site": site("block_output", 2), "pos": -1, "mechanism": "add_scaled", "operand": 1.0}
    carry_out(attribution({"a": SWAP, "b": other}, verify_top=2), PAIRS[:4])


def test_verify_top_beside_a_read_that_the_metric_does_not_take(carry_out):
    mid = {"site": site("block_output", 3), "pos": -1, "model": "patched"}
    carry_out(attribution({"a": SWAP}, {"mid": mid}, DIFF | {"n": {"kind": "value", "of": "mid", "how": "norm"}}, verify_top=1), PAIRS[:4])


def test_verify_top_in_coordinates_that_a_fit_trained(carry_out):
    raw = fitting({"rotation": {"kind": "subspace", "k": 4}}, epochs=1)
    rows = {"base": "test", "counterfactual": "test"}
    raw["steps"]["look"] = {"kind": "attribute", "rows": rows, "intervention": "swap", "metric": "loss", "verify_top": 1}
    carry_out(raw, tables())


def test_an_exact_effect_of_a_permute_is_that_of_the_step_where_a_row_can_not_be_scored(carry_out):
    rows = json.loads(json.dumps(PAIRS[:6]))
    rows[2]["cf_answer"] = None
    write = {"site": site("block_output", 1), "pos": -1, "mechanism": "permute", "params": {"seed": 3}}
    raw = attribution({"w": write}, verify_top=1)
    del raw["interventions"]["swap"]["reads"]["source"]
    raw["steps"]["look"]["rows"] = {"base": "rows"}
    raw["interventions"]["clean"] = {"reads": {"prediction": {"site": LOGITS, "pos": -1, "input": "base"}}, "metrics": DIFF}
    raw["steps"] = {"do": observe(["swap", "clean"], both=False), **raw["steps"]}
    run = carry_out(raw, rows)
    found = run.step("do").results["metrics"]
    for row, line in enumerate(run.step("look").results["attributions"]):
        if line["exact"] is not None:
            expected = found["swap/diff"][row]["value"] - found["clean/diff"][row]["value"]
            assert line["exact"] == pytest.approx(expected, abs=1e-3)


def test_a_metric_against_a_model_that_the_written_one_feeds(carry_out):
    reads = {"mid": {"site": site("block_output", 3), "pos": -1, "model": "patched"}, "other": {**PREDICTION, "model": "second"}}
    raw = attribution({"a": SWAP}, reads, {"diff": {"kind": "kl", "of": "prediction", "against": "other"}})
    item = raw["interventions"]["swap"]
    item["writes"]["v"] = {"site": site("block_output", 3), "pos": -1, "mechanism": "lerp", "operand": "mid", "params": {"t": 0.5}}
    item["models"]["second"] = {"input": "base", "writes": ["v"]}
    carry_out(raw, PAIRS[:4])
