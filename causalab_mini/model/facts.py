"""What is known of a checkpoint from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from causalab_mini.errors import ModelError, Problem, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.families import FAMILIES, Absent, Address, Family, Place

EAGER_ONLY = ("attention_scores", "attention_probs")
WITHOUT_SDPA = ("bloom", "gemma2")
"""Families that transformers computes in its eager way alone."""
LEARNED_POSITIONS = ("gpt2", "opt")
MAX_COUNTS = {"num_hidden_layers": 10_000, "num_attention_heads": 100_000, "hidden_size": 10_000_000, "vocab_size": 100_000_000}
"""What a config may say at most: a module is made for every layer before a weight is opened."""


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
        n_experts: of a layer; 0 where there are none.
        softcap: the bound of the final soft-capping, None without.
        sliding_window: how many tokens back some layers see; None where all see all.
        family: where the components stand.
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
    n_experts: int
    softcap: float | None
    sliding_window: int | None
    family: Family

    def place(self, component: str, layer: int | None) -> Place:
        """Returns where a component stands at a layer, or why it does not."""
        if component in EAGER_ONLY and isinstance(self.family.place(component, layer), Address) and self.attn_implementation != "eager":
            return Absent("it exists only where `attn_implementation` is `eager`")
        return self.family.place(component, layer)

    def address(self, component: str, layer: int | None) -> Address | None:
        """Returns where a component stands, or None where this checkpoint has no such place."""
        found = self.place(component, layer)
        return None if isinstance(found, Absent) else found

    def width(self, component: str) -> int | None:
        """Returns how many features a component has; None where it depends on the row."""
        widths = {
            "token": 1,
            "hidden": self.hidden,
            "heads": self.n_heads * self.head_dim,
            "kv_heads": self.n_kv_heads * self.head_dim,
            "intermediate": self.intermediate,
            "vocabulary": self.vocabulary,
            "experts": self.n_experts,
        }
        return widths.get(COMPONENTS[component].width)

    def n_heads_of(self, component: str) -> int | None:
        """Returns how many heads a component splits into, or None where it has none."""
        heads = COMPONENTS[component].heads
        return None if heads is None else self.n_heads if heads == "query" else self.n_kv_heads


def facts_from_config(config: Any, key: str, revision: str | None, dtype: str, attn_implementation: str | None) -> ModelFacts:
    """Returns the facts of a transformers config.

    Raises:
        ModelError: the family has no row in the address book, or a count is none.
    """
    model_type = str(config.model_type)
    if model_type not in FAMILIES:
        expected = f"a model of one of the families {listed(sorted(FAMILIES))}"
        hint = "the places of other families have not been proved"
        raise ModelError(Problem("model.key", expected, f"{quoted(key)}, of the family {quoted(model_type)}", hint, "family"))
    for name, most in MAX_COUNTS.items():
        value = getattr(config, name)  # transformers takes some of them as they stand
        if type(value) is not int or not 1 <= value <= most:
            raise ModelError(Problem(f"config.{name}", f"a whole number from 1 to {most:,}", quoted(value), code="checkpoint"), key)
    family = FAMILIES[model_type](config)
    if isinstance(family, str):
        raise ModelError(
            Problem("model.key", f"a {quoted(model_type)} model whose places have been proved", f"{quoted(key)}: {family}", code="family")
        )
    if attn_implementation == "sdpa" and model_type in WITHOUT_SDPA:
        got = f"`sdpa`, which transformers has not for {quoted(model_type)} models"
        raise ModelError(Problem("model.attn_implementation", "`eager`, or null", got, code="attention"))
    n_heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
    return ModelFacts(
        key=key,
        revision=revision,
        dtype=dtype,
        attn_implementation=attn_implementation,
        model_type=model_type,
        n_layers=int(config.num_hidden_layers),
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=_n_kv_heads(config, n_heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // n_heads),
        intermediate=_first(config, "intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner") or 4 * hidden,
        vocabulary=int(config.vocab_size),
        max_positions=_first(config, "n_positions", "max_position_embeddings") if model_type in LEARNED_POSITIONS else None,
        n_experts=_first(config, "num_local_experts", "num_experts"),
        softcap=getattr(config, "final_logit_softcapping", None),
        sliding_window=_sliding_window(config),
        family=family,
    )


def _first(config: Any, *names: str) -> int:
    """Returns the first of some counts that a config has, 0 without."""
    return next((int(value) for name in names if (value := getattr(config, name, None))), 0)


def _sliding_window(config: Any) -> int | None:
    """Returns the window of a config whose layers have one: some configs carry a width that no layer uses."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    is_used = getattr(config, "use_sliding_window", True) if kinds is None else "sliding_attention" in kinds
    return int(window) if window and is_used else None


def _n_kv_heads(config: Any, n_heads: int) -> int:
    if config.model_type == "falcon":
        return int(config.num_kv_heads) if config.new_decoder_architecture else 1 if config.multi_query else n_heads
    return int(getattr(config, "num_key_value_heads", None) or n_heads)
