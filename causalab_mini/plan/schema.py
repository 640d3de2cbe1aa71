"""The language as a JSON Schema: what an editor needs to complete, explain and refuse.

Made from the models, so that a field's docstring is its description. A schema can't compare two places of a document; `validate`
does. What it does encode beyond types: exactly one cut, short forms, what a mechanism needs, which components are one a layer,
closed objects, names, and sweeps in place of any value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from causalab_mini.data.fields import FIELD_PATTERN
from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan.docstrings import field_docstrings, models
from causalab_mini.plan.files import METRIC_SUFFIXES, TENSOR_SUFFIXES
from causalab_mini.plan.spec import FEATURIZER_MODELS, MECHANISM_RULES, METRIC_MODELS, NULLABLE, STEP_MODELS, Spec
from causalab_mini.plan.spec.decoding import SAMPLING
from causalab_mini.plan.spec.fits import TRAINING
from causalab_mini.plan.spec.interventions import WITHOUT_ALIGN
from causalab_mini.plan.spec.selected import CONTROLS, DRAWS
from causalab_mini.plan.spec.steps import PROBE_TABLES
from causalab_mini.plan.strict import NAME_PATTERN
from causalab_mini.plan.sweep import FORBIDDEN
from causalab_mini.probing.probes import RECORD
from causalab_mini.probing.spec import TensorType

NO_ALIGN = {"not": {"enum": ["last", "first", "mean"]}}
PART = r"(?!\.\.?(?:/|$))[^\\/:*?\"<>|]+"
"""A part of a path that every file system can have, but for what devices are called."""
SELECTOR = r"^(?:\d+|(?:prompt|generated)\[(?:-?\d+\](?:[+-]\d+)?|\*\]|\d+:\d*\]))$"
"""What the text of a point's position looks like."""
SWEPT = "x-swept"
"""Marks, while the schema is made, what a key's sweep is a list of where that is not its own schema."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
CUTS = ("index", "span", "last", "all")
TEXTS = ("variable", "text", "column")


def schema() -> dict[str, Any]:
    """Returns the JSON Schema of a document."""
    plain = Spec.model_json_schema()
    for name, model in models().items():
        definition = plain if model is Spec else plain["$defs"].get(name, {"properties": {}})
        for key, text in field_docstrings(model).items():
            if key in definition["properties"]:
                definition["properties"][key]["description"] = text
    made: dict[str, Any] = _tidied(_with_words(plain), "")
    definitions = made["$defs"]
    _let_kinds_be_swept(made)
    _refine(definitions)
    _refine_streams(definitions)
    _refine_rest(made, definitions)
    for definition in [made, *definitions.values()]:
        for name, value in definition.get("properties", {}).items():
            if definition is made and name in FORBIDDEN:
                continue
            if definition.get("title") not in ("ModelSpec", "Header"):
                definition["properties"][name] = _sweepable(value, name)
    made["properties"]["$schema"] = {"type": "string", "description": "Where this schema is, for editors; ignored."}
    made["required"] = ["model", "roles", "steps"]
    return {"$schema": DIALECT, **made, "title": "causalab-mini document"}


def _with_words(plain: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema in which closed vocabularies stand where they are used."""
    words = {f"#/$defs/{name}": definition for name, definition in plain["$defs"].items() if "enum" in definition}

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("$ref") in words:
            return {"enum": words[value["$ref"]]["enum"], **{key: inner for key, inner in value.items() if key != "$ref"}}
        return {key: put(inner) for key, inner in value.items()}

    kept = {name: definition for name, definition in plain["$defs"].items() if f"#/$defs/{name}" not in words}
    made: dict[str, Any] = put({**plain, "$defs": kept})
    return made


def _let_kinds_be_swept(made: dict[str, Any]) -> None:
    """Has an object's `kind` be a sweep of the kinds of its union: each is then one that the object has to be valid for."""
    for kinds in (FEATURIZER_MODELS, METRIC_MODELS, STEP_MODELS):
        swept = {"type": "array", "items": {"enum": list(kinds)}, "minItems": 1}
        for kind, model in kinds.items():
            made["$defs"][model.__name__]["properties"]["kind"] = {"const": kind, SWEPT: swept}
    named = (made["properties"]["featurizers"], made["properties"]["steps"], made["$defs"]["Intervention"]["properties"]["metrics"])
    for section in named:
        section["additionalProperties"]["anyOf"] = section["additionalProperties"].pop("oneOf")


