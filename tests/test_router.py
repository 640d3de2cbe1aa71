"""The router: every activation is received or dropped, in order, whatever probes do; a probe that is slow, raises or hangs costs the others nothing."""

import gc
import random
import threading
import time
import weakref
from collections import deque

import pytest
import torch

from causalab_mini.probing.probes import (
    ActivationRecord,
    BoundProbe,
    Probe,
    ProbeMisfit,
    Registry,
    SingleShotProbe,
    TrajectoryProbe,
    Verdict,
    async_probe,
    inline_probe,
)
from causalab_mini.probing.router import Limits, Router
from causalab_mini.probing.router.breaker import Breaker
from causalab_mini.probing.spec import (
    ExecutionMode,
    ExtractionPoint,
    InterventionMode,
    InterventionPolicy,
    OnTimeout,
    ProbeKind,
    ProbeSpec,
    TensorType,
    parse_dict,
    parse_position,
)

pytestmark = pytest.mark.tiny


class Echo(Probe):
    """Says which token it was given, and the first and the last word."""

    def on_start(self, start):
        self.seen = []

    def on_activation(self, record):
        self.seen.append(record.position)
        return record.position

    def on_end(self, end):
        return {"ended": end.ended, "seen": list(self.seen)}


class Gate(Probe):
    """Waits until it is let through."""

    def __init__(self, gate):
        self.gate = gate

    def on_activation(self, record):
        self.gate.wait()
        return record.position


class Raises(Probe):
    def __init__(self, at="on_activation"):
        if at == "constructor":
            raise RuntimeError("in the constructor")
        self.at = at

    def on_start(self, start):
        if self.at == "on_start":
            raise RuntimeError("at the start")

    def on_activation(self, record):
        if self.at == "on_activation":
            raise RuntimeError("on an activation")
        return record.position

    def on_end(self, end):
        if self.at == "on_end":
            raise RuntimeError("at the end")


def raw(name, **more):
    where = {"layers": 0, "tensor_type": "residual_stream", "position": "generated[*]"}
    return {"name": name, **where, "probe_type": "any", "probe_kind": "trajectory", **more}


def router(points, probes, **options):
    """Returns a router over points, each with the class of its probe and its arguments."""
    spec = parse_dict({"version": "1", "extraction_points": [raw(name, **more) for name, more in points.items()]})
    bound = {name: BoundProbe(kind, arguments, {}) for name, (kind, arguments) in probes.items()}
    return Router(spec, bound, **options)


def records(point, positions, request="r"):
    return [ActivationRecord(point, request, "block_output", 0, position, position, 7, None) for position in positions]


def values(outcome, point):
    return [result.value for result in outcome.results if result.point == point]


def is_whole(counts):
    return counts.received + counts.n_dropped == counts.fired


ASYNC = {"execution_mode": "async"}


@pytest.mark.parametrize("more", [{}, ASYNC], ids=["inline", "async"])
def test_a_probe_gets_every_activation_in_order_and_is_told_of_start_and_end(more):
    with router({"p": more}, {"p": (Echo, {})}) as made:
        watch = made.open("r", 3)
        for position in range(100):
            watch.fire(0, records("p", [position]))
        outcome = watch.end("eos", 100)
    assert values(outcome, "p") == [*range(100), {"ended": "eos", "seen": list(range(100))}]
    assert (outcome.counts["p"].fired, outcome.counts["p"].received) == (100, 100)
    assert [result.position for result in outcome.results] == [*range(100), None]
    assert outcome.failures == ()


def test_every_request_and_point_has_a_probe_of_its_own():
    made = router({"a": {}, "b": ASYNC}, {"a": (Echo, {}), "b": (Echo, {})})
    with made:
        watches = [made.open(str(number), 1) for number in range(3)]
        for position in range(5):
            for number, watch in enumerate(watches):
                watch.fire(0, records("a", [10 * number + position], str(number)))
                watch.fire(1, records("b", [10 * number + position], str(number)))
        outcomes = [watch.end("length", 5) for watch in watches]
    for number, outcome in enumerate(outcomes):
        own = [10 * number + position for position in range(5)]
        for point in "ab":
            assert values(outcome, point) == [*own, {"ended": "length", "seen": own}]
    assert {name: counts.received for name, counts in made.counts().items()} == {"a": 15, "b": 15}


