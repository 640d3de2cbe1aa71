"""Indirect objects: two people are named, one of them gives something to the other.

A small causal model. Its variables are the indirect object, the subject, the place, the object, the order of the first
two mentions, the template and a filler; they fix the prompt, and the answer is the indirect object. It knows no
tokenizer.

Source: Wang et al. 2023, Interpretability in the Wild, section 2 (the task and its two orders).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

from causalab_mini.data.tasks.rows import FILLERS, SPLITS, Keep, Row, draw_distinct, is_held_out

Change: TypeAlias = Literal["indirect_object", "names", "swap"]
"""What differs in the counterfactual: the indirect object; both names; or which of the two names is which."""

NAMES: Final = (
    *("Mary", "John", "Tom", "Anna", "Paul", "Lisa", "Mark"),
    *("Sara", "Emma", "James", "Kate", "Peter", "David", "Alice"),
)

PLACES: Final = ("store", "park", "school", "beach", "station", "library", "garden", "river")

OBJECTS: Final = ("drink", "book", "ball", "letter", "ring", "key", "hat")


@dataclass(frozen=True, slots=True)
class Template:
    """The wording of a prompt.

    Attributes:
        text: The prompt with `{first}`, `{second}`, `{place}`, `{subject}` and `{object}` in their places.
        held_out: Whether no prompt of this wording is trained on.
    """

    text: str
    held_out: bool = False


TEMPLATES: Final = (
    Template("When {first} and {second} went to the {place}, {subject} gave a {object} to"),
    Template("Then {first} and {second} went to the {place}, and {subject} handed a {object} to"),
    Template("After {first} and {second} met at the {place}, {subject} showed a {object} to"),
    Template("{first} and {second} were at the {place}. {subject} gave a {object} to"),
    Template("While {first} and {second} were at the {place}, {subject} handed a {object} to"),
    Template("{first} met {second} at the {place} and then {subject} gave a {object} to"),
    Template("When {first} and {second} were at the {place}, {subject} showed a {object} to", held_out=True),
    Template("{first} and {second} went to the {place}. Then {subject} handed a {object} to", held_out=True),
)
"""The wordings, with either name first."""

ORDERS: Final = ("indirect_object_first", "subject_first")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for every variable of the causal model.

    Attributes:
        indirect_object: One of `NAMES`, who receives.
        subject: Another of `NAMES`, who gives.
        place: One of `PLACES`.
        object: One of `OBJECTS`.
        order: One of `ORDERS`, which name is mentioned first.
        template: One of `TEMPLATES`.
        before: A filler sentence before everything, `""` for none.
    """

    indirect_object: str
    subject: str
    place: str
    object: str
    order: str
    template: Template
    before: str = ""

    @property
    def split(self) -> str:
        """`"test"` if the template with this filler is kept out of the training text, else `"train"`."""
        held_out = self.template.held_out or is_held_out(TEMPLATES.index(self.template), self.before)
        return "test" if held_out else "train"


def prompt(setting: Setting) -> str:
    """Returns the text which the answer completes: the indirect object occurs once in it, the subject twice."""
    names = (setting.indirect_object, setting.subject)
    first, second = names if setting.order == "indirect_object_first" else names[::-1]
    text = setting.template.text.format(first=first, second=second, place=setting.place, subject=setting.subject, object=setting.object)
    return f"{setting.before} {text}".lstrip()


def answer(setting: Setting) -> str:
    """Returns the right completion, with its leading space."""
    return f" {setting.indirect_object}"


def draw_setting(
    generator: random.Random,
    *,
    split: str | None = None,
    templates: Sequence[str] | None = None,
    names: Sequence[str] = NAMES,
    fillers: bool = True,
) -> Setting:
    """Returns a random setting.

    Args:
        generator: Where the randomness comes from.
        split: `"train"` or `"test"`; either by default.
        templates: The wordings to draw from, as `Template.text`; all by default.
        names: The names to draw from, two at least.
        fillers: Whether a filler sentence may occur.

    Raises:
        ValueError: No wording fits `templates` and `split`.
    """
    wordings = _wordings(templates, split, fillers)
    if not wordings:
        raise ValueError(f"expected an indirect-object template in split `{split}`, got none")
    while True:
        indirect_object, subject = generator.sample(list(names), 2)
        setting = Setting(
            indirect_object=indirect_object,
            subject=subject,
            place=generator.choice(PLACES),
            object=generator.choice(OBJECTS),
            order=generator.choice(ORDERS),
            template=generator.choice(wordings),
            before=generator.choice(FILLERS) if fillers and generator.random() < 0.4 else "",
        )
        if split is None or setting.split == split:
            return setting


def make_pairs(
    *,
    n: int,
    seed: int,
    templates: Sequence[str] | None = None,
    splits: Sequence[str] = SPLITS,
    names: Sequence[str] = NAMES,
    fillers: bool = True,
    change: Change = "indirect_object",
    keep: Keep | None = None,
) -> list[Row]:
    """Returns pairs of prompts that differ in the names alone, the same ones for the same arguments.

    Args:
        n: How many rows; the splits take turns.
        seed: Of the draw.
        templates: The wordings to draw from, as `Template.text`; all by default.
        splits: `"train"` for combinations of template and filler the bundled models saw, `"test"` for the others.
        names: The names to draw from; three at least, four where both change.
        fillers: Whether a filler sentence may occur.
        change: What differs in the counterfactual: `"indirect_object"`, `"names"` (both are new) or `"swap"` (the
            subject becomes the indirect object; both keep their places in the first mention).
        keep: Whether a row is wanted: what depends on a tokenizer or a model comes in here.

    Raises:
        ValueError: There are fewer than `n` distinct pairs, or no template fits.
    """
    generator = random.Random(seed)

    def draw(split: str) -> Row:
        base = draw_setting(generator, split=split, templates=templates, names=names, fillers=fillers)
        return _row(base, _counterfactual(base, change, names, generator))

    wanted = [split for split in splits if _wordings(templates, split, fillers)]
    return draw_distinct(n, [partial(draw, split) for split in wanted], keep)


def _wordings(templates: Sequence[str] | None, split: str | None, fillers: bool) -> list[Template]:
    return [
        template
        for template in TEMPLATES
        if (templates is None or template.text in templates)
        and (split != "train" or not template.held_out)
        and (split != "test" or template.held_out or fillers)
    ]


def _counterfactual(base: Setting, change: Change, names: Sequence[str], generator: random.Random) -> Setting:
    if change == "swap":
        order = ORDERS[1 - ORDERS.index(base.order)]
        return replace(base, indirect_object=base.subject, subject=base.indirect_object, order=order)
    others = [name for name in names if name not in (base.indirect_object, base.subject)]
    if change == "names":
        indirect_object, subject = generator.sample(others, 2)
        return replace(base, indirect_object=indirect_object, subject=subject)
    return replace(base, indirect_object=generator.choice(others))


def _variables(setting: Setting) -> Row:
    return {
        "indirect_object": setting.indirect_object,
        "subject": setting.subject,
        "place": setting.place,
        "object": setting.object,
        "order": setting.order,
    }


def _row(base: Setting, counterfactual: Setting) -> Row:
    return {
        "input": prompt(base),
        **_variables(base),
        "base_answer": answer(base),
        "cf_answer": answer(counterfactual),
        "answer": answer(base),
        "label": answer(counterfactual),
        "counterfactual_inputs": [prompt(counterfactual)],
        "counterfactual_inputs_variables": [_variables(counterfactual)],
        "split": base.split,
        "task": "ioi",
        "template": base.template.text,
    }
