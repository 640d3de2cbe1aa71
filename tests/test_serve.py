"""The server as its clients see it: the `openai` package, curl's kind of requests, and clients that behave badly."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams_by_hand import StreamByHand

from causalab_mini.data.characters import text_behind
from causalab_mini.data.prompts import make_prompt
from causalab_mini.engine.engines.hooks import HooksEngine
from causalab_mini.errors import Problem, RunError
from causalab_mini.plan.spec import ModelSpec
from causalab_mini.probing.probes import Binding, Registry, Verdict, inline_probe
from causalab_mini.probing.request import watch
from causalab_mini.probing.router import Router
from causalab_mini.probing.run import probe
from causalab_mini.probing.run.stream import Stream
from causalab_mini.probing.serve import app as routes
from causalab_mini.probing.serve.app import Served, make_app
from causalab_mini.probing.serve.desk import Desk, Room
from causalab_mini.probing.serve.gate import Rules
from causalab_mini.probing.serve.metrics import Metrics
from causalab_mini.probing.serve.pieces import Pieces, cut, n_certain
from causalab_mini.probing.serve.running import Server, bind, is_loopback, loopback_names
from causalab_mini.probing.spec import parse_dict

pytestmark = pytest.mark.tiny

SECONDS = 60
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PROMPT = "If today is Thursday, tomorrow is"
LONG = 200
REGISTRY = Registry()


@inline_probe("counting", registry=REGISTRY)
def counting(record, *, stop_at=None):
    """Says which token it saw, and has the generation stopped at one."""
    at = record.generated_index
    if stop_at is not None and at is not None and at >= stop_at:
        return Verdict(at, "abort", "far enough")
    return Verdict(at)


@inline_probe("failing", registry=REGISTRY)
def failing(record):
    raise ValueError("it fails")


def spec_of(**arguments):
    name = arguments.pop("name", "counting")
    point = {"name": "watched", "layers": [2], "tensor_type": "residual_stream", "position": "generated[*]"}
    return parse_dict(
        {
            "version": "1",
            "extraction_points": [{**point, "probe_type": name, "probe_kind": "trajectory", "probe_args": arguments}],
        }
    )


@pytest.fixture(scope="module")
def models():
    """Returns a function that opens a bundled model."""
    made = {}

    def engine_of(name):
        if name not in made:
            made[name] = HooksEngine.load(ModelSpec(key=f"bundled:{name}", dtype="fp32"), device_map="cpu")
            made[name].load_weights()
        return made[name]

    return engine_of


class Running:
    """A server in a thread."""

    def __init__(self, engine, spec=None, make_stream=None, drain=5.0, **more):
        self.engine = engine
        self.watched = watch(spec or spec_of(), engine.facts, engine.tokenizer, Binding(REGISTRY))
        limits = {name: more.pop(name) for name in ("n_tokens", "n_prompt_tokens", "logs") if name in more}
        self.served = Served("tiny", self.watched, engine.tokenizer, engine.stop_tokens(), **limits)
        rules = Rules(**{name: more.pop(name) for name in ("token", "hosts", "n_body_bytes", "n_requests") if name in more})
        self.metrics, self.router = Metrics(), Router(self.watched.spec, self.watched.probes)
        make = make_stream or (lambda: Stream(engine, self.watched, ()))
        trial = make_prompt(engine.tokenizer, PROMPT)
        self.desk = Desk(make, trial, self.router, Room(**more), on_done=self.metrics.ended)
        self.metrics.watch(self.desk, self.router)
        self.server = Server(make_app(self.desk, self.served, rules, self.metrics), self.desk, bind("127.0.0.1", 0), drain)
        self.token = rules.token
        self.http = httpx.Client(timeout=SECONDS, limits=httpx.Limits(max_keepalive_connections=0))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        assert self.server.is_ready.wait(SECONDS)

    def client(self, **more):
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key=self.token or "none", max_retries=0, timeout=SECONDS, **more)

    def post(self, body, path="/v1/completions", **more):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        return self.http.post(f"{self.server.url}{path}", content=content, headers=headers, **more)

    def get(self, path, **more):
        return self.http.get(f"{self.server.url}{path}", **more)

    def number(self, name):
        """Returns a value of `/metrics`."""
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.removeprefix(f"{name} "))
        return 0.0

    def until(self, is_so):
        pause = threading.Event()
        for _ in range(SECONDS * 100):
            if is_so():
                return
            pause.wait(0.01)
        raise AssertionError("it did not come to that")

    def close(self):
        self.server.stop()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        self.http.close()
        self.server.bound.close()
        self.router.close()


@pytest.fixture
def start(models):
    """Returns a function that starts a server."""
    made = []

    def run(name="successor-llama", **more):
        made.append(Running(models(name), **more))
        return made[-1]

    yield run
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def running(models):
    """Returns a server that tests share."""
    one = Running(models("successor-llama"), n_tokens=400)
    yield one
    one.close()


@pytest.fixture(scope="module")
def client(running):
    """Returns the `openai` client of the shared server."""
    with running.client() as made:
        yield made


@pytest.fixture
def by_hand(start, models):
    """Returns a function that starts a server whose rows say their prompts again, when the test lets them."""

    def run(is_divisible=True, **more):
        streams = []

        def make():
            streams.append(StreamByHand(models("successor-llama").tokenizer, is_divisible))
            return streams[-1]

        one = start(make_stream=make, **more)
        one.stream = streams[0]
        opened.append(one.stream)
        return one

    opened = []
    yield run
    for stream in opened:
        stream.may_step.set()


def alone(engine, text, n, **decode):
    """Returns what the model says behind a prompt on its own, without the stop token; how many tokens it is with it; what ended it."""
    one = probe(spec_of(), engine, [text], max_new_tokens=n, only_records=True, **decode).generated[0]
    shown = one.ids[:-1] if one.ended == "eos" else one.ids
    return text_behind(engine.tokenizer, make_prompt(engine.tokenizer, text).ids, shown), len(one.ids), one.ended


# The `openai` client


def test_a_completion_is_what_the_model_says(client, models):
    text, n, ended = alone(models("successor-llama"), PROMPT, 12)
    made = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=12)
    (choice,) = made.choices
    assert choice.text == text
    assert choice.finish_reason == {"eos": "stop", "length": "length"}[ended]
    n_prompt = make_prompt(models("successor-llama").tokenizer, PROMPT).n_tokens
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (n_prompt, n, n_prompt + n)
    assert (made.object, made.model) == ("text_completion", "tiny")
    assert choice.causalab["ended"] == ended
    assert choice.causalab["abort"] is None
    verdicts = choice.causalab["verdicts"]
    assert [one["value"] for one in verdicts] == list(range(len(verdicts)))
    assert {one["point"] for one in verdicts} == {"watched"}
    assert {one["request"] for one in verdicts} == {made.id}
    counts = choice.causalab["counts"]["watched"]
    assert counts["fired"] == counts["received"] == len(verdicts) > 0


def test_sixteen_tokens_where_nothing_is_said(running, client):
    made = client.completions.create(model="tiny", prompt=PROMPT, temperature=0)
    assert made.usage.completion_tokens <= 16


@pytest.mark.parametrize("stop", [None, ".", [" is", "."]])
@pytest.mark.parametrize("more", [{"temperature": 0}, {"temperature": 2, "seed": 3, "prompt": "The"}])
def test_a_stream_is_the_same_text_in_pieces(client, stop, more):
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "stop": stop} | more
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    *said, last, usage = chunks
    assert "".join(chunk.choices[0].text for chunk in (*said, last)) == whole.choices[0].text
    assert all("\ufffd" not in chunk.choices[0].text for chunk in said)
    assert all(chunk.choices[0].finish_reason is None for chunk in said)
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert (usage.choices, usage.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in chunks}) == 1
    told, once = last.choices[0].causalab, whole.choices[0].causalab
    assert [one["value"] for one in told["verdicts"]] == [one["value"] for one in once["verdicts"]]
    if stop:
        assert all(text not in whole.choices[0].text for text in ([stop] if isinstance(stop, str) else stop))


def test_a_chat_goes_through_the_template(client, models):
    turns = [{"role": "system", "content": "Say the day."}, {"role": "user", "content": "today is Monday"}]
    tokenizer = models("successor-llama").tokenizer
    text, n, _ = alone(models("successor-llama"), turns, 10)
    made = client.chat.completions.create(model="tiny", messages=turns, temperature=0, max_completion_tokens=10)
    assert made.choices[0].message.content == text
    assert made.choices[0].message.role == "assistant"
    assert made.usage.completion_tokens == n
    assert made.usage.prompt_tokens == make_prompt(tokenizer, turns).n_tokens
    parts = [turns[0], {"role": "user", "content": [{"type": "text", "text": "today "}, {"type": "text", "text": "is Monday"}]}]
    again = client.chat.completions.create(model="tiny", messages=parts, temperature=0, max_tokens=10, stream=True)
    chunks = list(again)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].causalab["ended"]


def test_a_model_without_a_chat_template_says_so(start):
    one = start("successor-gpt2")
    with one.client() as client, pytest.raises(openai.BadRequestError, match="no chat template") as refused:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}])
    assert refused.value.param == "messages"


def test_prompts_of_every_kind(client, models):
    tokenizer = models("successor-llama").tokenizer
    ids = list(make_prompt(tokenizer, PROMPT).ids)
    one = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=6).choices[0].text
    as_ids = client.completions.create(model="tiny", prompt=ids, temperature=0, max_tokens=6)
    assert as_ids.choices[0].text == one
    many = client.completions.create(model="tiny", prompt=[PROMPT, "Sunday"], temperature=0, max_tokens=6, n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert [choice.text == one for choice in many.choices] == [True, True, False, False]
    lists = client.completions.create(model="tiny", prompt=[ids, ids], temperature=0, max_tokens=6)
    assert [choice.text for choice in lists.choices] == [one, one]
    assert many.usage.prompt_tokens == len(ids) + make_prompt(tokenizer, "Sunday").n_tokens
    names = {verdict["request"] for choice in many.choices for verdict in choice.causalab["verdicts"]}
    assert names == {f"{many.id}/{index}" for index in range(4)}


def test_a_seed_says_the_same_whatever_else_is_in_the_batch(running, client):
    asked = {"model": "tiny", "prompt": "The", "max_tokens": 24, "temperature": 2, "seed": -5}
    quiet = client.completions.create(**asked, n=3)
    assert len({choice.text for choice in quiet.choices}) > 1, "choices are drawn apart"
    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(client.completions.create, model="tiny", prompt=day, max_tokens=30) for day in DAYS for _ in range(3)]
        busy = client.completions.create(**asked, n=3)
        assert all(other.result().choices for other in others)
    assert [choice.text for choice in busy.choices] == [choice.text for choice in quiet.choices]
    free = {client.completions.create(**{**asked, "seed": None}).choices[0].text for _ in range(4)}
    assert len(free) > 1, "without a seed, draws are fresh"


def test_temperature_zero_and_an_empty_nucleus_are_greedy(client):
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20}
    greedy = client.completions.create(**asked, temperature=0).choices[0].text
    assert client.completions.create(**asked, temperature=2, top_p=0).choices[0].text == greedy
    for tiny in (1e-9, 1e-300):  # 1e-300 is zero in the dtype of probabilities
        assert client.completions.create(**asked, temperature=1, top_p=tiny).choices[0].text == greedy


def test_a_probe_stops_a_stream(start):
    one = start(spec=spec_of(stop_at=3))
    with one.client() as client:
        chunks = list(client.completions.create(model="tiny", prompt="The", max_tokens=50, temperature=0, stream=True))
        whole = client.completions.create(model="tiny", prompt="The", max_tokens=50, temperature=0)
    choice = chunks[-1].choices[0]
    assert choice.finish_reason == whole.choices[0].finish_reason == "content_filter"
    assert choice.causalab["ended"] == "abort"
    assert choice.causalab["abort"] == {"point": "watched", "reason": "far enough"}
    assert [one["action"] for one in choice.causalab["verdicts"]] == ["continue"] * 3 + ["abort"]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    text, _, _ = alone(one.engine, "The", 4)
    assert whole.choices[0].text == text, "the token that it was stopped at is the last"
    assert one.number('causalab_aborts_total{point="watched"}') == 2
    assert one.number('causalab_verdicts_total{action="abort",point="watched"}') == 2


def test_a_probe_that_fails_is_told_of(start):
    one = start(spec=spec_of(name="failing"))
    with one.client() as client:
        assert one.number('causalab_probe_left_alone{point="watched"}') == 0
        made = client.completions.create(model="tiny", prompt="The", max_tokens=12, temperature=0)
    failures = made.choices[0].causalab["failures"]
    assert {(each["point"], each["what"]) for each in failures} == {("watched", "raised")}
    assert "it fails" in failures[0]["message"]
    assert one.number('causalab_probe_failures_total{point="watched",what="raised"}') == len(failures) == 5
    assert one.number('causalab_probe_left_alone{point="watched"}') == 1
    dropped = one.number('causalab_probe_dropped_total{point="watched",reason="circuit_open"}')
    assert dropped == made.choices[0].causalab["counts"]["watched"]["dropped"]["circuit_open"] > 0


def test_the_model_says_what_it_is(running, client):
    (only,) = client.models.list().data
    assert (only.id, only.causalab["mode"]) == ("tiny", "joined as they come")
    assert client.models.retrieve("tiny").causalab["points"] == ["watched"]
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("another/one")
    assert refused.value.code == "model_not_found"
    assert running.get("/healthz").json() == {"status": "ok", "mode": "joined as they come", "rows": 0, "waiting": 0}


# Under load


def test_two_hundred_at_once_each_get_their_own(start, models):
    """Different prompts, lengths and kinds, all at once; none is lost, and none has anything of another's."""
    engine = models("successor-llama")
    texts = [f"If today is {day}, tomorrow is" for day in DAYS] + [f"{a} {b}" for a in DAYS for b in DAYS]
    asked = [(texts[number % len(texts)], 1 + number % 9) for number in range(200)]
    recording = probe(spec_of(), engine, texts, max_new_tokens=9, only_records=True)
    ids = {text: one.ids for text, one in zip(texts, recording.generated, strict=True)}
    stops = engine.stop_tokens()
    one = start(n_rows=16, n_waiting=200)

    async def ask(client, number):
        text, n = asked[number]
        if number % 2:
            made = await client.completions.create(model="tiny", prompt=text, max_tokens=n, temperature=0)
            return made.choices[0].text, made.usage.completion_tokens, made.choices[0].causalab["verdicts"], made.id
        said, last = "", None
        options = {"include_usage": True}
        async for chunk in await client.completions.create(
            model="tiny", prompt=text, max_tokens=n, temperature=0, stream=True, stream_options=options
        ):
            said += chunk.choices[0].text if chunk.choices else ""
            last, before = chunk, last
        return said, last.usage.completion_tokens, before.choices[0].causalab["verdicts"], last.id

    async def all_at_once():
        url = f"{one.server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=SECONDS) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(200)))

    for (text, n), (said, n_said, verdicts, name) in zip(asked, asyncio.run(all_at_once()), strict=True):
        expected = ids[text][:n]
        assert n_said == len(expected)
        shown = expected[:-1] if expected[-1] in stops else expected
        assert said == text_behind(engine.tokenizer, make_prompt(engine.tokenizer, text).ids, shown)
        assert {verdict["request"] for verdict in verdicts} <= {name}
        assert [verdict["value"] for verdict in verdicts] == list(range(len(verdicts)))
    assert one.number('causalab_requests_total{route="/v1/completions",status="200"}') == 200
    assert one.number("causalab_queue_length") == one.number("causalab_rows") == 0