# Probes that fail


@pytest.mark.parametrize("more", [{}, ASYNC], ids=["inline", "async"])
@pytest.mark.parametrize(
    ("at", "received", "dropped"),
    [("constructor", 0, {"not_started": 4}), ("on_start", 0, {"not_started": 4}), ("on_activation", 4, {}), ("on_end", 4, {})],
)
def test_a_probe_that_raises_is_named_and_costs_the_others_nothing(more, at, received, dropped):
    with router({"bad": more, "good": more}, {"bad": (Raises, {"at": at}), "good": (Echo, {})}) as made:
        watch = made.open("r", 1)
        for position in range(4):
            watch.fire(0, records("bad", [position]))
            watch.fire(1, records("good", [position]))
        outcome = watch.end("eos", 4)
    counts = outcome.counts["bad"]
    assert (counts.fired, counts.received, counts.dropped) == (4, received, dropped)
    assert {(failure.point, failure.call, failure.what) for failure in outcome.failures} == {("bad", at, "raised")}
    assert len(outcome.failures) == (4 if at == "on_activation" else 1)
    assert values(outcome, "good") == [0, 1, 2, 3, {"ended": "eos", "seen": [0, 1, 2, 3]}]
    assert outcome.abort is None


@pytest.mark.parametrize(("on_timeout", "aborts"), [("continue", False), ("abort", True)])
def test_a_blocking_probe_that_hangs_is_waited_for_to_its_limit_and_no_longer(on_timeout, aborts):
    gate = threading.Event()
    policy = {"intervention": {"mode": "block_until_signal", "timeout_ms": 40, "on_timeout": on_timeout}}
    with router({"hangs": policy, "good": {}}, {"hangs": (Gate, {"gate": gate}), "good": (Echo, {})}, limits=Limits(drain_s=0.05)) as made:
        watch = made.open("r", 1)
        for position in range(3):
            watch.fire(0, records("hangs", [position]))
            watch.fire(1, records("good", [position]))
        stop = watch.abort
        outcome = watch.end("abort" if stop else "eos", 3)
        gate.set()
    assert (stop is not None) is aborts
    assert outcome.abort == stop
    if aborts:
        assert (stop.point, stop.reason) == ("hangs", "no word of its probe: no answer within 40 ms")
    counts = outcome.counts["hangs"]
    assert (counts.fired, counts.received, counts.timed_out, counts.dropped) == (3, 1, 1, {"hung": 2})
    assert [(failure.call, failure.what) for failure in outcome.failures] == [("on_activation", "timed_out"), ("on_end", "timed_out")]
    assert values(outcome, "good")[:3] == [0, 1, 2]


def test_a_late_verdict_is_kept_and_said_to_be_late_and_the_probe_comes_back():
    gate = threading.Event()
    policy = {"intervention": {"mode": "block_until_signal", "timeout_ms": 20}}
    with router({"p": policy}, {"p": (Gate, {"gate": gate})}) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("p", [0]))
        watch.fire(0, records("p", [1]))
        gate.set()
        while not watch.counts()["p"].received or not any(result.is_late for result in watch._results):
            time.sleep(0.001)
        watch.fire(0, records("p", [2]))
        outcome = watch.end("eos", 3)
    assert [(result.value, result.is_late) for result in outcome.results] == [(0, True), (2, False)]
    assert outcome.counts["p"].dropped == {"hung": 1}


def test_an_async_probe_that_hangs_is_given_up_and_the_others_go_on():
    gate = threading.Event()
    limits = Limits(async_s=0.05, drain_s=0.5, n_workers=1)
    made = router({"hangs": ASYNC, "good": ASYNC}, {"hangs": (Gate, {"gate": gate}), "good": (Echo, {})}, limits=limits)
    with made:
        watch = made.open("r", 1)
        for position in range(100):  # more than the queue holds: what waits is let go of once the call is given up
            watch.fire(0, records("hangs", [position]))
            watch.fire(1, records("good", [position]))
        outcome = watch.end("eos", 100)
        gate.set()
    assert values(outcome, "good")[:100] == list(range(100))
    counts = outcome.counts["hangs"]
    assert (counts.received, counts.timed_out, counts.n_dropped) == (1, 1, 99)
    assert set(counts.dropped) <= {"hung", "drain"}
    assert [failure.what for failure in outcome.failures] == ["timed_out"] * len(outcome.failures)


