"""Every bad input of the table is refused in words, and nothing else comes of it; and the page of them is what they were told."""

import json
import re
from functools import cache

import pytest
from bad_inputs import PAGE, bad_inputs, first_line, outcome_of, page_of, said

pytestmark = pytest.mark.tiny

CASES = bad_inputs()
FORM = re.compile(r"error: (.+: )?expected .+, got .+")
OTHER_LINES = ("error: ", "hint: ", "warning: ", "runs: ")
MAX_LINE = 1500
MAX_SECONDS = 5.0


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """Has everything imported that takes seconds, so that an input is measured alone."""
    assert said("validate", "bundled:quickstart").code == 0


@cache
def outcome(index):
    """Returns what came of an input, which is given to the program once."""
    return outcome_of(CASES[index])


def test_there_are_many_and_each_is_one_of_its_own():
    assert len(CASES) >= 250
    assert len({(case.section, case.what) for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    "index", range(len(CASES)), ids=[f"{case.section}: {case.what}".encode("ascii", "replace").decode() for case in CASES]
)
def test_a_bad_input_is_refused_in_words_and_leaves_nothing(index):
    case, found = CASES[index], outcome(index)
    assert found.code == case.code, f"{found.out}\n{found.err}"
    assert "Traceback" not in found.err
    assert found.changed == ()
    assert found.seconds < MAX_SECONDS
    if case.command[0] == "POST":
        error = json.loads(found.err)["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        return
    assert FORM.fullmatch(first_line(case, found)), found.err
    lines = found.err.splitlines()
    assert all(line.startswith(OTHER_LINES) for line in lines), found.err
    assert all(FORM.fullmatch(line) for line in lines if line.startswith("error: "))
    assert max(map(len, lines)) <= MAX_LINE


def test_the_page_is_fresh():
    fresh = page_of([(case, outcome(index)) for index, case in enumerate(CASES)])
    assert PAGE.read_text(encoding="utf-8") == fresh, "`make docs` writes it anew"
