"""A GGUF file as values by key and tensors by name; what is damaged or missing in it becomes an error in our words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from causalab_mini.errors import ModelError, Problem, quoted

_T = TypeVar("_T")

NATIVE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types that hold numbers as they are; every other one is quantised, or not a weight."""


class GgufFile:
    """An opened file.

    Attributes:
        path: of the file.
        tensors: the `gguf` package's own records by name, in the file's order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf = _package()
        with self._whole():
            reader = self._gguf.GGUFReader(path)
            self._fields: dict[str, Any] = dict(reader.fields)
            self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        if reader.byte_order != "I":
            raise self.refused("a file in this machine's byte order", "the other byte order")

    def keys(self) -> tuple[str, ...]:
        """Returns the keys of the metadata."""
        return tuple(self._fields)

    def find(self, key: str, kind: type[_T]) -> _T | None:
        """Returns a value of the metadata, or None where it is absent.

        Raises:
            ModelError: it is of another kind, or damaged.
        """
        if key not in self._fields:
            return None
        with self._whole():
            value = self._fields[key].contents()
        if kind is float and isinstance(value, float):
            with self._whole():
                value = float(str(self._fields[key].parts[-1][0]))  # the shortest decimal of an fp32 number: 1e-05, not 9.99999974e-06
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.refused(f"{quoted(key)} to be {kind.__name__}", quoted(value))
        return value

    def value(self, key: str, kind: type[_T]) -> _T:
        """Returns a value of the metadata that must be there.

        Raises:
            ModelError: it is absent, of another kind, or damaged.
        """
        found = self.find(key, kind)
        if found is None:
            raise self.refused(f"{quoted(key)} in its metadata", "none")
        return found

    def dtype(self, name: str) -> torch.dtype:
        """Returns what a tensor is read as."""
        return NATIVE.get(self.tensors[name].tensor_type.name, torch.float32)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape, rows first."""
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor: as it is, or dequantised to fp32.

        Raises:
            ModelError: its type can't be dequantised, or it holds numbers that are not finite.
        """
        record = self.tensors[name]
        kind = record.tensor_type.name
        if kind in NATIVE:
            read = torch.from_numpy(record.data.copy())
            found = read.view(torch.bfloat16) if kind == "BF16" else read
        else:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # numbers that are not finite are refused below
                    found = torch.from_numpy(self._gguf.quants.dequantize(record.data, record.tensor_type).copy())
            except NotImplementedError:
                hint = "convert it with another quantisation, such as Q8_0"
                raise self.refused("weights in a type that the `gguf` package reads", f"{quoted(kind)} ({quoted(name)})", hint) from None
        if not torch.isfinite(found).all():
            raise self.refused("finite weights", f"NaN or infinity in {quoted(name)}", "the file is damaged: copy it anew")
        return found

    def refused(self, expected: str, got: str, hint: str = "") -> ModelError:
        """Returns the error that names this file."""
        return ModelError(Problem("model.key", f"a GGUF file with {expected}", f"{got} in {quoted(self.path)}", hint, "gguf"))

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What the `gguf` package raises where a file ends too early, or says nonsense."""
        try:
            yield
        except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            first = (str(error).strip() or type(error).__name__).split("\n")[0]
            got = f"{quoted(self.path)} ({first})"
            raise ModelError(Problem("model.key", "a whole GGUF file", got, "the file is damaged: copy it anew", "gguf")) from error


def _package() -> Any:
    """Returns the `gguf` package.

    Raises:
        ModelError: it is not installed.
    """
    try:
        import gguf
    except ImportError:
        hint = "pip install 'causalab-mini[gguf]'"
        raise ModelError(Problem("model.key", "the package `gguf`, which reads GGUF files", "none installed", hint, "extra")) from None
    return gguf