def test_what_an_async_probe_has_not_done_at_the_limit_is_dropped_and_counted():
    class Slow(Probe):
        def on_activation(self, record):
            time.sleep(0.05)
            return record.position

    with router({"slow": {**ASYNC, "queue_depth": 50}}, {"slow": (Slow, {})}, limits=Limits(drain_s=0.12)) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("slow", range(40)))
        outcome = watch.end("eos", 40)
    counts = outcome.counts["slow"]
    assert is_whole(counts)
    assert 0 < counts.received < 40
    assert counts.dropped["drain"] == 40 - counts.received
    assert values(outcome, "slow") == list(range(len(values(outcome, "slow"))))
    assert outcome.failures[-1].call == "on_end"


@pytest.mark.parametrize(
    ("answer", "value"),
    [(3, 3), ({"a": [1.5, None]}, {"a": [1.5, None]}), ((1, 2), [1, 2]), (float("nan"), None), (True, True), ("x", "x")],
)
def test_a_value_is_json_data(answer, value):
    class Says(Probe):
        def on_activation(self, record):
            return answer

    with router({"p": {}}, {"p": (Says, {})}) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("p", [0]))
        assert values(watch.end("eos", 1), "p") == [value]


def test_tensors_are_numbers_and_what_json_has_not_is_a_failure():
    import torch

    answers = [torch.tensor([1.0, float("inf")]), torch.tensor(2), object(), {1: 2}, Verdict(1, "stop")]

    class Says(Probe):
        def on_activation(self, record):
            return answers[record.position]

    with router({"p": {}}, {"p": (Says, {})}) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("p", range(5)))
        outcome = watch.end("eos", 5)
    assert values(outcome, "p") == [[1.0, None], 2]
    assert [(failure.what, failure.position) for failure in outcome.failures] == [("invalid", 2), ("invalid", 3), ("invalid", 4)]


class OddError(Exception):
    def __str__(self):
        raise RuntimeError("even this fails")


def nested():
    value = []
    value.append(value)
    return value


def odd(kind):
    import torch

    if kind == "raises":
        raise OddError
    if kind == "leaves":
        raise SystemExit(3)
    return {"nested": nested, "sparse": lambda: torch.eye(3).to_sparse(), "meta": lambda: torch.empty(3, device="meta")}[kind]()


@pytest.mark.parametrize("limit", [None, 5.0])
@pytest.mark.parametrize("more", [{}, ASYNC], ids=["inline", "async"])
@pytest.mark.parametrize("kind", ["nested", "sparse", "meta", "raises", "leaves"])
def test_an_odd_answer_is_a_failure_and_ends_no_thread(kind, more, limit):
    class Says(Probe):
        def on_activation(self, record):
            return odd(kind)

    with router({"odd": more, "good": ASYNC}, {"odd": (Says, {}), "good": (Echo, {})}, limits=Limits(inline_s=limit, n_workers=1)) as made:
        for _ in range(2):
            watch = made.open("r", 1)
            watch.fire(0, records("odd", [0]))
            watch.fire(1, records("good", range(40)))
            outcome = watch.end("eos", 1)
            assert len(values(outcome, "good")) == 41
            (failure,) = outcome.failures
            assert (failure.point, failure.what) == ("odd", "raised" if kind in ("raises", "leaves") else "invalid")
            assert is_whole(outcome.counts["odd"])


