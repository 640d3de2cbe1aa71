"""What comes next, or came before: days, months and number words.

A small causal model. Its variables are the family, the direction, the entity, the template and the fillers; they fix
the prompt and its answer. This module says what they are and makes pairs of prompts that differ in the entity alone. It
knows no tokenizer: what must hold of the pieces (one token each, equally many) is a callable handed to `make_pairs`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from causalab_mini.data.tasks.rows import FILLERS, SPLITS, Keep, Row, draw_distinct, is_held_out

Message: TypeAlias = dict[str, str]
"""One chat turn: `role` and `content`."""

Form: TypeAlias = Literal["text", "chat"]


@dataclass(frozen=True, slots=True)
class Family:
    """An ordered list of entities.

    Attributes:
        entities: The names, in order.
        cyclic: Whether the first follows the last; the ends have no neighbour otherwise.
    """

    entities: tuple[str, ...]
    cyclic: bool


@dataclass(frozen=True, slots=True)
class Template:
    """The wording of a prompt.

    Attributes:
        question: The last sentence, which the answer completes.
        statement: A sentence before it, which holds the entity if the question does not.
        held_out: Whether no prompt of this wording is trained on.
    """

    question: str
    statement: str = ""
    held_out: bool = False

    @property
    def text(self) -> str:
        """The wording without fillers, with `{entity}` in the entity's place."""
        return f"{self.statement} {self.question}".lstrip()