def test_a_model_that_takes_nobody_in_between_says_so_and_answers_all(by_hand):
    one = by_hand(is_divisible=False, n_rows=4)
    assert one.get("/healthz").json()["mode"] == one.get("/v1/models").json()["data"][0]["causalab"]["mode"] == "whole batches"
    with ThreadPoolExecutor(20) as pool:
        asked = [{"model": "tiny", "prompt": DAYS[number % 7], "max_tokens": 1 + number % 5} for number in range(40)]
        for body, answer in zip(asked, pool.map(one.post, asked), strict=True):
            content = make_prompt(one.engine.tokenizer, body["prompt"])
            ids = content.ids[content.n_prefix :]
            said = [ids[at % len(ids)] for at in range(body["max_tokens"])]
            assert answer.json()["choices"][0]["text"] == text_behind(one.engine.tokenizer, content.ids, said)


def test_a_full_server_sends_away_and_says_when_to_come_back(by_hand):
    one = by_hand(n_rows=1, n_waiting=1)
    one.stream.may_step.clear()
    with ThreadPoolExecutor(2) as pool:
        inside = [pool.submit(one.post, {"model": "tiny", "prompt": day, "max_tokens": 5}) for day in DAYS[:2]]
        one.until(lambda: one.desk.n_waiting + one.desk.n_running == 2)
        refused = one.post({"model": "tiny", "prompt": "Friday"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        one.stream.may_step.set()
        assert [each.result().status_code for each in inside] == [200, 200]


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_hangs_up_frees_its_place(by_hand, streams):
    one = by_hand(n_rows=1, n_waiting=8, n_tokens=100_000)
    body = json.dumps({"model": "tiny", "prompt": "Friday", "max_tokens": 100_000, "stream": streams}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    one.stream.may_step.clear()
    with (
        socket.create_connection(one.server.bound.getsockname()) as runs,
        socket.create_connection(one.server.bound.getsockname()) as waits,
    ):
        runs.sendall(head.encode() + body)
        one.until(lambda: one.desk.n_running == 1)
        waits.sendall(head.encode() + body)
        one.until(lambda: one.desk.n_waiting == 1)
    one.until(lambda: one.desk.n_waiting == 0)
    one.stream.may_step.set()
    assert one.post({"model": "tiny", "prompt": "Sunday", "max_tokens": 3}).status_code == 200
    assert one.stream.cancelled == [0]
    one.until(lambda: one.number('causalab_requests_total{route="/v1/completions",status="499"}') == 2)


def test_a_client_that_hangs_up_within_its_body_is_no_failure(running, caplog):
    before = running.number('causalab_requests_total{route="/v1/completions",status="499"}')
    with socket.create_connection(running.server.bound.getsockname()) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        running.until(lambda: running.number("causalab_requests_open") == 2)
    running.until(lambda: running.number('causalab_requests_total{route="/v1/completions",status="499"}') == before + 1)
    assert not caplog.records


def test_a_client_that_does_not_read_loses_its_place(monkeypatch):
    monkeypatch.setattr(routes, "WRITE_SECONDS", 0.05)
    closed = []

    async def events():
        try:
            yield b"data: 1\n\n"
            yield b"data: 2\n\n"
        finally:
            closed.append(True)

    async def send(message):
        if message.get("body") == b"data: 2\n\n":
            await asyncio.sleep(SECONDS)

    scope = {"state": {}}
    asyncio.run(routes._EventStream(events())(scope, None, send))
    assert (closed, scope["state"]["status"]) == ([True], 499)


# Limits


def test_there_is_a_limit_of_requests_that_are_there_at_all(by_hand):
    one = by_hand(n_rows=8, n_requests=1)
    one.stream.may_step.clear()
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(one.post, {"model": "tiny", "prompt": "Friday", "max_tokens": 5})
        one.until(lambda: one.desk.n_running == 1)
        refused = one.post({"model": "tiny", "prompt": "Friday"})
        assert (refused.status_code, refused.json()["error"]["type"], refused.headers["retry-after"]) == (429, "rate_limit_error", "1")
        assert one.get("/healthz").status_code == 200
        one.stream.may_step.set()
        assert inside.result().status_code == 200


def test_time_that_is_up_ends_a_generation_properly(by_hand):
    one = by_hand(n_rows=1, seconds=0.2, n_tokens=10**7)
    one.stream.may_step.clear()
    with ThreadPoolExecutor(2) as pool:
        asked = {"model": "tiny", "prompt": "Friday", "max_tokens": 10**7}
        runs = pool.submit(one.post, asked)
        one.until(lambda: one.desk.n_running == 1)
        waits = pool.submit(one.post, asked)
        one.until(lambda: one.desk.n_waiting == 1)
        threading.Event().wait(0.3)
        one.stream.may_step.set()
        choice = runs.result().json()["choices"][0]
        assert (choice["finish_reason"], choice["causalab"]["ended"]) == ("length", "timeout")
        assert choice["text"].startswith("Friday"[:1]) or choice["text"]
        assert (waits.result().status_code, waits.result().json()["error"]["code"]) == (503, "timeout")


def test_time_is_up_for_those_who_wait_while_a_probe_holds_up_a_token(by_hand):
    one = by_hand(n_rows=1, seconds=0.3)
    one.stream.may_step.clear()
    asked = {"model": "tiny", "prompt": "Friday", "max_tokens": 9}
    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(one.post, asked)
        try:
            one.until(lambda: one.desk.n_running == 1)
            for stream in (False, True):
                waits = one.post({**asked, "stream": stream}, timeout=10)
                assert (waits.status_code, waits.json()["error"]["code"]) == (503, "timeout")
                assert one.desk.n_waiting == 0
        finally:
            one.stream.may_step.set()
        assert runs.result().json()["choices"][0]["causalab"]["ended"] == "timeout"


def test_bodies_that_are_too_large_are_refused_with_or_without_a_length(start):
    one = start(n_body_bytes=2000)
    large = json.dumps({"model": "tiny", "prompt": "a" * 3000}).encode()
    assert one.post(large).status_code == 413

    def parts():
        for start_ in range(0, len(large), 500):
            yield large[start_ : start_ + 500]

    headers = {"content-type": "application/json"}
    chunked = one.http.post(f"{one.server.url}/v1/completions", content=parts(), headers=headers)
    assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "body_too_large")
    assert one.post({"model": "tiny", "prompt": "Friday", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"max_tokens": 401}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": True}, 400, "max_tokens"),
        ({"prompt": "day " * 5000}, 400, "prompt"),
        ({"prompt": [1] * 5000}, 400, "prompt"),
        ({"prompt": [10**9]}, 400, "prompt"),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": ["a", 1]}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": ["a"] * 300}, 400, "prompt"),
        ({"n": 300}, 400, "n"),
        ({"n": 0}, 400, "n"),
        ({"temperature": 2.1}, 400, "temperature"),
        ({"temperature": "1"}, 400, "temperature"),
        ({"top_p": 1.1}, 400, "top_p"),
        ({"stop": ""}, 400, "stop"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"stop": 3}, 400, "stop"),
        ({"seed": 2**63}, 400, "seed"),
        ({"logprobs": 1}, 400, "logprobs"),
        ({"logprobs": 0}, 400, "logprobs"),
        ({"echo": True}, 400, "echo"),
        ({"suffix": "x"}, 400, "suffix"),
        ({"best_of": 2}, 400, "best_of"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty"),
        ({"frequency_penalty": -1}, 400, "frequency_penalty"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"stream": "yes"}, 400, "stream"),
        ({"wat": 1}, 400, "wat"),
        ({"model": "gpt-4"}, 404, "model"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(running, body, status, param):
    answer = running.post({"model": "tiny", "prompt": PROMPT, "max_tokens": 2, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"store": True}, "store"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages[0].name"),
        ({"max_tokens": 2, "max_completion_tokens": 2}, "max_tokens"),
        ({"max_completion_tokens": 10**6}, "max_tokens"),
    ],
)
def test_what_a_chat_cannot_have_is_refused_by_name(running, body, param):
    answer = running.post({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **body}, "/v1/chat/completions")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_what_asks_for_nothing_changes_nothing(running):
    harmless = {
        "logprobs": None,
        "echo": False,
        "best_of": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "user": "me",
        "metadata": {"a": "b"},
        "n": None,
        "stop": [],
        "stream": False,
        "seed": None,
    }
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    plain, more = running.post(asked).json(), running.post(asked | harmless).json()
    assert plain["choices"][0]["text"] == more["choices"][0]["text"]
    turn = {"role": "assistant", "content": "Monday", "refusal": None, "tool_calls": None}
    chat = {"model": "tiny", "messages": [turn, {"role": "developer", "content": "x"}], "max_tokens": 2}
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "store": False,
        "logprobs": False,
        "modalities": ["text"],
    }
    assert running.post(chat | nothing, "/v1/chat/completions").status_code == 200


