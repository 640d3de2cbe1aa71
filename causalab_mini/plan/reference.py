"""The language reference as Markdown, from the models' docstrings and the tables that judge documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from causalab_mini.plan.schema import schema
from causalab_mini.plan.vocabulary import vocabulary

INTRODUCTION = """# The document language

Generated from the code (`make docs`): the tables that stand here are those that judge a document.

A document is one JSON object in one file, read strictly: no repeated keys, no NaN, no text after the end. Every object is closed, and
types are strict (`true` is not `1`). All mistakes come at once, each with its path. In place of any value outside `model`, `header` and
`version` may stand a sweep: `{"sweep": [values]}`, `{"sweep": {"range": [start, stop, step]}}`, or, for layers and heads, `{"sweep": "all"}`; each with
an optional `"as": NAME`. Sweeps without a name multiply in reading order, those of one name move together. A point's folder is named
`axis=value`, joined by commas; a text stands there as it is, other values as compact JSON with what file names can't hold percent-encoded.

An int is short for a position's `index`. A *stacked* site has several layers; its reads have a layer axis, and tables a `layer` field.
A sweep of `heads` gives lists (`[[0], [1]]`), and `"all"` one head after the other.

**A whole document**, as small as they get:

```json
{
  "model": {"key": "bundled:successor-llama", "dtype": "fp32"},
  "roles": {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}},
  "sites": {"stream": {"component": "block_output", "layers": 1}, "logits": {"component": "logits"}},
  "interventions": {
    "patching": {
      "reads": {
        "source": {"site": "stream", "pos": {"all": true, "scope": {"variable": "entity"}}, "input": "counterfactual"},
        "prediction": {"site": "logits", "pos": -1, "model": "patched"}
      },
      "writes": {"patch": {"site": "stream", "pos": {"all": true, "scope": {"variable": "entity"}}, "mechanism": "swap", "operand": "source"}},
      "models": {"patched": {"input": "base", "writes": ["patch"]}},
      "metrics": {"follows": {"kind": "match", "of": "prediction", "expected": "cf_answer"}}
    }
  },
  "steps": {
    "patch": {
      "kind": "observe",
      "rows": {"base": "successor/pairs", "counterfactual": "successor/pairs"},
      "interventions": "patching",
      "saves": [{"value": "follows", "file_path": "follows.json"}]
    }
  }
}
```

`causalab-mini new` lists larger ones, one a kind of experiment.

**Rows.** `successor/pairs` is a ref: the table `successor/pairs.json` (or `.jsonl`, `.csv`, `.parquet`) below the data root, and
`successor/pairs#test` its rows whose `split` is `test`. The data root is `--data-root`; else a folder `data` beside the document or above
it; else `documents/data` in the working directory; else the tables that ship. A table is a list of row objects; a role's `field` is a path
into a row (`a.b[1].c`). The rows of a step's roles pair by position. `example_id` labels rows where every row has one.

**Variables.** `{"variable": "entity"}` of a role whose field is `counterfactual_inputs[0]` is looked for in the row at
`counterfactual_inputs_variables[0].entity`, then in the column `entity`. So one position serves both sides of a pair.

**Positions** count the tokens of a row's own text: 0 is the first, whatever the tokenizer puts before it. A *run* of tokens (all of them, or those
of a `scope`) is *cut* by `index`, `span`, `last` or `all`. An anchor's tokens are those that overlap its text, so a piece that is begun is had whole.

**Selectors**, the strings of extraction specs, stand wherever a position does: `"5"`, `"prompt[-1]"`, `"generated[2]"`, runs (`"prompt[1:4]"`, `"generated[*]"`), and shifts (`"prompt[-1]+1"`, which is
`"generated[0]"`). They count all tokens that the model sees, its tokenizer's own at the beginning too, and a generated token is *itself*: its value is that of the forward that has
it as input, one after the forward that produced it. The last token that a row says is run only where a selector asks for it. In a document a selector stays in the sequence that it counts in
(`"5"`: in the prompt), but for shifts that leave it on every row alike; a run is as long as the row has tokens.

**Generation.** With `decode`, models go on with their prompts. A position with `"frame": "generated"` counts what a row says: 0 is its first token, -1 its last (the
stop token, if it said one), a `scope` looks for a text there, and `{"segment": "eos"}` is the stop token. What is read there comes from the forward that *produces* the token:
`logits` at 0 is what the first token was drawn from, and that is the prompt's own forward. A write there (`index` from 0, a `span`, `all`) is made in
these forwards too, one token in each; one in the prompt acts on later tokens through the keys and values that they attend to. A row that ends before a token is not eligible there
(`out_of_range`). A number is short for that many tokens from every row, greedily, with the stop token ruled out. What the models say is saved as `<model>.generated`, a table of ids, text and why each
row ended, and scored by `generated_match`; what each row says does not depend on the batch, drawn or not.

**Outputs** of a step are named once in the document, and later steps' operands refer to them by that name: `{"ref": "entity_mean"}`.

**Featurizers** are other coordinates for the values of one place. A write with a `featurizer` *encodes* what stands there, changes the coordinates (all
of them, or its `features`), and *decodes* the result; an operand that is a read has to be taken in the same coordinates. What the coordinates
do not hold (all directions outside a subspace, what a sparse autoencoder fails to reconstruct) is set aside by encoding and added again by decoding, so that
a write of a value's own coordinates leaves it as it was. A featurizer belongs to one site; the same kind of coordinates at two layers are two
featurizers. Its parameters are drawn (and then trained by a `fit`), read from a safetensors `file_path`, or taken `from` outputs of earlier steps. Files
that a run writes are stamped with the model and the place that they were made at, and refused elsewhere; a file of other origin has to have
the right shapes, and the record calls it `unstamped`.