def test_one_async_probe_that_hangs_takes_no_time_of_another_at_the_usual_limits():
    gate = threading.Event()
    points = {"hangs": ASYNC, "good": ASYNC}
    made = router(points, {"hangs": (Gate, {"gate": gate}), "good": (Echo, {})}, limits=Limits(drain_s=1.0))
    with made:
        watches = [made.open(str(number), 1) for number in range(4)]  # more than there are workers
        for watch in watches:
            watch.fire(0, records("hangs", range(3), watch.request))
            watch.fire(1, records("good", range(10), watch.request))
        for watch in watches:
            watch.announce("eos", 10)
        for watch in watches:
            outcome = watch.end("eos", 10)
            assert values(outcome, "good") == [*range(10), {"ended": "eos", "seen": list(range(10))}]
            assert is_whole(outcome.counts["hangs"])
            assert outcome.counts["hangs"].timed_out == 1
        gate.set()


@pytest.mark.parametrize("more", [{}, ASYNC], ids=["inline", "async"])
def test_a_constructor_that_hangs_is_given_up_like_any_call(more):
    gate = threading.Event()

    class Never(Probe):
        def __init__(self):
            gate.wait()

    with router(
        {"never": more, "good": more}, {"never": (Never, {}), "good": (Echo, {})}, limits=Limits(inline_s=0.05, drain_s=0.2)
    ) as made:
        watch = made.open("r", 1)
        for position in range(3):
            watch.fire(0, records("never", [position]))
            watch.fire(1, records("good", [position]))
        outcome = watch.end("eos", 3)
        gate.set()
    assert values(outcome, "good")[:3] == [0, 1, 2]
    assert ("constructor", "timed_out") in [(failure.call, failure.what) for failure in outcome.failures]
    counts = outcome.counts["never"]
    assert (counts.fired, counts.received, counts.n_dropped) == (3, 0, 3)


def test_a_probe_has_its_own_limit_at_the_end_however_long_ago_its_request_ended():
    class Last(Probe):
        def on_activation(self, record):
            return None

        def on_end(self, end):
            time.sleep(0.02)
            return "the last word"

    with router({"p": {}}, {"p": (Last, {})}, limits=Limits(drain_s=0.0)) as made:
        watch = made.open("r", 1)
        watch.announce("eos", 1)
        time.sleep(0.02)
        outcome = watch.end("eos", 1)
    assert (values(outcome, "p"), outcome.failures) == (["the last word"], ())


def test_on_timeout_abort_means_that_nothing_goes_on_unwatched():
    policy = {"intervention": {"mode": "block_until_signal", "timeout_ms": 2000, "on_timeout": "abort"}}
    for at in ("constructor", "on_start", "on_activation"):
        with router({"p": policy}, {"p": (Raises, {"at": at})}, limits=Limits(n_failures=2)) as made:
            for _ in range(4):  # the last ones are not even asked
                watch = made.open("r", 1)
                watch.fire(0, records("p", [0]))
                assert watch.abort is not None
                assert watch.abort.reason.startswith("no word of its probe")
                watch.end("abort", 0)


def test_a_verdict_at_the_start_can_stop_a_request_before_its_first_token():
    class First(Probe):
        def on_start(self, start):
            return Verdict("not this one", "abort")

    with router({"p": {}}, {"p": (First, {})}) as made:
        watch = made.open("r", 1)
        assert watch.abort is not None
        assert values(watch.end("abort", 0), "p") == ["not this one"]


def test_coroutines_of_a_point_share_a_loop_and_one_that_hangs_is_cancelled():
    import asyncio

    loops, cancelled = set(), threading.Event()
    registry = Registry()

    @async_probe("same", registry=registry)
    async def same(record):
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return record.position

    @async_probe("hangs", registry=registry)
    async def hangs(record):
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    points = {"same": ASYNC, "hangs": ASYNC}
    made = router(points, {name: (registry.get(name), {}) for name in points}, limits=Limits(drain_s=0.3, n_workers=3))
    with made:
        watches = [made.open(str(number), 1) for number in range(5)]
        for watch in watches:
            watch.fire(0, records("same", range(20), watch.request))
        watches[0].fire(1, records("hangs", [0], "0"))
        outcomes = [watch.end("eos", 20) for watch in watches]
        assert cancelled.wait(10)
    assert len(loops) == 1
    assert [values(outcome, "same") for outcome in outcomes] == [list(range(20))] * 5
    assert outcomes[0].counts["hangs"].timed_out == 1


