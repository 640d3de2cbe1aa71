"""Generation against transformers' own, and against a plain forward over all tokens for every token that is said, one row at a time."""

import json

import pytest
import torch
from authoring import ENTITY, LOGITS, document, observe, patching, site, write_document, write_table
from reference import forward, ids_of, spot, tokens_of

from causalab_mini.errors import DocumentError
from causalab_mini.experiment import load
from causalab_mini.plan.load import load_raw

pytestmark = pytest.mark.tiny

MODELS = ("successor-llama", "successor-gpt2", "llama-grouped", "gpt2-untied", "mistral", "qwen3")
STREAM = site("block_output", 1)
RAGGED = ("If today is Tuesday, tomorrow is", "The garden", "If today", "Yesterday was Monday. Today is", "Today is Friday. Yesterday was")
"""After these, the models that ship say from three tokens to many."""


def said(pos, **more):
    return {"pos": {"frame": "generated", **(pos if isinstance(pos, dict) else {"index": pos})}, **more}


def saying(reads=None, *, decode=6, saves=("original.generated",), metrics=None, **more):
    """Returns a document whose original model goes on with each row."""
    intervention = {"reads": {name: {"input": "base", **read} for name, read in (reads or {}).items()}, "decode": decode}
    entries = [{"value": value, "file_path": f"{value}.json"} for value in saves]
    return document(
        {"says": intervention | ({"metrics": metrics} if metrics else {})}, {"go": observe("says", both=False, saves=entries)}, **more
    )


def patched(pos, *, operand="source", source=None, align="exact", decode=6, reads=None, mechanism="swap", **write):
    """Returns a document whose model `patched` is written into and goes on with each row."""
    change = {"site": STREAM, "pos": pos, "mechanism": mechanism, "align": align, **write} | (
        {} if operand is None else {"operand": operand}
    )
    fed = {"site": STREAM, "pos": ENTITY if source is None else source} if operand == "source" else None
    found = {"last": {"site": LOGITS, **said(-1), "model": "patched"}} if reads is None else reads
    intervention = patching(change, fed, reads=found) | {"decode": decode}
    return document(
        {"swap": intervention},
        {"go": observe("swap", saves=[{"value": "patched.generated", "file_path": "said.json"}], both=fed is not None)},
    )


def lines(run, name="original.generated"):
    return run.step("go").results["generated"][name]


def by_hand(model, tokenizer, text, n, writes=lambda ids, n_prompt: (), reads=lambda ids: {}, stops=(), barred=()):
    """Returns what a model says, greedily, and what was read at each step: a forward over all tokens so far, for each of them."""
    ids, _ = ids_of(tokenizer, text)
    n_prompt, found, ended = len(ids), [], "length"
    for _ in range(n):
        here = {"logits": spot(model, "logits", None, [len(ids) - 1]), **reads(ids)}
        values = forward(model, ids, here, writes(ids, n_prompt))
        logits = values["logits"][0].clone()
        logits[list(barred)] = float("-inf")
        found.append(values)
        ids = [*ids, int(logits.argmax())]
        if ids[-1] in stops:
            ended = "eos"
            break
    return ids[n_prompt:], found, ended


def stops_of(model):
    found = model.generation_config.eos_token_id
    return [found] if isinstance(found, int) else list(found or [])


@pytest.mark.parametrize("name", MODELS)
def test_says_what_transformers_says_row_by_row(name, carry_out, rows_of, plain_models):
    model, tokenizer = plain_models(name)
    run = carry_out(saying(decode={"max_new_tokens": 7}), rows_of(name), name, check="sample")
    for line, row in zip(lines(run), rows_of(name), strict=True):
        ids = torch.tensor([ids_of(tokenizer, row["input"])[0]])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=7, do_sample=False)[0, ids.shape[1] :].tolist()
        assert line["ids"] == alone
        assert line["ended"] == ("eos" if alone[-1] in stops_of(model) else "length")
    assert all(check.status == "passed" for check in run.step("go").results["checks"] if check.name == "rows")


@pytest.mark.parametrize("name", MODELS)
def test_reads_what_each_token_was_drawn_from(name, carry_out, rows_of, plain_models):
    model, tokenizer = plain_models(name)
    reads = {
        "first": {"site": LOGITS, **said(0)},
        "third": {"site": STREAM, **said(2)},
        "last": {"site": LOGITS, **said(-1)},
        "two": {"site": site("mlp_output", 0), **said({"last": 2})},
        "every": {"site": site("block_output", "all"), **said({"all": True, "stride": 2})},
        "lens": {"site": STREAM, **said(1), "view": "logits"},
    }
    outputs = {f"{read}_out": read for read in reads}
    raw = saying(reads, decode=5)
    raw["steps"]["go"]["outputs"] = outputs
    run = carry_out(raw, rows_of(name), name)
    made = run.step("go").results["outputs"]
    barred = stops_of(model)

    def look(ids):
        at = [len(ids) - 1]
        every = {f"b{layer}": spot(model, "block_output", layer, at) for layer in range(model.config.num_hidden_layers)}
        return {**every, "mlp": spot(model, "mlp_output", 0, at)}

    for index, row in enumerate(rows_of(name)):
        ids, found, _ = by_hand(model, tokenizer, row["input"], 5, reads=look, barred=barred)
        assert lines(run)[index]["ids"] == ids
        value = {read: made[f"{read}_out"].value.row(index) for read in reads}  # (layer, token, feature)
        expected = {
            "first": found[0]["logits"][None],
            "third": found[2]["b1"][None],
            "last": found[4]["logits"][None],
            "two": torch.cat([found[3]["mlp"], found[4]["mlp"]])[None],
            "every": torch.stack(
                [torch.cat([found[k][f"b{layer}"] for k in (0, 2, 4)]) for layer in range(model.config.num_hidden_layers)]
            ),
        }
        for read, plain in expected.items():
            torch.testing.assert_close(value[read], plain, atol=2e-4, rtol=1e-4)
        norm = model.get_submodule("model.norm" if hasattr(model, "model") else "transformer.ln_f")
        torch.testing.assert_close(value["lens"][0], model.lm_head(norm(found[1]["b1"])).detach(), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["successor-llama", "gpt2-untied", "llama-grouped"])
