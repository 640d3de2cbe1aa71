"""The desk: who is taken in when, and what a failure, a hang-up or a late request costs the others."""

import threading
from types import SimpleNamespace

import pytest
import torch
from conftest import small_tokenizer
from streams_by_hand import StreamByHand

from causalab_mini.data.prompts import make_prompt
from causalab_mini.errors import Problem, RunError
from causalab_mini.plan.spec import Decode
from causalab_mini.probing.serve.desk import Busy, Closed, Desk, Room, Wish

pytestmark = pytest.mark.tiny

TOKENIZER = small_tokenizer()
SECONDS = 20
TEXTS = ("Friday", "So is Sunday", "If today is Thursday", "Monday is today", "tomorrow")


def wish(number=0, n=4, **decode):
    return Wish(f"r{number}", make_prompt(TOKENIZER, TEXTS[number % len(TEXTS)]), Decode(max_new_tokens=n, **decode), number)


def said(one):
    content = one.prompt.ids[one.prompt.n_prefix :]
    return tuple(content[at % len(content)] for at in range(one.decode.max_new_tokens))


def wait(ticket):
    """Returns what became of a ticket."""
    through = threading.Event()
    ticket.listen(lambda: ticket.done is not None and through.set())
    assert through.wait(SECONDS), "lost"
    return ticket.done


class Held:
    """A desk whose steps a test allows, and the streams that it made."""

    def __init__(self, is_divisible=True, **room):
        self.streams, self.now = [], 0.0
        self.desk = Desk(
            lambda: self.make(is_divisible), make_prompt(TOKENIZER, "Friday"), self, Room(**room), clock=self.tick, on_done=self.count
        )
        self.ended, self.n_done = [], 0

    def tick(self):
        self.now += 1e-6
        return self.now

    def make(self, is_divisible):
        self.streams.append(StreamByHand(TOKENIZER, is_divisible))
        return self.streams[-1]

    def open(self, name, n_prompt_tokens):
        return SimpleNamespace(end=lambda ended, n: self.ended.append((name, ended, n)) or (name, ended, n))

    def count(self, ticket):
        self.n_done += 1

    @property
    def stream(self):
        return self.streams[-1]

    @property
    def joined(self):
        return [numbers for stream in self.streams for numbers in stream.joined if numbers != [-1]]

    def hold(self):
        self.stream.may_step.clear()

    def go(self):
        self.stream.may_step.set()

    def until(self, is_so):
        wait_for = threading.Event()
        for _ in range(SECONDS * 200):
            if is_so():
                return
            wait_for.wait(0.005)
        raise AssertionError("it did not come to that")


@pytest.fixture
def held():
    """Returns a function that makes a desk."""
    made = []

    def make(*args, **room):
        made.append(Held(*args, **room))
        return made[-1]

    yield make
    for one in made:
        one.go()
        one.desk.close()


@pytest.mark.parametrize("is_divisible", [True, False])
def test_every_wish_is_answered_with_its_own(held, is_divisible):
    desk = held(is_divisible, n_rows=3).desk
    tickets = [desk.ask([wish(number, 1 + number % 7)])[0] for number in range(60)]
    for ticket in tickets:
        done = wait(ticket)
        assert (done.ids, done.ended) == (said(ticket.wish), "length")
        assert done.outcome == (ticket.wish.name, "length", len(done.ids))
    assert desk.mode == ("joined as they come" if is_divisible else "whole batches")
    assert desk.wait_until_idle(SECONDS)
    assert (desk.n_waiting, desk.n_running, desk.n_ending) == (0, 0, 0)


def test_rows_join_in_order_of_arrival_as_places_become_free(held):
    one = held(n_rows=2)
    one.hold()
    tickets = one.desk.ask([wish(number, 3 if number else 300) for number in range(6)])
    one.until(lambda: one.desk.n_running == 2)
    assert one.desk.n_waiting == 4
    one.go()
    ends = [wait(ticket) for ticket in tickets]
    assert max(ticket.ended_at for ticket in tickets[1:]) <= tickets[0].ended_at
    assert [len(done.ids) for done in ends] == [300, 3, 3, 3, 3, 3]
    numbers = [number for numbers in one.joined for number in numbers]
    assert numbers == sorted(numbers)
    assert max(map(len, one.joined)) <= 2


def test_whole_batches_are_run_in_order_of_arrival(held):
    one = held(False, n_rows=2)
    one.hold()
    tickets = [one.desk.ask([wish(number, 2 + number)])[0] for number in range(5)]
    one.until(lambda: one.desk.n_running)
    one.go()
    for ticket in tickets:
        wait(ticket)
    assert [number for numbers in one.joined for number in numbers] == list(range(5))
    assert len(one.joined) in (3, 4), "the first may have found itself alone"


def test_rows_go_on_while_others_join(held):
    """A flood of short ones, each through with its first token, does not hold up who speaks."""
    one = held(n_rows=2)
    long = one.desk.ask([wish(0, 20)])[0]
    short = [one.desk.ask([wish(number, 1)])[0] for number in range(1, 100)]
    wait(long)
    assert [wait(ticket).ended for ticket in short] == ["length"] * 99


def test_a_full_room_says_when_to_come_back(held):
    one = held(n_rows=1, n_waiting=2)
    one.hold()
    one.desk.ask([wish()])
    one.until(lambda: one.desk.n_running == 1)
    waiting = one.desk.ask([wish(1), wish(2)])
    with pytest.raises(Busy) as busy:
        one.desk.ask([wish(3)])
    assert busy.value.seconds >= 1
    waiting[0].leave()
    assert waiting[0].done.ended == "cancelled"
    one.desk.ask([wish(3)])
    with pytest.raises(Busy):
        one.desk.ask([wish(4)])


