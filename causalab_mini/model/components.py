"""The names of places inside a model, and what each of them is.

The table is in forward order: it is also the total order in which a forward passes them (`forward_rank`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Width = Literal["token", "hidden", "heads", "kv_heads", "keys", "intermediate", "vocabulary", "experts"]
Heads = Literal["query", "key/value"]


@dataclass(frozen=True, slots=True)
class Component:
    """One name of the language.

    Attributes:
        name: as a site spells it.
        per_layer: whether every layer has one; the rest belong to the whole model.
        width: what its last axis counts.
        heads: which heads its last axis splits into, if it does.
        is_writable: whether a write may stand there.
        is_residual: whether it is the residual stream or something added to it, so that the unembedding can read it.
        is_vocabulary: whether its last axis is a score a token.
        meaning: one line.
    """

    name: str
    per_layer: bool
    width: Width
    meaning: str
    heads: Heads | None = None
    is_writable: bool = True
    is_residual: bool = False
    is_vocabulary: bool = False

    @property
    def has_keys(self) -> bool:
        """Whether its last axis is the keys that a query attends to."""
        return self.width == "keys"


_IN_FORWARD_ORDER = (
    Component("input_ids", False, "token", "the token ids", is_writable=False),
    Component("embeddings", False, "hidden", "output of the token embedding", is_residual=True),
    Component("block_input", True, "hidden", "stream entering the block", is_residual=True),
    Component("attention_input_norm", True, "hidden", "output of the norm that attention reads"),
    Component("attention_query", True, "heads", "queries after head split and rotation", "query"),
    Component("attention_key", True, "kv_heads", "keys after rotation, before grouped-query repetition", "key/value"),
    Component("attention_value", True, "kv_heads", "values before grouped-query repetition", "key/value"),
    Component("attention_scores", True, "keys", "argument of the softmax: scaled, masks added", "query"),
    Component("attention_probs", True, "keys", "the pattern that mixes the values", "query"),
    Component("attention_z", True, "heads", "result of each head before the output projection", "query"),
    Component("attention_premix", True, "heads", "input of the output projection", "query"),
    Component("attention_output", True, "hidden", "what attention adds to the stream", is_residual=True),
    Component("block_mid", True, "hidden", "stream between attention and MLP", is_residual=True),
    Component("mlp_input_norm", True, "hidden", "output of the norm that the MLP reads"),
    Component("mlp_input", True, "hidden", "what the MLP is called with"),
    Component("router_logits", True, "experts", "scores of the experts before the softmax"),
    Component("router_probs", True, "experts", "weights of the experts"),
    Component("mlp_activation", True, "intermediate", "output of the activation function"),
    Component("mlp_neuron_output", True, "intermediate", "input of the down projection"),
    Component("mlp_output", True, "hidden", "what the MLP adds to the stream", is_residual=True),
    Component("block_output", True, "hidden", "stream leaving the block", is_residual=True),
    Component("ln_final", False, "hidden", "output of the final norm"),
    Component("lm_head", False, "vocabulary", "output of the unembedding", is_vocabulary=True),
    Component("logits", False, "vocabulary", "what the model predicts from", is_vocabulary=True),
)

COMPONENTS: Mapping[str, Component] = {component.name: component for component in _IN_FORWARD_ORDER}

ALIASES: Mapping[str, str] = {
    "embed": "embeddings",
    "resid_pre": "block_input",
    "resid_mid": "block_mid",
    "resid_post": "block_output",
    "residual": "block_output",
    "residual_stream": "block_output",
    "hidden_states": "block_output",
    "attn_out": "attention_output",
    "mlp_out": "mlp_output",
    "q": "attention_query",
    "k": "attention_key",
    "v": "attention_value",
    "z": "attention_z",
    "attn_scores": "attention_scores",
    "pattern": "attention_probs",
    "mlp_post": "mlp_neuron_output",
    "post": "mlp_neuron_output",
    "unembed": "lm_head",
}
"""What other tools call these places, for hints."""

_RANK = {component.name: rank for rank, component in enumerate(_IN_FORWARD_ORDER)}
_FIRST_AFTER_LAYERS = _RANK["ln_final"]


def forward_rank(component: str, layer: int | None) -> tuple[int, int, int]:
    """Returns when a forward passes a place: sorting by it gives forward order.

    Args:
        component: a name of the table.
        layer: non-negative on per-layer components, None on the others.
    """
    rank = _RANK[component]
    if COMPONENTS[component].per_layer:
        return (1, layer or 0, rank)
    return (0, 0, rank) if rank < _FIRST_AFTER_LAYERS else (2, 0, rank)