def _tidied(value: Any, key: str) -> Any:
    """Returns a schema without `null` where the language has none, with the length keywords that arrays and objects have."""
    if isinstance(value, list):
        return [_tidied(item, key) for item in value]
    if not isinstance(value, dict):
        return value
    tidy = {
        name: _tidied(inner, name)
        for name, inner in value.items()
        if name != "title" or not isinstance(inner, str) or "properties" in value
    }
    if "anyOf" in tidy and key not in NULLABLE:
        tidy["anyOf"] = [option for option in tidy["anyOf"] if option != {"type": "null"}]
        if len(tidy["anyOf"]) == 1:
            tidy |= tidy.pop("anyOf")[0]
        if "default" in tidy and tidy["default"] is None:
            del tidy["default"]
    if isinstance(tidy.get("default"), dict):
        del tidy["default"]
    for kind, word in (("array", "Items"), ("object", "Properties")):
        if tidy.get("type") == kind and "minLength" in tidy:
            tidy[f"min{word}"] = tidy.pop("minLength")
    if "patternProperties" in tidy:
        (inner,) = tidy.pop("patternProperties").values()
        tidy["additionalProperties"] = inner
        tidy["propertyNames"] = {"pattern": NAME_PATTERN, "maxLength": 100}
    return tidy


def _refine(definitions: dict[str, Any]) -> None:
    """Encodes the rules that one object must keep."""
    position = definitions["Position"]
    position["properties"] = {name: _sweepable(value, name) for name, value in position["properties"].items()}
    position["oneOf"] = [{"required": [cut]} for cut in CUTS]
    position["if"] = {"required": ["index"]}
    position["then"] = {"properties": {"stride": False}}
    eos = {"anyOf": [{"const": "eos"}, {"type": "object"}]}
    position["allOf"] = [
        {"if": _is("frame", "generated"), "then": _with_segment(eos), "else": _with_segment({"not": {"const": "eos"}})},
    ]
    short = {"type": "integer", "description": "Short for `index`: one token, negative from the end."}
    selector = {
        "type": "string",
        "pattern": r"^\s*(?:\d+|(?:prompt|generated)\[-?\d+\](?:[+-]\d+)?|(?:prompt|generated)\[(?:\*|\d+:\d*)\])\s*$",
        "description": "A selector: tokens counted as the model sees them (`5`, `prompt[-1]`, `generated[*]`, `prompt[-1]+1`).",
    }
    definitions["Position"] = {
        "anyOf": [short, position, selector],
        "description": position["description"],
        "examples": [-1, {"index": -1, "scope": {"variable": "entity"}}, {"last": 3}, "generated[0]"],
    }
    anchor = definitions["Anchor"]
    anchor["minProperties"] = 1
    anchor["anyOf"] = [{"required": [key]} for key in (*TEXTS, "segment")]
    anchor["allOf"] = [{"not": {"required": [a, b]}} for i, a in enumerate(TEXTS) for b in TEXTS[i + 1 :]]
    site = definitions["Site"]
    available = list(COMPONENTS.values())
    site["properties"]["component"] = {"enum": [component.name for component in available], "description": _components(available)}
    per_layer = [component.name for component in available if component.per_layer]
    site["if"], site["then"] = {"properties": {"component": {"enum": per_layer}}}, {"required": ["layers"]}
    site["not"] = {"required": ["heads", "units"]}
    write = definitions["Write"]
    known = list(MECHANISM_RULES)
    write["properties"]["mechanism"] = {"enum": known, "description": write["properties"]["mechanism"]["description"]}
    is_number = {"properties": {"operand": {"type": "number"}}, "required": ["operand"]}
    write["allOf"] = [*(_mechanism(name) for name in known), {"if": is_number, "then": {"properties": {"align": NO_ALIGN}}}]
    write["properties"]["features"]["uniqueItems"] = True
    definitions["Intervention"]["if"] = {"properties": {"reads": {"maxProperties": 0}}}
    definitions["Intervention"]["then"] = {"required": ["decode"], "properties": {"decode": {"not": {"const": 0}}}}
    definitions["Decode"]["allOf"] = [
        {"if": _is("do_sample", True), "then": {"required": ["seed"]}},
        *(_only_with(key, "do_sample", [True], (True, False)) for key in SAMPLING),
        {"if": _is("ignore_eos", True), "then": {"properties": {"stop": {"maxItems": 0}}}},
    ]
    where = definitions["Where"]
    where["anyOf"] = [{"required": ["min"]}, {"required": ["max"]}]
    output = definitions["Output"]
    output["allOf"] = [
        rule
        for kind, key in (("pca", "k"), ("mean_by", "by"))
        for rule in (
            {"if": _is("reduce", kind), "then": {"required": [key]}},
            _only_with(key, "reduce", [kind], ("none", "mean", "std", "pca", "mean_by")),
        )
    ]
    _refine_featurizers(definitions)
    _refine_fits(definitions)


