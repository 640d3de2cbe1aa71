"""What other people's files can't do here: run code, hang, leave their folders, use up the machine, call somebody, give secrets away."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from authoring import LOGITS, document, observe, patching, site, write_document, write_table

from causalab_mini.data.opening import PICKLES
from causalab_mini.errors import DataError, ModelError
from causalab_mini.model.source import BUNDLED

pytestmark = pytest.mark.tiny

LLAMA = BUNDLED / "successor-llama"
CLEAN = {"site": LOGITS, "pos": -1, "input": "base"}
STREAM = site("block_output", 1)


class Bomb:
    """An object whose pickle makes a file when it is opened."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return open, (str(self.flag), "w")


@pytest.fixture
def flag(tmp_path):
    """Returns a file that must not be there at the end."""
    path = tmp_path / "code-has-run"
    yield path
    assert not path.exists()


@pytest.fixture
def home(tmp_path, rows_of):
    write_table(tmp_path / "data", "rows", rows_of("successor-llama")[:2])
    return tmp_path


@pytest.fixture
def copied(tmp_path):
    """Returns a function that copies a bundled model, with other values in its JSON files."""

    def copy(name="model", **changes):
        folder = tmp_path / name
        shutil.copytree(LLAMA, folder)
        for file, values in changes.items():
            path = folder / f"{file}.json"
            path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")
        return folder

    return copy


def bomb(path, flag):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(Bomb(flag)))
    return path


def looking(key="bundled:successor-llama", **more):
    metrics = {"right": {"kind": "match", "of": "z", "expected": "base_answer"}}
    step = observe("look", both=False, saves=[{"value": "right", "file_path": "right.json"}])
    return document({"look": {"reads": {"z": CLEAN}, "metrics": metrics}}, {"s": step}, key) | more


def featurized(featurizer):
    write = {"site": STREAM, "pos": -1, "mechanism": "swap", "operand": "source", "featurizer": "f"}
    source = {"site": STREAM, "pos": -1, "featurizer": "f"}
    metrics = {"right": {"kind": "match", "of": "prediction", "expected": "base_answer"}}
    step = observe("p", saves=[{"value": "right", "file_path": "right.json"}])
    return document({"p": patching(write, source, metrics=metrics)}, {"s": step}) | {"featurizers": {"f": featurizer}}


def spec(**point):
    entry = {"name": "p", "tensor_type": "block_output", "layers": 1, "position": "prompt[-1]", **point}
    return {"version": "1", "extraction_points": [entry]}


def engines():
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    return {"hooks": HooksEngine, "nnterp": NNterpEngine}


def model_spec(key, revision=None):
    from causalab_mini.plan.spec import ModelSpec

    return ModelSpec(key=str(key), dtype="fp32", **({"revision": revision} if revision else {}))


def said(refusal):
    return refusal.value.text()


# 1. nothing is ever unpickled


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "weights.pkl", "weights.npy"])
def test_a_folder_whose_weights_are_a_pickle_is_refused_before_anything_is_opened(copied, flag, name):
    folder = copied()
    (folder / "model.safetensors").unlink()
    bomb(folder / name, flag)
    (folder / "config.json").write_text("{ not read", encoding="utf-8")
    for engine in engines().values():
        with pytest.raises(ModelError, match="expected weights as safetensors") as refusal:
            engine.load(model_spec(folder))
        assert f"with `{name}`: a pickle, which may run code when it is opened" in said(refusal)


def test_shards_that_are_pickles_are_refused_whichever_index_names_them(copied, flag):
    folder = copied()
    (folder / "model.safetensors").unlink()
    bomb(folder / "pytorch_model-00001-of-00001.bin", flag)
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "pytorch_model-00001-of-00001.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelError, match="a pickle"):
        engines()["hooks"].load(model_spec(folder))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelError, match=r"expected shards that are safetensors files, got `pytorch_model-00001-of-00001\.bin`"):
        engines()["hooks"].load(model_spec(folder))


@pytest.mark.parametrize("shard", ["../other.safetensors", "/tmp/other.safetensors", "a/../../b.safetensors", "..\\b.safetensors"])
def test_an_index_names_no_shards_elsewhere(copied, shard):
    folder = copied()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}), encoding="utf-8")
    with pytest.raises(ModelError, match="expected shards beside their index"):
        engines()["hooks"].load(model_spec(folder))


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "[" * 100_000])
def test_an_index_that_is_none_is_refused(copied, text):
    folder = copied()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match="expected an index of shards"):
        engines()["hooks"].load(model_spec(folder))


