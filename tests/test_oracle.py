"""An oracle that nobody here wrote: the `glassllm` package's own NumPy forward, against our reads on a Llama made of its weights."""

import pytest
import torch
from authoring import document, observe, patching, site

pytestmark = pytest.mark.tiny

TEXTS = ("Alice was beginning to get very tired of sitting", "The cat", "“What is the use of a book,” thought Alice, “without pictures?”")
PLACES = {
    "embeddings": "embed",
    "attention_output": "attn.out",
    "mlp_output": "ffn.down",
    "block_output": "resid.ffn",
    "ln_final": "norm.final",
    "logits": "logits",
}
"""Steps of its tracer by our components."""


@pytest.fixture(scope="module")
def glass():
    import glassllm

    return glassllm.load_pretrained("en")


@pytest.fixture(scope="module")
def folder(glass, tmp_path_factory):
    """Returns a Llama folder of its weights: matrices are transposed, and the rotation is rearranged from neighbours to halves."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    model, words = glass
    own = model.cfg
    config = LlamaConfig(
        vocab_size=own.vocab_size,
        hidden_size=own.d_model,
        intermediate_size=model.blocks[0].ffn.W1.data.shape[1],
        num_hidden_layers=own.n_layers,
        num_attention_heads=own.n_heads,
        num_key_value_heads=own.n_kv_heads,
        max_position_embeddings=own.max_len,
        rms_norm_eps=own.eps,
        rope_parameters={"rope_type": "default", "rope_theta": own.rope_base},
        tie_word_embeddings=True,
    )
    llama = LlamaForCausalLM(config)

    def matrix(parameter):
        return torch.from_numpy(parameter.data.copy()).T.contiguous()

    def rotated(parameter, n_heads):
        weight = matrix(parameter)
        return weight.reshape(n_heads, own.d_model // own.n_heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)

    state = {"model.embed_tokens.weight": torch.from_numpy(model.E.data.copy()), "lm_head.weight": torch.from_numpy(model.E.data.copy())}
    state["model.norm.weight"] = torch.from_numpy(model.norm_f.gamma.data.copy())
    for layer, block in enumerate(model.blocks):
        state |= {
            f"model.layers.{layer}.{name}": value
            for name, value in {
                "self_attn.q_proj.weight": rotated(block.attn.W_Q, own.n_heads),
                "self_attn.k_proj.weight": rotated(block.attn.W_K, own.n_kv_heads),
                "self_attn.v_proj.weight": matrix(block.attn.W_V),
                "self_attn.o_proj.weight": matrix(block.attn.W_O),
                "mlp.gate_proj.weight": matrix(block.ffn.W1),
                "mlp.up_proj.weight": matrix(block.ffn.W3),
                "mlp.down_proj.weight": matrix(block.ffn.W2),
                "input_layernorm.weight": torch.from_numpy(block.norm1.gamma.data.copy()),
                "post_attention_layernorm.weight": torch.from_numpy(block.norm2.gamma.data.copy()),
            }.items()
        }
    llama.load_state_dict(state)
    path = tmp_path_factory.mktemp("glass")
    llama.save_pretrained(path)
    tokenizer = Tokenizer(models.BPE(vocab=words.token_to_id, merges=words.merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|▁*[^▁\n]+|▁+"), "isolated")
    tokenizer.decoder = decoders.Replace("▁", " ")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=["nnterp", "hooks"])
def engine(request, folder):
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.engine.engines.nnterp import NNterpEngine
    from causalab_mini.plan.spec import ModelSpec

    return {"nnterp": NNterpEngine, "hooks": HooksEngine}[request.param].load(ModelSpec(key=str(folder), dtype="fp32"), device_map="cpu")


def run(engine, raw, rows, tmp_path):
    from authoring import write_table

    from causalab_mini.plan.build import build_request

    write_table(tmp_path, "rows", rows)
    return engine.execute(build_request(raw, tmp_path, engine), check="off").step("s").results["outputs"]


def traced(model, ids):
    import glassllm

    tracer = glassllm.Tracer()
    with glassllm.no_grad():
        model(ids, trace=tracer)
    return tracer


def assert_near(found, expected):
    """Equal to 1e-5 of the largest number: NumPy and PyTorch sum in other orders, and NumPy partly in fp64."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())))


def test_its_texts_are_cut_as_it_cuts_them(glass, engine):
    _, words = glass
    for text in TEXTS:
        assert engine.tokenizer(text)["input_ids"] == words.encode(text)


def test_every_read_of_a_ragged_batch_is_the_oracles(glass, engine, tmp_path):
    model, words = glass
    per_layer = {"attention_output", "mlp_output", "block_output"}
    reads = {name: {"site": site(name, "all" if name in per_layer else None), "pos": {"all": True}, "input": "base"} for name in PLACES}
    raw = document({"look": {"reads": reads}}, {"s": observe("look", both=False, outputs={name: name for name in PLACES})})
    made = run(engine, raw | {"roles": {"base": {"field": "input"}}}, [{"input": text} for text in TEXTS], tmp_path)
    lengths = made["logits"].value.lengths
    assert len(set(lengths)) == len(TEXTS)
    for row, text in enumerate(TEXTS):
        tracer = traced(model, words.encode(text))
        for name, step in PLACES.items():
            start = sum(lengths[:row])
            found = made[name].value.data[:, start : start + lengths[row]]
            for entry in range(len(found)):
                expected = torch.from_numpy(tracer.get(step, entry if name in per_layer else None).value)
                assert_near(found[entry], expected)


def test_a_patch_of_the_stream_is_the_oracles(glass, engine, tmp_path):
    """Its own blocks from the written layer on, fed with its own stream of both prompts."""
    import glassllm

    model, words = glass
    base, counterfactual, layer = TEXTS[0], TEXTS[2], 1
    place = {"site": site("block_output", layer), "pos": -1}
    raw = document(
        {"p": patching({**place, "mechanism": "swap", "operand": "source"}, place)}, {"s": observe("p", outputs={"z": "prediction"})}
    )
    row = {"input": base, "counterfactual_inputs": [counterfactual]}
    made = run(engine, raw, [row, {"input": TEXTS[1], "counterfactual_inputs": [base]}], tmp_path)
    stream = traced(model, words.encode(base)).get("resid.ffn", layer).value.copy()
    stream[-1] = traced(model, words.encode(counterfactual)).get("resid.ffn", layer).value[-1]
    with glassllm.no_grad():
        x = glassllm.Tensor(stream[None])
        for later in range(layer + 1, len(model.blocks)):
            x = model.blocks[later](x, later, None, None, 0)
        expected = model.norm_f(x).data[0, -1] @ model.E.data.T
    assert_near(made["z"].value.data.reshape(2, -1)[0], torch.from_numpy(expected))
