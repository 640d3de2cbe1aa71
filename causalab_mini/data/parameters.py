"""Files of featurizer parameters (safetensors), judged from the header alone: what they hold, of which shape, made for what.

Reads no tensor and knows no model; where a file is looked for is the caller's business.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from causalab_mini.data.opening import A_PICKLE, INSTEAD, is_pickle, open_file, unreadable
from causalab_mini.data.strict_json import parse_json, read_text
from causalab_mini.errors import DataError, Problem, did_you_mean, listed, quoted

FORMAT = "causalab-mini/featurizers/1"
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_CONFIG_BYTES = 1024 * 1024
MAX_ELEMENTS = 2**63
MAX_AXES = 64
STAMP_KEYS = ("model", "revision", "dtype", "component", "layer", "heads", "units", "kind", "k", "d", "parametrization")

BITS_BY_DTYPE: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Source: `Dtype::bitsize` in safetensors/src/tensor.rs of huggingface/safetensors."""
READABLE = ("F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3")

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "subspace": ("basis",),
    "pca": ("basis",),
    "gate": ("theta",),
    "standardize": ("mean", "std"),
    "sae": ("W_enc", "W_dec", "b_enc", "b_dec", "threshold"),
    "linear": ("W_enc", "W_dec", "b_enc", "b_dec"),
}
"""The canonical names of each kind: basis (d, k), theta, mean, std, b_dec (d,), W_enc (d, k), W_dec (k, d), b_enc and threshold (k,)."""
BASIS_NAMES = ("basis", "rotation", "weight")
ALIASES: Mapping[str, str] = {
    "encoder.weight": "W_enc",
    "decoder.weight": "W_dec",
    "encoder.bias": "b_enc",
    "latent_bias": "b_enc",
    "decoder.bias": "b_dec",
    "pre_bias": "b_dec",
    "bias": "b_dec",
    "log_threshold": "threshold",
}
"""Other names of a dictionary's tensors.

Source: openai/sparse_autoencoder model.py (`pre_bias`, `latent_bias`); saprmarks/dictionary_learning dictionary.py (`encoder.weight`,
`bias`); EleutherAI/sparsify sparse_coder.py; SAELens saes/jumprelu_sae.py (`log_threshold`).
"""
OF_LINEAR: Mapping[str, str] = {"weight": "W_enc", "bias": "b_enc"}
"""What `torch.nn.Linear` calls its own."""
TRANSPOSED = ("encoder.weight", "decoder.weight", "weight")
"""Names whose convention is the orientation of `torch.nn.Linear`: (features out, features in)."""

