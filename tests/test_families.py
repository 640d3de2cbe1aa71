"""Every family × every component: a read and a write that are those of plain PyTorch, or a refusal with its reason."""

from functools import partial

import pytest
import torch
from authoring import ENTITY, LOGITS, document, observe, pair, patching, site, write_document, write_table
from conftest import save_random, small_tokenizer
from families_by_hand import CONFIGS, INTERFACED, INTERIOR, LAYERS, PATTERNS, PER_HEAD, ROUTER, WHOLE, Plain, present
from reference import tokens_of

from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.facts import WITHOUT_SDPA

pytestmark = pytest.mark.tiny

KINDS = ("nnterp", "hooks")
ALL = {"all": True}
ROWS = [
    pair("tomorrow is Friday", "Friday", "Monday is tomorrow", "Monday"),
    pair("If today is Saturday, so is tomorrow", "Saturday", "If Sunday is today, tomorrow is so", "Sunday"),
    pair("Sunday today is", "Sunday", "today is Saturday", "Saturday"),
    pair("so, Monday is today, so is Sunday", "Monday", "so, today is Friday, is Saturday so", "Friday"),
]
"""Ragged, each with as many tokens on both sides, whose last two differ."""
CELLS = [(name, component) for name in CONFIGS for component in COMPONENTS if component in present(name)]
WRITABLE = [cell for cell in CELLS if COMPONENTS[cell[1]].is_writable]

PARALLEL = "attention and MLP are added to the stream together"
ONE_NORM = "attention and MLP read one norm"
BEHIND = "its norms stand behind attention and MLP"
NO_EXPERTS = "its layers have no experts"
OWN = "it computes attention inside its module"
EXPERTS = "every expert has neurons of its own"
OUT_OF_ORDER = "its norm for the MLP runs before attention"
ABSENT = {
    "bloom": dict.fromkeys(INTERIOR, OWN),
    "falcon": {**dict.fromkeys(INTERIOR, OWN), "block_mid": PARALLEL, "mlp_input_norm": ONE_NORM},
    "falcon-serial": dict.fromkeys(INTERIOR, OWN),
    "falcon-two-norms": {**dict.fromkeys(INTERIOR, OWN), "block_mid": PARALLEL, "mlp_input_norm": OUT_OF_ORDER},
    "gpt_neox": {"block_mid": PARALLEL},
    "gptj": {"block_mid": PARALLEL, "mlp_input_norm": ONE_NORM},
    "phi": {"block_mid": PARALLEL, "mlp_input_norm": ONE_NORM},
    "olmo2": {"attention_input_norm": BEHIND, "mlp_input_norm": BEHIND},
    **{name: {"mlp_activation": EXPERTS, "mlp_neuron_output": EXPERTS} for name in ("mixtral", "qwen2_moe", "qwen3_moe")},
}
REASONS = {
    name: {**({} if "router_logits" in present(name) else dict.fromkeys(ROUTER, NO_EXPERTS)), **ABSENT.get(name, {})} for name in CONFIGS
}
REFUSED = [(name, component) for name in CONFIGS for component in COMPONENTS if component in REASONS[name]]


def ids_of_cells(cells):
    return {"argnames": ("name", "component"), "argvalues": cells, "ids": [f"{name}-{component}" for name, component in cells]}


def assert_near(found, expected, what=""):
    """Equal to 1e-5 of the largest number that is no mask; what is masked on one side is on the other."""
    hidden = expected <= torch.finfo(torch.float32).min
    assert torch.equal(hidden, found <= torch.finfo(torch.float32).min), what
    found, expected = found[~hidden], expected[~hidden]
    torch.testing.assert_close(
        found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())), msg=lambda text: f"{what}: {text}"
    )


class Zoo:
    """A checkpoint of every variant, opened by both engines and by transformers alone, and what they read and write."""

    def __init__(self, folder):
        self.folder = folder
        self.made = {}
        write_table(folder / "data", "rows", ROWS)
        write_table(folder / "data", "judge", [{**ROWS[0], "counterfactual_inputs": ["Friday is tomorrow"]}])
        write_table(folder / "data", "crossed", [{**row, "counterfactual_inputs": [ROWS[1]["input"]]} for row in ROWS])

    def once(self, key, make):
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def checkpoint(self, name):
        def save():
            from transformers import AutoConfig

            model_type, shape = CONFIGS[name]
            save_random(self.folder / name, AutoConfig.for_model(model_type, **shape), small_tokenizer())
            return self.folder / name

        return self.once(("checkpoint", name), save)

    def engine(self, name, kind="nnterp", attention="eager"):
        from causalab_mini.engine.engines.hooks import HooksEngine
        from causalab_mini.engine.engines.nnterp import NNterpEngine
        from causalab_mini.plan.spec import ModelSpec

        spec = ModelSpec(key=str(self.checkpoint(name)), dtype="fp32", attn_implementation=attention)
        engine = {"nnterp": NNterpEngine, "hooks": HooksEngine}[kind]
        return self.once(("engine", name, kind, attention), lambda: engine.load(spec, device_map="cpu"))

    def model(self, name, attention="eager"):
        from transformers import AutoModelForCausalLM

        def load():
            return AutoModelForCausalLM.from_pretrained(self.checkpoint(name), dtype=torch.float32, attn_implementation=attention).eval()

        return self.once(("model", name, attention), load)

    def ids(self, name, text):
        return self.engine(name).tokenizer(text)["input_ids"]

    def n_prefix(self, name):
        return len(self.ids(name, ""))

    def request(self, name, interventions, steps, kind="nnterp", attention="eager"):
        from causalab_mini.plan.build import build_request

        raw = document(interventions, steps, str(self.checkpoint(name)))
        raw["model"]["attn_implementation"] = attention
        return build_request(raw, self.folder / "data", self.engine(name, kind, attention))

    def run(self, name, interventions, steps, kind="nnterp", attention="eager", **options):
        request = self.request(name, interventions, steps, kind, attention)
        if options.get("batch_size") == 1:
            options["rewrites"] = ()  # which give the head fewer tokens: another product, whose last bits may differ
        return self.engine(name, kind, attention).execute(request, **{"check": "off", **options})

    def outputs(self, name, reads, kind="nnterp", attention="eager", **options):
        """Returns what reads of the base find, by name."""
        reads = {key: {"pos": ALL, "input": "base", **read} for key, read in reads.items()}
        step = observe("look", both=False, outputs={key: key for key in reads})
        return self.run(name, {"look": {"reads": reads}}, {"s": step}, kind, attention, **options).step("s").results["outputs"]

    def readings(self, name, kind, batch_size=None):
        reads = {component: {"site": place(component, LAYERS[name])} for component in present(name)}
        return self.once(("readings", name, kind, batch_size), lambda: self.outputs(name, reads, kind, batch_size=batch_size))

    def plain(self, name, text, edits=None):
        return Plain(self.model(name), name, edits or {}).run(self.ids(name, text))

    def plain_base(self, name, row):
        return self.once(("plain", name, row), lambda: self.plain(name, ROWS[row]["input"]))

    def plain_counterfactual(self, name, row):
        return self.once(("counterfactual", name, row), lambda: self.plain(name, ROWS[row]["counterfactual_inputs"][0]))


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices of 64 columns: threads would only wait for each other
    yield Zoo(tmp_path_factory.mktemp("zoo"))
    torch.set_num_threads(n_threads)


