"""What other people's files can't do here: run code, hang, leave their folders, use up the machine, call somebody, give secrets away."""

import contextlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import socket
import time
import warnings
from pathlib import Path

import pytest
from authoring import LOGITS, document, observe, patching, site, write_document, write_table
from conftest import ROOT

from causalab_mini.data.opening import PICKLES
from causalab_mini.data.strict_json import sha256_of
from causalab_mini.errors import CausalabError, DataError, ModelError
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
    if isinstance(names, list):
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


@pytest.fixture(scope="module")
def _finished(tmp_path_factory, rows_of):
    """Returns the folder of a finished run, and of its document and rows, which is never changed."""
    from causalab_mini import load

    folder = tmp_path_factory.mktemp("finished")
    write_table(folder / "data", "rows", rows_of("successor-llama")[:2])
    load(write_document(folder, looking())).run(folder / "out")
    return folder


@pytest.fixture
def finished(_finished, home):
    """Returns a document and the folder of its finished run."""
    shutil.copytree(_finished, home, dirs_exist_ok=True)
    return home / "document.json", home / "out"


# 3. paths stay where they belong, and what is no file is not opened


@pytest.fixture
def _soon():
    """Ends a test that waits for what never comes."""

    def hang(number, frame):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


IRREGULAR = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "circle": lambda path: path.symlink_to(path.name),
}


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        *((verb, "pipe") for verb in ("validate", "explain", "fmt", "probe", "data", "features", "show", "model", "gguf", "probe-file")),
        *((verb, kind) for verb in ("validate", "data", "show") for kind in ("device", "folder", "circle")),
    ],
)
def test_what_is_no_file_is_refused_and_never_waited_for(command, home, kind, verb):
    make, given = IRREGULAR[kind], ["--model", "bundled:successor-llama", "--prompt", "x", "--max-new-tokens", 1, "--out", home / "out"]
    match verb:
        case "probe":
            make(home / "spec.yaml")
            arguments = ["probe", home / "spec.yaml", *given]
        case "probe-file":
            make(home / "p.safetensors")
            path = home / "spec.json"
            path.write_text(json.dumps(spec(probe_type="projection", probe_args={"file": "p.safetensors"}, probe_kind="single_shot")))
            arguments = ["probe", path, *given]
        case "data":
            make(home / "data" / "t.json")
            arguments = ["data", "t", "--data-root", home / "data"]
        case "features":
            make(home / "f.safetensors")
            arguments = ["explain", write_document(home, featurized({"kind": "subspace", "file_path": "f.safetensors", "k": 2}))]
        case "show":
            (home / "out").mkdir()
            make(home / "out" / "run.json")
            arguments = ["show", home / "out"]
        case "model":
            shutil.copytree(LLAMA, home / "model")
            (home / "model" / "config.json").unlink()
            make(home / "model" / "config.json")
            arguments = ["model", home / "model"]
        case "gguf":
            make(home / "m.gguf")
            arguments = ["model", home / "m.gguf"]
        case _:
            make(home / "d.json")
            arguments = [verb, home / "d.json"]
    code, out, err = command(*arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith(("error: ", "Usage: "))


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "pipe") for name in ("run.json", "summary.json", "places.json", ".points/point.json", ".lock")),
        *(("run.json", kind) for kind in ("device", "folder", "circle")),
        ("right.json", "folder"),
    ],
)
def test_a_run_hangs_on_nothing_in_its_folder(command, finished, name, kind):
    path, out = finished
    (out / name).unlink(missing_ok=True)
    IRREGULAR[kind](out / name)
    code, _, err = command("run", path, "--out", out, "--check", "off")
    assert code in (0, 1, 2)
    assert "Traceback" not in err
    assert (code == 0) != ("error: " in err)
    assert "Traceback" not in command("show", out).err


REFS = [
    "../rows",
    "/etc/passwd",
    "~/rows",
    "a/../../rows",
    "a//b",
    "./rows",
    "CON",
    "nul",
    "a/com1.x",
    "a\0b",
    "a" * 300,
    "/".join(["a" * 190] * 30),
]


@pytest.mark.parametrize("ref", REFS, ids=range(len(REFS)))
def test_a_ref_stays_below_the_data_root(command, home, ref):
    write_table(home, "rows", [{"input": "outside"}])
    code, out, err = command("data", ref, "--data-root", home / "data")
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert "expected a ref" in err


