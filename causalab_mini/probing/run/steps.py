"""A `stream` step of a document: the same request, batches and recording as `causalab-mini probe`."""

from __future__ import annotations

from typing import Any

from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.sizes import Sizes
from causalab_mini.plan import plan as nodes
from causalab_mini.probing.request import Request, places_of
from causalab_mini.probing.run.observing import BATCH_SIZE, observe
from causalab_mini.probing.run.recording import Recording, tensor_name


def run_step(engine: BaseEngine, request: nodes.Request, step: nodes.Stream, sizes: Sizes) -> dict[str, Any]:
    """Returns what a step records: `points` (tensors by point and name), `records`, `generated`, and `fired`, which is for the summary.

    Args:
        engine: the checkpoint.
        request: what the step is of.
        step: what is watched, over which rows.
        sizes: how many rows are run together.

    Raises:
        RunError: the model can't go on token by token, or a single row does not fit into memory.
    """
    prompts = request.prompts[step.rows]
    asked = Request(step.watched, prompts, step.decode)  # judged when it was compiled
    size = min(len(prompts), sizes.batch_size or min(BATCH_SIZE, sizes.most or BATCH_SIZE))
    recording = observe(engine, asked, size, lambda n: sizes.pause(), on_halved=sizes.halve)
    sizes.used.append(min(size, sizes.most or size))
    return _results(recording, step, engine.tokenizer)


def _results(recording: Recording, step: nodes.Stream, tokenizer: Any) -> dict[str, Any]:
    """Returns a recording as the results of a step, requests named by the labels of their rows."""
    said = [
        {
            "example_id": label,
            "ids": list(one.ids),
            "text": one.text,
            "ended": one.ended,
            **({"aborted_by": abort.point, "reason": abort.reason} if (abort := recording.aborts.get(number)) else {}),
            "produced_by": f"{step.name}/original/{step.role}",
        }
        for number, (label, one) in enumerate(zip(step.labels, recording.generated, strict=True))
    ]
    records = [{"example_id": step.labels[line["request"]], **line} for line in recording.index(tokenizer)]
    fired = recording.summary()
    for point in fired:
        for failure in point.get("probe", {}).get("failures", ()):
            failure["example_id"] = step.labels[failure["request"]]
        point["requests"] = [{"example_id": step.labels[line["request"]], **line} for line in point["requests"]]
    return {
        "points": {
            point.name: {(name := tensor_name(point.name, place)): recording.tensors[name] for place in places_of(point)}
            for point in step.spec
            if point.name in recording.requests
        },
        "records": records,
        "verdicts": [{"example_id": step.labels[line["request"]], **line} for line in recording.verdict_lines(tokenizer)],
        "generated": {"original.generated": said},
        "fired": fired,
        "n_forwards": recording.n_forwards,
    }
