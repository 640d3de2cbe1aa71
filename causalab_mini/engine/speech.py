"""What rows say: which token comes next, and when a row ends."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from causalab_mini.data.characters import text_behind
from causalab_mini.errors import Problem, RunError
from causalab_mini.plan.spec import Decode


@dataclass(slots=True)
class Voice:
    """What one row says.

    Attributes:
        prompt: ids of its prompt.
        how: its tokens are chosen, and what ends it.
        row: its number, in errors.
        draw: what draws depend on, beside the seed and the step; they do not depend on what else is in the batch.
        fed: ids that it has said, and behind its own what pads the batch once it has ended.
        n_own: how many of them are its own; None while it goes on.
        ended: why it ended: `eos`, `stop`, `length`, or what it was ended with; None while it goes on.
        margins: by how much each token was the likeliest, as a share of its logits' standard deviation; nan where it was drawn.
    """

    prompt: tuple[int, ...]
    how: Decode
    row: int
    draw: int
    fed: list[int] = field(default_factory=list)
    n_own: int | None = None
    ended: str | None = None
    margins: list[float] = field(default_factory=list)

    @property
    def said(self) -> tuple[int, ...]:
        """What it has said, up to and including the token that ended it."""
        return tuple(self.fed[: self.n_own])

    def end(self, why: str) -> None:
        """Ends it here, unless it has ended."""
        if self.ended is None:
            self.ended, self.n_own = why, len(self.fed)


class Speech:
    """What the rows of a batch have said so far."""

    def __init__(self, tokenizer: Any, stops: Sequence[int], whose: str = "request", keeps_margins: bool = False) -> None:
        """Begins without rows.

        Args:
            tokenizer: of the checkpoint.
            stops: its stop tokens.
            whose: what a row's number stands behind, in errors.
            keeps_margins: whether it is noted by how much each token was the likeliest.
        """
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._whose = whose
        self._keeps_margins = keeps_margins
        self.voices: list[Voice] = []

    def join(self, prompt: Sequence[int], how: Decode, row: int, draw: int | None = None) -> Voice:
        """Takes in a row behind the others; draws depend on its number, unless something else is named."""
        voice = Voice(tuple(prompt), how, row, row if draw is None else draw)
        self.voices.append(voice)
        return voice

    def keep(self, places: Iterable[int]) -> None:
        """Lets go of all rows but some."""
        self.voices = [self.voices[place] for place in places]

    @property
    def goes_on(self) -> bool:
        """Whether any row says more."""
        return any(voice.ended is None for voice in self.voices)

    def said(self, place: int) -> tuple[int, ...]:
        """Returns what a row has said, up to and including the token that ended it."""
        return self.voices[place].said

    def ended(self, place: int) -> str | None:
        """Returns why a row ended, None while it goes on."""
        return self.voices[place].ended

    def last(self, place: int) -> int:
        """Returns the last token of a row in the batch: its own, or what pads it once it has ended."""
        fed = self.voices[place].fed
        return fed[-1] if fed else self.voices[place].prompt[-1]

    def hear(self, logits: Tensor) -> None:
        """Has every row say a token, given (row, vocabulary) logits; what ended rows say pads the batch.

        Raises:
            RunError: logits of a row that goes on are not finite.
        """
        if bad := self.unheard(logits):
            voice = self.voices[bad[0]]
            expected = "finite logits to choose a token by"
            got = f"NaN or infinite ones at generated token {len(voice.fed)} of {self._whose} {voice.row}"
            raise RunError(Problem("", expected, got, "a write of that size, or a `dtype` of more range", "not_finite"))
        self.say(logits)

    def unheard(self, logits: Tensor) -> list[int]:
        """Returns the rows that go on and can't choose by their logits."""
        can_choose = torch.isfinite(logits.amax(dim=-1)).tolist()  # NaN is the largest where there is one; minus infinity rules a token out
        return [place for place, voice in enumerate(self.voices) if voice.ended is None and not can_choose[place]]

    def say(self, logits: Tensor) -> None:
        """Has every row say a token, as `hear` does, once it is known that it can."""
        drawn = [place for place, voice in enumerate(self.voices) if voice.how.do_sample]
        many = [0] * len(self.voices) if len(drawn) == len(self.voices) else self._likeliest(logits)
        for place in drawn:
            many[place] = self._drawn(logits[place], self.voices[place]) if self.voices[place].ended is None else self.last(place)
        margins = self._margins(logits) if self._keeps_margins else None
        for place, (voice, token) in enumerate(zip(self.voices, many, strict=True)):
            voice.fed.append(token)
            if margins is not None:
                voice.margins.append(math.nan if voice.how.do_sample else margins[place])
            if voice.ended is None:
                self._note_end(voice, token)

    def _drawn(self, logits: Tensor, voice: Voice) -> int:
        """Returns the next token of a row that is drawn.

        Source: top-k, Fan et al. 2018; nucleus sampling, Holtzman et al. 2020: the fewest tokens whose probability reaches `top_p`.
        """
        how = voice.how
        if how.ignore_eos:
            logits = self._without_stops(logits)
        scaled = logits.double().cpu()
        scaled = ((scaled - scaled.max()) / (how.temperature or 1.0)).float()
        if how.top_k is not None:
            least = scaled.topk(min(how.top_k, len(scaled))).values[-1]
            scaled = scaled.masked_fill(scaled < least, float("-inf"))
        probabilities = scaled.softmax(dim=-1)
        if how.top_p is not None:
            ordered, order = probabilities.sort(descending=True)
            probabilities[order[1:][(ordered.cumsum(dim=-1) - ordered)[1:] >= how.top_p]] = 0.0  # the likeliest stays, however small it is
        key = hashlib.sha256(f"{how.seed}/{voice.draw}/{len(voice.fed)}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big", signed=True))
        return int(torch.multinomial(probabilities, 1, generator=generator))

    def _margins(self, logits: Tensor) -> list[float]:
        allowed = self._allowed(logits).float()
        best = allowed.topk(min(2, allowed.shape[-1]), dim=-1).values
        shares: list[float] = ((best[:, 0] - best[:, -1]) / logits.float().std(dim=-1)).tolist()
        return shares

    def _likeliest(self, logits: Tensor) -> list[int]:
        """Returns the most likely token of each row of (row, vocabulary) logits, all in one go."""
        return [int(token) for token in self._allowed(logits).argmax(dim=-1).tolist()]

    def _allowed(self, logits: Tensor) -> Tensor:
        """Returns (row, vocabulary) logits with stop tokens ruled out, in the rows where they are to be."""
        ruled_out = [place for place, voice in enumerate(self.voices) if voice.how.ignore_eos]
        if not ruled_out or not self._stops:
            return logits
        if len(ruled_out) == len(self.voices):
            return self._without_stops(logits)
        logits = logits.clone()
        logits[ruled_out] = self._without_stops(logits[ruled_out])
        return logits

    def _without_stops(self, logits: Tensor) -> Tensor:
        if not self._stops:
            return logits
        logits = logits.clone()
        logits[..., list(self._stops)] = float("-inf")
        return logits

    def _note_end(self, voice: Voice, token: int) -> None:
        if token in self._stops:
            voice.end("eos")
        elif voice.how.stop and self._has_stop(voice):
            voice.end("stop")
        elif len(voice.fed) >= voice.how.max_new_tokens:
            voice.end("length")

    def text(self, voice: Voice) -> str:
        """Returns what a row has said, as it stands behind its prompt."""
        return text_behind(self._tokenizer, voice.prompt, voice.said)

    def _has_stop(self, voice: Voice) -> bool:
        text = text_behind(self._tokenizer, voice.prompt, voice.fed)
        return any(stop in text for stop in voice.how.stop)
