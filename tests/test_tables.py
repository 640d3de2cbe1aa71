"""Documents on the bundled Llama against the reference: scores, mechanisms, outputs as operands, what a table says of its rows."""

import json

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from authoring import ENTITY, LOGITS, document, observe, pair, patching, site, write_document, write_table
from reference import forward, ids_of, log_softmax, spot, tokens_of
from scipy.spatial import distance

pytestmark = pytest.mark.tiny

LAST_OF_ENTITY = {"index": -1, "scope": {"variable": "entity"}}
STREAM = {"site": site("block_output", 1), "pos": -1}
CLEAN = {"site": LOGITS, "pos": -1, "input": "base"}
TOLERANCE = 1e-4
"""Of logits that are around 10: ragged batches against rows alone, then a softmax or a norm."""


class Truth:
    """The reference on the bundled Llama: prompts as text, tokens by index or as those of the entity."""

    def __init__(self, model, tokenizer):
        self.model = model
        self.tokenizer = tokenizer

    def entity(self, row, side="base"):
        if side == "base":
            return tokens_of(self.tokenizer, row["input"], row["entity"])
        return tokens_of(self.tokenizer, row["counterfactual_inputs"][0], row["counterfactual_inputs_variables"][0]["entity"])

    def spot(self, text, component, layer, tokens):
        n = len(ids_of(self.tokenizer, text)[0])
        return spot(self.model, component, layer, [token % n for token in tokens])

    def read(self, text, component, layer, tokens, writes=()):
        return forward(self.model, ids_of(self.tokenizer, text)[0], {"v": self.spot(text, component, layer, tokens)}, writes)["v"]

    def logits(self, text, writes=()):
        return self.read(text, "logits", None, [-1], writes)[0]

    def source(self, row, component="block_output", layer=1, tokens=(-1,)):
        return self.read(row["counterfactual_inputs"][0], component, layer, tokens)

    def patched(self, row, change, component="block_output", layer=1, tokens=(-1,)):
        """Returns the last logits of a base prompt, with `change(values)` at some tokens of one place."""
        place = self.spot(row["input"], component, layer, tokens)
        return self.logits(row["input"], [(place, lambda value, found: change(value))])

    def token(self, text):
        (token,) = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return token


@pytest.fixture(scope="module")
def truth(plain_models):
    return Truth(*plain_models("successor-llama"))


@pytest.fixture(scope="module")
def rows(rows_of):
    return rows_of("successor-llama")


def table(run, name, step="s"):
    return run.points[0].step(step).results["metrics"][name]


def values(run, name, step="s"):
    return [row["value"] for row in table(run, name, step)]


def one_step(interventions, both=True, **more):
    return document({"i": interventions}, {"s": observe("i", both=both, **more)})


def near(found, expected):
    np.testing.assert_allclose(np.asarray(found, dtype=float), np.asarray(expected, dtype=float), rtol=TOLERANCE, atol=TOLERANCE)


