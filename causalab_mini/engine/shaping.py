"""A forward with less in it: blocks that are stood in for, rows that join on the way, an unembedding of some positions alone.

Blocks get a `forward` of their own for the time of one pass, which both engines and any hook see as the block's; the model makes masks,
rotations, final norm and unembedding itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from causalab_mini.engine.contract import Enter, Shortcut
from causalab_mini.engine.walk import narrowed, replaced, taken
from causalab_mini.model.facts import ModelFacts
from causalab_mini.ops.windows import placed


@contextmanager
def shaped(module: nn.Module, facts: ModelFacts, shortcut: Shortcut) -> Iterator[None]:
    """Has a model's next forward leave out what a shortcut says."""
    family = facts.family
    with ExitStack() as stack:
        if shortcut.skips:
            for layer in range(facts.n_layers):
                block = module.get_submodule(family.module("block_output").format(layer=layer))
                joining = [enter for enter in shortcut.enters if enter.n_skipped == layer + 1]
                n_before = sum(enter.n_rows for enter in shortcut.enters if enter.n_skipped <= layer)
                n_all = sum(enter.n_rows for enter in shortcut.enters)
                if n_before == 0:
                    stack.enter_context(_forward(block, _stand_in(joining)))
                elif joining or n_before < n_all:
                    stack.enter_context(_forward(block, _with_some(block.forward, n_before, n_all, facts.n_heads, joining)))
        if shortcut.columns is not None:
            head = module.get_submodule(family.module("lm_head"))
            stack.callback(head.register_forward_pre_hook(_narrowing(shortcut.columns)).remove)
            if shortcut.vocabulary is not None and isinstance(head, nn.Linear) and head.weight.device.type != "meta":
                stack.enter_context(_forward(head, _of_tokens(head, shortcut.vocabulary)))
        yield


@contextmanager
def _forward(block: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Gives a block another forward for a while."""
    before = block.__dict__.get("forward")
    block.forward = forward
    try:
        yield
    finally:
        if before is None:
            del block.forward
        else:
            block.forward = before


def _stand_in(joining: Sequence[Enter]) -> Callable[..., Any]:
    """Returns a forward that runs nothing: it passes on what it is given, or what stands for its result."""

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not joining:
            return hidden_states
        return _result(_stream(joining, hidden_states), joining[0].tail)

    return forward


def _with_some(original: Callable[..., Any], n_before: int, n_all: int, n_heads: int, joining: Sequence[Enter]) -> Callable[..., Any]:
    """Returns a forward over the rows that are there, whose result has those that join."""

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        given = [_first(value, n_before, n_all, n_heads) for value in args]
        named = {name: _first(value, n_before, n_all, n_heads) for name, value in kwargs.items()}
        found = original(hidden_states[:n_before], *given, **named)
        if not joining:
            return found
        stream = taken(found)
        return replaced(found, torch.cat([stream, _stream(joining, stream)]))

    return forward


def _stream(joining: Sequence[Enter], like: Tensor) -> Tensor:
    streams = [enter.stream for enter in joining if enter.stream is not None]
    stream = streams[0] if len(streams) == 1 else torch.cat(streams)
    return stream.to(like.device)


def _result(stream: Tensor, tail: tuple[Any, ...] | None) -> Any:
    return stream if tail is None else (stream, *tail)


def _first(value: Any, n: int, n_all: int, n_heads: int) -> Any:
    """Returns what a block is given for the first rows of a batch: masks, positions and rotations have a line a row, or a head of a row."""
    if isinstance(value, Tensor) and value.dim() >= 2:
        if len(value) == n_all:
            return value[:n]
        return value[: n * n_heads] if len(value) == n_all * n_heads and value.dim() == 3 else value
    if isinstance(value, tuple | list):
        return type(value)(_first(entry, n, n_all, n_heads) for entry in value)
    return value


def _of_tokens(head: nn.Linear, tokens: Tensor) -> Callable[..., Any]:
    """Returns an unembedding of some tokens; the others are nan, so that nothing can be made of them unseen."""

    def forward(hidden_states: Tensor) -> Tensor:
        chosen = placed(tokens, head.weight.device)
        bias = None if head.bias is None else head.bias[chosen]
        found = nn.functional.linear(hidden_states, head.weight[chosen], bias)
        logits = found.new_full((*found.shape[:-1], len(head.weight)), float("nan"))
        logits[..., chosen] = found
        return logits

    return forward


def _narrowing(columns: Tensor) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...]) -> Any:
        return (narrowed(args[0], columns), *args[1:])

    return hook