FAMILIES: Final = {
    "day": Family(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"), cyclic=True),
    "month": Family(
        (
            *("January", "February", "March", "April", "May", "June"),
            *("July", "August", "September", "October", "November", "December"),
        ),
        cyclic=True,
    ),
    "number": Family(
        (
            *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
            *("eleven", "twelve", "thirteen", "fourteen", "fifteen"),
            *("sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
        ),
        cyclic=False,
    ),
}

STEPS: Final = {"next": 1, "previous": -1}

TEMPLATES: Final = {
    ("day", "next"): (
        Template("If today is {entity}, tomorrow is"),
        Template("Tomorrow is", statement="Today is {entity}."),
        Template("The day after {entity} is"),
        Template("{entity} comes right before"),
        Template("{entity} is today, so tomorrow is"),
        Template("The day after that is", statement="Our trip starts on {entity}."),
        Template("After {entity} comes"),
        Template("Today is {entity}, so tomorrow is", held_out=True),
        Template("Tomorrow is", statement="{entity} is today.", held_out=True),
    ),
    ("day", "previous"): (
        Template("If today is {entity}, yesterday was"),
        Template("Yesterday was", statement="Today is {entity}."),
        Template("The day before {entity} is"),
        Template("{entity} comes right after"),
        Template("{entity} is today, so yesterday was"),
        Template("The day before that is", statement="Our trip starts on {entity}."),
        Template("Before {entity} comes"),
        Template("Today is {entity}, so yesterday was", held_out=True),
        Template("Yesterday was", statement="{entity} is today.", held_out=True),
    ),
    ("month", "next"): (
        Template("If this month is {entity}, next month is"),
        Template("Next month is", statement="This month is {entity}."),
        Template("The month after {entity} is"),
        Template("{entity} comes right before"),
        Template("{entity} is this month, so next month is"),
        Template("The month after that is", statement="The school starts in {entity}."),
        Template("After {entity} comes"),
        Template("This month is {entity}, so next month is", held_out=True),
        Template("Next month is", statement="{entity} is this month.", held_out=True),
    ),
    ("month", "previous"): (
        Template("If this month is {entity}, last month was"),
        Template("Last month was", statement="This month is {entity}."),
        Template("The month before {entity} is"),
        Template("{entity} comes right after"),
        Template("{entity} is this month, so last month was"),
        Template("The month before that is", statement="The school starts in {entity}."),
        Template("Before {entity} comes"),
        Template("This month is {entity}, so last month was", held_out=True),
        Template("Last month was", statement="{entity} is this month.", held_out=True),
    ),
    ("number", "next"): (
        Template("If you count up from {entity}, you say"),
        Template("The next number is", statement="I start at {entity} and count up."),
        Template("The number after {entity} is"),
        Template("{entity} comes right before"),
        Template("You count up from {entity} and you say"),
        Template("The number after that is", statement="My number is {entity}."),
        Template("After {entity} comes"),
        Template("You count up from {entity}, so you say", held_out=True),
        Template("The next number is", statement="You start at {entity} and count up.", held_out=True),
    ),
    ("number", "previous"): (
        Template("If you count down from {entity}, you say"),
        Template("The next number is", statement="I start at {entity} and count down."),
        Template("The number before {entity} is"),
        Template("{entity} comes right after"),
        Template("You count down from {entity} and you say"),
        Template("The number before that is", statement="My number is {entity}."),
        Template("Before {entity} comes"),
        Template("You count down from {entity}, so you say", held_out=True),
        Template("The next number is", statement="You start at {entity} and count down.", held_out=True),
    ),
}
"""The wordings by family and direction; the entity comes first, in the middle or last before the question."""

SYSTEM_LINE: Final = "You give short answers."
ACKNOWLEDGEMENT: Final = "I see."


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for every variable of the causal model.

    Attributes:
        family: A key of `FAMILIES`.
        direction: A key of `STEPS`.
        entity: One of the family's names.
        template: One of `TEMPLATES[family, direction]`.
        before: A filler sentence before everything, `""` for none.
        between: A filler sentence between the statement and the question, `""` for none.
    """

    family: str
    direction: str
    entity: str
    template: Template
    before: str = ""
    between: str = ""

    @property
    def task(self) -> str:
        """The family and the direction, such as `day_next`."""
        return f"{self.family}_{self.direction}"

    @property
    def split(self) -> str:
        """`"test"` if the template with these fillers is kept out of the training text, else `"train"`."""
        index = TEMPLATES[self.family, self.direction].index(self.template)
        held_out = self.template.held_out or is_held_out(index, self.before, self.between)
        return "test" if held_out else "train"

    def with_entity(self, entity: str) -> "Setting":
        """Returns the same setting about another entity."""
        return Setting(self.family, self.direction, entity, self.template, self.before, self.between)


def entities(family: str, direction: str) -> tuple[str, ...]:
    """Returns the family's names that have an answer in this direction."""
    names = FAMILIES[family].entities
    if FAMILIES[family].cyclic:
        return names
    return names[:-1] if direction == "next" else names[1:]


def prompt(setting: Setting) -> str:
    """Returns the text which the answer completes; the entity's name occurs in it exactly once."""
    template = setting.template
    parts = (setting.before, template.statement, setting.between, template.question)
    return " ".join(part for part in parts if part).format(entity=setting.entity)


def answer(setting: Setting) -> str:
    """Returns the right completion, with its leading space."""
    names = FAMILIES[setting.family].entities
    index = names.index(setting.entity) + STEPS[setting.direction]
    return f" {names[index % len(names)]}"


def conversation(setting: Setting, *, n_turns: int = 1, system: bool = False) -> list[Message]:
    """Returns the prompt as chat turns, of which the last is the user's and waits for the answer.

    Args:
        setting: The variables.
        n_turns: User turns, 1 or 2. Two turns put the statement into the first and the question into the second;
            without a statement, the first is a filler sentence.
        system: Whether a system line comes first.
    """
    if n_turns == 1:
        contents = [prompt(setting)]
    else:
        template = setting.template
        if template.statement:
            first = " ".join(part for part in (setting.before, template.statement, setting.between) if part)
            contents = [first.format(entity=setting.entity), template.question.format(entity=setting.entity)]
        else:
            contents = [setting.before or FILLERS[0], template.question.format(entity=setting.entity)]
    messages: list[Message] = [{"role": "system", "content": SYSTEM_LINE}] if system else []
    for content in contents[:-1]:
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": ACKNOWLEDGEMENT})
    return [*messages, {"role": "user", "content": contents[-1]}]


def draw_setting(
    generator: random.Random,
    *,
    family: str,
    direction: str,
    split: str | None = None,
    templates: Sequence[str] | None = None,
    fillers: bool = True,
) -> Setting:
    """Returns a random setting.

    Args:
        generator: Where the randomness comes from.
        family: A key of `FAMILIES`.
        direction: A key of `STEPS`.
        split: `"train"` or `"test"`; either by default.
        templates: The wordings to draw from, as `Template.text`; all by default.
        fillers: Whether filler sentences may occur.

    Raises:
        ValueError: No wording of the family and direction fits `templates` and `split`.
    """
    wordings = _wordings(family, direction, templates, split, fillers)
    if not wordings:
        raise ValueError(f"expected a template of `{family}`, `{direction}` in split `{split}`, got none")
    while True:
        template = generator.choice(wordings)
        setting = Setting(
            family=family,
            direction=direction,
            entity=generator.choice(entities(family, direction)),
            template=template,
            before=generator.choice(FILLERS) if fillers and generator.random() < 0.4 else "",
            between=generator.choice(FILLERS) if fillers and template.statement and generator.random() < 0.5 else "",
        )
        if split is None or setting.split == split:
            return setting


def make_pairs(
    *,
    n: int,
    seed: int,
    families: Sequence[str] = tuple(FAMILIES),
    directions: Sequence[str] = tuple(STEPS),
    templates: Sequence[str] | None = None,
    splits: Sequence[str] = SPLITS,
    fillers: bool = True,
    form: Form = "text",
    keep: Keep | None = None,
) -> list[Row]:
    """Returns pairs of prompts that differ in the entity alone, the same ones for the same arguments.

    The families, directions and splits take turns, so that each is equally frequent as far as its distinct pairs reach.

    Args:
        n: How many rows.
        seed: Of the draw.
        families: Keys of `FAMILIES`.
        directions: Keys of `STEPS`.
        templates: The wordings to draw from, as `Template.text`; all by default.
        splits: `"train"` for combinations of template and fillers the bundled models saw, `"test"` for the others.
        fillers: Whether filler sentences may occur.
        form: `"text"` for prompts as strings, `"chat"` for conversations of one or two user turns.
        keep: Whether a row is wanted: what depends on a tokenizer or a model comes in here.

    Raises:
        ValueError: There are fewer than `n` distinct pairs, or no template fits.
    """
    generator = random.Random(seed)
    wanted = [
        (family, direction, split)
        for split in splits
        for family in families
        for direction in directions
        if _wordings(family, direction, templates, split, fillers)
    ]

    def draw(family: str, direction: str, split: str) -> Row:
        setting = draw_setting(generator, family=family, direction=direction, split=split, templates=templates, fillers=fillers)
        others = [entity for entity in entities(family, direction) if entity != setting.entity]
        return _row(setting, setting.with_entity(generator.choice(others)), form, generator)

    return draw_distinct(n, [partial(draw, *key) for key in wanted], keep)


def _wordings(family: str, direction: str, templates: Sequence[str] | None, split: str | None, fillers: bool) -> list[Template]:
    return [
        template
        for template in TEMPLATES[family, direction]
        if (templates is None or template.text in templates)
        and (split != "train" or not template.held_out)
        and (split != "test" or template.held_out or fillers)
    ]


def _row(base: Setting, counterfactual: Setting, form: Form, generator: random.Random) -> Row:
    base_input: str | list[Message]
    counterfactual_input: str | list[Message]
    if form == "chat":
        n_turns, system = generator.choice((1, 2)), generator.random() < 0.5
        base_input = conversation(base, n_turns=n_turns, system=system)
        counterfactual_input = conversation(counterfactual, n_turns=n_turns, system=system)
    else:
        base_input, counterfactual_input = prompt(base), prompt(counterfactual)
    return {
        "input": base_input,
        "entity": base.entity,
        "base_answer": answer(base),
        "cf_answer": answer(counterfactual),
        "answer": answer(base),
        "label": answer(counterfactual),
        "counterfactual_inputs": [counterfactual_input],
        "counterfactual_inputs_variables": [{"entity": counterfactual.entity}],
        "split": base.split,
        "task": base.task,
        "template": base.template.text,
    }