def near_logits(found, expected):
    """Equal to 1e-3 of logits that are around 10: where a write leaves little of the stream, the norm after it magnifies rounding."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


# scores


def scored():
    reads = {
        "z": CLEAN,
        "other": {**CLEAN, "input": "counterfactual"},
        "h": {**STREAM, "input": "base"},
        "g": {**STREAM, "input": "counterfactual"},
    }
    answers = {"expected": "base_answer"}
    metrics = {
        "match": {"kind": "match", "of": "z", **answers},
        "match_other": {"kind": "match", "of": "other", **answers},
        "logit_diff": {"kind": "logit_diff", "of": "z", "a": "cf_answer", "b": "base_answer"},
        "cross_entropy": {"kind": "cross_entropy", "of": "other", "target": "base_answer"},
        "token_logit": {"kind": "token_logit", "of": "z", "token": "cf_answer"},
        "token_prob": {"kind": "token_prob", "of": "z", "token": "base_answer"},
        "rank": {"kind": "rank", "of": "z", "token": "cf_answer"},
        "kl": {"kind": "kl", "of": "z", "against": "other"},
        "js": {"kind": "js", "of": "z", "against": "other"},
        "cosine": {"kind": "cosine", "of": "h", "against": "g"},
        "sum": {"kind": "value", "of": "h", "how": "sum"},
        "mean": {"kind": "value", "of": "h", "how": "mean"},
        "norm": {"kind": "value", "of": "h", "how": "norm"},
        "max": {"kind": "value", "of": "h", "how": "max"},
        "top_k": {"kind": "top_k", "of": "z", "k": 3},
        "class_match": {"kind": "class_match", "of": "z", "expected": "base_answer", "classes": "classes"},
        "class_match_other": {"kind": "class_match", "of": "other", "expected": "base_answer", "classes": "classes"},
        "answer": {"kind": "answer_logprob", "of": "z", "target": "entity"},
    }
    return {"reads": reads, "metrics": metrics}


@pytest.fixture(scope="module")
def score_run(carry_out, rows):
    with_classes = [row | {"classes": [row["base_answer"], row["cf_answer"]]} for row in rows]
    return carry_out(one_step(scored()), with_classes)


def test_scores_are_those_of_scipy_on_the_references_logits(score_run, truth, rows):
    z = np.stack([truth.logits(row["input"]).double().numpy() for row in rows])
    other = np.stack([truth.logits(row["counterfactual_inputs"][0]).double().numpy() for row in rows])
    p, q = scipy.special.softmax(z, axis=-1), scipy.special.softmax(other, axis=-1)
    base, cf = ([truth.token(row[column]) for row in rows] for column in ("base_answer", "cf_answer"))
    each = np.arange(len(rows))
    near(values(score_run, "match"), z.argmax(-1) == base)
    near(values(score_run, "match_other"), other.argmax(-1) == base)
    near(values(score_run, "logit_diff"), z[each, cf] - z[each, base])
    near(values(score_run, "cross_entropy"), -scipy.special.log_softmax(other, axis=-1)[each, base])
    near(values(score_run, "token_logit"), z[each, cf])
    near(values(score_run, "token_prob"), p[each, base])
    near(values(score_run, "rank"), [(z[row] > z[row, cf[row]]).sum() for row in each])
    near(values(score_run, "kl"), scipy.stats.entropy(p, q, axis=-1))
    near(values(score_run, "js"), distance.jensenshannon(p, q, axis=-1) ** 2)
    near(values(score_run, "class_match"), z[each, base] > z[each, cf])
    near(values(score_run, "class_match_other"), other[each, base] > other[each, cf])
    for row, found in enumerate(values(score_run, "top_k")):
        order = np.argsort(-p[row])[:3]
        assert [text for text, _ in found] == [truth.tokenizer.decode([token]) for token in order]
        near([probability for _, probability in found], p[row, order])
    assert sum(values(score_run, "match")) == len(rows)
    assert sum(values(score_run, "match_other")) == 0


def test_scores_of_any_place_are_those_of_numpy_on_the_references_reads(score_run, truth, rows):
    h = np.stack([truth.read(row["input"], "block_output", 1, [-1])[0].double().numpy() for row in rows])
    g = np.stack([truth.source(row)[0].double().numpy() for row in rows])
    near(values(score_run, "cosine"), [1 - distance.cosine(a, b) for a, b in zip(h, g, strict=True)])
    for name, formula in (("sum", np.sum), ("mean", np.mean), ("norm", np.linalg.norm), ("max", np.max)):
        near(values(score_run, name), formula(h, axis=-1))


def test_an_answers_log_probability_is_that_of_a_plain_forward_over_prompt_and_answer(score_run, truth, rows):
    lengths = []
    for row, found in zip(rows, values(score_run, "answer"), strict=True):
        answer = truth.tokenizer(" " + row["entity"], add_special_tokens=False)["input_ids"]
        lengths.append(len(answer))
        prompt, _ = ids_of(truth.tokenizer, row["input"])
        with torch.no_grad():
            log_p = log_softmax(truth.model(torch.tensor([prompt + answer])).logits[0])
        near(found, sum(log_p[len(prompt) - 1 + index, token] for index, token in enumerate(answer)))
    assert len(set(lengths)) > 1


def test_an_answer_is_scored_in_the_intervened_model_with_the_prompts_positions(carry_out, truth, rows):
    metrics = {"answer": {"kind": "answer_logprob", "of": "prediction", "target": "entity"}}
    run = carry_out(
        one_step(patching({**STREAM, "pos": LAST_OF_ENTITY, "mechanism": "swap", "operand": 0.0}, metrics=metrics), both=False), rows
    )
    for row, found in zip(rows, values(run, "answer"), strict=True):
        answer = truth.tokenizer(" " + row["entity"], add_special_tokens=False)["input_ids"]
        prompt, _ = ids_of(truth.tokenizer, row["input"])
        write = (spot(truth.model, "block_output", 1, truth.entity(row)[-1:]), lambda value, found: torch.zeros_like(value))
        reads = {"z": spot(truth.model, "logits", None, range(len(prompt) - 1, len(prompt) + len(answer) - 1))}
        log_p = log_softmax(forward(truth.model, prompt + answer, reads, [write])["z"])
        near(found, sum(log_p[index, token] for index, token in enumerate(answer)))


def test_units_are_the_languages(score_run):
    units = {name: {row["unit"] for row in rows} for name, rows in score_run.step("s").results["metrics"].items()}
    expected = {
        **dict.fromkeys(("match", "match_other", "class_match", "class_match_other"), "fraction"),
        **dict.fromkeys(("logit_diff", "token_logit"), "logit"),
        **dict.fromkeys(("cross_entropy", "kl", "js", "answer"), "nat"),
        **dict.fromkeys(("token_prob", "top_k"), "probability"),
        **dict.fromkeys(("sum", "mean", "norm", "max"), "activation"),
        "rank": "rank",
        "cosine": "cosine",
    }
    assert units == {name: {unit} for name, unit in expected.items()}


def test_recovered_is_the_share_of_the_way_from_corrupt_to_clean(carry_out, truth, rows):
    """Base is corrupt, counterfactual is clean; the patched model stands somewhere between."""
    metrics = {
        "diff": {"kind": "logit_diff", "of": "prediction", "a": "cf_answer", "b": "base_answer"},
        "recovered": {"kind": "recovered", "of": "prediction", "metric": "diff", "clean": "clean", "corrupt": "corrupt"},
        "nowhere": {"kind": "recovered", "of": "prediction", "metric": "diff", "clean": "corrupt", "corrupt": "corrupt"},
    }
    reads = {
        "prediction": {"site": LOGITS, "pos": -1, "model": "patched"},
        "clean": {**CLEAN, "input": "counterfactual"},
        "corrupt": CLEAN,
    }
    half = {**STREAM, "mechanism": "lerp", "operand": "source", "params": {"t": 0.5}}
    run = carry_out(one_step(patching(half, STREAM, reads=reads, metrics=metrics)), rows)
    for row, found in zip(rows, values(run, "recovered"), strict=True):
        source = truth.source(row)

        def diff(z, row=row):
            return float(z[truth.token(row["cf_answer"])] - z[truth.token(row["base_answer"])])

        patched = diff(truth.patched(row, lambda value, source=source: 0.5 * value + 0.5 * source))
        corrupt, clean = diff(truth.logits(row["input"])), diff(truth.logits(row["counterfactual_inputs"][0]))
        near(found, (patched - corrupt) / (clean - corrupt))
    for row in table(run, "nowhere"):
        assert (row["value"], row["eligible"], row["reason"]) == (None, True, "zero_denominator")


def test_recovered_is_not_scored_where_a_read_of_its_metric_misses(carry_out, rows):
    holed = [row | ({"entity": "Neptune"} if index == 1 else {}) for index, row in enumerate(rows)]
    metrics = {
        "divergence": {"kind": "kl", "of": "clean", "against": "inside"},
        "recovered": {"kind": "recovered", "of": "other", "metric": "divergence", "clean": "clean", "corrupt": "other"},
    }
    reads = {
        "clean": CLEAN,
        "other": {**CLEAN, "input": "counterfactual"},
        "inside": {"site": LOGITS, "pos": LAST_OF_ENTITY, "input": "base"},
    }
    line = table(carry_out(one_step({"reads": reads, "metrics": metrics}), holed), "recovered")[1]
    assert (line["value"], line["eligible"], line["reason"]) == (None, False, "alignment_missing")


# rows that can't be scored


def test_a_read_that_misses_a_row_keeps_it_in_the_table_with_the_reason(carry_out, rows):
    holed = [row | ({"entity": "Neptune"} if index == 1 else {}) for index, row in enumerate(rows)]
    norm = {
        "reads": {"h": {**STREAM, "pos": LAST_OF_ENTITY, "input": "base"}},
        "metrics": {"norm": {"kind": "value", "of": "h", "how": "norm"}},
    }
    run = carry_out(one_step(norm, both=False, outputs={"mean": {"read": "h", "reduce": "mean"}, "h": "h"}), holed)
    lines = table(run, "norm")
    assert len(lines) == len(rows)
    line = lines[1]
    assert (line["value"], line["eligible"], line["reason"], line["positions"], line["tokens"]) == (
        None,
        False,
        "alignment_missing",
        [],
        None,
    )
    whole = carry_out(one_step(norm, both=False), rows)
    others = [index for index in range(len(rows)) if index != 1]
    near([lines[index]["value"] for index in others], [values(whole, "norm")[index] for index in others])
    outputs = run.step("s").results["outputs"]
    assert outputs["h"].value.lengths == (1, 0, 1, 1, 1)
    torch.testing.assert_close(outputs["mean"].value.data[:, 0], outputs["h"].value.data.double().mean(dim=1).float())


def test_an_operand_that_misses_a_row_leaves_it_unwritten_and_unscored(carry_out, truth, rows):
    holed = json.loads(json.dumps(rows))
    holed[2]["counterfactual_inputs_variables"][0]["entity"] = "Neptune"
    metrics = {"logit": {"kind": "token_logit", "of": "prediction", "token": "cf_answer"}}
    raw = one_step(
        patching({**STREAM, "mechanism": "swap", "operand": "source"}, {**STREAM, "pos": LAST_OF_ENTITY}, metrics=metrics),
        outputs={"z": "prediction"},
    )
    run = carry_out(raw, holed, check="sample")
    line = table(run, "logit")[2]
    assert (line["value"], line["eligible"], line["reason"]) == (None, False, "alignment_missing")
    assert line["positions"] is None  # every position of its pass is a plain integer
    z = run.step("s").results["outputs"]["z"].value.data[0]
    near_logits(z[2], truth.logits(rows[2]["input"]))
    for index in (0, 1, 3, 4):
        source = truth.source(rows[index], tokens=truth.entity(rows[index], "counterfactual")[-1:])
        near_logits(z[index], truth.patched(rows[index], lambda value, source=source: source))
    assert {check.status for check in run.step("s").results["checks"]} == {"passed"}


def kept_then_written(output, **more):
    """Returns a document in which a step keeps what stands at the entity, and the next writes that at the last token."""
    keep = {
        "reads": {"h": {**STREAM, "pos": LAST_OF_ENTITY, "input": "base"}},
        "metrics": {"m": {"kind": "value", "of": "h", "how": "norm"}},
    }
    patch = patching(
        {**STREAM, "mechanism": "swap", "operand": {"ref": "kept"}},
        metrics={"logit": {"kind": "token_logit", "of": "prediction", "token": "base_answer"}},
    )
    steps = {"first": observe("keep", both=False), "keep": observe("keep", both=False, outputs={"kept": output}, **more)}
    return document({"keep": keep, "patch": patch}, steps | {"s": observe("patch", both=False)})


OF_SOME_ROWS = {"a row each": {"read": "h"}, "groups": {"read": "h", "reduce": "mean_by", "by": "entity"}}


@pytest.mark.parametrize("output", OF_SOME_ROWS.values(), ids=OF_SOME_ROWS)
def test_an_output_without_a_value_for_a_row_leaves_it_unwritten_and_unscored(carry_out, truth, rows, output):
    holed = [row | ({"entity": "Neptune"} if index == 1 else {}) for index, row in enumerate(rows)]
    run = carry_out(kept_then_written(output), holed, check="sample")
    lines = table(run, "logit")
    assert (lines[1]["value"], lines[1]["eligible"], lines[1]["reason"]) == (None, False, "alignment_missing")
    for index in (0, 2, 3, 4):
        own = truth.read(rows[index]["input"], "block_output", 1, truth.entity(rows[index])[-1:])
        z = truth.patched(rows[index], lambda value, own=own: own)
        near(lines[index]["value"], z[truth.token(rows[index]["base_answer"])])
    assert {check.status for check in run.step("s").results["checks"]} == {"passed"}


@pytest.mark.parametrize("output", OF_SOME_ROWS.values(), ids=OF_SOME_ROWS)
def test_an_output_of_rows_that_a_where_chose_is_not_written_on_others(carry_out, rows, output):
    from causalab_mini.errors import RunError

    norms = values(carry_out(kept_then_written(output), rows), "m", "first")
    where = {"step": "first", "metric": "m", "max": sorted(norms)[2]}
    with pytest.raises(RunError, match=r"steps.s: expected a value of `kept` on every row that runs, got none on rows"):
        carry_out(kept_then_written(output, where=where), rows)


@pytest.mark.parametrize("reduce", ["mean", "std"])
def test_nothing_is_reduced_of_no_tokens(carry_out, rows, reduce):
    from causalab_mini.errors import PlanError

    nowhere = {"reads": {"h": {**STREAM, "pos": LAST_OF_ENTITY, "input": "base"}}}
    raw = one_step(nowhere, both=False, outputs={"o": {"read": "h", "reduce": reduce}})
    with pytest.raises(PlanError, match=r"steps\.s\.outputs\.o: expected at least one token to reduce, got none on 5 rows"):
        carry_out(raw, [row | {"entity": "Neptune"} for row in rows])


def test_an_empty_cell_makes_its_row_ineligible(carry_out, rows):
    holed = [row | ({"base_answer": None} if index == 0 else {}) for index, row in enumerate(rows)]
    raw = one_step({"reads": {"z": CLEAN}, "metrics": {"m": {"kind": "match", "of": "z", "expected": "base_answer"}}}, both=False)
    lines = table(carry_out(raw, holed), "m")
    assert (lines[0]["value"], lines[0]["eligible"], lines[0]["reason"]) == (None, False, "column_missing")
    assert [line["value"] for line in lines[1:]] == [1.0] * 4


def test_no_row_that_can_be_scored_is_refused(carry_out, rows):
    from causalab_mini.errors import PlanError

    holed = [row | {"entity": "Neptune"} for row in rows]
    norm = {
        "reads": {"h": {**STREAM, "pos": LAST_OF_ENTITY, "input": "base"}},
        "metrics": {"norm": {"kind": "value", "of": "h", "how": "norm"}},
    }
    with pytest.raises(PlanError, match="at least one row that can be scored, got none of 5 \\(5 × alignment_missing\\)"):
        carry_out(one_step(norm, both=False), holed)


def test_example_ids_label_rows(carry_out, rows):
    labelled = [row | {"example_id": f"row-{index}"} for index, row in enumerate(rows)]
    raw = one_step({"reads": {"z": CLEAN}, "metrics": {"m": {"kind": "match", "of": "z", "expected": "base_answer"}}}, both=False)
    assert [line["example_id"] for line in table(carry_out(raw, labelled), "m")] == [f"row-{index}" for index in range(5)]


# positions in tables


def test_positions_are_null_exactly_where_every_position_is_a_plain_integer(carry_out, truth, rows):
    metric = {"m": {"kind": "match", "of": "prediction", "expected": "base_answer"}}
    longest = max(len(ids_of(truth.tokenizer, row["input"])[0]) for row in rows)
    for pos, expected in ((-1, None), ({"index": -1}, None), (LAST_OF_ENTITY, [longest - 1])):
        run = carry_out(
            one_step(patching({**STREAM, "pos": pos, "mechanism": "swap", "operand": 0.0}, metrics=metric), both=False), rows, batch_size=2
        )
        assert all(line["positions"] == expected for line in table(run, "m"))


def test_the_record_of_positions_has_every_read_and_write_whatever_the_batches(carry_out, truth, rows):
    write = {**STREAM, "pos": ENTITY, "mechanism": "swap", "operand": "source"}
    found = [
        carry_out(one_step(patching(write, {**STREAM, "pos": ENTITY})), rows, batch_size=size).step("s").results["positions"]
        for size in (1, None)
    ]
    assert found[0] == found[1]
    assert set(found[0]) == {"source", "patch", "prediction"}
    longest = max(len(ids_of(truth.tokenizer, row["input"])[0]) for row in rows)
    for index, row in enumerate(rows):
        n = len(ids_of(truth.tokenizer, row["input"])[0])
        tokens = truth.entity(row)
        assert found[0]["patch"]["rows"][index] == tuple(longest - n + token for token in tokens)
        assert found[0]["patch"]["content"][index] == tuple(token - 1 for token in tokens)
        assert found[0]["patch"]["tokens"][index].strip("'").strip() == row["entity"]
        assert found[0]["patch"]["reason"][index] == ""


# stacked sites


@pytest.mark.parametrize("layers", [[3, 0], "all"])
def test_a_stacked_read_is_scored_layer_by_layer_in_listed_order(carry_out, rows, layers):
    look = {
        "reads": {"h": {"site": site("block_output", layers), "pos": -1, "input": "base"}},
        "metrics": {"norm": {"kind": "value", "of": "h", "how": "norm"}},
    }
    run = carry_out(one_step(look, both=False), rows)
    listed = [3, 0] if layers != "all" else [0, 1, 2, 3]
    lines = table(run, "norm")
    assert [line["layer"] for line in lines] == [layer for layer in listed for _ in rows]
    assert list(lines[0])[-1] == "layer"
    for layer in listed:
        alone = {"reads": {"h": {"site": site("block_output", layer), "pos": -1, "input": "base"}}, "metrics": look["metrics"]}
        single = table(carry_out(one_step(alone, both=False), rows), "norm")
        assert [line["value"] for line in lines if line["layer"] == layer] == [line["value"] for line in single]
        assert all("layer" not in line for line in single)


def test_a_view_as_logits_is_what_norm_and_head_make_of_the_stream(carry_out, truth, rows):
    lens = {
        "reads": {"lens": {"site": site("block_output", "all"), "pos": -1, "input": "base", "view": "logits"}},
        "metrics": {"m": {"kind": "token_logit", "of": "lens", "token": "base_answer"}},
    }
    run = carry_out(one_step(lens, both=False), rows)
    lines = iter(table(run, "m"))
    for layer in range(4):
        for row in rows:
            line = next(lines)
            with torch.no_grad():
                stream = truth.read(row["input"], "block_output", layer, [-1])
                z = truth.model.lm_head(truth.model.model.norm(stream))[0]
            near(line["value"], z[truth.token(row["base_answer"])])
            assert line["layer"] == layer


def test_a_stacked_write_pairs_layers_in_order_or_gives_one_vector_to_each(carry_out, truth, rows):
    place = {"site": site("mlp_output", [0, 2]), "pos": -1}
    for source_layers, single in (([0, 2], False), (1, True)):
        source = {"site": site("mlp_output", source_layers), "pos": -1}
        raw = one_step(patching({**place, "mechanism": "swap", "operand": "source"}, source), outputs={"z": "prediction"})
        z = carry_out(raw, rows).step("s").results["outputs"]["z"].value.data[0]
        for index, row in enumerate(rows):
            writes = []
            for layer in (0, 2):
                value = truth.source(row, "mlp_output", 1 if single else layer)
                writes.append((truth.spot(row["input"], "mlp_output", layer, [-1]), lambda old, found, value=value: value))
            near_logits(z[index], truth.logits(row["input"], writes))


# filters and lists


def filtered(**where):
    loss = {"loss": {"kind": "cross_entropy", "of": "z", "target": "base_answer"}}
    look = {"reads": {"z": CLEAN, "h": {**STREAM, "input": "base"}}, "metrics": loss}
    again = observe(
        "look", both=False, where={"step": "first", "metric": "loss", **where}, outputs={"mean": {"read": "h", "reduce": "mean"}, "h": "h"}
    )
    return document({"look": look}, {"first": observe("look", both=False), "second": again})


def test_rows_that_fail_a_where_are_not_run_not_reduced_and_stay_in_the_table(carry_out, rows):
    losses = values(carry_out(filtered(min=0.0), rows), "loss", "first")
    cut = sorted(losses)[2]
    run = carry_out(filtered(max=cut), rows)
    lines = table(run, "loss", "second")
    passing = [index for index, loss in enumerate(losses) if loss <= cut]
    assert len(passing) == 3
    for index, line in enumerate(lines):
        if index in passing:
            assert line["value"] == pytest.approx(losses[index], abs=1e-6)
            assert (line["eligible"], line["reason"]) == (True, "")
        else:
            assert (line["value"], line["eligible"], line["reason"], line["positions"]) == (None, False, "filtered", None)
    outputs = run.step("second").results["outputs"]
    assert outputs["h"].value.lengths == tuple(int(index in passing) for index in range(5))
    torch.testing.assert_close(outputs["mean"].value.data[0, 0], outputs["h"].value.data[0].double().mean(dim=0).float())


def test_a_where_that_no_row_passes_fails_the_run(carry_out, rows):
    from causalab_mini.errors import RunError

    with pytest.raises(RunError, match="at least one row whose `loss` of `first` is in range, got none of 5"):
        carry_out(filtered(min=1000.0), rows)


@pytest.mark.parametrize(
    ("pos", "said"),
    [
        (500, r"interventions\.again\.reads\.z\.pos: expected a position that every row has, got none on row"),
        ({"index": 0, "scope": {"text": "Neptune"}}, r"interventions\.again\.metrics\.loss: expected at least one row that can be scored"),
    ],
)
def test_rows_that_pass_a_where_are_judged_as_any_others(carry_out, rows, pos, said):
    from causalab_mini.errors import PlanError

    raw = filtered(min=0.0)
    raw["interventions"]["again"] = {
        "reads": {"z": {**CLEAN, "pos": pos}},
        "metrics": {"loss": {"kind": "cross_entropy", "of": "z", "target": "base_answer"}},
    }
    raw["steps"]["second"] |= {"interventions": "again", "outputs": {}}
    with pytest.raises(PlanError, match=said):
        carry_out(raw, rows)


def test_rows_that_fail_a_where_cause_no_refusal(carry_out, rows):
    holed = [
        row | ({"entity": "Neptune", "cf_answer": row["base_answer"], "base_answer": row["cf_answer"]} if index == 1 else {})
        for index, row in enumerate(rows)
    ]
    right = {"reads": {"z": CLEAN}, "metrics": {"m": {"kind": "match", "of": "z", "expected": "base_answer"}}}
    patch = patching(
        {**STREAM, "pos": LAST_OF_ENTITY, "mechanism": "swap", "operand": 0.0},
        metrics={"m": {"kind": "match", "of": "prediction", "expected": "base_answer"}},
    )
    steps = {
        "first": observe("right", both=False),
        "second": observe("patch", both=False, where={"step": "first", "metric": "m", "min": 1.0}),
    }
    lines = table(carry_out(document({"right": right, "patch": patch}, steps), holed), "m", "second")
    assert [line["reason"] for line in lines] == ["", "filtered", "", "", ""]


def test_a_list_of_interventions_has_qualified_names_and_a_folder_each(command, tmp_path, rows):
    metric = {"m": {"kind": "logit_diff", "of": "prediction", "a": "cf_answer", "b": "base_answer"}}
    early = patching({**STREAM, "mechanism": "swap", "operand": "source"}, STREAM, metrics=metric)
    late = patching(
        {**STREAM, "site": site("block_output", 3), "mechanism": "swap", "operand": "source"},
        {**STREAM, "site": site("block_output", 3)},
        metrics=metric,
    )
    saves = [{"value": "early/m", "file_path": "m.json"}, {"value": "late/m", "file_path": "m.json"}]
    raw = document({"early": early, "late": late}, {"s": observe(["early", "late"], saves=saves)})
    write_table(tmp_path / "data", "rows", rows)
    code, out, _ = command("run", write_document(tmp_path, raw), "--out", tmp_path / "out")
    assert code == 0
    assert [line.removeprefix(f"{tmp_path}/out/") for line in out.splitlines()[:4]] == [
        "document.json",
        "run.json",
        "early/m.json",
        "late/m.json",
    ]
    early_rows, late_rows = (json.loads((tmp_path / "out" / name / "m.json").read_text(encoding="utf-8")) for name in ("early", "late"))
    assert {line["metric"] for line in early_rows + late_rows} == {"m"}
    assert {line["produced_by"] for line in late_rows} == {"s/late/patched/base"}
    assert all(a["value"] < b["value"] for a, b in zip(early_rows, late_rows, strict=True))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [entry["metric"] for entry in summary["metrics"]] == ["early/m", "late/m"]


# mechanisms as documents


def patched_logits(carry_out, rows, write, source=None, **options):
    raw = one_step(patching({**STREAM, **write}, source), both=source is not None, outputs={"z": "prediction"})
    return carry_out(raw, rows, **options).step("s").results["outputs"]["z"].value.data[0]


@pytest.mark.parametrize(
    ("write", "formula"),
    [
        ({"mechanism": "swap"}, lambda f, g: g),
        ({"mechanism": "add_scaled"}, lambda f, g: f + g),
        ({"mechanism": "add_scaled", "params": {"scale": -0.5}}, lambda f, g: f - 0.5 * g),
        ({"mechanism": "lerp", "params": {"t": 0.25}}, lambda f, g: 0.75 * f + 0.25 * g),
        ({"mechanism": "project_out"}, lambda f, g: f - g * ((f * g).sum(-1, keepdim=True) / (g * g).sum(-1, keepdim=True))),
    ],
)
def test_a_mechanism_with_a_reads_operand_is_the_references(carry_out, truth, rows, write, formula):
    z = patched_logits(carry_out, rows, {**write, "operand": "source"}, STREAM)
    for index, row in enumerate(rows):
        source = truth.source(row)
        near_logits(z[index], truth.patched(row, lambda value, source=source: formula(value, source)))


@pytest.mark.parametrize(
    ("write", "formula"),
    [
        ({"mechanism": "swap", "operand": 0.25}, lambda f: torch.full_like(f, 0.25)),
        ({"mechanism": "add_scaled", "operand": 0.25, "params": {"scale": 2.0}}, lambda f: f + 0.5),
        ({"mechanism": "clamp", "params": {"lo": -0.1, "hi": 0.2}}, lambda f: f.clamp(-0.1, 0.2)),
        ({"mechanism": "clamp", "params": {"hi": 0.2}}, lambda f: f.clamp(max=0.2)),
    ],
)
@pytest.mark.parametrize("pos", [ENTITY, {"last": 3}, {"span": [0, 2]}], ids=str)
def test_a_mechanism_without_a_reads_operand_is_the_references_on_any_window(carry_out, truth, rows, write, formula, pos):
    z = patched_logits(carry_out, rows, {**write, "pos": pos})
    for index, row in enumerate(rows):
        tokens = truth.entity(row) if pos is ENTITY else [-3, -2, -1] if "last" in pos else [1, 2]
        near_logits(z[index], truth.patched(row, formula, tokens=tokens))


def test_renormalize_gives_back_the_length_that_arrived(carry_out, truth, rows):
    writes = {
        "steer": {**STREAM, "mechanism": "add_scaled", "operand": "source", "params": {"scale": 3.0}},
        "length": {**STREAM, "mechanism": "renormalize"},
    }
    raw = one_step(
        {
            "reads": {
                "source": {**STREAM, "input": "counterfactual"},
                "z": {"site": LOGITS, "pos": -1, "model": "m"},
                "h": {**STREAM, "model": "m"},
                "h0": {**STREAM, "input": "base"},
            },
            "writes": writes,
            "models": {"m": {"input": "base", "writes": ["steer", "length"]}},
        },
        outputs={"z": "z", "h": "h", "h0": "h0"},
    )
    made = {name: output.value.data[0] for name, output in carry_out(raw, rows).step("s").results["outputs"].items()}
    torch.testing.assert_close(made["h"].norm(dim=-1), made["h0"].norm(dim=-1))
    for index, row in enumerate(rows):
        source = truth.source(row)

        def change(f, source=source):
            steered = f + 3.0 * source
            return steered * f.norm(dim=-1, keepdim=True) / steered.norm(dim=-1, keepdim=True)

        near_logits(made["z"][index], truth.patched(row, change))


def gaussian(seed, scale=0.5):
    return {"mechanism": "gaussian", "pos": ENTITY, "params": {"seed": seed, "scale": scale}}


def test_gaussian_noise_is_the_seeds_and_no_batchs(carry_out, truth, rows):
    place = {**STREAM, **gaussian(3)}
    raw = one_step(
        patching(
            place,
            reads={
                "h": {**STREAM, "pos": ENTITY, "model": "patched"},
                "h0": {**STREAM, "pos": ENTITY, "input": "base"},
                "z": {"site": LOGITS, "pos": -1, "model": "patched"},
            },
        ),
        both=False,
        outputs={"h": "h", "h0": "h0", "z": "z"},
    )
    runs = [carry_out(raw, rows, batch_size=size).step("s").results["outputs"] for size in (1, 2, None)]
    noise = runs[0]["h"].value.data - runs[0]["h0"].value.data
    assert 0.4 < float(noise.std()) < 0.6
    for other in runs[1:]:
        torch.testing.assert_close(other["h"].value.data - other["h0"].value.data, noise, rtol=0, atol=1e-5)
    start = 0
    for index, row in enumerate(rows):
        tokens = truth.entity(row)
        drawn = noise[0, start : start + len(tokens)]
        start += len(tokens)
        near_logits(runs[2]["z"].value.data[0, index], truth.patched(row, lambda value, drawn=drawn: value + drawn, tokens=tokens))
    again, another = (patched_logits(carry_out, rows, gaussian(seed)) for seed in (3, 4))
    assert torch.equal(again, runs[2]["z"].value.data[0])
    assert not torch.allclose(another, again, atol=1e-3)


def test_permute_gives_every_row_the_value_of_another(carry_out, truth, rows):
    z = patched_logits(carry_out, rows, {"mechanism": "permute", "params": {"seed": 1}})
    candidates = [truth.read(row["input"], "block_output", 1, [-1]) for row in rows]
    chosen = []
    for index, row in enumerate(rows):
        distances = [float((truth.patched(row, lambda value, c=c: c) - z[index]).abs().max()) for c in candidates]
        chosen.append(int(np.argmin(distances)))
        assert min(distances) < 1e-4
    assert sorted(chosen) == list(range(len(rows)))
    assert all(source != index for index, source in enumerate(chosen))
    assert torch.equal(z, patched_logits(carry_out, rows, {"mechanism": "permute", "params": {"seed": 1}}))
    near_logits(z, patched_logits(carry_out, rows, {"mechanism": "permute", "params": {"seed": 1}}, batch_size=2))
    others = [patched_logits(carry_out, rows, {"mechanism": "permute", "params": {"seed": seed}}) for seed in range(2, 6)]
    assert any(not torch.allclose(z, other, atol=1e-3) for other in others)


# widths and landing

UNEQUAL = [
    pair("If today is Thursday, tomorrow is", "Thursday", "If today is Friday, tomorrow is", "Friday"),
    pair("The day after Friday is", "Friday", "The day after Thursday is", "Thursday"),
    pair("Monday comes right before", "Monday", "Wednesday comes right before", "Wednesday"),
]


def test_a_whole_entity_of_another_width_is_refused_naming_the_rows(carry_out, truth):
    from causalab_mini.errors import PlanError

    widths = [(len(truth.entity(row)), len(truth.entity(row, "counterfactual"))) for row in UNEQUAL]
    assert any(a > b for a, b in widths)
    assert any(a < b for a, b in widths)
    with pytest.raises(PlanError, match="expected as many tokens as are written, row by row, got `source` with"):
        patched_logits(carry_out, UNEQUAL, {"pos": ENTITY, "mechanism": "swap", "operand": "source"}, {**STREAM, "pos": ENTITY})


@pytest.mark.parametrize("align", ["last", "first", "mean"])
def test_an_operand_of_another_width_lands_as_the_write_says(carry_out, truth, align):
    write = {**STREAM, "pos": ENTITY, "mechanism": "swap", "operand": "source", "align": align}
    raw = one_step(patching(write, {**STREAM, "pos": ENTITY}), outputs={"z": "prediction"})
    run = carry_out(raw, UNEQUAL, check="sample")
    z = run.step("s").results["outputs"]["z"].value.data[0]
    left_over = 0
    for index, row in enumerate(UNEQUAL):
        targets = truth.entity(row)
        source = truth.source(row, tokens=truth.entity(row, "counterfactual"))
        n = min(len(targets), len(source))
        if align == "mean":
            tokens, value = targets, source.mean(dim=0, keepdim=True).expand(len(targets), -1)
        elif align == "last":
            tokens, value = targets[-n:], source[-n:]
        else:
            tokens, value = targets[:n], source[:n]
        left_over += len(targets) - len(tokens)
        near_logits(z[index], truth.patched(row, lambda old, value=value: value, tokens=tokens))
    writes = next(check for check in run.step("s").results["checks"] if check.name == "writes")
    assert writes.data["writes"]["patched/patch"]["n_tokens_left_over"] == left_over
    assert (left_over > 0) == (align != "mean")
    assert (f"left {left_over} tokens as they were" in writes.text) == (align != "mean")


# outputs of earlier steps as operands


def two_steps(output, write, harvest_pos=-1, *, outputs=None, both=False):
    harvest = {
        "reads": {
            "acts": {**STREAM, "pos": harvest_pos, "input": "base"},
            "others": {**STREAM, "pos": harvest_pos, "input": "counterfactual"},
        }
    }
    if not both:
        del harvest["reads"]["others"]
    patch = patching({**STREAM, "mechanism": "swap", "operand": {"ref": "made"}, **write})
    steps = {
        "harvest": observe("harvest", both=both, outputs={**(outputs or {}), "made": output}),
        "s": observe("patch", both=False, outputs={"z": "prediction"}),
    }
    return document({"harvest": harvest, "patch": patch}, steps)


def streams(truth, rows, side="base"):
    texts = [row["input"] if side == "base" else row["counterfactual_inputs"][0] for row in rows]
    return torch.cat([truth.read(text, "block_output", 1, [-1]) for text in texts])


def check_operand(carry_out, truth, rows, raw, change, tokens=(-1,)):
    z = carry_out(raw, rows).step("s").results["outputs"]["z"].value.data[0]
    for index, row in enumerate(rows):
        near_logits(z[index], truth.patched(row, lambda value, index=index: change(value, index), tokens=tokens))


def test_an_unreduced_output_is_written_row_by_row(carry_out, truth, rows):
    raw = two_steps("others", {}, both=True)
    others = streams(truth, rows, "counterfactual")
    check_operand(carry_out, truth, rows, raw, lambda value, index: others[index][None])


def test_a_mean_is_written_on_every_row_and_every_token(carry_out, truth, rows):
    mean = streams(truth, rows).double().mean(dim=0).float()
    check_operand(carry_out, truth, rows, two_steps({"read": "acts", "reduce": "mean"}, {}), lambda value, index: mean[None])
    raw = two_steps({"read": "acts", "reduce": "mean"}, {"pos": {"last": 2}})
    check_operand(carry_out, truth, rows, raw, lambda value, index: mean.expand_as(value), (-2, -1))


def test_a_mean_over_a_rectangle_keeps_its_window(carry_out, truth, rows):
    window = torch.stack([truth.read(row["input"], "block_output", 1, [-2, -1]) for row in rows]).double().mean(dim=0).float()
    raw = two_steps({"read": "acts", "reduce": "mean"}, {"pos": {"last": 2}}, {"last": 2})
    check_operand(carry_out, truth, rows, raw, lambda value, index: window, (-2, -1))


def test_a_mean_over_a_ragged_read_is_one_vector(carry_out, truth, rows):
    mean = torch.cat([truth.read(row["input"], "block_output", 1, truth.entity(row)) for row in rows]).double().mean(dim=0).float()
    raw = two_steps({"read": "acts", "reduce": "mean"}, {"pos": {"last": 2}}, ENTITY)
    check_operand(carry_out, truth, rows, raw, lambda value, index: mean.expand_as(value), (-2, -1))


def test_a_standard_deviation_is_added(carry_out, truth, rows):
    std = streams(truth, rows).double().std(dim=0).float()
    raw = two_steps({"read": "acts", "reduce": "std"}, {"mechanism": "add_scaled"})
    check_operand(carry_out, truth, rows, raw, lambda value, index: value + std)


def test_the_first_principal_direction_is_projected_out(carry_out, truth, rows):
    data = streams(truth, rows).double().numpy()
    direction = torch.tensor(np.linalg.svd(data - data.mean(axis=0), full_matrices=False)[2][0]).float()
    raw = two_steps({"read": "acts", "reduce": "pca", "k": 1}, {"mechanism": "project_out"})
    check_operand(carry_out, truth, rows, raw, lambda value, index: value - (value @ direction)[:, None] * direction)


def test_each_row_takes_the_mean_of_its_own_group(carry_out, truth, rows):
    grouped = [row | {"group": group} for row, group in zip(rows, "abaab", strict=True)]
    data = streams(truth, rows).double()
    means = {group: data[[index for index, row in enumerate(grouped) if row["group"] == group]].mean(dim=0).float() for group in "ab"}
    raw = two_steps({"read": "acts", "reduce": "mean_by", "by": "group"}, {})
    check_operand(carry_out, truth, grouped, raw, lambda value, index: means[grouped[index]["group"]][None])


@pytest.mark.parametrize("unit", [False, True])
def test_a_difference_of_means_steers(carry_out, truth, rows, unit):
    outputs = {"m": {"read": "acts", "reduce": "mean"}, "n": {"read": "others", "reduce": "mean"}}
    raw = two_steps(
        {"difference": ["n", "m"], "unit": unit}, {"mechanism": "add_scaled", "params": {"scale": 2.0}}, outputs=outputs, both=True
    )
    direction = (streams(truth, rows, "counterfactual").double().mean(dim=0) - streams(truth, rows).double().mean(dim=0)).float()
    direction = direction / direction.norm() if unit else direction
    check_operand(carry_out, truth, rows, raw, lambda value, index: value + 2.0 * direction)


# several models


def test_path_patching_writes_what_one_intervened_model_read_into_another(carry_out, truth, rows):
    """The effect of the entity on the last token, through the MLP of layer 2 alone."""
    mlp = {"site": site("mlp_output", 2), "pos": -1}
    raw = one_step(
        {
            "reads": {
                "source": {**STREAM, "pos": ENTITY, "site": site("block_output", 0), "input": "counterfactual"},
                "through": {**mlp, "model": "corrupted"},
                "z": {"site": LOGITS, "pos": -1, "model": "path"},
            },
            "writes": {
                "cause": {"site": site("block_output", 0), "pos": ENTITY, "mechanism": "swap", "operand": "source"},
                "path": {**mlp, "mechanism": "swap", "operand": "through"},
            },
            "models": {"path": {"input": "base", "writes": ["path"]}, "corrupted": {"input": "base", "writes": ["cause"]}},
        },
        outputs={"z": "z", "through": "through"},
    )
    made = {name: output.value.data[0] for name, output in carry_out(raw, rows).step("s").results["outputs"].items()}
    for index, row in enumerate(rows):
        source = truth.source(row, layer=0, tokens=truth.entity(row, "counterfactual"))
        cause = (truth.spot(row["input"], "block_output", 0, truth.entity(row)), lambda value, found, source=source: source)
        through = truth.read(row["input"], "mlp_output", 2, [-1], [cause])
        torch.testing.assert_close(made["through"][index], through[0], rtol=0, atol=1e-4)
        near_logits(made["z"][index], truth.patched(row, lambda value, through=through: through, "mlp_output", 2))


def test_an_operand_may_be_read_earlier_in_the_same_forward(carry_out, truth, rows):
    raw = one_step(
        {
            "reads": {"early": {"site": site("block_output", 0), "pos": -1, "model": "m"}, "z": {"site": LOGITS, "pos": -1, "model": "m"}},
            "writes": {"late": {"site": site("block_output", 2), "pos": -1, "mechanism": "swap", "operand": "early"}},
            "models": {"m": {"input": "base", "writes": ["late"]}},
        },
        both=False,
        outputs={"z": "z"},
    )
    for size in (2, None):
        z = carry_out(raw, rows, batch_size=size).step("s").results["outputs"]["z"].value.data[0]
        for index, row in enumerate(rows):
            early = truth.read(row["input"], "block_output", 0, [-1])
            near_logits(z[index], truth.patched(row, lambda value, early=early: early, layer=2))


def test_a_named_model_may_run_on_a_second_role_with_the_same_writes(carry_out, truth, rows):
    write = {**STREAM, "mechanism": "swap", "operand": 0.5}
    reads = {
        "z": {"site": LOGITS, "pos": -1, "model": "patched"},
        "other": {"site": LOGITS, "pos": -1, "model": "patched", "input": "counterfactual"},
    }
    raw = one_step(patching(write, reads=reads), outputs={"z": "z", "other": "other"})
    made = {name: output.value.data[0] for name, output in carry_out(raw, rows).step("s").results["outputs"].items()}
    for index, row in enumerate(rows):
        near_logits(made["z"][index], truth.patched(row, lambda value: torch.full_like(value, 0.5)))
        text = row["counterfactual_inputs"][0]
        place = truth.spot(text, "block_output", 1, [-1])
        near_logits(made["other"][index], truth.logits(text, [(place, lambda value, found: torch.full_like(value, 0.5))]))


# what does not fit is refused, before anything runs


def refused(carry_out, rows, raw, match, name="successor-llama"):
    from causalab_mini.errors import PlanError

    with pytest.raises(PlanError, match=match):
        carry_out(raw, rows, name)


EVERY_LAYER = {"site": site("block_output", "all"), "pos": -1, "input": "base"}
MADE_OF = {
    "one": {**STREAM, "input": "base"},
    "two": {**STREAM, "pos": {"last": 2}, "input": "base"},
    "stacked": EVERY_LAYER,
    "logits": CLEAN,
    "units": {"site": site("block_output", 1, units=[1, 2]), "pos": -1, "input": "base"},
}


def kept(outputs, **write):
    """Returns a document that writes the output `made`."""
    patch = patching({**STREAM, "mechanism": "swap", "operand": {"ref": "made"}, **write})
    steps = {"harvest": observe("harvest", both=False, outputs=outputs), "s": observe("patch", both=False, outputs={"z": "prediction"})}
    return document({"harvest": {"reads": MADE_OF}, "patch": patch}, steps)


@pytest.mark.parametrize(
    ("outputs", "write", "said"),
    [
        ({"made": {"read": "stacked", "reduce": "mean"}}, {}, "expected 64 features, got `made` with 4 layers of 64 features"),
        (
            {"made": "stacked"},
            {"site": site("block_output", [0, 1])},
            "expected 2 layers of 64 features, or 64 features without layer axis",
        ),
        ({"made": {"read": "logits", "reduce": "mean"}}, {}, "expected 64 features, got `made` with 637 features"),
        ({"made": {"read": "units", "reduce": "mean"}}, {}, "expected 64 features, got `made` with 2 features"),
        ({"made": {"read": "one", "reduce": "pca", "k": 5}}, {}, "expected fewer directions than tokens \\(5 in all rows\\), got `5`"),
        ({"made": {"read": "units", "reduce": "pca", "k": 3}}, {}, "expected at most 2 directions, got `3`"),
        ({"made": {"read": "one", "reduce": "pca", "k": 2}}, {}, "as many tokens as are written, row by row, got `made` with 2 for 1"),
    ],
)
def test_an_output_with_other_axes_than_its_write_is_refused(carry_out, rows, outputs, write, said):
    refused(carry_out, rows, kept(outputs, **write), said)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"a": {"read": "logits", "reduce": "mean"}, "b": {"read": "one", "reduce": "mean"}}, "expected 637 features, got `b` with 64"),
        ({"a": {"read": "one", "reduce": "mean"}, "b": {"read": "stacked", "reduce": "mean"}}, "`b` with 4 layers of 64 features"),
        (
            {"a": {"read": "one", "reduce": "mean"}, "b": {"read": "two", "reduce": "mean"}},
            "as many tokens as `a`, row by row, or one vector",
        ),
        ({"a": {"read": "one", "reduce": "mean"}, "b": "one"}, "as many tokens as `a`, row by row, or one vector"),
        ({"a": {"read": "one", "reduce": "mean_by", "by": "task"}, "b": {"read": "one", "reduce": "mean"}}, "`a` \\(`mean_by`\\)"),
    ],
)
def test_a_difference_of_outputs_with_other_axes_is_refused(carry_out, rows, parts, said):
    refused(carry_out, rows, kept({**parts, "made": {"difference": ["a", "b"]}}), said)


def test_a_mean_may_be_taken_away_from_every_row(carry_out, truth, rows):
    raw = kept({"made": {"difference": ["a", "b"]}, "a": "one", "b": {"read": "one", "reduce": "mean"}})
    data = streams(truth, rows)
    centred = (data.double() - data.double().mean(dim=0)).float()
    check_operand(carry_out, truth, rows, raw, lambda value, index: centred[index][None])


def test_the_mean_of_a_group_is_one_vector_whatever_the_window(carry_out, truth, rows):
    grouped = [row | {"group": group} for row, group in zip(rows, "abaab", strict=True)]
    raw = kept({"made": {"read": "two", "reduce": "mean_by", "by": "group"}})
    data = torch.stack([truth.read(row["input"], "block_output", 1, [-2, -1]) for row in rows]).double()
    means = {group: data[[index for index, row in enumerate(grouped) if row["group"] == group]].mean(dim=(0, 1)).float() for group in "ab"}
    check_operand(carry_out, truth, grouped, raw, lambda value, index: means[grouped[index]["group"]][None])


@pytest.mark.parametrize(
    ("of", "against", "said"),
    [
        ("one", "stacked", "expected 64 features, got `stacked` with 4 layers of 64 features"),
        ("stacked", "some", "expected 4 layers of 64 features, or 64 features without layer axis, got `some` with 2 layers"),
        ("one", "units", "expected 64 features, got `units` with 2 features"),
    ],
)
def test_reads_with_other_axes_are_not_compared(carry_out, rows, of, against, said):
    reads = {**MADE_OF, "some": {"site": site("block_output", [0, 1]), "pos": -1, "input": "base"}}
    metrics = {"c": {"kind": "cosine", "of": of, "against": against}}
    refused(carry_out, rows, one_step({"reads": reads, "metrics": metrics}, both=False), said)


def test_every_layer_may_be_compared_with_one_read(carry_out, truth, rows):
    lens = {"site": site("block_output", "all"), "pos": -1, "input": "base", "view": "logits"}
    metrics = {"kl": {"kind": "kl", "of": "lens", "against": "logits"}}
    run = carry_out(one_step({"reads": {"lens": lens, "logits": CLEAN}, "metrics": metrics}, both=False), rows)
    found = iter(values(run, "kl"))
    for layer in range(4):
        for row in rows:
            with torch.no_grad():
                z = truth.model.lm_head(truth.model.model.norm(truth.read(row["input"], "block_output", layer, [-1])))[0]
            p, q = (scipy.special.softmax(side.double().numpy()) for side in (z, truth.logits(row["input"])))
            near(next(found), scipy.stats.entropy(p, q))


def test_stacked_writes_meet_others_in_listed_order(carry_out, rows):
    writes = {
        "both": {"site": site("block_output", [0, 2]), "pos": -1, "mechanism": "swap", "operand": 5.0},
        "upper": {"site": site("block_output", 2), "pos": -1, "mechanism": "swap", "operand": 7.0},
    }
    for order, expected in ((["upper", "both"], 5.0), (["both", "upper"], 7.0)):
        intervention = {
            "reads": {"h": {"site": site("block_output", 2), "pos": -1, "model": "m"}},
            "writes": writes,
            "models": {"m": {"input": "base", "writes": order}},
        }
        made = carry_out(one_step(intervention, both=False, outputs={"h": "h"}), rows).step("s").results["outputs"]["h"]
        assert set(made.value.data.unique().tolist()) == {expected}


def test_permute_is_refused_where_one_row_is_left(carry_out, rows):
    from causalab_mini.errors import RunError

    raw = filtered(min=0.0)
    losses = values(carry_out(raw, rows), "loss", "first")
    raw["interventions"]["permuted"] = patching({**STREAM, "mechanism": "permute", "params": {"seed": 0}})
    raw["steps"]["second"] = observe("permuted", both=False, where={"step": "first", "metric": "loss", "max": min(losses)})
    with pytest.raises(RunError, match="expected at least two rows \\(`permute` takes another row's value\\), got 1"):
        carry_out(raw, rows)


def test_an_answer_beyond_the_learned_positions_is_refused(carry_out, rows_of):
    long = [row | {"entity": "one two three " * 30} for row in rows_of("gpt2-tied")]
    metrics = {"answer": {"kind": "answer_logprob", "of": "z", "target": "entity"}}
    raw = one_step({"reads": {"z": CLEAN}, "metrics": metrics}, both=False)
    refused(carry_out, long, raw, "expected at most 64 tokens with the answer \\(the model's learned positions\\)", "gpt2-tied")


def test_a_prompt_beyond_the_learned_positions_is_refused(carry_out, rows_of):
    long = [row | {"input": row["input"] + " is" * 70} for row in rows_of("gpt2-tied")]
    refused(carry_out, long, one_step({"reads": {"z": CLEAN}}, both=False), "expected at most 64 tokens", "gpt2-tied")