def test_closing_a_router_ends_what_is_open():
    gate = threading.Event()
    made = router({"p": {**ASYNC, "queue_depth": 1}}, {"p": (Gate, {"gate": gate})})
    watch = made.open("r", 1)
    thread = threading.Thread(target=lambda: watch.fire(0, records("p", range(5))), daemon=True)
    thread.start()
    while not watch.counts()["p"].received:
        time.sleep(0.001)
    made.close()
    thread.join(10)
    assert not thread.is_alive(), "the full queue was waited for in vain"
    gate.set()
    assert is_whole(watch.counts()["p"])


@pytest.mark.parametrize("options", [{"queue_depth": 0}, {"policy": InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL)}])
def test_options_that_can_not_be_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        router({"p": {}}, {"p": (Echo, {})}, **options)
    for wrong in ({"inline_s": 0.0}, {"async_s": float("inf")}, {"drain_s": -1.0}, {"n_failures": 0}):
        with pytest.raises(ValueError, match="expected"):
            Limits(**wrong)


def test_lists_of_arguments_are_every_probes_own():
    class Appends(Probe):
        def __init__(self, seen):
            self.seen = seen

        def on_activation(self, record):
            self.seen.append(record.position)
            return len(self.seen)

    with router({"p": {}}, {"p": (Appends, {"seen": []})}) as made:
        for number in range(3):
            watch = made.open(str(number), 1)
            watch.fire(0, records("p", range(2)))
            assert values(watch.end("eos", 1), "p") == [1, 2]


# Queues


@pytest.mark.parametrize(("overflow", "kept"), [("drop_newest", [0, 1, 2]), ("drop_oldest", [0, 8, 9])])
def test_a_full_queue_drops_what_its_point_says(overflow, kept):
    gate = threading.Event()
    with router({"p": {**ASYNC, "queue_depth": 2, "overflow": overflow}}, {"p": (Gate, {"gate": gate})}) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("p", [0]))
        while not watch.counts()["p"].received:
            time.sleep(0.001)
        watch.fire(0, records("p", range(1, 10)))
        gate.set()
        outcome = watch.end("eos", 10)
    assert values(outcome, "p") == kept
    assert outcome.counts["p"].dropped == {"overflow": 7}


def test_a_full_queue_that_blocks_loses_nothing():
    with router({"p": {**ASYNC, "queue_depth": 1}}, {"p": (Echo, {})}) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("p", range(300)))
        outcome = watch.end("eos", 300)
    assert values(outcome, "p")[:-1] == list(range(300))
    assert outcome.counts["p"].dropped == {}


def test_the_depth_of_a_queue_is_the_points_own_else_the_routers():
    gate = threading.Event()
    points = {"own": {**ASYNC, "queue_depth": 3, "overflow": "drop_newest"}, "other": {**ASYNC, "overflow": "drop_newest"}}
    with router(points, dict.fromkeys(points, (Gate, {"gate": gate})), queue_depth=5) as made:
        watch = made.open("r", 1)
        for number, name in enumerate(points):
            watch.fire(number, records(name, [0]))
            while not watch.counts()[name].received:
                time.sleep(0.001)
            watch.fire(number, records(name, range(1, 20)))
        gate.set()
        outcome = watch.end("eos", 20)
    assert {name: counts.received for name, counts in outcome.counts.items()} == {"own": 4, "other": 6}


# Aborts


@pytest.mark.parametrize("more", [{}, ASYNC], ids=["inline", "async"])
def test_the_first_abort_is_named(more):
    class Stops(Probe):
        def on_activation(self, record):
            return Verdict(record.position, "abort" if record.position >= 2 else "continue", f"at {record.position}")

    with router({"p": more}, {"p": (Stops, {})}) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("p", range(5)))
        while watch.abort is None:
            time.sleep(0.001)
        outcome = watch.end("abort", 2)
    assert (outcome.abort.point, outcome.abort.reason) == ("p", "at 2")
    assert [str(result.action) for result in outcome.results] == ["continue", "continue", "abort", "abort", "abort"]


def test_an_abort_at_the_end_stops_nothing():
    class Last(Probe):
        def on_activation(self, record):
            return None

        def on_end(self, end):
            return Verdict("x", "abort")

    with router({"p": {}}, {"p": (Last, {})}) as made:
        watch = made.open("r", 1)
        outcome = watch.end("eos", 0)
    assert outcome.abort is None
    assert values(outcome, "p") == ["x"]


