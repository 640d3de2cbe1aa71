"""The featurizers of one point: where each is used, how wide it is, and where its parameters come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from causalab_mini.data.opening import is_inside
from causalab_mini.data.parameters import Header, Parameters, find_parameters, read_header, stamp_differences
from causalab_mini.errors import DataError, PlanError, Problem, listed, quoted
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.axes import axes_of
from causalab_mini.plan.files import name_problem
from causalab_mini.plan.spec import Chain, Fit
from causalab_mini.plan.spec.featurizers import FeaturizerBase, MeanAndStd, Pca, Sae, Standardize, Subspace
from causalab_mini.plan.stamps import stamp_of

if TYPE_CHECKING:
    from causalab_mini.plan.build import Builder


class Files:
    """The files that featurizers are read from, each opened once.

    Args:
        bases: folders that paths are looked for in, in this order.

    Attributes:
        others: checksums of files that probes are read from.
    """

    def __init__(self, bases: tuple[Path, ...]) -> None:
        self.bases = bases
        self.headers: dict[str, Header] = {}
        self.others: dict[str, str] = {}

    @property
    def checksums(self) -> dict[str, str]:
        """Checksums by path, as documents have it."""
        return {path: header.sha256 for path, header in self.headers.items()} | self.others

    def header(self, text: str, path: str) -> Header:
        """Returns what a file says of its tensors.

        Raises:
            PlanError: it is not there, not below the folders, or no safetensors file; `path` is where the document names it.
        """
        if text not in self.headers:
            found = [] if name_problem(text) else [base / text for base in self.bases if is_inside(base / text, base)]
            found = [full.resolve() for full in found if full.exists()]
            if not found:
                raise PlanError(
                    Problem(path, "a file below the document's folder, or the working directory", f"no {quoted(text)} there", code="file")
                )
            try:
                self.headers[text] = read_header(self.file_of(found[0], text, path))
            except DataError as error:
                raise PlanError(placed(error, path)) from None
        return self.headers[text]

    def file_of(self, found: Path, text: str, path: str) -> Path:
        """Returns the file that a path is, or the only safetensors file of the folder that it is.

        Raises:
            PlanError: it is a folder with none, or with several.
        """
        if not found.is_dir():
            return found
        inside = [each for each in sorted(found.glob("*.safetensors")) if is_inside(each, found)]
        if len(inside) != 1:
            names = listed(each.name for each in inside) or "none"
            raise PlanError(Problem(path, "a safetensors file, or a folder with one", f"{quoted(text)} with {names}", code="file"))
        return inside[0]


def placed(error: DataError, path: str) -> list[Problem]:
    """Returns a file's problems as those of the place that names it."""
    within = f" in {quoted(error.file)}" if error.file else ""
    return [Problem(path, p.expected, f"{p.got}{within}", p.hint, p.code) for p in error.problems]


