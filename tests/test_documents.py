import json
from pathlib import Path

import pytest
from conftest import ROOT

from causalab_mini.experiment import Options, load
from causalab_mini.plan.layout import formatted
from causalab_mini.shipped import example_documents

pytestmark = pytest.mark.tiny

EXAMPLES = example_documents()
BUNDLED = {name: path for name, path in EXAMPLES.items() if not name.startswith(("v2/", "smollm2/"))}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return {name: run(name, tmp_path_factory.mktemp("documents") / name) for name in BUNDLED}


@pytest.fixture(scope="session")
def summaries(whole: dict[str, dict]) -> dict[str, list[dict]]:
    return {name: summary["metrics"] for name, summary in whole.items()}


def run(name: str, out: Path) -> dict:
    load(EXAMPLES[name], options=Options(check="full" if name == "patching" else "sample")).run(out)
    return json.loads((out / "summary.json").read_text())


def mean(entries: list[dict], metric: str, **axes: object) -> float:
    found = [e["mean"] for e in entries if e["metric"] == metric and all(e["axes"].get(k, e.get(k)) == v for k, v in axes.items())]
    assert len(found) == 1, f"{metric} {axes}: {len(found)} entries"
    return found[0]


def test_every_example_is_laid_out_by_fmt_and_says_why_it_is_there():
    for name, path in EXAMPLES.items():
        text = path.read_text(encoding="utf-8")
        assert formatted(json.loads(text)) == text, name
        header = json.loads(text)["header"]
        assert header["title"], name
        assert len(header["description"]) > 60, name


def test_the_answer_crosses_from_the_entity_to_the_last_token(summaries):
    for layer, entity, last in ((0, 1, 0), (1, 1, 0), (2, 0, 1), (3, 0, 1)):
        assert mean(summaries["quickstart"], "follows", layer=layer, place="entity") == pytest.approx(entity, abs=0.1)
        assert mean(summaries["quickstart"], "follows", layer=layer, place="last_token") == pytest.approx(last, abs=0.1)


def test_patching_the_entity_recovers_the_other_answer(summaries):
    assert mean(summaries["patching"], "follows") >= 0.95
    assert mean(summaries["patching"], "recovered") >= 0.95


def test_a_patched_model_says_the_whole_other_answer(summaries):
    assert mean(summaries["generation"], "right") >= 0.95
    assert mean(summaries["generation"], "follows") >= 0.95


def test_what_is_recorded_of_speech_is_counted_and_silence_has_a_reason(whole):
    (entry,) = whole["stream"]["streams"]
    points = {point["point"]: point for point in entry["points"]}
    assert points["prompt_end"]["captured"] == {f"prompt_end/block_output/{layer}": [32, 64] for layer in (1, 3)}
    assert points["end"]["fired"] == points["end"]["eligible"] == 32
    assert points["keys_and_values"]["fired"] == 4 * 32
    assert 32 < points["speech"]["fired"] < 6 * 32
    assert points["far"]["fired"] == 0
    assert all(line["reason"].startswith("the generation ended after") for line in points["far"]["requests"])


@pytest.mark.parametrize("name", ["ablation_zero", "ablation_mean", "ablation_resample"])
def test_an_ablated_place_that_holds_the_answer_loses_it(summaries, name):
    assert mean(summaries[name], "clean") >= 0.95
    assert mean(summaries[name], "keeps") <= 0.25


def test_one_piece_of_a_name_is_not_enough_and_the_whole_name_is(summaries):
    found = summaries["window_patch"]
    assert 0.2 <= mean(found, "first_piece/follows") <= 0.8
    assert mean(found, "next_token/follows") <= 0.1
    assert mean(found, "whole_name/follows") >= 0.95
    assert mean(found, "name_and_end/follows") >= 0.95


def test_the_layer_by_position_map_shows_name_pieces_early_and_the_end_late(summaries):
    found = summaries["layer_position_sweep"]
    first, last = {"index": 0, "scope": {"variable": "entity"}}, {"index": -1, "scope": {"variable": "entity"}}
    assert mean(found, "follows", layer=0, position=first) + mean(found, "follows", layer=0, position=last) >= 0.9
    assert mean(found, "follows", layer=0, position=-1) <= 0.1
    assert mean(found, "follows", layer=3, position=-1) >= 0.95
    assert mean(found, "follows", layer=3, position=first) <= 0.1