# The breaker


def test_a_breaker_opens_lets_one_call_through_and_closes_or_opens_again():
    now = [0.0]
    breaker = Breaker(3, 10.0, lambda: now[0])

    def call(went_well):
        leave = breaker.ask()
        if leave is not None:
            breaker.note(leave, went_well)
        return leave is not None

    assert [call(False), call(False), call(True)] == [True] * 3
    assert breaker.state == "closed"
    assert [call(False), call(False), call(False), call(True)] == [True, True, True, False]
    assert breaker.state == "open"
    now[0] = 10.0
    assert breaker.state == "half_open"
    first, *others = [breaker.ask() for _ in range(3)]
    assert others == [None, None], "one is tried"
    breaker.note(first, False)
    assert (breaker.state, breaker.ask()) == ("open", None)
    now[0] = 20.0
    assert [call(True), call(True), call(False)] == [True] * 3
    assert breaker.state == "closed"


def test_calls_from_before_say_nothing_to_a_breaker():
    now = [0.0]
    breaker = Breaker(2, 10.0, lambda: now[0])
    old = breaker.ask()
    for _ in range(2):
        breaker.note(breaker.ask(), False)
    breaker.note(old, True)
    assert breaker.state == "open"
    now[0] = 10.0
    trial = breaker.ask()
    breaker.note(old, False)
    assert breaker.ask() is None, "the trial is still out"
    breaker.note(trial, True)
    assert breaker.state == "closed"
    breaker.note(trial, False)
    breaker.note(trial, False)
    assert breaker.state == "closed"


@pytest.mark.parametrize("on", ["on_start", "on_end"])
def test_only_activations_open_a_breaker(on):
    with router({"p": {}}, {"p": (Raises, {"at": on})}, limits=Limits(n_failures=1)) as made:
        for _ in range(3):
            watch = made.open("r", 1)
            watch.fire(0, records("p", [0]))
            watch.end("eos", 1)
        assert made.breakers["p"].state == "closed"


def test_a_probe_that_keeps_timing_out_is_left_alone_whatever_comes_late():
    class Slow(Probe):
        def on_activation(self, record):
            time.sleep(0.03)

    policy = {"intervention": {"mode": "block_until_signal", "timeout_ms": 5}}
    with router({"p": policy}, {"p": (Slow, {})}, limits=Limits(n_failures=3, cooldown_s=100)) as made:
        for number in range(4):
            watch = made.open(str(number), 1)
            watch.fire(0, records("p", [0]))
            outcome = watch.end("eos", 1)
        assert made.breakers["p"].state == "open"
    assert outcome.counts["p"].dropped == {"circuit_open": 1}


@pytest.mark.parametrize("more", [{}, ASYNC], ids=["inline", "async"])
def test_a_probe_that_keeps_failing_is_left_alone_over_all_requests_and_comes_back(more):
    broken = threading.Event()
    broken.set()

    class Sometimes(Probe):
        def on_activation(self, record):
            if broken.is_set():
                raise RuntimeError("no")
            return record.position

    made = router({"p": more, "good": {}}, {"p": (Sometimes, {}), "good": (Echo, {})}, limits=Limits(n_failures=3, cooldown_s=0.05))
    with made:
        first = made.open("a", 1)
        first.fire(0, records("p", range(5)))
        first = first.end("eos", 5)
        second = made.open("b", 1)
        second.fire(0, records("p", range(2)))
        second.fire(1, records("good", range(2)))
        second = second.end("eos", 2)
        broken.clear()
        while made.breakers["p"].state != "half_open":
            time.sleep(0.005)
        third = made.open("c", 1)
        third.fire(0, records("p", range(4)))
        third = third.end("eos", 4)
    assert (first.counts["p"].raised, first.counts["p"].dropped) == (3, {"circuit_open": 2})
    assert (second.counts["p"].received, second.counts["p"].dropped) == (0, {"circuit_open": 2})
    assert values(second, "good")[:2] == [0, 1]
    assert values(third, "p") == [0, 1, 2, 3]
    assert made.breakers["p"].state == "closed"


