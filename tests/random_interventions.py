"""Random interventions: writes with every kind of operand, reads, scores, and twins that differ in one thing."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from authoring import LOGITS
from random_places import ANSWERS, CLASSES, ENTITY, MAY_VANISH, MISSING, ORDER, SELDOM, Author, Place, is_scoped

from causalab_mini.model.components import COMPONENTS


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
        """Adds an intervened model with what it predicts: a plain interchange, or one to three writes of any kind."""
        author = self.author
        role = author.pick(("base", "base", "base", "base", "counterfactual"))
        names: list[str] = []
        self.raw["models"][model] = {"input": role, "writes": names}
        is_interchange = author.chance(25)
        for index in range(1 if is_interchange else author.pick((1, 1, 1, 2, 2, 3))):
            name = f"{model}w{index}"
            place = self.interchange(name, role) if is_interchange else self.write(name, model, role)
            names.append(name)
            has_length = (
                place.width != "keys" and self.raw["writes"][name]["mechanism"] != "project_out"
            )  # which may leave a rounding error
            if index and has_length and author.chance(25):
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
            choices += ["project_out"] * (3 if place.component in MAY_VANISH else 0)
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
            return pos, width, {"align": author.pick(("last", "first", "mean"))} if author.chance(15) else {}
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

    def interchange(self, name, role):
        """Adds a write of what the other side has at the very place: the commonest of all experiments."""
        author = self.author
        place, width = author.place(self.width()), author.pick((1, 1, 2))
        pos = author.pos(width)
        read = self.read(f"{name}_source", place, pos, width, {"base": "counterfactual", "counterfactual": "base"}[role])
        found = self.put(name, place, pos, read, author.pick(("swap", "swap", "swap", "lerp", "add_scaled")))
        if place.n_stacked == 0 and author.chance(40):
            self.featurize(name, read)
        return found

    def featurize(self, write, read):
        """Has a write and the read that feeds it be in other coordinates: a subspace, some units, or units of a subspace."""
        author, name = self.author, f"{self.name}_{write}"
        subspace = {"kind": "subspace", "k": author.pick((2, 3, 5)), "seed": author.pick((0, 1, 2))}
        gate = {"kind": "gate", "seed": author.pick((0, 1, 2))}
        match author.pick(("subspace", "subspace", "gate", "chain")):
            case "subspace":
                author.featurizers[name] = subspace
            case "gate":
                author.featurizers[name] = gate
            case "chain":
                author.featurizers |= {f"{name}_a": subspace, f"{name}_b": gate, name: {"kind": "chain", "of": [f"{name}_a", f"{name}_b"]}}
        self.raw["reads"][read]["featurizer"] = self.raw["writes"][write]["featurizer"] = name
        if author.chance(30):
            self.raw["writes"][write]["features"] = author.pick(([0], [1, 0], [1]))

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


def draw_intervention(author, number):
    """Returns an intervention."""
    draft = Draft(author, f"i{number}")
    for index in range(author.pick((1, 1, 1, 1, 2, 2, 0))):
        draft.add_model(f"m{index}")
    draft.add_reads()
    draft.add_metrics()
    return draft


def draw_twin(author, draft, number):
    """Returns an intervention that differs from another in one thing."""
    other = Draft(author, f"i{number}", deepcopy(draft.raw), dict(draft.about))
    if changes := list(other.changes()):
        author.pick(changes)()
    return other