def test_a_write_in_the_prompt_acts_through_the_cache(name, carry_out, rows_of, plain_models):
    model, tokenizer = plain_models(name)
    run = carry_out(patched(ENTITY, decode=6), rows_of(name), name, check="full")
    plain = carry_out(saying(decode=6), rows_of(name), name)
    logits = run.step("go").results
    assert any(a["ids"] != b["ids"] for a, b in zip(lines(run, "patched.generated"), lines(plain), strict=True)), (
        "the write changed nothing"
    )
    for index, row in enumerate(rows_of(name)):
        other = row["counterfactual_inputs"][0]
        source = tokens_of(tokenizer, other, row["counterfactual_inputs_variables"][0]["entity"])
        values = forward(model, ids_of(tokenizer, other)[0], {"x": spot(model, "block_output", 1, source)})["x"]
        place = spot(model, "block_output", 1, tokens_of(tokenizer, row["input"], row["entity"]))
        writes = [(place, lambda value, found, values=values: values)]
        ids, _, _ = by_hand(model, tokenizer, row["input"], 6, lambda ids, n, writes=writes: writes, barred=stops_of(model))
        assert lines(run, "patched.generated")[index]["ids"] == ids
    assert all(check.status == "passed" for check in logits["checks"])


@pytest.mark.parametrize(
    ("pos", "steps"),
    [
        ({"index": 0}, [0]),
        ({"index": 2}, [2]),
        ({"span": [1, 4]}, [1, 2, 3]),
        ({"all": True}, range(6)),
        ({"all": True, "stride": 2}, [0, 2, 4]),
    ],
)
@pytest.mark.parametrize("name", ["successor-llama", "gpt2-untied"])
def test_a_write_into_what_is_said_is_made_at_its_steps(name, pos, steps, carry_out, rows_of, plain_models):
    model, tokenizer = plain_models(name)
    reads = {"last": {"site": LOGITS, **said(-1), "model": "patched"}, "start": {"site": LOGITS, "pos": -1, "model": "patched"}}
    raw = patched({"frame": "generated", **pos}, operand=-0.5, mechanism="add_scaled", params={"scale": 3.0}, reads=reads)
    raw["steps"]["go"]["outputs"] = {"end": "last", "begin": "start"}
    run = carry_out(raw, rows_of(name), name, check="full")
    made = run.step("go").results["outputs"]
    for index, row in enumerate(rows_of(name)):

        def put(ids, n):
            at = [n - 1 + step for step in steps if n - 1 + step < len(ids)]
            return [(spot(model, "block_output", 1, at), lambda value, found: value - 1.5)] if at else []

        ids, found, _ = by_hand(model, tokenizer, row["input"], 6, put, barred=stops_of(model))
        assert lines(run, "patched.generated")[index]["ids"] == ids
        torch.testing.assert_close(made["end"].value.row(index)[0], found[-1]["logits"], atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(made["begin"].value.row(index)[0], found[0]["logits"], atol=2e-4, rtol=1e-4)
    positions = run.step("go").results["positions"]["patch"]
    assert all(tuple(steps) == content for content in positions["content"])
    assert all(check.status == "passed" for check in run.step("go").results["checks"])


def test_a_read_and_an_output_are_written_into_what_is_said(carry_out, rows_of, plain_models):
    model, tokenizer = plain_models("successor-llama")
    rows = rows_of("successor-llama")
    raw = patched({"frame": "generated", "span": [0, 2]}, align="mean")
    mean = {"reads": {"one": {"site": STREAM, "pos": -1, "input": "base"}}}
    raw["interventions"]["mean"] = mean
    raw["steps"] = {"first": {**observe("mean", both=False), "outputs": {"average": {"read": "one", "reduce": "mean"}}}, **raw["steps"]}
    steered = patched({"frame": "generated", "all": True}, operand={"ref": "average"})["interventions"]["swap"]
    raw["interventions"]["steered"] = steered
    raw["steps"]["steer"] = {**observe("steered", both=False), "saves": [{"value": "patched.generated", "file_path": "steered.json"}]}
    run = carry_out(raw, rows)
    lasts = [forward(model, ids_of(tokenizer, row["input"])[0], {"x": spot(model, "block_output", 1, [-1])})["x"] for row in rows]
    average = torch.stack(lasts).mean(dim=0)
    for index, row in enumerate(rows):
        entity, other = row["counterfactual_inputs_variables"][0]["entity"], row["counterfactual_inputs"][0]
        value = forward(model, ids_of(tokenizer, other)[0], {"x": spot(model, "block_output", 1, tokens_of(tokenizer, other, entity))})[
            "x"
        ].mean(dim=0)

        def put(ids, n, value=value, last=2):
            at = list(range(n - 1, min(n - 1 + last, len(ids))))
            return [(spot(model, "block_output", 1, at), lambda old, found: value.expand_as(old))]

        ids, _, _ = by_hand(model, tokenizer, row["input"], 6, put, barred=stops_of(model))
        assert lines(run, "patched.generated")[index]["ids"] == ids
        ids, _, _ = by_hand(model, tokenizer, row["input"], 6, lambda ids, n: put(ids, n, average, 6), barred=stops_of(model))
        assert run.step("steer").results["generated"]["patched.generated"][index]["ids"] == ids


@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2"])
def test_rows_end_alone_at_stop_tokens_and_texts(name, carry_out, plain_models):
    model, tokenizer = plain_models(name)
    rows = [{"input": text} for text in RAGGED]
    reads = {"last": {"site": LOGITS, **said(-1)}, "fifth": {"site": LOGITS, **said(4)}}
    raw = saying(reads, decode={"max_new_tokens": 12})
    raw["steps"]["go"]["outputs"] = {"last_out": "last", "fifth_out": "fifth"}
    run = carry_out(raw, rows, name, check="full")
    made = run.step("go").results["outputs"]
    ends = [by_hand(model, tokenizer, row["input"], 12, stops=stops_of(model)) for row in rows]
    assert [(line["ids"], line["ended"]) for line in lines(run)] == [(ids, ended) for ids, _, ended in ends]
    assert {ended for _, _, ended in ends} == {"eos", "length"}
    assert len({len(ids) for ids, _, _ in ends}) > 2
    for index, (ids, found, ended) in enumerate(ends):
        prompt = ids_of(tokenizer, rows[index]["input"])[0]
        before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *(ids[:-1] if ended == "eos" else ids)])
        assert lines(run)[index]["text"] == whole[len(before) :]
        torch.testing.assert_close(made["last_out"].value.row(index)[0], found[-1]["logits"], atol=2e-4, rtol=1e-4)
        fifth = made["fifth_out"].value.row(index)[0]
        assert len(fifth) == (len(ids) > 4)
        if len(ids) > 4:
            torch.testing.assert_close(fifth, found[4]["logits"], atol=2e-4, rtol=1e-4)
    assert all(check.status == "passed" for check in run.step("go").results["checks"] if check.name == "rows")
    stopped = carry_out(saying(decode={"max_new_tokens": 12, "stop": ["Tues"]}), rows, name)
    whole = [line["text"] for line in lines(run)]
    assert any("Tues" in text for text in whole)
    for line, text in zip(lines(stopped), whole, strict=True):
        assert (line["ended"] == "stop") == ("Tues" in text)
        assert line["text"] == text if "Tues" not in text else text.startswith(line["text"]) and "Tues" in line["text"]
    full = carry_out(saying(decode={"max_new_tokens": 12, "ignore_eos": True}), rows, name)
    assert [len(line["ids"]) for line in lines(full)] == [12] * len(rows)
    assert lines(full) == lines(carry_out(saying(decode=12), rows, name))


