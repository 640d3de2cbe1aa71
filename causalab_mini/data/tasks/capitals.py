"""The capitals task: countries and what is known of them, asked with or without worked examples before the question.

Responsible for the facts, the wordings and the causal model: a country and a relation give the answer. Country and capital are
as commonly used in English in 2026; only countries with one undisputed seat and short names are listed.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Final

from causalab_mini.data.tasks.rows import SPLITS, Keep, Row, draw_distinct

COUNTRIES: Final[dict[str, dict[str, str]]] = {
    country: {"capital": capital, "continent": continent, "language": language}
    for country, capital, continent, language in (
        ("Argentina", "Buenos Aires", "America", "Spanish"),
        ("Austria", "Vienna", "Europe", "German"),
        ("Bangladesh", "Dhaka", "Asia", "Bengali"),
        ("Brazil", "Brasília", "America", "Portuguese"),
        ("Bulgaria", "Sofia", "Europe", "Bulgarian"),
        ("Chile", "Santiago", "America", "Spanish"),
        ("China", "Beijing", "Asia", "Chinese"),
        ("Colombia", "Bogotá", "America", "Spanish"),
        ("Croatia", "Zagreb", "Europe", "Croatian"),
        ("Cuba", "Havana", "America", "Spanish"),
        ("Denmark", "Copenhagen", "Europe", "Danish"),
        ("Egypt", "Cairo", "Africa", "Arabic"),
        ("Ethiopia", "Addis Ababa", "Africa", "Amharic"),
        ("Finland", "Helsinki", "Europe", "Finnish"),
        ("France", "Paris", "Europe", "French"),
        ("Germany", "Berlin", "Europe", "German"),
        ("Ghana", "Accra", "Africa", "English"),
        ("Greece", "Athens", "Europe", "Greek"),
        ("Hungary", "Budapest", "Europe", "Hungarian"),
        ("Iceland", "Reykjavik", "Europe", "Icelandic"),
        ("Indonesia", "Jakarta", "Asia", "Indonesian"),
        ("Iran", "Tehran", "Asia", "Persian"),
        ("Iraq", "Baghdad", "Asia", "Arabic"),
        ("Ireland", "Dublin", "Europe", "English"),
        ("Italy", "Rome", "Europe", "Italian"),
        ("Japan", "Tokyo", "Asia", "Japanese"),
        ("Jordan", "Amman", "Asia", "Arabic"),
        ("Kenya", "Nairobi", "Africa", "Swahili"),
        ("Lebanon", "Beirut", "Asia", "Arabic"),
        ("Morocco", "Rabat", "Africa", "Arabic"),
        ("Nepal", "Kathmandu", "Asia", "Nepali"),
        ("Nigeria", "Abuja", "Africa", "English"),
        ("Norway", "Oslo", "Europe", "Norwegian"),
        ("Pakistan", "Islamabad", "Asia", "Urdu"),
        ("Peru", "Lima", "America", "Spanish"),
        ("Poland", "Warsaw", "Europe", "Polish"),
        ("Portugal", "Lisbon", "Europe", "Portuguese"),
        ("Romania", "Bucharest", "Europe", "Romanian"),
        ("Russia", "Moscow", "Europe", "Russian"),
        ("Senegal", "Dakar", "Africa", "French"),
        ("Serbia", "Belgrade", "Europe", "Serbian"),
        ("Spain", "Madrid", "Europe", "Spanish"),
        ("Sweden", "Stockholm", "Europe", "Swedish"),
        ("Thailand", "Bangkok", "Asia", "Thai"),
        ("Tunisia", "Tunis", "Africa", "Arabic"),
        ("Turkey", "Ankara", "Asia", "Turkish"),
        ("Ukraine", "Kyiv", "Europe", "Ukrainian"),
        ("Uruguay", "Montevideo", "America", "Spanish"),
        ("Venezuela", "Caracas", "America", "Spanish"),
        ("Vietnam", "Hanoi", "Asia", "Vietnamese"),
    )
}

TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "capital": ("The capital of {country} is", "If you fly to the capital of {country}, you arrive in", "{country}'s capital is called"),
    "continent": ("{country} lies in", "The continent of {country} is"),
    "language": ("In {country}, most people speak", "The main language of {country} is"),
}
"""Wordings by relation; the last of each is held out for the split `test`."""


def answer(country: str, relation: str) -> str:
    """Returns what the causal model says: a country's capital, continent or language."""
    return COUNTRIES[country][relation]


def make_pairs(
    *,
    n: int,
    seed: int,
    relations: Sequence[str] = tuple(TEMPLATES),
    templates: Sequence[str] | None = None,
    splits: Sequence[str] = SPLITS,
    n_examples: int = 0,
    keep: Keep | None = None,
) -> list[Row]:
    """Returns pairs of prompts that differ in the country alone and have different answers, the same ones for the same arguments.

    Args:
        n: How many rows; relations and splits take turns.
        seed: Of the draw.
        relations: Keys of `TEMPLATES`.
        templates: The wordings to draw from; all by default.
        splits: `"train"` for the wordings but the last of each relation, `"test"` for the last.
        n_examples: How many answered questions about other countries stand before the question.
        keep: Whether a row is wanted: what depends on a tokenizer or a model comes in here.

    Raises:
        ValueError: There are fewer than `n` distinct pairs, or no wording fits.
    """
    generator = random.Random(seed)
    wanted = [(relation, split) for split in splits for relation in relations if _wordings(relation, split, templates)]
    if not wanted:
        raise ValueError("expected a relation and a wording that are there, got none")

    def draw(relation: str, split: str) -> Row:
        template = generator.choice(_wordings(relation, split, templates))
        country, other, *others = generator.sample(sorted(COUNTRIES), 2 + n_examples)
        while answer(other, relation) == answer(country, relation):
            other = generator.choice([name for name in sorted(COUNTRIES) if name not in (country, *others)])
        examples = "".join(f"{template.format(country=name)} {answer(name, relation)}. " for name in others)
        return {
            "input": examples + template.format(country=country),
            "country": country,
            "base_answer": f" {answer(country, relation)}",
            "cf_answer": f" {answer(other, relation)}",
            "answer": f" {answer(country, relation)}",
            "label": f" {answer(other, relation)}",
            "counterfactual_inputs": [examples + template.format(country=other)],
            "counterfactual_inputs_variables": [{"country": other}],
            "split": split,
            "task": f"country_{relation}",
            "template": template,
        }

    return draw_distinct(n, [partial(draw, relation, split) for relation, split in wanted], keep)


def _wordings(relation: str, split: str, templates: Sequence[str] | None) -> list[str]:
    known = TEMPLATES[relation]
    of_split = known[-1:] if split == "test" else known[:-1]
    return [template for template in of_split if templates is None or template in templates]
