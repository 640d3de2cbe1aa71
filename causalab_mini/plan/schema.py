"""The language as a JSON Schema: what an editor needs to complete, explain and refuse.

Made from the models, so that a field's docstring is its description. A schema can't compare two places of a document; `validate`
does. What it does encode beyond types: exactly one cut, short forms, what a mechanism needs, which components are one a layer,
closed objects, names, and sweeps in place of any value.
"""

from __future__ import annotations

from typing import Any

from causalab_mini.data.fields import FIELD_PATTERN
from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan.docstrings import field_docstrings, models
from causalab_mini.plan.files import METRIC_SUFFIXES, TENSOR_SUFFIXES
from causalab_mini.plan.spec import MECHANISM_RULES, METRIC_MODELS, NULLABLE, Spec
from causalab_mini.plan.spec.interventions import WITHOUT_ALIGN
from causalab_mini.plan.strict import NAME_PATTERN
from causalab_mini.plan.sweep import FORBIDDEN

NO_ALIGN = {"not": {"enum": ["last", "first", "mean"]}}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
CUTS = ("index", "span", "last", "all")
TEXTS = ("variable", "text", "column")
NOTHING: dict[str, dict[str, Any]] = {
    "featurizers": {"type": "object", "maxProperties": 0},
    "decode": {"const": 0},
    "controls": {"type": "array", "maxItems": 0},
}


def schema() -> dict[str, Any]:
    """Returns the JSON Schema of a document."""
    plain = Spec.model_json_schema()
    for name, model in models().items():
        definition = plain if model is Spec else plain["$defs"].get(name, {"properties": {}})
        for key, text in field_docstrings(model).items():
            if key in definition["properties"]:
                definition["properties"][key]["description"] = text
    made: dict[str, Any] = _tidied(plain, "")
    definitions = made["$defs"]
    _refine(definitions)
    _refine_rest(made, definitions)
    for definition in [made, *definitions.values()]:
        for name, value in definition.get("properties", {}).items():
            if definition is made and name in FORBIDDEN:
                continue
            if definition.get("title") not in ("ModelSpec", "Header"):
                definition["properties"][name] = _sweepable(value, name)
    made["properties"]["featurizers"] = {**NOTHING["featurizers"], "description": "Not there yet."}
    made["properties"]["$schema"] = {"type": "string", "description": "Where this schema is, for editors; ignored."}
    made["required"] = ["model", "roles", "steps"]
    return {"$schema": DIALECT, **made, "title": "causalab-mini document"}


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
    position["properties"]["frame"] = {"const": "prompt", "description": position["properties"]["frame"]["description"]}
    short = {"type": "integer", "description": "Short for `index`: one token, negative from the end."}
    definitions["Position"] = {
        "anyOf": [short, position],
        "description": position["description"],
        "examples": [-1, {"index": -1, "scope": {"variable": "entity"}}, {"last": 3}],
    }
    anchor = definitions["Anchor"]
    anchor["minProperties"] = 1
    anchor["anyOf"] = [{"required": [key]} for key in (*TEXTS, "segment")]
    anchor["allOf"] = [{"not": {"required": [a, b]}} for i, a in enumerate(TEXTS) for b in TEXTS[i + 1 :]]
    site = definitions["Site"]
    available = list(COMPONENTS.values())
    site["properties"]["component"] = {"enum": [component.name for component in available], "description": _components(available)}
    per_layer = [component.name for component in available if component.per_layer]
    site["if"] = {"properties": {"component": {"enum": per_layer}}}
    site["then"], site["else"] = {"required": ["layers"]}, {"properties": {"layers": False}}
    site["not"] = {"required": ["heads", "units"]}
    write = definitions["Write"]
    known = list(MECHANISM_RULES)
    write["properties"]["mechanism"] = {"enum": known, "description": write["properties"]["mechanism"]["description"]}
    is_number = {"properties": {"operand": {"type": "number"}}, "required": ["operand"]}
    write["allOf"] = [*(_mechanism(name) for name in known), {"if": is_number, "then": {"properties": {"align": NO_ALIGN}}}]
    for definition in definitions.values():
        for name in ("featurizer", "features", "controls", "decode"):
            if name in definition.get("properties", {}):
                definition["properties"][name] = {**NOTHING.get(name, {"not": {}}), "description": "Not there yet."}
    where = definitions["Where"]
    where["anyOf"] = [{"required": ["min"]}, {"required": ["max"]}]
    output = definitions["Output"]
    output["allOf"] = [
        {
            "if": {"properties": {"reduce": {"const": kind}}, "required": ["reduce"]},
            "then": {"required": [key]},
            "else": {"properties": {key: False}},
        }
        for kind, key in (("pca", "k"), ("mean_by", "by"))
    ]


def _refine_rest(made: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Encodes the forms of texts, and what the presence of one key says of another."""
    made["properties"]["roles"]["required"] = ["base"]
    field = f"^(?:{FIELD_PATTERN.pattern})$"
    definitions["Role"]["properties"]["field"]["pattern"] = field
    definitions["Output"]["properties"]["by"]["pattern"] = field
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
    with_keys = [name for name, component in COMPONENTS.items() if component.has_keys]
    definitions["Site"]["allOf"] = [
        {"if": {"required": ["heads"]}, "then": {"properties": {"component": {"enum": with_heads}}}},
        {"if": {"required": ["units"]}, "then": {"properties": {"component": {"not": {"enum": with_keys}}}}},
    ]
    read = definitions["Read"]
    read["if"] = {"properties": {"model": {"const": "original"}}}
    read["then"] = {"required": ["input"]}
    model = definitions["ModelSpec"]
    model["if"] = {"properties": {"key": {"pattern": "^bundled:"}}}
    model["then"] = {"properties": {"revision": False, "key": {"pattern": "^bundled:."}}}
    definitions["ModelDef"]["properties"]["writes"]["uniqueItems"] = True
    definitions["Intervention"]["properties"]["models"]["propertyNames"]["not"] = {"const": "original"}
    definitions["Anchor"]["properties"]["column"]["pattern"] = field
    definitions["Anchor"]["if"] = {"required": ["occurrence"], "properties": {"occurrence": {"not": {"const": "only"}}}}
    definitions["Anchor"]["then"] = {"anyOf": [{"required": [key]} for key in TEXTS]}
    suffixes = "|".join(suffix[1:] for suffix in (*METRIC_SUFFIXES, *TENSOR_SUFFIXES))
    plain = r"[^\\\\/:*?\"<>|]"
    definitions["Save"]["properties"]["file_path"]["pattern"] = rf"^(?!\.\.?/){plain}+(?:/(?!\.\.?/){plain}+)*\.(?:{suffixes})$"


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
    swept: list[dict[str, Any]] = [{"type": "array", "items": value, "minItems": 1}]
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
