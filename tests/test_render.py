"""What a run shows of its summary in the terminal."""

import pytest

from causalab_mini.cli.render import summary_table

pytestmark = pytest.mark.tiny

ENTRY = {"axes": {}, "step": "s", "metric": "words", "n": 4, "eligible": 4, "mean": None, "interval": None, "unit": "probability"}


@pytest.mark.parametrize(("kind", "mean", "shown"), [("top_k", None, "(a list a row)"), ("value", None, "–"), ("value", 0.25, "0.250")])
def test_a_mean_or_what_stands_for_it(kind, mean, shown):
    table = summary_table([ENTRY | {"kind": kind, "mean": mean}])
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["mean"] == [shown]
