"""Files of featurizer parameters, judged from their headers: what is refused, and what is found in the layouts that people save."""

import itertools
import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from causalab_mini.data.parameters import (
    FORMAT,
    MAX_HEADER_BYTES,
    PARAMETERS,
    STAMP_KEYS,
    Source,
    find_parameters,
    read_header,
    stamp_differences,
)
from causalab_mini.errors import DataError

pytestmark = pytest.mark.plain

BYTES = {"F32": 4, "F64": 8, "BF16": 2, "I64": 8}


def entries_of(shapes, dtypes=None, metadata=None):
    """Returns a header as an object, and how many bytes it speaks of."""
    entries = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, shape in shapes.items():
        dtype = (dtypes or {}).get(name, "F32")
        size = BYTES[dtype]
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    return entries, end


def file_bytes(header, n_bytes):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * n_bytes


@pytest.fixture
def opened(tmp_path):
    def open_file(shapes, dtypes=None, metadata=None, config=None):
        file = tmp_path / "a.safetensors"
        file.write_bytes(file_bytes(*entries_of(shapes, dtypes, metadata)))
        if config is not None:
            (tmp_path / "cfg.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return read_header(file)

    return open_file


def refusal(call, *arguments):
    with pytest.raises(DataError) as caught:
        call(*arguments)
    (problem,) = caught.value.problems
    assert caught.value.file
    return problem


# headers


def test_a_header_is_what_the_file_says(tmp_path):
    file = tmp_path / "a.safetensors"
    entries, n_bytes = entries_of({"b": (2, 3), "a": (), "none": (0, 5)}, {"b": "BF16"}, {"by": "hand"})
    file.write_bytes(file_bytes(entries, n_bytes))
    header = read_header(file)
    assert header.shapes == {"a": (), "b": (2, 3), "none": (0, 5)}
    assert header.dtypes == {"a": "F32", "b": "BF16", "none": "F32"}
    assert header.metadata == {"by": "hand"}
    assert header.path == file
    assert len(header.sha256) == 64


ONE = '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'


def one(**changes):
    return json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}).encode()


REFUSED = {
    "an empty file": (b"", "a safetensors file (8 bytes, then a header)", "0 bytes"),
    "seven bytes": (b"\0" * 7, "a safetensors file (8 bytes, then a header)", "7 bytes"),
    "a header of no bytes": (b"\0" * 8, "a safetensors header (a JSON object)", "nothing"),
    "a header longer than the file": ((99).to_bytes(8, "little") + b"{}", "inside of the file", "99 bytes of it in a file of 10 bytes"),
    "a header longer than any": (b"\xff" * 8 + b"{}", f"at most {MAX_HEADER_BYTES:,} bytes", "18,446,744,073,709,551,615 bytes"),
    "a pickle": (file_bytes(b"\x80\x04K\x01.", 0), "in UTF-8", "`0x80`"),
    "a list": (file_bytes(b"[]", 0), "a JSON object", "`[]`"),
    "JSON that is cut off": (file_bytes(b'{"a": ', 0), "JSON", "the end of the text"),
    "NaN": (file_bytes(b'{"a": NaN}', 0), "a finite number", "`NaN`"),
    "a name twice": (file_bytes((ONE[:-1] + ", " + ONE[1:]).encode(), 8), "each key once", "`a` again"),
    "an entry that is a number": (file_bytes(b'{"a": 1}', 0), "an object of `dtype`", "`1`"),
    "an entry without a shape": (file_bytes(b'{"a": {"dtype": "F32", "data_offsets": [0, 8]}}', 8), "an object of `dtype`", "data_offsets"),
    "an unknown dtype": (file_bytes(one(dtype="F31"), 8), "`F32`", '`"F31"`'),
    "a dtype that is a list": (file_bytes(one(dtype=[]), 8), "`F32`", "`[]`"),
    "a negative size": (file_bytes(one(shape=[-2]), 8), "whole numbers", "`[-2]`"),
    "a size that is a fraction": (file_bytes(one(shape=[2.0]), 8), "whole numbers", "`[2.0]`"),
    "a size that is true": (file_bytes(one(shape=[True]), 8), "whole numbers", "`[true]`"),
    "sizes beyond any file": (file_bytes(one(shape=[2**62, 2, 0]), 8), "whole numbers", "4611686018427387904"),
    "one offset": (file_bytes(one(data_offsets=[8]), 8), "begin and end", "`[8]`"),
    "offsets the wrong way round": (file_bytes(one(data_offsets=[8, 0]), 8), "begin and end", "`[8, 0]`"),
    "offsets of another size": (file_bytes(one(shape=[3]), 8), "12 bytes for (3,) of `F32`", "8"),
    "a hole": (file_bytes(one(data_offsets=[4, 12]), 12), "the bytes from 0 on", "4"),
    "a file that is cut off": (file_bytes(one(), 7), "8 bytes of tensors", "7 bytes"),
    "bytes at the end": (file_bytes(one(), 9), "8 bytes of tensors", "9 bytes"),
    "metadata that is a list": (file_bytes(b'{"__metadata__": []}', 0), "an object of strings", "`[]`"),
    "metadata of numbers": (file_bytes(b'{"__metadata__": {"a": 1}}', 0), "an object of strings", '`{"a": 1}`'),
}


