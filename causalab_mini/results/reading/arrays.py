"""A metric over a sweep: numbers with named axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from causalab_mini.errors import Problem, UsageError, did_you_mean, listed, quoted
from causalab_mini.plan.sweep import show_value

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, slots=True, eq=False)
class AxesArray:
    """Numbers with named axes.

    Attributes:
        name: of what they are.
        values: an array of float64, NaN where there is none.
        dims: names of its axes, in the order of the sweep; `layer` last where a read is stacked.
        coords: by axis, its values as the document has them.
        unit: of the numbers.
    """

    name: str
    values: numpy.ndarray
    dims: tuple[str, ...]
    coords: Mapping[str, tuple[Any, ...]]
    unit: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many values each axis has."""
        return tuple(self.values.shape)

    def labels(self, dim: str) -> tuple[str, ...]:
        """Returns the values of an axis as labels show them.

        Raises:
            UsageError: there is no such axis.
        """
        return tuple(show_value(value) for value in self.coords[self._known(dim)])

    def sel(self, **at: Any) -> AxesArray:
        """Returns the part at one value of each axis that is named, without those axes.

        Raises:
            UsageError: there is no such axis, or it has no such value.
        """
        index: list[Any] = [slice(None)] * len(self.dims)
        for dim, value in at.items():
            place = self.dims.index(self._known(dim))
            labels = self.labels(dim)
            if show_value(value) not in labels:
                hint = did_you_mean(str(value), labels)
                raise UsageError(Problem(dim, f"a value of the axis ({listed(labels)})", quoted(show_value(value)), hint, "axis"))
            index[place] = labels.index(show_value(value))
        dims = tuple(dim for dim in self.dims if dim not in at)
        return AxesArray(self.name, self.values[tuple(index)], dims, {dim: self.coords[dim] for dim in dims}, self.unit)

    def to_xarray(self) -> Any:
        """Returns it as an `xarray.DataArray`; values of an axis that are no numbers or texts are as labels show them.

        Raises:
            UsageError: xarray isn't there.
        """
        try:
            import xarray
        except ImportError:
            raise UsageError(Problem("", "xarray", "no such package", "pip install xarray", "extra")) from None
        plain = {dim: all(isinstance(value, int | float | str) for value in values) for dim, values in self.coords.items()}
        coords = {dim: list(values) if plain[dim] else list(self.labels(dim)) for dim, values in self.coords.items()}
        return xarray.DataArray(self.values, coords=coords, dims=self.dims, name=self.name, attrs={"unit": self.unit})

    def _known(self, dim: str) -> str:
        if dim not in self.dims:
            raise UsageError(Problem("", f"an axis ({listed(self.dims) or 'none'})", quoted(dim), did_you_mean(dim, self.dims), "axis"))
        return dim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self.values, dtype=dtype) if copy or dtype is not None else self.values

    def __repr__(self) -> str:
        import numpy

        unit = f" ({self.unit})" if self.unit else ""
        axes = [f"  {dim}: {_some(self.labels(dim))}" for dim in self.dims]
        return "\n".join(
            [
                f"AxesArray `{self.name}`{unit}, {dict(zip(self.dims, self.shape, strict=True))}",
                *axes,
                numpy.array2string(self.values, precision=3, threshold=200),
            ]
        )

    def _repr_html_(self) -> str:
        from causalab_mini.results.reading.html import array_html

        return array_html(self)


def _some(labels: tuple[str, ...]) -> str:
    shown = ", ".join(label if len(label) <= 30 else label[:29] + "…" for label in labels[:12])
    return shown + (f", … {len(labels) - 12} more" if len(labels) > 12 else "")
