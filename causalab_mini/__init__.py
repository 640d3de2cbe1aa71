"""A compiler and runner for causal-intervention experiments on language models.

A document says what is asked; everything after it is one function an arrow, and everything between two arrows is immutable::

    load_spec → build_plan → build_schedule → execute → results

`causalab_mini.load(path)` stands for all of them: `.explain()` says what will be done, `.run(out)` does it. `causalab_mini.open_run(out)`
reads it back.

Axis words, used in every docstring:

    row       one example of a table, with one prompt a role
    token     one token of a row, counted from the row's own first; padded positions only where a docstring says so
    layer     one block of the model, from 0; the first axis of every value, of length one where the site is one layer
    feature   one coordinate of a place's width
    head      a run of features that one attention head owns
    point     one experiment of a sweep
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from causalab_mini.experiment import Experiment, Options, load
    from causalab_mini.plan.load import load_spec
    from causalab_mini.plan.spec import Spec
    from causalab_mini.results.reading import SavedRun, open_run

__all__ = ["Experiment", "Options", "SavedRun", "Spec", "__version__", "load", "load_spec", "open_run"]

_HOMES = {
    "Experiment": "causalab_mini.experiment",
    "Options": "causalab_mini.experiment",
    "SavedRun": "causalab_mini.results.reading",
    "Spec": "causalab_mini.plan.spec",
    "load": "causalab_mini.experiment",
    "load_spec": "causalab_mini.plan.load",
    "open_run": "causalab_mini.results.reading",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
