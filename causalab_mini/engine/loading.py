"""Opening checkpoints: config, tokenizer and facts without weights, and the errors that a user can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import CONFIG_NAME, find_adapter_config_file, is_peft_available
from transformers.utils import logging as transformers_logging

from causalab_mini.engine.tokenizer import read_tokenizer
from causalab_mini.errors import CausalabError, ModelError, Problem, quoted
from causalab_mini.model.facts import ModelFacts, facts_from_config
from causalab_mini.model.guards import adapter_problem, code_problem, config_problem, folder_problem, has_all_weights
from causalab_mini.model.source import Source, find_source
from causalab_mini.plan.spec import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_COMMIT = re.compile("[0-9a-f]{40}")
_OF_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint without its weights.

    Attributes:
        source: where it is.
        config, tokenizer: of transformers.
        facts: shapes and identity.
        options: of `from_pretrained`.
        warnings: for the user.
    """

    source: Source
    config: Any
    tokenizer: Any
    facts: ModelFacts
    options: dict[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are loaded as."""
        return DTYPES[self.facts.dtype]


def open_checkpoint(model: ModelSpec, base: Path | None = None, trust_remote_code: bool = False) -> Checkpoint:
    """Returns a checkpoint's config, tokenizer and facts.

    Args:
        model: of the document.
        base: the document's folder, for local paths.
        trust_remote_code: whether code that comes with the checkpoint may run.

    Raises:
        ModelError: it can't be found or read, its revision is missing or refused, or its family is not in the address book.
    """
    source, config, facts, options = _open_config(model, base, trust_remote_code)
    tokenizer, warnings = _opened_tokenizer(model, source, options)
    return Checkpoint(source, config, tokenizer, facts, options, warnings)


def open_facts(model: ModelSpec, base: Path | None = None, trust_remote_code: bool = False) -> ModelFacts:
    """Returns what a checkpoint's config alone says of it.

    Raises:
        ModelError: as `open_checkpoint`.
    """
    return _open_config(model, base, trust_remote_code)[2]


def _open_config(model: ModelSpec, base: Path | None, trust_remote_code: bool) -> tuple[Source, Any, ModelFacts, dict[str, Any]]:
    """Returns where a checkpoint is, its config, its facts, and the options of `from_pretrained`."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    source = find_source(model.key, base)
    if source.kind == "hub" and model.revision is None:
        hint = f"{quoted(model.key)} is no folder here, so it is taken for a hub id"
        raise ModelError(Problem("model.revision", "a commit, branch or tag (required for a hub id)", "none", hint, "revision"))
    source, revision = _unpacked(source, model.revision, "model.revision")
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if source.kind == "hub":
        options["revision"] = model.revision
        if cached_snapshot(source.location, model.revision):
            options["local_files_only"] = True  # a commit never changes: nobody need be asked
    if source.kind == "folder" and (problem := folder_problem(Path(source.location), model.key)):
        raise ModelError(problem)
    settings = _opened(model, "a config", lambda: PreTrainedConfig.get_config_dict(source.location, **_where(options))[0])
    if not isinstance(settings, dict):
        expected, got = f"a checkpoint whose {quoted(CONFIG_NAME)} is an object", quoted(model.key)
        raise ModelError(Problem("model.key", expected, got, code="checkpoint"))
    _refuse_unsafe(model, source, settings, options)
    config = _opened(model, "a config", lambda: AutoConfig.from_pretrained(source.location, **options))
    if not trust_remote_code and hasattr(config, "auto_map"):
        del config.auto_map  # nnsight lets what it names run
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            Problem("model.key", "weights that are not quantised", quoted(model.key), "quantised loading is not there yet", "not_yet")
        )
    commit = getattr(config, "_commit_hash", None)
    if commit is not None:
        options["revision"] = commit
    facts = facts_from_config(config, model.key, commit or revision, model.dtype, model.attn_implementation)
    return source, config, facts, options


def open_tokenizer(key: str, revision: str | None, base: Path | None = None) -> Any:
    """Returns a checkpoint's tokenizer alone; without a revision, the one that the hub's main branch has.

    Raises:
        ModelError: it can't be found or read.
    """
    transformers_logging.set_verbosity_error()
    source = find_source(key, base)
    source, _ = _unpacked(source, revision, "--revision")
    options: dict[str, Any] = {"trust_remote_code": False, **({"revision": revision} if revision is not None else {})}
    if source.kind == "hub" and cached_snapshot(source.location, revision):
        options["local_files_only"] = True
    model = ModelSpec.model_construct(key=key, revision=revision, dtype="fp32")
    tokenizer, _ = _opened_tokenizer(model, source, options)
    return tokenizer