def test_learned_positions_are_a_limit(start):
    one = start("successor-gpt2", n_tokens=100_000)
    most = one.watched.facts.max_positions
    refused = one.post({"model": "tiny", "prompt": PROMPT, "max_tokens": most})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "learned positions" in refused.json()["error"]["message"]


# Who may come in


def test_a_token_is_asked_for_everywhere_but_at_the_door(start):
    one = start(token="sesame-1")
    with one.client() as client:
        assert client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1).choices
        assert client.models.list().data
    for header in ({}, {"authorization": "Bearer sesame"}, {"authorization": "Bearer sesame-12"}, {"authorization": "Basic sesame-1"}):
        refused = one.post({"model": "tiny", "prompt": PROMPT}, headers=header)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
    assert one.get("/metrics").status_code == one.get("/v1/models").status_code == one.get("/nowhere").status_code == 401
    assert one.get("/healthz").status_code == 200
    assert one.get("/metrics", headers={"authorization": "bearer sesame-1"}).status_code == 200


def test_names_and_pages_that_lead_here_from_elsewhere_are_refused(start):
    one = start(hosts=loopback_names("127.0.0.1"))
    port = one.server.bound.getsockname()[1]
    for host in ("127.0.0.1", "localhost", f"localhost:{port}", "[::1]:80", "LOCALHOST"):
        assert one.get("/healthz", headers={"host": host}).status_code == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost@evil.example", ""):
        assert one.get("/healthz", headers={"host": host}).status_code == 403
    own = {"host": f"localhost:{port}", "origin": f"http://localhost:{port}"}
    assert one.get("/healthz", headers=own).status_code == 200
    for origin in ("http://evil.example", "null", "http://localhost", "http://["):
        assert one.get("/healthz", headers=own | {"origin": origin}).status_code == 403


