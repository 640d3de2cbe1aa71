"""Every rule that is refused when a document is loaded: what is said, word by word. The cases are in `cases/errors`."""

import copy
import json
from pathlib import Path

import pytest

from causalab_mini.errors import DocumentError
from causalab_mini.plan.load import load_raw

pytestmark = pytest.mark.plain

CASES = Path(__file__).parent / "cases"
BASE = json.loads((CASES / "base.json").read_text(encoding="utf-8"))
TRAINED = json.loads((CASES / "trained.json").read_text(encoding="utf-8"))
"""What cases with `"base": "trained"` are patches of."""
ERRORS = {
    f"{file.stem}: {case['why']}": case
    for file in sorted((CASES / "errors").glob("*.json"))
    for case in json.loads(file.read_text(encoding="utf-8"))
}


def apply(base, case):
    """Returns a document with values put in (`patch`) and taken out (`without`) by path: `a/b/0`, `~1` for a slash in a name."""
    document = json.loads(json.dumps(base))
    for path, value in [*case.get("patch", {}).items(), *((path, None) for path in case.get("without", ()))]:
        if not path:
            return value
        *parents, last = [part.replace("~1", "/") for part in path.split("/")]
        here = document
        for part in parents:
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
        key = int(last) if isinstance(here, list) else last
        if path in case.get("without", ()):
            del here[key]
        else:
            here[key] = copy.deepcopy(value)
    return document


def broken(case):
    """Returns the document of a case."""
    return apply(TRAINED if case.get("base") == "trained" else BASE, case)


@pytest.mark.parametrize("base", [BASE, TRAINED])
def test_the_bases_of_all_cases_are_valid(base):
    assert list(load_raw(base).points[0].spec.steps) == list(base["steps"])


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS.keys())
def test_a_broken_rule_is_named_with_path_expected_and_got(case):
    with pytest.raises(DocumentError) as caught:
        load_raw(broken(case))
    assert caught.value.text().split("\n") == case["errors"]


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS.keys())
def test_a_refusal_as_data_has_a_code_and_the_same_words(case):
    with pytest.raises(DocumentError) as caught:
        load_raw(broken(case), Path("a.json"))
    for problem in caught.value.as_data()["errors"]:
        assert problem["file"] == "a.json"
        assert problem["code"]
        assert problem["code"] == "not_yet" or "not there yet" not in problem["got"]
        assert problem["path"] or problem["code"] in ("type", "sweep")
    assert caught.value.exit_code == 2