def cached_snapshot(key: str, revision: str | None) -> Path | None:
    """Returns the folder that the hub's cache has of a commit, None unless all is in it that a run opens."""
    if revision is None or _COMMIT.fullmatch(revision) is None:
        return None
    found = try_to_load_from_cache(key, CONFIG_NAME, revision=revision)
    folder = Path(found).parent if isinstance(found, str) else None
    return folder if folder is not None and has_all_weights(folder) and any((folder / name).is_file() for name in _OF_TOKENIZERS) else None


def _where(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that say where a file is looked for."""
    return {name: options[name] for name in ("revision", "local_files_only") if name in options}


def _opened_tokenizer(model: ModelSpec, source: Source, options: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Returns a checkpoint's tokenizer and what the user should know of it.

    Raises:
        ModelError: it can't be found or read, or needs code of its own.
    """
    if not options["trust_remote_code"]:
        asked = _opened(model, "a tokenizer", lambda: get_tokenizer_config(source.location, **_where(options))).get("auto_map")
        if asked and (problem := code_problem(asked, {"AutoTokenizer": dir(transformers)}, model.key, "tokenizer_config.json")):
            raise ModelError(problem)
    return _opened(model, "a tokenizer", lambda: read_tokenizer(source.location, dict(options)))


def _refuse_unsafe(model: ModelSpec, source: Source, settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuses weights that are no safetensors files; without the flag, code and kernels that come with the checkpoint, too.

    Raises:
        ModelError: with what was found.
    """
    problem = None
    if source.kind == "hub":
        found = try_to_load_from_cache(source.location, CONFIG_NAME, revision=settings.get("_commit_hash") or model.revision)
        problem = folder_problem(Path(found).parent, model.key) if isinstance(found, str) else None
        if (
            problem is None
            and not options.get("local_files_only")
            and is_peft_available()
            and find_adapter_config_file(source.location, revision=model.revision)
        ):
            problem = adapter_problem(model.key)
    if problem is None and not options["trust_remote_code"]:
        kind = settings.get("model_type")
        own = {"AutoConfig": CONFIG_MAPPING_NAMES, "AutoModelForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
        known = {auto: [names[kind]] if kind in names else [] for auto, names in own.items()}
        problem = config_problem(settings, model.key) or code_problem(settings.get("auto_map"), known, model.key, CONFIG_NAME)
    if problem is not None:
        raise ModelError(problem)


def _unpacked(source: Source, revision: str | None, path: str) -> tuple[Source, str | None]:
    """Returns a GGUF file's folder with the file's checksum for a revision; every other source and revision as they are.

    Raises:
        ModelError: a revision of what has none; `path` is where it was asked for.
    """
    if source.kind != "hub" and revision is not None:
        expected = f"no revision (the model is a {'file' if source.kind == 'gguf' else 'folder'})"
        raise ModelError(Problem(path, expected, quoted(revision), code="revision"))
    if source.kind != "gguf":
        return source, revision
    from causalab_mini.engine.gguf import converted_folder

    folder = converted_folder(Path(source.location))
    return replace(source, location=str(folder)), f"sha256:{folder.name.partition('-')[0]}"


def _opened(model: ModelSpec, what: str, open_it: Callable[[], _T]) -> _T:
    """Returns what was opened; what transformers and the hub raise for a wrong key becomes one error in our words."""
    try:
        return open_it()
    except CausalabError:
        raise
    except Exception as error:  # of whatever kind: tokenizers raises plain ones, the hub and code that comes with a checkpoint their own
        first = str(error).strip().split("\n")[0] or type(error).__name__
        name = model.key if model.revision is None else f"{model.key} at {model.revision}"
        hint = "without the hub, only what is in its cache can be opened (`causalab-mini doctor` shows where that is); `HF_HUB_OFFLINE=1` does not try"
        raise ModelError(Problem("model", f"a checkpoint with {what}", f"{quoted(name)} ({first})", hint, "checkpoint")) from error
