"""A real checkpoint, SmolLM2-135M-Instruct from a GGUF file, in both engines: what is known of it is found, and every number is the reference's.

`make real` fetches the file and runs these; they are not part of `make test`.
"""

import json
import random
import time

import pytest
import torch
from authoring import ENTITY, LOGITS, document, observe, pair, patching, site, write_table
from conftest import ROOT
from gguf_files import plain_bpe, strange_texts
from reference import forward, ids_of, spot, tokens_of
from smollm2 import NAME, gguf_file

pytestmark = pytest.mark.real

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
PROMPT = "If this month is {}, next month is"
KINDS = ("nnterp", "hooks")


def after(index):
    return f" {MONTHS[(index + 1) % len(MONTHS)]}"


@pytest.fixture(scope="module")
def path():
    assert gguf_file().is_file(), f"no {NAME}: `make real` fetches it"
    return gguf_file()


@pytest.fixture(scope="module")
def folder(path):
    from causalab_mini.engine.gguf import converted_folder

    return converted_folder(path)


@pytest.fixture(scope="module")
def opened(path):
    """Returns a function that gives an engine on the file, each opened once."""
    made = {}

    def engine_of(kind, dtype="fp32"):
        from causalab_mini.engine.engines.hooks import HooksEngine
        from causalab_mini.engine.engines.nnterp import NNterpEngine
        from causalab_mini.plan.spec import ModelSpec

        if (kind, dtype) not in made:
            model = ModelSpec(key=str(path), dtype=dtype)
            made[kind, dtype] = {"nnterp": NNterpEngine, "hooks": HooksEngine}[kind].load(model, device_map="cpu")
        return made[kind, dtype]

    return engine_of


@pytest.fixture(scope="module")
def plain(folder):
    """Returns the model as transformers loads it, with its tokenizer: what the reference runs."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def carry_out(opened, tmp_path_factory):
    def run(raw, rows, kind="nnterp", dtype="fp32", **options):
        from causalab_mini.plan.build import build_request

        root = tmp_path_factory.mktemp("data")
        write_table(root, "rows", rows)
        engine = opened(kind, dtype)
        return engine.execute(build_request(raw, root, engine), **{"check": "off", **options})

    return run


def rows_of_months(shifts=(3, 7)):
    """Returns a row for each month and shift: the counterfactual's month comes so many months later."""
    rows = []
    for shift in shifts:
        for index, month in enumerate(MONTHS):
            other = (index + shift) % len(MONTHS)
            more = {"base_answer": after(index), "cf_answer": after(other)}
            rows.append(pair(PROMPT.format(month), month, PROMPT.format(MONTHS[other]), MONTHS[other], **more))
    return rows


RAGGED = [
    pair("If this month is March, next month is", "March", "This was a long year. If this month is July, next month is", "July"),
    pair("My birthday is in the month of May, and the month after it is", "May", "June is warm. July is", "June"),
    pair("December, then", "December", "If this month is March, next month is", "March"),
]


def means(run, metric):
    """Returns the mean of a metric by the sweep's labels."""
    found = {}
    for point in run.points:
        values = [row["value"] for row in point.step("s").results["metrics"][metric]]
        found[tuple(dict(point.values).values())] = sum(values) / len(values)
    return found


def assert_near(found, expected):
    """Equal to 1e-4 of the largest number: thirty layers add up what a product over another number of rows sums in another order."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * max(1.0, float(expected.abs().max())))


def test_it_is_what_its_card_says(opened):
    facts = opened("nnterp").facts
    assert (facts.model_type, facts.n_layers, facts.hidden, facts.n_heads, facts.n_kv_heads) == ("llama", 30, 576, 9, 3)
    assert (facts.head_dim, facts.vocabulary, len(opened("nnterp").tokenizer)) == (64, 49152, 49152)
    assert opened("nnterp").loaded().config.tie_word_embeddings
    assert facts.revision.startswith("sha256:")


def test_it_opens_in_seconds_once_it_is_converted(folder, path):
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.plan.spec import ModelSpec

    started = time.perf_counter()
    HooksEngine.load(ModelSpec(key=str(path), dtype="fp32"), device_map="cpu").load_weights()
    assert time.perf_counter() - started < 20


def test_its_weights_are_the_files_tensors(path, opened):
    """Each by the `gguf` package's own dequantisation; queries and keys compared as sets of rows by head, where llama.cpp keeps them."""
    import gguf
    from gguf_files import gguf_name, permuted, weights_of

    model = opened("hooks").loaded()
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert {gguf_name(name) for name in weights_of(model)} == set(tensors)
    for name, weight in weights_of(model).items():
        if ".q_proj." in name or ".k_proj." in name:
            weight = permuted(weight, 9 if ".q_proj." in name else 3)
        tensor = tensors[gguf_name(name)]
        assert torch.equal(weight, torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())), name


