"""Which tokens a position means, on four kinds of tokenizer: pieces, merged bytes, continued words, bytes."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_of_ours import KINDS, TRIMMING

from causalab_mini.data import characters
from causalab_mini.data.prompts import Prompt, PromptError, make_prompt
from causalab_mini.plan.position import Anchor, Position
from causalab_mini.schedule.locate import locate

pytestmark = pytest.mark.tiny

ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
FAITHFUL = [kind for kind in KINDS if kind != "wordpiece"]
"""Those whose tokens decode to the text that went in: WordPiece puts spaces around punctuation and forgets words."""
MERGING = ["sentencepiece", "byte_level", "wordpiece"]
SENTENCE = "If today is Thursday, tomorrow is Friday"
THURSDAY = {"variable": "day"}


@cache
def tokenizer(kind, template=None):
    return KINDS[kind]() if template is None else KINDS[kind](template)


@cache
def prompt_of(kind, text):
    return make_prompt(tokenizer(kind), text)


def position(**keys):
    scope = keys.pop("scope", None)
    anchor = None if scope is None else Anchor.model_validate(scope)
    raw = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    return Position(**raw, scope=anchor)


def found(kind, text, anchor=None, **keys):
    """Returns the text of a window, or its reason."""
    prompt = prompt_of(kind, text) if isinstance(text, str) else text
    window = locate(position(**keys), anchor, prompt)
    assert bool(window.tokens) != bool(window.reason)
    return window.reason or prompt.text_of(window.tokens)


def tokens(kind, text, anchor=None, **keys):
    prompt = prompt_of(kind, text)
    return [prompt.text_of([token]) for token in locate(position(**keys), anchor, prompt).tokens]


def spelled(text, anchor=None, **keys):
    """Returns the tokens of a window where each is a character, or its reason."""
    return found("pure_bytes", text, anchor, **keys) if not (window := tokens("pure_bytes", text, anchor, **keys)) else "".join(window)


# content


@pytest.mark.parametrize(("kind", "n_prefix"), [("sentencepiece", 1), ("byte_level", 0), ("wordpiece", 1), ("pure_bytes", 0)])
def test_index_0_is_the_first_token_of_the_text_on_every_tokenizer(kind, n_prefix):
    prompt = prompt_of(kind, SENTENCE)
    assert prompt.n_prefix == n_prefix
    assert prompt.n_content == prompt.n_tokens - n_prefix
    assert found(kind, SENTENCE, index=0) == ("I" if kind == "pure_bytes" else "If")
    assert prompt.text.replace(" ,", ",") == SENTENCE


@ALL_KINDS
def test_the_prefix_is_the_tokenizers_own_leading_tokens(kind):
    prompt = prompt_of(kind, SENTENCE)
    window = locate(position(all=True, scope={"segment": "prefix"}), None, prompt)
    if prompt.n_prefix:
        assert window.tokens == (-1,)
        assert prompt.text_of(window.tokens) == ""
        assert tokens(kind, SENTENCE, index=-1, scope={"segment": "prefix"}, offset=1) == tokens(kind, SENTENCE, index=0)
        assert found(kind, SENTENCE, index=0, scope={"segment": "prefix"}, offset=-1) == "out_of_range"
        assert found(kind, SENTENCE, index=1, scope={"segment": "prefix"}) == "out_of_range"
        assert found(kind, SENTENCE, "If", index=0, scope={"segment": "prefix", "text": "If"}) == "alignment_missing"
    else:
        assert window.reason == "alignment_missing"


@ALL_KINDS
def test_a_text_of_no_token_is_a_row_of_the_prefix_or_refused(kind):
    if prompt_of(kind, "a").n_prefix:
        assert found(kind, "", index=0) == "out_of_range"
        assert found(kind, "", all=True) == "out_of_range"
    else:
        with pytest.raises(PromptError, match="expected a text of at least one token, got no token"):
            make_prompt(tokenizer(kind), "")


# anchors


@pytest.mark.parametrize("kind", MERGING)
@pytest.mark.parametrize("scope", [{"variable": "day"}, {"text": "Thursday"}, {"column": "days[0]"}])
def test_an_anchor_finds_its_text_with_the_space_of_its_token(kind, scope):
    assert found(kind, SENTENCE, "Thursday", all=True, scope=scope) in (" Thursday", " Thursday,")


def test_a_token_of_a_byte_has_no_space():
    assert found("pure_bytes", SENTENCE, "Thursday", all=True, scope=THURSDAY) == "Thursday"
    assert found("pure_bytes", SENTENCE, " Thursday", all=True, scope=THURSDAY) == " Thursday"


@ALL_KINDS
@pytest.mark.parametrize("value", ["  Thursday\n", "\tThursday", "Thursday  "])
def test_a_value_that_is_not_there_as_it_is_is_looked_for_stripped(kind, value):
    assert found(kind, SENTENCE, value, all=True, scope=THURSDAY) == found(kind, SENTENCE, "Thursday", all=True, scope=THURSDAY)


@ALL_KINDS
def test_a_value_with_the_space_that_follows_it_has_the_token_of_that_space(kind):
    text = "If today is Thursday tomorrow is Friday"
    without, following = (tokens(kind, text, value, all=True, scope=THURSDAY) for value in ("Thursday", "Thursday "))
    assert following[:-1] == without
    assert following[-1].startswith(" ")


@ALL_KINDS
def test_a_value_is_found_at_the_very_start_and_at_the_very_end(kind):
    assert found(kind, SENTENCE, "If", all=True, scope=THURSDAY) == "If"
    assert found(kind, SENTENCE, "Friday", all=True, scope=THURSDAY).strip() == "Friday"
    everything = prompt_of(kind, SENTENCE).text
    assert found(kind, SENTENCE, everything, all=True, scope=THURSDAY) == everything


@ALL_KINDS
@pytest.mark.parametrize("value", [None, "", "\n", "Wednesday", "thursday", SENTENCE + " too"])
def test_a_value_that_is_not_there_is_missing(kind, value):
    assert found(kind, SENTENCE, value, all=True, scope=THURSDAY) == "alignment_missing"


REPEATED = "Paris or Tokyo or Paris or Paris"


@ALL_KINDS
@pytest.mark.parametrize(
    ("occurrence", "nth"), [("first", 0), ("last", 2), (0, 0), (1, 1), (2, 2), (-1, 2), (-3, 0), (3, None), (-4, None), ("only", None)]
)
def test_an_occurrence_says_which_of_several_finds(kind, occurrence, nth):
    keys = {"index": -1, "scope": {"text": "Paris", "occurrence": occurrence}}
    prompt = prompt_of(kind, REPEATED)
    window = locate(position(**keys), "Paris", prompt)
    if nth is None:
        assert window.reason == ("alignment_ambiguous" if occurrence == "only" else "alignment_missing")
    else:
        ends = [start + 5 for start in range(len(prompt.text)) if prompt.text.startswith("Paris", start)]
        (start, end) = prompt.spans[window.tokens[0]]
        assert start < ends[nth] <= end


@ALL_KINDS
def test_overlapping_finds_count(kind):
    text = "aaaa" if kind != "wordpiece" else "aaaa yes"
    for occurrence in range(3):
        assert found(kind, text, "aa", all=True, scope={"text": "aa", "occurrence": occurrence}) != "alignment_missing"
    assert found(kind, text, "aa", all=True, scope={"text": "aa", "occurrence": 3}) == "alignment_missing"
    assert found(kind, text, "aa", all=True, scope={"text": "aa"}) == "alignment_ambiguous"
    assert found(kind, text, "aaaa", all=True, scope={"text": "aaaa"}) == "aaaa"


@pytest.mark.parametrize("kind", FAITHFUL)
@pytest.mark.parametrize("value", ["é", "fé", "日", "本語", "👩‍🚀", "👩", "🚀", "\u200d", "🚀!"])
def test_a_value_of_many_bytes_is_found_whole(kind, value):
    text = found(kind, "café 日本語 👩‍🚀!", value, all=True, scope=THURSDAY)
    assert value in text
    if kind == "pure_bytes":
        assert text == value
        prompt = prompt_of(kind, "café 日本語 👩‍🚀!")
        assert len(locate(position(all=True, scope=THURSDAY), value, prompt).tokens) == len(value.encode())


@pytest.mark.parametrize("kind", FAITHFUL)
@pytest.mark.parametrize("value", ["ay is Th", "s", "day, to", "f t", ",", "hursday, tomorrow i"])
def test_a_text_that_crosses_pieces_has_every_piece_it_touches(kind, value):
    prompt = prompt_of(kind, SENTENCE)
    start = prompt.text.index(value)
    window = locate(position(all=True, scope={"text": value, "occurrence": "first"}), value, prompt)
    touched = [token for token, (a, b) in enumerate(prompt.spans) if any(a <= place < b for place in range(start, start + len(value)))]
    assert list(window.tokens) == touched
    assert value in prompt.text_of(window.tokens)


# cuts

CUTS = [
    ({"index": 0}, "0"),
    ({"index": 6}, "6"),
    ({"index": -1}, "6"),
    ({"index": -7}, "0"),
    ({"index": 7}, "out_of_range"),
    ({"index": -8}, "out_of_range"),
    ({"span": [0, 7]}, "0123456"),
    ({"span": [2, 4]}, "23"),
    ({"span": [-3, -1]}, "45"),
    ({"span": [1, -1]}, "12345"),
    ({"span": [-2, 7]}, "56"),
    ({"span": [0, 8]}, "out_of_range"),
    ({"span": [-8, -1]}, "out_of_range"),
    ({"span": [5, -2]}, "out_of_range"),
    ({"last": 1}, "6"),
    ({"last": 7}, "0123456"),
    ({"last": 8}, "out_of_range"),
    ({"all": True}, "0123456"),
    ({"all": True, "stride": 3}, "036"),
    ({"last": 4, "stride": 2}, "35"),
    ({"span": [1, 7], "stride": 4}, "15"),
    ({"all": True, "stride": 100}, "0"),
    ({"index": 2, "offset": 3}, "5"),
    ({"index": -1, "offset": 1}, "out_of_range"),
    ({"index": 0, "offset": -1}, "out_of_range"),
    ({"span": [2, 5], "offset": -2}, "012"),
    ({"span": [2, 5], "offset": 3}, "out_of_range"),
    ({"all": True, "stride": 3, "offset": 0}, "036"),
    ({"last": 3, "stride": 2, "offset": -1}, "35"),
]


@pytest.mark.parametrize(("keys", "expected"), CUTS)
def test_a_cut_takes_tokens_of_the_content(keys, expected):
    assert spelled("0123456", **keys) == expected


@pytest.mark.parametrize(("keys", "expected"), [cut for cut in CUTS if "offset" not in cut[0]])
def test_a_cut_in_a_scope_takes_tokens_of_the_run(keys, expected):
    assert spelled("ab0123456cd", "0123456", **keys, scope={"text": "0123456"}) == expected


@pytest.mark.parametrize(("offset", "expected"), [(1, "c"), (2, "d"), (3, "out_of_range"), (-7, "b"), (-8, "a"), (-9, "out_of_range")])
def test_an_offset_leaves_the_run_and_never_the_content(offset, expected):
    assert spelled("ab0123456cd", "0123456", index=-1, scope={"text": "0123456"}, offset=offset) == expected


@ALL_KINDS
def test_a_cut_of_an_anchor_is_of_its_own_tokens(kind):
    run = tokens(kind, SENTENCE, "tomorrow is", all=True, scope=THURSDAY)
    assert tokens(kind, SENTENCE, "tomorrow is", index=0, scope=THURSDAY) == run[:1]
    assert tokens(kind, SENTENCE, "tomorrow is", last=2, scope=THURSDAY) == run[-2:]
    assert tokens(kind, SENTENCE, "tomorrow is", span=[0, -1], scope=THURSDAY) == run[:-1]
    assert found(kind, SENTENCE, "tomorrow is", last=len(run) + 1, scope=THURSDAY) == "out_of_range"
    assert tokens(kind, SENTENCE, "tomorrow is", index=-1, scope=THURSDAY, offset=1)[0].startswith(" ")


# chat turns

TURNS = [
    {"role": "system", "content": "  the capital is Tokyo "},
    {"role": "user", "content": "What is the capital of Spain"},
    {"role": "assistant", "content": "Madrid"},
    {"role": "user", "content": "the capital of Spain is Madrid yes"},
]
WORDS = "{% for turn in messages %}{{ turn['role'] }} answer {{ turn['content'] }} {% endfor %}{% if add_generation_prompt %}assistant answer{% endif %}"
TEMPLATES = {
    "plain": None,
    "trimming": TRIMMING,
    "words": WORDS,
    "trimming words": WORDS.replace("turn['content']", "turn['content'] | trim"),
}


def chat(kind, template, turns=TURNS):
    return make_prompt(tokenizer(kind, TEMPLATES[template]), turns)


CHATS = [(kind, template) for kind in KINDS for template in TEMPLATES if kind != "wordpiece" or "words" in template]


@pytest.mark.parametrize(("kind", "template"), CHATS)
def test_a_turn_is_what_was_said(kind, template):
    prompt = chat(kind, template)
    assert [turn.role for turn in prompt.turns] == [turn["role"] for turn in TURNS]
    assert [prompt.text[slice(*turn.span)] for turn in prompt.turns] == [turn["content"].strip() for turn in TURNS]
    assert found(kind, prompt, all=True, scope={"segment": "assistant"}).strip() == "Madrid"
    assert found(kind, prompt, all=True, scope={"segment": "system"}).strip() == "the capital is Tokyo"
    assert found(kind, prompt, all=True, scope={"segment": "user[1]"}).strip() == "the capital of Spain is Madrid yes"
    assert found(kind, prompt, all=True, scope={"segment": "user"}) == "alignment_ambiguous"
    assert found(kind, prompt, all=True, scope={"segment": "user[2]"}) == "alignment_missing"
    assert found(kind, prompt, all=True, scope={"segment": "tool"}) == "alignment_missing"
    assert prompt.text.rstrip().endswith(("<|assistant|>", "assistant answer"))


@pytest.mark.parametrize(("kind", "template"), CHATS)
def test_a_text_is_looked_for_inside_its_segment(kind, template):
    prompt = chat(kind, template)
    assert found(kind, prompt, "Madrid", all=True, scope={"text": "Madrid"}) == "alignment_ambiguous"
    assert found(kind, prompt, "Madrid", all=True, scope={"text": "Madrid", "segment": "user[1]"}).strip() == "Madrid"
    assert found(kind, prompt, "Madrid", all=True, scope={"text": "Madrid", "segment": "user[0]"}) == "alignment_missing"
    assert found(kind, prompt, "capital", all=True, scope={"text": "capital", "segment": "system"}).strip() == "capital"


@pytest.mark.parametrize("kind", FAITHFUL)
def test_an_empty_turn_has_no_token(kind):
    prompt = chat(kind, "plain", [{"role": "system", "content": " "}, {"role": "user", "content": "yes"}])
    assert found(kind, prompt, all=True, scope={"segment": "system"}) == "alignment_missing"
    assert found(kind, prompt, all=True, scope={"segment": "user"}).strip() == "yes"


def test_turns_that_say_the_same_are_told_apart():
    prompt = chat(
        "byte_level",
        "plain",
        [{"role": "user", "content": "yes"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "yes"}],
    )
    assert len({turn.span for turn in prompt.turns}) == 3
    starts = [prompt.text.index("yes")]
    for _ in range(2):
        starts.append(prompt.text.index("yes", starts[-1] + 1))
    assert [turn.span[0] for turn in prompt.turns] == starts


REFUSED = {
    "an empty conversation": ([], "expected a string, or a list of `{role, content}` strings, got `[]`"),
    "a number": (3, "expected a string, or a list of `{role, content}` strings, got `3`"),
    "a turn of other keys": (
        [{"role": "user"}],
        "expected a string, or a list of `{role, content}` strings, got the turn `{'role': 'user'}`",
    ),
    "a turn that is no text": ([{"role": "user", "content": 3}], "expected a string, or a list of `{role, content}` strings, got the turn"),
}


@pytest.mark.parametrize(("value", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_prompt_is_refused(value, message):
    with pytest.raises(PromptError) as caught:
        make_prompt(tokenizer("byte_level"), value)
    assert str(caught.value).startswith(message)


BAD_TEMPLATES = {
    "one that raises": ("{{ raise_exception('no turns') }}", "expected a conversation that the chat template accepts, got `no turns`"),
    "one that leaves out a turn": (
        "{% for turn in messages %}{% if turn['role'] != 'system' %}{{ turn['content'] }}{% endif %}{% endfor %}",
        "expected a chat template that shows every turn, got one that leaves out a turn of `system`",
    ),
    "one that changes what was said": (
        "{% for turn in messages %}{{ turn['content'] | replace('Spain', 'Japan') }}{% endfor %}",
        "expected a chat template that shows each turn's content as it is, got `",
    ),
}


@pytest.mark.parametrize(("template", "message"), BAD_TEMPLATES.values(), ids=BAD_TEMPLATES.keys())
def test_a_template_that_hides_a_turn_is_refused(template, message):
    with pytest.raises(PromptError) as caught:
        make_prompt(tokenizer("byte_level", template), TURNS)
    assert str(caught.value).startswith(message)


def test_a_conversation_needs_a_template():
    plain = KINDS["byte_level"]()
    plain.chat_template = None
    with pytest.raises(PromptError, match="this tokenizer has no chat template"):
        make_prompt(plain, TURNS)


# characters

texts = st.text(alphabet=st.sampled_from(" \n\tabyTdis,.'-é日本☃\u200d👩🚀\u0301\ufffdÀ▁Ġ#"), min_size=1, max_size=24)
pieces = st.lists(
    st.sampled_from([" Thursday", " is", "day", "日本語", "👩‍🚀", "☃", "☃☃", "é", " ", "\ufffd", "a", "b", "##", ","]),
    min_size=1,
    max_size=8,
)
rows = texts | pieces.map("".join)


def truth(tokenizer, ids, text):
    """The characters of each token of a byte-level tokenizer, from its bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    at = [place for place, character in enumerate(text) for _ in character.encode()]
    spans, n = [], 0
    for piece in tokenizer.convert_ids_to_tokens(list(ids)):
        length = len(bytes(byte_of[character] for character in piece))
        spans.append((at[n], at[n + length - 1] + 1))
        n += length
    assert n == len(at)
    return tuple(spans)