# All of it at once


def test_nothing_is_lost_under_load_with_slow_failing_and_hanging_probes():
    gate, chance = threading.Event(), random.Random(0)

    class Mixed(Probe):
        def __init__(self, slow, fails):
            self.slow, self.fails = slow, fails

        def on_activation(self, record):
            if chance.random() < self.slow:
                time.sleep(0.001)
            if chance.random() < self.fails:
                raise RuntimeError("no")
            return record.position

    class HangsOnce(Probe):
        def on_activation(self, record):
            if record.position == 20 and record.request == "3":
                gate.wait()
            return record.position

    points = {
        "inline": {},
        "blocks": {"intervention": {"mode": "block_until_signal", "timeout_ms": 30}},
        "queue": {**ASYNC, "queue_depth": 4},
        "oldest": {**ASYNC, "queue_depth": 2, "overflow": "drop_oldest"},
        "newest": {**ASYNC, "queue_depth": 2, "overflow": "drop_newest"},
        "hangs": {**ASYNC, "queue_depth": 4},
    }
    probes = {name: (Mixed, {"slow": 0.3, "fails": 0.2}) for name in points} | {"hangs": (HangsOnce, {})}
    made = router(points, probes, limits=Limits(async_s=0.2, drain_s=5.0, n_failures=4, cooldown_s=0.01, n_workers=2))
    outcomes = {}

    def request(number):
        watch = made.open(str(number), 1)
        for position in range(60):
            for point, name in enumerate(points):
                watch.fire(point, records(name, [position], str(number)))
        outcomes[number] = watch.end("eos", 60)

    threads = [threading.Thread(target=request, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gate.set()
    totals = made.counts()
    made.close()
    assert len(outcomes) == 16
    for number, outcome in outcomes.items():
        for name, counts in outcome.counts.items():
            assert counts.fired == 60
            assert is_whole(counts), (number, name, counts)
            said = values(outcome, name)
            assert said == sorted(said), "in order"
            in_time = [result for result in outcome.results if result.point == name and not result.is_late]
            assert len(in_time) == counts.received - counts.raised - counts.timed_out
            n_failed = sum(failure.point == name and failure.call == "on_activation" for failure in outcome.failures)
            assert n_failed >= counts.raised + counts.timed_out
            assert len(said) - len(in_time) + n_failed - counts.raised - counts.timed_out <= counts.timed_out, "what is late is late once"
            assert {result.request for result in outcome.results} == {str(number)}, "none mixed up"
    for name, counts in totals.items():
        assert counts.fired == 16 * 60
        assert is_whole(counts), name
    assert totals["hangs"].timed_out == 1


@pytest.mark.parametrize("more", [{}, ASYNC], ids=["inline", "async"])
def test_threads_that_wait_for_calls_keep_no_tensor_and_a_close_waits_for_them(more):
    class Keeps(Probe):
        def on_activation(self, record):
            self.record = record

    before = set(threading.enumerate())
    made = router({"p": more}, {"p": (Keeps, {})})
    watch = made.open("r", 1)
    tensor = torch.zeros(3)
    kept = weakref.ref(tensor)
    watch.fire(0, [ActivationRecord("p", "r", "block_output", 0, 0, 0, 7, tensor)])
    assert watch.end("eos", 1).counts["p"].received == 1
    del watch, tensor
    for _ in range(200):
        gc.collect()  # a watch and its points know each other
        if kept() is None:
            break
        time.sleep(0.01)
    assert kept() is None
    made.close()
    assert set(threading.enumerate()) <= before, "one that frees a tensor while the interpreter ends takes the process with it"


# Rules and registration


def test_an_async_point_that_no_parser_has_seen_is_judged_by_the_router():
    point = ExtractionPoint(
        name="p",
        layers=(0,),
        tensor_type=TensorType.RESIDUAL_STREAM,
        position=parse_position("prompt[0]"),
        probe_type="x",
        probe_kind=ProbeKind.SINGLE_SHOT,
        execution_mode=ExecutionMode.ASYNC,
    )
    with pytest.raises(ValueError, match="single_shot"):
        Router(ProbeSpec((point,)), {})


def test_the_routers_policy_is_that_of_points_without_one():
    gate = threading.Event()
    policy = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, 20, OnTimeout.ABORT)
    with router({"p": {}}, {"p": (Gate, {"gate": gate})}, policy=policy, limits=Limits(drain_s=0.01)) as made:
        watch = made.open("r", 1)
        watch.fire(0, records("p", [0]))
        assert watch.abort is not None
        watch.end("abort", 0)
        gate.set()


def test_without_a_limit_an_inline_probe_is_called_on_the_decoding_thread():
    class Here(Probe):
        def on_activation(self, record):
            return threading.get_ident()

    for limit, is_here in ((None, True), (5.0, False)):
        with router({"p": {}}, {"p": (Here, {})}, limits=Limits(inline_s=limit)) as made:
            watch = made.open("r", 1)
            watch.fire(0, records("p", [0]))
            assert (values(watch.end("eos", 1), "p") == [threading.get_ident()]) is is_here


def test_functions_are_probes_inline_or_async():
    registry = Registry()

    @inline_probe(registry=registry)
    def doubled(record, by=2):
        return record.position * by

    @async_probe("later", registry=registry)
    async def waits(record):
        return record.position

    assert registry.names() == ["doubled", "later"]
    assert doubled(records("p", [2])[0]) == 4, "the function is still itself"
    assert registry.get("doubled").mode is ExecutionMode.INLINE
    made = router({"a": {}, "b": ASYNC}, {"a": (registry.get("doubled"), {"by": 3}), "b": (registry.get("later"), {})})
    with made:
        watch = made.open("r", 1)
        watch.fire(0, records("a", [2]))
        watch.fire(1, records("b", [2]))
        outcome = watch.end("eos", 1)
    assert (values(outcome, "a"), values(outcome, "b")) == ([6], [2])
    with pytest.raises(TypeError, match="a function of an activation"):
        inline_probe(lambda *, record: None)
    with pytest.raises(TypeError, match="a function of an activation"):
        inline_probe(lambda: None)


@pytest.mark.parametrize("shared", [[], {}, set(), deque()])
def test_a_class_that_its_probes_would_share_state_by_is_refused(shared):
    kind = type("Shares", (TrajectoryProbe,), {"seen": shared})
    with pytest.raises(TypeError, match=r"`Shares\.seen`"):
        Registry().register("shares", kind)
    child = type("Child", (kind,), {})
    with pytest.raises(TypeError, match=r"`Shares\.seen`"):
        Registry().register("child", child)
    mixin = type("Mixin", (), {"seen": shared})
    with pytest.raises(TypeError, match=r"`Mixin\.seen`"):
        Registry().register("mixed", type("Mixed", (Probe, mixin), {}))


def test_names_are_taken_once():
    registry = Registry()
    registry.register("p", SingleShotProbe)
    registry.register("p", SingleShotProbe)
    with pytest.raises(ValueError, match="not taken"):
        registry.register("p", TrajectoryProbe)
    registry.register("p", TrajectoryProbe, replace=True)
    assert registry.get("p") is TrajectoryProbe
    for name in ("", "record"):
        with pytest.raises(ValueError, match="a name of a probe"):
            registry.register(name, Echo)
    with pytest.raises(TypeError, match="a class of probes"):
        registry.register("f", print)


def test_packages_announce_probes_by_entry_points(monkeypatch):
    from importlib.metadata import EntryPoint

    from causalab_mini.probing.probes import registry as module

    found = [EntryPoint("announced", f"{__name__}:Echo", module.GROUP), EntryPoint("broken", "no_such_module:Echo", module.GROUP)]
    monkeypatch.setattr(module, "entry_points", lambda group: [point for point in found if point.group == group])
    registry = Registry()
    assert registry.names() == ["announced", "broken"]
    assert registry.get("announced").__name__ == "Echo"
    assert registry.get("unknown") is None
    with pytest.raises(ModuleNotFoundError):
        registry.get("broken")


def test_a_misfit_says_which_argument():
    misfit = ProbeMisfit("max", "a number", "`x`")
    assert (str(misfit), misfit.argument) == ("expected a number, got `x`", "max")
