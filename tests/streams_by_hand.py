"""A stream that runs no model: rows say their prompts again, token by token, and a test decides when, and what fails."""

import threading

from causalab_mini.data.characters import decode
from causalab_mini.probing.run.rows import Ended


class StreamByHand:
    """The part of a stream that a desk uses.

    Attributes:
        joined: the numbers that joined together, join by join.
        may_step: a step waits for it.
        fails: what the next join or step raises, once.
    """

    def __init__(self, tokenizer, is_divisible=True):
        self.tokenizer, self.is_divisible = tokenizer, is_divisible
        self.rows, self.joined, self.ended, self.cancelled = {}, [], [], []
        self.may_step = threading.Event()
        self.may_step.set()
        self.fails = {}

    @property
    def n_rows(self):
        return len(self.rows)

    @property
    def can_join(self):
        return not self.rows or self.is_divisible

    def join(self, asks):
        assert self.can_join
        if error := self.fails.pop("join", None):
            raise error
        self.joined.append([ask.number for ask in asks])
        for ask in asks:
            self.rows[ask.number] = [ask, [], False]
            self._say(ask.number)
        self._let_go()

    def step(self):
        assert self.rows
        assert self.may_step.wait(20)
        if error := self.fails.pop("step", None):
            raise error
        for number, (_, _, is_through) in self.rows.items():
            if not is_through:
                self._say(number)
        self._let_go()

    def said(self, number):
        return tuple(self.rows[number][1])

    def take_ended(self):
        found, self.ended = self.ended, []
        return found

    def cancel(self, number):
        assert not self.rows[number][2]
        self.cancelled.append(number)
        self._end(number, "cancelled")
        self._let_go()

    def _say(self, number):
        ask, said, _ = self.rows[number]
        content = ask.prompt.ids[ask.prompt.n_prefix :]
        said.append(content[len(said) % len(content)])
        text = decode(self.tokenizer, said)
        if any(stop in text for stop in ask.decode.stop):
            self._end(number, "stop")
        elif len(said) == ask.decode.max_new_tokens:
            self._end(number, "length")

    def _end(self, number, why):
        ask, said, _ = self.rows[number]
        self.rows[number][2] = True
        self.ended.append(Ended(ask.number, tuple(said), decode(self.tokenizer, said), why, ()))

    def _let_go(self):
        if self.is_divisible or all(is_through for _, _, is_through in self.rows.values()):
            self.rows = {number: row for number, row in self.rows.items() if not row[2]}
