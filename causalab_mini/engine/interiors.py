"""Stops inside attention functions and routers, where no module's border is.

Attention: transformers looks its function up by name (`config._attn_implementation`), and a registered one is handed query, key and value
after rotation and before grouped repetition. Ours stops there, calls the very function that would have been called, and stops at its
result. Scores and pattern are the argument and the result of the one softmax in that function; router scores and weights those of the
one in a router's forward. A `TorchFunctionMode` sees that call. Where there is not exactly one, the pass is refused: another version of
transformers computes another way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask

from causalab_mini.engine.contract import State, Visit
from causalab_mini.engine.walk import visit
from causalab_mini.errors import Problem, RunError, quoted
from causalab_mini.model.families import INTERIOR

PREFIX = "causalab_"
SOFTMAXES = (torch.softmax, torch.nn.functional.softmax, Tensor.softmax)

_stops: dict[nn.Module, tuple[Mapping[str, Visit], State]] = {}
"""The stops of the pass that is running, by attention module."""


@contextmanager
def interiors(model: nn.Module, visits: Sequence[Visit], state: State) -> Iterator[tuple[Visit, ...]]:
    """Makes the stops inside modules for one forward, and yields those that are left: at module borders.

    Raises:
        RunError: a module computes in another way than is known.
    """
    inside = [stop for stop in visits if stop.address.side in INTERIOR]
    outside = tuple(stop for stop in visits if stop.address.side not in INTERIOR)
    if not inside:
        yield outside
        return
    by_module: dict[str, dict[str, Visit]] = {}
    for stop in inside:
        by_module.setdefault(stop.address.module, {})[stop.address.side] = stop
    with ExitStack() as stack:
        for path, sides in by_module.items():
            module = model.get_submodule(path)
            if any(side.startswith("router") for side in sides):
                stack.enter_context(_router(module, path, sides, state))
            else:
                _stops[module] = (sides, state)
                stack.callback(_stops.pop, module)
        if _stops:
            stack.enter_context(_attention_function(model))
        yield outside


@contextmanager
def _attention_function(model: nn.Module) -> Iterator[None]:
    """Has the model call our attention function instead of its own."""
    config: Any = model.config
    name = config._attn_implementation
    if name not in ("eager", "sdpa"):
        got = quoted(name)
        raise RunError(Problem("model.attn_implementation", "`eager` or `sdpa`, for places inside attention", got, code="attention"))
    config._attn_implementation = PREFIX + name
    try:
        yield
    finally:
        config._attn_implementation = name


def _attend(name: str) -> Callable[..., Any]:
    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any) -> Any:
        own = (
            AttentionInterface._global_mapping["sdpa"]
            if name == "sdpa"
            else vars(sys.modules[type(module).__module__])["eager_attention_forward"]
        )
        if module not in _stops:
            return own(module, query, key, value, attention_mask, **options)
        sides, state = _stops[module]
        query, key, value = (
            _at_heads(tensor, sides.get(side), state) for tensor, side in ((query, "query"), (key, "key"), (value, "value"))
        )
        scores, probs = sides.get("scores"), sides.get("probs")
        if scores is None and probs is None:
            result, weights = own(module, query, key, value, attention_mask, **options)
        else:
            with _SoftmaxStops(scores, probs, state, type(module).__name__, tuple(query.shape[:3])) as softmax:
                result, weights = own(module, query, key, value, attention_mask, **options)
            softmax.refuse_unless_one()
        if (stop := sides.get("z")) is not None:
            flat = result.flatten(start_dim=2)
            changed = visit(flat, stop, state)
            result = result if changed is None else changed.reshape(result.shape)
        return result, weights

    return attend


def _at_heads(tensor: Tensor, stop: Visit | None, state: State) -> Tensor:
    """Returns (row, head, token, feature) after a stop that sees (row, token, head · feature)."""
    if stop is None:
        return tensor
    changed = visit(tensor.transpose(1, 2).flatten(start_dim=2), stop, state)
    if changed is None:
        return tensor
    n_rows, n_heads, n_tokens, width = tensor.shape
    made = changed.reshape(n_rows, n_tokens, n_heads, width).transpose(1, 2)
    return tensor.copy_(made) if state.is_kept else made  # what a cache hands out is what it keeps


class _SoftmaxStops(TorchFunctionMode):
    """Stops at the argument and at the result of the one softmax of a computation.

    Args:
        argument, result: the stops.
        state: of the forward.
        what: computes, for an error.
        lines: the axes before the last, of a softmax that is the one.
    """

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __init__(self, argument: Visit | None, result: Visit | None, state: State, what: str, lines: tuple[int, ...]) -> None:
        super().__init__()
        self.argument = argument
        self.result = result
        self.state = state
        self.what = what
        self.lines = lines
        self.n_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in SOFTMAXES:
            return func(*args, **kwargs)
        self.n_calls += 1
        scores = args[0]
        if self.n_calls > 1 or tuple(scores.shape[:-1]) != self.lines:
            self.refuse(f"softmax {self.n_calls} of {' × '.join(map(str, scores.shape[:-1])) or 1} lines")
        if self.argument is not None:
            changed = visit(scores, self.argument, self.state)
            scores = scores if changed is None else changed
        probs = func(scores, *args[1:], **kwargs)
        if self.result is not None:
            changed = visit(probs, self.result, self.state)
            probs = probs if changed is None else changed
        return probs

    def refuse_unless_one(self) -> None:
        """Refuses a computation without the softmax that is known.

        Raises:
            RunError: there was none.
        """
        if self.n_calls != 1:
            self.refuse("none")

    def refuse(self, got: str) -> NoReturn:
        """Refuses a computation in another way than the one that is known."""
        import transformers

        expected = f"one softmax in {quoted(self.what)}, of {' × '.join(map(str, self.lines))} lines"
        hint = f"transformers {transformers.__version__} computes this in another way than is known"
        raise RunError(Problem("", expected, got, hint, "interior"))


@contextmanager
def _router(module: nn.Module, path: str, sides: Mapping[str, Visit], state: State) -> Iterator[None]:
    """Stops inside a router's forward."""
    entered: list[_SoftmaxStops] = []

    def enter(module: nn.Module, args: Any) -> None:
        lines = (args[0].shape[:-1].numel(),)
        softmax = _SoftmaxStops(sides.get("router_logits"), sides.get("router_probs"), state, path, lines)
        softmax.__enter__()
        entered.append(softmax)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        softmax = entered.pop()
        softmax.__exit__(None, None, None)
        softmax.refuse_unless_one()

    handles = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        while entered:
            entered.pop().__exit__(None, None, None)


for _name, _mask in (("eager", eager_mask), ("sdpa", sdpa_mask)):
    AttentionInterface.register(PREFIX + _name, _attend(_name))
    AttentionMaskInterface.register(PREFIX + _name, _mask)
