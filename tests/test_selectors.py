"""Position selectors: the grammar with its corrections, what matches, and compiled sets of indices against `matches`, token by token."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from causalab_mini.probing.spec import (
    ExtractionPoint,
    PositionKind,
    PositionSelector,
    ProbeKind,
    Progress,
    SpecValidationError,
    TensorType,
    Until,
    advance,
    compile_point,
    compile_selector,
    parse_position,
)

pytestmark = pytest.mark.plain

ACCEPTED = {
    5: (PositionKind.ABSOLUTE, 5),
    0: (PositionKind.ABSOLUTE, 0),
    "5": (PositionKind.ABSOLUTE, 5, None, 0, 5),
    "prompt[0]": (PositionKind.PROMPT_INDEX, 0),
    "prompt[-1]": (PositionKind.PROMPT_INDEX, -1),
    " prompt[-1]\n": (PositionKind.PROMPT_INDEX, -1, None, 0, "prompt[-1]"),
    "prompt[-1]+1": (PositionKind.PROMPT_INDEX, -1, None, 1),
    "prompt[-1]+0": (PositionKind.PROMPT_INDEX, -1, None, 0, "prompt[-1]"),
    "generated[0]": (PositionKind.GENERATED_INDEX, 0),
    "generated[-12]": (PositionKind.GENERATED_INDEX, -12),
    "generated[3]-2": (PositionKind.GENERATED_INDEX, 3, None, -2),
    "generated[*]": (PositionKind.GENERATED_ALL, 0),
    "generated[5:]": (PositionKind.GENERATED_SLICE, 5),
    "generated[0:]": (PositionKind.GENERATED_SLICE, 0),
    "generated[2:8]": (PositionKind.GENERATED_SLICE, 2, 8),
    "prompt[*]": (PositionKind.PROMPT_ALL, 0),
    "prompt[0:4]": (PositionKind.PROMPT_SLICE, 0, 4),
    "prompt[1:]": (PositionKind.PROMPT_SLICE, 1),
}


@pytest.mark.parametrize("raw", ACCEPTED)
def test_a_form_is_read_and_spelled_again(raw):
    kind, index, *rest = ACCEPTED[raw]
    stop, offset, spelled = [*rest, *[None, 0, raw][len(rest) :]]
    selector = parse_position(raw)
    assert selector == PositionSelector(kind, index, stop, offset)
    assert selector.to_raw() == spelled
    assert type(selector.to_raw()) is type(spelled)
    assert str(selector) == str(spelled)
    assert parse_position(selector.to_raw()) == selector
    assert selector.is_continuous == (kind.endswith(("all", "slice")))
    assert pickle.loads(pickle.dumps(selector)) == selector
    assert hash(selector) == hash(parse_position(raw))


REFUSED = {
    "prompt[-1] + 1": ("a space inside", "write `prompt[-1]+1`"),
    "prompt[ 3 ]": ("a space inside", "write `prompt[3]`"),
    "generated[ 2 : 8 ]": ("a space inside", "write `generated[2:8]`"),
    "generated[ : 8 ]": ("a space inside", "write `generated[0:8]`"),
    "5+1": ("a bare index takes no offset", "write `6`"),
    "5-1": ("a bare index takes no offset", "write `4`"),
    "5 + 1": ("a space inside", "write `6`"),
    "1-5": ("a bare index takes no offset", "write `prompt[-1]` or `generated[-1]` for the last token"),
    "-1": ("a negative index of what has no end yet", "write `prompt[-1]` or `generated[-1]`"),
    "+5": ("an index is written in digits alone, without a leading zero", "write `5`"),
    "007": ("an index is written in digits alone, without a leading zero", "write `7`"),
    "-0": ("an index is written in digits alone, without a leading zero", "write `0`"),
    "prompt[-0]": ("an index has no `+` and no leading zero, and `-0` is `0`", "write `prompt[0]`"),
    "prompt[01]+2": ("an index has no `+` and no leading zero, and `-0` is `0`", "write `prompt[1]+2`"),
    "generated[:5]": ("a slice without a start", "write `generated[0:5]`"),
    "generated[:]": ("a slice without a start", "write `generated[*]`"),
    "generated[-3:]": ("a slice that starts from the end", "one point each for `generated[-3]`, `generated[-2]`, `generated[-1]`"),
    "prompt[-9:]": ("a slice that starts from the end", "one point each for the tokens from `prompt[-9]` on"),
    "generated[-3:-1]": ("a slice that starts from the end", "one point each for the tokens from `generated[-3]` on"),
    "generated[3:3]": ("an empty slice", "write `generated[3:4]` or `generated[3]`"),
    "generated[:0]": ("an empty slice", "write `generated[0:1]` or `generated[0]`"),
    "generated[8:2]": ("a slice that runs backwards", "write `generated[2:8]`"),
    "generated[2:-1]": ("a slice that stops from the end", "write `generated[2:]`"),
    "generated[0:10:2]": ("a slice with a step", "write `generated[0:10]` with `stride: 2`"),
    "generated[0:10:0]": ("a step that is no positive number", "write `generated[0:10]`"),
    "generated[*]+1": ("an offset on a run", "shift its bounds: `generated[1:]`"),
    "generated[2:8]+1": ("an offset on a run", "shift its bounds: `generated[3:9]`"),
    "generated[5:]-2": ("an offset on a run", "shift its bounds: `generated[3:]`"),
    "generated[02:8]": ("a number has no `+` and no leading zero", "write `generated[2:8]`"),
    "promt[-1]": ("the sequence `promt`", "did you mean `prompt`?"),
    "Generated[*]": ("the sequence `Generated`", "did you mean `generated`?"),
    "prompt[1234567890]": ("a number of more than 9 digits", ""),
    "promt": ("", "did you mean `prompt`?"),
    "last": ("", ""),
    "": ("", ""),
    "prompt[]": ("", ""),
    "prompt[1": ("", ""),
    "prompt[1]]": ("", ""),
    "prompt[1][2]": ("", ""),
    "prompt[-1]+1+1": ("", ""),
    "prompt[１]": ("", ""),
    "prompt[1.0]": ("", ""),
    "generated[**]": ("", ""),
}


@pytest.mark.parametrize("raw", REFUSED)
def test_what_is_no_selector_is_refused_with_the_forms_the_reason_and_the_correction(raw):
    reason, hint = REFUSED[raw]
    with pytest.raises(SpecValidationError) as caught:
        parse_position(raw)
    (issue,) = caught.value.issues
    for form in ("`5`", "`prompt[i]`", "`generated[-i]`", "`generated[*]`", "`generated[a:b]`", "`prompt[-1]+1`"):
        assert form in issue.expected
    assert (issue.field, issue.path, issue.hint) == ("position", "position", hint)
    assert issue.got == (f"`{raw}` ({reason})" if reason else f'`"{raw}"`')


@pytest.mark.parametrize("raw", [None, True, 1.0, [0], {"index": 1}, 10**5000, -(10**5000), -1], ids=lambda raw: type(raw).__name__)
def test_other_values_are_no_selectors(raw):
    with pytest.raises(SpecValidationError):
        parse_position(raw)


@pytest.mark.parametrize("raw", [raw for raw, (_, hint) in REFUSED.items() if hint.startswith(("write `", "shift its bounds: `"))])
def test_every_correction_is_a_selector(raw):
    for quoted in REFUSED[raw][1].split("`")[1::2]:
        assert quoted.startswith("stride:") or parse_position(quoted)


def test_an_offset_counts_from_the_token_that_was_found():
    assert parse_position("prompt[-1]+1").resolve_absolute(10) == parse_position("generated[0]").resolve_absolute(10) == 10
    assert parse_position("generated[0]-1").resolve_absolute(10) == 9
    assert parse_position("generated[3]-5").matches(8, False, 10)
    assert parse_position("generated[-1]-3").resolve_absolute(10, 3) == 9
    assert parse_position("generated[-1]-3").matches(9, False, 10, num_generated_total=3)


def test_a_prompt_token_that_is_not_there_never_matches_in_the_generation():
    for raw in ("prompt[50]", "prompt[50]-45", "prompt[-20]", "prompt[-20]+15", "prompt[0]-1"):
        selector = parse_position(raw)
        assert selector.resolve_absolute(10) is None
        assert not any(selector.matches(index, index >= 10, 10, max(0, index - 10), 90) for index in range(100))
    assert parse_position("50").matches(50, True, 10)


def test_a_token_from_the_end_matches_only_when_the_end_is_known():
    last = parse_position("generated[-1]")
    assert not last.matches(12, True, 10, 2)
    assert last.matches(12, True, 10, 2, num_generated_total=3)
    assert not last.matches(12, True, 10, 2, num_generated_total=4)
    assert parse_position("generated[-4]").resolve_absolute(10, 3) is None
    assert parse_position("generated[-4]+2").resolve_absolute(10, 3) is None
    assert parse_position("generated[-1]+1").resolve_absolute(10, 3) is None


numbers = st.integers(0, 14)
selectors = st.one_of(
    st.builds(PositionSelector, st.just(PositionKind.ABSOLUTE), numbers),
    st.builds(
        PositionSelector,
        st.sampled_from([PositionKind.PROMPT_INDEX, PositionKind.GENERATED_INDEX]),
        st.integers(-8, 14),
        st.none(),
        st.integers(-9, 9),
    ),
    st.builds(PositionSelector, st.sampled_from([PositionKind.PROMPT_ALL, PositionKind.GENERATED_ALL])),
    st.builds(
        lambda kind, start, length: PositionSelector(kind, start, None if length is None else start + length),
        st.sampled_from([PositionKind.PROMPT_SLICE, PositionKind.GENERATED_SLICE]),
        numbers,
        st.none() | st.integers(1, 9),
    ),
)
lengths = st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10)).map(lambda three: (three[0], *sorted(three[1:])))
"""Of the prompt, of the generation, and the most that could have been generated."""


@given(selectors)
def test_every_selector_is_spelled_so_that_it_is_read_again(selector):
    assert parse_position(selector.to_raw()) == selector


def matched(selector, prompt_len, n_generated):
    """Returns the absolute indices that `matches` takes, token by token, with the end known."""
    return tuple(
        index
        for index in range(prompt_len + n_generated)
        if selector.matches(index, index >= prompt_len, prompt_len, max(0, index - prompt_len), n_generated)
    )


@given(selectors, lengths)
def test_compiled_indices_are_those_that_match(selector, three):
    prompt_len, n_generated, most = three
    compiled = compile_selector(selector, prompt_len, most)
    found = matched(selector, prompt_len, n_generated)
    assert compiled.resolved(n_generated) == found
    assert bool(compiled.why_none(n_generated)) == (not found)
    assert compiled.needs_last_fed(n_generated) == (n_generated > 0 and prompt_len + n_generated - 1 in found)
    if compiled.reason:
        assert not any(matched(selector, prompt_len, n) for n in range(most + 1))


@given(selectors, lengths)
def test_a_ring_buffer_of_the_said_size_holds_what_is_counted_from_the_end(selector, three):
    prompt_len, n_generated, most = three
    compiled = compile_selector(selector, prompt_len, most)
    streamed = [*compiled.prompt_tail, *range(prompt_len, prompt_len + n_generated)]
    kept = streamed[max(0, len(streamed) - compiled.n_kept) :]
    found = compiled.from_end_index(n_generated)
    assert found is None or found in kept
    assert (compiled.from_end is None) or selector.needs_the_end
    if not selector.needs_the_end:
        streaming = tuple(index for index in range(prompt_len + n_generated) if selector.matches(index, index >= prompt_len, prompt_len))
        assert compiled.resolved(n_generated) == streaming


@given(selectors, lengths)
def test_a_selector_that_is_given_no_generated_index_counts_itself(selector, three):
    prompt_len, n_generated, _ = three
    for index in range(prompt_len + n_generated):
        with_index = selector.matches(index, index >= prompt_len, prompt_len, max(0, index - prompt_len), n_generated)
        assert selector.matches(index, index >= prompt_len, prompt_len, num_generated_total=n_generated) == with_index


def point_at(selector, **more):
    return ExtractionPoint(
        name="a", tensor_type=TensorType.LN_FINAL, position=selector, probe_type="t", probe_kind=ProbeKind.TRAJECTORY, **more
    )


untils = st.one_of(
    st.fixed_dictionaries({"until": st.none() | st.just(Until.GENERATION_END)}),
    st.fixed_dictionaries({"until": st.just(Until.FIXED_COUNT), "count": st.integers(1, 5)}),
    st.fixed_dictionaries({"until": st.just(Until.STOP_TOKEN), "token": st.just(".")}),
)


@given(selectors.filter(lambda selector: selector.is_continuous), st.integers(1, 4), untils, lengths, st.sets(st.integers(0, 20)))
def test_a_point_fires_at_the_same_tokens_step_by_step_and_compiled(selector, stride, until, three, stops):
    prompt_len, n_generated, most = three
    point = point_at(selector, stride=stride, **until)
    progress, fired = Progress(), []
    n_eligible = 0
    for index in range(prompt_len + n_generated):
        fires, progress = advance(point, progress, index, index >= prompt_len, prompt_len, is_stop=index in stops)
        fired += [index] if fires else []
        n_eligible += point.is_eligible(index, index >= prompt_len, prompt_len)
    compiled = compile_point(point, prompt_len, most)
    assert (compiled.cut_at(stops) if point.until is Until.STOP_TOKEN else compiled).resolved(n_generated) == tuple(fired)
    assert (progress.n_fired, progress.n_eligible) == (len(fired), n_eligible)
    if point.until is not Until.STOP_TOKEN:
        assert fired == [index for index in range(prompt_len + n_generated) if point.matches(index, index >= prompt_len, prompt_len)]
    assert progress.ended_by in (None, point.until)
    assert progress.is_over or len(fired) == n_eligible


def fired_at(point, prompt_len, n_generated, stops=()):
    progress, fired = Progress(), []
    for index in range(prompt_len + n_generated):
        fires, progress = advance(point, progress, index, index >= prompt_len, prompt_len, is_stop=index in stops)
        fired += [index] if fires else []
    return fired, progress


def test_a_fixed_count_ends_a_run_after_so_many_tokens():
    point = point_at(parse_position("generated[1:]"), stride=3, until=Until.FIXED_COUNT, count=2)
    assert fired_at(point, 4, 12) == ([5, 8], Progress(n_eligible=4, n_fired=2, ended_by=Until.FIXED_COUNT))


def test_a_stop_token_is_the_last_that_a_run_takes_and_counts_inside_it_alone():
    point = point_at(parse_position("generated[2:]"), until=Until.STOP_TOKEN, token=".")
    assert fired_at(point, 4, 6, stops={1, 5, 7}) == ([6, 7], Progress(n_eligible=4, n_fired=2, ended_by=Until.STOP_TOKEN))
    strided = point_at(parse_position("generated[*]"), stride=2, until=Until.STOP_TOKEN, token=".")
    assert fired_at(strided, 4, 6, stops={7})[0] == [4, 6]


REASONS = {
    "prompt[50]": "the prompt has 10 tokens, and no `prompt[50]`",
    "prompt[-20]+15": "the prompt has 10 tokens, and no `prompt[-20]`",
    "prompt[0]-1": "`prompt[0]-1` is before the first token",
    "prompt[12:14]": "the prompt has 10 tokens, none of them in `prompt[12:14]`",
    "generated[9]": "at most 6 tokens are generated, none of them `generated[9]`",
    "30": "at most 6 tokens are generated, none of them `30`",
    "generated[6:]": "at most 6 tokens are generated, none of them `generated[6:]`",
    "generated[-7]": "at most 6 tokens are generated, none of them `generated[-7]`",
    "generated[-1]+1": "`generated[-1]+1` is behind the last token",
    "generated[-1]-20": "`generated[-1]-20` is before the first token",
    "generated[4]": "the generation ended after 3 tokens",
    "generated[-5]": "the generation ended after 3 tokens",
}


@pytest.mark.parametrize("raw", REASONS)
def test_a_selector_that_matched_nothing_says_why(raw):
    assert compile_selector(parse_position(raw), 10, 6).why_none(3) == REASONS[raw]


def test_a_ring_buffer_is_as_small_as_it_can_be():
    last = compile_selector(parse_position("generated[-1]"), 10, 64)
    assert (last.n_kept, last.prompt_tail, last.needs_last_fed(5), last.resolved(5)) == (1, range(10, 10), True, (14,))
    third = compile_selector(parse_position("generated[-3]"), 10, 64)
    assert (third.n_kept, third.needs_last_fed(5), third.resolved(2)) == (3, False, ())
    reaching = compile_selector(parse_position("generated[-1]-4"), 10, 2)
    assert (reaching.n_kept, reaching.prompt_tail) == (5, range(6, 10))
    assert compile_selector(parse_position("generated[*]"), 10, 64).n_kept == 0


def test_lengths_below_zero_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="at least 0"):
        compile_selector(parse_position("5"), -1, 3)


def judged(text):
    """Reads a text as a selector, and checks its spelling or its refusal."""
    try:
        selector = parse_position(text)
    except SpecValidationError as error:
        (refusal,) = error.issues
    else:
        assert parse_position(selector.to_raw()) == selector
        return
    assert refusal.field == "position"
    assert refusal.text().count("\n") == bool(refusal.hint)


@given(st.text(alphabet="prompt generated[]0123456789:*+-x\t\u0661", max_size=18) | st.text(max_size=12))
def test_any_text_is_a_selector_or_refused_in_words(text):
    judged(text)


@given(selectors, st.data())
def test_a_mutated_selector_is_a_selector_or_refused_in_words(selector, data):
    text = str(selector)
    for _ in range(data.draw(st.integers(1, 3))):
        at, n_out = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 1))
        text = text[:at] + data.draw(st.sampled_from(["", " ", "-", "+", "0", "1", ":", "*", "[", "]", "p"])) + text[at + n_out :]
    judged(text)