def test_metrics_of_what_is_said(carry_out, rows_of, plain_models):
    _, tokenizer = plain_models("successor-llama")
    rows = rows_of("successor-llama")
    metrics = {
        how: {"kind": "generated_match", "input": "base", "expected": "base_answer", "how": how}
        for how in ("exact", "prefix", "contains", "regex")
    }
    reads = {
        "first": {"site": LOGITS, **said(0)},
        "late": {"site": LOGITS, **said(9)},
        "eos": {"site": STREAM, "pos": {"frame": "generated", "index": 0, "scope": {"segment": "eos"}}},
    }
    metrics |= {
        "match": {"kind": "match", "of": "first", "expected": "base_answer"},
        "rank": {"kind": "rank", "of": "late", "token": "base_answer"},
    }
    metrics |= {"norm": {"kind": "value", "of": "eos", "how": "norm"}}
    run = carry_out(saying(reads, decode={"max_new_tokens": 10}, metrics=metrics), rows)
    tables = run.step("go").results["metrics"]
    for index, row in enumerate(rows):
        text, answer = lines(run)[index]["text"], row["base_answer"].strip()
        assert tables["exact"][index]["value"] == float(text.strip() == answer)
        assert tables["prefix"][index]["value"] == float(text.strip().startswith(answer))
        assert tables["contains"][index]["value"] == float(answer in text)
        assert tables["exact"][index]["tokens"] == text
        ended = lines(run)[index]["ended"] == "eos"
        n = len(lines(run)[index]["ids"])
        assert tables["rank"][index]["reason"] == ("" if n > 9 else "out_of_range")
        assert tables["rank"][index]["eligible"] == (n > 9)
        assert tables["norm"][index]["reason"] == ("" if ended else "alignment_missing")
        assert tables["match"][index]["value"] == float(tokenizer.decode(lines(run)[index]["ids"][:1]).strip() == answer)
    longest = max(len(ids_of(tokenizer, row["input"])[0]) for row in rows)
    assert [line["positions"] for line in tables["match"]] == [[longest]] * len(rows)


