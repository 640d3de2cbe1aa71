"""What is known of a checkpoint from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from causalab_mini.errors import ModelError, Problem, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.families import FAMILIES, Address, Family


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Shapes and identity of a checkpoint.

    Attributes:
        key: as the document spells it.
        revision: the resolved commit, or the revision that was asked for; a GGUF file's checksum; None for what has no revisions.
        dtype: what the weights are loaded as.
        attn_implementation: of transformers.
        model_type: the family, as transformers names it.
        n_layers, hidden, n_heads, n_kv_heads, head_dim, intermediate, vocabulary: counts.
        max_positions: the longest row that learned positions allow; None where positions are not learned.
    """

    key: str
    revision: str | None
    dtype: str
    attn_implementation: str | None
    model_type: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int | None

    @property
    def family(self) -> Family:
        """Returns the addresses of this checkpoint's family."""
        return FAMILIES[self.model_type]

    def address(self, component: str, layer: int | None) -> Address | None:
        """Returns where a component stands, or None where this checkpoint has no such place."""
        return self.family.address(component, layer)

    def width(self, component: str) -> int | None:
        """Returns how many features a component has; None where it depends on the row."""
        widths = {
            "token": 1,
            "hidden": self.hidden,
            "heads": self.n_heads * self.head_dim,
            "kv_heads": self.n_kv_heads * self.head_dim,
            "intermediate": self.intermediate,
            "vocabulary": self.vocabulary,
        }
        return widths.get(COMPONENTS[component].width)

    def n_heads_of(self, component: str) -> int | None:
        """Returns how many heads a component splits into, or None where it has none."""
        heads = COMPONENTS[component].heads
        return None if heads is None else self.n_heads if heads == "query" else self.n_kv_heads


def facts_from_config(config: Any, key: str, revision: str | None, dtype: str, attn_implementation: str | None) -> ModelFacts:
    """Returns the facts of a transformers config.

    Raises:
        ModelError: the family has no row in the address book.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    model_type = str(config.model_type)
    if model_type not in FAMILIES:
        expected = f"a model of one of the families {listed(sorted(FAMILIES))}"
        hint = "other families are not there yet: their places have not been proved"
        raise ModelError(Problem("model.key", expected, f"{quoted(key)}, of the family {quoted(model_type)}", hint, "not_yet"))
    n_heads = int(text.num_attention_heads)
    hidden = int(text.hidden_size)
    return ModelFacts(
        key=key,
        revision=revision,
        dtype=dtype,
        attn_implementation=attn_implementation,
        model_type=model_type,
        n_layers=int(text.num_hidden_layers),
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=int(getattr(text, "num_key_value_heads", None) or n_heads),
        head_dim=int(getattr(text, "head_dim", None) or hidden // n_heads),
        intermediate=int(getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden),
        vocabulary=int(text.vocab_size),
        max_positions=int(text.n_positions) if model_type == "gpt2" else None,
    )