def test_links_below_the_data_root_stay_there(command, home):
    outside = write_table(home / "elsewhere", "rows", [{"input": "secret"}])
    (home / "data" / "file.json").symlink_to(outside)
    (home / "data" / "folder").symlink_to(outside.parent)
    for ref in ("file", "folder/rows"):
        code, out, err = command("data", ref, "--data-root", home / "data")
        assert (code, out) == (2, "")
        assert "expected a table below the data root, got a link to" in err


SAVES = [
    "../x",
    "/x",
    "~/x",
    "a/../x",
    "a//x",
    "./x",
    "CON",
    "nul .x",
    "a/COM¹.x",
    "conin$",
    "lpt1.tar",
    "a\0",
    "a\x7f",
    "a\\b",
    "c:x",
    "a" * 201,
]
OWN = [
    "run.json",
    "RUN.json",
    "run.json/x",
    "document.json",
    "summary.json",
    "places.json",
    "points.json",
    ".points/x",
    "earlier/x",
    "checkpoints/x",
    ".lock/x",
]


@pytest.mark.parametrize(
    "name",
    [
        *(f"{name}.json" for name in SAVES),
        *(name if name.endswith(".json") else f"{name}.json" for name in OWN),
        "/".join(["abc"] * 400) + ".json",
    ],
)
def test_a_save_stays_in_its_folder_and_off_the_runs_own_files(command, home, name):
    raw = looking()
    raw["steps"]["s"]["saves"][0]["file_path"] = name
    code, _, err = command("validate", write_document(home, raw), "--no-model")
    assert code == 2
    assert "steps.s.saves[0].file_path: expected a path inside the output folder" in err, err


@pytest.mark.parametrize("name", ["earlier", "checkpoints", "Con", "LPT1"])
def test_an_intervention_of_a_list_is_no_folder_of_the_runs_own(command, home, name):
    raw = looking()
    raw["interventions"] = {name: raw["interventions"]["look"], "b": raw["interventions"]["look"]}
    raw["steps"]["s"] = observe([name, "b"], both=False, saves=[{"value": f"{name}/right", "file_path": "right.json"}])
    code, _, err = command("validate", write_document(home, raw), "--no-model")
    assert code == 2
    assert "expected an intervention whose name can be that of a folder" in err


@pytest.mark.parametrize(
    "text", ["../f.safetensors", "/etc/passwd", "~/f.safetensors", "link/f.safetensors", "file.safetensors", "folder", "a" * 300]
)
def test_a_featurizers_file_is_below_the_documents_folder(home, text):
    from safetensors.torch import save_file
    from torch import eye

    from causalab_mini.errors import PlanError
    from causalab_mini.plan.featurizers import Files

    (home / "elsewhere").mkdir()
    (home / "work" / "folder").mkdir(parents=True)
    for outside in (home / "f.safetensors", home / "elsewhere" / "f.safetensors"):
        save_file({"basis": eye(64)[:, :2].contiguous()}, outside)
    (home / "work" / "link").symlink_to(home / "elsewhere")
    (home / "work" / "file.safetensors").symlink_to(home / "f.safetensors")
    (home / "work" / "folder" / "a.safetensors").symlink_to(home / "f.safetensors")
    with pytest.raises(PlanError, match=r"featurizers\.f\.file_path: expected a (safetensors )?file"):
        Files((home / "work",)).header(text, "featurizers.f.file_path")


@pytest.mark.parametrize(
    "key", ["a\0b", "a" * 300, "/".join(["a" * 190] * 30), "a" * 9000 + ".gguf", "~/model", "file:///model", "https://user:pass@host/model"]
)
def test_a_model_key_that_names_nothing_is_refused(command, home, key):
    code, out, err = command("explain", write_document(home, looking(key)))
    assert (code, out) == (2, "")
    assert "error: " in err
    assert "model.key: expected" in err
    assert "pass@" not in err