def place(component, layers, **more):
    return site(component, None if component in WHOLE else list(layers), **more)


def row_of(made, row):
    """Returns one row of an unreduced output, (layer, token, feature); of a pattern (layer, token, head · key), without padding."""
    if made.pattern is None:
        return made.value.row(row)
    return made.pattern.row(made.value, row).transpose(1, 2).flatten(2)


def truth(zoo, name, row, component):
    """Returns what plain PyTorch finds on a row's own tokens, (layer, token, feature)."""
    found = zoo.plain_base(name, row)
    layers = (None,) if component in WHOLE else LAYERS[name]
    return torch.stack([found[component, layer] for layer in layers])[:, zoo.n_prefix(name) :]


# the rows


@pytest.mark.parametrize("name", CONFIGS)
def test_the_rows_are_ragged_and_pair_by_pair_of_one_length(zoo, name):
    lengths = [[len(zoo.ids(name, text)) for text in (row["input"], row["counterfactual_inputs"][0])] for row in ROWS]
    assert all(base == counterfactual for base, counterfactual in lengths)
    assert len({base for base, _ in lengths}) > 2
    for row in ROWS:
        base, counterfactual = (zoo.ids(name, text)[-2:] for text in (row["input"], row["counterfactual_inputs"][0]))
        assert all(a != b for a, b in zip(base, counterfactual, strict=True))


def test_every_family_and_every_component_has_its_cell():
    from causalab_mini.model.families import FAMILIES

    assert {model_type for model_type, _ in CONFIGS.values()} == set(FAMILIES)
    for name in CONFIGS:
        assert set(present(name)) | set(REASONS[name]) == set(COMPONENTS)
        assert not set(present(name)) & set(REASONS[name])


# reads


@pytest.mark.parametrize(**ids_of_cells(CELLS))
def test_a_read_in_a_ragged_batch_is_that_of_plain_hooks_on_the_row_alone(zoo, name, component):
    made = zoo.readings(name, "nnterp")[component]
    for row, _ in enumerate(ROWS):
        assert_near(row_of(made, row).float(), truth(zoo, name, row, component).float(), f"row {row}")


@pytest.mark.parametrize(**ids_of_cells(CELLS))
def test_a_read_of_a_row_alone_is_that_of_plain_hooks_to_the_bit(zoo, name, component):
    made = zoo.readings(name, "nnterp", 1)[component]
    for row, _ in enumerate(ROWS):
        assert torch.equal(row_of(made, row).float(), truth(zoo, name, row, component).float()), f"row {row}"


@pytest.mark.parametrize("name", CONFIGS)
def test_both_engines_read_the_same_to_the_bit(zoo, name):
    one, other = (zoo.readings(name, kind) for kind in KINDS)
    for component in present(name):
        assert one[component].value.lengths == other[component].value.lengths
        assert torch.equal(one[component].value.data, other[component].value.data), component


@pytest.mark.parametrize("name", CONFIGS)
def test_a_read_is_as_wide_as_the_config_says(zoo, name):
    facts = zoo.engine(name).facts
    for component, made in zoo.readings(name, "nnterp").items():
        if component not in PATTERNS:
            assert made.value.data.shape[-1] == facts.width(component), component


# what names mean


def parts_of(zoo, name, row):
    return {component: row_of(made, row) for component, made in zoo.readings(name, "nnterp").items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_stream_is_the_sum_of_what_is_added_to_it(zoo, name):
    for row, _ in enumerate(ROWS):
        found = parts_of(zoo, name, row)
        middle = found["block_input"] + found["attention_output"]
        if "block_mid" in found:
            assert_near(found["block_mid"], middle)
        assert_near(found["block_output"], middle + found["mlp_output"])
        assert torch.equal(found["block_input"][1:], found["block_output"][:-1])


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "falcon-two-norms"])
def test_the_mlp_is_given_its_norm(zoo, name):
    found = parts_of(zoo, name, 1)
    given = "mlp_input_norm" if "mlp_input_norm" in found else {"olmo2": "block_mid"}.get(name, "attention_input_norm")
    assert torch.equal(found["mlp_input"], found[given])


@pytest.mark.parametrize("name", CONFIGS)
def test_head_and_norm_make_the_logits_of_the_last_stream(zoo, name):
    """And `lm_head` is not `logits` where those are capped, which large numbers show."""
    from causalab_mini.engine.engines.base import BaseEngine

    found = parts_of(zoo, name, 1)
    engine = zoo.engine(name)
    assert isinstance(engine, BaseEngine)
    if LAYERS[name][-1] == 1:
        assert_near(engine.unembed(found["block_output"][-1]), found["logits"][0])
    cap = {"gemma2": 3.0}.get(name)
    assert torch.equal(found["logits"], found["lm_head"]) == (cap is None)
    if cap is not None:
        assert float(found["lm_head"].abs().max()) > 2 * cap
        assert torch.equal(found["logits"], torch.tanh(found["lm_head"] / cap) * cap)


@pytest.mark.parametrize("name", INTERFACED)
def test_the_pattern_is_the_one_that_transformers_gives_out(zoo, name):
    alone = zoo.readings(name, "nnterp", 1)["attention_probs"]
    for row, entry in enumerate(ROWS):
        with torch.no_grad():
            given = zoo.model(name)(torch.tensor([zoo.ids(name, entry["input"])]), output_attentions=True).attentions
        expected = torch.stack([given[layer][0] for layer in LAYERS[name]])[:, :, zoo.n_prefix(name) :]
        assert torch.equal(alone.pattern.row(alone.value, row), expected)
        batched = zoo.readings(name, "nnterp")["attention_probs"]
        assert_near(batched.pattern.row(batched.value, row), expected)


WINDOWS = {"gemma2": {0: 4}, "gemma3_text": {0: 4}, "mistral": {0: 5, 1: 5}}
SCALES = {"gemma2": 24**-0.5, "gemma3_text": 24**-0.5, "opt": 1.0}  # OPT scales its queries itself, before


