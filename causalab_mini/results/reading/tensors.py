"""Tensors of safetensors files: shape and type at once, numbers when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causalab_mini.data.opening import A_PICKLE, is_pickle
from causalab_mini.results.reading.rows import refuse

if TYPE_CHECKING:
    import numpy
    import torch


class SavedTensor:
    """A tensor of a file. Opening it reads the file's header; `numpy`, `torch` and slices read what they return.

    Args:
        path: of the file.
        key: of the tensor in the file.

    Raises:
        DataError: the file can't be read, is no safetensors file, or lacks the tensor.

    Attributes:
        path: of the file.
        key: of the tensor in the file.
        shape: of the tensor.
        dtype: as safetensors names it: `F32`, `BF16`, `I64`.
    """

    __slots__ = ("dtype", "key", "path", "shape")

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        with _opened(path, "numpy") as file:
            if key not in file.keys():  # noqa: SIM118
                refuse(path, f"a tensor `{key}`", f"only {', '.join(f'`{each}`' for each in file.keys())}")  # noqa: SIM118
            part = file.get_slice(key)
            self.shape: tuple[int, ...] = tuple(part.get_shape())
            self.dtype: str = part.get_dtype()

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the file says of itself: `digest`, `kind`, stamps."""
        with _opened(self.path, "numpy") as file:
            return dict(file.metadata() or {})

    def numpy(self) -> numpy.ndarray:
        """Returns the tensor as a numpy array; `BF16`, which numpy lacks, as float32, exactly.

        Raises:
            DataError: the file has changed meanwhile, or its type is none that numpy has.
        """
        found: numpy.ndarray = self[...]
        return found

    def torch(self) -> torch.Tensor:
        """Returns the tensor as a torch tensor."""
        with _opened(self.path, "pt") as file:
            found: torch.Tensor = file.get_tensor(self.key)
            return found

    def __getitem__(self, index: Any) -> Any:
        """Returns a part of the tensor as a numpy array; what isn't asked for isn't read where safetensors can slice so."""
        import numpy

        if self.dtype == "BF16":
            bits = numpy.asarray(self._bits()[index], dtype=numpy.uint32) << 16
            return bits.view(numpy.float32)
        with _opened(self.path, "numpy") as file:
            if self.dtype.startswith("F8") or self.dtype in ("C64",):
                refuse(self.path, "a type that numpy has", f"`{self.dtype}`", self.key, "`.torch()` reads it")
            part = self._part(index)
            return file.get_tensor(self.key)[index] if part is None else file.get_slice(self.key)[part]

    def _part(self, index: Any) -> tuple[int | slice, ...] | None:
        """Returns an index as safetensors takes it, or None where it does not: steps, masks, new axes, what is not there."""
        found: list[int | slice] = []
        every = index if isinstance(index, tuple) else (index,)
        if not self.shape or len(every) > len(self.shape):
            return None
        for size, each in zip(self.shape, every, strict=False):
            if type(each) is int and 0 <= each < size:
                found.append(each)
            elif isinstance(each, slice) and each.step in (None, 1) and (bounds := each.indices(size))[0] < bounds[1]:
                found.append(slice(bounds[0], bounds[1]))
            else:
                return None
        return tuple(found)

    def _bits(self) -> Any:
        """Returns the tensor's bytes as 16-bit numbers, mapped into memory."""
        import json

        import numpy

        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            start, _ = json.loads(file.read(length))[self.key]["data_offsets"]
        return (
            numpy.memmap(self.path, numpy.uint16, "r", 8 + length + start, self.shape)
            if 0 not in self.shape
            else numpy.zeros(self.shape, numpy.uint16)
        )

    def __repr__(self) -> str:
        return f"SavedTensor `{self.key}` {self.dtype} {list(self.shape)} in {self.path}"


def tensor_keys(path: Path) -> list[str]:
    """Returns the names of the tensors in a file.

    Raises:
        DataError: it can't be read.
    """
    with _opened(path, "numpy") as file:
        return sorted(file.keys())


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if is_pickle(path):
        refuse(path, "a safetensors file", A_PICKLE)
    if not path.is_file():
        refuse(path, "a readable file", "no such file")
    try:
        with safe_open(path, framework) as file:
            yield file
    except (SafetensorError, OSError) as error:
        refuse(path, "a safetensors file", f"something else ({error})")