def _refine_featurizers(definitions: dict[str, Any]) -> None:
    """Encodes where parameters come from: once, and only what fits their source."""
    definitions["Subspace"]["allOf"] = [
        {"not": {"required": ["file_path", "seed"]}},
        {"not": _is("init", "pca", "file_path")},
        {"not": _is("init", "pca", "seed")},
    ]
    definitions["Gate"]["not"] = {"required": ["file_path", "seed"]}
    for name in ("Pca", "Standardize"):
        definitions[name]["oneOf"] = [{"required": ["file_path"]}, {"required": ["from"]}]
    definitions["Sae"]["allOf"] = [_only_with("topk", "activation", ["topk"], ("relu", "jumprelu", "topk"))]
    definitions["Chain"]["properties"]["of"]["uniqueItems"] = True
    for model in FEATURIZER_MODELS.values():
        if "file_path" in definitions[model.__name__]["properties"]:
            definitions[model.__name__]["properties"]["file_path"]["pattern"] = rf"^{PART}(?:/{PART})*$"


def _refine_fits(definitions: dict[str, Any]) -> None:
    """Encodes what a fit, its optimizer, an attribution and controls need beyond the types of their keys."""
    definitions["Fit"]["properties"]["params"]["uniqueItems"] = True
    definitions["Weights"]["properties"]["names"]["uniqueItems"] = True
    optimizers = tuple(definitions["Optimizer"]["properties"]["name"]["enum"])
    definitions["Optimizer"]["allOf"] = [
        _only_with("betas", "name", ["adam", "adamw"], optimizers),
        _only_with("momentum", "name", ["sgd", "rmsprop"], optimizers),
    ]
    definitions["Attribute"]["allOf"] = [_only_with("ig_steps", "method", ["ig"], ("atp", "ig"))]
    curves = {"value": {"anyOf": [{"enum": list(TRAINING)}, {"type": "object"}]}}
    for name, suffixes, more in (
        ("Weights", TENSOR_SUFFIXES, {}),
        ("Fit", METRIC_SUFFIXES, curves),
        ("Evaluation", METRIC_SUFFIXES, {}),
        ("Attribute", METRIC_SUFFIXES, {}),
    ):
        definitions[name]["properties"]["saves"]["items"]["properties"] = {"file_path": _ending(suffixes), **more}
    definitions["FitProbe"]["properties"]["rows"]["required"] = ["base"]
    values = {"probe": TENSOR_SUFFIXES, **dict.fromkeys(PROBE_TABLES, METRIC_SUFFIXES)}
    definitions["FitProbe"]["properties"]["saves"]["items"]["allOf"] = [
        {"properties": {"value": {"anyOf": [{"enum": list(values)}, {"type": "object"}]}}},
        *({"if": _is("value", value), "then": {"properties": {"file_path": _ending(suffixes)}}} for value, suffixes in values.items()),
    ]
    definitions["DrawnControl"]["allOf"] = [_only_with(key, "kind", list(DRAWS), CONTROLS) for key in ("n", "seed")]


def _ending(suffixes: Sequence[str]) -> dict[str, str]:
    return {"pattern": rf"\.(?:{'|'.join(suffix[1:] for suffix in suffixes)})$"}