def test_only_loopback_is_loopback():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_a_request_keeps_the_name_that_it_brings(running):
    assert running.get("/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 200, "<script>"):
        assert running.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"].startswith("req-")


def test_what_is_not_there_is_refused_in_the_same_words(running):
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/docs", 404),
    ):
        answer = running.http.request(method, f"{running.server.url}{path}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
    form = running.post(b"{}", headers={"content-type": "text/plain"})
    assert form.status_code == 415


BAD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["model", "prompt", "messages", "max_tokens", "n", "stop", "stream", "seed", "temperature", "top_p", "tools", "user"]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(body=st.dictionaries(FIELDS, BAD, max_size=5) | BAD, is_chat=st.booleans(), broken=st.binary(max_size=12))
def test_bad_bodies_never_are_a_bug(running, body, is_chat, broken):
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    for content in (
        json.dumps(body).encode(),
        json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1, **body}).encode() if isinstance(body, dict) else broken,
    ):
        answer = running.post(content, path)
        assert answer.status_code < 500, answer.text
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]


def test_too_many_prompts_are_refused_before_they_are_cut_into_tokens(running, monkeypatch):
    monkeypatch.setattr(routes, "prompts_of", None)
    answer = running.post({"model": "tiny", "prompt": ["a"] * 200_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many")


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 100_000, b'{"model": NaN}', b'{"a":1,"a":2}', b"nul"])
def test_broken_json_is_the_clients_fault(running, body):
    answer = running.post(body)
    assert answer.status_code == 400
    assert "expected invalid" not in answer.json()["error"]["message"]