def test_its_tokenizer_gives_the_ids_of_plain_bpe(path, opened):
    import gguf

    fields = gguf.GGUFReader(path).fields
    tokens, kinds, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges"))
    ids = {token: index for index, token in enumerate(tokens)}
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    assert len(special) == 17
    tokenizer = opened("hooks").tokenizer
    texts = ["", *(row["input"] for row in rows_of_months()), "<|im_start|>user\nhi<|im_end|>", *strange_texts(random.Random(2), 400)]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    for text in texts:
        assert tokenizer(text)["input_ids"] == plain_bpe(text, ids, pairs, "smollm", special), text


def test_every_month_is_one_token_and_nothing_comes_before_a_text(opened):
    tokenizer = opened("hooks").tokenizer
    assert tokenizer("")["input_ids"] == []
    assert {len(tokenizer(f" {month}")["input_ids"]) for month in MONTHS} == {1}


def test_its_chat_template_is_the_files(opened):
    rendered = opened("hooks").tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(("kind", "dtype", "least"), [("nnterp", "fp32", 11), ("hooks", "fp32", 11), ("nnterp", "bf16", 10)])
def test_it_knows_the_next_month(carry_out, kind, dtype, least):
    reads = {"z": {"site": LOGITS, "pos": -1, "input": "base"}}
    look = {"reads": reads, "metrics": {"right": {"kind": "match", "of": "z", "expected": "base_answer"}}}
    run = carry_out(document({"look": look}, {"s": observe("look", both=False)}), rows_of_months((3,)), kind, dtype, check="full")
    assert sum(row["value"] for row in run.step("s").results["metrics"]["right"]) >= least
    assert {check.status for check in run.step("s").results["checks"]} <= {"passed", "skipped"}


def interchange(layers, dtype="fp32"):
    """Returns a document that swaps a block's output at the month's token or at the last one, for the other prompt's."""
    where = {"entity": ENTITY, "last_token": -1}
    swept = {"component": "block_output", "layers": {"sweep": list(layers), "as": "layer"}}
    metrics = {"follows": {"kind": "match", "of": "prediction", "expected": "cf_answer"}}
    interventions = {
        name: patching({"site": swept, "pos": pos, "mechanism": "swap", "operand": "source"}, {"site": swept, "pos": pos}, metrics=metrics)
        for name, pos in where.items()
    }
    raw = document(interventions, {"s": observe({"sweep": list(where), "as": "place"})})
    return raw | {"model": {"key": "set by the test", "dtype": dtype}}


def test_the_answer_moves_from_the_month_to_the_last_token(carry_out):
    rows = rows_of_months()
    follows = means(carry_out(interchange([5, 17, 23, 29]), rows, check="sample"), "follows")
    follows = {tuple(sorted(map(str, labels))): value for labels, value in follows.items()}
    print(json.dumps({" ".join(labels): round(value, 3) for labels, value in follows.items()}))
    assert follows["5", "entity"] >= 0.9
    assert follows["29", "last_token"] >= 0.9
    assert follows["29", "entity"] <= 0.1
    assert follows["5", "last_token"] <= 0.1


def test_both_engines_and_bf16_show_the_same(carry_out):
    rows = rows_of_months((3,))
    maps = {}
    for kind, dtype in (("nnterp", "fp32"), ("hooks", "fp32"), ("nnterp", "bf16")):
        maps[kind, dtype] = means(carry_out(interchange([5, 29], dtype), rows, kind, dtype), "follows")
    assert maps["nnterp", "fp32"] == maps["hooks", "fp32"]
    for labels, value in maps["nnterp", "bf16"].items():
        assert abs(value - maps["nnterp", "fp32"][labels]) <= 0.2