@pytest.mark.parametrize("kind", ["byte_level", "pure_bytes"])
@given(text=rows.map(lambda text: text.replace(characters.REPLACEMENT, "?")))
@settings(max_examples=150, deadline=None)
def test_the_characters_of_a_token_are_those_of_its_bytes(kind, text):
    prompt = prompt_of(kind, text)
    assert prompt.text == text
    assert prompt.spans == truth(tokenizer(kind), prompt.ids, text)


@ALL_KINDS
@given(text=rows)
@settings(max_examples=150, deadline=None)
def test_spans_cover_the_text_and_never_run_backwards(kind, text):
    prompt = prompt_of(kind, text)
    ids = prompt.ids[prompt.n_prefix :]
    assert len(prompt.spans) == len(ids)
    covered = {place for start, end in prompt.spans for place in range(start, end)}
    assert covered == set(range(len(prompt.text)))
    assert [start for start, _ in prompt.spans] == sorted(start for start, _ in prompt.spans)
    assert [end for _, end in prompt.spans] == sorted(end for _, end in prompt.spans)
    stepwise = characters._from_steps(tokenizer(kind), ids, prompt.text)
    if stepwise is not None:
        assert stepwise == characters._from_prefixes(tokenizer(kind), ids, prompt.text)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "wordpiece"])
