import json
from pathlib import Path

import pytest
from conftest import ROOT

from causalab_mini.experiment import Options, load
from causalab_mini.plan.layout import formatted
from causalab_mini.shipped import example_documents

pytestmark = pytest.mark.tiny

EXAMPLES = example_documents()
BUNDLED = {name: path for name, path in EXAMPLES.items() if not name.startswith("v2/")}


@pytest.fixture(scope="session")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    return {name: run(name, tmp_path_factory.mktemp("documents") / name) for name in BUNDLED}


def run(name: str, out: Path) -> list[dict]:
    load(EXAMPLES[name], options=Options(check="full" if name == "patching" else "sample")).run(out)
    return json.loads((out / "summary.json").read_text())["metrics"]


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