def test_the_name_reaches_the_last_token_by_attention_of_layer_2(summaries):
    assert mean(summaries["path_patching"], "share", layer=2) >= 0.8
    assert mean(summaries["path_patching"], "share", layer=3) <= 0.2


def test_no_later_layer_makes_up_for_attention_of_layer_2(summaries):
    found = summaries["hydra_effect"]
    assert mean(found, "before") - mean(found, "total") >= 15
    assert abs(mean(found, "direct") - mean(found, "total")) <= 1


def test_the_lens_sees_the_answer_from_layer_2_on_by_sweep_and_by_stack(summaries):
    for name in ("logit_lens", "logit_lens_stacked"):
        assert mean(summaries[name], "rank", layer=1) > 5
        assert mean(summaries[name], "rank", layer=2) == 0
        assert mean(summaries[name], "probability", layer=3) >= 0.99
    for layer in range(4):
        swept, stacked = (mean(summaries[name], "rank", layer=layer) for name in ("logit_lens", "logit_lens_stacked"))
        assert swept == stacked


def test_the_late_layers_say_the_answer_by_themselves(summaries):
    found = summaries["direct_logit_attribution"]
    for metric in ("attention_says", "mlp_says"):
        assert min(mean(found, metric, layer=2), mean(found, metric, layer=3)) > 2
        assert max(abs(mean(found, metric, layer=0)), abs(mean(found, metric, layer=1))) < 2


def test_an_early_patch_gives_the_other_prompts_whole_prediction(summaries):
    found = summaries["divergence"]
    assert mean(found, "from_target", layer=0) < 0.01
    assert mean(found, "from_clean", layer=0) > 5
    assert mean(found, "from_clean", layer=3) < 0.01
    assert mean(found, "likeness", layer=0) > 0.99


def test_the_read_out_names_the_answer_first(summaries, tmp_path):
    assert mean(summaries["top_k"], "answer") >= 0.95
    assert mean(summaries["top_k"], "right_direction") == 1
    load(EXAMPLES["top_k"]).run(tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "words.json").read_text())
    answers = json.loads((ROOT / "data" / "successor" / "choices.json").read_text())
    assert all(len(row["value"]) == 3 for row in rows)
    assert all(row["value"][0][1] > row["value"][1][1] for row in rows)
    assert [row["value"][0][0].strip() for row in rows] == [answer["base_answer"].strip() for answer in answers]


def test_a_direction_steers_when_it_is_long_enough_at_any_length_of_state(summaries):
    found = summaries["steering"]
    for how in ("added", "renormalized"):
        assert mean(found, f"{how}/follows", scale=0.5) <= 0.1
        assert mean(found, f"{how}/follows", scale=2) >= 0.95


def test_the_model_looks_back_to_the_first_turn(summaries):
    assert mean(summaries["chat_turn"], "follows", layer=0) >= 0.95
    assert mean(summaries["chat_turn"], "follows", layer=3) <= 0.05


def test_an_answer_of_several_tokens_follows_as_a_whole(summaries):
    found = summaries["answers_of_several_tokens"]
    assert mean(found, "before") < -5
    assert mean(found, "after") > -0.1
    assert mean(found, "own") < -5


def test_two_heads_of_layer_2_bring_the_answer_and_no_head_of_layer_3_does(summaries):
    found = summaries["head_patching"]
    layer_2 = [mean(found, "recovered", layer=2, head=[head]) for head in range(4)]
    assert min(layer_2[:2]) >= 0.2
    assert max(layer_2[2:]) <= 0.1
    assert max(mean(found, "recovered", layer=3, head=[head]) for head in range(4)) <= 0.1


def test_no_quarter_of_the_neurons_carries_what_all_of_them_do(summaries):
    found = summaries["neuron_patching"]
    quarters = [mean(found, "recovered", units=list(range(start, start + 44))) for start in range(0, 176, 44)]
    whole = mean(found, "recovered", units=list(range(176)))
    assert max(quarters) <= 0.2
    assert whole >= 0.3
    assert whole > sum(quarters)