**Fits.** A `fit` moves the parameters of the featurizers in `params`, and nothing else; the model stays as it is. Each update takes `pairs` rows, sums the terms of
the `objective` (a weight times a metric's mean over these rows, or times how open a gate is: `<gate>.mask` on average, `<gate>.units` in all) and
takes one step of the optimizer. After every epoch it is judged on the rows of `eval`, which are other rows than those it is trained on, with gates
fully open or shut. What it leaves is the best of these epochs (by the metric of `early_stop` where there is one, else by the objective), unless
`keep` says `last`. Later steps use what it leaves; a featurizer that an earlier step has used can't be trained any more, and every term has to be one
that can be differentiated. `weights` writes parameters to files, for another document's `file_path`.

**Controls** are the same intervention without what should matter, beside the metrics of a step: `"controls": ["self_swap", {"kind": "random_subspace", "n": 5}]`.

**Attribution.** An `attribute` step estimates, from gradients, what each write of an intervention would do alone to one metric, row by row; where a site has several
layers, heads or tokens, each of them is a write of its own. `verify_top` runs the largest and puts the exact change beside the estimate.

**Linear probes.** A `fit_probe` step asks whether a label can be read off what an earlier step has read: an output of one layer and one token a row. It runs no forward. The rows
are cut into `folds`, rows of equal prompts always into the same one; each is predicted by a probe of the others, whose features are standardised by those others' mean and deviation,
with an L2 penalty of weight 1 on the standardised weights. The score stands in `summary.json`, and on the screen, with its 95 % interval, and beside it what the most frequent class (or the mean label) gives without any features, and what
the same cross-validation gives on labels that were shuffled among the prompts of each fold, 20 times, with the p-value of the score among them. Accuracy comes first for `logistic` (with balanced accuracy where classes are not equally frequent, and the
area under the ROC curve of two), R² for `ridge` (with the correlation, and mean absolute and root mean squared error). Then one probe is trained on all rows, its standardisation folded in, so that `x @ weight.T + bias` is all that its file
needs to be used: `probe` saves it. Rows without label, without a place or that the earlier step left out are in `predictions` with their reason, and in no fit.
What can be read off a place need not be what the model reads there; that is what interventions ask. scikit-learn is an extra: `pip install 'causalab-mini[probes]'`.

**Streams.** A `stream` step is an extraction spec inside a document: the model goes on from the rows of one role, unchanged, and every one of its `points` keeps a tensor, or asks a probe, at the tokens that it
names (`prompt[-1]`, `generated[*]`; a generated token is itself here, one forward later than in the generated frame). `causalab-mini probe` runs the same code and writes the same tensors; what it
refuses is refused here. The name of a point that records saves its tensors, named `point/component/layer`, (record, feature); `records` is the table of which row and token each record is, `verdicts` what probes said,
and `original.generated` what the model said. `summary.json` has, under `streams`, at how many tokens each point could fire, at how many it did, and why not at more, row by row.
"""

MAX_OPTIONS = 8
ORDER = (
    "Header", "ModelSpec", "Role", "Site", "Subspace", "Pca", "Gate", "Sae", "Linear", "Standardize", "MeanAndStd", "Chain",
    "Intervention", "Read", "Write", "Params", "OutputRef", "ModelDef", "Decode", "Position", "Anchor",
    "Observe", "Output", "Difference", "DrawnControl", "Where", "Save", "Fit", "Optimizer", "Anneal", "EarlyStop", "Evaluation", "Weights", "Attribute", "FitProbe", "Stream", "PointEntry", "InterventionEntry",
)  # fmt: skip


def reference() -> str:
    """Returns the whole reference."""
    made = schema()
    definitions = made["$defs"]
    others = [name for name in definitions if name not in ORDER]
    parts = [INTRODUCTION, "## Objects\n", *_object("the document", made)]
    for name in (*ORDER, *sorted(others)):
        definition = definitions[name]
        parts += _object(name, definition["anyOf"][1] if name == "Position" else definition)
    parts.append("## Words\n")
    for section, words in vocabulary().items():
        parts.append(f"### {section.capitalize()}\n")
        parts.append(
            "\n".join(["| word | meaning |", "| --- | --- |", *(f"| `{word}` | {_cell(meaning)} |" for word, meaning in words.items())])
            + "\n"
        )
    return "\n".join(parts)


def _object(name: str, definition: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n\n{definition.get('description', '')}\n"
    required = definition.get("required", [])
    rows = []
    for key, value in definition["properties"].items():
        plain = value["anyOf"][0] if "anyOf" in value and "sweep" in json.dumps(value["anyOf"][-1]) else value
        default = "required" if key in required else f"`{json.dumps(plain['default'])}`" if "default" in plain else "–"
        description = plain.get("description", value.get("description", "")).partition("\n")[0]
        rows.append(f"| `{key}` | {_cell(_kind(plain))} | {default} | {_cell(description)} |")
    yield "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _kind(value: Any) -> str:
    """Returns a schema in a few words."""
    if not isinstance(value, dict):
        return "any"
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    options = value.get("anyOf") or value.get("oneOf")
    if options:
        words = [_kind(option) for option in options if not (isinstance(option, dict) and "sweep" in option.get("properties", {}))]
        return " or ".join(dict.fromkeys(words)) if len(words) < MAX_OPTIONS else f"one of {len(words)} kinds, below"
    if value.get("type") == "array":
        items = value.get("prefixItems")
        return "[" + ", ".join(_kind(item) for item in items) + "]" if items else f"list of {_kind(value.get('items', {}))}"
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"{{name: {_kind(value['additionalProperties'])}}}"
    return str(value.get("type", "any"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