def test_anchors_are_found_in_what_each_row_says(carry_out, rows_of, plain_models):
    model, tokenizer = plain_models("successor-llama")
    rows = rows_of("successor-llama")
    plain = carry_out(saying(decode=8), rows)
    words = [line["text"].split()[0] for line in lines(plain)]
    raw = saying(
        {"word": {"site": STREAM, "pos": {"frame": "generated", "index": -1, "scope": {"column": "word", "occurrence": "first"}}}}, decode=8
    )
    raw["steps"]["go"]["outputs"] = {"word_out": "word"}
    found = carry_out(raw, [{**row, "word": word} for row, word in zip(rows, words, strict=True)]).step("go").results
    for index, (row, word) in enumerate(zip(rows, words, strict=True)):
        ids, values, _ = by_hand(
            model,
            tokenizer,
            row["input"],
            8,
            reads=lambda ids: {"x": spot(model, "block_output", 1, [len(ids) - 1])},
            barred=stops_of(model),
        )
        prompt = ids_of(tokenizer, row["input"])[0]
        before = len(tokenizer.decode(prompt))
        last = next(n for n in range(8) if word in tokenizer.decode([*prompt, *ids[: n + 1]])[before:])
        assert found["positions"]["word"]["content"][index] == (last,)
        torch.testing.assert_close(found["outputs"]["word_out"].value.row(index)[0], values[last]["x"], atol=2e-4, rtol=1e-4)
    missing = carry_out(
        saying({"word": {"site": STREAM, "pos": {"frame": "generated", "index": 0, "scope": {"text": "nowhere"}}}}, decode=3), rows
    )
    assert set(missing.step("go").results["positions"]["word"]["reason"]) == {"alignment_missing"}


def test_draws_are_of_the_row_and_not_of_the_batch(carry_out):
    rows = [{"input": text} for text in RAGGED]
    how = {"max_new_tokens": 8, "do_sample": True, "temperature": 3.0, "top_p": 0.95, "top_k": 50, "seed": 3}
    whole = carry_out(saying(decode=how), rows)
    alone = carry_out(saying(decode=how), rows, batch_size=1)
    assert lines(whole) == lines(alone)
    other = carry_out(saying(decode=how | {"seed": 4}), rows)
    assert lines(other) != lines(whole)
    greedy = carry_out(saying(decode={"max_new_tokens": 8}), rows)
    one = carry_out(saying(decode=how | {"top_k": 1}), rows)
    assert [line["ids"] for line in lines(one)] == [line["ids"] for line in lines(greedy)]


def test_draws_follow_the_distribution(engines):
    from collections import Counter

    from causalab_mini.engine.speech import Speech
    from causalab_mini.plan.spec import Decode

    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -8.0])
    how = Decode(max_new_tokens=1, do_sample=True, temperature=2.0, top_p=0.8, seed=0)
    rows = range(4000)
    speech = Speech(engines("successor-llama").tokenizer, ())
    for row in rows:
        speech.join((1,), how, row)
    speech.hear(logits.expand(len(rows), -1))
    counts = Counter(voice.fed[0] for voice in speech.voices)
    probabilities = (logits / 2).softmax(dim=-1)
    kept = probabilities[:3] / probabilities[:3].sum()  # 0.48 + 0.29 < 0.8 <= + 0.18
    assert set(counts) == {0, 1, 2}
    for token in range(3):
        assert abs(counts[token] / len(rows) - float(kept[token])) < 0.03


def test_what_is_said_is_generated_once(carry_out, rows_of, monkeypatch):
    from causalab_mini.engine import store

    calls = []
    plain = store.generate
    monkeypatch.setattr(store, "generate", lambda *arguments: (calls.append(1), plain(*arguments))[1])
    raw = saying({"x": {"site": site("block_output", {"sweep": [0, 1, 2], "as": "layer"}), **said(1)}}, decode=4)
    raw["steps"]["go"]["outputs"] = {"x_out": "x"}
    run = carry_out(raw, rows_of("successor-llama"), check="off")
    assert len(run.points) == 3
    assert len(calls) == 1
    values = [point.steps["go"].results["outputs"]["x_out"].value.data for point in run.points]
    assert not torch.equal(values[0], values[1])


def test_saves_are_files(carry_out, rows_of, tmp_path):
    write_table(tmp_path, "rows", rows_of("successor-llama"))
    raw = saying({"x": {"site": STREAM, **said({"all": True})}}, decode={"max_new_tokens": 6}, saves=("original.generated",))
    raw["steps"]["go"]["outputs"] = {"x_out": "x", "average": {"read": "x", "reduce": "mean"}}
    raw["steps"]["go"]["saves"] += [
        {"value": "x_out", "file_path": "x.safetensors"},
        {"value": "original.base.generated", "file_path": "said.csv"},
    ]
    load(write_document(tmp_path, raw), data_root=tmp_path).run(out=tmp_path / "out")
    table = json.loads((tmp_path / "out" / "original.generated.json").read_text(encoding="utf-8"))
    assert list(table[0]) == ["example_id", "ids", "text", "ended", "produced_by"]
    from safetensors import safe_open

    with safe_open(tmp_path / "out" / "x.safetensors", "pt") as file:
        lengths = next(file.get_tensor(key) for key in file.keys() if "length" in key)  # noqa: SIM118
    assert lengths.tolist() == [len(line["ids"]) for line in table]
    assert (tmp_path / "out" / "said.csv").read_text(encoding="utf-8").count("\n") == len(table) + 1


