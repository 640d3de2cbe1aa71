"""A few lines of plain PyTorch hooks, one row at a time. Imports nothing of the project: what the project is compared with."""

from dataclasses import dataclass

import torch

LLAMA = {
    "embeddings": ("model.embed_tokens", "output"),
    "block_input": ("model.layers.{}", "input"),
    "attention_output": ("model.layers.{}.self_attn", "output"),
    "mlp_output": ("model.layers.{}.mlp", "output"),
    "block_output": ("model.layers.{}", "output"),
    "ln_final": ("model.norm", "output"),
    "lm_head": ("lm_head", "output"),
    "logits": ("", "logits"),
}
GPT2 = {
    "embeddings": ("transformer.wte", "output"),
    "block_input": ("transformer.h.{}", "input"),
    "attention_output": ("transformer.h.{}.attn", "output"),
    "mlp_output": ("transformer.h.{}.mlp", "output"),
    "block_output": ("transformer.h.{}", "output"),
    "ln_final": ("transformer.ln_f", "output"),
    "lm_head": ("lm_head", "output"),
    "logits": ("", "logits"),
}
PLACES = {"gpt2": GPT2, "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": LLAMA}


@dataclass(frozen=True)
class Spot:
    """Tokens of one place; `features` narrows it to some coordinates."""

    module: str
    side: str
    tokens: tuple
    features: tuple | None = None

    @property
    def index(self):
        tokens = list(self.tokens)
        return (0, tokens) if self.features is None else (0, torch.tensor(tokens)[:, None], list(self.features))


def spot(model, component, layer, tokens, features=None):
    module, side = PLACES[model.config.model_type][component]
    return Spot(module.format(layer), side, tuple(tokens), None if features is None else tuple(features))


@torch.no_grad()
def forward(model, ids, reads=None, writes=()):
    """Runs one row; returns what was read, by name, each (token, feature).

    Args:
        reads: spots by name.
        writes: pairs of a spot and what becomes of its values: `change(values, found)`; at one place they come before the reads.
    """
    found, handles = {}, []
    for place, change in writes:

        def write(tensor, place=place, change=change):
            tensor = tensor.clone()
            tensor[place.index] = change(tensor[place.index], found)
            return tensor

        handles.append(_hook(model, place, write))
    for name, place in (reads or {}).items():

        def read(tensor, name=name, place=place):
            found[name] = tensor[place.index].clone()

        handles.append(_hook(model, place, read))
    try:
        model(torch.tensor([list(ids)]))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _hook(model, place, function):
    module = model.get_submodule(place.module)

    def on_input(module, args, kwargs):
        if args:
            new = function(args[0])
            return None if new is None else ((new, *args[1:]), kwargs)
        name = next(iter(kwargs))
        new = function(kwargs[name])
        return None if new is None else (args, {**kwargs, name: new})

    def on_output(module, args, output):
        if place.side == "logits":
            new = function(output.logits)
            if new is not None:
                output.logits = new
            return None
        new = function(output[0] if isinstance(output, tuple) else output)
        return None if new is None else (new, *output[1:]) if isinstance(output, tuple) else new

    return (
        module.register_forward_pre_hook(on_input, with_kwargs=True) if place.side == "input" else module.register_forward_hook(on_output)
    )


def ids_of(tokenizer, text):
    """Returns a prompt's token ids, and how many of them are the tokenizer's own prefix."""
    return tokenizer(text)["input_ids"], len(tokenizer("")["input_ids"])


def tokens_of(tokenizer, text, part):
    """Returns where the tokens of a part that occurs once stand in the prompt's ids, by the tokenizer's offsets."""
    assert text.count(part) == 1
    start = text.index(part)
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    return tuple(token for token, (a, b) in enumerate(offsets) if a < b and a < start + len(part) and b > start)


def log_softmax(logits):
    """Returns log-probabilities of one row in fp64, as numpy has them."""
    from scipy.special import log_softmax

    return log_softmax(logits.double().numpy(), axis=-1)


def fit_by_hand(model, layer, examples, encode, decode):
    """Returns the mean cross-entropy of interchanges of a block's output at the last token, in some coordinates, as autograd sees it.

    Args:
        examples: of each, the base's ids, the other prompt's, and the token that is wanted.
    """
    blocks = model.model.layers if hasattr(model, "model") else model.transformer.h
    losses = []
    for base, other, target in examples:
        with torch.no_grad():
            source = forward(model, other, {"x": spot(model, "block_output", layer, [len(other) - 1])})["x"]

        def swap(module, args, output, source=source):
            stream = output[0] if isinstance(output, tuple) else output
            _, rest = encode(stream[:, -1])
            new = torch.cat([stream[:, :-1], decode(encode(source)[0], rest)[:, None]], dim=1)
            return (new, *output[1:]) if isinstance(output, tuple) else new

        handle = blocks[layer].register_forward_hook(swap)
        try:
            logits = model(torch.tensor([list(base)])).logits[0, -1]
        finally:
            handle.remove()
        losses.append(-logits.log_softmax(dim=-1)[target])
    return torch.stack(losses).mean()
