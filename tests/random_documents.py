"""Random documents, the rows they run over and the model they run on, drawn by hypothesis: what the rewrites are held against.

What is drawn is meant to compile, and to be well conditioned: a number that two orders of the same sums may tell apart beyond rounding
(a direction of equal rows, a stream that is the difference of two equal ones) is not asked for.
"""

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from authoring import LOGITS, document
from families_by_hand import CONFIGS, present
from hypothesis import strategies as st
from random_places import (
    ANSWERS,
    CLASSES,
    ENTITY,
    MISSING,
    ORDER,
    POS_AXES,
    POSITIONS,
    SELDOM,
    SUMMANDS,
    Place,
    draw_table,
    is_scoped,
)

from causalab_mini.model.components import COMPONENTS

N_LAYERS = {"llama": 4, "gpt2": 3, "gpt_neox": 3, "gemma2": 3, "gemma3_text": 3}
"""The families, by how many layers the models have: more than the two of `CONFIGS`, so that there is something between the ends."""
DEEPER = {
    "llama": {"num_hidden_layers": 4},
    "gpt2": {"n_layer": 3},
    "gpt_neox": {"num_hidden_layers": 3},
    "gemma2": {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gemma3_text": {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}
FAMILIES = ("llama", "llama", "gpt2", "gpt_neox", "gemma2", "gemma3_text")
"""Grouped queries, learned positions, parallel blocks, and sandwich norms with windows of 4 tokens, soft-capped or not."""


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


# what is put together


@dataclass(frozen=True)
class Kept:
    """An output of a step, as an operand.

    Attributes:
        name: of the output.
        place: of its read.
        shape: `vector`, `window` or `rows`.
        width: how many tokens; None where rows have their own numbers.
        pos, role: of its read.
        is_safe: whether what is put in a stream by it is no rounding error.
    """

    name: str
    place: Place
    shape: str
    width: int | None
    pos: Any
    role: str
    is_safe: bool = True


@dataclass
class Author:
    """Writes a document, every choice drawn.

    Attributes:
        random: what is drawn from.
        family: of the model.
        is_eager: whether patterns can be read and written.
        is_rectangular: whether both sides of every pair have as many tokens.
        kept: outputs of earlier steps.
        axes: what is swept, by name.
        table: of the step that is written.
        n_rows: of that table.
    """

    random: Any
    family: str
    is_eager: bool
    is_rectangular: bool
    kept: list[Kept] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)
    table: str = "rows"
    n_rows: int = 0

    def __post_init__(self):
        self.n_layers = N_LAYERS[self.family]
        self.there = present(self.family)
        self.draw_axes()

    def chance(self, percent):
        return self.random.randrange(100) >= 100 - percent

    def pick(self, choices):
        return self.random.choice(tuple(choices))

    # sweeps

    def draw_axes(self):
        """Draws what will be swept wherever it may be: at most two things."""
        if self.chance(45):
            few = self.random.sample(range(self.n_layers), self.pick((2, 3)))
            self.axes["layer"] = self.pick(("all", {"range": [1, self.n_layers]}, few))
        if self.chance(20):
            self.axes["pos"] = self.pick(POS_AXES)
        if len(self.axes) < 2 and self.chance(25):
            self.axes["strength"] = self.pick(([0.5, 1.0], [0.0, 2.0], [-0.7, 0.0, 1.0]))
        if not self.axes and self.chance(20):
            self.axes["head"] = self.pick(([[0], [1]], "all"))

    def swept(self, axis, percent):
        """Returns the wrapper of an axis, sometimes, if there is such an axis."""
        return {"sweep": self.axes[axis], "as": axis} if axis in self.axes and self.chance(percent) else None

    def swept_layers(self):
        axis = self.axes["layer"]
        return list(range(self.n_layers)) if axis == "all" else list(range(*axis["range"])) if isinstance(axis, dict) else axis

    def strength(self, choices):
        return self.swept("strength", 70) or self.pick(choices)

    # places

    def place(self, width, part=(), n_stacked=None, above=None):
        """Returns a place.

        Args:
            width: of what class.
            part: which part of its width; empty to draw it.
            n_stacked: of how many layers; None to draw it.
            above: a place that it must be strictly below in a forward; None where there is none such.
        """
        names = [name for name in CLASSES[width] if name in self.there]
        if n_stacked:
            names = [name for name in names if COMPONENTS[name].per_layer]
        top = self.n_layers
        if above is not None:
            top = max(0, above.low)
            if "embeddings" not in names or above.component == "embeddings" or top:
                names = [name for name in names if name not in ("embeddings", "ln_final")]
            else:
                names = ["embeddings"]
        component = self.pick(names)
        part = self.draw_part(width) if part == () else part
        site: dict[str, Any] = {"component": component}
        if part is not None:
            site[part[0]] = self.indices(width, part[1])
        if not COMPONENTS[component].per_layer:
            return Place(site, -1 if component == "embeddings" else self.n_layers, 0, part)
        if n_stacked is None:
            n_stacked = self.pick((0, 0, 0, 0, 0, 2, self.n_layers)) if above is None and width != "keys" else 0
        if n_stacked and n_stacked <= top:
            layers = sorted(self.random.sample(range(top), n_stacked))
            is_all = n_stacked == self.n_layers and self.chance(80)
            return Place(site | {"layers": "all" if is_all else layers}, layers[0], n_stacked, part)
        if "layer" in self.axes and max(self.swept_layers()) < top and (wrapper := self.swept("layer", 75)):
            return Place(site | {"layers": wrapper}, min(self.swept_layers()), 0, part)
        layer = self.random.randrange(top)
        return Place(site | {"layers": layer - self.n_layers if self.chance(15) else layer}, layer, 0, part)

    def draw_part(self, width):
        if width in ("heads", "kv_heads", "keys"):
            return ("heads", self.pick((1, 2))) if "head" in self.axes or self.chance(60) else None
        return ("units", self.pick((1, 3))) if self.chance(80 if width == "intermediate" else 8) and width != "vocabulary" else None

    def indices(self, width, n):
        """Returns which heads or units, some of them swept."""
        if n == 1 and width in ("heads", "kv_heads", "keys") and (wrapper := self.swept("head", 80)):
            return wrapper
        most = {"heads": 4, "keys": 4, "kv_heads": 2}.get(width, 60)
        return self.random.sample(range(most), n)

    def pos(self, width, is_read=False):
        """Returns a position of some width."""
        if width == 1 and (wrapper := self.swept("pos", 60)):
            return wrapper
        if is_read and self.chance(12) and width in MISSING:
            return self.pick(MISSING[width])
        return self.pick(POSITIONS[width])

    def likes(self, name, is_added):
        """Returns what was kept and may stand where something else kept does, with a factor or without: the same place, reduced otherwise."""
        one = next(kept for kept in self.kept if kept.name == name)
        shape = (one.shape, one.width, one.place)
        alike = [kept for kept in self.kept if kept is not one and (kept.shape, kept.width, kept.place) == shape]
        return [kept for kept in alike if kept.is_safe or is_added]

    # interventions

    def intervention(self, number):
        """Returns an intervention, and the place, position, role and model of each of its reads."""
        draft = Draft(self, f"i{number}")
        for index in range(self.pick((1, 1, 1, 1, 2, 2, 0))):
            draft.add_model(f"m{index}")
        draft.add_reads()
        draft.add_metrics()
        return draft

    def twin(self, draft, number):
        """Returns an intervention that differs from another in one thing."""
        other = Draft(self, f"i{number}", deepcopy(draft.raw), dict(draft.about))
        if changes := list(other.changes()):
            self.pick(changes)()
        return other


@dataclass
class Draft:
    """An intervention that is being written."""

    author: Author
    name: str
    raw: dict[str, Any] = field(default_factory=lambda: {"reads": {}, "writes": {}, "models": {}, "metrics": {}})
    about: dict[str, tuple[Place, Any, int | None, str, str]] = field(default_factory=dict)

    @property
    def roles(self):
        """The roles that it uses."""
        has_columns = any(metric["kind"] not in ("kl", "js", "cosine", "value", "top_k") for metric in self.raw["metrics"].values())
        return {role for _, _, _, role, _ in self.about.values()} | ({"base"} if has_columns else set())

    def read(self, name, place, pos, width, role, model="original", **more):
        """Adds a read."""
        other = model != "original" and self.raw["models"][model]["input"] == role
        self.raw["reads"][name] = {"site": place.site, "pos": pos, "model": model, **({} if other else {"input": role}), **more}
        self.about[name] = (place, pos, width, role, model)
        return name

    # writes

    def add_model(self, model):
        """Adds an intervened model with one to three writes and what it predicts."""
        author = self.author
        role = author.pick(("base", "base", "base", "base", "counterfactual"))
        names: list[str] = []
        self.raw["models"][model] = {"input": role, "writes": names}
        for index in range(author.pick((1, 1, 1, 2, 2, 3))):
            name = f"{model}w{index}"
            place = self.write(name, model, role)
            names.append(name)
            if index and author.chance(25) and place.width != "keys":
                self.raw["writes"][f"{name}n"] = {
                    "site": place.site,
                    "pos": author.pos(author.pick((1, 2, None))),
                    "mechanism": "renormalize",
                }
                names.append(f"{name}n")
        pos = author.pick((-1, -1, -1, -1, {"last": 2}))
        width = 1 if pos == -1 else 2
        self.read(f"{model}_prediction", Place(LOGITS, author.n_layers, 0, None), pos, width, role, model)

    def write(self, name, model, role):
        """Adds a write with its operand; returns its place."""
        author = self.author
        kinds = ["cf", "cf", "cf", "base", "self", "own", "own", "constant", "none", "none"]
        kinds += ["other"] * (2 if any(entry[4] not in ("original", model) for entry in self.about.values()) else 0)
        kinds += ["output"] * (8 if author.kept else 0)
        kinds += ["pattern"] * (6 if author.is_eager else 0)
        match author.pick(kinds):
            case "output":
                return self.write_output(name, role)
            case "other":
                return self.write_other(name, model)
            case "none":
                return self.write_alone(name, model)
            case "constant":
                place = author.place(self.width())
                return self.put(
                    name, place, author.pos(self.tokens()), author.pick((0.0, 0.0, 0.5)), author.pick((None, "lerp", "add_scaled"))
                )
            case "pattern":
                return self.write_pattern(name, role)
            case "own":
                return self.write_own(name, model, role)
            case kind:
                return self.write_read(name, role, kind)

    def width(self):
        return self.author.pick(("hidden", "hidden", "hidden", "hidden", "heads", "heads", "kv_heads", "intermediate", "vocabulary"))

    def tokens(self):
        return self.author.pick((1, 1, 1, 1, 2, 3, None, None))

    def put(self, name, place, pos, operand, mechanism=None, is_safe=True, **more):
        """Adds a write with an operand; whatever it is, what then stands in a stream is no rounding error."""
        author = self.author
        if mechanism is None:
            choices = ["swap", "swap", "swap", "add_scaled", "lerp"]
            choices += ["project_out"] * (place.component in SUMMANDS)
            mechanism = author.pick(choices) if is_safe else "add_scaled"
        params = {}
        if mechanism == "add_scaled" and author.chance(80):
            params["scale"] = author.strength((0.5, 1.0, 2.0, -0.7, 0.0))
        if mechanism == "lerp":
            params["t"] = author.strength((0.5, 1.0, 0.25, 0.0))
        write = {"site": place.site, "pos": pos, "mechanism": mechanism, "operand": operand, **more}
        self.raw["writes"][name] = write | ({"params": params} if params else {})
        return place

    def source_pos(self, pos, width, is_same_role):
        """Returns a position for a write's operand, its width, and how it lands."""
        author = self.author
        is_same = is_same_role or width is not None or (author.is_rectangular and not is_scoped(pos))
        if is_same and author.chance(65):
            return pos, width, {}
        if width is not None and author.chance(80):
            return author.pos(width, is_read=True), width, {}
        width = author.pick((1, 2, None))
        return author.pos(width, is_read=True), width, {"align": author.pick(("last", "first", "mean"))}

    def write_read(self, name, role, kind):
        """Adds a write of what was read in a forward without writes: of the other side, of this one, or of the very place."""
        author = self.author
        place, width = author.place(self.width()), self.tokens()
        pos = author.pos(width)
        source_role = role if kind in ("base", "self") else {"base": "counterfactual", "counterfactual": "base"}[role]
        if kind == "self":
            read = self.read(f"{name}_source", place, pos, width, source_role)
            return self.put(name, place, pos, read, author.pick(("swap", "swap", "lerp")))
        found, found_width, more = self.source_pos(pos, width, source_role == role)
        source, swept = place, place.site.get("layers")
        if author.chance(35):
            source = author.place(place.width, place.part, author.pick((0, place.n_stacked)))
        elif isinstance(swept, dict) and isinstance(swept["sweep"], list) and author.chance(25):
            source = replace(place, site=place.site | {"layers": swept | {"sweep": swept["sweep"][::-1]}})
        read = self.read(f"{name}_source", source, found, found_width, source_role)
        return self.put(name, place, pos, read, **more)

    def write_own(self, name, model, role):
        """Adds a write of what the same forward has lower down."""
        author = self.author
        place, width = author.place(author.pick(("hidden", "hidden", "heads", "kv_heads", "intermediate")), n_stacked=0), self.tokens()
        pos = author.pos(width)
        earlier = [entry for entry in CLASSES[place.width] if entry in author.there and ORDER.index(entry) < ORDER.index(place.component)]
        earlier = [entry for entry in earlier if COMPONENTS[entry].per_layer]
        if 0 <= place.low < author.n_layers and earlier and (not place.low or author.chance(40)):
            source = Place({**place.site, "component": author.pick(earlier)}, place.low, 0, place.part)
        elif place.low > 0 or (place.width == "hidden" and place.low == 0):
            source = author.place(place.width, place.part, 0, above=place)
        else:
            return self.write_read(name, role, "cf")
        found, found_width, more = self.source_pos(pos, width, True)
        read = self.read(f"{name}_source", source, found, found_width, role, model)
        return self.put(name, place, pos, read, **more)

    def write_other(self, name, model):
        """Adds a write of what another intervened model read."""
        author = self.author
        found = [(key, entry) for key, entry in self.about.items() if entry[4] not in ("original", model) and entry[0].width != "keys"]
        read, (source, _, width, _, _) = author.pick(found)
        place = author.place(source.width, source.part, source.n_stacked)
        if width is not None:
            return self.put(name, place, author.pos(width), read)
        return self.put(name, place, author.pos(self.tokens()), read, align=author.pick(("last", "first", "mean")))

    def write_alone(self, name, model):
        """Adds a write without operand."""
        author = self.author
        place, width = author.place(self.width()), self.tokens()
        has_own = any(entry[4] == model for entry in self.about.values())
        mechanism = author.pick(("gaussian", "clamp", "clamp") if has_own else ("gaussian", "permute", "clamp", "permute"))
        pos = author.pos(width or 1 if mechanism == "permute" else width)
        params = {
            "gaussian": {"seed": author.pick((0, 1)), "scale": author.strength((0.5, 1.0, 0.0))},
            "clamp": author.pick(({"lo": -0.5, "hi": 0.5}, {"lo": -1000.0}, {"hi": 0.25})),
            "permute": {"seed": author.pick((0, 1))},
        }[mechanism]
        self.raw["writes"][name] = {"site": place.site, "pos": pos, "mechanism": mechanism, "params": params}
        return place

    def write_pattern(self, name, role):
        """Adds a write of who attends to whom."""
        author = self.author
        place = author.place("keys")
        if author.chance(60):
            pos = author.pick((-1, {"last": 2}, {"all": True}))
            keys = author.pick((0, 1, {"index": -1, "scope": ENTITY}, {"span": [0, 2]}, {"all": True, "scope": ENTITY}))
            self.raw["writes"][name] = {"site": place.site, "pos": pos, "keys": keys, "mechanism": "knockout"}
            return place
        pos = author.pos(author.pick((1, 2, None)))
        operand = author.pick((0.0, 0.5, "read"))
        if operand != "read":
            keys = {"keys": author.pos(author.pick((1, 2)))} if author.chance(60) else {}
            return self.put(name, place, pos, operand, author.pick(("swap", "lerp", "add_scaled")), **keys)
        is_scoped_pos = is_scoped(pos)
        source_role = author.pick(("base", "counterfactual")) if author.is_rectangular and not is_scoped_pos else role
        keys = {"keys": author.pick((0, -1, {"last": 2}))} if author.chance(50) else {}
        source = author.place("keys", place.part, 0) if author.chance(50) else place
        read = self.read(f"{name}_source", source, pos, None, source_role, **keys)
        return self.put(name, place, pos, read, author.pick(("swap", "lerp")), **keys)

    def write_output(self, name, role):
        """Adds a write of what an earlier step kept."""
        author = self.author
        kept = author.pick(author.kept)
        place = author.place(kept.place.width, kept.place.part, kept.place.n_stacked or None)
        width, more = self.tokens(), {}
        is_aligned = kept.shape != "vector" and author.chance(20)
        pos = author.pos(width)
        if kept.shape != "vector" and not is_aligned:
            if kept.width is not None:
                pos = author.pos(kept.width)
            elif kept.role == role and kept.pos not in MISSING[None]:
                pos = kept.pos
            else:
                is_aligned = True
        if is_aligned:
            more = {"align": author.pick(("last", "first", "mean"))}
        return self.put(name, place, pos, {"ref": kept.name}, is_safe=kept.is_safe, **more)

    # reads

    def add_reads(self):
        """Adds reads that nothing needs but tables and files."""
        author = self.author
        models = list(self.raw["models"])
        least = 0 if models else 1
        for index in range(author.random.randint(least, 3)):
            model = author.pick(("original", *models, *models))
            role = author.pick(("base", "counterfactual")) if model == "original" else self.raw["models"][model]["input"]
            if model != "original" and author.chance(8):
                role = "counterfactual" if role == "base" else "base"
            width = author.pick(
                ("hidden", "hidden", "hidden", "heads", "kv_heads", "intermediate", "vocabulary", *["keys"] * author.is_eager)
            )
            tokens = author.pick((1, 1, 1, 2, None))
            place = author.place(width)
            more = {}
            if width == "keys" and author.chance(50):
                more["keys"] = author.pick((0, -1, {"last": 2}, {"all": True, "scope": ENTITY}))
            if COMPONENTS[place.component].is_residual and place.part is None and author.chance(20):
                more["view"] = "logits"
            pos = author.pos(tokens, is_read=True)
            self.read(f"r{index}", place, pos, tokens, role, model, **more)
            if author.chance(30):
                self.read_again(f"r{index}_again", place, pos, tokens, role, model, more)

    def read_again(self, name, place, pos, tokens, role, model, more):
        """Adds a read that differs from another in one thing: its view, its keys or its tokens."""
        more = dict(more)
        if place.width == "keys":
            more["keys"] = 1 if more.get("keys") != 1 else 0
        elif COMPONENTS[place.component].is_residual and place.part is None and self.author.chance(60):
            more = {} if "view" in more else {"view": "logits"}
        else:
            pos = self.author.pos(tokens)
        self.read(name, place, pos, tokens, role, model, **more)

    # twins

    def changes(self):
        """Yields what may be changed in this intervention so that it still compiles, each as a function that changes it."""
        for write in self.raw["writes"].values():
            params, operand = write.get("params", {}), write.get("operand")
            for key, values in (("seed", (0, 1, 2)), ("scale", (0.5, 1.5)), ("t", (0.5, 0.75)), ("hi", (0.25, 0.125))):
                if isinstance(params.get(key), int | float):
                    yield self.other(params, key, values)
            if write["pos"] in (-1, -2):
                yield self.other(write, "pos", (-1, -2))
            if write.get("keys") in (0, 1):
                yield self.other(write, "keys", (0, 1))
            if isinstance(operand, str) and "keys" not in write and self.about[operand][0].width != "keys":
                yield self.other(write, "align", ("last", "first", "mean"))
            if isinstance(operand, dict):
                likes = self.author.likes(operand["ref"], is_added=write["mechanism"] == "add_scaled")
                yield from (self.other(write, "operand", ({"ref": kept.name},)) for kept in likes)
        for model in self.raw["models"].values():
            if len(model["writes"]) > 1 and not any(name.endswith("n") for name in model["writes"]):
                yield self.other(model, "writes", (model["writes"][::-1], model["writes"][1:]))
        for name, read in self.raw["reads"].items():
            if name.startswith("r") and not any(name in metric.values() for metric in self.raw["metrics"].values()):
                if "view" in read:
                    yield lambda read=read: read.pop("view")
                if read["pos"] in (-1, -2):
                    yield self.other(read, "pos", (-1, -2))

    def other(self, where, key, values):
        """Returns what gives a key another of some values."""
        return lambda: where.update({key: self.author.pick([value for value in values if value != where.get(key)] or values)})

    # scores

    def add_metrics(self):
        """Adds scores of reads that are one token wide."""
        author = self.author
        one = [
            name for name, (_, pos, width, _, _) in self.about.items() if width == 1 and pos not in SELDOM and not name.endswith("_source")
        ]
        for name in one:
            place = self.about[name][0]
            is_vocabulary = place.width == "vocabulary" or self.raw["reads"][name].get("view") == "logits"
            if place.part is not None and place.width == "vocabulary":
                continue
            kinds = ["value"]
            if is_vocabulary:
                kinds = ["logit_diff", "match", "cross_entropy", "token_logit", "token_prob", "rank", "kl", "js", "top_k", "class_match"]
                kinds += ["cosine"] if place.width == "vocabulary" else []
                kinds += ["answer_logprob", "recovered"] if name.endswith("_prediction") else []
            for kind in author.random.sample(kinds, min(len(kinds), author.pick((0, 1, 2)))):
                self.metric(f"{kind}_{name}", kind, name)

    def metric(self, name, kind, of):
        """Adds a score; those that compare have a clean prediction to compare with."""
        author = self.author
        metrics, clean = self.raw["metrics"], {}
        if kind in ("kl", "js", "cosine", "recovered"):
            logits = Place(LOGITS, author.n_layers, 0, None)
            clean = {
                role: self.read(f"clean_{role}", logits, -1, 1, role)
                for role in (("base", "counterfactual") if kind == "recovered" else ("base",))
            }
        more: dict[str, Any] = {
            "match": {"expected": "answer"},
            "logit_diff": {"a": "answer", "b": "other"},
            "cross_entropy": {"target": "answer"},
            "token_logit": {"token": "other"},
            "token_prob": {"token": "answer"},
            "rank": {"token": "other"},
            "kl": {"against": "clean_base"},
            "js": {"against": "clean_base"},
            "cosine": {"against": "clean_base"},
            "value": {"how": author.pick(("norm", "mean", "max", "sum"))} if kind == "value" else {},
            "top_k": {"k": 3},
            "class_match": {"expected": "answer", "classes": list(ANSWERS)},
            "answer_logprob": {"target": "answer_text"},
            "recovered": {"metric": f"{name}_clean", "clean": clean.get("counterfactual"), "corrupt": clean.get("base")},
        }[kind]
        metrics[name] = {"kind": kind, "of": of, **more}
        if kind == "recovered":
            for side in ("clean", "corrupt"):
                metrics[f"{name}_{side}"] = {"kind": "token_logit", "of": more[side], "token": "other"}


# steps


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
                if keeps and place.width != "keys" and not is_logits:
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


def add_where(author, step, earlier_name, earlier, drafts):
    """Lets the scores of an earlier step choose the rows, where there are such scores."""
    bounds = {
        "rank": {"max": 80.5},
        "token_prob": {"min": 0.0041},
        "logit_diff": {"min": 0.0123},
        "cross_entropy": {"max": 6.789},
        "token_logit": {"min": 0.0123},
    }
    is_list = isinstance(earlier["interventions"], list)
    found = [(draft, name, metric["kind"]) for draft in drafts for name, metric in draft.raw["metrics"].items() if metric["kind"] in bounds]
    if found and step["rows"].get("base") == earlier["rows"].get("base") is not None:
        draft, name, kind = author.pick(found)
        step["where"] = {"step": earlier_name, "metric": f"{draft.name}/{name}" if is_list else name, **bounds[kind]}


def draw_example(random):
    """Returns an example, every choice of it made by a `random.Random`."""
    family = random.choice(FAMILIES)
    attention = random.choice((None, None, None, "eager"))
    is_rectangular = random.choice((False, True))
    author = Author(random, family, attention == "eager", is_rectangular)
    tables = {"rows": draw_table(random, is_rectangular)}
    author.n_rows = len(tables["rows"])
    has_two = author.chance(55)
    first = [author.intervention(number) for number in range(author.pick((1, 1, 1, 2, 2, 3)))]
    first += [author.twin(author.pick(first), 3)] if author.chance(30) else []
    steps: dict[str, Any] = {}
    drafts = list(first)
    add_step(author, steps, "first", first, keeps=has_two)
    if has_two:
        if author.chance(20):
            tables["more"] = author.pick((tables["rows"][::-1], draw_table(random, is_rectangular)))
            author.table, author.n_rows = "more", len(tables["more"])
            author.kept = [one for one in author.kept if one.shape != "rows"]
        second = [author.intervention(4 + number) for number in range(author.pick((1, 1, 2)))]
        second += [author.twin(author.pick([*first, *second, second[0]]), 6)] if author.chance(35) else []
        drafts += second
        again = [author.pick(first)] if author.chance(25) else []
        add_step(author, steps, "second", [*second, *again])
        if author.chance(35):
            add_where(author, steps["second"], "first", steps["first"], first)
    elif len(first) > 1 and author.chance(40) and first[0].roles == first[1].roles:
        wrapper = {"sweep": [first[0].name, first[1].name], "as": "which"}
        steps["first"] = {"kind": "observe", "rows": dict.fromkeys(sorted(first[0].roles), "rows"), "interventions": wrapper}
    raw = document({draft.name: draft.raw for draft in drafts}, steps, key="")
    raw["model"]["attn_implementation"] = attention
    return Example(family, attention, tables, raw, random.choice((None, None, 2, 3)))


def examples():
    """Returns the strategy of examples: each made from one seed, so that they have nothing in common but by chance."""
    return st.randoms(use_true_random=True).map(draw_example)