def test_hooks_say_the_same(carry_out, rows_of):
    rows = rows_of("successor-llama")
    raw = patched({"frame": "generated", "index": 1}, operand=2.0, mechanism="add_scaled")
    traced, hooked = carry_out(raw, rows), carry_out(raw, rows, kind="hooks")
    assert lines(traced, "patched.generated") == lines(hooked, "patched.generated")


REFUSED = {
    "no decode": (lambda: saying({"x": {"site": STREAM, **said(1)}}, decode=0, saves=()), "interventions.says.reads.x.pos"),
    "beyond": (lambda: saying({"x": {"site": STREAM, **said(6)}}), "interventions.says.reads.x.pos"),
    "negative beyond": (lambda: saying({"x": {"site": STREAM, **said(-7)}}), "interventions.says.reads.x.pos"),
    "pattern": (lambda: saying({"x": {"site": site("attention_probs", 0), **said(1)}}), "interventions.says.reads.x.pos"),
    "nothing looks": (lambda: saying({"x": {"site": STREAM, "pos": -1}}, saves=()), "interventions.says.decode"),
    "negative write": (lambda: patched({"frame": "generated", "index": -1}, operand=1.0), "interventions.swap.writes.patch.pos"),
    "scoped write": (
        lambda: patched({"frame": "generated", "index": 0, "scope": {"text": "a"}}, operand=1.0),
        "interventions.swap.writes.patch.pos",
    ),
    "wide operand": (lambda: patched({"frame": "generated", "all": True}), "interventions.swap.writes.patch.operand"),
    "operand from what is said": (
        lambda: patched(-1, source={"frame": "generated", "index": 0}),
        "interventions.swap.writes.patch.operand",
    ),
    "permute": (
        lambda: patched({"frame": "generated", "index": 0}, operand=None, mechanism="permute", params={"seed": 0}),
        "interventions.swap.writes.patch.mechanism",
    ),
    "no such model": (lambda: saying(saves=("other.generated",)), "steps.go.saves[0].value"),
    "segment": (
        lambda: saying({"x": {"site": STREAM, "pos": {"frame": "generated", "index": 0, "scope": {"segment": "user"}}}}),
        "interventions.says.reads.x.pos.scope",
    ),
    "sampling without seed": (lambda: saying(decode={"max_new_tokens": 3, "do_sample": True}), "interventions.says.decode"),
    "temperature without sampling": (
        lambda: saying(decode={"max_new_tokens": 3, "temperature": 2.0}),
        "interventions.says.decode.temperature",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_refuses_before_anything_is_loaded(case):
    make, path = REFUSED[case]
    with pytest.raises(DocumentError) as error:
        load_raw(make())
    assert [problem.path for problem in error.value.problems] == [path]


def test_a_model_that_can_not_be_run_token_by_token_is_refused(engines, carry_out, rows_of, monkeypatch):
    from causalab_mini.engine import decoding
    from causalab_mini.errors import RunError

    engine = engines("llama-tied")
    plain = decoding._logits
    monkeypatch.setattr(engine, "cache_difference", None)
    monkeypatch.setattr(
        decoding,
        "_logits",
        lambda engine, ids, n_before, cache: plain(engine, ids, 0, None) if n_before else plain(engine, ids, n_before, cache),
    )
    with pytest.raises(RunError, match="a model whose tokens can be run one by one"):
        carry_out(saying(), rows_of("llama-tied"), "llama-tied")


def test_controls_stand_beside_what_is_said(carry_out, rows_of):
    raw = patched(-1, source=-1, reads={"last": {"site": LOGITS, **said(0), "model": "patched"}}, decode={"max_new_tokens": 6})
    raw["interventions"]["swap"]["metrics"] = {
        "follows": {"kind": "generated_match", "model": "patched", "expected": "cf_answer", "how": "prefix"},
        "likely": {"kind": "token_prob", "of": "last", "token": "cf_answer"},
    }
    raw["steps"]["go"]["controls"] = ["self_swap", "shuffled_source"]
    rows = rows_of("successor-llama")
    run = carry_out(raw, rows, check="full")
    found = run.step("go").results
    assert all(check.status == "passed" for check in found["checks"])
    assert {control["kind"] for control in found["controls"]} == {"self_swap", "shuffled_source"}
    kept = next(entry for entry in found["controls"] if (entry["kind"], entry["metric"]) == ("self_swap", "follows"))["tables"][0]
    plain = carry_out(saying(decode={"max_new_tokens": 6}), rows)
    assert [line["tokens"] for line in kept] == [line["text"] for line in lines(plain)]


def test_rows_that_a_where_leaves_out_say_nothing(carry_out, rows_of):
    rows = rows_of("successor-llama")
    raw = saying(
        {"first": {"site": LOGITS, **said(0)}}, decode=4, metrics={"top": {"kind": "match", "of": "first", "expected": "base_answer"}}
    )
    raw["interventions"]["rank"] = {
        "reads": {"now": {"site": LOGITS, "pos": -1, "input": "base"}},
        "metrics": {"likely": {"kind": "token_prob", "of": "now", "token": "base_answer"}},
    }
    raw["steps"] = {"first": observe("rank", both=False), **raw["steps"]}
    values = [line["value"] for line in carry_out(raw, rows).step("first").results["metrics"]["likely"]]
    raw["steps"]["go"]["where"] = {"step": "first", "metric": "likely", "min": sorted(values)[2]}
    run = carry_out(raw, rows, check="full")
    table = run.step("go").results["metrics"]["top"]
    left_out = [index for index, value in enumerate(values) if value < sorted(values)[2]]
    assert [index for index, line in enumerate(table) if line["reason"] == "filtered"] == left_out
    assert [line["example_id"] for line in lines(run)] == [str(index) for index in range(len(rows)) if index not in left_out]
    whole = carry_out(saying({"first": {"site": LOGITS, **said(0)}}, decode=4), rows)
    assert lines(run) == [line for line in lines(whole) if int(line["example_id"]) not in left_out]


def test_what_does_not_fit_is_refused_before_weights(carry_out, rows_of):
    from causalab_mini.errors import PlanError

    with pytest.raises(PlanError, match="learned positions"):
        carry_out(saying(decode=60), rows_of("gpt2-untied"), "gpt2-untied")
    metrics = {"bad": {"kind": "generated_match", "input": "base", "expected": "entity", "how": "regex"}}
    with pytest.raises(PlanError, match="a regular expression on every row"):
        carry_out(saying(metrics=metrics), [{**row, "entity": "("} for row in rows_of("successor-llama")])
    raw = saying({"every": {"site": STREAM, **said({"all": True})}})
    raw["steps"]["go"]["outputs"] = {"all_of_it": "every"}
    raw["interventions"]["next"] = patched(ENTITY, operand={"ref": "all_of_it"})["interventions"]["swap"]
    raw["steps"]["then"] = {**observe("next", both=False), "saves": [{"value": "patched.generated", "file_path": "x.json"}]}
    with pytest.raises(PlanError, match="one vector, or one token a row"):
        carry_out(raw, rows_of("successor-llama"))


def test_one_token_of_each_row_is_written_in_a_later_step(carry_out, rows_of, plain_models):
    model, tokenizer = plain_models("successor-llama")
    rows = rows_of("successor-llama")
    raw = saying({"second": {"site": STREAM, **said(1)}}, decode=3)
    raw["steps"]["go"]["outputs"] = {"second_out": "second"}
    raw["interventions"]["next"] = patched(
        -1, operand={"ref": "second_out"}, reads={"end": {"site": LOGITS, "pos": -1, "model": "patched"}}
    )["interventions"]["swap"]
    raw["interventions"]["next"]["decode"] = 0
    raw["steps"]["then"] = {**observe("next", both=False), "outputs": {"end_out": "end"}}
    run = carry_out(raw, rows, check="full")
    for index, row in enumerate(rows):
        _, found, _ = by_hand(
            model,
            tokenizer,
            row["input"],
            2,
            reads=lambda ids: {"x": spot(model, "block_output", 1, [len(ids) - 1])},
            barred=stops_of(model),
        )
        ids = ids_of(tokenizer, row["input"])[0]
        value, at = found[1]["x"], len(ids) - 1
        place = spot(model, "block_output", 1, [at])
        logits = forward(model, ids, {"logits": spot(model, "logits", None, [at])}, [(place, lambda old, f, value=value: value)])["logits"]
        torch.testing.assert_close(run.step("then").results["outputs"]["end_out"].value.row(index)[0], logits, atol=2e-4, rtol=1e-4)


SELECTED = {
    "5": lambda n, said: [5],
    "prompt[0]": lambda n, said: [0],
    "prompt[-2]": lambda n, said: [n - 2],
    "prompt[-2]+1": lambda n, said: [n - 1],
    "prompt[-1]+1": lambda n, said: [n],
    "prompt[1:4]": lambda n, said: [1, 2, 3],
    "prompt[*]": lambda n, said: range(n),
    "generated[0]": lambda n, said: [n],
    "generated[0]-1": lambda n, said: [n - 1],
    "generated[1]": lambda n, said: [n + 1],
    "generated[-1]": lambda n, said: [n + said - 1],
    "generated[-3]+1": lambda n, said: [n + said - 2],
    "generated[*]": lambda n, said: range(n, n + said),
    "generated[1:3]": lambda n, said: [n + 1, n + 2],
    "generated[2:]": lambda n, said: range(n + 2, n + said),
}
"""Which tokens of a prompt of n and what was said behind it each string names, the tokenizer's own counted."""


@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2"])
def test_selectors_name_tokens_as_the_model_sees_them(name, carry_out, plain_models):
    model, tokenizer = plain_models(name)
    rows = [{"input": text} for text in RAGGED if len(ids_of(tokenizer, text)[0]) > 5]
    reads = {f"r{index}": {"site": STREAM, "pos": text} for index, text in enumerate(SELECTED)}
    raw = saying(reads, decode={"max_new_tokens": 12})
    raw["steps"]["go"]["outputs"] = {f"{read}_out": read for read in reads}
    run = carry_out(raw, rows, name, check="full")
    made, where = run.step("go").results["outputs"], run.step("go").results["positions"]
    for index, row in enumerate(rows):
        prompt, said = ids_of(tokenizer, row["input"])[0], lines(run)[index]["ids"]
        whole = [*prompt, *said]
        stream = forward(model, whole, {"x": spot(model, "block_output", 1, range(len(whole)))})["x"]
        for number, tokens in enumerate(SELECTED.values()):
            named = list(tokens(len(prompt), len(said)))
            torch.testing.assert_close(made[f"r{number}_out"].value.row(index)[0], stream[named], atol=2e-4, rtol=1e-4)
    longest = max(len(ids_of(tokenizer, row["input"])[0]) for row in rows)
    assert where["r7"]["rows"] == ((longest,),) * len(rows)
    assert all(check.status == "passed" for check in run.step("go").results["checks"] if check.name == "rows")


def test_the_last_token_is_run_only_where_a_selector_asks_for_it(carry_out, monkeypatch):
    from causalab_mini.engine import decoding

    steps = []
    plain = decoding._Batch.step
    monkeypatch.setattr(decoding._Batch, "step", lambda self, **how: (steps.append(how), plain(self, **how))[1])
    rows = [{"input": RAGGED[0]}, {"input": RAGGED[2]}]
    for text, n in (("generated[1]", 4), ("generated[3]", 5), ("generated[-2]", 4), ("generated[-1]", 5), ("generated[*]", 5)):
        steps.clear()
        carry_out(saying({"x": {"site": STREAM, "pos": text}}, decode=4), rows, kind="hooks")
        assert len(steps) == n, text


def test_a_selected_token_is_written_where_it_is_the_input(carry_out, rows_of, plain_models):
    model, tokenizer = plain_models("successor-llama")
    rows = rows_of("successor-llama")
    raw = patched("generated[1]", operand=-0.5, mechanism="add_scaled", params={"scale": 3.0})
    run = carry_out(raw, rows, check="full")
    for index, row in enumerate(rows):

        def put(ids, n):
            return [(spot(model, "block_output", 1, [n + 1]), lambda value, found: value - 1.5)] if len(ids) > n + 1 else []

        ids, _, _ = by_hand(model, tokenizer, row["input"], 6, put, barred=stops_of(model))
        assert lines(run, "patched.generated")[index]["ids"] == ids
    assert run.step("go").results["positions"]["patch"]["content"] == ((1,),) * len(rows)


def test_selectors_are_told_apart_and_explained(carry_out):
    from causalab_mini.plan.position import as_position

    assert as_position("prompt[-1]") != as_position(-1)
    assert str(as_position("prompt[-1]+1")) == '"prompt[-1]+1" = generated[0] (in the forward after it is said)'
    assert str(as_position("prompt[2]")) == '"prompt[2]" (of the prompt as the model sees it)'
    digests = {
        load_raw(saying({"x": {"site": STREAM, "pos": pos}})).points[0].digest for pos in ("prompt[-1]", -1, "prompt[-2]+1", "generated[0]")
    }
    assert len(digests) == 4


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2-untied", "mistral", "successor-llama"])
@pytest.mark.parametrize("component", ["attention_key", "attention_value"])
def test_written_keys_and_values_are_those_that_later_tokens_attend_to(name, component, engines, carry_out, rows_of):
    place = site(component, 1)
    for pos in (-2, {"frame": "generated", "all": True}, {"frame": "generated", "index": 2}):
        raw = patched(pos, operand=1.7, mechanism="add_scaled", reads={"last": {"site": LOGITS, **said(-1), "model": "patched"}})
        raw["interventions"]["swap"]["writes"]["patch"]["site"] = place
        raw["interventions"]["swap"]["reads"]["it"] = {"site": place, **said(3), "model": "patched"}
        raw["steps"]["go"]["outputs"] = {"last_out": "last", "it_out": "it"}
        run = carry_out(raw, rows_of(name), name, check="full")
        found = run.step("go").results
        assert all(check.status == "passed" for check in found["checks"])
        # the same without a cache: all that was said as prompts, the write at the same tokens, the token before the last read
        rows = rows_of(name)
        ids = [line["ids"] for line in lines(run, "patched.generated")]
        for index, row in enumerate(rows):
            logits = _uncached(engines(name), row["input"], ids[index], place, pos, 1.7)
            torch.testing.assert_close(found["outputs"]["last_out"].value.row(index)[0, 0], logits["logits"], atol=3e-4, rtol=1e-3)
            torch.testing.assert_close(found["outputs"]["it_out"].value.row(index)[0, 0], logits["it"], atol=3e-4, rtol=1e-3)


def _uncached(engine, text, said, place, pos, amount):
    """Returns logits and what stands at a place in one forward of our hooks over all tokens, without a cache."""
    from causalab_mini.engine.contract import Batch, ReadTask, Shortcut, State, Visit, WriteTask
    from causalab_mini.ops.windows import Index

    ids, _ = ids_of(engine.tokenizer, text)
    n, whole = len(ids), [*ids, *said[:-1]]
    if isinstance(pos, int):
        written = [n + pos]
    else:
        written = [n - 1 + pos["index"]] if "index" in pos else list(range(n - 1, len(whole)))

    def at(tokens):
        return Index(torch.zeros(len(tokens), dtype=torch.long), torch.tensor(tokens))

    address, head = engine.facts.address(place["component"], place["layers"]), engine.facts.address("logits", None)
    write = WriteTask("w", "w", place["layers"], at(written), lambda value, arrived, state: value + amount)
    visits = (
        Visit(address, (write, ReadTask("it", 0, at([n - 1 + 3])))),
        Visit(head, (ReadTask("logits", 0, at([len(whole) - 1])),)),
    )
    state, n_all = State(len(whole)), len(whole)
    batch = Batch((0,), torch.tensor([whole]), torch.ones(1, n_all, dtype=torch.long), torch.arange(n_all)[None])
    engine.run(batch, visits, state, Shortcut(is_direct=True))
    return {"logits": state.reads["logits", 0][0], "it": state.reads["it", 0][0]}


def test_one_write_in_two_models_ends_where_each_does(carry_out):
    rows = [{"input": text} for text in RAGGED]
    raw = patched({"frame": "generated", "span": [0, 6]}, operand=0.3, mechanism="add_scaled", decode={"max_new_tokens": 12})
    swap = raw["interventions"]["swap"]
    swap["writes"]["more"] = swap["writes"]["patch"] | {"operand": -1.5}
    swap["models"]["other"] = {"input": "base", "writes": ["patch", "more"]}
    raw["steps"]["go"]["saves"].append({"value": "other.generated", "file_path": "other.json"})
    run = carry_out(raw, rows, check="full")
    said_first = [len(line["ids"]) for line in lines(run, "patched.generated")]
    assert said_first != [len(line["ids"]) for line in lines(run, "other.generated")]
    assert run.step("go").results["positions"]["patch"]["content"] == tuple(tuple(range(min(6, n))) for n in said_first)
    assert all(check.status == "passed" for check in run.step("go").results["checks"])


def test_continuations_of_several_inputs_are_saved_by_name(carry_out, rows_of):
    raw = saying({"first": {"site": LOGITS, **said(0), "input": "counterfactual"}}, saves=("original.generated", "original.base.generated"))
    raw["steps"]["go"]["rows"] = {"base": "rows", "counterfactual": "rows"}
    found = carry_out(raw, rows_of("successor-llama"))
    assert set(found.step("go").results["generated"]) == {"original.counterfactual.generated", "original.base.generated"}
    saves = {save.file_path: save.value for save in found.step("go").node.saves}
    assert saves == {
        "original.generated.json": "original.counterfactual.generated",
        "original.base.generated.json": "original.base.generated",
    }


def test_what_no_token_can_be_chosen_by_is_refused(carry_out, rows_of):
    from causalab_mini.errors import RunError

    raw = patched(-1, operand=1e38, mechanism="add_scaled", params={"scale": 1e10})
    with pytest.raises(RunError, match="NaN or infinite ones at generated token 0 of `patched` on `base`, row 0"):
        carry_out(raw, rows_of("successor-llama"))
    cold = {"max_new_tokens": 3, "do_sample": True, "temperature": 1e-40, "seed": 0}
    greedy = carry_out(saying(decode={"max_new_tokens": 3}), rows_of("successor-llama"))
    assert lines(carry_out(saying(decode=cold), rows_of("successor-llama"))) == lines(greedy)


def test_a_number_of_tokens_is_short_for_an_object():
    digests = {load_raw(saying(decode=decode)).points[0].digest for decode in (5, {"max_new_tokens": 5, "ignore_eos": True})}
    assert len(digests) == 1


def test_a_read_that_no_row_has_is_empty_in_its_own_width(carry_out):
    raw = saying({"late": {"site": STREAM, **said(10)}}, decode={"max_new_tokens": 12})
    raw["steps"]["go"]["outputs"] = {"late_out": "late"}
    run = carry_out(raw, [{"input": RAGGED[0]}])
    assert run.step("go").results["outputs"]["late_out"].value.data.shape == (1, 0, 64)


def test_rows_that_say_other_tokens_fail_the_check_unless_these_are_as_likely(carry_out, rows_of, monkeypatch):
    from causalab_mini.engine.checking import first_apart

    assert first_apart((1, 2, 3), (1, 2, 3)) is None
    assert [first_apart((1, 2), (1, 3)), first_apart((1,), (1, 2))] == [1, 0]
    from causalab_mini.engine import speech

    plain = speech.Speech._likeliest
    monkeypatch.setattr(speech.Speech, "_likeliest", lambda self, logits: [token + (len(logits) > 1) for token in plain(self, logits)])
    run = carry_out(saying({"x": {"site": STREAM, **said(0)}}), rows_of("successor-llama"), check="sample")
    assert next(check for check in run.step("go").results["checks"] if check.name == "rows").status == "failed"