def test_wishes_that_belong_together_are_taken_together_or_not_at_all(held):
    one = held(n_rows=1, n_waiting=2)
    with pytest.raises(Busy):
        one.desk.ask([wish(number) for number in range(4)])
    assert one.desk.wait_until_idle(SECONDS)
    assert one.joined == []


@pytest.mark.parametrize("is_divisible", [True, False])
def test_who_leaves_frees_the_place_at_the_next_token(held, is_divisible):
    one = held(is_divisible, n_rows=1)
    one.hold()
    first, second = one.desk.ask([wish(0, 10_000)])[0], one.desk.ask([wish(1)])[0]
    one.until(lambda: one.desk.n_running == 1)
    first.leave()
    first.leave()
    one.go()
    assert wait(second).ids == said(second.wish)
    assert (wait(first).ended, one.stream.cancelled) == ("cancelled", [first.number])
    assert wait(first).outcome[1] == "cancelled"


def test_time_is_up_for_those_who_wait_and_those_who_run(held):
    one = held(n_rows=1, seconds=10)
    one.hold()
    runs, waits = one.desk.ask([wish(0, 10_000)])[0], one.desk.ask([wish(1)])[0]
    one.until(lambda: one.desk.n_running == 1)
    one.now = 11.0
    one.go()
    done = wait(runs)
    assert (done.ended, done.outcome[1]) == ("timeout", "cancelled")
    assert done.ids
    assert wait(waits).ended == "timeout"
    assert (waits.has_begun, wait(waits).outcome) == (False, None)


def test_a_forward_that_fails_fails_its_rows_alone(held):
    one = held(n_rows=2)
    one.hold()
    tickets = one.desk.ask([wish(number, 5) for number in range(4)])
    one.until(lambda: one.desk.n_running == 2)
    one.stream.fails["step"] = RunError(Problem("", "a forward", "none", code="odd"))
    one.go()
    done = [wait(ticket) for ticket in tickets]
    assert [each.ended for each in done] == ["error", "error", "length", "length"]
    assert done[0].error.problems[0].code == "odd"
    assert [ended for _, ended, _ in sorted(one.ended)] == ["error", "error", "length", "length"], "their probes are ended too"
    assert done[3].ids == said(tickets[3].wish)
    assert one.desk.n_rows_at_most == 2


def test_a_join_that_fails_leaves_the_others_alone(held):
    one = held(n_rows=2)
    one.hold()
    first = one.desk.ask([wish(0, 6)])[0]
    one.until(lambda: one.desk.n_running == 1)
    one.stream.fails["join"] = torch.OutOfMemoryError("no room")
    second = one.desk.ask([wish(1, 6)])[0]
    one.go()
    assert wait(second).error.problems[0].code == "memory"
    assert wait(first).ids == said(first.wish)
    assert len(one.streams) == 1


def test_fewer_run_together_once_memory_has_run_out(held):
    one = held(n_rows=4)
    one.hold()
    tickets = one.desk.ask([wish(number, 5) for number in range(8)])
    one.until(lambda: one.desk.n_running == 4)
    one.stream.fails["step"] = torch.OutOfMemoryError("no room")
    one.go()
    assert [wait(ticket).ended for ticket in tickets] == ["error"] * 4 + ["length"] * 4
    assert one.desk.n_rows_at_most == 2
    assert max(map(len, one.streams[1].joined)) <= 2


def test_a_bug_in_a_forward_is_logged_and_the_desk_goes_on(held, caplog):
    one = held(n_rows=1)
    one.hold()
    tickets = one.desk.ask([wish(number) for number in range(2)])
    one.until(lambda: one.desk.n_running == 1)
    one.stream.fails["step"] = KeyError("x")
    one.go()
    assert [wait(ticket).ended for ticket in tickets] == ["error", "length"]
    assert "KeyError" in caplog.text


def test_a_watch_that_cannot_be_opened_costs_its_own_request(held, caplog):
    one = held(n_rows=4)
    opened = one.open

    def open_most(name, n):
        if name == "r1":
            raise ValueError(name)
        return opened(name, n)

    one.open = open_most
    tickets = [one.desk.ask([wish(number)])[0] for number in range(3)]
    assert [wait(ticket).ended for ticket in tickets] == ["length", "error", "length"]
    assert "could not be begun" in caplog.text


def test_long_prompts_do_not_join_in_one_go(held):
    one = held(n_rows=8, n_join_tokens=20)
    one.hold()
    tickets = [one.desk.ask([wish(2, 3)])[0] for _ in range(6)]
    one.until(lambda: one.desk.n_running)
    one.go()
    for ticket in tickets:
        wait(ticket)
    n = tickets[0].wish.prompt.n_tokens
    assert max(map(len, one.joined)) == max(1, 20 // n)


def test_a_desk_that_closes_ends_who_is_there(held):
    one = held(n_rows=1)
    one.hold()
    tickets = [one.desk.ask([wish(number, 10_000)])[0] for number in range(2)]
    one.until(lambda: one.desk.n_running == 1)
    one.desk.stop_taking()
    with pytest.raises(Closed):
        one.desk.ask([wish(2)])
    assert not one.desk.wait_until_idle(0.01)
    one.desk.end_all()
    one.go()
    assert [wait(ticket).ended for ticket in tickets] == ["shutdown", "shutdown"]
    one.desk.close()
    assert not one.desk.is_alive


def test_who_follows_sees_tokens_as_they_are_said(held):
    one = held(n_rows=1)
    one.hold()
    ticket = one.desk.ask([wish(0, 5)], is_followed=True)[0]
    one.until(lambda: len(ticket.said) == 1)
    assert ticket.done is None
    assert ticket.said == said(ticket.wish)[:1]
    one.go()
    assert wait(ticket).ids == said(ticket.wish)
