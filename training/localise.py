"""Where in a bundled model the answer is carried: interchange by block and position.

Responsible for a map that shows whether the entity's tokens hold the answer early and the last token holds it late.
Plain PyTorch hooks, one pair at a time. `python training/localise.py FOLDER...` prints a map a folder.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accuracy import load
from pieces import located
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from causalab_mini.data.tasks import Row, ioi, successor

N_PAIRS = 120
SEED = 7


def names(row: Row) -> tuple[str, str]:
    """Returns the name that the base's and the counterfactual's answer depends on."""
    variable = "entity" if "entity" in row else "indirect_object"
    return row[variable], row["counterfactual_inputs_variables"][0][variable]


def equal_pieces(tokenizer: PreTrainedTokenizerFast) -> Callable[[Row], bool]:
    """Returns whether a row's two names take the same token positions."""

    def keep(row: Row) -> bool:
        base, counterfactual = names(row)
        other = located(tokenizer, row["counterfactual_inputs"][0], counterfactual)
        return located(tokenizer, row["input"], base)[1] == other[1]

    return keep


def blocks(model: PreTrainedModel) -> tuple[torch.nn.Module, ...]:
    """Returns the modules whose outputs are the embeddings and the residual stream after each block."""
    body: Any = model.base_model
    if model.config.model_type == "llama":
        return (body.embed_tokens, *body.layers)
    return (body.drop, *body.h)


def hidden(output: Any) -> Tensor:
    """Returns the hidden state in a block's output, which some versions of transformers wrap in a tuple."""
    return output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def interchanged(model: PreTrainedModel, base: list[int], counterfactual: list[int], block: torch.nn.Module, span: tuple[int, int]) -> int:
    """Returns the most likely next token of the base with the counterfactual's state in `span` at a block's output."""
    stored: list[Tensor] = []
    handle = block.register_forward_hook(lambda _module, _inputs, output: stored.append(hidden(output).clone()))
    model(input_ids=torch.tensor([counterfactual]))
    handle.remove()

    def write(_module: torch.nn.Module, _inputs: object, output: Any) -> Any:
        state = hidden(output).clone()
        state[:, slice(*span)] = stored[0][:, slice(*span)]
        return (state, *output[1:]) if isinstance(output, tuple) else state

    handle = block.register_forward_hook(write)
    logits = model(input_ids=torch.tensor([base])).logits
    handle.remove()
    return int(logits[0, -1].argmax())


def localisation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Row]) -> dict[str, list[float]]:
    """Returns the share of rows whose answer's first token became the counterfactual's, by position and block."""
    places = blocks(model)
    shares = {"entity": [0.0] * len(places), "last token": [0.0] * len(places)}
    for row in rows:
        base_name, counterfactual_name = names(row)
        base, span = located(tokenizer, row["input"], base_name)
        counterfactual, _ = located(tokenizer, row["counterfactual_inputs"][0], counterfactual_name)
        wanted = tokenizer.encode(row["cf_answer"], add_special_tokens=False)[0]
        taken_by_position = {"entity": span, "last token": (len(base) - 1, len(base))}
        for position, taken in taken_by_position.items():
            for index, place in enumerate(places):
                hit = interchanged(model, base, counterfactual, place, taken) == wanted
                shares[position][index] += hit / len(rows)
    return shares


def main() -> None:
    """Prints the maps of bundled folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for folder in arguments.folders:
        model, tokenizer = load(folder)

        def first_tokens_differ(row: Row, tokenizer: PreTrainedTokenizerFast = tokenizer) -> bool:
            ends = [tokenizer.encode(row[side], add_special_tokens=False)[0] for side in ("base_answer", "cf_answer")]
            return ends[0] != ends[1] and equal_pieces(tokenizer)(row)

        kinds = {
            family: successor.make_pairs(n=N_PAIRS, seed=SEED, families=[family], keep=first_tokens_differ) for family in successor.FAMILIES
        }
        if model.config.model_type == "gpt2":
            kinds["ioi"] = ioi.make_pairs(n=N_PAIRS, seed=SEED, keep=first_tokens_differ)
        else:
            kinds["chat"] = successor.make_pairs(n=N_PAIRS, seed=SEED, form="chat", keep=first_tokens_differ)
        for kind, rows in kinds.items():
            print(f"{folder.name}, {kind}, {len(rows)} pairs")
            print(f"  {'':12}{'embed':>8}" + "".join(f"{f'block {i}':>9}" for i in range(len(blocks(model)) - 1)))
            for position, shares in localisation(model, tokenizer, rows).items():
                print(f"  {position:12}{shares[0]:8.2f}" + "".join(f"{share:9.2f}" for share in shares[1:]))


if __name__ == "__main__":
    main()