@pytest.mark.parametrize(("data", "expected", "got"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_safetensors_file_is_refused(tmp_path, data, expected, got):
    file = tmp_path / "a.safetensors"
    file.write_bytes(data)
    problem = refusal(read_header, file)
    assert expected in problem.expected
    assert got in problem.got
    with pytest.raises(DataError, match=f"^error: {file}"):
        read_header(file)


@pytest.mark.parametrize(("make", "got"), [(lambda file: None, "no such file"), (lambda file: file.mkdir(), "is a directory")])
def test_a_file_that_can_not_be_read_is_refused(tmp_path, make, got):
    make(tmp_path / "a.safetensors")
    assert refusal(read_header, tmp_path / "a.safetensors").got == got


WHOLE = file_bytes(
    *entries_of({"rotation.basis": (8, 2), "gate.theta": (8,), "W_enc": (2, 3)}, {"W_enc": "BF16"}, {"format": "other", "by": "hand"})
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.floats(allow_nan=True)
    | st.text(max_size=4)
    | st.sampled_from(("F32", "F4", "I64")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
quick = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def is_judged(file):
    """Asserts that a file is read or refused: that nothing but a `DataError` comes out."""
    with suppress(DataError):
        header = read_header(file)
        for kind, activation in itertools.product(PARAMETERS, (None, "relu", "jumprelu", "topk")):
            with suppress(DataError):
                found = find_parameters(header, "rotation", kind, activation)
                assert {source.name_in_file for source in found.tensors.values()} <= set(header.shapes)


@quick
@given(at=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255), end=st.integers(0, len(WHOLE)))
@example(at=0, byte=0, end=0)
def test_a_file_with_a_byte_changed_or_cut_off_is_read_or_refused(tmp_path, at, byte, end):
    for data in (WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :], WHOLE[:end]):
        (tmp_path / "a.safetensors").write_bytes(data)
        is_judged(tmp_path / "a.safetensors")


@quick
@given(
    name=st.sampled_from(("rotation.basis", "gate.theta", "__metadata__", "new")),
    key=st.sampled_from((None, "dtype", "shape", "data_offsets", "format")),
    value=values,
)
def test_a_header_with_a_value_changed_is_read_or_refused(tmp_path, name, key, value):
    entries, n_bytes = entries_of({"rotation.basis": (8, 2), "gate.theta": (8,)}, metadata={"by": "hand"})
    if key is None:
        entries[name] = value
    else:
        entries.setdefault(name, {})[key] = value
    (tmp_path / "a.safetensors").write_bytes(file_bytes(entries, n_bytes))
    is_judged(tmp_path / "a.safetensors")


@quick
@given(
    shapes=st.dictionaries(
        st.sampled_from(
            ("basis", "weight", "bias", "theta", "mean", "std", "W_enc", "W_dec", "b_enc", "b_dec", "threshold", "encoder.weight")
        ),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
    ),
    config=values,
)
def test_tensors_of_any_shapes_are_found_or_refused(tmp_path, shapes, config):
    (tmp_path / "a.safetensors").write_bytes(file_bytes(*entries_of(shapes)))
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    is_judged(tmp_path / "a.safetensors")


settings_of_cfg = st.sampled_from(
    (
        "architecture",
        "activation_fn",
        "activation_fn_str",
        "activation_fn_kwargs",
        "k",
        "apply_b_dec_to_input",
        "d_in",
        "normalize_activations",
    )
)


@quick
@given(config=st.dictionaries(settings_of_cfg, values | st.sampled_from(("relu", "topk", "standard", "none")), max_size=4))
def test_a_cfg_of_any_settings_is_understood_or_refused(tmp_path, config):
    (tmp_path / "a.safetensors").write_bytes(file_bytes(*entries_of({"W_enc": (2, 3), "W_dec": (3, 2), "b_dec": (2,)})))
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    is_judged(tmp_path / "a.safetensors")


# files of ours


def stamp(kind, d, k=None, **changes):
    return {**dict.fromkeys(STAMP_KEYS), "model": "m", "component": "block.output", "layer": 1, "kind": kind, "d": d, "k": k, **changes}


def ours(of, **changes):
    return {"format": FORMAT, "digest": "abc", "stamps": json.dumps(of), **changes}


TWO = {"turned.basis": (8, 2), "open.theta": (8,)}
STAMPS = {"turned": stamp("subspace", 8, 2), "open": stamp("gate", 8)}


def test_a_featurizer_of_ours_is_found_by_its_name(opened):
    header = opened(TWO, metadata=ours(STAMPS))
    found = find_parameters(header, "turned", "subspace", None)
    assert (found.stamp, found.tensors, found.d, found.k) == (STAMPS["turned"], {"basis": Source("turned.basis")}, 8, 2)
    found = find_parameters(header, "open", "gate", None)
    assert (found.stamp, found.tensors, found.d, found.k) == (STAMPS["open"], {"theta": Source("open.theta")}, 8, None)


def test_the_only_featurizer_of_a_file_is_found_under_any_name(opened):
    header = opened({"turned.basis": (8, 2)}, metadata=ours({"turned": STAMPS["turned"]}))
    assert find_parameters(header, "other", "pca", None).tensors == {"basis": Source("turned.basis")}


def test_a_square_basis_of_ours_is_never_transposed(opened):
    header = opened({"p.basis": (3, 3)}, metadata=ours({"p": stamp("pca", 3, 3)}))
    assert find_parameters(header, "p", "pca", None).tensors == {"basis": Source("p.basis")}


OURS_REFUSED = {
    "a name that is not there": (TWO, ours(STAMPS), "turn", "subspace", "a featurizer `turn`", "`turned`, `open`"),
    "another kind": (TWO, ours(STAMPS), "open", "subspace", "of the kind `subspace`", "`gate`"),
    "another version": (TWO, ours(STAMPS, format="causalab-mini/featurizers/2"), "open", "gate", f"`{FORMAT}`", "featurizers/2"),
    "no stamps": (TWO, {"format": FORMAT, "digest": ""}, "open", "gate", "a `stamps`", "none"),
    "stamps that are no JSON": (TWO, ours(STAMPS, stamps="{"), "open", "gate", "JSON", "the end"),
    "stamps that are a list": (TWO, ours(STAMPS, stamps="[]"), "open", "gate", "an object of stamps", "`[]`"),
    "no featurizer": ({}, ours({}), "open", "gate", "a featurizer `open`", "none"),
    "a stamp that lacks a key": (TWO, ours({"open": {"kind": "gate"}}), "open", "gate", "an object of `model`", "`kind`"),
    "a stamp of no kind": (TWO, ours({"open": stamp("door", 8)}), "open", "gate", "one of `subspace`", '`"door"`'),
    "a stamp of a width in words": (TWO, ours({"open": stamp("gate", "8")}), "open", "gate", "a whole number", '`"8"`'),
    "a stamp of another width": (TWO, ours({"open": stamp("gate", 9)}), "open", "gate", "d = 8", "`9`"),
    "a basis that is wider than long": ({"b.basis": (2, 8)}, ours({"b": stamp("subspace", 8, 2)}), "b", "subspace", "d ≥ k", "(2, 8)"),
    "a tensor that is missing": ({"x": (8,)}, ours({"open": stamp("gate", 8)}), "open", "gate", "`open.theta`", "no tensor"),
}


@pytest.mark.parametrize(("shapes", "metadata", "name", "kind", "expected", "got"), OURS_REFUSED.values(), ids=OURS_REFUSED.keys())
def test_a_file_of_ours_that_does_not_fit_is_refused(opened, shapes, metadata, name, kind, expected, got):
    header = opened(shapes, metadata=metadata)
    problem = refusal(find_parameters, header, name, kind, None)
    assert expected in problem.expected
    assert got in problem.got


def test_stamps_differ_by_key():
    found = stamp("subspace", 8, 2, heads=[1, 2])
    assert stamp_differences(found, {**found, "heads": (1, 2)}) == []
    assert stamp_differences(found, {**found, "layer": 2, "model": "n"}) == [("model", "m", "n"), ("layer", 1, 2)]
    assert stamp_differences({"d": 8}, {"d": 8, "k": 2}) == [("k", None, 2)]


# files of others

BASES = {
    "a basis": ("subspace", {"basis": (8, 2)}, Source("basis"), 8, 2),
    "its transpose": ("subspace", {"basis": (2, 8)}, Source("basis", True), 8, 2),
    "a square one": ("subspace", {"basis": (3, 3)}, Source("basis"), 3, 3),
    "the only matrix": ("subspace", {"anything": (8, 2), "scale": (2,)}, Source("anything"), 8, 2),
    "the one with a name": ("subspace", {"rotation": (8, 2), "other": (8, 2)}, Source("rotation"), 8, 2),
    "one direction": ("subspace", {"direction": (8,)}, Source("direction"), 8, 1),
    "directions of a pca": ("pca", {"directions": (2, 8)}, Source("directions", True), 8, 2),
    "columns of a pca": ("pca", {"directions": (8, 2)}, Source("directions"), 8, 2),
    "a square pca": ("pca", {"directions": (3, 3)}, Source("directions", True), 3, 3),
}


@pytest.mark.parametrize(("kind", "shapes", "source", "d", "k"), BASES.values(), ids=BASES.keys())
def test_a_basis_is_found(opened, kind, shapes, source, d, k):
    found = find_parameters(opened(shapes), "any", kind, None)
    assert (found.stamp, found.tensors, found.d, found.k) == (None, {"basis": source}, d, k)


def test_vectors_are_found(opened):
    header = opened({"mean": (8,), "std": (8,), "theta": (8,)})
    found = find_parameters(header, "any", "standardize", None)
    assert (found.tensors, found.d, found.k) == ({"mean": Source("mean"), "std": Source("std")}, 8, None)
    assert find_parameters(header, "any", "gate", None).tensors == {"theta": Source("theta")}


PLAIN = {"W_enc": (4, 6), "W_dec": (6, 4), "b_enc": (6,), "b_dec": (4,)}
SAES = {
    "SAELens": (PLAIN, {}),
    "transposed": ({**PLAIN, "W_enc": (6, 4), "W_dec": (4, 6)}, {"W_enc": Source("W_enc", True), "W_dec": Source("W_dec", True)}),
    "both (k, d)": ({**PLAIN, "W_enc": (6, 4)}, {"W_enc": Source("W_enc", True)}),
    "OpenAI": (
        {"encoder.weight": (6, 4), "decoder.weight": (4, 6), "pre_bias": (4,), "latent_bias": (6,), "stats_last_nonzero": (6,)},
        {
            "W_enc": Source("encoder.weight", True),
            "W_dec": Source("decoder.weight", True),
            "b_enc": Source("latent_bias"),
            "b_dec": Source("pre_bias"),
        },
    ),
    "sparsify": (
        {"encoder.weight": (6, 4), "encoder.bias": (6,), "W_dec": (6, 4), "b_dec": (4,)},
        {"W_enc": Source("encoder.weight", True), "b_enc": Source("encoder.bias")},
    ),
    "dictionary_learning": (
        {"encoder.weight": (6, 4), "encoder.bias": (6,), "decoder.weight": (4, 6), "bias": (4,)},
        {
            "W_enc": Source("encoder.weight", True),
            "W_dec": Source("decoder.weight", True),
            "b_enc": Source("encoder.bias"),
            "b_dec": Source("bias"),
        },
    ),
    "names of torch without their orientation": (
        {"encoder.weight": (4, 6), "decoder.weight": (6, 4), "encoder.bias": (6,), "decoder.bias": (4,)},
        {
            "W_enc": Source("encoder.weight"),
            "W_dec": Source("decoder.weight"),
            "b_enc": Source("encoder.bias"),
            "b_dec": Source("decoder.bias"),
        },
    ),
}


@pytest.mark.parametrize(("shapes", "sources"), SAES.values(), ids=SAES.keys())
def test_a_sparse_autoencoder_is_found_in_every_layout(opened, shapes, sources):
    found = find_parameters(opened(shapes, {"stats_last_nonzero": "I64"}), "any", "sae", "relu")
    assert found.tensors == {name: sources.get(name, Source(name)) for name in PLAIN}
    assert (found.d, found.k, found.options) == (4, 6, {"activation": "relu", "subtracts_b_dec": True})


@pytest.mark.parametrize(
    ("names", "turned"),
    [
        (("W_enc", "W_dec"), (False, False)),
        (("encoder.weight", "decoder.weight"), (True, True)),
        (("encoder.weight", "W_dec"), (True, False)),
    ],
)
def test_a_square_matrix_is_oriented_by_the_convention_of_its_name(opened, names, turned):
    found = find_parameters(opened(dict.fromkeys(names, (4, 4))), "any", "sae", "relu")
    assert tuple(found.tensors[name].is_transposed for name in ("W_enc", "W_dec")) == turned


def test_a_jumprelu_has_a_threshold_or_its_logarithm(opened):
    found = find_parameters(opened({**PLAIN, "threshold": (6,)}), "any", "sae", "jumprelu")
    assert found.tensors["threshold"] == Source("threshold")
    assert found.options == {"activation": "jumprelu", "subtracts_b_dec": False}
    found = find_parameters(opened({**PLAIN, "log_threshold": (6,)}), "any", "sae", "jumprelu")
    assert found.tensors["threshold"] == Source("log_threshold", is_log=True)


LINEAR = {
    "torch.nn.Linear": ({"weight": (6, 4), "bias": (6,)}, {"W_enc": Source("weight", True), "b_enc": Source("bias")}, True),
    "one that is narrower": ({"weight": (2, 4)}, {"W_enc": Source("weight", True)}, True),
    "an encoder": ({"W_enc": (4, 6)}, {"W_enc": Source("W_enc")}, True),
    "an encoder and a decoder": ({"W_enc": (4, 6), "W_dec": (6, 4)}, {"W_enc": Source("W_enc"), "W_dec": Source("W_dec")}, False),
}


@pytest.mark.parametrize(("shapes", "sources", "has_pinv"), LINEAR.values(), ids=LINEAR.keys())
def test_a_linear_map_is_found(opened, shapes, sources, has_pinv):
    found = find_parameters(opened(shapes), "any", "linear", None)
    assert found.tensors == sources
    assert found.options == {"activation": None, "subtracts_b_dec": False, **({"pinv": True} if has_pinv else {})}


LAYOUTS_REFUSED = {
    "no matrix": ("subspace", None, {"a": (8,), "b": (8,)}, {}, "one matrix", "`a` (8,), `b` (8,)"),
    "two matrices": ("pca", None, {"a": (8, 2), "b": (8, 2)}, {}, "one matrix", "`a` (8, 2), `b` (8, 2)"),
    "two with a name": ("subspace", None, {"basis": (8, 2), "weight": (8, 2)}, {}, "one matrix", "`weight` (8, 2)"),
    "a stack of bases": ("pca", None, {"basis": (3, 2, 8)}, {}, "a matrix (k, d)", "(3, 2, 8)"),
    "a basis of nothing": ("subspace", None, {"basis": (8, 0)}, {}, "a matrix (d, k)", "(8, 0)"),
    "a basis of whole numbers": ("subspace", None, {"basis": (8, 2)}, {"basis": "I64"}, "`F32`", "`I64`"),
    "no theta": ("gate", None, {"mask": (8,)}, {}, "`theta`", "`mask` (8,)"),
    "a theta that is a matrix": ("gate", None, {"theta": (8, 1)}, {}, "a vector (d,)", "(8, 1)"),
    "mean and std of two lengths": ("standardize", None, {"mean": (8,), "std": (7,)}, {}, "of one length", "`std` (7,)"),
    "no decoder": ("sae", "relu", {"W_enc": (4, 6)}, {}, "`W_dec`", "`W_enc` (4, 6)"),
    "a name and its other name": ("sae", "relu", {**PLAIN, "pre_bias": (4,)}, {}, "one tensor that is `b_dec`", "`pre_bias` (4,)"),
    "a tensor that would be left out": ("sae", "relu", {**PLAIN, "W_skip": (4, 4)}, {}, "no other tensors", "`W_skip` (4, 4)"),
    "a bias of another length": ("sae", "relu", {**PLAIN, "b_enc": (5,)}, {}, "W_enc (d, k)", "`b_enc` (5,)"),
    "a decoder of another width": ("sae", "relu", {**PLAIN, "W_dec": (6, 5)}, {}, "W_enc (d, k)", "`W_dec` (6, 5)"),
    "matrices that could be either": ("sae", "relu", {"W_enc": (4, 6), "W_dec": (4, 6)}, {}, "biases that tell", "`W_dec` (4, 6)"),
    "a threshold with relu": ("sae", "relu", {**PLAIN, "threshold": (6,)}, {}, "no threshold with `relu`", "`threshold` (6,)"),
    "a jumprelu without one": ("sae", "jumprelu", PLAIN, {}, "`threshold` (k,)", "`W_enc` (4, 6)"),
    "no activation": ("sae", None, PLAIN, {}, "an `activation`", "none"),
    "no encoder": ("linear", None, {"map": (6, 4)}, {}, "`W_enc`", "`map` (6, 4)"),
}


@pytest.mark.parametrize(
    ("kind", "activation", "shapes", "dtypes", "expected", "got"), LAYOUTS_REFUSED.values(), ids=LAYOUTS_REFUSED.keys()
)
def test_a_layout_that_is_not_known_is_refused(opened, kind, activation, shapes, dtypes, expected, got):
    problem = refusal(find_parameters, opened(shapes, dtypes), "any", kind, activation)
    assert expected in problem.expected
    assert got in problem.got


# folders of SAELens

CONFIGS = {
    "a standard one": (
        {"architecture": "standard", "activation_fn_str": "relu", "apply_b_dec_to_input": False, "normalize_activations": "none"},
        {"activation": "relu", "subtracts_b_dec": False},
    ),
    "a standard one of top k": (
        {"architecture": "standard", "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}, "apply_b_dec_to_input": True},
        {"activation": "topk", "subtracts_b_dec": True, "topk": 3},
    ),
    "top k": (
        {"architecture": "topk", "k": 2, "d_in": 4, "d_sae": 6, "rescale_acts_by_decoder_norm": False},
        {"activation": "topk", "subtracts_b_dec": True, "topk": 2},
    ),
    "one that says little": ({"d_in": 4}, {"activation": "relu", "subtracts_b_dec": True}),
}


@pytest.mark.parametrize(("config", "options"), CONFIGS.values(), ids=CONFIGS.keys())
def test_the_settings_of_a_cfg_are_taken(opened, config, options):
    header = opened(PLAIN, config=config)
    assert find_parameters(header, "any", "sae", options["activation"]).options == options
    if "architecture" in config:
        assert find_parameters(header, "any", "sae", None).options == options


def test_a_jumprelu_whose_cfg_names_relu_beside_it_is_one(opened):
    header = opened({**PLAIN, "threshold": (6,)}, config={"architecture": "jumprelu", "activation_fn_str": "relu"})
    assert find_parameters(header, "any", "sae", None).options == {"activation": "jumprelu", "subtracts_b_dec": False}


CONFIGS_REFUSED = {
    "another activation": ({"architecture": "topk"}, "relu", "the activation `relu`", "`topk`"),
    "an activation that is not known": ({"activation_fn": "tanh-relu"}, "relu", "one of `relu`", '`"tanh-relu"`'),
    "an architecture that is not known": ({"architecture": "gated"}, "relu", "one of `standard`", '`"gated"`'),
    "activations that are rescaled": (
        {"normalize_activations": "expected_average_only_in"},
        "relu",
        '`"none"`',
        "expected_average_only_in",
    ),
    "features that are rescaled": ({"rescale_acts_by_decoder_norm": True}, "topk", "`false`", "`true`"),
    "another width": ({"d_in": 5}, "relu", "4, as the tensors have it", "`5`"),
    "a bias that is maybe subtracted": ({"apply_b_dec_to_input": "yes"}, "relu", "`true` or `false`", '`"yes"`'),
    "more features than there are": ({"activation_fn_kwargs": {"k": 7}}, "topk", "from 1 to 6", "`7`"),
    "arguments that are a list": ({"activation_fn_kwargs": [1]}, "topk", "an object", "`[1]`"),
    "a list": ([], "relu", "an object", "`[]`"),
    "no JSON": ("{", "relu", "JSON", "the end of the text"),
    "a megabyte": (" " * 2**20 + "{}", "relu", "at most 1,048,576 bytes", "1,048,578 bytes"),
}


@pytest.mark.parametrize(("config", "activation", "expected", "got"), CONFIGS_REFUSED.values(), ids=CONFIGS_REFUSED.keys())
def test_a_cfg_that_asks_for_something_else_is_refused(opened, config, activation, expected, got):
    problem = refusal(find_parameters, opened(PLAIN, config=config), "any", "sae", activation)
    assert expected in problem.expected
    assert got in problem.got