def everything_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", ["k=1", "earlier"])
def test_a_run_that_goes_on_writes_nothing_through_links(command, home, name):
    raw = looking()
    raw["interventions"]["look"]["reads"]["z"]["pos"] = {"sweep": [-1, -2], "as": "k"}
    path, out, elsewhere = write_document(home, raw), home / "out", home / "elsewhere"
    assert command("run", path, "--out", out, "--check", "off").code == 0
    labels = sorted(json.loads((out / "points.json").read_text(encoding="utf-8")))
    name = labels[1] if name == "k=1" else name
    elsewhere.mkdir()
    if (out / name).is_dir():
        elsewhere.rmdir()
        (out / name).rename(elsewhere)
    (out / name).symlink_to(elsewhere)
    before = everything_in(elsewhere)
    raw["steps"]["s"]["rows"]["base"] = "more"
    write_table(home / "data", "more", json.loads((home / "data" / "rows.json").read_text(encoding="utf-8"))[:1])
    code, _, err = command("run", write_document(home, raw), "--out", out, "--check", "off")
    assert everything_in(elsewhere) == before
    assert code in (0, 1)
    assert "Traceback" not in err
    assert code == 0 or "expected a place inside the results folder, got one behind a link that leads out of it" in err


@pytest.mark.parametrize("name", ["right.json", "run.json", ".lock"])
def test_a_file_that_is_a_link_is_replaced_and_not_followed(command, home, finished, name):
    (path, out), outside = finished, home / "outside.json"
    outside.write_bytes((out / name).read_bytes())
    before = outside.read_bytes()
    (out / name).unlink()
    (out / name).symlink_to(outside)
    code, _, err = command("run", path, "--out", out, "--check", "off", "--fresh")
    assert outside.read_bytes() == before
    assert (code, (out / name).is_symlink()) == ((2, True) if name == ".lock" else (0, False)), err


@pytest.mark.parametrize("name", ["right.json", "summary.json", "run.json", "places.json", "document.json"])
def test_results_are_not_read_through_links(command, home, finished, name):
    (_, out), outside = finished, home / "outside.json"
    (out / name).rename(outside)
    (out / name).symlink_to(outside)
    for arguments in (["show", out], ["export", out, home / "tables"]):
        code, _, err = command(*arguments)
        assert code == 2
        assert "expected a file in the results folder itself, got a link that leads out of it" in err


def test_labels_and_files_that_a_folder_claims_move_nothing_outside(command, home, finished):
    path, out = finished
    (home / "victim.json").write_text("{}", encoding="utf-8")
    (out / "points.json").write_text(json.dumps({"": {}, "../../victim": {}, "../victim.json": {}, "/etc": {}}), encoding="utf-8")
    known = json.loads((out / ".points" / "point.json").read_text(encoding="utf-8"))
    known["files"] = {"../victim.json": {"bytes": 2, "sha256": "x"}}
    known.pop("sha256")
    (out / ".points" / "point.json").write_text(json.dumps({**known, "sha256": sha256_of(known)}), encoding="utf-8")
    assert "Traceback" not in command("run", path, "--out", out, "--check", "off").err
    assert (home / "victim.json").read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize(
    "save",
    [
        {"value": "", "file_path": "victim.json"},
        {"value": "../z", "file_path": "victim.json"},
        {"value": "z", "file_path": "../victim.json"},
    ],
)
def test_a_document_in_a_results_folder_names_no_file_outside(tmp_path, save):
    from causalab_mini import open_run

    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "victim.json").write_text('[{"a": 1}]', encoding="utf-8")
    step = {"saves": [save], "interventions": ["..", "/", ""]}
    (folder / "document.json").write_text(json.dumps({"steps": {"s": step}}), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"status": "finished"}), encoding="utf-8")
    assert open_run(folder).files == ()


# 4. limits


