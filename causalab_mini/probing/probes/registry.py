"""Which probe stands behind a name: those that ship, those that a program registers, those that installed packages announce."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, MutableMapping, MutableSequence, MutableSet
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, overload

from causalab_mini.errors import quoted
from causalab_mini.probing.probes.base import Probe
from causalab_mini.probing.spec import ExecutionMode

GROUP = "causalab_mini.probes"
"""The entry points of packages that bring probes: name = the `probe_type`, value = the class."""
RECORD = "record"
"""The `probe_type` that needs no probe: it keeps what it is given."""
SHARED = (MutableMapping, MutableSequence, MutableSet)

Kind = type[Probe]
_Class = TypeVar("_Class", bound=Kind)
Function = Callable[..., Any]


class Registry:
    """Probe classes by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._classes: dict[str, Kind] = {}
        self._announced: dict[str, EntryPoint] | None = None

    def register(self, name: str, probe: Kind, *, replace: bool = False) -> None:
        """Puts a class behind a name.

        Raises:
            TypeError: it is no probe, or has what its probes would share.
            ValueError: the name is taken or none; `replace` takes it over.
        """
        if not (isinstance(probe, type) and issubclass(probe, Probe)):
            raise TypeError(f"expected a class of probes (a subclass of `Probe`), got {quoted(probe)}")
        if not isinstance(name, str) or not name.strip() or name == RECORD:
            raise ValueError(f"expected a name of a probe (`{RECORD}` is built in), got {quoted(name)}")
        for owner in (owner for owner in probe.__mro__ if owner not in (Probe, object)):
            for key, value in vars(owner).items():
                if isinstance(value, SHARED) and not key.startswith("__"):
                    expected = "a class without state that its probes share (make it in `__init__`, or a tuple)"
                    raise TypeError(f"expected {expected}, got `{owner.__name__}.{key}`, a {type(value).__name__}")
        with self._lock:
            known = self._classes.get(name)
            if known is not None and known is not probe and not replace:
                raise ValueError(
                    f"expected a name that is not taken, got {quoted(name)}, which is `{known.__name__}` (`replace=True` takes it)"
                )
            self._classes[name] = probe

    def get(self, name: str) -> Kind | None:
        """Returns the class behind a name, None where there is none; a package that announces it is imported now.

        Raises:
            Exception: whatever importing that package does.
        """
        with self._lock:
            if name in self._classes:
                return self._classes[name]
            announced = self._entry_points().get(name)
        if announced is None:
            return None
        self.register(name, announced.load())
        return self._classes[name]

    def names(self) -> list[str]:
        """Returns every name, in order."""
        with self._lock:
            return sorted({*self._classes, *self._entry_points()})

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._announced is None:
            self._announced = {point.name: point for point in entry_points(group=GROUP)}
        return self._announced


REGISTRY = Registry()
"""The registry that is used unless another is named."""


def register(name: str, registry: Registry = REGISTRY) -> Callable[[_Class], _Class]:
    """Returns a decorator that registers a class of probes under a name."""

    def taken(probe: _Class) -> _Class:
        registry.register(name, probe)
        return probe

    return taken


@overload
def inline_probe(name: Function) -> Function: ...
@overload
def inline_probe(name: str | None = None, *, registry: Registry = REGISTRY) -> Callable[[Function], Function]: ...
def inline_probe(name: Any = None, *, registry: Registry = REGISTRY) -> Any:
    """Registers a function as a probe of inline points: it takes an `ActivationRecord`, and `probe_args` as keywords, and returns a verdict.

    `@inline_probe` takes the function's own name, `@inline_probe("name")` another.
    """
    return _decorated(name, ExecutionMode.INLINE, registry)


@overload
def async_probe(name: Function) -> Function: ...
@overload
def async_probe(name: str | None = None, *, registry: Registry = REGISTRY) -> Callable[[Function], Function]: ...
def async_probe(name: Any = None, *, registry: Registry = REGISTRY) -> Any:
    """Registers a function, or a coroutine function, as a probe of async points; else as `inline_probe`."""
    return _decorated(name, ExecutionMode.ASYNC, registry)


def _decorated(name: Any, mode: ExecutionMode, registry: Registry) -> Any:
    def taken(function: Function) -> Function:
        own = name if isinstance(name, str) else function.__name__
        registry.register(own, _class_of(own, function, mode))
        return function

    return taken(name) if callable(name) else taken


def _class_of(name: str, its_function: Function, its_mode: ExecutionMode) -> Kind:
    """Returns the class whose probes call a function."""
    function = its_function
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        raise TypeError(f"expected a function of an activation and keywords, got `{function.__name__}{inspect.signature(function)}`")
    keywords = parameters[1:]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    keywords = [one.replace(kind=one.KEYWORD_ONLY) if one.kind is one.POSITIONAL_OR_KEYWORD else one for one in keywords]

    class FunctionProbe(Probe):
        mode = its_mode
        function = staticmethod(its_function)
        is_coroutine = inspect.iscoroutinefunction(function)

        def __init__(self, **arguments: Any) -> None:
            self._arguments = arguments

        def on_activation(self, record: Any) -> Any:
            return function(record, **self._arguments)

    FunctionProbe.__init__.__signature__ = inspect.Signature([own, *keywords])  # type: ignore[attr-defined]
    FunctionProbe.__name__ = FunctionProbe.__qualname__ = name
    FunctionProbe.__doc__ = function.__doc__
    return FunctionProbe
