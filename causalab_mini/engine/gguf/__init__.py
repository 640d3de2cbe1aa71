"""GGUF files: read once, checked against the model they stand for, and written as a plain Llama folder in a cache.

Everything after `converted_folder` opens that folder as it opens any other. The folder's name is made of the file's sha256 and of the
converter's version, so another file, or a better converter, never meets an old folder.

Weights keep the precision that they have in the file (fp32, fp16, bf16). Quantised ones are written in fp32, four bytes a parameter:
it is the only precision that holds the product of a block's fp16 scale and a quantised integer without rounding, so that the folder is
the file. What a document then asks for (`model.dtype`) is made from these.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from causalab_mini.engine.gguf.file import GgufFile
from causalab_mini.engine.gguf.llama import read_config, write_weights
from causalab_mini.engine.gguf.tokenizer import read_tokenizer
from causalab_mini.errors import ModelError, Problem, quoted
from causalab_mini.model.source import cache_folder

VERSION = 1
"""Of the converter: raised when it writes other folders than before."""
MARKER = "converted.json"


def converted_folder(path: Path) -> Path:
    """Returns the folder of a GGUF file, converted if that has not been done.

    Raises:
        ModelError: the file can't be read, is damaged, holds something that was not proved equal to a Llama, or the cache is not writable.
    """
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(
            Problem("model.key", "a GGUF file that can be read", f"{quoted(path)} ({error.strerror})", code="model_key")
        ) from None
    home = cache_folder() / "gguf"
    folder = home / f"{sha256}-{VERSION}"
    if not is_whole(folder):
        source = GgufFile(path)
        try:
            home.mkdir(parents=True, exist_ok=True)
            _write(source, folder, sha256)
        except OSError as error:
            hint = "set CAUSALAB_CACHE to a folder with room for four bytes a parameter"
            got = f"{quoted(home)} ({error.strerror})"
            raise ModelError(Problem("model.key", "a cache folder that can be written", got, hint, "cache")) from None
    return folder


def is_whole(folder: Path) -> bool:
    """Whether a folder holds everything that its conversion wrote."""
    try:
        sizes = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _write(source: GgufFile, folder: Path, sha256: str) -> None:
    """Writes a folder under another name and renames it, so that a half-written one is never taken for a whole one."""
    draft = Path(tempfile.mkdtemp(prefix=".", suffix=f"-{sha256[:12]}", dir=folder.parent))
    try:
        config = read_config(source)
        tokenizer = read_tokenizer(source)
        write_weights(source, config, draft)
        config.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        sizes = {file.name: file.stat().st_size for file in sorted(draft.iterdir())}
        marker = {"file": source.path.name, "sha256": sha256, "version": VERSION, "files": sizes}
        (draft / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
        draft.chmod(0o755)
        if folder.exists() and not is_whole(folder):
            shutil.rmtree(folder)
        try:
            draft.rename(folder)
        except OSError:
            if not is_whole(folder):  # another process may have been quicker
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
