"""What of a checkpoint's files is never opened or run: weights in pickle form, code of its own, adapters, other people's kernels.

Knows files and parsed configs; neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from causalab_mini.data.opening import A_PICKLE, is_pickle, read_file
from causalab_mini.errors import Problem, listed, quoted

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
MAX_INDEX_BYTES = 64 * 1024 * 1024
"""Of an index of shards: some 300,000 tensors."""
FLAG = "`--trust-remote-code` lets code that comes with the checkpoint run"
CONVERT = "transformers can write the same weights as safetensors: `model.save_pretrained(FOLDER)`"


def folder_problem(folder: Path, key: str) -> Problem | None:
    """Returns why a folder's weights are not opened, None where they may be, or are not there yet.

    Args:
        folder: of a checkpoint, or of a snapshot in the hub's cache.
        key: as the document has it.
    """
    try:
        entries = sorted(folder.iterdir())
        names = [entry.name for entry in entries]
        bad = next((entry for entry in entries if entry.exists() and not (entry.is_file() or entry.is_dir())), None)
    except OSError:
        return None  # it is opened next, and says so
    if bad is not None:
        return Problem("model.key", "a folder of files", f"{quoted(key)}, where {quoted(bad.name)} is none", code="unreadable")
    if ADAPTER in names:
        return adapter_problem(key)
    if WEIGHTS in names:
        return None
    if INDEX in names:
        return index_problem(folder / INDEX, key)
    if pickles := [name for name in names if is_pickle(name.removesuffix(".index.json"))]:
        more = f" and {len(pickles) - 3} more" if len(pickles) > 3 else ""
        got = f"{quoted(key)} with {listed(pickles[:3])}{more}: {A_PICKLE}"
        return Problem("model.key", f"weights as safetensors ({quoted(WEIGHTS)}, or {quoted(INDEX)})", got, CONVERT, "pickle")
    return None


def has_all_weights(folder: Path) -> bool:
    """Returns whether a folder has its weights as safetensors, every shard of them."""
    if (folder / WEIGHTS).is_file():
        return True
    shards = _shards(folder / INDEX)
    return bool(shards) and all((folder / name).is_file() for name in shards or ())


def _shards(index: Path) -> list[str] | None:
    """Returns the files that an index names, sorted; None where it is none, or too large."""
    try:
        return sorted({str(name) for name in json.loads(read_file(index, MAX_INDEX_BYTES))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def adapter_problem(key: str) -> Problem:
    """Returns why an adapter is not opened: it names another checkpoint, and its weights may be a pickle."""
    expected, hint = "a checkpoint that is whole by itself", "merge the adapter into its model first (peft: `merge_and_unload`)"
    return Problem("model.key", expected, f"{quoted(key)}, with an adapter ({quoted(ADAPTER)})", hint, "adapter")


def index_problem(index: Path, key: str) -> Problem | None:
    """Returns why the shards that an index names are not opened, None where they may be."""
    where = f"{quoted(index.name)} of {quoted(key)}"
    if index.is_file() and index.stat().st_size > MAX_INDEX_BYTES:
        return Problem("model.key", f"an index of at most {MAX_INDEX_BYTES:,} bytes", f"a larger {where}", code="too_large")
    shards = _shards(index)
    if shards is None:
        return Problem("model.key", "an index of shards (JSON with a `weight_map`)", f"another in {where}", code="checkpoint")
    if bad := [name for name in shards if not name.endswith(".safetensors")]:
        why = f", {A_PICKLE}" if is_pickle(bad[0]) else ""
        return Problem("model.key", "shards that are safetensors files", f"{quoted(bad[0])} in {where}{why}", CONVERT, "pickle")
    if bad := [name for name in shards if len(PurePosixPath(name).parts) != 1 or "\\" in name or "\0" in name]:
        return Problem("model.key", "shards beside their index", f"{quoted(bad[0])} in {where}", code="file")
    return None


def config_problem(config: Mapping[str, Any], key: str) -> Problem | None:
    """Returns why what a `config.json` asks for is not done without the flag: files that are no safetensors, attention from elsewhere."""
    weights = config.get("transformers_weights")
    if weights is not None and not (isinstance(weights, str) and weights.endswith((".safetensors", ".safetensors.index.json"))):
        got = f"{quoted(weights)} as `transformers_weights` of {quoted(key)}"
        return Problem("model.key", "weights as safetensors", got, CONVERT, "pickle")
    for name in ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"):
        for value in _texts(config.get(name)):
            if "/" in value:
                got = f"{quoted(value)} as `{name}` of {quoted(key)}"
                return Problem("model.key", "attention that is a part of transformers", got, FLAG, "remote_code")
    return None


def code_problem(auto_map: Any, own: Mapping[str, Iterable[str]], key: str, file: str) -> Problem | None:
    """Returns why a checkpoint's own code is missed; None where transformers has a class of the very name, which is taken instead.

    Args:
        auto_map: of the file; by the class of transformers that looks there, `module.Class` or a list of such.
        own: by the classes that are looked up, the names that transformers has itself.
        key: as the document has it.
        file: that says so.
    """
    if not isinstance(auto_map, Mapping):
        auto_map = {next(iter(own)): auto_map} if auto_map else {}
    for kind, known in own.items():
        names = list(_texts(auto_map.get(kind)))
        if foreign := [name for name in names if name.rpartition(".")[2] not in known]:
            got = f"{quoted(foreign[0])} as `auto_map.{kind}` in {quoted(file)} of {quoted(key)}"
            return Problem("model.key", "a checkpoint that transformers can open without code of its own", got, FLAG, "remote_code")
    return None


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)
