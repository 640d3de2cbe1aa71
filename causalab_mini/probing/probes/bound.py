"""The probes of a spec, found and tried before anything runs: name, kind, arguments, files, and whether each fits its point."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causalab_mini.data.opening import open_file
from causalab_mini.errors import CausalabError, Issue, did_you_mean, listed, quoted
from causalab_mini.probing.probes.base import Probe, ProbeMisfit
from causalab_mini.probing.probes.registry import RECORD, REGISTRY, Kind, Registry
from causalab_mini.probing.spec import ExecutionMode, ExtractionPoint, InterventionMode, ProbeSpec

if TYPE_CHECKING:
    from causalab_mini.model.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class BoundProbe:
    """What makes a point's probe: a fresh one for each request.

    Attributes:
        kind: its class.
        arguments: of its constructor; paths are absolute.
        checksums: SHA-256 of its files, by argument.
    """

    kind: Kind
    arguments: Mapping[str, Any]
    checksums: Mapping[str, str]

    def make(self) -> Probe:
        """Returns a fresh probe."""
        return self.kind(**{name: _fresh(value) for name, value in self.arguments.items()})

    @property
    def code(self) -> dict[str, str]:
        """What its class is, as JSON data: its name, and the checksum of the file of one that does not ship."""
        function = getattr(self.kind, "function", self.kind)
        name = (
            f"{self.kind.__module__}.{self.kind.__qualname__}"
            if function is self.kind
            else f"{function.__module__}.{function.__qualname__}"
        )
        if name.startswith("causalab_mini."):
            return {"name": name}
        try:
            file = inspect.getsourcefile(function)
            return {"name": self.kind.__qualname__, "sha256": hashlib.sha256(Path(str(file)).read_bytes()).hexdigest()}
        except (TypeError, OSError):
            return {"name": name}


@dataclass(slots=True)
class Binding:
    """What a spec's probes are made of.

    Args:
        registry: that names are looked up in.
        defaults: arguments by `probe_type`, which those of a point go before.
        folder: of the spec; relative files are looked for there first.
    """

    registry: Registry = REGISTRY
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folder: Path | None = None

    def bind(self, spec: ProbeSpec, facts: ModelFacts) -> tuple[dict[str, BoundProbe], list[Issue]]:
        """Returns what makes the probe of every point that has one, and everything that is wrong."""
        found: dict[str, BoundProbe] = {}
        issues: list[Issue] = []
        for point in spec:
            issues += problems_of_record(point)
            if point.probe_type == RECORD:
                continue
            try:
                found[point.name] = self._bound(point, facts)
            except _Refused as refused:
                issues.append(refused.issue)
        return found, issues

    def _bound(self, point: ExtractionPoint, facts: ModelFacts) -> BoundProbe:
        kind = self._kind(point)
        for name, own, theirs in (
            ("probe_kind", kind.kind, point.probe_kind),
            ("execution_mode", kind.mode, point.execution_mode),
        ):
            if own is not None and own is not theirs:
                raise _refused(point, name, f"{quoted(str(own))} (all that {quoted(point.probe_type)} can serve)", quoted(str(theirs)))
        if point.execution_mode is ExecutionMode.INLINE:
            methods = (kind.on_start, kind.on_activation, kind.on_end)
            if kind.is_coroutine or any(inspect.iscoroutinefunction(method) for method in methods):
                raise _refused(point, "execution_mode", f"`async` ({quoted(point.probe_type)} is a coroutine)", "`inline`")
        arguments = {**self.defaults.get(point.probe_type, {}), **point.probe_kwargs}
        self._bind_arguments(point, kind, arguments)
        checksums = {}
        for name in kind.files:
            if arguments.get(name) is not None:
                arguments[name], checksums[name] = self._file(point, name, arguments[name])
        bound = BoundProbe(kind, arguments, checksums)
        try:
            made = bound.make()
            if all(layer < facts.n_layers for layer in point.layers):
                made.fits(point, facts)
        except ProbeMisfit as error:
            where = f"probe_args.{error.argument}" if error.argument else "probe_type"
            raise _refused(point, where, error.expected, error.got, error.hint) from None
        except CausalabError as error:
            problem = error.problems[0]
            raise _refused(point, "probe_args", problem.expected, problem.got, problem.hint) from None
        except Exception as error:
            expected = f"arguments that {quoted(point.probe_type)} can be made with"
            raise _refused(point, "probe_args", expected, f"{type(error).__name__}: {error}") from error
        return bound

    def _kind(self, point: ExtractionPoint) -> Kind:
        try:
            kind = self.registry.get(point.probe_type)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            raise _refused(point, "probe_type", f"a package that brings {quoted(point.probe_type)} and can be imported", got) from error
        if kind is None:
            names = [RECORD, *self.registry.names()]
            hint = did_you_mean(point.probe_type, names) or "a file that registers it is given with `--probes FILE`"
            raise _refused(point, "probe_type", f"a probe that is registered ({listed(names)})", quoted(point.probe_type), hint, "enum")
        return kind

    def _bind_arguments(self, point: ExtractionPoint, kind: Kind, arguments: Mapping[str, Any]) -> None:
        """Refuses arguments that the constructor does not take."""
        taken = list(inspect.signature(kind.__init__).parameters.values())[1:]
        names = [one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        takes_all = any(one.kind is one.VAR_KEYWORD for one in taken)
        for name in arguments:
            if name not in names and not takes_all:
                expected = f"an argument of {quoted(point.probe_type)} ({listed(names) if names else 'it has none'})"
                raise _refused(point, f"probe_args.{name}", expected, quoted(name), did_you_mean(name, names), "unknown_key")
        for one in taken:
            if one.name in names and one.default is one.empty and one.name not in arguments:
                raise _refused(point, f"probe_args.{one.name}", f"a value ({quoted(point.probe_type)} needs it)", "none", code="missing")

    def _file(self, point: ExtractionPoint, name: str, given: Any) -> tuple[str, str]:
        """Returns the whole path of a file, and its checksum."""
        where = f"probe_args.{name}"
        if not isinstance(given, str) or not given or "\0" in given:
            raise _refused(point, where, "the path of a file", quoted(given), code="type")
        folders = [*([self.folder] if self.folder else []), Path.cwd()]
        tried = [Path(given)] if Path(given).is_absolute() else [folder / given for folder in folders]
        for path in tried:
            try:
                if path.is_file():
                    with open_file(path) as file:
                        return str(path.resolve()), hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise _refused(point, where, "a file that can be read", f"{quoted(given)}: {error.strerror}", code="unreadable") from None
        looked = "" if Path(given).is_absolute() else f", looked for in {listed(dict.fromkeys(str(folder) for folder in folders))}"
        raise _refused(point, where, "a file", f"{quoted(given)}, which is not there{looked}", code="unreadable")


def _fresh(value: Any) -> Any:
    """Returns lists and dicts of their own, so that what one probe does to an argument touches no other."""
    if isinstance(value, Mapping):
        return {key: _fresh(inner) for key, inner in value.items()}
    return [_fresh(inner) for inner in value] if isinstance(value, list) else value


def problems_of_record(point: ExtractionPoint) -> Iterator[Issue]:
    """Yields what makes no sense where nothing judges; nothing of a point with a probe."""
    if point.probe_type != RECORD:
        return
    if point.probe_args:
        yield _issue(
            point, "probe_args", f"no arguments beside `probe_type: {RECORD}`", quoted(point.probe_kwargs), "take `probe_args` out"
        )
    if point.execution_mode is ExecutionMode.ASYNC:
        yield _issue(point, "execution_mode", f"`inline` beside `probe_type: {RECORD}` (there is nothing to wait for)", "`async`")
    if point.intervention is not None and point.intervention.mode is not InterventionMode.REJECT:
        expected = f"`reject` beside `probe_type: {RECORD}` (there is nothing to wait for)"
        yield _issue(point, "intervention.mode", expected, quoted(str(point.intervention.mode)))


class _Refused(Exception):  # noqa: N818 - carries an issue a few frames up
    def __init__(self, issue: Issue) -> None:
        super().__init__(issue.path)
        self.issue = issue


def _refused(point: ExtractionPoint, where: str, expected: str, got: str, hint: str = "", code: str = "combination") -> _Refused:
    return _Refused(_issue(point, where, expected, got, hint, code))


def _issue(point: ExtractionPoint, where: str, expected: str, got: str, hint: str = "", code: str = "combination") -> Issue:
    return Issue(f"{point.name}.{where}", expected, got, hint, code, point=point.name, field=where.partition(".")[0])