class FeaturizerBuilder:
    """Builds the featurizers of a point as its reads and writes are met."""

    def __init__(self, owner: Builder, files: Files) -> None:
        self.owner = owner
        self.files = files
        self.made: dict[str, nodes.Featurizer] = {}
        declared, steps = owner.spec.featurizers, owner.spec.steps
        self.fits = {name: (step_name, step) for step_name, step in steps.items() if isinstance(step, Fit) for name in step.params}
        self.chains = {part: name for name, chain in declared.items() if isinstance(chain, Chain) for part in chain.of}

    def at(self, name: str, site: nodes.Site, path: str) -> nodes.Featurizer:
        """Returns a featurizer at the place of a read or write.

        Raises:
            PlanError: it is used at another place too, is wider than it, or its file does not fit.
        """
        if name not in self.made:
            width = axes_of(site, "raw", self.owner.facts).n_features
            assert width is not None
            self.made[name] = self.build(name, width, site)
        found = self.made[name]
        if found.site != site:
            raise PlanError(
                Problem(f"{path}.featurizer", f"{quoted(name)} at one site ({found.site})", f"also at {site}", code="featurizer")
            )
        return found

    def named(self, name: str) -> nodes.Featurizer:
        """Returns a featurizer that has been met, alone or as a part of a chain.

        Raises:
            PlanError: the steps that use it could not be built, and have said why.
        """
        found = self.made.get(name) or self.made.get(self.chains.get(name, ""))
        if found is None:
            raise PlanError(())
        return next(part for part in found.all if part.name == name)

    def build(self, name: str, d: int, site: nodes.Site | None) -> nodes.Featurizer:
        """Returns a featurizer of some width."""
        path, spec = f"featurizers.{name}", self.owner.spec.featurizers[name]
        if isinstance(spec, Chain):
            parts: list[nodes.Featurizer] = []
            for part in spec.of:
                parts.append(self.build(part, parts[-1].n_features if parts else d, site if not parts else None))
            return nodes.Featurizer(name, "chain", site, d, parts[-1].n_features, parts=tuple(parts))
        step, fit = self.fits.get(name, (None, None))
        seed = getattr(spec, "seed", None)
        made = nodes.Featurizer(
            name,
            spec.kind,
            site,
            d,
            self.width(path, spec, d),
            parametrization=spec.parametrization if isinstance(spec, Subspace) else None,
            init=spec.init if isinstance(spec, Subspace) else "random",
            seed=seed if seed is not None else fit.seed if fit is not None else 0,
            sources=self.sources(path, spec, d),
            activation=spec.activation if isinstance(spec, Sae) else None,
            topk=spec.topk if isinstance(spec, Sae) else None,
            trained_by=step,
        )
        if getattr(spec, "file_path", None) is None:
            return made
        return self.from_file(path, made, str(getattr(spec, "file_path")))  # noqa: B009 - most kinds have it

    def width(self, path: str, spec: FeaturizerBase, d: int) -> int:
        """Returns how many features there are, as far as that is said without a file."""
        k = getattr(spec, "k", None)
        if isinstance(spec, Subspace | Pca) and spec.k > d:
            raise PlanError(Problem(f"{path}.k", f"at most {d} (the width of the place)", quoted(k), code="featurizer"))
        return d if k is None else int(k)

    def sources(self, path: str, spec: FeaturizerBase, d: int) -> tuple[tuple[str, str], ...]:
        """Returns the outputs that give parameters.

        Raises:
            PlanError: they are of another width, or no single vector.
        """
        named = {}
        if isinstance(spec, Pca) and spec.from_ is not None:
            named = {"basis": ("from", spec.from_)}
        elif isinstance(spec, Standardize) and isinstance(spec.from_, MeanAndStd):
            named = {"mean": ("from.mean", spec.from_.mean), "std": ("from.std", spec.from_.std)}
        for key, output in named.values():
            axes, node = self.owner.axes.get(output), self.owner.outputs.get(output)
            if axes is None:
                raise PlanError(())  # its own step could not be built, and has said why
            if axes.n_features != d or axes.n_layers is not None:
                raise PlanError(
                    Problem(
                        f"{path}.{key}", f"an output of {d} features of the place itself", f"{quoted(output)} with {axes}", code="width"
                    )
                )
            if isinstance(spec, Standardize) and isinstance(node, nodes.Output) and self.owner.widths.get(output, 1) != 1:
                got = f"{quoted(output)}, of {self.owner.widths[output]} tokens"
                raise PlanError(Problem(f"{path}.{key}", "an output that is one vector", got, code="width"))
        return tuple((parameter, output) for parameter, (_, output) in named.items())

    def from_file(self, path: str, made: nodes.Featurizer, text: str) -> nodes.Featurizer:
        """Returns a featurizer with the parameters of a file.

        Raises:
            PlanError: the file has none of this kind, or those of another place or size.
        """
        where = f"{path}.file_path"
        header = self.files.header(text, where)
        try:
            found = find_parameters(header, made.name, made.kind, made.activation)
        except DataError as error:
            raise PlanError(placed(error, where)) from None
        k = getattr(self.owner.spec.featurizers[made.name], "k", None)
        if found.d != made.d:
            raise PlanError(Problem(where, f"parameters for a place of {made.d} features", f"{found.d} in {quoted(text)}", code="width"))
        if found.k is not None and k is not None and k != found.k:
            raise PlanError(Problem(f"{path}.k", f"{found.k} (what {quoted(text)} has)", quoted(k), code="width"))
        topk = made.topk if made.topk is not None else found.options.get("topk")
        if made.activation == "topk" and topk is None:
            raise PlanError(Problem(f"{path}.topk", "how many latents a token has (the file does not say)", "none", code="featurizer"))
        whole = replace(made, n_features=made.d if found.k is None else found.k, file=found, sha256=header.sha256, topk=topk)
        self.compare(where, whole, found)
        return whole

    def compare(self, path: str, made: nodes.Featurizer, found: Parameters) -> None:
        """Refuses parameters whose stamp is of another place."""
        if found.stamp is None:
            return
        expected = stamp_of(made, self.owner.facts)
        problems = [
            Problem(path, f"parameters whose `{key}` is {quoted(own)}", quoted(theirs), code="stamp")
            for key, theirs, own in stamp_differences(found.stamp, expected)
        ]
        if problems:
            raise PlanError(problems)