def test_ordinary_text_is_mapped_step_by_step(kind):
    prompt = prompt_of(kind, SENTENCE + " café 日本語")
    assert characters._from_steps(tokenizer(kind), prompt.ids[prompt.n_prefix :], prompt.text) is not None


cuts = st.one_of(
    st.integers(-4, 4).map(lambda n: {"index": n}),
    st.integers(1, 4).map(lambda n: {"last": n}),
    st.tuples(st.integers(0, 3), st.integers(1, 3)).map(lambda pair: {"span": (pair[0], sum(pair))}),
    st.just({"all": True}),
)


@ALL_KINDS
@given(text=rows, data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_window_covers_the_value_and_nothing_but_the_tokens_that_overlap_it(kind, text, data):
    prompt = prompt_of(kind, text)
    if not prompt.text.strip():
        return
    start = data.draw(st.integers(0, len(prompt.text) - 1))
    end = data.draw(st.integers(start + 1, len(prompt.text)))
    value = prompt.text[start:end]
    nth = sum(prompt.text.startswith(value, place) for place in range(start))
    scope = Anchor(text=value, occurrence=nth)
    window = locate(Position(all=True, scope=scope), value, prompt)
    overlapping = [token for token, (a, b) in enumerate(prompt.spans) if max(a, start) < min(b, end)]
    assert window.tokens == tuple(range(overlapping[0], overlapping[-1] + 1))
    assert value in prompt.text_of(window.tokens)

    cut = data.draw(cuts)
    stride = None if "index" in cut else data.draw(st.sampled_from([None, 1, 2, 3]))
    offset = data.draw(st.sampled_from([None, 0, 1, -1]))
    run = list(window.tokens)
    match cut:
        case {"index": n}:
            expected = run[n:][:1] if -len(run) <= n < len(run) else []
        case {"last": n}:
            expected = run[-n:] if n <= len(run) else []
        case {"span": (first, stop)}:
            expected = run[first:stop] if stop <= len(run) else []
        case _:
            expected = run
    expected = [token + (offset or 0) for token in expected[:: stride or 1]]
    if offset and not all(0 <= token < prompt.n_content for token in expected):
        expected = []
    found = locate(Position(**cut, scope=scope, stride=stride, offset=offset), value, prompt)
    assert found.tokens == tuple(expected)
    assert found.reason == ("" if expected else "out_of_range")


def test_a_window_of_tokens_apart_has_the_text_between_them():
    prompt = Prompt((0, 1, 2), 0, "abc", ((0, 1), (1, 2), (2, 3)))
    assert prompt.text_of([0, 2]) == "abc"
    assert prompt.text_of([]) == ""
