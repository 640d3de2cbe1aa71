"""A request on its way: what it has said, which of its tokens every point wants, and the last tokens, where a point counts from the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.speech import Voice
from causalab_mini.errors import CausalabError
from causalab_mini.plan.spec import Decode
from causalab_mini.probing.request import Place, Watched
from causalab_mini.probing.router import Watch
from causalab_mini.probing.spec import CompiledSelector, compile_point


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of a stream.

    Attributes:
        number: unique in the stream; recordings are in its order.
        prompt: what the model goes on from.
        decode: how it goes on.
        watch: what gets the activations of points with probes; None for nobody.
        draw: what draws depend on beside the seed; None for the number.
    """

    number: int
    prompt: Prompt
    decode: Decode
    watch: Watch | None = None
    draw: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of an ask.

    Attributes:
        number: of the ask.
        ids: that the row said, up to and including the token that ended it.
        text: of it.
        ended: `eos`, `stop`, `length`, `abort`, `cancelled` or `error`.
        selectors: by point, the tokens that it wanted.
        error: why it could not go on; None where it could.
    """

    number: int
    ids: tuple[int, ...]
    text: str
    ended: str
    selectors: tuple[CompiledSelector, ...]
    error: CausalabError | None = None


Last = deque[tuple[int, dict[Place, Tensor]]]
"""The last tokens of a row: absolute index, and the activation at each place."""


@dataclass(slots=True, eq=False)
class Row:
    """A row of a stream.

    Attributes:
        ask: what it is of.
        voice: what it says.
        selectors: by point, the tokens that are wanted.
        last: by group of places, its last tokens.
        is_last: whether it has ended, and its last token is fed once more.
        is_through: whether nothing of it is run any more; such rows stay in batches whose cache can't let go of them.
        error: why it could not go on.
    """

    ask: Ask
    voice: Voice
    selectors: list[CompiledSelector]
    last: dict[int, Last] = field(default_factory=dict)
    is_last: bool = False
    is_through: bool = False
    error: CausalabError | None = None

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.voice.prompt)

    @property
    def n_said(self) -> int:
        """Tokens that it has said."""
        return len(self.voice.fed) if self.voice.n_own is None else self.voice.n_own

    @property
    def position(self) -> int:
        """The place of its last token in prompt and generation."""
        return self.n_prompt + self.n_said - 1

    def token(self, position: int) -> int:
        """Returns the id of a token."""
        return self.voice.prompt[position] if position < self.n_prompt else self.voice.fed[position - self.n_prompt]

    def needs_last(self) -> bool:
        """Returns whether a point wants the last token, which no forward has had as input."""
        return any(selector.needs_last_fed(self.n_said) for selector in self.selectors)

    def n_kept(self, points: tuple[int, ...]) -> int:
        """Returns how many of the last tokens some points need."""
        return max(self.selectors[point].n_kept for point in points)

    def hear(self, stops: dict[int, int]) -> None:
        """Takes note of the token that was said: a point's stop token ends the runs that it is in."""
        for point, stop in stops.items():
            if self.voice.fed[-1] == stop:
                self.selectors[point] = self.selectors[point].cut_at([self.position])


def selectors_of(watched: Watched, prompt: Prompt, decode: Decode) -> list[CompiledSelector]:
    """Returns, by point, the tokens that are wanted of a prompt and what follows."""
    found = []
    for point in watched.spec:
        selector = compile_point(point, prompt.n_tokens, decode.max_new_tokens)
        stop = watched.stops.get(point.name)
        found.append(selector if stop is None else selector.cut_at(at for at, token in enumerate(prompt.ids) if token == stop))
    return found