def test_a_document_has_a_largest_size_depth_and_number(command, tmp_path):
    path = tmp_path / "d.json"
    for text, expected in (
        (" " * (16 * 1024 * 1024 + 1), "expected at most 16,777,216 bytes, got 16,777,217 bytes"),
        ("[" * 100_000, "expected at most 100 levels, got level 101"),
        ('{"a":' * 100_000, "expected at most 100 levels, got level 101"),
        ("9" * 100_000, "expected a number of at most 400 digits, got 100000 digits"),
        ("[1e999]", "expected a finite number, got `1e999`"),
        ("[-" + "1" * 401 + "]", "expected a number of at most 400 digits"),
        ("[NaN]", "expected a finite number"),
        ('"' + '\\"' * 500_000, "expected JSON (unterminated string"),
        ('"' * 100_000, "expected the end of the text"),
    ):
        path.write_text(text, encoding="utf-8")
        begun = time.monotonic()
        code, out, err = command("validate", path, "--no-model")
        assert (code, out) == (2, "")
        assert expected in err
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("option", ["--set", "--probe-arg", "--pos"])
def test_values_on_the_command_line_have_a_depth_too(command, tmp_path, option):
    deep = "[" * 100_000
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec(probe_type="norm_monitor", probe_kind="single_shot")), encoding="utf-8")
    given = ["--model", "bundled:successor-llama", "--prompt", "x", "--max-new-tokens", 1, "--out", tmp_path / "out"]
    arguments = {
        "--set": ["validate", write_document(tmp_path, looking()), "--no-model", "--set", f"steps.s.rows.base={deep}"],
        "--probe-arg": ["probe", path, *given, "--probe-arg", f"norm_monitor.max={deep}"],
        "--pos": ["tokens", "bundled:successor-llama", "--data", "weekdays/train", "--pos", deep],
    }
    code, _, err = command(*arguments[option])
    assert code == 2, err
    assert option in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ({"range": [0, 100_001]}, "expected at most 100,000 values, got 100,001"),
        ({"range": [0, 10**18]}, "of integers"),
        (list(range(100_001)), "expected at most 100,000 values, got 100,001"),
        ([*range(30_000), 7], "expected distinct values, got `7` twice"),
        (["[" * 50_000, "x"], "expected"),
    ],
)
def test_a_sweep_has_a_largest_number_of_points(command, tmp_path, sweep, expected):
    raw = looking()
    raw["interventions"]["look"]["reads"]["z"]["pos"] = {"sweep": sweep}
    begun = time.monotonic()
    code, _, err = command("validate", write_document(tmp_path, raw), "--no-model")
    assert (code, "Traceback" in err) == (2, False)
    assert expected in err
    assert time.monotonic() - begun < 10


def test_points_are_counted_over_all_axes_and_by_their_size(command, tmp_path):
    raw = looking()
    raw["interventions"]["look"]["reads"] = {f"z{n}": {**CLEAN, "pos": {"sweep": {"range": [-100, 0]}}} for n in range(3)}
    raw["interventions"]["look"]["metrics"]["right"]["of"] = "z0"
    code, _, err = command("validate", write_document(tmp_path, raw), "--no-model")
    assert (code, "expected at most 100,000 points, got 1,000,000" in err) == (2, True)
    del raw["interventions"]["look"]["reads"]["z2"]
    raw["header"] = {"description": "a" * 1_000_000}
    code, _, err = command("validate", write_document(tmp_path, raw), "--no-model")
    assert (code, "expected points of at most 2,000,000,000 bytes, all documents together, got 10,000 points of" in err) == (2, True)


@pytest.mark.parametrize(
    ("limit", "text", "suffix"),
    [
        ("MAX_TABLE_BYTES", '[{"a": "some text"}]', ".json"),
        ("MAX_ROWS", json.dumps([{"a": 1}] * 12), ".json"),
        ("MAX_ROWS", '{"a": 1}\n' * 12, ".jsonl"),
        ("MAX_ROWS", "a\n" + "1\n" * 12, ".csv"),
        ("MAX_CELLS", json.dumps([{"a": [1, 2, 3]}] * 4), ".json"),
        ("MAX_CELLS", "a,b,c\n" + "1,2,3\n" * 4, ".csv"),
        ("MAX_COLUMNS", json.dumps([dict.fromkeys(map(str, range(12)))]), ".json"),
        ("MAX_COLUMNS", ",".join(map(str, range(12))) + "\n", ".csv"),
    ],
)
def test_a_table_has_a_largest_size(command, tmp_path, monkeypatch, limit, text, suffix):
    from causalab_mini.data import table

    monkeypatch.setattr(table, limit, 10)
    (tmp_path / f"t{suffix}").write_text(text, encoding="utf-8")
    code, out, err = command("data", "t", "--data-root", tmp_path)
    assert (code, out) == (2, "")
    assert "expected at most " in err
    assert ("too_large" in command("data", "t", "--data-root", tmp_path, "--json").out) is True


