"""Random documents, the rows they run over and the model they run on, drawn by hypothesis: what the rewrites are held against.

What is drawn is meant to compile, and to be well conditioned: a number that two orders of the same sums may tell apart beyond rounding
(a direction of equal rows, a stream that is the difference of two equal ones) is not asked for.
"""

import json
from dataclasses import dataclass
from typing import Any

from authoring import document
from families_by_hand import CONFIGS
from hypothesis import strategies as st
from random_interventions import draw_intervention, draw_twin
from random_places import SELDOM, Author, Kept, draw_table, is_scoped

N_LAYERS = {"llama": 4, "gpt2": 3, "gpt_neox": 3, "gemma2": 3, "gemma3_text": 3}
"""The families, by how many layers the models have: more than the two of `CONFIGS`, so that there is something between the ends."""
DEEPER = {
    "llama": {"num_hidden_layers": 4},
    "gpt2": {"n_layer": 3},
    "gpt_neox": {"num_hidden_layers": 3},
    "gemma2": {"num_hidden_layers": 3, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gemma3_text": {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}
FAMILIES = ("llama", "llama", "gpt2", "gpt_neox", "gemma2", "gemma3_text")
"""Grouped queries, learned positions, parallel blocks, and sandwich norms: soft-capped with windows of 12 tokens, or with windows of 4."""


def config_of(family):
    """Returns the model type and the config of a family's model."""
    model_type, shape = CONFIGS[family]
    return model_type, shape | DEEPER[family]


@dataclass(frozen=True)
class Example:
    """One document with what it runs on and over.

    Attributes:
        family: of the model.
        attention: how it is computed: patterns need `eager`.
        tables: rows by ref.
        raw: the document; the model's key is filled in by whoever has one.
        batch_size: rows a batch.
    """

    family: str
    attention: str | None
    tables: dict[str, list[dict[str, Any]]]
    raw: dict[str, Any]
    batch_size: int | None

    def as_data(self):
        """Returns a copy of all of it."""
        return json.loads(json.dumps(vars(self)))

    @property
    def key(self):
        """What tells it from every other."""
        return json.dumps(vars(self))

    def __repr__(self):
        return f"<a document for {self.family}, {len(self.key)} characters>"


def add_outputs(author, step_name, drafts, is_list, keeps):
    """Returns outputs of some of the reads of a step, some of them in two ways; with `keeps`, later steps may write them."""
    outputs: dict[str, Any] = {}
    kept: list[Kept] = []
    for draft in drafts:
        for read, (place, pos, width, role, model) in draft.about.items():
            choices = ["none", "none", "mean", "mean", "mean_by", "std"]
            if place.width == "keys" or pos in SELDOM:
                choices = ["none"]
            elif model == "original" and pos in ({"all": True}, {"all": True, "stride": 2}) and author.n_rows > 2:
                choices += ["pca", "pca"]
            is_fixed = width is not None and not is_scoped(pos)
            is_logits = draft.raw["reads"][read].get("view") == "logits"
            for reduce in dict.fromkeys(author.pick(choices) for _ in range(author.pick((0, 0, 0, 1, 1, 1, 2)))):
                name, source = f"{step_name}_{draft.name}_{read}_{reduce}", f"{draft.name}/{read}" if is_list else read
                more = {"pca": {"k": 1}, "mean_by": {"by": "group"}}.get(reduce, {})
                outputs[name] = source if reduce == "none" else {"read": source, "reduce": reduce, **more}
                shape = "rows" if reduce == "none" else "window" if reduce in ("mean", "std") and is_fixed and width != 1 else "vector"
                in_its_own = "featurizer" not in draft.raw["reads"][read]
                if keeps and place.width != "keys" and not is_logits and in_its_own:
                    kept.append(Kept(name, place, shape, width, pos, role, is_safe=reduce != "std"))
    add_difference(author, outputs, kept, step_name)
    author.kept += kept
    return outputs


def add_difference(author, outputs, kept, step_name):
    """Adds the difference of two means, of length 1 where it can't be a rounding error."""
    means = [one for one in kept if isinstance(outputs[one.name], dict) and outputs[one.name]["reduce"] == "mean"]
    pairs = [
        (one, other)
        for one in means
        for other in means
        if one is not other
        and (one.place.width, one.place.part, one.place.n_stacked, one.width)
        == (other.place.width, other.place.part, other.place.n_stacked, other.width)
        and one.shape == other.shape
    ]
    if pairs and author.chance(80):
        one, other = author.pick(pairs)
        layers = [entry.place.site.get("layers") for entry in (one, other)]
        can_be_unit = (
            one.place.component == other.place.component
            and all(isinstance(layer, int) for layer in layers)
            and one.place.low != other.place.low
        )
        for name in ["difference", *["unit_difference"] * can_be_unit]:
            outputs[f"{step_name}_{name}"] = {"difference": [one.name, other.name], **({"unit": True} if name.startswith("unit") else {})}
            kept.append(Kept(f"{step_name}_{name}", one.place, one.shape, one.width, one.pos, one.role, is_safe=False))


def add_step(author, steps, name, drafts, keeps=False):
    """Adds a step over some interventions."""
    used = set().union(*(draft.roles for draft in drafts))
    is_list = len(drafts) > 1 or author.chance(15)
    interventions: Any = [draft.name for draft in drafts] if is_list else drafts[0].name
    outputs = add_outputs(author, name, drafts, is_list, keeps)
    step = {"kind": "observe", "rows": dict.fromkeys(sorted(used), author.table), "interventions": interventions}
    steps[name] = step | ({"outputs": outputs} if outputs else {})


BOUNDS = {
    "rank": {"max": 80.5},
    "token_prob": {"min": 0.0041},
    "logit_diff": {"min": 0.0123},
    "cross_entropy": {"max": 6.789},
    "token_logit": {"min": 0.0123},
}
"""What rows must reach, no round number, so that none is near it; about half of them do."""


def add_where(author, step, earlier_name, earlier, drafts):
    """Lets the scores of an earlier step choose the rows, where it is over the same ones."""
    if not step["rows"].get("base") == earlier["rows"].get("base") is not None:
        return
    draft = author.pick(drafts)
    for name in [name for name, (_, pos, _, _, _) in draft.about.items() if name.endswith("_prediction") and pos == -1]:
        draft.metric(f"token_logit_{name}", "token_logit", name)
    found = [(name, metric["kind"]) for name, metric in draft.raw["metrics"].items() if metric["kind"] in BOUNDS]
    if found:
        name, kind = author.pick(found)
        is_list = isinstance(earlier["interventions"], list)
        step["where"] = {"step": earlier_name, "metric": f"{draft.name}/{name}" if is_list else name, **BOUNDS[kind]}


def draw_example(random):
    """Returns an example, every choice of it made by a `random.Random`."""
    family = random.choice(FAMILIES)
    attention = random.choice((None, None, None, "eager"))
    is_rectangular = random.choice((False, True))
    author = Author(random, family, N_LAYERS[family], attention == "eager", is_rectangular)
    tables = {"rows": draw_table(random, is_rectangular)}
    author.n_rows = len(tables["rows"])
    has_two = author.chance(55)
    first = [draw_intervention(author, number) for number in range(author.pick((1, 1, 1, 2, 2, 3)))]
    first += [draw_twin(author, author.pick(first), 3)] if author.chance(30) else []
    steps: dict[str, Any] = {}
    drafts = list(first)
    add_step(author, steps, "first", first, keeps=has_two)
    if has_two:
        if author.chance(20):
            tables["more"] = author.pick((tables["rows"][::-1], draw_table(random, is_rectangular)))
            author.table, author.n_rows = "more", len(tables["more"])
            author.kept = [one for one in author.kept if one.shape != "rows"]
        second = [draw_intervention(author, 4 + number) for number in range(author.pick((1, 1, 2)))]
        second += [draw_twin(author, author.pick([*first, *second, second[0]]), 6)] if author.chance(35) else []
        drafts += second
        again = [author.pick(first)] if author.chance(25) else []
        add_step(author, steps, "second", [*second, *again])
        if author.chance(60):
            add_where(author, steps["second"], "first", steps["first"], first)
    elif len(first) > 1 and author.chance(40) and first[0].roles == first[1].roles:
        wrapper = {"sweep": [first[0].name, first[1].name], "as": "which"}
        steps["first"] = {"kind": "observe", "rows": dict.fromkeys(sorted(first[0].roles), "rows"), "interventions": wrapper}
    raw = document({draft.name: draft.raw for draft in drafts}, steps, key="")
    raw["model"]["attn_implementation"] = attention
    if author.featurizers:
        raw["featurizers"] = author.featurizers
    return Example(family, attention, tables, raw, random.choice((None, None, 2, 3)))


def examples():
    """Returns the strategy of examples: each made from one seed, so that they have nothing in common but by chance."""
    return st.randoms(use_true_random=True).map(draw_example)