@pytest.mark.parametrize("name", INTERFACED)
def test_queries_keys_and_values_make_scores_pattern_and_result(zoo, name):
    """softmax(q·kᵀ · scale, soft-capped, masked) is the pattern; the pattern times the values is z, and z is what the projection is given."""
    n_heads, n_prefix = 4, zoo.n_prefix(name)
    keys_too = {component: {"site": place(component, LAYERS[name]), "pos": {"all": True}} for component in INTERIOR[:3]}
    bos = {component: {**read, "pos": {"all": True, "scope": {"segment": "prefix"}}} for component, read in keys_too.items()}
    prefix = zoo.outputs(name, bos)
    for row, _ in enumerate(ROWS):
        found = parts_of(zoo, name, row)
        whole = {component: torch.cat([prefix[component].value.row(row), found[component]], dim=1) for component in INTERIOR[:3]}
        for entry, layer in enumerate(LAYERS[name]):
            n_tokens = whole["attention_query"].shape[1]
            query, key, value = (
                whole[component][entry].unflatten(-1, (n, -1)).transpose(0, 1)
                for component, n in zip(INTERIOR[:3], (n_heads, *[zoo.engine(name).facts.n_kv_heads] * 2), strict=True)
            )
            key, value = (part.repeat_interleave(n_heads // len(part), dim=0) for part in (key, value))
            scores = query @ key.transpose(1, 2) * SCALES.get(name, query.shape[-1] ** -0.5)
            if name == "gemma2":
                scores = 2.0 * torch.tanh(scores / 2.0)
            distance = torch.arange(n_tokens)[:, None] - torch.arange(n_tokens)
            hidden = (distance < 0) | (distance >= WINDOWS.get(name, {}).get(layer, n_tokens))
            scores = scores.masked_fill(hidden, torch.finfo(torch.float32).min)
            pattern = scores.softmax(dim=-1)
            n = n_tokens - n_prefix

            def per_head(component, entry=entry, n=n, n_tokens=n_tokens, found=found):
                return found[component][entry].reshape(n, n_heads, n_tokens).transpose(0, 1)

            assert_near(per_head("attention_scores"), scores[:, n_prefix:])
            assert_near(per_head("attention_probs"), pattern[:, n_prefix:])
            assert_near(per_head("attention_scores").softmax(dim=-1), per_head("attention_probs"))
            assert_near(found["attention_z"][entry], (pattern @ value).transpose(0, 1)[n_prefix:].flatten(1))
        assert torch.equal(found["attention_z"], found["attention_premix"])


@pytest.mark.parametrize("name", [name for name in CONFIGS if "router_logits" in present(name)])
def test_the_router_scores_what_the_mlp_is_given(zoo, name):
    for row, _ in enumerate(ROWS):
        found = parts_of(zoo, name, row)
        gates = [zoo.model(name).get_submodule(f"model.layers.{layer}.mlp.gate") for layer in LAYERS[name]]
        with torch.no_grad():
            expected = torch.stack([torch.nn.functional.linear(x, gate.weight) for x, gate in zip(found["mlp_input"], gates, strict=True)])
        assert_near(found["router_logits"], expected)
        assert_near(found["router_probs"], expected.softmax(dim=-1))


# writes


def features_of(component, heads, keys, flat, kv_heads):
    """Returns the features of some heads, or of some heads' keys, of a place as plain PyTorch sees it."""
    n_heads = kv_heads if component in ("attention_key", "attention_value") else 4
    size = flat.shape[1] // n_heads
    return [head * size + part for head in heads for part in (range(size) if keys is None else keys)]


def interventions_of(name, layer):
    """Returns a swap of the last two tokens at every place, and at every place with heads one of two of them: by a constant, at one token."""
    made = {"unpatched": {"reads": {"z": {"site": LOGITS, "pos": ALL, "input": "base"}}}}
    reads = {
        "z": {"site": LOGITS, "pos": ALL, "model": "patched"},
        "stream": {"site": site("block_output", -1), "pos": ALL, "model": "patched"},
    }
    models = {"patched": {"input": "base", "writes": ["patch"]}}
    for component in present(name):
        if not COMPONENTS[component].is_writable:
            continue
        where = {"site": place(component, [layer]), "pos": {"last": 2}}
        source = {**where, "input": "counterfactual"}
        patch = {**where, "mechanism": "swap", "operand": "source"}
        made[component] = {"reads": {"source": source, **reads}, "writes": {"patch": patch}, "models": models}
        if component in PER_HEAD:
            heads = [1] if component in ("attention_key", "attention_value") else [2, 0]
            patch = {"site": place(component, [layer], heads=heads), "pos": -2, "mechanism": "swap", "operand": 0.5}
            if component in PATTERNS:
                patch["keys"] = {"span": [0, 2]}
            made[f"{component}-heads"] = {"reads": reads, "writes": {"patch": patch}, "models": models}
    return made


def written(zoo, name, layer, kind, batch_size=None):
    def run():
        interventions = interventions_of(name, layer)
        outputs = {f"{key}_{read}": f"{key}/{read}" for key, entry in interventions.items() for read in entry["reads"] if read != "source"}
        steps = {"s": observe(list(interventions), outputs=outputs)}
        return zoo.run(name, interventions, steps, kind, batch_size=batch_size).step("s").results["outputs"]

    return zoo.once(("written", name, layer, kind, batch_size), run)


def plainly_written(zoo, name, component, in_layer, row, narrows):
    """Returns logits and last stream of a row of which plain PyTorch wrote the same."""

    def make():
        layer = None if component in WHOLE else in_layer
        n_prefix, kv_heads = zoo.n_prefix(name), zoo.engine(name).facts.n_kv_heads
        source = zoo.plain_counterfactual(name, row)[component, layer][-2:]

        def edit(flat):
            if not narrows:
                flat[-2:] = source
                return flat
            keys = [n_prefix, n_prefix + 1] if component in PATTERNS else None
            heads = [1] if component in ("attention_key", "attention_value") else [2, 0]
            flat[-2, features_of(component, heads, keys, flat, kv_heads)] = 0.5
            return flat

        return zoo.plain(name, ROWS[row]["input"], {(component, layer): edit})

    found = zoo.once(("plainly written", name, component, in_layer, row, narrows), make)
    last = ("block_output", 1)
    return found["logits", None][zoo.n_prefix(name) :], found[last][zoo.n_prefix(name) :] if last in found else None


def assert_written(zoo, name, component, layer, narrows):
    key = f"{component}-heads" if narrows else component
    batched, alone = written(zoo, name, layer, "nnterp"), written(zoo, name, layer, "hooks", 1)
    for row, _ in enumerate(ROWS):
        logits, stream = plainly_written(zoo, name, component, layer, row, narrows)
        assert_near(row_of(batched[f"{key}_z"], row)[0], logits, f"row {row}")
        assert torch.equal(row_of(alone[f"{key}_z"], row)[0], logits), f"row {row}"
        if stream is not None:
            assert_near(row_of(batched[f"{key}_stream"], row)[0], stream, f"row {row}")
        unpatched = row_of(batched["unpatched_z"], row)[0]
        assert float((row_of(batched[f"{key}_z"], row)[0] - unpatched).abs().max()) > 1e-3, f"row {row}: nothing changed"


@pytest.mark.parametrize(**ids_of_cells(WRITABLE))
def test_a_write_changes_the_model_as_plain_hooks_do(zoo, name, component):
    for layer in LAYERS[name]:
        assert_written(zoo, name, component, layer, narrows=False)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_checks_of_a_run_hold_in_every_family(zoo, name):
    """Rows under hooks of their own, which give a model neither mask nor positions, say what the batch says."""
    chosen = ("unpatched", "embeddings", "attention_premix-heads", "block_mid", "mlp_output", "block_output", "ln_final")
    interventions = {key: entry for key, entry in interventions_of(name, LAYERS[name][-1]).items() if key in chosen}
    run = zoo.run(name, interventions, {"s": observe(list(interventions))}, "hooks", check="sample", rewrites=())
    checks = run.step("s").results["checks"]
    assert [check.text for check in checks if check.status == "failed"] == []
    assert [check.data["by"] for check in checks if check.name == "rows"] == ["hooks"] * len(interventions)


@pytest.mark.parametrize(**ids_of_cells([cell for cell in WRITABLE if cell[1] in PER_HEAD]))
def test_a_write_at_some_heads_changes_them_alone(zoo, name, component):
    for layer in LAYERS[name]:
        assert_written(zoo, name, component, layer, narrows=True)


# refusals


@pytest.mark.parametrize(**ids_of_cells(REFUSED))
def test_a_place_that_a_family_has_not_is_refused_with_its_reason(zoo, name, component):
    from causalab_mini.errors import PlanError

    where = {"site": place(component, LAYERS[name][:1]), "pos": -1}
    for intervention in ({"reads": {"v": {**where, "input": "base"}}}, patching({**where, "mechanism": "swap", "operand": 0.5})):
        with pytest.raises(PlanError) as refusal:
            zoo.request(name, {"look": intervention}, {"s": observe("look", both=False)})
        assert f"got `{component}`: {REASONS[name][component]}" in str(refusal.value)


def refused(zoo, name, interventions, **more):
    """Returns why a document is refused once its rows are known."""
    from causalab_mini.errors import PlanError
    from causalab_mini.schedule.located import build_schedule

    def scheduled():
        request = zoo.request(name, interventions, {"s": observe(list(interventions), **more)})
        return [build_schedule(request, point) for point in request.points]

    with pytest.raises(PlanError) as refusal:
        scheduled()
    return str(refusal.value)


def test_layers_that_are_built_differently_have_their_own_places(zoo):
    reads = {component: {"site": site(component, 1)} for component in (*ROUTER, "block_mid")}
    found = zoo.outputs("qwen2_moe-dense", reads)
    assert found["router_logits"].value.data.shape[-1] == 4
    assert_near(found["router_logits"].value.data.softmax(dim=-1), found["router_probs"].value.data)
    for component, layers, reason in [
        ("router_logits", "all", NO_EXPERTS),
        ("mlp_activation", [0, 1], EXPERTS),
        ("mlp_neuron_output", -1, EXPERTS),
    ]:
        look = {"reads": {"v": {"site": site(component, layers), "pos": -1, "input": "base"}}}
        assert f"`{component}`: {reason}" in refused(zoo, "qwen2_moe-dense", {"look": look}, both=False)


# bands of layers


@pytest.mark.parametrize("component", INTERIOR)
def test_a_band_of_layers_is_read_and_written_as_each_of_them(zoo, component):
    """In listed order, and `all` is every layer; one swap at all of them is what plain PyTorch makes of both."""
    found = zoo.outputs("llama", {"up": {"site": site(component, [1, 0])}, "every": {"site": site(component, "all")}})
    assert torch.equal(found["up"].value.data.flip(0), found["every"].value.data)
    assert torch.equal(found["every"].value.data, zoo.readings("llama", "nnterp")[component].value.data)
    where = {"site": site(component, "all"), "pos": -1}
    patch = patching({**where, "mechanism": "swap", "operand": "source"}, where)
    made = zoo.run("llama", {"p": patch}, {"s": observe("p", outputs={"z": "prediction"})}).step("s").results["outputs"]["z"]
    for row, entry in enumerate(ROWS):
        source = zoo.plain_counterfactual("llama", row)

        def edited(flat, layer, source=source):
            flat[-1] = source[component, layer][-1]
            return flat

        edits = {(component, layer): partial(edited, layer=layer) for layer in (0, 1)}
        assert_near(row_of(made, row)[0], zoo.plain("llama", entry["input"], edits)["logits", None][-1:])


# keys and knockout

GROUPED = ("gpt2", "llama", "gemma2")
"""Learned positions; grouped keys; soft-caps and windows."""


def entity_of(zoo, name, row):
    """Returns where the tokens of a row's entity stand among its ids, by the tokenizer's offsets."""
    return list(tokens_of(zoo.engine(name).tokenizer, ROWS[row]["input"], ROWS[row]["entity"]))


@pytest.mark.parametrize("component", PATTERNS)
@pytest.mark.parametrize("name", GROUPED)
def test_keys_and_heads_narrow_a_pattern(zoo, name, component):
    reads = {
        "entity": {"site": site(component, 1, heads=[3, 1]), "pos": {"last": 2}, "keys": ENTITY},
        "bos": {"site": site(component, 1), "pos": -1, "keys": {"index": 0, "scope": {"segment": "prefix"}}},
        "two": {"site": site(component, [0, 1], heads=[2]), "pos": -1, "keys": {"last": 2}},
    }
    found = zoo.outputs(name, reads)
    for row, entry in enumerate(ROWS):
        n_tokens = len(zoo.ids(name, entry["input"]))
        plain = torch.stack([zoo.plain_base(name, row)[component, layer].reshape(n_tokens, 4, n_tokens) for layer in (0, 1)])
        plain, keys = plain.transpose(1, 2), entity_of(zoo, name, row)
        assert_near(found["entity"].pattern.row(found["entity"].value, row), plain[1:, [3, 1], -2:][..., keys])
        assert_near(found["bos"].pattern.row(found["bos"].value, row), plain[1:, :, -1:, :1])
        assert_near(found["two"].pattern.row(found["two"].value, row), plain[:, 2:3, -1:, -2:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("component", PATTERNS)
@pytest.mark.parametrize("name", GROUPED)
def test_a_write_at_anchored_keys_is_made_at_them_alone(zoo, name, component, kind):
    patch = {"site": site(component, 1, heads=[1]), "pos": -1, "keys": ENTITY, "mechanism": "add_scaled", "operand": 0.25}
    step = observe("p", both=False, outputs={"z": "prediction"})
    made = zoo.run(name, {"p": patching(patch)}, {"s": step}, kind).step("s").results["outputs"]["z"]
    for row, entry in enumerate(ROWS):
        n_tokens, keys = len(zoo.ids(name, entry["input"])), entity_of(zoo, name, row)

        def edit(flat, features=[n_tokens + key for key in keys]):  # noqa: B006
            flat[-1, features] += 0.25
            return flat

        assert_near(row_of(made, row)[0], zoo.plain(name, entry["input"], {(component, 1): edit})["logits", None][-1:])


def test_a_row_without_its_anchored_keys_is_read_as_ineligible_and_is_not_written(zoo):
    keys = {"all": True, "scope": {"text": "so"}}
    look = {
        "reads": {"v": {"site": site("attention_probs", 0), "pos": -1, "keys": keys, "input": "base"}},
        "metrics": {"m": {"kind": "value", "of": "v", "how": "sum"}},
    }
    step = zoo.run("llama", {"p": look}, {"s": observe("p", both=False, outputs={"v": "v"})}).step("s")
    reasons = [row["reason"] for row in step.results["metrics"]["m"]]
    assert reasons == ["alignment_missing", "", "alignment_missing", "alignment_ambiguous"]
    assert [row["value"] is None for row in step.results["metrics"]["m"]] == [True, False, True, True]
    assert step.results["outputs"]["v"].value.lengths == (0, 1, 0, 0)
    said = refused(zoo, "llama", {"p": cutting("attention_scores", keys=keys)}, both=False)
    assert "interventions.p.writes.patch.keys: expected something to write on every row, got nothing on row 0 (alignment_missing)" in said
    look["reads"]["v"]["keys"] = {"index": 7}
    said = refused(zoo, "llama", {"p": look}, both=False)
    assert "interventions.p.reads.v.keys: expected a position that every row has, got none on row 0 (out_of_range)" in said


def cutting(component, layers="all", keys=ENTITY, pos=-1, **more):
    """Returns an intervention that cuts edges, and reads logits, scores and the pattern that is left."""
    reads = {
        "z": {"site": LOGITS, "pos": ALL, "model": "patched"},
        "left": {"site": site("attention_probs", "all"), "pos": ALL, "model": "patched"},
        "scores": {"site": site("attention_scores", "all"), "pos": ALL, "model": "patched"},
    }
    patch = {"site": site(component, layers, **more), "pos": pos, "mechanism": "knockout"} | ({} if keys is None else {"keys": keys})
    return patching(patch, reads=reads)


@pytest.mark.parametrize("name", INTERFACED)
def test_knockout_on_scores_and_on_the_pattern_is_a_mask_of_minus_infinity_in_transformers(zoo, name):
    interventions = {component: cutting(component, keys={"span": [0, 2]}) for component in PATTERNS}
    outputs = {f"{component}_{read}": f"{component}/{read}" for component in PATTERNS for read in ("z", "left")}
    run = zoo.run(name, interventions, {"s": observe(list(interventions), both=False, outputs=outputs)}, check="full").step("s")
    assert {check.status for check in run.results["checks"]} == {"passed"}
    made, n_prefix = run.results["outputs"], zoo.n_prefix(name)
    for row, entry in enumerate(ROWS):
        ids = zoo.ids(name, entry["input"])
        distance = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
        masks = []
        for layer in (0, 1):
            hidden = (distance < 0) | (distance >= WINDOWS.get(name, {}).get(layer, len(ids)))
            mask = torch.zeros(len(ids), len(ids)).masked_fill(hidden, torch.finfo(torch.float32).min)
            mask[-1, n_prefix : n_prefix + 2] = float("-inf")
            masks.append(mask[None, None])
        mask = {"sliding_attention": masks[0], "full_attention": masks[1]} if name.startswith("gemma") else masks[0]
        with torch.no_grad():
            plain = zoo.model(name)(
                torch.tensor([ids]), attention_mask=mask, position_ids=torch.arange(len(ids))[None], output_attentions=True
            )
        pattern = torch.stack([layer[0] for layer in plain.attentions])[:, :, n_prefix:]
        assert float(pattern[:, :, -1, n_prefix : n_prefix + 2].abs().max()) == 0.0
        for component in PATTERNS:
            assert_near(row_of(made[f"{component}_z"], row)[0], plain.logits[0, n_prefix:], component)
            assert_near(made[f"{component}_left"].pattern.row(made[f"{component}_left"].value, row), pattern, component)


@pytest.mark.parametrize("component", PATTERNS)
@pytest.mark.parametrize("name", GROUPED)
def test_knockout_of_anchored_keys_in_one_head_of_one_layer_leaves_the_others(zoo, name, component):
    cut = cutting(component, 0, heads=[2], pos={"last": 1})
    run = zoo.run(name, {"p": cut}, {"s": observe("p", both=False, outputs={"z": "z"})}, check="full").step("s")
    assert {check.status for check in run.results["checks"]} == {"passed"}
    for row, entry in enumerate(ROWS):
        n_tokens, keys = len(zoo.ids(name, entry["input"])), entity_of(zoo, name, row)

        def edit(flat, features=[2 * n_tokens + key for key in keys]):  # noqa: B006
            flat[-1, features] = float("-inf")
            return flat

        expected = zoo.plain(name, entry["input"], {("attention_scores", 0): edit})["logits", None]
        assert_near(row_of(run.results["outputs"]["z"], row)[0], expected[zoo.n_prefix(name) :])


def test_what_a_pattern_cannot_take_is_refused(zoo):
    def refusal(intervention, **more):
        return refused(zoo, "llama", {"p": intervention}, **more)

    where = {"site": site("attention_probs", 0), "pos": -1}
    swap = {**where, "mechanism": "swap", "operand": "source"}
    operand = "interventions.p.writes.patch.operand: expected"
    assert f"{operand} an operand from rows of as many tokens (patterns have them as axis)" in refusal(
        patching(swap, where), rows="crossed"
    )
    assert f"{operand} as many keys as are written, row by row" in refusal(patching(swap, {**where, "keys": {"last": 2}}))
    said = refusal(cutting("attention_scores", keys=None), both=False)
    assert "interventions.p.writes.patch.keys: expected a key that is left to attend to, for every query" in said
    narrow = {"site": site("attention_probs", 0, heads=[0, 1]), "pos": -1, "input": "base"}
    outputs = {"some": "some", "all": "all", "rest": {"difference": ["all", "some"]}}
    said = refusal({"reads": {"some": narrow, "all": {**narrow, "site": site("attention_probs", 0)}}}, both=False, outputs=outputs)
    assert "steps.s.outputs.rest.difference[1]: expected keys of 4 heads, got `some` with keys of 2 heads" in said
    look = {"reads": {"some": {**narrow, "keys": {"last": 2}}, "all": narrow}}
    said = refusal(look, both=False, outputs=outputs)
    assert "steps.s.outputs.rest.difference[1]: expected as many keys as `all`, row by row, got another number in `some`" in said
    look["metrics"] = {"angle": {"kind": "cosine", "of": "all", "against": "some"}}
    said = refusal(look, both=False)
    assert "interventions.p.metrics.angle.against: expected as many keys as `all` has, row by row, got another number in `some`" in said


@pytest.mark.parametrize("component", PER_HEAD)
def test_heads_and_units_are_counted_by_query_or_by_key(zoo, component):
    n_heads = 2 if component in ("attention_key", "attention_value") else 4
    look = {"reads": {"v": {"site": site(component, 0, heads=[n_heads]), "pos": -1, "input": "base"}}}
    assert f"interventions.p.reads.v.site.heads: expected below {n_heads}" in refused(zoo, "llama", {"p": look}, both=False)
    if component in PATTERNS:
        return
    whole = zoo.readings("llama", "nnterp")[component].value.data[1]
    found = zoo.outputs(
        "llama", {"heads": {"site": site(component, 1, heads=[1, 0])}, "units": {"site": site(component, 1, units=[17, 3])}}
    )
    assert torch.equal(found["heads"].value.data[0], torch.cat([whole[:, 16:32], whole[:, :16]], dim=1))
    assert torch.equal(found["units"].value.data[0], whole[:, [17, 3]])
    look["reads"]["v"]["site"] = site(component, 0, units=[16 * n_heads])
    assert f"interventions.p.reads.v.site.units: expected below {16 * n_heads}" in refused(zoo, "llama", {"p": look}, both=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_knockout_that_leaves_no_key_is_refused_when_it_is_made(zoo, kind):
    """What positions alone don't tell: a sliding window hides the rest, or several writes cut all of it together."""
    from causalab_mini.errors import RunError

    two = cutting("attention_probs", 1, ALL)
    two["writes"]["bos"] = {**two["writes"]["patch"], "keys": {"index": 0, "scope": {"segment": "prefix"}}}
    two["models"]["patched"]["writes"] = ["patch", "bos"]
    for intervention, write, layer in ((cutting("attention_scores", 0, ALL), "patch", 0), (two, "bos", 1)):
        with pytest.raises(RunError) as refusal:
            zoo.run("gemma2", {"p": intervention}, {"s": observe("p", both=False)}, kind)
        assert f"writes.{write}.keys: expected a key that is left to attend to in every head of layer {layer}" in str(refusal.value)


# scores, files


@pytest.mark.parametrize("how", ["sum", "mean", "norm", "max"])
@pytest.mark.parametrize("component", PATTERNS)
def test_a_value_of_a_pattern_sees_no_padding(zoo, component, how):
    """Rows have other numbers of keys, and scores below zero here; the attention that falls on some keys is a probability."""
    reads = {
        "one": {"site": site(component, 1, heads=[2]), "pos": -1, "model": "patched"},
        "two": {"site": site(component, [0, 1], heads=[2, 0]), "pos": -1, "keys": ENTITY, "model": "patched"},
    }
    lower = {"site": site("attention_scores", "all"), "pos": -1, "mechanism": "add_scaled", "operand": -8.0}  # which no pattern shows
    below = 8.0 if component == "attention_scores" else 0.0
    metrics = {read: {"kind": "value", "of": read, "how": how} for read in reads}
    step = zoo.run("llama", {"p": patching(lower, reads=reads, metrics=metrics)}, {"s": observe("p", both=False)}).step("s")
    tables = step.results["metrics"]
    number = {"sum": torch.sum, "mean": torch.mean, "norm": torch.linalg.vector_norm, "max": torch.max}[how]
    assert {row["unit"] for table in tables.values() for row in table} == {
        "probability" if component == "attention_probs" else "activation"
    }
    for row, entry in enumerate(ROWS):
        n_tokens, keys = len(zoo.ids("llama", entry["input"])), entity_of(zoo, "llama", row)
        plain = [zoo.plain_base("llama", row)[component, layer][-1].reshape(4, n_tokens) - below for layer in (0, 1)]
        assert tables["one"][row]["value"] == pytest.approx(float(number(plain[1][2])), rel=1e-6, abs=1e-5)
        for layer in (0, 1):
            line = next(line for line in tables["two"] if (line["layer"], line["example_id"]) == (layer, str(row)))
            assert line["value"] == pytest.approx(float(number(plain[layer][[2, 0]][:, keys])), rel=1e-6, abs=1e-5)


def test_patterns_are_saved_row_by_row_without_padding(zoo, tmp_path):
    from safetensors import safe_open

    from causalab_mini import load

    reads = {
        "whole": {"site": site("attention_probs", 1), "pos": ALL, "input": "base"},
        "some": {"site": site("attention_scores", [1, 0], heads=[2, 0]), "pos": {"last": 2}, "keys": ENTITY, "input": "base"},
        "other": {"site": site("attention_probs", 1), "pos": ALL, "input": "counterfactual"},
        "missed": {"site": site("attention_probs", 1), "pos": -1, "keys": {"all": True, "scope": {"text": "If"}}, "input": "base"},
    }
    outputs = {**dict(zip(reads, reads, strict=True)), "change": {"difference": ["other", "whole"]}}
    saves = [{"value": name, "file_path": f"{name}.safetensors"} for name in outputs]
    write_table(tmp_path / "data", "rows", [{**row, "example_id": f"row {index}"} for index, row in enumerate(ROWS)])
    raw = document({"look": {"reads": reads}}, {"s": observe("look", outputs=outputs, saves=saves)}, str(zoo.checkpoint("llama")))
    raw["model"]["attn_implementation"] = "eager"
    load(write_document(tmp_path, raw)).run(tmp_path / "out")

    def saved(name):
        with safe_open(tmp_path / "out" / f"{name}.safetensors", "pt") as file:
            assert file.metadata()["kind"] == "patterns"
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping

    found = {name: saved(name) for name in outputs}
    assert set(found["missed"]) == {"missed/row 1"}
    for name in ("whole", "some", "change"):
        assert set(found[name]) == {f"{name}/row {row}" for row, _ in enumerate(ROWS)}
    for row, entry in enumerate(ROWS):
        n_tokens, keys = len(zoo.ids("llama", entry["input"])), entity_of(zoo, "llama", row)
        base, other = (
            {key: flat.reshape(n_tokens, 4, n_tokens).transpose(0, 1) for key, flat in run.items() if key[0] in PATTERNS}
            for run in (zoo.plain_base("llama", row), zoo.plain_counterfactual("llama", row))
        )
        assert_near(found["whole"][f"whole/row {row}"], base["attention_probs", 1][:, zoo.n_prefix("llama") :])
        some = torch.stack([base["attention_scores", layer][[2, 0], -2:][..., keys] for layer in (1, 0)])
        assert_near(found["some"][f"some/row {row}"], some)
        change = (other["attention_probs", 1] - base["attention_probs", 1])[:, zoo.n_prefix("llama") :]
        assert_near(found["change"][f"change/row {row}"], change)


@pytest.mark.parametrize(
    "output", [{"reduce": "mean"}, {"reduce": "std"}, {"reduce": "pca", "k": 1}, {"reduce": "mean_by", "by": "entity"}]
)
@pytest.mark.parametrize("component", PATTERNS)
def test_a_pattern_is_not_reduced_over_rows(component, output):
    """Their axes are the tokens of each row."""
    from causalab_mini.errors import DocumentError
    from causalab_mini.plan.load import load_raw

    look = {"reads": {"v": {"site": site(component, 0), "pos": -1, "input": "base"}}}
    raw = document({"look": look}, {"s": observe("look", both=False, outputs={"o": {"read": "v", **output}})})
    with pytest.raises(DocumentError) as refusal:
        load_raw(raw)
    assert f"steps.s.outputs.o.reduce: expected `none` at `{component}`, got `{output['reduce']}`" in str(refusal.value)


# sdpa


WITH_SDPA = [name for name in INTERFACED if name != "gemma2"]


@pytest.mark.parametrize("name", WITH_SDPA)
def test_places_inside_attention_are_the_same_under_sdpa(zoo, name):
    """And a write there does the same, and stopping there changes nothing."""
    components = ("attention_query", "attention_key", "attention_value", "attention_z", "attention_premix")
    reads = {component: {"site": place(component, LAYERS[name])} for component in components}
    unstopped = zoo.outputs(name, {"attention_premix": reads["attention_premix"]}, "hooks", "sdpa")["attention_premix"].value.data
    for kind in KINDS:
        found = zoo.outputs(name, reads, kind, "sdpa")
        assert torch.equal(found["attention_z"].value.data, found["attention_premix"].value.data)
        assert torch.equal(found["attention_premix"].value.data, unstopped)
        for component in components:
            assert_near(found[component].value.data, zoo.readings(name, kind)[component].value.data, component)
    interventions = {
        component: patching({"site": site(component, 0, heads=[1]), "pos": -2, "mechanism": "swap", "operand": 0.5})
        for component in components
    }
    step = observe(list(interventions), both=False, outputs={component: f"{component}/prediction" for component in components})
    eager, sdpa = (zoo.run(name, interventions, {"s": step}, "nnterp", kind).step("s").results["outputs"] for kind in ("eager", "sdpa"))
    for component in components:
        assert_near(sdpa[component].value.data, eager[component].value.data)


@pytest.mark.parametrize("name", CONFIGS)
def test_sdpa_is_refused_where_transformers_has_none(zoo, name):
    from causalab_mini.errors import ModelError
    from causalab_mini.model.facts import WITHOUT_SDPA

    model_type, _ = CONFIGS[name]
    assert type(zoo.model(name))._supports_sdpa == (model_type not in WITHOUT_SDPA)
    if model_type in WITHOUT_SDPA:
        with pytest.raises(ModelError, match=rf"model.attn_implementation: expected `eager`, or null, got `sdpa`, .* `{model_type}`"):
            zoo.engine(name, attention="sdpa")


@pytest.mark.parametrize("attention", ["sdpa", None])
@pytest.mark.parametrize("component", PATTERNS)
def test_scores_and_pattern_exist_under_eager_alone(zoo, component, attention):
    from causalab_mini.errors import PlanError

    look = {"reads": {"v": {"site": site(component, 0), "pos": -1, "input": "base"}}}
    with pytest.raises(PlanError, match=rf"`{component}`: it exists only where `attn_implementation` is `eager`"):
        zoo.request("llama", {"p": look}, {"s": observe("p", both=False)}, attention=attention)


# the model is left as it was


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_fails_leaves_the_model_as_it_was(zoo, kind, monkeypatch):
    from transformers.models.mixtral import modeling_mixtral as source

    from causalab_mini.engine import interiors

    reads = {component: {"site": site(component, 1)} for component in (*INTERIOR, *ROUTER, "block_output")}
    before = zoo.outputs("mixtral", reads, kind)

    def fails(*arguments, **more):
        raise ZeroDivisionError

    gate = zoo.engine("mixtral", kind).loaded().get_submodule("model.layers.1.mlp.gate")
    hooks = len(gate._forward_hooks), len(gate._forward_pre_hooks)
    for owner, part in ((source, "eager_attention_forward"), (torch, "topk")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, part, fails)
            with pytest.raises(ZeroDivisionError):
                zoo.outputs("mixtral", reads, kind)
        assert zoo.engine("mixtral", kind).loaded().config._attn_implementation == "eager"
        assert not interiors._stops
        assert (len(gate._forward_hooks), len(gate._forward_pre_hooks)) == hooks
        after = zoo.outputs("mixtral", reads, kind)
        assert all(torch.equal(after[name].value.data, before[name].value.data) for name in reads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["before", "after", "never"])
def test_attention_that_is_computed_in_another_way_is_refused(zoo, kind, where, monkeypatch):
    from transformers.models.llama import modeling_llama as source

    from causalab_mini.errors import RunError

    own = source.eager_attention_forward

    def other(module, query, *more, **options):
        if where == "never":
            with monkeypatch.context() as patched:
                patched.setattr(torch.nn.functional, "softmax", lambda scores, dim, dtype: scores.log_softmax(dim, dtype).exp())
                return own(module, query, *more, **options)
        if where == "before":
            torch.softmax(query.new_zeros(3), dim=-1)
        result = own(module, query, *more, **options)
        result[1].softmax(dim=-1)
        return result

    monkeypatch.setattr(source, "eager_attention_forward", other)
    with pytest.raises(RunError) as refusal:
        zoo.outputs("llama", {"v": {"site": site("attention_probs", 1)}, "z": {"site": LOGITS}}, kind)
    assert type(refusal.value) is RunError
    got = {"before": "softmax 1 of 1 lines", "after": "softmax 2 of 4 × 4 × 10 lines", "never": "none"}[where]
    assert str(refusal.value).startswith(f"error: expected one softmax in `LlamaAttention`, of 4 × 4 × 10 lines, got {got}")


# the page


def test_every_cell_of_the_page_is_one_that_is_proved_here(zoo):
    """The page is made of small configs in the package; they make the same families as the configs that are run here."""
    from causalab_mini.model.families import FAMILIES
    from causalab_mini.model.reference import COLUMNS, components_page

    for name, column in COLUMNS.items():
        proved, written_down = FAMILIES[CONFIGS[name][0]](zoo.engine(name).checkpoint.config), column.family()
        assert (proved.places, proved.is_parallel) == (written_down.places, written_down.is_parallel), name
    table = components_page().partition("| component |")[2].partition("\n\n")[0]
    header, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in f"| component |{table}".splitlines()]
    notes = dict(line.split(". ", 1) for line in components_page().splitlines() if line[:1].isdigit())
    cells = {}
    for component, heads, *found in lines:
        component = component.split("`")[1]
        assert heads == (COMPONENTS[component].heads or "–")
        for names, cell in zip(header[2:], found, strict=True):
            cells |= {(name.strip("`"), component): cell for name in names.split("<br>")}
    assert set(cells) == {*CELLS, *REFUSED}
    for (name, component), cell in cells.items():
        if (name, component) in CELLS:
            assert cell == ("read/write" if (name, component) in WRITABLE else "read")
        else:
            assert notes[cell.strip("()")].lower().startswith(REASONS[name][component].lower())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("component", ["block_output", "attention_premix"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_grid_of_layers_and_positions_is_the_same_with_all_rewrites(zoo, name, component, kind):
    """Resumed at layers and tokens, joined on the way: what a block is handed beside its stream is another thing in every family."""
    place = {"site": site(component, {"sweep": list(LAYERS[name]), "as": "layer"}), "pos": {"sweep": [-1, -2, {"index": 2}], "as": "pos"}}
    intervention = patching({**place, "mechanism": "swap", "operand": "source"}, place)
    steps = {"s": observe("p", outputs={"prediction": "prediction"})}
    one = zoo.run(name, {"p": intervention}, steps, kind, rewrites=())
    other = zoo.run(name, {"p": intervention}, steps, kind)
    for before, after in zip(one.points, other.points, strict=True):
        values = [point.step("s").results["outputs"]["prediction"].value for point in (before, after)]
        assert values[0].lengths == values[1].lengths
        assert_near(values[1].data, values[0].data, before.label)


# gradients


@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, "eager" if CONFIGS[name][0] in WITHOUT_SDPA else "sdpa") for name in CONFIGS), ("llama", "eager"), ("gpt2", "eager")],
)
def test_a_fit_is_the_same_with_what_stays_run_once(zoo, name, attention):
    """Gradients pass through every family's upper layers alone, after the same model has been run without any."""
    from causalab_mini.plan.build import build_request

    stream = site("block_output", 0)
    both = {"site": stream, "pos": -2, "featurizer": "turn"}
    reads = {
        "target": {"site": LOGITS, "pos": -1, "input": "counterfactual"},
        "prediction": {"site": LOGITS, "pos": -1, "model": "patched"},
    }
    swap = patching(
        {**both, "mechanism": "swap", "operand": "source"},
        both,
        reads=reads,
        metrics={"far": {"kind": "kl", "of": "prediction", "against": "target"}},
    )
    fit = {
        "kind": "fit",
        "rows": {"base": "rows", "counterfactual": "rows"},
        "interventions": "swap",
        "params": ["turn"],
        "objective": [[1, "far"]],
        "epochs": 2,
        "pairs": 3,
        "optimizer": {"name": "adam", "lr": 0.05},
        "eval": {"rows": {"base": "judge", "counterfactual": "judge"}},
    }
    look = observe("look", both=False)
    raw = document(
        {"swap": swap, "look": {"reads": {"x": {"site": stream, "pos": -1, "input": "base"}}}},
        {"see": look, "train": fit},
        str(zoo.checkpoint(name)),
    )
    raw["featurizers"] = {"turn": {"kind": "subspace", "k": 3, "seed": 1}}
    raw["model"]["attn_implementation"] = attention
    curves = []
    for kind, options in (("nnterp", {}), ("nnterp", {"rewrites": ()}), ("hooks", {})):
        engine = zoo.engine(name, kind, attention)
        run = engine.execute(build_request(raw, zoo.folder / "data", engine), check="off", **options)
        curves.append([line["objective"] for line in run.step("train").results["train/loss"]])
        (moved,) = run.step("train").results["checks"][-1].data["largest_gradient"].values()
        assert moved > 0
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[2] == pytest.approx(curves[0], rel=1e-5)


# while a model generates


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_recorded_while_a_family_generates_is_that_of_plain_hooks_on_the_finished_row(zoo, name):
    from causalab_mini.probing.run import probe
    from causalab_mini.probing.spec import parse_dict

    n, kind = 5, {"probe_type": "record", "probe_kind": "trajectory"}
    points = [
        {"name": f"{component} {at}", "tensor_type": component, "position": at, **kind}
        | ({} if component in WHOLE else {"layers": list(LAYERS[name])})
        for component in present(name)
        for at in ("prompt[*]", "generated[*]")
    ]
    spec = parse_dict({"version": "1", "extraction_points": points})
    recording = probe(spec, zoo.engine(name, "hooks"), [row["input"] for row in ROWS], max_new_tokens=n, ignore_eos=True)
    for row, prompt in enumerate(recording.request.prompts):
        ids = (*prompt.ids, *recording.generated[row].ids)
        assert len(ids) == len(prompt.ids) + n
        found = Plain(zoo.model(name), name).run(ids)
        greedy = found["logits", None][len(prompt.ids) - 1 : -1].clone()
        greedy[:, CONFIGS[name][1]["eos_token_id"]] = -torch.inf
        assert recording.generated[row].ids == tuple(greedy.argmax(dim=-1).tolist())
        for component in present(name):
            for layer in (None,) if component in WHOLE else LAYERS[name]:
                expected = found[component, layer]
                parts = []
                for at in ("prompt[*]", "generated[*]"):
                    lines = recording.requests[f"{component} {at}"] == row
                    part = recording.tensor(f"{component} {at}", layer)[lines]
                    if component in PATTERNS:
                        part = torch.nn.functional.pad(part, (0, max(0, len(ids) - part.shape[-1])))[..., : len(ids)]
                    parts.append(part.float())
                own = torch.cat(parts)
                if component in PATTERNS:  # keys behind the token itself are none of its own
                    behind = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)[:, None]
                    expected = expected.unflatten(1, (-1, len(ids))).masked_fill(behind, 0.0)
                assert_near(own, expected.float(), f"{component} at {layer}, row {row}")