def _refine_streams(definitions: dict[str, Any]) -> None:
    """Encodes what a stream needs beyond the types of its keys."""
    stream, point = definitions["Stream"], definitions["PointEntry"]
    no_wait = {"not": {"const": "block_until_signal"}}
    stream["properties"]["rows"]["maxProperties"] = 1
    stream["allOf"] = [{"properties": {"decode": {"not": {"const": 0}}}}]
    keys = point["properties"]
    one, many = keys["layers"]["anyOf"]
    one["minimum"] = 0
    many |= {"minItems": 1, "uniqueItems": True, "items": {"type": "integer", "minimum": 0}}
    keys["position"]["anyOf"] = [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SELECTOR}]
    per_layer = [word.value for word in TensorType if word.per_layer]
    words = tuple(keys["until"]["enum"])
    single = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^[^*:]*$"}]}
    point["allOf"] = [
        {"if": {"properties": {"tensor_type": {"enum": per_layer}}}, "then": {"required": ["layers"]}},
        {"if": _is("until", "fixed_count"), "then": {"required": ["count"]}},
        {"if": _is("until", "stop_token"), "then": {"required": ["token"]}},
        {"if": {"not": {"required": ["until"]}}, "then": {"properties": {"count": False, "token": False}}},
        _only_with("count", "until", ["fixed_count"], words),
        _only_with("token", "until", ["stop_token"], words),
        {
            "if": {"properties": {"position": single}, "required": ["position"]},
            "then": {"properties": dict.fromkeys(("stride", "until", "count", "token"), False)},
        },
        {"if": {"not": _is("execution_mode", "async")}, "then": {"properties": {"queue_depth": False, "overflow": False}}},
        {
            "if": _is("execution_mode", "async"),
            "then": {"properties": {"probe_kind": {"not": {"const": "single_shot"}}, "intervention": {"properties": {"mode": no_wait}}}},
        },
        {
            "if": {"properties": {"probe_type": {"const": RECORD}}, "required": ["probe_type"]},
            "then": {
                "properties": {
                    "probe_args": {"anyOf": [{"maxProperties": 0}, {"required": ["sweep"]}]},
                    "execution_mode": {"not": {"const": "async"}},
                    "intervention": {"properties": {"mode": no_wait}},
                }
            },
        },
    ]
    definitions["InterventionEntry"]["allOf"] = [
        {"if": _is("mode", "block_until_signal"), "then": {"required": ["timeout_ms"]}},
        {
            "if": {"not": {"required": ["mode"]}},
            "then": {"properties": {"timeout_ms": False, "on_timeout": {"not": {"const": "abort"}}}},
        },
        {
            "if": _is("mode", "reject"),
            "then": {"properties": {"timeout_ms": False, "on_timeout": {"not": {"const": "abort"}}}},
        },
    ]