def test_a_config_that_names_a_pickle_as_its_weights_is_refused(copied, flag):
    folder = copied(config={"transformers_weights": "adapter_model.bin"})
    bomb(folder / "adapter_model.bin", flag)
    with pytest.raises(ModelError, match=r"got `adapter_model\.bin` as `transformers_weights`"):
        engines()["hooks"].load(model_spec(folder))


def test_an_adapter_is_refused(copied, flag):
    folder = copied()
    bomb(folder / "adapter_model.bin", flag)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "somebody/else"}), encoding="utf-8")
    with pytest.raises(ModelError, match="expected a checkpoint that is whole by itself"):
        engines()["hooks"].load(model_spec(folder))


def test_a_snapshot_of_the_hub_that_has_only_a_pickle_is_refused(hub, flag):
    revision = "0123456789012345678901234567890123456789"
    home = hub / "models--somebody--pickled"
    shutil.copytree(LLAMA, home / "snapshots" / revision)
    (home / "snapshots" / revision / "model.safetensors").unlink()
    bomb(home / "snapshots" / revision / "pytorch_model.bin", flag)
    with pytest.raises(ModelError, match=r"with `pytorch_model\.bin`: a pickle"):
        engines()["nnterp"].load(model_spec("somebody/pickled", revision))


@pytest.mark.parametrize("kind", ["hooks", "nnterp"])
def test_transformers_is_told_to_take_nothing_but_safetensors(copied, flag, monkeypatch, kind):
    from causalab_mini.engine import loading

    folder = copied()
    (folder / "model.safetensors").unlink()
    bomb(folder / "pytorch_model.bin", flag)
    monkeypatch.setattr(loading, "folder_problem", lambda folder, key: None)
    engine = engines()[kind].load(model_spec(folder), device_map="cpu")
    with pytest.raises(ModelError, match=r"no file named model\.safetensors"):
        engine.load_weights()


@pytest.mark.parametrize("name", ["model.pt", "folder/pytorch_model.bin", "weights.npy"])
def test_a_pickle_is_no_model_key(tmp_path, flag, name):
    path = bomb(tmp_path / name, flag)
    with pytest.raises(ModelError, match="a pickle, which may run code when it is opened"):
        engines()["hooks"].load(model_spec(path))


@pytest.mark.parametrize("suffix", PICKLES)
def test_a_featurizer_in_a_pickle_is_refused_by_its_name(command, home, flag, suffix):
    bomb(home / f"basis{suffix}", flag)
    path = write_document(home, featurized({"kind": "subspace", "file_path": f"basis{suffix}", "k": 2}))
    code, _, err = command("validate", path, "--no-model")
    assert code == 2
    assert f"featurizers.f.file_path: expected a safetensors file, got `basis{suffix}`, a pickle" in err


def test_a_pickle_by_another_name_is_refused_by_its_bytes(command, home, flag):
    bomb(home / "basis.safetensors", flag)
    code, _, err = command("explain", write_document(home, featurized({"kind": "subspace", "file_path": "basis.safetensors", "k": 2})))
    assert code == 2
    assert "expected a safetensors header" in err


@pytest.mark.parametrize("kind", ["linear_probe", "projection"])
@pytest.mark.parametrize("suffix", [".pt", ".pkl", ".npy", ".safetensors"])
def test_a_probe_in_a_pickle_is_refused(command, tmp_path, flag, kind, suffix):
    bomb(tmp_path / f"probe{suffix}", flag)
    path = tmp_path / "spec.json"
    arguments = {"file": f"probe{suffix}"} | ({} if kind == "linear_probe" else {"tensor": "x"})
    path.write_text(json.dumps(spec(probe_type=kind, probe_args=arguments, probe_kind="single_shot")), encoding="utf-8")
    given = ["--model", "bundled:successor-llama", "--prompt", "If today is", "--max-new-tokens", 2, "--out", tmp_path / "out"]
    code, _, err = command("probe", path, *given)
    assert code == 2, err
    assert "safetensors" in err
    assert suffix == ".safetensors" or "a pickle, which may run code" in err


def test_a_probe_file_in_a_pickle_is_refused_in_python(tmp_path, flag):
    from causalab_mini.ops.linear_probe import LinearProbe

    with pytest.raises(DataError, match="a pickle, which may run code"):
        LinearProbe.from_file(bomb(tmp_path / "probe.pt", flag))