SUBTRACTS_B_DEC: Mapping[str, bool] = {"relu": True, "topk": True, "jumprelu": False}
"""Whether an encoder sees x − b_dec where its file doesn't say.

Source: Bricken et al. 2023, "Towards monosemanticity"; Gao et al. 2024, "Scaling and evaluating sparse autoencoders";
Rajamanoharan et al. 2024, "Jumping ahead".
"""
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "standard": ("relu", "topk"),
    "relu": ("relu",),
    "jumprelu": ("relu", "jumprelu"),
    "topk": ("topk",),
}
"""By the architecture of a SAELens `cfg.json`: what it may name as its activation function, the usual one first."""
PLAIN_SETTINGS: Mapping[str, tuple[Any, str]] = {
    "normalize_activations": ("none", "activations that were rescaled before the encoder saw them would have to be rescaled here too"),
    "rescale_acts_by_decoder_norm": (False, "features in units of the decoder's norms are fewer or more than its own features"),
    "finetuning_scaling_factor": (False, "a scale of its own for each feature is not among the tensors that are read"),
}
"""Settings of a SAELens `cfg.json` that must be as they are here, or absent, with the reason."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says of itself.

    Attributes:
        path: of the file.
        sha256: of all its bytes.
        shapes: by tensor.
        metadata: as it stands.
        dtypes: by tensor, as safetensors names them.
    """

    path: Path
    sha256: str
    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str]
    dtypes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter stands in a file.

    Attributes:
        name_in_file: of the tensor.
        is_transposed: whether its two axes are the other way round there.
        is_log: whether its logarithm stands there.
    """

    name_in_file: str
    is_transposed: bool = False
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Parameters:
    """A featurizer as it was found in a file.

    Attributes:
        header: of the file.
        stamp: what it was made for; None in a file that is not of ours.
        tensors: by canonical name.
        d: width of the values.
        k: number of features; None where they are the value's own coordinates.
        options: of a dictionary: `activation` and `subtracts_b_dec`, `topk` where it is known, `pinv` where a decoder is left out.
    """

    header: Header
    stamp: Mapping[str, Any] | None
    tensors: Mapping[str, Source]
    d: int
    k: int | None
    options: Mapping[str, Any] = field(default_factory=dict)


def read_header(path: Path) -> Header:
    """Returns the header of a safetensors file, checked against the size of the file.

    Raises:
        DataError: the file can't be read, or is not what safetensors accepts.

    Source: https://github.com/huggingface/safetensors, "Format", and `Metadata::validate` in safetensors/src/tensor.rs.
    """
    if is_pickle(path):
        _refuse(path, "a safetensors file", f"{quoted(path.name)}, {A_PICKLE}", hint=INSTEAD, code="pickle")
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8:
                _refuse(path, "a safetensors file (8 bytes, then a header)", f"{size:,} bytes", code="safetensors")
            if length > MAX_HEADER_BYTES:
                _refuse(path, f"a safetensors header of at most {MAX_HEADER_BYTES:,} bytes", f"{length:,} bytes", code="safetensors")
            if length > size - 8:
                got = f"{length:,} bytes of it in a file of {size:,} bytes"
                _refuse(path, "a safetensors header inside of the file", got, code="safetensors")
            raw = file.read(length)
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise DataError(Problem("", "a readable file", unreadable(problem), code="unreadable"), str(path)) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        _refuse(path, "a safetensors header in UTF-8", f"the byte {quoted(hex(raw[problem.start]))}", code="encoding")
    if not text.startswith("{"):
        _refuse(path, "a safetensors header (a JSON object)", quoted(text[:20]) if text else "nothing", code="safetensors")
    entries = parse_json(text, str(path), DataError)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(path, "an object of strings", quoted(json.dumps(metadata)), "__metadata__", code="safetensors")
    ranges = sorted((*_range(path, name, entry), name) for name, entry in entries.items())
    end = 0
    for first, last, name in ranges:
        if first != end:
            _refuse(path, f"the bytes from {end:,} on, where those of the tensor before it end", f"{first:,}", name, code="safetensors")
        end = last
    if end != size - 8 - length:
        _refuse(path, f"{end:,} bytes of tensors, as its header says", f"{size - 8 - length:,} bytes", code="safetensors")
    shapes = {name: tuple(entry["shape"]) for name, entry in sorted(entries.items())}
    dtypes = {name: entry["dtype"] for name, entry in sorted(entries.items())}
    return Header(path, sha256, shapes, metadata, dtypes)


def find_parameters(header: Header, name: str, kind: str, activation: str | None) -> Parameters:
    """Returns where the parameters of a featurizer stand in a file, and how they must be turned to be canonical.

    Args:
        header: of the file.
        name: of the featurizer; in a file of ours the one that is taken, unless it is the only one there.
        kind: a key of `PARAMETERS`.
        activation: of `sae`; None for the one that the `cfg.json` beside the file names.

    Raises:
        DataError: a tensor is missing, ambiguous or of a wrong shape, the file was made for another kind, or its `cfg.json` says that it
            is to be computed in a way that is not ours.
    """
    stamps = _stamps(header)
    stamp, prefix = None, ""
    if stamps is not None:
        own = name if name in stamps else next(iter(stamps)) if len(stamps) == 1 else None
        if own is None:
            got = listed(stamps) if stamps else "none"
            _refuse(header.path, f"a featurizer {quoted(name)}", got, hint=did_you_mean(name, list(stamps)))
        stamp, prefix = stamps[own], f"{own}."
        if PARAMETERS.get(stamp["kind"]) != PARAMETERS[kind]:
            _refuse(header.path, f"a featurizer of the kind {quoted(kind)}", quoted(stamp["kind"]), own)
    contents = _Contents(
        header, prefix, {key.removeprefix(prefix): shape for key, shape in header.shapes.items() if key.startswith(prefix)}
    )
    match kind:
        case "subspace" | "pca":
            found = _find_basis(contents, kind, stamp)
        case "gate" | "standardize":
            found = _find_vectors(contents, kind, stamp)
        case _:
            found = _find_dictionary(contents, kind, activation, stamp)
    if stamp is not None:
        for key, size in (("d", found.d), ("k", found.k)):
            if size is not None and stamp[key] is not None and stamp[key] != size:
                _refuse(header.path, f"{key} = {size}, as its tensors have it", quoted(stamp[key]), f"stamps.{prefix}{key}")
    return found


def stamp_differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns what two stamps differ in: (key, found, expected), in the order of `STAMP_KEYS`; sequences are compared as lists."""
    keys = [key for key in STAMP_KEYS if key in found or key in expected]
    pairs = [(key, _plain(found.get(key)), _plain(expected.get(key))) for key in keys]
    return [(key, had, wanted) for key, had, wanted in pairs if had != wanted]


