"""Every family × every component: a read and a write that are those of plain PyTorch, or a refusal with its reason."""

import pytest
import torch
from authoring import LOGITS, document, observe, pair, site, write_table
from conftest import save_random, small_tokenizer
from families_by_hand import CONFIGS, INTERFACED, INTERIOR, LAYERS, PATTERNS, PER_HEAD, ROUTER, WHOLE, Plain, present

from causalab_mini.model.components import COMPONENTS

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

    def request(self, name, interventions, steps, kind="nnterp", attention="eager", rows="data"):
        from causalab_mini.plan.build import build_request

        raw = document(interventions, steps, str(self.checkpoint(name)))
        raw["model"]["attn_implementation"] = attention
        return build_request(raw, self.folder / rows, self.engine(name, kind, attention))

    def run(self, name, interventions, steps, kind="nnterp", attention="eager", rows="data", **options):
        request = self.request(name, interventions, steps, kind, attention, rows)
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
    return Zoo(tmp_path_factory.mktemp("zoo"))


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


@pytest.mark.parametrize("name", CONFIGS)
def test_the_mlp_is_given_its_norm(zoo, name):
    found = parts_of(zoo, name, 1)
    given = (
        "mlp_input_norm"
        if "mlp_input_norm" in found
        else {"falcon-two-norms": None, "olmo2": "block_mid"}.get(name, "attention_input_norm")
    )
    assert given is None or torch.equal(found["mlp_input"], found[given])


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


def interventions_of(name):
    """Returns a swap of the last two tokens at every place, and at every place with heads one of two of them: by a constant, at one token."""
    made = {"unpatched": {"reads": {"z": {"site": LOGITS, "pos": ALL, "input": "base"}}}}
    layer = LAYERS[name][:1]
    reads = {
        "z": {"site": LOGITS, "pos": ALL, "model": "patched"},
        "stream": {"site": site("block_output", -1), "pos": ALL, "model": "patched"},
    }
    models = {"patched": {"input": "base", "writes": ["patch"]}}
    for component in present(name):
        if not COMPONENTS[component].is_writable:
            continue
        where = {"site": place(component, layer), "pos": {"last": 2}}
        source = {**where, "input": "counterfactual"}
        patch = {**where, "mechanism": "swap", "operand": "source"}
        made[component] = {"reads": {"source": source, **reads}, "writes": {"patch": patch}, "models": models}
        if component in PER_HEAD:
            heads = [1] if component in ("attention_key", "attention_value") else [2, 0]
            patch = {"site": place(component, layer, heads=heads), "pos": -2, "mechanism": "swap", "operand": 0.5}
            if component in PATTERNS:
                patch["keys"] = {"span": [0, 2]}
            made[f"{component}-heads"] = {"reads": reads, "writes": {"patch": patch}, "models": models}
    return made


def written(zoo, name, kind, batch_size=None):
    def run():
        interventions = interventions_of(name)
        outputs = {f"{key}_{read}": f"{key}/{read}" for key, entry in interventions.items() for read in entry["reads"] if read != "source"}
        steps = {"s": observe(list(interventions), outputs=outputs)}
        return zoo.run(name, interventions, steps, kind, batch_size=batch_size).step("s").results["outputs"]

    return zoo.once(("written", name, kind, batch_size), run)


def plainly_written(zoo, name, component, row, narrows):
    """Returns logits and last stream of a row of which plain PyTorch wrote the same."""

    def make():
        layer = None if component in WHOLE else LAYERS[name][0]
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

    found = zoo.once(("plainly written", name, component, row, narrows), make)
    last = ("block_output", 1)
    return found["logits", None][zoo.n_prefix(name) :], found[last][zoo.n_prefix(name) :] if last in found else None


def assert_written(zoo, name, component, narrows):
    key = f"{component}-heads" if narrows else component
    batched, alone = written(zoo, name, "nnterp"), written(zoo, name, "hooks", 1)
    for row, _ in enumerate(ROWS):
        logits, stream = plainly_written(zoo, name, component, row, narrows)
        assert_near(row_of(batched[f"{key}_z"], row)[0], logits, f"row {row}")
        assert torch.equal(row_of(alone[f"{key}_z"], row)[0], logits), f"row {row}"
        if stream is not None:
            assert_near(row_of(batched[f"{key}_stream"], row)[0], stream, f"row {row}")
        unpatched = row_of(batched["unpatched_z"], row)[0]
        assert float((row_of(batched[f"{key}_z"], row)[0] - unpatched).abs().max()) > 1e-3, f"row {row}: nothing changed"


@pytest.mark.parametrize(**ids_of_cells(WRITABLE))
def test_a_write_changes_the_model_as_plain_hooks_do(zoo, name, component):
    assert_written(zoo, name, component, narrows=False)


@pytest.mark.parametrize(**ids_of_cells([cell for cell in WRITABLE if cell[1] in PER_HEAD]))
def test_a_write_at_some_heads_changes_them_alone(zoo, name, component):
    assert_written(zoo, name, component, narrows=True)


# refusals


@pytest.mark.parametrize(**ids_of_cells(REFUSED))
def test_a_place_that_a_family_has_not_is_refused_with_its_reason(zoo, name, component):
    from causalab_mini.errors import PlanError

    for part in ({"reads": {"v": {"site": place(component, LAYERS[name][:1]), "pos": -1, "input": "base"}}},):
        with pytest.raises(PlanError) as refusal:
            zoo.request(name, {"look": part}, {"s": observe("look", both=False)})
        assert f"got `{component}`: {REASONS[name][component]}" in str(refusal.value)