@pytest.mark.parametrize("limit", ["MAX_TABLE_BYTES", "MAX_ROWS", "MAX_CELLS", "MAX_COLUMNS"])
def test_a_parquet_table_is_measured_before_it_is_unpacked(command, tmp_path, monkeypatch, limit):
    import pyarrow
    import pyarrow.parquet

    from causalab_mini.data import table

    columns = {str(n): ["the same text" * 1000] * 20 for n in range(20)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", compression="zstd")
    size = (tmp_path / "t.parquet").stat().st_size
    most = {"MAX_TABLE_BYTES": size + 1, "MAX_ROWS": 19, "MAX_CELLS": 399, "MAX_COLUMNS": 19}[limit]
    monkeypatch.setattr(table, limit, most)
    code, _, err = command("data", "t", "--data-root", tmp_path)
    assert (code, "expected at most" in err) == (2, True), err


def test_many_values_are_refused_as_they_are_counted(monkeypatch):
    from causalab_mini.data import strict_json

    monkeypatch.setattr(strict_json, "MAX_VALUES", 10)
    assert strict_json.parse_json("[1,2,3,4,5]", "f", DataError) == [1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="expected at most 10 values, got more"):
        strict_json.parse_json(json.dumps([[]] * 6), "f", DataError)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#" * (1024 * 1024 + 1), "expected at most 1,048,576 bytes"),
        (LAUGHS, "expected at most 100,000 values, got more"),
        ("a: &a x\nb: [" + "*a, " * 101 + "]", "expected at most 100 aliases, got more"),
        ("[" * 1000, "expected at most 100 levels, got level 101"),
        ("- " * 1000 + "x", "expected at most 100 levels, got level 101"),
        ("a: &a [*a]", "inside what it stands for"),
        ("version: " + "9" * 100_000, "expected a number of at most 400 digits"),
        ("version: !!python/object/apply:os.system [true]", "expected a value without a tag"),
        ("version: 1e999", "expected a finite number"),
    ],
)
def test_an_extraction_spec_has_a_largest_size_and_no_laughs(command, tmp_path, text, expected):
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    begun = time.monotonic()
    code, _, err = command("validate", path)
    assert (code, "Traceback" in err) == (2, False)
    assert expected in err, err
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("text", [LAUGHS, "[" * 5000, "!!python/object/apply:os.system [true]"])
def test_a_spec_in_a_results_folder_is_read_as_any_other(tmp_path, text):
    from causalab_mini import open_run

    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps({"status": "finished", "spec_sha256": "x"}), encoding="utf-8")
    with pytest.raises(CausalabError) as refusal:
        json.dumps(open_run(tmp_path).document["x"])
    assert "expected" in said(refusal)


@pytest.mark.parametrize("name", ["run.json", "summary.json", "points.json", "document.json", "right.json"])
def test_a_results_folder_that_is_too_deep_is_no_bug(command, finished, name):
    _, out = finished
    (out / name).write_text("[" * 100_000, encoding="utf-8")
    code, _, err = command("export", out, out.parent / "tables")
    assert (code, "Traceback" in err) == (2, False)


def test_a_pattern_that_takes_too_long_is_given_up_with_its_path(command, home):
    pattern = "(?:.?|.??){40}[#@]"
    rows = json.loads((home / "data" / "rows.json").read_text(encoding="utf-8"))
    write_table(home / "data", "rows", [row | {"pattern": pattern} for row in rows])
    raw = looking()
    raw["interventions"]["look"]["metrics"] = {"right": {"kind": "generated_match", "input": "base", "expected": "pattern", "how": "regex"}}
    raw["interventions"]["look"]["decode"] = 4
    begun = time.monotonic()
    code, _, err = command("run", write_document(home, raw), "--out", home / "out", "--check", "off")
    assert code == 1
    assert f"interventions.look.metrics.right.expected: expected a regular expression that takes 1 s at most, got `{pattern}` on row" in err
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 5000 + ")" * 5000, "a" * 10_001, "(?<=a*)b", "a**"])
def test_what_is_no_pattern_is_refused(pattern):
    from causalab_mini.data.patterns import PatternError, compiled

    with pytest.raises(PatternError):
        compiled(pattern)


@pytest.mark.parametrize("pattern", ["(a|a)*$", "(a|aa)+$", "^(a*a*)*b", r"(\w+\s?)*#"])
def test_backtracking_ends(pattern):
    from causalab_mini.data.patterns import PatternTimeoutError, is_in

    begun = time.monotonic()
    with contextlib.suppress(PatternTimeoutError):
        assert not is_in(pattern, "a" * 60 + "!", 0.1)
    assert time.monotonic() - begun < 3