def _with_segment(segment: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema of positions whose scope has a segment of some kind, if it has one."""
    return {"properties": {"scope": {"properties": {"segment": segment}}}}


def _is(key: str, word: str | bool, *beside: str) -> dict[str, Any]:
    """Returns a schema of objects in which a key has a value, and other keys are there."""
    return {"properties": {key: {"const": word}}, "required": [key, *beside]}


def _only_with(key: str, other: str, words: Sequence[str | bool], known: Sequence[str | bool]) -> dict[str, Any]:
    """Returns a schema that refuses a key unless another one has one of some words, or is swept."""
    return {"if": {"properties": {other: {"enum": [word for word in known if word not in words]}}}, "then": {"properties": {key: False}}}


def _refine_rest(made: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Encodes the forms of texts, and what the presence of one key says of another."""
    made["properties"]["roles"]["required"] = ["base"]
    field = f"^(?:{FIELD_PATTERN.pattern})$"
    definitions["Role"]["properties"]["field"]["pattern"] = field
    definitions["Output"]["properties"]["by"]["pattern"] = field
    definitions["FitProbe"]["properties"]["label"]["pattern"] = field
    for model in METRIC_MODELS.values():
        for column in model.columns:
            definitions[model.__name__]["properties"][column]["pattern"] = field
    for column in definitions["ClassMatch"]["properties"]["classes"]["oneOf"]:
        if column.get("type") == "string":
            column["pattern"] = field
    for name in ("layers", "heads", "units"):
        for option in definitions["Site"]["properties"][name].get("anyOf", [definitions["Site"]["properties"][name]]):
            if option.get("type") == "array":
                option |= {"minItems": 1, "uniqueItems": True}
        for option in definitions["Site"]["properties"][name].get("oneOf", []):
            if option.get("type") == "array":
                option |= {"minItems": 1, "uniqueItems": True}
    with_heads = [name for name, component in COMPONENTS.items() if component.heads]
    without_keys = [name for name, component in COMPONENTS.items() if not component.has_keys]
    per_layer, known = [name for name, component in COMPONENTS.items() if component.per_layer], tuple(COMPONENTS)
    definitions["Site"]["allOf"] = [
        _only_with("layers", "component", per_layer, known),
        _only_with("heads", "component", with_heads, known),
        _only_with("units", "component", without_keys, known),
    ]
    for name in ("Read", "GeneratedMatch"):
        definitions[name]["if"] = {"properties": {"model": {"const": "original"}}}
        definitions[name]["then"] = {"required": ["input"]}
    model = definitions["ModelSpec"]
    model["if"] = {"properties": {"key": {"pattern": "^bundled:"}}}
    model["then"] = {"properties": {"revision": False, "key": {"pattern": "^bundled:."}}}
    definitions["ModelDef"]["properties"]["writes"]["uniqueItems"] = True
    definitions["Intervention"]["properties"]["models"]["propertyNames"]["not"] = {"const": "original"}
    definitions["Anchor"]["properties"]["column"]["pattern"] = field
    definitions["Anchor"]["if"] = {"required": ["occurrence"], "properties": {"occurrence": {"not": {"const": "only"}}}}
    definitions["Anchor"]["then"] = {"anyOf": [{"required": [key]} for key in TEXTS]}
    suffixes = "|".join(suffix[1:] for suffix in (*METRIC_SUFFIXES, *TENSOR_SUFFIXES))
    definitions["Save"]["properties"]["file_path"]["pattern"] = rf"^{PART}(?:/{PART})*\.(?:{suffixes})$"


def _mechanism(name: str) -> dict[str, Any]:
    rule = MECHANISM_RULES[name]
    then: dict[str, Any] = {"required": ["operand"]} if rule.has_operand else {"properties": {"operand": False}}
    params: dict[str, Any] = {"propertyNames": {"enum": list(rule.params)}} if rule.params else {"maxProperties": 0}
    if rule.required:
        params["required"] = list(rule.required)
    if rule.at_least_one:
        params["anyOf"] = [{"required": [key]} for key in rule.at_least_one]
    then.setdefault("properties", {})["params"] = params
    if name in WITHOUT_ALIGN:
        then["properties"]["align"] = NO_ALIGN
    if rule.required or rule.at_least_one:
        then["required"] = [*then.get("required", []), "params"]
    return {"if": {"properties": {"mechanism": {"const": name}}, "required": ["mechanism"]}, "then": then}


def _components(components: list[Any]) -> str:
    return "A component name.\n" + "\n".join(f"- `{component.name}`: {component.meaning}" for component in components)


def _with_sweeps_inside(value: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns a schema whose lists and named things may hold sweeps, in whichever of its options they are."""
    made = dict(value)
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = _sweepable(made[key], name)
    if "prefixItems" in made:
        made["prefixItems"] = [_sweepable(item, name) for item in made["prefixItems"]]
    for key in ("anyOf", "oneOf"):
        if key in made:
            made[key] = [_with_sweeps_inside(option, name) for option in made[key]]
    return made


def _sweepable(value: Any, name: str) -> dict[str, Any]:
    """Returns a schema that accepts a value, or a sweep of such values; so do the values inside lists and named things."""
    if isinstance(value, dict):
        value = _with_sweeps_inside(value, name)
    description = {"description": value["description"]} if isinstance(value, dict) and "description" in value else {}
    given = value.pop(SWEPT, None) if isinstance(value, dict) else None
    swept: list[dict[str, Any]] = [given or {"type": "array", "items": value, "minItems": 1}]
    integer = {"type": "integer"}
    bounds = {"type": "array", "prefixItems": [integer, integer, {**integer, "not": {"const": 0}}], "minItems": 2, "maxItems": 3}
    swept.append({"type": "object", "properties": {"range": bounds}, "required": ["range"], "additionalProperties": False})
    if name in ("layers", "heads"):
        swept.append({"const": "all"})
    sweep = {
        "type": "object",
        "properties": {"sweep": {"anyOf": swept}, "as": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 100}},
        "required": ["sweep"],
        "additionalProperties": False,
        "description": "One experiment a value.",
    }
    return {"anyOf": [value, sweep], **description}
