"""What rows say: which token comes next, and when a row ends."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from causalab_mini.data.characters import decode
from causalab_mini.errors import Problem, RunError
from causalab_mini.plan.spec import Decode


class Speech:
    """What the rows of a batch have said so far.

    Attributes:
        ended: why a row ended, `eos` or `stop`, by place in the batch.
        margins: at each step, by how much each row's token was the likeliest, as a share of its logits' standard deviation; nan where it was drawn.
    """

    def __init__(
        self,
        tokenizer: Any,
        stops: Sequence[int],
        how: Decode,
        prompts: Sequence[Sequence[int]],
        rows: Sequence[int],
        whose: str = "request",
        keeps_margins: bool = False,
    ) -> None:
        """Begins with nothing said.

        Args:
            tokenizer: of the checkpoint.
            stops: its stop tokens.
            how: tokens are chosen, and what ends a row.
            prompts: the ids of each row's prompt.
            rows: numbers of the rows; draws depend on them, and not on what else is in the batch.
            whose: what a row's number stands behind, in errors.
            keeps_margins: whether it is noted by how much each token was the likeliest.
        """
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._how = how
        self._prompts = [tuple(ids) for ids in prompts]
        self._rows = tuple(rows)
        self._whose = whose
        self._said: list[list[int]] = [[] for _ in rows]
        self._n_own: dict[int, int] = {}
        self.ended: dict[int, str] = {}
        self._keeps_margins = keeps_margins
        self.margins: list[list[float]] = []

    @property
    def goes_on(self) -> bool:
        """Whether any row says more."""
        return len(self.ended) < len(self._rows) and len(self._said[0]) < self._how.max_new_tokens

    def said(self, place: int) -> tuple[int, ...]:
        """Returns what a row has said, up to and including the token that ended it."""
        return tuple(self._said[place][: self._n_own.get(place)])

    def last(self, place: int) -> int:
        """Returns the last token of a row in the batch: its own, or what pads it once it has ended."""
        return self._said[place][-1]

    def hear(self, logits: Tensor, step: int) -> None:
        """Has every row say a token, given the (row, vocabulary) logits of a step; what ended rows say pads the batch."""
        going = [place for place in range(len(self._rows)) if place not in self.ended]
        can_choose = torch.isfinite(logits.amax(dim=-1)).tolist()  # NaN is the largest where there is one; minus infinity rules a token out
        if bad := [place for place in going if not can_choose[place]]:
            expected, got = (
                "finite logits to choose a token by",
                f"NaN or infinite ones at generated token {step} of {self._whose} {self._rows[bad[0]]}",
            )
            raise RunError(Problem("", expected, got, "a write of that size, or a `dtype` of more range", "not_finite"))
        many = (
            [self.choose(logits[place], place, step) if place in going else self.last(place) for place in range(len(self._rows))]
            if self._how.do_sample
            else self._likeliest(logits)
        )
        if self._keeps_margins:
            self.margins.append(self._margins(logits))
        for place, token in enumerate(many):
            self._said[place].append(token)
            if place not in self.ended:
                self._note_end(place, token)

    def choose(self, logits: Tensor, place: int, step: int) -> int:
        """Returns the next token of a row: the most likely one, or one that is drawn.

        Source: top-k, Fan et al. 2018; nucleus sampling, Holtzman et al. 2020: the fewest tokens whose probability reaches `top_p`.
        """
        how = self._how
        if not how.do_sample:
            return self._likeliest(logits[None])[0]
        logits = self._allowed(logits)
        scaled = logits.double().cpu()
        scaled = ((scaled - scaled.max()) / (how.temperature or 1.0)).float()
        if how.top_k is not None:
            least = scaled.topk(min(how.top_k, len(scaled))).values[-1]
            scaled = scaled.masked_fill(scaled < least, float("-inf"))
        probabilities = scaled.softmax(dim=-1)
        if how.top_p is not None:
            ordered, order = probabilities.sort(descending=True)
            probabilities[order[(ordered.cumsum(dim=-1) - ordered) >= how.top_p]] = 0.0
        key = hashlib.sha256(f"{how.seed}/{self._rows[place]}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big", signed=True))
        return int(torch.multinomial(probabilities, 1, generator=generator))

    def _margins(self, logits: Tensor) -> list[float]:
        if self._how.do_sample:
            return [math.nan] * len(self._rows)
        allowed = self._allowed(logits).float()
        best = allowed.topk(min(2, allowed.shape[-1]), dim=-1).values
        shares: list[float] = ((best[:, 0] - best[:, -1]) / logits.float().std(dim=-1)).tolist()
        return shares

    def _likeliest(self, logits: Tensor) -> list[int]:
        """Returns the most likely token of each row of (row, vocabulary) logits, all in one go."""
        return [int(token) for token in self._allowed(logits).argmax(dim=-1).tolist()]

    def _allowed(self, logits: Tensor) -> Tensor:
        """Returns logits with stop tokens ruled out, where they are to be."""
        if not self._how.ignore_eos or not self._stops:
            return logits
        logits = logits.clone()
        logits[..., list(self._stops)] = float("-inf")
        return logits

    def _note_end(self, place: int, token: int) -> None:
        if token in self._stops:
            self.ended[place] = "eos"
        elif self._how.stop:
            text = self.text(place, self._said[place])
            if any(stop in text for stop in self._how.stop):
                self.ended[place] = "stop"
        if place in self.ended:
            self._n_own[place] = len(self._said[place])

    def text(self, place: int, ids: Sequence[int]) -> str:
        """Returns the text of tokens as it stands behind a row's prompt."""
        prompt = self._prompts[place]
        before, whole = decode(self._tokenizer, prompt), decode(self._tokenizer, (*prompt, *ids))
        return whole[len(before) :] if whole.startswith(before) else decode(self._tokenizer, ids)
