"""Whatever is given to the program is taken or refused in words; what is drawn, and more of it (`make fuzz`), is in `fuzzing.py`."""

import pytest
from fuzzing import FOUND, PROPERTIES, drawn

pytestmark = pytest.mark.tiny


@pytest.mark.parametrize("name", PROPERTIES)
def test_what_is_drawn_is_taken_or_refused_in_words(name):
    drawn(name, PROPERTIES[name].n)


@pytest.mark.parametrize(("name", "value"), FOUND)
def test_what_was_once_found_is_taken_or_refused_in_words(name, value):
    PROPERTIES[name].holds(value)
