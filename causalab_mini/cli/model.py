"""`causalab-mini model`: the places of a checkpoint, and the proof that they are what their names say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import EXIT_RUN_FAILED, Problem, UsageError, quoted

if TYPE_CHECKING:
    from causalab_mini.model.facts import ModelFacts

ATTENTION = ("eager", "sdpa")


def register(app: typer.Typer) -> None:
    """Adds the verb and its other name."""
    app.command(name="model")(model)
    app.command(name="inspect-model", help="Another name of `model`.", hidden=False)(model)


def model(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A hub id, a folder, a GGUF file, or `bundled:NAME`.")],
    revision: options.Revision = None,
    dtype: Annotated[str, typer.Option("--dtype", help="What the weights are loaded as: `fp32`, `bf16` or `fp16`.")] = "fp32",
    attention: Annotated[str, typer.Option("--attention", help="`eager` (has scores and patterns) or `sdpa`.")] = "eager",
    prove: Annotated[bool, typer.Option("--prove", help="Load the weights and measure the identities that the names must keep.")] = False,
    emit_spec: Annotated[
        Path | None,
        typer.Option("--emit-spec", metavar="FILE", help="Write an extraction spec to begin with, at layers that the model has."),
    ] = None,
    device_map: options.DeviceMap = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    """List the components of a checkpoint from its config alone: layers, heads and width, or why there is no such place.

    With --prove, load it and print each identity with its largest error; exit 1 where one does not hold. With --emit-spec, write an
    extraction spec that fits it, for `causalab-mini probe`.
    """
    from pydantic import ValidationError

    from causalab_mini.engine.loading import open_facts
    from causalab_mini.plan.problems import problems_of
    from causalab_mini.plan.spec import ModelSpec

    if device_map != "auto" and not prove:
        raise UsageError(Problem("--device-map", "`--prove` beside it (nothing is loaded without)", quoted(device_map), code="usage"))
    given = {
        "key": key,
        "revision": revision,
        "dtype": options.choice("--dtype", dtype, ("fp32", "bf16", "fp16")),
        "attn_implementation": options.choice("--attention", attention, ATTENTION),
    }
    try:
        spec = ModelSpec.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = problems_of(error, ModelSpec)
        raise UsageError(replace(problem, path="KEY" if problem.path == "key" else f"--{problem.path}") for problem in problems) from None
    facts = open_facts(spec, trust_remote_code=trust_remote_code)
    data: dict[str, Any] = {"model": _facts(facts), "components": _components(facts)}
    if emit_spec is not None:
        from causalab_mini.probing.starter import starter_spec

        options.write(emit_spec, starter_spec(facts))
        data["spec"] = str(emit_spec)
    if not as_json:
        _print_components(data)
        if emit_spec is not None:
            print(f"wrote {emit_spec}")
    if prove:
        from causalab_mini.engine.engines.nnterp import NNterpEngine
        from causalab_mini.engine.prove import prove as measure

        proofs = measure(NNterpEngine.load(spec, device_map=device_map, trust_remote_code=trust_remote_code))
        data["proofs"] = [
            {"identity": p.identity, "error": p.error, "layer": p.layer, "n": p.n, "tolerance": p.tolerance, "holds": p.holds}
            for p in proofs
        ]
        if not as_json:
            _print_proofs(data["proofs"])
    if as_json:
        print(json.dumps(data, indent=1, ensure_ascii=False))
    if prove and not all(proof["holds"] for proof in data["proofs"]):
        sys.exit(EXIT_RUN_FAILED)


def _facts(facts: ModelFacts) -> dict[str, Any]:
    names = ("key", "revision", "dtype", "attn_implementation", "model_type", "n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim")
    return {name: getattr(facts, name) for name in (*names, "intermediate", "vocabulary", "max_positions", "n_experts", "softcap")}


def _components(facts: ModelFacts) -> list[dict[str, Any]]:
    from causalab_mini.model.components import COMPONENTS
    from causalab_mini.model.families import Absent

    rows = []
    for name, component in COMPONENTS.items():
        layers = range(facts.n_layers) if component.per_layer else (None,)
        places = {layer: facts.place(name, layer) for layer in layers}
        present = [layer for layer, place in places.items() if not isinstance(place, Absent)]
        reasons = sorted({place.reason for place in places.values() if isinstance(place, Absent)})
        rows.append(
            {
                "component": name,
                "layers": [] if not component.per_layer else present,
                "is_there": bool(present),
                "heads": facts.n_heads_of(name) if present else None,
                "width": facts.width(name) if component.width != "keys" else "keys",
                "is_writable": component.is_writable,
                "reason": "; ".join(reasons) or None,
                "meaning": component.meaning,
            }
        )
    return rows


def _print_components(data: dict[str, Any]) -> None:
    facts = data["model"]
    revision = "" if facts["revision"] is None else f" at {facts['revision']}"
    kv = "" if facts["n_kv_heads"] == facts["n_heads"] else f" ({facts['n_kv_heads']} key/value)"
    print(
        f"{facts['key']}{revision}: {facts['model_type']}, {facts['n_layers']} layers, width {facts['hidden']}, {facts['n_heads']} heads{kv} of {facts['head_dim']}"
    )
    print(f"  {'component':<22} {'layers':<9} {'heads':>5} {'width':>7}")
    for row in data["components"]:
        if not row["is_there"]:
            print(f"  {row['component']:<22} –  {row['reason']}")
            continue
        layers = _layers(row["layers"])
        heads = "" if row["heads"] is None else row["heads"]
        note = "" if row["is_writable"] else "  read-only"
        note += "" if row["reason"] is None else f"  elsewhere: {row['reason']}"
        print(f"  {row['component']:<22} {layers:<9} {heads:>5} {row['width']:>7}{note}")


def _layers(layers: list[int]) -> str:
    """Returns layers as a range where they are one, else as a list."""
    if not layers:
        return ""
    if layers == list(range(layers[0], layers[-1] + 1)):
        return str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
    return ",".join(map(str, layers))


def _print_proofs(proofs: list[dict[str, Any]]) -> None:
    width = max(len(proof["identity"]) for proof in proofs)
    print(f"  {'identity':<{width}} {'largest error':>14}  (share of the root mean square)")
    for proof in proofs:
        where = "" if proof["layer"] is None or proof["error"] == 0 else f"  layer {proof['layer']}"
        print(f"  {proof['identity']:<{width}} {proof['error']:>14.1e}  {'holds' if proof['holds'] else 'FAILS'}{where}")
