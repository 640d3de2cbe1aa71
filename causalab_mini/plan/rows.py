"""The rows of a document: tables opened once, prompts made once a ref and field, anchors and answers read off them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from causalab_mini.data.answers import AnswerError, TokenForm, answer_token, answer_tokens
from causalab_mini.data.fields import MISSING, parse_field
from causalab_mini.data.prompts import Prompt, PromptError, make_prompt
from causalab_mini.data.table import Table, open_table
from causalab_mini.errors import DataError, PlanError, Problem, did_you_mean, listed, quoted
from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan.plan import Anchors, BadCell, RowsKey
from causalab_mini.plan.position import Anchor
from causalab_mini.plan.spec import Role

MAX_NAMED_ROWS = 10


class Rows:
    """Tables and prompts of a document, shared by all its points."""

    def __init__(self, data_root: Path, tokenizer: Any, facts: ModelFacts | None) -> None:
        self.data_root = data_root
        self.tokenizer = tokenizer
        self.facts = facts
        self.tables: dict[str, Table] = {}
        self.prompts: dict[RowsKey, tuple[Prompt, ...]] = {}

    def table(self, ref: str, path: str) -> Table:
        """Returns a ref's table; `path` is where the document names it.

        Raises:
            PlanError: as `data.open_table` refuses it.
        """
        if ref not in self.tables:
            try:
                self.tables[ref] = open_table(ref, self.data_root)
            except DataError as error:
                problems = [
                    Problem(path, p.expected, f"{p.got}{' in ' + quoted(error.file) if error.file else ''}", p.hint, p.code)
                    for p in error.problems
                ]
                raise PlanError(problems) from None
        return self.tables[ref]

    def prompts_of(self, ref: str, role: Role, rows_path: str, role_path: str) -> tuple[Prompt, ...]:
        """Returns a role's prompts, row by row.

        Raises:
            PlanError: with every row that has no prompt.
        """
        key = (ref, role.field)
        if key in self.prompts:
            return self.prompts[key]
        table, field = self.table(ref, rows_path), parse_field(role.field)
        assert field is not None
        problems, prompts = [], []
        for index, row in enumerate(table.rows):
            value = field.get(row)
            if value is MISSING:
                names = [str(field.parts[0])] if str(field.parts[0]) not in row else []
                hint = did_you_mean(names[0], table.columns) if names else ""
                problems.append(
                    Problem(
                        f"{role_path}.field", f"{quoted(role.field)} on every row of {quoted(ref)}", f"none on row {index}", hint, "column"
                    )
                )
                continue
            try:
                prompt = make_prompt(self.tokenizer, value)
            except PromptError as error:
                problems.append(
                    Problem(f"{role_path}.field", error.expected, f"{error.got} on row {index} of {quoted(ref)}", code="prompt")
                )
                continue
            if self.facts is not None and self.facts.max_positions is not None and prompt.n_tokens > self.facts.max_positions:
                expected = f"at most {self.facts.max_positions} tokens (the model's learned positions)"
                problems.append(
                    Problem(f"{role_path}.field", expected, f"{prompt.n_tokens} on row {index} of {quoted(ref)}", code="prompt")
                )
            if self.facts is not None and max(prompt.ids) >= self.facts.vocabulary:
                expected = f"token ids below {self.facts.vocabulary} (the model's vocabulary)"
                hint = "the tokenizer that was opened is not the one that the model was trained with"
                got = f"{max(prompt.ids)} on row {index} of {quoted(ref)}"
                problems.append(Problem(f"{role_path}.field", expected, got, hint, "prompt"))
            prompts.append(prompt)
        if problems:
            raise PlanError(_first(problems))
        self.prompts[key] = tuple(prompts)
        return self.prompts[key]

    def labels(self, ref: str, path: str) -> tuple[str, ...]:
        """Returns the rows' labels: `example_id` where every row has one, else their numbers."""
        rows = self.table(ref, path).rows
        if not any("example_id" in row for row in rows):
            return tuple(str(index) for index in range(len(rows)))
        labels = [row.get("example_id") for row in rows]
        missing = [index for index, label in enumerate(labels) if not isinstance(label, str | int) or isinstance(label, bool)]
        if missing:
            raise PlanError(
                Problem(path, "an `example_id` (a text or an integer) on every row or on none", f"none on rows {missing[:MAX_NAMED_ROWS]}")
            )
        texts = [str(label) for label in labels]
        if len(set(texts)) != len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise PlanError(Problem(path, "each `example_id` once", f"{quoted(twice)} more than once in {quoted(ref)}"))
        return tuple(texts)

    def anchors(self, anchor: Anchor | None, ref: str, role: Role, path: str) -> Anchors | None:
        """Returns the text that an anchor looks for on each row, or None for an anchor without text.

        Raises:
            PlanError: a row has no such variable or column; names every place that was looked in.
        """
        if anchor is None:
            return None
        table = self.table(ref, path)
        if anchor.text is not None:
            return (anchor.text,) * len(table.rows)
        if anchor.variable is not None:
            field = parse_field(role.field)
            assert field is not None
            places = [field.variable(anchor.variable), parse_field(anchor.variable)]
            where, what = f"{path}.scope.variable", f"the variable {quoted(anchor.variable)}"
        elif anchor.column is not None:
            places = [parse_field(anchor.column)]
            where, what = f"{path}.scope.column", f"the column {quoted(anchor.column)}"
        else:
            return None
        spelled = " or ".join(quoted(str(place)) for place in places if place is not None)
        texts: list[str | None] = []
        problems = []
        for index, row in enumerate(table.rows):
            found = [value for place in places if place is not None and (value := place.get(row)) is not MISSING]
            if not found:
                hint = did_you_mean(anchor.variable or anchor.column or "", table.columns) or f"the columns are {listed(table.columns)}"
                problems.append(
                    Problem(
                        where,
                        f"{what} at {spelled}",
                        f"neither on row {index} of {quoted(ref)}" if len(places) > 1 else f"none on row {index} of {quoted(ref)}",
                        hint,
                        "column",
                    )
                )
            elif found[0] is not None and not isinstance(found[0], str | int | float):
                problems.append(
                    Problem(where, f"a text at {spelled}", f"{quoted(found[0])} on row {index} of {quoted(ref)}", code="column")
                )
            else:
                texts.append(None if found[0] is None or found[0] == "" else str(found[0]))
        if problems:
            raise PlanError(_first(problems))
        return tuple(texts)

    def column(self, ref: str, column: str, path: str) -> list[Any]:
        """Returns a column's cells; None where a row's is empty.

        Raises:
            PlanError: no row has the column.
        """
        table, field = self.table(ref, path), parse_field(column)
        assert field is not None
        cells = [field.get(row) for row in table.rows]
        if all(cell is MISSING for cell in cells):
            hint = did_you_mean(column, table.columns)
            raise PlanError(Problem(path, f"a column of {quoted(ref)} ({listed(table.columns)})", quoted(column), hint, "column"))
        return [None if cell is MISSING or cell in (None, "") else cell for cell in cells]

    def tokens(
        self, ref: str, column: str, form: TokenForm, path: str, is_answer: bool = False, is_filtered: bool = False
    ) -> tuple[Any, ...]:
        """Returns a column as tokens, row by row: one id, or all ids of an answer; None where a cell is empty.

        Where rows are still to be filtered, a cell that can't be taken is a `BadCell`, to be refused if its row runs.

        Raises:
            PlanError: with every row whose cell is not one token.
        """
        problems: list[Problem] = []
        tokens: list[Any] = []
        for index, cell in enumerate(self.column(ref, column, path)):
            try:
                make = answer_tokens if is_answer else answer_token
                tokens.append(None if cell is None else make(self.tokenizer, cell, form))
            except AnswerError as error:
                hint = "`causalab-mini tokens MODEL TEXT --pieces` shows a text's tokens" if error.expected == "one token" else ""
                problem = Problem(path, error.expected, f"{error.got} in {quoted(column)} on row {index} of {quoted(ref)}", hint, "token")
                tokens.append(BadCell(problem))
                problems.append(problem)
        if problems and not is_filtered:
            raise PlanError(_first(problems))
        return tuple(tokens)


def _first(problems: list[Problem]) -> list[Problem]:
    """Returns one problem for each that many rows share: what the first of them has, and how many more there are."""
    shared: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        shared.setdefault((problem.path, problem.expected), []).append(problem)
    return [
        first
        if not more
        else Problem(first.path, first.expected, f"{first.got}, and the like on {len(more)} more rows", first.hint, first.code)
        for first, *more in shared.values()
    ]
