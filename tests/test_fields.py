"""Paths into a row."""

import pytest

from causalab_mini.data.fields import MISSING, parse_field

pytestmark = pytest.mark.plain

ROW = {
    "input": "a",
    "counterfactual_inputs": ["b", {"text": "c"}],
    "deep": {"list": [[1, [2]]], "null": None, "with-dash": "d"},
    "counterfactual_inputs_variables": [{"entity": "e"}],
    "input_variables": {"entity": "f"},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("input", "a"),
        ("counterfactual_inputs[0]", "b"),
        ("counterfactual_inputs[1].text", "c"),
        ("deep.list[0][1][0]", 2),
        ("deep.with-dash", "d"),
        ("deep.null", None),
        ("nothing", MISSING),
        ("input.inside", MISSING),
        ("input[0]", MISSING),
        ("deep[0]", MISSING),
        ("deep.list.x", MISSING),
        ("counterfactual_inputs[2]", MISSING),
    ],
)
def test_a_path_leads_to_a_value_or_to_nothing(text, value):
    field = parse_field(text)
    assert field.get(ROW) == value
    assert str(field) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "1a",
        "a.",
        ".a",
        "a..b",
        "a[]",
        "a[-1]",
        "a[x]",
        "a[0",
        "a]",
        "[0]",
        "a[0]b",
        "a/b",
        "é",
        "a\n",
        "a[٣]",
        f"a[{'9' * 5000}]",
    ],
)
def test_what_is_no_path_is_none(text):
    assert parse_field(text) is None


@pytest.mark.parametrize(
    ("field", "place", "value"),
    [("counterfactual_inputs[0]", "counterfactual_inputs_variables[0].entity", "e"), ("input", "input_variables.entity", "f")],
)
def test_a_variable_stands_in_the_sibling_of_the_fields_first_name(field, place, value):
    variable = parse_field(field).variable("entity")
    assert str(variable) == place
    assert variable.get(ROW) == value
