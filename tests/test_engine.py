"""Both engines against the reference: reads and writes at every component, on both bundled models and on small random ones."""

import ast
import inspect
import json

import pytest
import torch
from authoring import ENTITY, LOGITS, ROLES, document, observe, patching, site, write_document, write_table
from conftest import BUNDLED, RANDOM
from reference import PLACES, forward, ids_of, spot, tokens_of

from causalab_mini.engine import observe as observing
from causalab_mini.engine.batches import make_batch
from causalab_mini.model.components import COMPONENTS

pytestmark = pytest.mark.tiny

PLAIN = ()  # the plan's own passes: a rewrite that changes the shape of a product changes its last bits
AVAILABLE = [component for component in COMPONENTS.values() if component.name in PLACES["llama"]]
NAMES = [component.name for component in AVAILABLE]
N_LAYERS = {"successor-llama": 4, "successor-gpt2": 4, **dict.fromkeys(RANDOM, 3)}
KINDS = ("nnterp", "hooks")
EVERYWHERE = {"all": True}


def assert_near(found, expected):
    """Equal to 1e-5 of the largest number: a product over another number of rows, or over padding, sums in another order."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())))


def all_layers(component):
    return site(component.name, "all" if component.per_layer else None)


def layers_of(component, name):
    return range(N_LAYERS[name]) if component.per_layer else [None]


def reading_everything(input="base", model="original"):
    return {component.name: {"site": all_layers(component), "pos": EVERYWHERE, "input": input, "model": model} for component in AVAILABLE}


def read_everything(carry_out, name, kind, rows, **options):
    raw = document(
        {"look": {"reads": reading_everything()}}, {"see": observe("look", both=False, outputs=dict(zip(NAMES, NAMES, strict=True)))}
    )
    return carry_out(raw, rows, name, kind, **{"rewrites": PLAIN, **options}).step("see").results["outputs"]


def row_of(made, row):
    """Returns (layer, token, feature) of one row of an unreduced output."""
    start = sum(made.value.lengths[:row])
    return made.value.data[:, start : start + made.value.lengths[row]]


def reference_reads(model, tokenizer, name, text, writes=()):
    ids, n_prefix = ids_of(tokenizer, text)
    content = range(n_prefix, len(ids))
    places = {
        (component.name, entry): spot(model, component.name, layer, content)
        for component in AVAILABLE
        for entry, layer in enumerate(layers_of(component, name))
    }
    found = forward(model, ids, places, writes)
    return {
        component.name: torch.stack([found[component.name, entry] for entry, _ in enumerate(layers_of(component, name))])
        for component in AVAILABLE
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*BUNDLED, *RANDOM])
def test_every_component_of_a_row_alone_is_the_references_to_the_bit(carry_out, plain_models, rows_of, name, kind):
    made = read_everything(carry_out, name, kind, rows_of(name), batch_size=1)
    for row, entry in enumerate(rows_of(name)):
        expected = reference_reads(*plain_models(name), name, entry["input"])
        for component in NAMES:
            assert torch.equal(row_of(made[component], row), expected[component]), component


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*BUNDLED, *RANDOM])
def test_every_component_of_a_ragged_batch_is_the_references(carry_out, plain_models, rows_of, name, kind):
    made = read_everything(carry_out, name, kind, rows_of(name))
    assert len({made["logits"].value.lengths[row] for row, _ in enumerate(rows_of(name))}) > 2
    for row, entry in enumerate(rows_of(name)):
        expected = reference_reads(*plain_models(name), name, entry["input"])
        for component in NAMES:
            assert_near(row_of(made[component], row), expected[component])


@pytest.mark.parametrize("name", [*BUNDLED, *RANDOM])
def test_names_are_proved_by_identities(carry_out, plain_models, rows_of, name):
    """block_output = block_input + attention_output + mlp_output; the next block begins with it; the norm and the head follow."""
    found = {component: made.value.data for component, made in read_everything(carry_out, name, "nnterp", rows_of(name)).items()}
    assert_near(found["block_input"] + found["attention_output"] + found["mlp_output"], found["block_output"])
    assert torch.equal(found["block_input"][1:], found["block_output"][:-1])
    if plain_models(name)[0].config.model_type != "gpt2":
        assert torch.equal(found["block_input"][0], found["embeddings"][0])
    model, _ = plain_models(name)
    with torch.no_grad():
        norm = model.get_submodule(PLACES[model.config.model_type]["ln_final"][0])
        assert_near(norm(found["block_output"][-1]), found["ln_final"][0])
        assert_near(model.lm_head(found["ln_final"][0]), found["lm_head"][0])
    assert torch.equal(found["lm_head"], found["logits"])


def test_the_fixtures_are_wide_grouped_tied_and_learned(plain_models):
    configs = {name: plain_models(name)[0].config for name in [*BUNDLED, *RANDOM]}
    grouped = configs["llama-grouped"]
    assert grouped.hidden_size > 64
    assert grouped.num_key_value_heads < grouped.num_attention_heads
    assert {config.tie_word_embeddings for config in configs.values()} == {True, False}
    assert configs["gpt2-untied"].n_positions == 64
    assert configs["qwen3"].head_dim * configs["qwen3"].num_attention_heads != configs["qwen3"].hidden_size


# writes


def swap_everywhere(name):
    """Returns a document that swaps the entity, at each component in turn, for that of the counterfactual."""
    interventions, outputs = {}, {}
    for component in AVAILABLE:
        place = site(component.name, 1 if component.per_layer else None)
        interventions[component.name] = patching(
            {"site": place, "pos": ENTITY, "mechanism": "swap", "operand": "source"},
            {"site": place, "pos": ENTITY},
            reads={
                "z": {"site": LOGITS, "pos": EVERYWHERE, "model": "patched"},
                "stream": {"site": site("block_output", -1), "pos": EVERYWHERE, "model": "patched"},
                "there": {"site": place, "pos": EVERYWHERE, "model": "patched"},
                "unpatched": {"site": place, "pos": EVERYWHERE, "input": "base"},
            },
        )
        outputs |= {f"{component.name}_{read}": f"{component.name}/{read}" for read in ("z", "stream", "there", "unpatched", "source")}
    return document(interventions, {"patch": observe(list(interventions), outputs=outputs)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*BUNDLED, *RANDOM])
def test_a_swap_at_every_component_is_the_references(carry_out, plain_models, rows_of, name, kind):
    model, tokenizer = plain_models(name)
    runs = {size: carry_out(swap_everywhere(name), rows_of(name), name, kind, batch_size=size, rewrites=PLAIN) for size in (None, 1)}
    made = {size: run.step("patch").results["outputs"] for size, run in runs.items()}
    widths = set()
    for row, entry in enumerate(rows_of(name)):
        counterfactual = entry["counterfactual_inputs"][0]
        source_tokens = tokens_of(tokenizer, counterfactual, entry["counterfactual_inputs_variables"][0]["entity"])
        target_tokens = tokens_of(tokenizer, entry["input"], entry["entity"])
        widths.add(len(target_tokens))
        for component in AVAILABLE:
            layer = 1 if component.per_layer else None
            ids, _ = ids_of(tokenizer, counterfactual)
            source = forward(model, ids, {"v": spot(model, component.name, layer, source_tokens)})["v"]
            write = (spot(model, component.name, layer, target_tokens), lambda value, found, source=source: source)
            ids, n_prefix = ids_of(tokenizer, entry["input"])
            content = range(n_prefix, len(ids))
            reads = {"z": spot(model, "logits", None, content), "stream": spot(model, "block_output", N_LAYERS[name] - 1, content)}
            found = forward(model, ids, reads, [write])
            for read in ("z", "stream"):
                assert torch.equal(row_of(made[1][f"{component.name}_{read}"], row)[0], found[read]), (component.name, read)
                assert_near(row_of(made[None][f"{component.name}_{read}"], row)[0], found[read])
    assert len(widths) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BUNDLED)
def test_a_write_leaves_everything_else_untouched_to_the_bit(carry_out, plain_models, rows_of, name, kind):
    _, tokenizer = plain_models(name)
    made = carry_out(swap_everywhere(name), rows_of(name), name, kind, rewrites=PLAIN).step("patch").results["outputs"]
    for row, entry in enumerate(rows_of(name)):
        n_prefix = ids_of(tokenizer, entry["input"])[1]
        written = [token - n_prefix for token in tokens_of(tokenizer, entry["input"], entry["entity"])]
        for component in NAMES:
            there, unpatched, source = (row_of(made[f"{component}_{read}"], row)[0] for read in ("there", "unpatched", "source"))
            others = [token for token in range(len(there)) if token not in written]
            assert torch.equal(there[written], source), component
            assert torch.equal(there[others], unpatched[others]), component
            assert not torch.equal(there[written], unpatched[written]) or component == "embeddings", component


@pytest.mark.parametrize("name", BUNDLED)
def test_units_narrow_a_write_to_some_coordinates(carry_out, plain_models, rows_of, name):
    model, tokenizer = plain_models(name)
    units = (3, 60, 7)
    place = site("block_output", 0, units=list(units))
    raw = document(
        {
            "zero": patching(
                {"site": place, "pos": {"last": 2}, "mechanism": "swap", "operand": 0.5},
                reads={
                    "z": {"site": LOGITS, "pos": -1, "model": "patched"},
                    "narrow": {"site": place, "pos": -1, "input": "base"},
                },
            )
        },
        {"patch": observe("zero", both=False, outputs={"z": "z", "narrow": "narrow"})},
    )
    made = carry_out(raw, rows_of(name), name, batch_size=1, rewrites=PLAIN).step("patch").results["outputs"]
    for row, entry in enumerate(rows_of(name)):
        ids, _ = ids_of(tokenizer, entry["input"])
        last = len(ids) - 1
        write = (spot(model, "block_output", 0, [last - 1, last], units), lambda value, found: torch.full_like(value, 0.5))
        assert torch.equal(row_of(made["z"], row)[0], forward(model, ids, {"z": spot(model, "logits", None, [last])}, [write])["z"])
        narrow = forward(model, ids, {"v": spot(model, "block_output", 0, [last], units)})["v"]
        assert torch.equal(row_of(made["narrow"], row)[0], narrow)


@pytest.mark.parametrize("name", [*BUNDLED, "llama-grouped", "gpt2-tied"])
def test_batches_of_one_of_three_and_of_all_give_the_same(carry_out, rows_of, name):
    made = {size: carry_out(swap_everywhere(name), rows_of(name), name, batch_size=size, rewrites=PLAIN) for size in (1, 3, None)}
    outputs = {size: run.step("patch").results["outputs"] for size, run in made.items()}
    for key, output in outputs[None].items():
        for size in (1, 3):
            assert outputs[size][key].value.lengths == output.value.lengths
            assert_near(outputs[size][key].value.data, output.value.data)


@pytest.mark.parametrize("kind", KINDS)
def test_writes_at_one_address_apply_in_listed_order_and_reads_there_see_them(carry_out, rows_of, kind):
    place = {"site": site("block_output", 1), "pos": -1}
    writes = {
        "five": {**place, "mechanism": "swap", "operand": 5.0},
        "more": {**place, "mechanism": "add_scaled", "operand": 1.0, "params": {"scale": 2.0}},
    }
    models = {
        "five_then_more": {"input": "base", "writes": ["five", "more"]},
        "more_then_five": {"input": "base", "writes": ["more", "five"]},
    }
    reads = {model: {**place, "model": model} for model in models}
    raw = document(
        {"order": {"reads": reads, "writes": writes, "models": models}}, {"s": observe("order", both=False, outputs={n: n for n in reads})}
    )
    made = carry_out(raw, rows_of("successor-llama"), kind=kind).step("s").results["outputs"]
    assert set(made["five_then_more"].value.data.unique().tolist()) == {7.0}
    assert set(made["more_then_five"].value.data.unique().tolist()) == {5.0}


def test_reads_and_writes_may_be_declared_in_any_order(carry_out, rows_of):
    """The compiler sorts them into the order in which a forward passes them, so that no trace waits for what has gone by."""
    component = ["logits", "block_output", "embeddings", "ln_final", "mlp_output", "attention_output", "block_input", "lm_head"]
    reads = {name: {"site": site(name, [2, 0] if COMPONENTS[name].per_layer else None), "pos": -1, "input": "base"} for name in component}
    raw = document({"look": {"reads": reads}}, {"s": observe("look", both=False, outputs={name: name for name in reads})})
    made = carry_out(raw, rows_of("successor-llama"), rewrites=PLAIN).step("s").results["outputs"]
    everything = read_everything(carry_out, "successor-llama", "nnterp", rows_of("successor-llama"))
    for name in component:
        for row, _ in enumerate(rows_of("successor-llama")):
            expected = row_of(everything[name], row)[:, -1:]
            assert torch.equal(row_of(made[name], row), expected[[2, 0]] if COMPONENTS[name].per_layer else expected)


# the model is only read


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_frozen_and_no_activation_has_a_gradient(carry_out, engines, rows_of, kind):
    made = read_everything(carry_out, "successor-llama", kind, rows_of("successor-llama"))
    module = engines("successor-llama", kind).loaded()
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert not any(output.value.data.requires_grad for output in made.values())


def test_explain_loads_no_weights(monkeypatch):
    from causalab_mini import load
    from causalab_mini.engine.engines.base import BaseEngine
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    def no_weights(self):
        raise AssertionError("weights were loaded")

    for engine in (BaseEngine, NNterpEngine, HooksEngine):
        monkeypatch.setattr(engine, "load_weights", no_weights)
    assert load("bundled:quickstart").explain().startswith("<root>: Sweep  8 points")


def test_an_opened_checkpoint_stands_on_the_meta_device(checkpoints):
    from causalab_mini.engine.engines.nnterp import NNterpEngine
    from causalab_mini.plan.spec import ModelSpec

    engine = NNterpEngine.load(ModelSpec(key="bundled:successor-gpt2", dtype="fp32"), device_map="cpu")
    assert engine.module is None
    assert {parameter.device.type for parameter in engine.model._model.parameters()} == {"meta"}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_loaded_in_the_dtype_that_was_asked_for(kind, dtype):
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.engine.engines.nnterp import NNterpEngine
    from causalab_mini.plan.spec import ModelSpec

    engine = {"nnterp": NNterpEngine, "hooks": HooksEngine}[kind].load(
        ModelSpec(key="bundled:successor-llama", dtype=dtype), device_map="cpu"
    )
    engine.load_weights()
    assert engine.describe()["dtype"] == [{"bf16": "bfloat16", "fp16": "float16"}[dtype]]


def test_a_trace_block_holds_nothing_but_the_walk():
    """nnsight compiles the block anew and ships every name in it: it must stay one call of a module-level function."""
    from causalab_mini.engine.engines import nnterp

    blocks = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(nnterp)))
        if isinstance(node, ast.With) and any("trace" in ast.unparse(item.context_expr) for item in node.items)
    ]
    assert [ast.unparse(statement) for block in blocks for statement in block.body] == [
        "walk(model, borders, state, shortcut.stops, tracer)"
    ]
    assert inspect.isfunction(nnterp.walk)
    assert not inspect.isgeneratorfunction(nnterp.walk)


# planted faults


def test_positions_count_from_each_rows_own_first_token(engines):
    from causalab_mini.data.prompts import make_prompt
    from causalab_mini.engine.batches import make_batch

    tokenizer = engines("successor-gpt2").tokenizer
    prompts = [make_prompt(tokenizer, text) for text in ("After one comes", "If today is Thursday, tomorrow is")]
    batch = make_batch([0, 1], prompts, None, 0)
    n, longest = prompts[0].n_tokens, prompts[1].n_tokens
    assert batch.input_ids[0].tolist() == [0] * (longest - n) + list(prompts[0].ids)
    assert batch.attention_mask[0].tolist() == [0] * (longest - n) + [1] * n
    assert batch.position_ids[0].tolist() == [0] * (longest - n) + list(range(n))
    assert batch.position_ids[1].tolist() == list(range(longest))


def reading_logits():
    return document(
        {"look": {"reads": {"z": {"site": LOGITS, "pos": -1, "input": "base"}}}}, {"s": observe("look", both=False, outputs={"z": "z"})}
    )


def checks_of(run, step="s"):
    return {check.name: check for check in run.step(step).results["checks"]}


def counted_over_padding(*arguments):
    """Returns a batch whose positions count the padding: the fault that a rows check is there for."""
    batch = make_batch(*arguments)
    counted = torch.arange(batch.input_ids.shape[1]).expand_as(batch.input_ids)
    return type(batch)(batch.rows, batch.input_ids, batch.attention_mask, counted)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_check_finds_position_ids_that_are_not_the_rows_own(carry_out, rows_of, monkeypatch, kind):
    """The planted fault: positions counted over the padding, which learned positions show and rotary ones hide."""
    rows = sorted(rows_of("successor-gpt2"), key=lambda row: len(row["input"]))  # the last row, being longest, would not show it
    assert checks_of(carry_out(reading_logits(), rows, "successor-gpt2", kind, check="sample"))["rows"].status == "passed"
    monkeypatch.setattr(observing, "make_batch", counted_over_padding)
    check = checks_of(carry_out(reading_logits(), rows, "successor-gpt2", kind, check="sample"))["rows"]
    assert check.status == "failed"
    assert check.data["largest"] > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_the_writes_check_finds_a_write_that_fired_on_the_first_row_only(carry_out, rows_of, monkeypatch, kind):
    from causalab_mini.engine.batches import PassOnBatch

    land = PassOnBatch.land

    def first_row_only(self, *arguments, **more):
        landing = land(self, *arguments, **more)
        keep = [index for index, row in enumerate(landing.rows) if row == 0]
        for name in ("rows", "sources", "places"):
            setattr(landing, name, [getattr(landing, name)[index] for index in keep])
        return landing

    place = {"site": site("block_output", 0), "pos": -1}
    raw = document({"p": patching({**place, "mechanism": "swap", "operand": "source"}, place)}, {"s": observe("p")})
    assert checks_of(carry_out(raw, rows_of("successor-llama"), kind=kind, check="sample"))["writes"].status == "passed"
    monkeypatch.setattr(PassOnBatch, "land", first_row_only)
    check = checks_of(carry_out(raw, rows_of("successor-llama"), kind=kind, check="sample"))["writes"]
    assert check.status == "failed"
    assert "`patched/patch` did not fire on rows [1, 2, 3, 4]" in check.text


def test_the_writes_check_keeps_the_forwards_of_a_model_apart(carry_out, rows_of, monkeypatch):
    from causalab_mini.engine.batches import PassOnBatch

    land = PassOnBatch.land

    def base_only(self, *arguments, **more):
        landing = land(self, *arguments, **more)
        if self.one.forward.role != "base" or self.one.forward.appended is not None:
            for name in ("rows", "sources", "places"):
                getattr(landing, name).clear()
        return landing

    place = {"site": site("block_output", 0), "pos": -1}
    reads = {role: {"site": LOGITS, "pos": -1, "model": "patched", "input": role} for role in ROLES}
    patch = patching({**place, "mechanism": "swap", "operand": 0.5}, reads=reads)
    patch["metrics"] = {"answer": {"kind": "answer_logprob", "of": "base", "target": "answer"}}
    raw = document({"p": patch}, {"s": observe("p")})
    check = checks_of(carry_out(raw, rows_of("successor-llama"), check="sample"))["writes"]
    assert check.status == "passed"
    names = {"patched/patch on base", "patched/patch on counterfactual", "patched/patch on base with answers"}
    assert set(check.data["writes"]) == names
    monkeypatch.setattr(PassOnBatch, "land", base_only)
    check = checks_of(carry_out(raw, rows_of("successor-llama"), check="sample"))["writes"]
    assert check.status == "failed"
    assert {name for name, found in check.data["writes"].items() if found["n_fired"] == 0} == names - {"patched/patch on base"}


def test_a_failed_check_leaves_the_numbers_on_disk_and_exits_with_one(command, rows_of, tmp_path, monkeypatch):
    monkeypatch.setattr(observing, "make_batch", counted_over_padding)
    write_table(tmp_path / "data", "rows", rows_of("successor-gpt2"))
    metric = {"loss": {"kind": "cross_entropy", "of": "z", "target": "answer"}}
    look = {"reads": {"z": {"site": LOGITS, "pos": -1, "input": "base"}}, "metrics": metric}
    step = observe("look", both=False, saves=[{"value": "loss", "file_path": "loss.json"}])
    path = write_document(tmp_path, document({"look": look}, {"s": step}, "bundled:successor-gpt2", {"base": ROLES["base"]}))
    code, _, err = command("run", path, "--out", tmp_path / "out")
    assert code == 1
    assert "expected the check of rows to pass" in err
    assert (tmp_path / "out" / "loss.json").is_file()
    code, out, err = command("run", path, "--out", tmp_path / "out", "--json")
    assert (code, err) == (1, "")
    data = json.loads(out)
    assert set(data) == {"files", "metrics", "points", "errors"}
    assert data["errors"][0]["expected"] == "the check of rows to pass"


def test_a_write_that_changes_nothing_is_named(carry_out, rows_of):
    place = {"site": site("block_output", 0), "pos": -1}
    same = patching(
        {**place, "mechanism": "swap", "operand": "own"},
        reads={"own": {**place, "input": "base"}, "z": {"site": LOGITS, "pos": -1, "model": "patched"}},
    )
    raw = document({"p": same}, {"s": observe("p", both=False)})
    check = checks_of(carry_out(raw, rows_of("successor-llama"), check="sample"))["writes"]
    assert check.status == "passed"
    assert "`patched/patch` changed nothing on 5 of 5 rows" in check.text


def test_a_batch_with_numbers_that_are_not_finite_fails_the_rows_check(carry_out, rows_of, monkeypatch):
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    run = NNterpEngine.run

    def spoiled(self, batch, visits, state, shortcut):
        run(self, batch, visits, state, shortcut)
        if len(batch.rows) > 1:
            for label, value in state.reads.items():
                state.reads[label] = torch.full_like(value, float("nan"))

    monkeypatch.setattr(NNterpEngine, "run", spoiled)
    check = checks_of(carry_out(reading_logits(), rows_of("successor-llama"), check="sample"))["rows"]
    assert check.status == "failed"
    assert check.as_data()["largest"] is None


def test_a_write_on_what_was_zero_leaves_a_record_that_is_json(command, rows_of, tmp_path):
    place = {"site": site("block_output", 0), "pos": -1, "mechanism": "swap"}
    intervention = {
        "reads": {"z": {"site": LOGITS, "pos": -1, "model": "m"}},
        "writes": {"zero": {**place, "operand": 0.0}, "large": {**place, "operand": 1e30}},
        "models": {"m": {"input": "base", "writes": ["zero", "large"]}},
    }
    write_table(tmp_path / "data", "rows", rows_of("successor-llama"))
    path = write_document(tmp_path, document({"i": intervention}, {"s": observe("i", both=False)}))
    code, _, err = command("run", path, "--out", tmp_path / "out", "--check", "full")
    assert code in (0, 1), err
    assert json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["status"] == "finished"


@pytest.mark.parametrize("name", BUNDLED)
def test_both_engines_agree_to_the_bit_in_half_precision(rows_of, name, tmp_path):
    """And a swap puts in place what was read, to the bit: feature arithmetic in fp32 leaves a bf16 value what it was."""
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.engine.engines.nnterp import NNterpEngine
    from causalab_mini.plan.build import build_request
    from causalab_mini.plan.spec import ModelSpec

    write_table(tmp_path, "rows", rows_of(name))
    place = {"site": site("block_output", 1), "pos": ENTITY}
    reads = {"z": {"site": LOGITS, "pos": -1, "model": "patched"}, "there": {**place, "model": "patched"}}
    patch = patching({**place, "mechanism": "swap", "operand": "source"}, place, reads=reads)
    raw = document({"p": patch}, {"s": observe("p", outputs={"z": "z", "there": "there", "source": "source"})})
    made = []
    for kind in (NNterpEngine, HooksEngine):
        engine = kind.load(ModelSpec(key=f"bundled:{name}", dtype="bf16"), device_map="cpu")
        run = engine.execute(build_request(raw, tmp_path, engine), check="full")
        made.append(run.step("s").results["outputs"])
        assert {check.status for check in run.step("s").results["checks"]} == {"passed"}
    for output in ("z", "there", "source"):
        assert torch.equal(made[0][output].value.data, made[1][output].value.data)
    assert torch.equal(made[0]["there"].value.data, made[0]["source"].value.data)


@pytest.mark.parametrize("name", ["successor-llama", "llama-grouped"])
def test_the_tokenizers_own_leading_token_is_a_place(carry_out, plain_models, rows_of, name):
    model, tokenizer = plain_models(name)
    place = {"site": site("block_output", 1), "pos": {"index": 0, "scope": {"segment": "prefix"}}}
    reads = {"z": {"site": LOGITS, "pos": -1, "model": "patched"}, "bos": {**place, "input": "base"}}
    raw = document(
        {"p": patching({**place, "mechanism": "swap", "operand": 0.5}, reads=reads)},
        {"s": observe("p", both=False, outputs={"z": "z", "bos": "bos"})},
    )
    made = carry_out(raw, rows_of(name), name).step("s").results["outputs"]
    for row, entry in enumerate(rows_of(name)):
        ids, _ = ids_of(tokenizer, entry["input"])
        bos, last = spot(model, "block_output", 1, [0]), spot(model, "logits", None, [len(ids) - 1])
        assert_near(row_of(made["bos"], row)[0], forward(model, ids, {"v": bos})["v"])
        expected = forward(model, ids, {"z": last}, [(bos, lambda value, found: torch.full_like(value, 0.5))])["z"]
        assert_near(row_of(made["z"], row)[0], expected)
