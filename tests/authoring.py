"""Documents and tables for tests, in few words."""

import json

ROLES = {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}}
ENTITY = {"all": True, "scope": {"variable": "entity"}}
LOGITS = {"component": "logits"}


def site(component, layer=None, **more):
    """Returns a site in place; `layer` is an index, a list, or `all`, and left out on places of the whole model."""
    return {"component": component, **({} if layer is None else {"layers": layer}), **more}


def document(interventions, steps, key="bundled:successor-llama", roles=None):
    """Returns a document that shares nothing with what it is made of."""
    model = {"key": key, "dtype": "fp32"}
    return json.loads(json.dumps({"model": model, "roles": roles or ROLES, "interventions": interventions, "steps": steps}))


def observe(interventions, rows="rows", both=True, **more):
    """Returns a step over one table, of `base` alone or of both roles."""
    refs = {"base": rows, "counterfactual": rows} if both else {"base": rows}
    return {"kind": "observe", "rows": refs, "interventions": interventions, **more}


def patching(write, source=None, *, reads=None, metrics=None, models=None):
    """Returns an intervention with one write in the model `patched`, fed by `source` (a read of the original model) where there is one."""
    found = {"source": {"input": "counterfactual", **source}} if source else {}
    read = {"prediction": {"site": LOGITS, "pos": -1, "model": "patched"}}
    return {
        "reads": {**found, **(read if reads is None else reads)},
        "writes": {"patch": write},
        "models": models or {"patched": {"input": "base", "writes": ["patch"]}},
        **({"metrics": metrics} if metrics else {}),
    }


def write_table(folder, name, rows):
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_document(folder, raw, name="document.json"):
    path = folder / name
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def pair(base, entity, counterfactual, counterfactual_entity, **more):
    """Returns a row."""
    return {
        "input": base,
        "entity": entity,
        "counterfactual_inputs": [counterfactual],
        "counterfactual_inputs_variables": [{"entity": counterfactual_entity}],
        **more,
    }


RAGGED_PAIRS = [
    pair("If today is Thursday, tomorrow is", "Thursday", "Today is Tuesday, so tomorrow is", "Tuesday"),
    pair("Friday is today", "Friday", "If today is Sunday, tomorrow is", "Sunday"),
    pair("today is Saturday", "Saturday", "Sunday, Sunday is today, today is Friday, so is tomorrow", "Friday"),
    pair("today, tomorrow is Tuesday, so is today", "Tuesday", "Thursday is tomorrow", "Thursday"),
]
"""Of our own small tokenizer: one piece or three, as many on both sides; rows of many lengths."""