def test_the_last_token_needs_its_edges_to_the_name_in_the_late_layers_alone(summaries):
    found = summaries["attention_knockout"]
    assert mean(found, "to_the_name/keeps", layers=[0, 1]) >= 0.95
    assert mean(found, "to_the_name/keeps", layers=[2, 3]) <= 0.25
    for layers in ([0, 1], [2, 3]):
        assert mean(found, "to_the_start/keeps", layers=layers) >= 0.95


def test_where_attention_looks_does_not_matter_when_both_look_at_the_name(summaries):
    found = summaries["pattern_patching"]
    assert abs(mean(found, "recovered")) <= 0.1
    assert mean(found, "on_the_name") >= 0.5


def test_values_carry_the_name_and_queries_and_keys_do_not(summaries):
    found = summaries["query_key_value"]
    assert mean(found, "values/recovered") >= 0.7
    assert abs(mean(found, "queries/recovered")) <= 0.1
    assert abs(mean(found, "keys/recovered")) <= 0.15


def test_attention_of_layer_2_nearly_says_the_answer_and_its_mlp_does(summaries):
    found = summaries["norms_and_mid_stream"]
    assert 0 < mean(found, "mid_rank", layer=2) < 5 < mean(found, "mid_rank", layer=1)
    assert mean(found, "out_rank", layer=2) == 0
    lengths = [mean(found, "mid_norm", layer=layer) for layer in range(4)]
    assert lengths == sorted(lengths)
    assert max(mean(found, "normed_norm", layer=layer) for layer in range(4)) < lengths[-1]


def test_both_engines_give_the_same_summary(summaries, tmp_path):
    experiment = load(EXAMPLES["steering"], options=Options(engine="hooks", check="off"))
    experiment.run(tmp_path / "out")
    hooks = json.loads((tmp_path / "out" / "summary.json").read_text())["metrics"]
    assert hooks == summaries["steering"]


def control(entries: list[dict], metric: str, kind: str, step: str, **axes: object) -> dict:
    found = [e for e in entries if e["metric"] == metric and e["step"] == step and all(e["axes"].get(k) == v for k, v in axes.items())]
    assert len(found) == 1
    return found[0]["controls"][kind]


def of_step(entries: list[dict], step: str) -> list[dict]:
    return [e for e in entries if e["step"] == step]


def test_a_trained_rotation_carries_the_answer_where_the_name_does_and_random_ones_do_not(summaries):
    test = of_step(summaries["das"], "test")
    for layer in (0, 1):
        assert mean(test, "follows", layer=layer, k=16) >= 0.95  # on rows that neither trained it nor chose its epoch
        assert control(test, "follows", "random_subspace", "test", layer=layer, k=16)["mean"] <= 0.1
    for layer in (2, 3):
        assert mean(test, "follows", layer=layer, k=16) == 0
    train = of_step(summaries["das"], "train")
    assert all(entry["epoch_is_picked_on_these_rows"] for entry in train)


def test_the_best_point_of_a_sweep_is_named_with_its_number_on_rows_that_did_not_pick_it(whole):
    best = {(entry["step"], entry["metric"]): entry for entry in whole["das"]["best"]}
    train = best["train", "follows"]
    assert train["is_picked_on_the_rows_that_it_is_of"]
    assert (train["of"], train["n_as_good"]) == (8, 1)
    assert [other["step"] for other in train["held_out"]] == ["test"]
    assert best["test", "follows"]["held_out"] == []  # the rows of the fit chose its epoch: they are no judges


def test_the_gates_of_two_heads_stay_open_and_those_of_the_others_close(whole):
    cheap, dear = (next(e for e in whole["dbm_heads"]["fits"] if e["axes"] == {"price": price})["gates"] for price in (0.02, 0.2))
    assert mean(of_step(whole["dbm_heads"]["metrics"], "test"), "follows", price=0.02) >= 0.95
    assert control(whole["dbm_heads"]["metrics"], "follows", "shuffled_source", "test", price=0.02)["mean"] <= 0.25
    assert dear["gate0"]["on"] + dear["gate1"]["on"] >= 10
    assert dear["gate2"]["on"] + dear["gate3"]["on"] <= 4
    assert all(dear[gate]["on"] <= cheap[gate]["on"] for gate in cheap)