@dataclass(frozen=True, slots=True)
class _Contents:
    """The tensors that belong to one featurizer, by their names without its own."""

    header: Header
    prefix: str
    shapes: Mapping[str, tuple[int, ...]]

    def refuse(self, expected: str, got: str, name: str = "", hint: str = "") -> NoReturn:
        _refuse(self.header.path, expected, got, f"{self.prefix}{name}" if name else "", hint)

    def described(self, names: Iterable[str] | None = None) -> str:
        """Returns tensors with their shapes, for an error."""
        chosen = sorted(self.shapes if names is None else names)
        more = f" and {len(chosen) - 12} more" if len(chosen) > 12 else ""
        return ", ".join(f"{quoted(self.prefix + name)} {_shape(self.shapes[name])}" for name in chosen[:12]) + more or "no tensor"

    def is_readable(self, name: str) -> bool:
        return self.header.dtypes[self.prefix + name] in READABLE

    def check(self, name: str, n_axes: int, axes: str) -> tuple[int, ...]:
        """Returns the shape of a tensor that is to be read."""
        shape = self.shapes[name]
        if len(shape) != n_axes or 0 in shape:
            self.refuse(axes, _shape(shape), name)
        if not self.is_readable(name):
            self.refuse(f"one of {listed(READABLE)}", quoted(self.header.dtypes[self.prefix + name]), name)
        return shape

    def source(self, name: str, is_transposed: bool = False) -> Source:
        return Source(self.prefix + name, is_transposed, name == "log_threshold")


def _find_basis(contents: _Contents, kind: str, stamp: Mapping[str, Any] | None) -> Parameters:
    names = ("basis",) if stamp is not None else BASIS_NAMES
    found = [name for name in names if name in contents.shapes]
    if not found and stamp is None:
        matrices = [name for name, shape in contents.shapes.items() if len(shape) == 2]
        found = matrices or (list(contents.shapes) if len(contents.shapes) == 1 else [])
    if len(found) != 1:
        contents.refuse(f"one matrix, or one called {listed(names)}", contents.described(found or None))
    (name,) = found
    if stamp is None and len(contents.shapes[name]) == 1:
        (d,) = contents.check(name, 1, "a vector (d,)")
        return Parameters(contents.header, stamp, {"basis": contents.source(name)}, d, 1)
    first, second = contents.check(name, 2, "a matrix (d, k)" if kind == "subspace" else "a matrix (k, d)")
    is_transposed = first < second or (first == second and kind == "pca")
    if stamp is not None:
        is_transposed = False
        if first < second:
            contents.refuse("a matrix (d, k) with d ≥ k", _shape((first, second)), name)
    sources = {"basis": contents.source(name, is_transposed)}
    return Parameters(contents.header, stamp, sources, max(first, second), min(first, second))


def _find_vectors(contents: _Contents, kind: str, stamp: Mapping[str, Any] | None) -> Parameters:
    names = PARAMETERS[kind]
    if missing := [name for name in names if name not in contents.shapes]:
        contents.refuse(f"the tensors {listed(contents.prefix + name for name in missing)}", contents.described())
    shapes = {name: contents.check(name, 1, "a vector (d,)") for name in names}
    if len(set(shapes.values())) != 1:
        contents.refuse("vectors of one length", contents.described(names))
    sources = {name: contents.source(name) for name in names}
    return Parameters(contents.header, stamp, sources, shapes[names[0]][0], None)


def _find_dictionary(contents: _Contents, kind: str, activation: str | None, stamp: Mapping[str, Any] | None) -> Parameters:
    config = _config(contents.header.path) if kind == "sae" and stamp is None else {}
    named = _named(contents, kind, stamp)
    shapes = {name: contents.check(actual, 2, "a matrix") for name, actual in named.items() if name in ("W_enc", "W_dec")}
    lengths = {name: contents.check(actual, 1, "a vector")[0] for name, actual in named.items() if name not in shapes}
    turns = _orientation(contents, named, shapes, lengths, is_canonical=stamp is not None)
    d, k = reversed(shapes["W_enc"]) if turns["W_enc"] else shapes["W_enc"]
    options: dict[str, Any] = {"activation": None, "subtracts_b_dec": False}
    if kind == "linear" and "W_dec" not in named:
        options["pinv"] = True
    if kind == "sae":
        options = _options(contents.header.path, config, activation, d, k)
        if (options["activation"] == "jumprelu") != ("threshold" in named):
            expected = "a tensor `threshold` (k,)" if "threshold" not in named else f"no threshold with {quoted(options['activation'])}"
            contents.refuse(expected, contents.described(named.values()), hint="" if "threshold" not in named else "is it a `jumprelu`?")
    sources = {name: contents.source(named[name], turns.get(name, False)) for name in PARAMETERS[kind] if name in named}
    return Parameters(contents.header, stamp, sources, d, k, options)


