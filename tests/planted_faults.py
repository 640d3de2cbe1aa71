"""Faults of the kinds that stay silent, planted in a run: what is wrong, how it is planted, and which checks must find it."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from authoring import LOGITS, document, observe, patching, site

from causalab_mini.engine import batches, decoding, direct, shaping, store, walk
from causalab_mini.engine.cache import PrefixCache
from causalab_mini.engine.contract import WriteTask
from causalab_mini.engine.engines import nnterp
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.kept import Kept, RowValues
from causalab_mini.ops.windows import Value
from causalab_mini.plan import rows

ENTITY = {"all": True, "scope": {"variable": "entity"}}
FOLLOWS = {"follows": {"kind": "match", "of": "prediction", "expected": "cf_answer"}}


def swapping(where, pos, **more):
    write = {"site": where, "pos": pos, "mechanism": "swap", "operand": "source", **more}
    return patching(write, {"site": where, "pos": pos, **more}, metrics=FOLLOWS)


def stream(layer):
    return site("block_output", layer)


def positions(name):
    """Returns a sweep over layers and positions: passes are shared, joined, and resumed at a layer and at a token."""
    return document({"p": swapping(stream({"sweep": [0, 1, 2], "as": "layer"}), {"sweep": [ENTITY, -2], "as": "pos"})}, STEPS, name)


def heads(name):
    return document({"p": swapping(site("attention_premix", 1, heads=[1]), -2)}, STEPS, name)


def subspace(name):
    raw = document({"p": swapping(stream(1), ENTITY, featurizer="turn")}, STEPS, name)
    return raw | {"featurizers": {"turn": {"kind": "subspace", "k": 4, "seed": 3}}}


def generation(name):
    """Returns a document that has the patched model go on, and reads what it says."""
    write = {"site": stream(1), "pos": ENTITY, "mechanism": "swap", "operand": "source"}
    reads = {
        "said": {"site": stream(2), "pos": {"all": True, "frame": "generated"}, "model": "patched"},
        "prediction": {"site": LOGITS, "pos": {"index": 1, "frame": "generated"}, "model": "patched"},
    }
    made = patching(write, {"site": stream(1), "pos": ENTITY}, reads=reads)
    made["decode"] = 4
    return document({"p": made}, {"do": observe("p", outputs={"said": "said"})}, name)


STEPS = {"do": observe("p")}


@dataclass(frozen=True)
class Fault:
    """A fault of a run.

    Attributes:
        words: what is wrong.
        plant: enters patches on a stack.
        found_by: the checks that fail.
        document: which run it is planted in, of a checkpoint's key.
        model: the checkpoint.
        first_use: what the first use of a model says of it: the level that is fallen back to; empty where it can't see it.
    """

    words: str
    plant: Callable[[ExitStack], None]
    found_by: tuple[str, ...]
    document: Callable[[str], dict] = positions
    model: str = "successor-gpt2"
    first_use: str = ""


def replacing(owner, name, wrong):
    """Returns what plants a fault in place of a function, given the right one."""

    def plant(stack):
        right = getattr(owner, name)
        stack.enter_context(patch.object(owner, name, lambda *args, **kwargs: wrong(right, *args, **kwargs)))

    return plant


def inputs(change):
    """Returns what plants a fault in the inputs of every forward."""

    def wrong(right, self, batch, *shortcut):
        return change(right(self, batch, *shortcut))

    return replacing(BaseEngine, "inputs", wrong)


def counted_from_the_padding(given):
    n = given["attention_mask"].shape[1] - given["input_ids"].shape[1]
    places = torch.arange(n, n + given["input_ids"].shape[1])[None].expand_as(given["input_ids"])
    return given | {"position_ids": places}


def everything_seen(given):
    return given | {"attention_mask": torch.ones_like(given["attention_mask"])}


def first_token_hidden(given):
    mask = given["attention_mask"].clone()
    for row in mask:
        if row.sum() > 1 and not row.all():
            row[row.nonzero()[0]] = 0
    return given | {"attention_mask": mask}


def first_row_alone(right, activation, index, values):
    changed = right(activation, index, values)
    return torch.cat([changed[:1], activation[1:]])


def no_writes(right, activation, stop, state):
    return right(activation, replace(stop, tasks=tuple(task for task in stop.tasks if not isinstance(task, WriteTask))), state)


def never_fires(stack):
    for module in (direct, nnterp):
        replacing(module, "visit", no_writes)(stack)


def comes_to_nothing(stack):
    for module in (direct, nnterp):
        replacing(module, "replaced", lambda right, container, tensor: container)(stack)


def a_layer_up(right, facts, component, layer):
    is_moved = component == "block_output" and layer is not None and layer + 1 < facts.n_layers
    return right(facts, component, layer + 1 if is_moved else layer)


def of_the_row_before(right, self, wanted):
    found = right(self, wanted)
    return Value(found.data.roll(found.lengths[0], dims=1), found.lengths) if len(set(found.lengths)) == 1 else found


def of_the_token_before(right, data, *args):
    return right(data.roll(1, dims=1), *args)


def next_head(right, self, place):
    found = right(self, place)
    size = self.facts.hidden // self.facts.n_heads
    return found if place.heads is None else (found + size) % self.facts.hidden


def remainder_lost(right, mechanism, value, arrived, operand, coordinates, features):
    class Lossy:
        def encode(self, value):
            found, err = coordinates.encode(value)
            return found, torch.zeros_like(err)

        decode = coordinates.decode

    return right(mechanism, value, arrived, operand, None if coordinates is None else Lossy(), features)


def rolled_keys(right, self, key_states, value_states, layer_idx, *args, **kwargs):
    before = self.before
    if before is not None:
        self.before = lambda layer: (before(layer)[0].roll(1, dims=2), before(layer)[1])
    try:
        return right(self, key_states, value_states, layer_idx, *args, **kwargs)
    finally:
        self.before = before


def of_another_row(right, self, layer, rows, n):
    return right(self, layer, rows, n).roll(1, dims=0)


def of_the_layer_below(right, self, layer, rows, n):
    has_it = all(layer - 1 in batch.streams for batch in self.batches)
    return right(self, layer - 1 if has_it else layer, rows, n)


def of_the_first_point(stack):
    first = {}

    def wrong(right, self, point, schedule, intervention, rows, featurizers):
        found = right(self, point, schedule, intervention, rows, featurizers)
        known = first.setdefault(intervention.name, found)
        return replace(found, values=known.values)

    replacing(store.Store, "observe", wrong)(stack)


def stands_still(right, self):
    made = right(self)
    return made if self.n_steps == 0 else replace(made, position_ids=made.position_ids - self.n_steps)


def behind_the_prefix(right, tokenizer, value):
    made = right(tokenizer, value)
    return replace(made, n_prefix=made.n_prefix - 1, spans=(*made.spans, made.spans[-1]))


FAULTS = (
    Fault("position ids count the padding of a shorter row", inputs(counted_from_the_padding), ("rows",)),
    Fault("the mask lets padding be seen", inputs(everything_seen), ("rows",)),
    Fault("the mask hides the first token of padded rows", inputs(first_token_hidden), ("rows",)),
    Fault("a write reaches the first row of a batch alone", replacing(walk, "scatter", first_row_alone), ("rows", "passes")),
    Fault("a write's hook never fires", never_fires, ("rows", "writes")),
    Fault("a write is made, and what it made is not handed back to the model", comes_to_nothing, ("rows",)),
    Fault("what is meant for a layer is read and written a layer higher", replacing(batches, "_address", a_layer_up), ("rows", "passes")),
    Fault(
        "values are handed out to the row behind the one that they are of",
        replacing(RowValues, "of", of_the_row_before),
        ("rows", "passes"),
    ),
    Fault("an operand's tokens are off by one", replacing(batches, "take", of_the_token_before), ("rows", "passes")),
    Fault("a write meant for a head lands on the next", replacing(batches.PassOnBatch, "features", next_head), ("rows",), heads),
    Fault("what a subspace leaves of a value is lost", replacing(batches, "changed", remainder_lost), ("rows",), subspace),
    Fault("logits are those of the token before", replacing(shaping, "narrowed", lambda right, h, c: right(h, c - 1)), ("rows", "passes")),
    Fault(
        "values are rounded to eight bits of mantissa", replacing(walk, "gather", lambda right, *a: right(*a).bfloat16().float()), ("rows",)
    ),
    Fault("a point is given what the first point found", of_the_first_point, ("rows", "passes")),
    Fault("kept keys are those of the token before", replacing(PrefixCache, "update", rolled_keys), ("rows", "passes"), first_use="layer"),
    Fault("kept streams are those of another row", replacing(Kept, "stream", of_another_row), ("rows", "passes"), first_use="plain"),
    Fault(
        "a pass resumes one layer late: a layer is left out that nothing stands for",
        replacing(Kept, "stream", of_the_layer_below),
        ("rows", "passes"),
        first_use="plain",
    ),
    Fault("generated tokens all have the position of the first", replacing(decoding._Batch, "batch", stands_still), ("rows",), generation),
    Fault(
        "tokens are counted from the tokenizer's own first one",
        replacing(rows, "make_prompt", behind_the_prefix),
        ("places",),
        model="successor-llama",
    ),
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence.md"
BEGIN, END = "<!-- planted faults -->\n", "<!-- end of planted faults -->\n"


def table():
    """Returns the faults and what finds them, as the docs have it."""
    lines = ["| what is wrong | failed checks | on first use of a model |", "| --- | --- | --- |"]
    for fault in FAULTS:
        first = {"": "", "layer": "found: nothing resumes at a token", "plain": "found: whole passes are run"}[fault.first_use]
        lines.append(f"| {fault.words} | {', '.join(f'`{name}`' for name in fault.found_by)} | {first} |")
    return "\n".join(lines) + "\n"


def with_table(page):
    """Returns the page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