def patch_of_one_layer(layer=9):
    place = {"site": site("block_output", layer), "pos": ENTITY}
    return document(
        {"p": patching({**place, "mechanism": "swap", "operand": "source"}, place)},
        {"s": observe("p", outputs={"z": "prediction", "source": "source"})},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_is_the_row_of_a_batch(carry_out, kind):
    together, alone = (carry_out(patch_of_one_layer(), RAGGED, kind, batch_size=size).step("s").results["outputs"] for size in (3, 1))
    for name in ("z", "source"):
        assert_near(together[name].value.data, alone[name].value.data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_is_what_plain_hooks_give(carry_out, plain, kind):
    model, tokenizer = plain
    made = carry_out(patch_of_one_layer(), RAGGED, kind, batch_size=1).step("s").results["outputs"]["z"].value.data
    for row, entry in enumerate(RAGGED):
        other, theirs = entry["counterfactual_inputs"][0], entry["counterfactual_inputs_variables"][0]["entity"]
        source_ids, ids = ids_of(tokenizer, other)[0], ids_of(tokenizer, entry["input"])[0]
        source = forward(model, source_ids, {"v": spot(model, "block_output", 9, tokens_of(tokenizer, other, theirs))})["v"]
        there = spot(model, "block_output", 9, tokens_of(tokenizer, entry["input"], entry["entity"]))
        last = spot(model, "logits", None, [len(ids) - 1])
        expected = forward(model, ids, {"z": last}, [(there, lambda value, found, source=source: source)])["z"]
        assert_near(made.reshape(len(RAGGED), -1)[row : row + 1], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_reads_of_a_ragged_batch_are_what_plain_hooks_give(carry_out, plain, kind):
    model, tokenizer = plain
    reads = {
        "block": {"site": site("block_output", [0, 15, 29]), "pos": {"all": True}, "input": "base"},
        "attention": {"site": site("attention_output", [0, 15, 29]), "pos": {"all": True}, "input": "base"},
        "mlp": {"site": site("mlp_output", [0, 15, 29]), "pos": {"all": True}, "input": "base"},
        "norm": {"site": site("ln_final"), "pos": {"all": True}, "input": "base"},
    }
    raw = document({"look": {"reads": reads}}, {"s": observe("look", both=False, outputs={name: name for name in reads})})
    made = carry_out(raw, RAGGED, kind).step("s").results["outputs"]
    lengths = made["block"].value.lengths
    assert len(set(lengths)) == len(RAGGED)
    names = {"block": "block_output", "attention": "attention_output", "mlp": "mlp_output"}
    for row, entry in enumerate(RAGGED):
        ids = ids_of(tokenizer, entry["input"])[0]
        everywhere = range(len(ids))
        places = {(name, index): spot(model, names[name], layer, everywhere) for name in names for index, layer in enumerate((0, 15, 29))}
        expected = forward(model, ids, {**places, ("norm", 0): spot(model, "ln_final", None, everywhere)})
        start = sum(lengths[:row])
        for (name, index), value in expected.items():
            assert_near(made[name].value.data[index, start : start + lengths[row]], value)


# fits and attributions

TABLES = ROOT / "data" / "smollm2"


def of_split(name, split, n):
    rows = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
    return [row for row in rows if row["split"] == split][:n]


@pytest.fixture(scope="module")
def carry_out_documents(opened, tmp_path_factory):
    """Returns a function that runs a document of `documents/smollm2` over the first rows of its splits."""

    def run(name, sizes, change):
        from causalab_mini.plan.build import build_request

        raw = json.loads((ROOT / "documents" / "smollm2" / f"{name}.json").read_text(encoding="utf-8"))
        change(raw)
        root = tmp_path_factory.mktemp("data")
        for table in ("months", "ioi"):
            rows = [row for split, n in sizes.items() for row in of_split(table, split, n)]
            write_table(root, f"smollm2/{table}", rows)
        engine = opened("nnterp")
        return engine.execute(build_request(raw, root, engine), check="sample")

    return run


def test_a_subspace_for_the_month_carries_the_answer_on_rows_that_it_never_saw(carry_out_documents):
    def change(raw):
        raw["sites"]["stream"]["layers"] = 18
        raw["featurizers"]["rotation"]["k"] = 16
        raw["steps"]["test"]["controls"] = ["shuffled_source", {"kind": "random_subspace", "n": 1}]

    run = carry_out_documents("month_das", {"train": 48, "dev": 8, "test": 12}, change)
    test = run.step("test").results
    follows = [row["value"] for row in test["metrics"]["follows"]]
    assert sum(follows) / len(follows) >= 0.75
    for entry in test["controls"]:
        if entry["metric"] == "follows":
            values = [row["value"] for row in entry["tables"][0]]
            assert sum(values) / len(values) <= 0.25, entry["kind"]
    assert run.step("train").results["fit"]["level"] == "token"
    assert max(run.step("train").results["fit"]["first_use"]) < 1e-4


def test_estimates_of_heads_agree_with_what_they_do(carry_out_documents):
    run = carry_out_documents("name_attribution", {"dev": 1, "test": 8}, lambda raw: raw["steps"]["estimate"].update(verify_top=10))
    found = run.step("estimate").results
    assert found["agreement"]["rank_correlation"] >= 0.9
    assert found["agreement"]["sign_agreement"] == 1
    sizes = {}
    for row in found["attributions"]:
        sizes.setdefault((row["layer"], row["head"]), []).append(row["value"])
    largest = max(sizes, key=lambda place: abs(sum(sizes[place])))
    assert largest == (23, 3)
