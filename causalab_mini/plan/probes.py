"""Linear probes at the compile stage: the label of each row, which rows have equal prompts, and whether folds can be made of them."""

from __future__ import annotations

import importlib.util
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from causalab_mini.data.prompts import Prompt
from causalab_mini.errors import PlanError, Problem, quoted
from causalab_mini.plan import plan as nodes
from causalab_mini.plan import spec as language

if TYPE_CHECKING:
    from causalab_mini.plan.build import Builder

EXTRA = "scikit-learn"


class ProbeBuilder:
    """Builds the linear probes of one point's plan."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def probe(self, name: str, step: language.FitProbe, sources: Mapping[str, nodes.Observe], roles: Sequence[str]) -> nodes.FitProbe:
        """Returns a step that trains a linear probe.

        Args:
            name: of the step.
            step: as the document has it.
            sources: the steps before it, by output.
            roles: whose prompts the features depend on.

        Raises:
            PlanError: its rows are not as many as those that were read, its labels are none that can be learned, or no folds can be made;
                or scikit-learn is not there.
        """
        path = f"steps.{name}"
        if step.features not in sources:
            raise PlanError(())  # the step before could not be built, which has been said
        source = sources[step.features]
        output = next(output for output in source.outputs if output.name == step.features)
        assert isinstance(output, nodes.Output)
        if importlib.util.find_spec("sklearn") is None:
            hint = "pip install 'causalab-mini[probes]'"
            self.builder.say(f"{path}.kind", f"{EXTRA}, to train a linear probe", "no such package", hint, "extra")
        rows = {role: (ref, self.builder.spec.roles[role].field) for role, ref in step.rows.items()}
        prompts = {
            role: self.builder.rows.prompts_of(ref, self.builder.spec.roles[role], f"{path}.rows.{role}", f"roles.{role}")
            for role, ref in step.rows.items()
        }
        for role, found in prompts.items():
            if len(found) != source.n_rows:
                expected = f"{source.n_rows} rows, as {quoted(source.name)} has (they pair by position)"
                raise PlanError(Problem(f"{path}.rows.{role}", expected, str(len(found)), code="rows"))
        base = step.rows["base"]
        labels = self.builder.rows.labels(base, f"{path}.rows.base")
        cells = self.builder.rows.column(base, step.label, f"{path}.label")
        targets, classes = labels_of(f"{path}.label", step, cells)
        groups = groups_of([prompts[role] for role in roles])
        refuse_few(path, step, targets, classes, groups)
        intervention = source.intervention(output.intervention)
        saves = tuple(nodes.SaveNode(None, save.value, save.file_path) for save in step.saves)
        return nodes.FitProbe(
            name,
            labels,
            rows,
            step.features,
            source.name,
            output.intervention,
            intervention.forward_of(output.read).model,
            intervention.read(output.read),
            step.label,
            targets,
            classes,
            groups,
            step.probe,
            step.folds,
            step.seed,
            saves,
        )


def labels_of(
    path: str, step: language.FitProbe, cells: Sequence[Any]
) -> tuple[tuple[nodes.Label | None, ...], tuple[str | int | bool, ...]]:
    """Returns the label of each row, None where there is none, and the classes, sorted; none for `ridge`.

    Raises:
        PlanError: a cell is no label, or labels are of several kinds; names the first row.
    """
    found = [_whole(cell) if step.probe == "logistic" else cell for cell in cells]
    kinds = {"logistic": (str, int, bool), "ridge": (int, float)}[step.probe]
    bad = [
        row
        for row, cell in enumerate(found)
        if cell is not None and (type(cell) not in kinds or (isinstance(cell, float) and not math.isfinite(cell)))
    ]
    if bad:
        words = {"logistic": "a text, a whole number, `true` or `false` (`logistic`)", "ridge": "a finite number (`ridge`)"}[step.probe]
        got = f"{quoted(found[bad[0]])} in {quoted(step.label)} on row {bad[0]} of {quoted(step.rows['base'])}"
        got += f", and the like on {len(bad) - 1} more rows" if len(bad) > 1 else ""
        raise PlanError(Problem(path, words, got, _hint(step.probe, found[bad[0]]), "label"))
    there = [cell for cell in found if cell is not None]
    if step.probe == "ridge":
        return tuple(found), ()
    firsts = {type(cell): cell for cell in reversed(there)}
    if len(firsts) > 1:
        got = " and ".join(quoted(_json(cell)) for cell in firsts.values())
        raise PlanError(Problem(path, "labels that are all texts, all whole numbers, or all `true` and `false`", got, code="label"))
    return tuple(found), tuple(sorted(set(there)))


def groups_of(prompts: Sequence[Sequence[Prompt]]) -> tuple[int, ...]:
    """Returns the group of each row, counted from 0: rows that have a prompt of some role in common are of one group, directly or by others.

    Args:
        prompts: of each role, row by row.
    """
    group = list(range(len(prompts[0])))

    def first(row: int) -> int:
        while group[row] != row:
            group[row] = group[group[row]]
            row = group[row]
        return row

    for of_role in prompts:
        seen: dict[tuple[int, ...], int] = {}
        for row, prompt in enumerate(of_role):
            one, other = first(row), first(seen.setdefault(prompt.ids, row))
            group[max(one, other)] = min(one, other)
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(first(row), len(numbers)) for row in range(len(group)))


def refuse_few(
    path: str,
    step: language.FitProbe | nodes.FitProbe,
    targets: Sequence[nodes.Label | None],
    classes: Sequence[nodes.Label],
    groups: Sequence[int],
    which: str = "",
) -> None:
    """Refuses labels that can't be learned, or of which no folds can be made.

    Args:
        path: of the step.
        step: itself.
        targets: of rows, None of those that are not trained on.
        classes: all labels of `logistic`.
        groups: of rows.
        which: in words, what the rows are where they are not all.

    Raises:
        PlanError: there are fewer than two labels, or fewer prompts, of some class, than folds.
    """
    there = [(target, group) for target, group in zip(targets, groups, strict=True) if target is not None]
    counts = Counter(target for target, _ in there)
    if len(counts) < 2:
        got = f"{quoted(_json(next(iter(counts))))} alone" if counts else "none"
        hint = "" if which else "rows whose cell is empty are left out"
        raise PlanError(Problem(f"{path}.label", f"at least two labels{which}", got, hint, "label"))
    if step.probe == "ridge":
        if (n := len({group for _, group in there})) < step.folds:
            expected = f"at most {n} (rows without a prompt in common{which})"
            raise PlanError(Problem(f"{path}.folds", expected, quoted(step.folds), code="folds"))
        return
    n_prompts = {label: len({group for target, group in there if target == label}) for label in classes}
    few = {label: n for label, n in n_prompts.items() if n < step.folds}
    if few:
        shown = ", ".join(f"{n} of {quoted(_json(label))}" for label, n in list(few.items())[:12])
        shown += f", and {len(few) - 12} more classes with fewer" if len(few) > 12 else ""
        n_rows = f" ({min(counts[label] for label in few)} rows)" if any(counts[label] != n for label, n in few.items()) else ""
        expected = f"rows of every class in every fold: {step.folds} without a prompt in common{which}"
        hint = "fewer `folds`, or an empty cell for the rows of rare classes"
        raise PlanError(Problem(f"{path}.folds", expected, shown + n_rows, hint, "folds"))


def _whole(cell: Any) -> Any:
    """Returns a whole number that a table keeps as a float as what it is."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _hint(probe: str, cell: Any) -> str:
    if probe == "logistic":
        return "numbers that are no classes are for `ridge`" if isinstance(cell, float) else ""
    if isinstance(cell, str):
        return (
            "a `.csv` has texts alone: numbers are kept by `.json`, `.jsonl` and `.parquet`"
            if _is_number(cell)
            else "classes are for `logistic`"
        )
    return "classes are for `logistic`" if isinstance(cell, bool) else ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _json(label: nodes.Label) -> str:
    return json.dumps(label, ensure_ascii=False)
