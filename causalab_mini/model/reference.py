"""The table of components and families as Markdown, made of the address book."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from causalab_mini.model.components import COMPONENTS, Component
from causalab_mini.model.facts import EAGER_ONLY
from causalab_mini.model.families import FAMILIES, Absent, Family

INTRODUCTION = """# Components and families

Generated from the address book (`make docs`). What a name means is the same on every family; a place that a family has not is refused
with its reason when the document is compiled. `tests/test_families.py` proves every cell on a small random model of the family, on ragged
left-padded rows: that a read finds and a write changes what plain PyTorch does on the row alone, or that the place is refused.

*Heads* says which heads a component splits into: those of the queries, or those of keys and values, which are fewer under grouped queries.
Places marked *eager* need `"attn_implementation": "eager"`; `attention_query`, `attention_key`, `attention_value` and `attention_z` also
exist under `sdpa`. `attention_query` is what the attention function is given: OPT has scaled it by then.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A family, or a variant of it whose places are others.

    Attributes:
        model_type: as transformers names it.
        config: what the address book looks at.
        layer: the layer that is shown.
        meaning: what makes a model one of this variant; empty for the family as it mostly is.
    """

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    layer: int = 1
    meaning: str = ""

    def family(self) -> Family:
        """Returns the places."""
        found = FAMILIES[self.model_type](SimpleNamespace(**self.config))
        assert isinstance(found, Family)
        return found


_BLOOM = {"apply_residual_connection_post_layernorm": False, "pretraining_tp": 1, "slow_but_exact": False}
_FALCON = {"new_decoder_architecture": False, "parallel_attn": True, "num_ln_in_parallel_attn": None}
_OPT = {"do_layer_norm_before": True, "hidden_size": 64, "word_embed_proj_dim": 64}
_EXPERTS = {"num_hidden_layers": 2, "mlp_only_layers": (), "decoder_sparse_step": 1}

COLUMNS: Mapping[str, Column] = {
    "bloom": Column("bloom", _BLOOM),
    "falcon": Column("falcon", _FALCON),
    "falcon-serial": Column("falcon", _FALCON | {"parallel_attn": False}, meaning="Falcon with `parallel_attn: false`"),
    "falcon-two-norms": Column(
        "falcon",
        _FALCON | {"new_decoder_architecture": True},
        meaning="Falcon with `new_decoder_architecture` and a norm each for attention and MLP",
    ),
    "gemma2": Column("gemma2"),
    "gemma3_text": Column("gemma3_text"),
    "gpt2": Column("gpt2", {"reorder_and_upcast_attn": False}),
    "gpt_neox": Column("gpt_neox", {"use_parallel_residual": True}),
    "gpt_neox-serial": Column("gpt_neox", {"use_parallel_residual": False}, meaning="GPT-NeoX with `use_parallel_residual: false`"),
    "gptj": Column("gptj"),
    "llama": Column("llama"),
    "mistral": Column("mistral"),
    "mixtral": Column("mixtral"),
    "olmo2": Column("olmo2"),
    "opt": Column("opt", _OPT),
    "phi": Column("phi"),
    "qwen2": Column("qwen2"),
    "qwen2_moe": Column("qwen2_moe", _EXPERTS),
    "qwen2_moe-dense": Column(
        "qwen2_moe",
        _EXPERTS | {"mlp_only_layers": (0,)},
        0,
        "a layer without experts of a Qwen mixture (`mlp_only_layers`, `decoder_sparse_step`)",
    ),
    "qwen3": Column("qwen3"),
    "qwen3_moe": Column("qwen3_moe", _EXPERTS),
}
"""By the name that the page and the tests have for each."""


def cells_of(name: str) -> dict[str, str]:
    """Returns a column: by component, `read/write` or `read`, or why there is no such place."""
    column = COLUMNS[name]
    family, cells = column.family(), {}
    for component in COMPONENTS.values():
        found = family.place(component.name, column.layer if component.per_layer else None)
        cells[component.name] = found.reason if isinstance(found, Absent) else "read/write" if component.is_writable else "read"
    return cells


def components_page() -> str:
    """Returns the page: families whose cells are equal share a column."""
    columns: dict[tuple[str, ...], list[str]] = {}
    for name in COLUMNS:
        columns.setdefault(tuple(cells_of(name).values()), []).append(name)
    reasons = list(dict.fromkeys(cell for cells in columns for cell in cells if not cell.startswith("read")))
    numbers = {reason: f"({number})" for number, reason in enumerate(reasons, start=1)}
    header = ["component", "heads", *("<br>".join(f"`{name}`" for name in names) for names in columns.values())]
    rows = [
        [_name(component), component.heads or "–", *(numbers.get(cells[index], cells[index]) for cells in columns)]
        for index, component in enumerate(COMPONENTS.values())
    ]
    table = [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join([INTRODUCTION, *table, "", "No such place:\n", *_list(reasons), *_variants(), *_meanings()])


def _name(component: Component) -> str:
    return f"`{component.name}`" + (" *eager*" if component.name in EAGER_ONLY else "")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(reasons: list[str]) -> Iterator[str]:
    for number, reason in enumerate(reasons, start=1):
        yield f"{number}. {reason[0].upper()}{reason[1:]}."


def _variants() -> Iterator[str]:
    yield "\nVariants:\n"
    for name, column in COLUMNS.items():
        if column.meaning:
            yield f"- `{name}`: {column.meaning}."


def _meanings() -> Iterator[str]:
    yield "\n## What they are\n"
    yield _line(["component", "a layer", "width", "what it is"])
    yield _line(["---"] * 4)
    for component in COMPONENTS.values():
        width = {"heads": "heads × head_dim", "kv_heads": "kv heads × head_dim", "token": "1"}.get(component.width, component.width)
        yield _line([f"`{component.name}`", "yes" if component.per_layer else "–", width, component.meaning])
    yield ""