def _named(contents: _Contents, kind: str, stamp: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the names in the file by canonical name; refuses what is missing, given twice, or unknown and not a counter."""
    canonical = PARAMETERS[kind]
    aliases = {} if stamp is not None else {**ALIASES, **(OF_LINEAR if kind == "linear" and "weight" in contents.shapes else {})}
    named: dict[str, str] = {}
    unknown = []
    for name in contents.shapes:
        meant = name if name in canonical else aliases.get(name)
        if meant not in canonical:
            unknown.append(name)
        elif meant in named:
            contents.refuse(f"one tensor that is `{meant}`", contents.described((name, named[meant])))
        else:
            named[meant] = name
    needed = ("W_enc", "W_dec") if kind == "sae" else ("W_enc",)
    if missing := [name for name in needed if name not in named]:
        contents.refuse(f"the tensors {listed(contents.prefix + name for name in missing)}", contents.described())
    if read := [name for name in unknown if contents.is_readable(name)]:
        hint = "it would be left out of the computation"
        contents.refuse(f"no other tensors than {listed(canonical)}", contents.described(read), hint=hint)
    return named


def _orientation(
    contents: _Contents, named: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], lengths: Mapping[str, int], is_canonical: bool
) -> dict[str, bool]:
    """Returns which matrices are transposed: as all shapes together demand, and as the names' conventions have it where they leave it open."""
    fitting: dict[tuple[bool, ...], int] = {}
    for turns in itertools.product((False, True), repeat=len(shapes)):
        sizes = set()
        for name, turned in zip(shapes, turns, strict=True):
            first, second = reversed(shapes[name]) if turned else shapes[name]
            sizes.add((first, second) if name == "W_enc" else (second, first))
        if len(sizes) != 1 or (is_canonical and any(turns)):
            continue
        ((d, k),) = sizes
        if all(length == (d if name == "b_dec" else k) for name, length in lengths.items()):
            conventions = [named[name] in TRANSPOSED for name in shapes]
            fitting[turns] = sum(turned == usual for turned, usual in zip(turns, conventions, strict=True))
    best = [turns for turns, agreement in fitting.items() if agreement == max(fitting.values())]
    if len(best) != 1:
        expected = "W_enc (d, k), W_dec (k, d), b_enc (k,), b_dec (d,), threshold (k,), matrices transposed or not"
        contents.refuse(expected if not best else "biases that tell which axis is which", contents.described(named.values()))
    return dict(zip(shapes, best[0], strict=True))


def _config(path: Path) -> dict[str, Any]:
    """Returns the `cfg.json` beside a file, empty where there is none."""
    file = path.parent / "cfg.json"
    if not file.exists():
        return {}
    config = parse_json(read_text(file, DataError, MAX_CONFIG_BYTES), str(file), DataError)
    if not isinstance(config, dict):
        _refuse(file, "an object", quoted(json.dumps(config)))
    return config


def _options(path: Path, config: Mapping[str, Any], activation: str | None, d: int, k: int) -> dict[str, Any]:
    """Returns what an autoencoder's file and its `cfg.json` say of how it is computed."""
    file = path.parent / "cfg.json"
    named = _activation(file, config)
    if activation is None and named is None:
        _refuse(path, f"an `activation`, one of {listed(SUBTRACTS_B_DEC)}", "none")
    if activation is not None and named is not None and activation != named:
        _refuse(file, f"the activation {quoted(activation)}", quoted(named), "activation_fn")
    chosen = activation or named
    assert chosen is not None
    for key, (plain, reason) in PLAIN_SETTINGS.items():
        if config.get(key) not in (None, plain):
            _refuse(file, quoted(json.dumps(plain)), quoted(json.dumps(config[key])), key, reason)
    for key, size in (("d_in", d), ("d_sae", k)):
        if config.get(key, size) != size:
            _refuse(file, f"{size}, as the tensors have it", quoted(json.dumps(config[key])), key)
    subtracts = config.get("apply_b_dec_to_input", SUBTRACTS_B_DEC[chosen])
    if not isinstance(subtracts, bool):
        _refuse(file, "`true` or `false`", quoted(json.dumps(subtracts)), "apply_b_dec_to_input")
    options: dict[str, Any] = {"activation": chosen, "subtracts_b_dec": subtracts}
    arguments = config.get("activation_fn_kwargs") or {}
    if not isinstance(arguments, dict):
        _refuse(file, "an object", quoted(json.dumps(arguments)), "activation_fn_kwargs")
    place = "activation_fn_kwargs.k" if "k" in arguments else "k"
    topk = arguments.get("k", config.get("k"))
    if chosen == "topk" and topk is not None:
        if type(topk) is not int or not 1 <= topk <= k:
            _refuse(file, f"a whole number from 1 to {k}", quoted(json.dumps(topk)), place)
        options["topk"] = topk
    return options


def _activation(file: Path, config: Mapping[str, Any]) -> str | None:
    """Returns the activation that a `cfg.json` names, by its architecture and its function; None where it names neither."""
    architecture = config.get("architecture")
    key = "activation_fn" if config.get("activation_fn") is not None else "activation_fn_str"
    function = config.get(key)
    if architecture is None and function is None:
        return None
    if architecture is not None and architecture not in list(ACTIVATIONS):
        _refuse(file, f"one of {listed(ACTIVATIONS)}", quoted(json.dumps(architecture)), "architecture")
    known = ACTIVATIONS[architecture] if architecture is not None else tuple(SUBTRACTS_B_DEC)
    if function is not None and function not in known:
        _refuse(file, f"one of {listed(known)}", quoted(json.dumps(function)), key)
    if architecture in ("jumprelu", "topk"):
        return str(architecture)
    return str(function or known[0])


def _stamps(header: Header) -> dict[str, dict[str, Any]] | None:
    """Returns the stamps of a file of ours by featurizer, None for any other file."""
    found = header.metadata.get("format")
    if found is None or not found.startswith(FORMAT.rpartition("/")[0] + "/"):
        return None
    if found != FORMAT:
        _refuse(header.path, f"the format {quoted(FORMAT)}", quoted(found), "__metadata__.format")
    for key in ("digest", "stamps"):
        if key not in header.metadata:
            _refuse(header.path, f"a {quoted(key)}", "none", "__metadata__")
    stamps = parse_json(header.metadata["stamps"], f"{header.path}: __metadata__.stamps", DataError)
    if not isinstance(stamps, dict):
        _refuse(header.path, "an object of stamps", quoted(header.metadata["stamps"]), "__metadata__.stamps")
    for name, stamp in stamps.items():
        if not isinstance(stamp, dict) or set(stamp) != set(STAMP_KEYS):
            got = listed(sorted(stamp)) if isinstance(stamp, dict) else quoted(json.dumps(stamp))
            _refuse(header.path, f"an object of {listed(STAMP_KEYS)}", got, f"stamps.{name}")
        if stamp["kind"] not in list(PARAMETERS):
            _refuse(header.path, f"one of {listed(PARAMETERS)}", quoted(json.dumps(stamp["kind"])), f"stamps.{name}.kind")
        for key in ("d", "k"):
            if stamp[key] is not None and type(stamp[key]) is not int:
                _refuse(header.path, "a whole number", quoted(json.dumps(stamp[key])), f"stamps.{name}.{key}")
    return stamps


def _range(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """Returns the first byte of a tensor and the one after its last, checked against its dtype and shape."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse(path, "an object of `dtype`, `shape` and `data_offsets`", quoted(json.dumps(entry)), name, code="safetensors")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS_BY_DTYPE:
        _refuse(path, f"one of {listed(BITS_BY_DTYPE)}", quoted(json.dumps(dtype)), f"{name}.dtype", code="safetensors")
    if not _are_sizes(shape) or len(shape) > MAX_AXES or math.prod(max(size, 1) for size in shape) >= MAX_ELEMENTS:
        _refuse(path, "a list of whole numbers", quoted(json.dumps(shape)), f"{name}.shape", code="safetensors")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, "two whole numbers, begin and end", quoted(json.dumps(offsets)), f"{name}.data_offsets", code="safetensors")
    bits = math.prod(shape) * BITS_BY_DTYPE[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        expected = f"{bits / 8:g} bytes for {_shape(shape)} of {quoted(dtype)}"
        _refuse(path, expected, f"{offsets[1] - offsets[0]:,}", f"{name}.data_offsets", code="safetensors")
    return offsets[0], offsets[1]


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _shape(shape: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _refuse(path: Path, expected: str, got: str, place: str = "", hint: str = "", code: str = "featurizer") -> NoReturn:
    raise DataError(Problem(place, expected, got, hint, code), str(path))