@pytest.mark.parametrize("suffix", [".pt", ".pkl", ".safetensors"])
def test_results_are_read_back_without_unpickling(command, tmp_path, flag, suffix):
    from causalab_mini import open_run

    folder = tmp_path / "out"
    bomb(folder / f"value{suffix}", flag)
    saves = [{"value": "z", "file_path": f"value{suffix}"}]
    (folder / "document.json").write_text(json.dumps({"steps": {"s": {"saves": saves}}}), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"status": "finished", "digest": "d"}), encoding="utf-8")
    with pytest.raises(DataError, match="expected a safetensors file"):
        open_run(folder).tensors()
    code, _, err = command("show", folder, "value")
    assert (code, "Traceback" in err) == (2, False)


def test_no_module_can_unpickle():
    package = Path(__file__).resolve().parent.parent / "causalab_mini"
    words = ("torch.load", "import pickle", "joblib", "numpy.load", "np.load", "yaml.load", "yaml.safe_load", "shelve", "marshal")
    found = [(path.name, word) for path in package.rglob("*.py") for word in words if word in path.read_text(encoding="utf-8")]
    assert [one for one in found if one != ("opening.py", "joblib")] == []


# 2. a checkpoint's own code


EVIL = "open({flag!r}, 'w').close()\nfrom transformers import LlamaForCausalLM\nclass {name}(LlamaForCausalLM): pass\n"


@pytest.mark.parametrize("kind", ["hooks", "nnterp"])
@pytest.mark.parametrize("auto", ["AutoModelForCausalLM", "AutoConfig"])
def test_code_that_a_config_names_does_not_run_without_the_flag(copied, flag, kind, auto):
    folder = copied(config={"auto_map": {auto: "evil.Evil"}})
    (folder / "evil.py").write_text(EVIL.format(flag=str(flag), name="Evil"), encoding="utf-8")
    with pytest.raises(ModelError) as refusal:
        engines()[kind].load(model_spec(folder), device_map="cpu")
    assert f"got `evil.Evil` as `auto_map.{auto}` in `config.json`" in said(refusal)
    assert "hint: `--trust-remote-code` lets code that comes with the checkpoint run" in said(refusal)


@pytest.mark.parametrize("kind", ["hooks", "nnterp"])
def test_a_class_that_transformers_has_itself_is_its_own_and_not_the_checkpoints(copied, flag, kind):
    names = {"AutoConfig": "evil.LlamaConfig", "AutoModelForCausalLM": "evil.LlamaForCausalLM", "AutoModel": "evil.Evil"}
    folder = copied(config={"auto_map": names})
    (folder / "evil.py").write_text(EVIL.format(flag=str(flag), name="LlamaForCausalLM"), encoding="utf-8")
    engine = engines()[kind].load(model_spec(folder), device_map="cpu")
    assert type(engine.loaded()).__module__ == "transformers.models.llama.modeling_llama"


@pytest.mark.parametrize("names", [["evil.Evil", None], {"AutoTokenizer": ["evil.Evil", None]}, {"AutoTokenizer": [None, "evil.Evil"]}])
def test_code_of_a_tokenizer_does_not_run_and_nobody_is_asked(command, copied, flag, names, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    folder = copied(tokenizer_config={"auto_map": names, "tokenizer_class": "Evil"})
    (folder / "evil.py").write_text(EVIL.format(flag=str(flag), name="Evil"), encoding="utf-8")
    code, _, err = command("tokens", folder, "a text")
    assert code == 2
    assert "got `evil.Evil` as `auto_map.AutoTokenizer` in `tokenizer_config.json`" in err
    with pytest.raises(ModelError, match="auto_map"):
        engines()["hooks"].load(model_spec(folder))


def test_the_flag_lets_a_checkpoints_code_run(copied, tmp_path, monkeypatch):
    folder, mark = copied(config={"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}), tmp_path / "has-run"
    (folder / "evil.py").write_text(EVIL.format(flag=str(mark), name="Evil"), encoding="utf-8")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    engine = engines()["hooks"].load(model_spec(folder), device_map="cpu", trust_remote_code=True)
    assert type(engine.loaded()).__name__ == "Evil"
    assert mark.exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_config_fetches_no_kernel_from_elsewhere(copied, key):
    folder = copied(config={key: "somebody/kernel:attention"})
    with pytest.raises(ModelError, match=f"got `somebody/kernel:attention` as `{key}`"):
        engines()["hooks"].load(model_spec(folder))