PATTERNS = ["a{e}", "a{e<=1}", "[[:alpha:]]", "x{2}", "x{,2}y", "x{}", r"\{e}", "[]a]", "[^]a]", "[a[b]", "[a[]b]{1}", r"[\]x]{2}", "[{e}]"]
PATTERNS += [r"\N{DEGREE SIGN}", "(?P<a>x)(?P=a)", "a{e", "(?i)STRASSE", "^a$", r"a\Z", "[a&&b]", "(?s:.)", "a++b", "(?>a|ab)c", "(?<=a)b"]
TEXTS = [
    "a{e}",
    "a]",
    "b",
    "xx",
    "y",
    "x{}",
    "{e}",
    "]",
    "[b",
    "a[]b",
    "x]",
    "e",
    "°",
    "a{e",
    "straße",
    "STRASSE",
    "a\n",
    "&",
    "\n",
    "aab",
    "abc",
]


def test_patterns_mean_what_they_mean_to_python():
    from causalab_mini.data.patterns import is_in

    for pattern in PATTERNS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for text in TEXTS:
                assert is_in(pattern, text) == (re.search(pattern, text) is not None), (pattern, text)


def test_random_patterns_mean_what_they_mean_to_python():
    from causalab_mini.data.patterns import is_in

    chance, n = random.Random(7), 0
    while n < 1500:
        pattern = "".join(chance.choices("ab{}[],^$.*+?|()\\12e-:&~<>=!", k=chance.randint(1, 9)))
        text = "".join(chance.choices("ab{}[]1e-:&,^", k=chance.randint(0, 8)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = re.search(pattern, text) is not None
            except (re.error, OverflowError):
                continue
        assert is_in(pattern, text) == expected, (pattern, text)
        n += 1


def test_white_space_in_a_conversation_takes_no_time(checkpoints):
    from transformers import AutoTokenizer

    from causalab_mini.data.prompts import PromptError, make_prompt

    tokenizer = AutoTokenizer.from_pretrained(LLAMA)
    tokenizer.chat_template = "{% for turn in messages %} {{ turn['content'] }} {% endfor %}"
    begun = time.monotonic()
    with contextlib.suppress(PromptError):
        make_prompt(tokenizer, [{"role": "user", "content": " " * 40}] * 30 + [{"role": "user", "content": "é"}])
    assert time.monotonic() - begun < 5


def test_a_prompt_has_a_largest_length(command, home):
    write_table(home / "data", "rows", [{"input": "a" * 1_000_001, "base_answer": " x"}])
    code, _, err = command("explain", write_document(home, looking()))
    assert (code, "expected at most 1,000,000 characters, got 1,000,001" in err) == (2, True), err


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_000, 17 * 1024 * 1024, 1000])
def test_a_header_that_claims_too_much_is_refused_before_it_is_read(tmp_path, length):
    from causalab_mini.data.parameters import read_header

    (tmp_path / "f.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(DataError, match="expected a safetensors header"):
        read_header(tmp_path / "f.safetensors")


@pytest.mark.parametrize(
    ("name", "value"), [("num_hidden_layers", 10**12), ("vocab_size", 10**12), ("num_hidden_layers", 0), ("hidden_size", -1)]
)
def test_a_config_makes_no_model_of_any_size(command, copied, name, value):
    begun = time.monotonic()
    code, _, err = command("model", copied(config={name: value}))
    assert (code, "Traceback" in err) == (2, False)
    assert time.monotonic() - begun < 10


# 5. nobody is called


@pytest.fixture
def _alone(monkeypatch):
    """Makes every connection, and every look-up of a name, fail; nothing is told that it is offline."""
    import huggingface_hub.constants

    def refuse(*arguments, **more):
        raise AssertionError(f"it calls {arguments[1:] or arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE")


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(("kind", "engine"), [("bundled", "nnterp"), ("folder", "hooks"), ("cached", "nnterp"), ("cached", "hooks")])
def test_a_run_calls_nobody(command, home, copied, hub, kind, engine):
    from conftest import SEED_MODEL, SEED_REVISION

    raw = looking("bundled:successor-llama" if kind == "bundled" else "model")
    if kind == "folder":
        copied()
    if kind == "cached":
        raw["model"] = {"key": SEED_MODEL, "revision": SEED_REVISION, "dtype": "fp32"}
        raw["interventions"]["look"]["metrics"] = {"right": {"kind": "top_k", "of": "z", "k": 1}}
    out = home / "out"
    code, _, err = command("run", write_document(home, raw), "--out", out, "--engine", engine)
    assert code == 0, err
    for arguments in (["show", out], ["report", out], ["export", out, home / "tables"]):
        assert command(*arguments).code == 0


def test_a_report_names_nothing_elsewhere(command, finished):
    _, out = finished
    assert command("report", out).code == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import""", page)


# 6. secrets stay where they are


def test_no_secret_of_the_environment_is_in_a_record_or_a_report(command, home, monkeypatch):
    secrets = {"HF_TOKEN": "hf_" + "s3cr3t" * 6, "AWS_SECRET_ACCESS_KEY": "another-secret-key", "HOME": str(home / "home-of-somebody")}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    assert command("run", write_document(home, looking()), "--out", "out").code == 0
    assert command("report", "out").code == 0
    written = b"".join(everything_in(home / "out").values()).decode(errors="replace")
    assert not [name for name, value in secrets.items() if value in written]
    assert str(home) not in written


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_errors_have_no_passwords_and_no_tokens(command, home, monkeypatch, as_json):
    token = "hf_" + "s3cr3t" * 6
    monkeypatch.setenv("HF_TOKEN", "an-unusual-token")
    for key in (f"https://{token}@host/model", "https://user:passw0rd@host/model", f"./{token}", "./an-unusual-token"):
        code, out, err = command("explain", write_document(home, looking(key)), *as_json)
        assert code == 2
        for secret in (token, "passw0rd", "an-unusual-token"):
            assert secret not in out + err
        assert "[redacted]" in out + err


# 7. servers and sinks


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/",
        "gopher://host/",
        "https://user:passw0rd@host/",
        "//host/",
        "javascript:x",
        "unix:/run/docker.sock",
    ],
)
def test_a_webhook_is_http_without_passwords(command, tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec(probe_type="norm_monitor", probe_kind="single_shot")), encoding="utf-8")
    more = ["--prompt", "x", "--max-new-tokens", 1, "--out", tmp_path / "out"]
    code, _, err = command("probe", path, "--model", "bundled:successor-llama", *more, "--webhook", url)
    assert code == 2
    assert "url: expected" in err, err
    assert "passw0rd" not in err


BODIES = [b"[" * 100_000, b'{"prompt":' * 100_000, b'{"prompt": ' + b"9" * 100_000 + b"}", b'{"seed": 1e999}', b'{"seed": NaN}', b"\xff"]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_of_a_request_is_read_as_strictly_as_a_document(body):
    from causalab_mini.probing.serve.api import ApiError, CompletionAsked, parse

    with pytest.raises(ApiError) as refusal:
        parse(CompletionAsked, body)
    assert refusal.value.status == 400


# what is said of all this


def test_the_page_has_every_limit_as_it_is():
    from causalab_mini.data import opening, parameters, patterns, probe_files, prompts, strict_json, table
    from causalab_mini.model import facts, guards, source
    from causalab_mini.plan import sweep
    from causalab_mini.probing.spec import tree

    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    limits = [strict_json.MAX_BYTES, strict_json.MAX_DEPTH, strict_json.MAX_VALUES, strict_json.MAX_DIGITS, sweep.MAX_POINTS]
    limits += [sweep.MAX_EXPANDED_BYTES, tree.MAX_BYTES, tree.MAX_ALIASES, tree.MAX_VALUES, tree.MAX_NUMBER, table.MAX_TABLE_BYTES]
    limits += [table.MAX_ROWS, table.MAX_COLUMNS, table.MAX_CELLS, prompts.MAX_PROMPT, patterns.MAX_PATTERN, opening.MAX_PATH_BYTES]
    limits += [opening.MAX_NAME_BYTES, source.MAX_KEY_BYTES, parameters.MAX_HEADER_BYTES, parameters.MAX_CONFIG_BYTES]
    limits += [probe_files.MAX_BYTES, guards.MAX_INDEX_BYTES, *facts.MAX_COUNTS.values()]
    assert [limit for limit in limits if not re.search(rf"(?<![\d,]){limit:,}(?!,?\d)", page)] == []
    assert all(f"`{suffix}`" in page for suffix in PICKLES)