def test_a_dearer_unit_leaves_fewer_open_and_the_answer_follows_less(whole):
    units = {e["axes"]["price"]: e["gates"]["gate"]["on"] for e in whole["dbm_units"]["fits"]}
    assert 64 > units[0.005] > units[0.05] > units[0.5] > 0
    test = of_step(whole["dbm_units"]["metrics"], "test")
    assert mean(test, "follows", price=0.005) >= 0.95
    assert mean(test, "follows", price=0.5) <= 0.2


def test_what_varies_most_carries_the_answer_better_than_random_directions_and_worse_than_trained_ones(summaries):
    found = summaries["pca_control"]
    for k, least in ((16, 0.95), (32, 0.95)):
        assert mean(found, "follows", k=k) >= least
        assert control(found, "follows", "random_subspace", "test", k=k)["mean"] <= 0.6
        assert control(found, "follows", "full_component", "test", k=k)["mean"] == 1
    das = mean(of_step(summaries["das"], "test"), "follows", layer=1, k=4)
    assert mean(found, "follows", k=4) < das - 0.2


def test_latents_of_one_task_take_away_that_task_and_no_other(summaries):
    found = summaries["sae_ablation"]
    previous = [81, 90, 53, 50, 10, 62, 61, 15, 100, 35]
    for step in ("day_previous", "day_next", "month_previous", "number_next"):
        assert mean(of_step(found, step), "right", latents=previous) == 1
        assert mean(of_step(found, step), "still_right", latents=previous) == (0 if step == "day_previous" else 1)
        others = [e for e in of_step(found, step) if e["metric"] == "still_right" and e["axes"]["latents"] != previous]
        assert [e["mean"] for e in others] == [1]


def test_one_latent_says_sunday(summaries):
    found = summaries["sae_steering"]
    for step in ("days_after", "days_before"):
        assert mean(of_step(found, step), "says_sunday_steered", latent=[81]) == 1
        for other in ([5], [14]):
            assert mean(of_step(found, step), "says_sunday_steered", latent=other) == 0


def test_a_subspace_of_standardised_values_carries_the_answer_and_its_controls_do_not(summaries):
    test = of_step(summaries["standardize_subspace"], "test")
    assert mean(test, "follows") >= 0.95
    assert control(test, "follows", "self_swap", "test")["mean"] == 0
    assert control(test, "follows", "shuffled_source", "test")["mean"] <= 0.2
    assert control(test, "follows", "random_subspace", "test")["mean"] <= 0.1


def test_estimates_agree_with_what_heads_really_do(whole):
    one, way = whole["attribution"]["attributions"]
    for entry in (one, way):
        assert entry["agreement"]["n_components"] == 16
        assert entry["agreement"]["rank_correlation"] >= 0.95
        assert entry["agreement"]["sign_agreement"] >= 0.9
        assert {(part["layer"], part["head"]) for part in entry["components"][:2]} == {(2, 0), (2, 1)}
    largest = max(part["exact"] for part in way["components"])
    assert largest > 5


def test_the_answer_can_be_read_at_the_end_where_patching_says_that_it_arrives(whole):
    found = whole["linear_probe"]
    for layer, least, most in ((0, 0.2, 0.6), (1, 0.4, 0.8), (2, 0.95, 1), (3, 0.95, 1)):
        assert least <= mean(found["metrics"], "accuracy", layer=layer) <= most
        beside = control(found["metrics"], "accuracy", "shuffled_labels", "answer", layer=layer)
        assert beside["mean"] < control(found["metrics"], "accuracy", "majority_class", "answer", layer=layer)["mean"] < 0.25
        assert beside["p_value"] == pytest.approx(1 / 21)
    assert all((entry["n_prompts"], entry["eligible"], entry["left_out"]) == (88, 96, {}) for entry in found["probes"])
