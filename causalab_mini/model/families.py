"""The address book: where the modules of each family of models stand, and which side of which module a component is.

One row a family, by the `model_type` of transformers' configs. A family is listed when the tests have proved its addresses by
identities; another is refused by name, since the same name on another tensor is the fault this table is here to prevent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Address:
    """One tensor at a module's border.

    Attributes:
        module: path of the module below the model, empty for the model itself.
        side: `input` (its first argument), `output` (its result, or the first of its results), or `logits` (that field of it).
    """

    module: str
    side: Literal["input", "output", "logits"]


@dataclass(frozen=True, slots=True)
class Family:
    """Module paths of one family; `{layer}` stands for the layer's number."""

    embeddings: str
    block: str
    attention: str
    mlp: str
    ln_final: str
    lm_head: str

    def address(self, component: str, layer: int | None) -> Address | None:
        """Returns where a component stands, or None where this family has no such place."""
        match component:
            case "embeddings":
                return Address(self.embeddings, "output")
            case "block_input":
                return Address(self.block.format(layer=layer), "input")
            case "attention_output":
                return Address(self.attention.format(layer=layer), "output")
            case "mlp_output":
                return Address(self.mlp.format(layer=layer), "output")
            case "block_output":
                return Address(self.block.format(layer=layer), "output")
            case "ln_final":
                return Address(self.ln_final, "output")
            case "lm_head":
                return Address(self.lm_head, "output")
            case "logits":
                return Address("", "logits")
        return None


_LLAMA = Family(
    embeddings="model.embed_tokens",
    block="model.layers.{layer}",
    attention="model.layers.{layer}.self_attn",
    mlp="model.layers.{layer}.mlp",
    ln_final="model.norm",
    lm_head="lm_head",
)
_GPT2 = Family(
    embeddings="transformer.wte",
    block="transformer.h.{layer}",
    attention="transformer.h.{layer}.attn",
    mlp="transformer.h.{layer}.mlp",
    ln_final="transformer.ln_f",
    lm_head="lm_head",
)

FAMILIES: Mapping[str, Family] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}