def test_broken_json_is_said_to_be_that_and_not_said_again(running):
    error = running.post(b'{"model": "tiny", "prompt": "sesame"').json()["error"]
    assert error["message"] == "expected JSON, got a body that is none: EOF while parsing an object at line 1 column 36"
    assert error["code"] == "json"


def test_a_connection_that_asks_for_nothing_is_closed(start, monkeypatch):
    """Also half a head, at the first request and behind one: a body that does not come has a limit of its own."""
    monkeypatch.setattr("causalab_mini.probing.serve.running.KEEP_ALIVE_SECONDS", 1)
    one = start()
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    asked = (b"", whole[:20], whole + whole[:20])
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(one.server.bound.getsockname(), timeout=SECONDS)) for _ in asked]
        for connection, said in zip(connections, asked, strict=True):
            connection.sendall(said)
        for connection, said in zip(connections, asked, strict=True):
            found = b""
            while part := connection.recv(4096):
                found += part
            assert found.count(b"200 OK") == said.count(b"\r\n\r\n")


def test_connections_outlive_those_of_the_client(running):
    """Who closes first must be the client: a request that meets the server's close is lost, and nobody knows whether it was served."""
    assert running.server._inner.config.timeout_keep_alive > 2 * httpx.Limits().keepalive_expiry


# Failures


def test_a_generation_that_fails_is_an_error_of_the_server(by_hand):
    one = by_hand(n_rows=4)
    problem = RunError(Problem("", "finite logits", "NaN", code="not_finite"))
    one.stream.fails["join"] = problem
    refused = one.post({"model": "tiny", "prompt": "Friday", "max_tokens": 3})
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "not_finite")
    one.stream.may_step.clear()
    one.stream.fails["step"] = problem
    with one.client() as client:
        stream = client.completions.create(model="tiny", prompt="Friday", max_tokens=30, stream=True)
        one.stream.may_step.set()
        with pytest.raises(openai.APIError, match="finite logits"):
            list(stream)
    assert one.post({"model": "tiny", "prompt": "Friday", "max_tokens": 3}).status_code == 200


def test_memory_that_runs_out_is_told_apart(by_hand):
    one = by_hand(n_rows=4)
    one.stream.fails["join"] = MemoryError()
    refused = one.post({"model": "tiny", "prompt": "Friday", "max_tokens": 3})
    assert (refused.status_code, refused.json()["error"]["code"], refused.headers["retry-after"]) == (503, "memory", "1")


def test_a_bug_is_logged_and_answered(running, monkeypatch, caplog):
    monkeypatch.setattr(routes, "parse", lambda *args: 1 / 0)
    answer = running.post({"model": "tiny", "prompt": "secret-words"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "bug")
    assert "ZeroDivisionError" in caplog.text
    assert "secret-words" not in caplog.text


def test_logs_hold_nothing_of_what_is_said(start, caplog):
    one = start(logs=True)
    with caplog.at_level("INFO", logger="causalab_mini.serve"), one.client() as client:
        said = client.completions.create(model="tiny", prompt="Wednesday", max_tokens=5, temperature=0).choices[0].text
        list(client.completions.create(model="tiny", prompt="Wednesday", max_tokens=5, temperature=0, stream=True))
        one.until(lambda: len(caplog.records) == 2)
    assert all("/v1/completions" in record.getMessage() and "5 tokens" in record.getMessage() for record in caplog.records)
    assert "Wednesday" not in caplog.text
    assert said.strip() not in caplog.text


# The end


def test_what_runs_may_finish_and_nothing_more_is_taken(by_hand):
    one = by_hand(n_rows=1)
    one.stream.may_step.clear()
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(one.post, {"model": "tiny", "prompt": "Friday", "max_tokens": 5})
        one.until(lambda: one.desk.n_running == 1)
        one.server.stop()
        refused = one.post({"model": "tiny", "prompt": "Friday"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutdown")
        assert (one.get("/healthz").status_code, one.get("/healthz").json()["status"]) == (503, "draining")
        one.stream.may_step.set()
        assert inside.result().json()["choices"][0]["causalab"]["ended"] == "length"
    one.thread.join(SECONDS)
    with pytest.raises(httpx.ConnectError):
        one.get("/healthz")


def test_what_runs_for_too_long_is_ended_with_what_it_has(by_hand):
    one = by_hand(n_rows=1, n_tokens=10**7, drain=0.1)
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(one.post, {"model": "tiny", "prompt": "Friday", "max_tokens": 10**7})
        one.until(lambda: one.desk.n_running == 1)
        one.server.stop()
        choice = inside.result().json()["choices"][0]
    assert (choice["finish_reason"], choice["causalab"]["ended"]) == ("length", "shutdown")
    assert choice["text"]


# The command


SPEC = """
version: "1"
extraction_points:
  - {name: size, layers: [2], tensor_type: residual_stream, position: "generated[*]", probe_type: norm_monitor, probe_kind: trajectory}
"""


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "points.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_the_command_serves_until_it_is_told_to_stop(spec_file, tmp_path):
    """The `openai` client against the program; SIGTERM lets a stream under way finish, sinks are closed, and it leaves with 0."""
    lines = tmp_path / "said.ndjson"
    arguments = ["--model", "bundled:successor-llama", "--port", "0", "--json", "--device", "cpu"]
    arguments += ["--ndjson", str(lines), "--redact", "value"]
    environment = os.environ | {"TOKEN": "sesame", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "causalab_mini", "serve", str(spec_file), *arguments, "--token-env", "TOKEN"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process, contextlib.ExitStack() as left:
        left.callback(process.kill)
        ready = json.loads(process.stdout.readline())
        assert (ready["model"], ready["mode"], ready["points"]) == ("bundled:successor-llama", "joined as they come", ["size"])
        client = left.enter_context(openai.OpenAI(base_url=f"{ready['url']}/v1", api_key="sesame", timeout=SECONDS, max_retries=0))
        asked = {"model": "bundled:successor-llama", "prompt": "The", "temperature": 0, "max_tokens": 60}
        stream = client.completions.create(**asked, stream=True)
        first = next(stream)
        process.send_signal(signal.SIGTERM)
        chunks = [first, *stream]
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out, err) == (0, "", "")
    events = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert events[-1]["event"] == "end"
    values = {event["value"] for event in events if event["event"] == "result"}
    assert values == {"[redacted]"}
    assert {event["request"] for event in events} == {first.id}


def test_the_command_refuses_before_it_loads(command, spec_file, tmp_path, monkeypatch):
    monkeypatch.setattr(HooksEngine, "load_weights", lambda self: pytest.fail("loaded"))
    monkeypatch.setenv("EMPTY", "")
    model = ("--model", "bundled:successor-llama", "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, said in (
            (("--host", "0.0.0.0"), "--host: expected an address of this machine alone, as there is no token, got `0.0.0.0`"),
            (("--token-env", "EMPTY"), "--token-env: expected a token of printable characters in `EMPTY`, got nothing"),
            (("--token-env", "NOWHERE"), "got nothing"),
            (("--token-file", tmp_path / "none"), "--token-file: expected a file that can be read"),
            (("--token-env", "A", "--token-file", "b"), "expected one place of the token"),
            (("--redact", "value"), "--redact: expected `--ndjson FILE` or `--webhook URL` beside `--redact`"),
            (("--ndjson", tmp_path / "no" / "x"), "expected a file that can be appended to"),
            (("--port", port), f"--host, --port: expected a place to listen at, got `127.0.0.1:{port}`"),
            (("--attention", "flash"), "--attention: expected"),
        ):
            code, out, err = command("serve", spec_file, *model, *arguments)
            assert (code, out) == (2, "")
            assert said in err
    spec_file.write_text(SPEC.replace("norm_monitor", "record"), encoding="utf-8")
    code, _, err = command("serve", spec_file, *model)
    assert code == 2
    assert "size.probe_type: expected a probe (the activations of a recorded point would go nowhere), got `record`" in err
    spec_file.write_text(SPEC.replace("[2]", "[99]").replace("norm_monitor", "no_such_probe"), encoding="utf-8")
    code, _, err = command("serve", spec_file, *model)
    assert code == 2
    assert "size.layers" in err
    assert "size.probe_type" in err


def test_the_command_says_what_to_install(command, spec_file, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = command("serve", spec_file, "--model", "bundled:successor-llama")
    assert code == 2
    assert "pip install 'causalab-mini[serve]'" in err


# Pieces


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_pieces_together_are_the_whole(models, data):
    tokenizer = models(data.draw(st.sampled_from(["successor-llama", "successor-gpt2"]))).tokenizer
    text = data.draw(st.text(alphabet="ab .é東🙂\n", min_size=1, max_size=20))
    prompt = make_prompt(tokenizer, data.draw(st.sampled_from([PROMPT, "Sunday", "a "])))
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12)) + tokenizer(text, add_special_tokens=False)["input_ids"]
    stops = data.draw(st.lists(st.sampled_from([" ", "b .", "東🙂", "é"]), max_size=2))
    whole, n = "", 0
    while n < len(ids) and cut(whole, stops) == whole:  # a generation ends at the token that completes a stop text
        n += 1
        whole = text_behind(tokenizer, prompt.ids, ids[:n])
    pieces = Pieces(tokenizer, prompt, stops)
    said = "".join(pieces.take(ids[:at]) for at in range(1, n + 1))
    assert cut(whole, stops).startswith(said)
    assert said + pieces.rest(cut(whole, stops)) == cut(whole, stops)


@pytest.mark.parametrize(
    ("text", "stops", "n"),
    [
        ("abc", [], 3),
        ("abc", ["cd"], 2),
        ("abc", ["bcd", "cd"], 1),
        ("abc", ["b"], 1),
        ("ab\ufffd", [], 2),
        ("ab\ufffd", ["bx"], 1),
        ("", ["a"], 0),
    ],
)
def test_what_may_still_change_is_kept_back(text, stops, n):
    assert n_certain(text, stops) == n


def test_a_prompt_that_ends_inside_a_character_holds_its_text_back(models):
    tokenizer = models("successor-gpt2").tokenizer
    ids = tokenizer("東", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    prompt = SimpleNamespace(ids=tuple(ids[:1]))
    pieces = Pieces(tokenizer, prompt, ())
    assert pieces.take(ids[1:]) == ""
    assert pieces.rest("whatever it is") == "whatever it is"
