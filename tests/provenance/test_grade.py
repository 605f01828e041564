"""The grade: a pure function of facts, its order, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from xptrain.errors import ChangedError, InexactError, UsageError
from xptrain.provenance.diff.difference import Difference
from xptrain.provenance.grade import Grade, admit, assess, require
from xptrain.provenance.hazards import Hit, check

WRONG = check({"PYTHONHASHSEED": "0"}, {"jaxlib": "0.10.2"})
INFO = check({}, {})
JAXLIB = Difference("packages", "jaxlib", "0.10.1", "0.12.0", "refuse")
LEVELS = ("approximate", "same-topology", "exact")


@pytest.mark.parametrize(
    ("facts", "level", "reason"),
    [
        ({}, "exact", None),
        ({"devices": 8}, "same-topology", "8 devices"),
        ({"devices": 8, "processes": 2}, "same-topology", "8 devices in 2 processes"),
        ({"hazards": WRONG}, "approximate", "this jaxlib computes wrong sums"),
        ({"hazards": INFO}, "exact", None),
        ({"not_captured": ["a generator has no state"]}, "approximate", "a generator has no state"),
        ({"allowed": ["packages changed: jaxlib"]}, "approximate", "packages changed"),
        ({"notes": ["data digest of a sample"]}, "exact", "data digest of a sample"),
        ({"devices": 2, "not_captured": ["x"]}, "approximate", "x"),
    ],
)
def test_the_grade_follows_from_the_facts(facts: dict[str, Any], level: str, reason: str | None) -> None:
    grade = assess(**facts)
    assert grade.level == level
    assert (reason is None and not grade.reasons) or any(reason in text for text in grade.reasons)


def test_a_grade_never_rises_and_says_each_reason_once() -> None:
    for first, second in itertools.product(LEVELS, LEVELS):
        lowered = Grade(first, ("a",)).lower(second, "a", "b")
        assert LEVELS.index(lowered.level) == min(LEVELS.index(first), LEVELS.index(second))
        assert lowered.reasons == ("a", "b")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("exactness", "least"), [("exact", 2), ("same-topology", 1), ("any", 0)])
def test_what_is_asked_for_is_required(level: str, exactness: str, least: int) -> None:
    grade = Grade(level, ("because",))
    if LEVELS.index(level) >= least:
        require(grade, exactness)
        return
    with pytest.raises(InexactError) as error:
        require(grade, exactness)
    assert "because" in str(error.value)
    accepted = "same-topology" if level == "same-topology" else "any"
    assert f"exactness='{accepted}'" in str(error.value)


def test_an_unknown_exactness() -> None:
    with pytest.raises(UsageError, match="exactness"):
        require(Grade("exact"), "nearly")


def test_what_is_allowed_by_name_lowers_the_grade_but_is_not_refused() -> None:
    grade = admit(exactness="exact", allow=["packages", "hazards"], hazards=WRONG, differences=[JAXLIB])
    assert grade.level == "approximate"
    assert any("jaxlib: 0.10.1 -> 0.12.0" in reason for reason in grade.reasons)
    assert any("wrong sums" in reason for reason in grade.reasons)


def test_what_is_not_allowed_is_refused() -> None:
    with pytest.raises(ChangedError):
        admit(exactness="any", differences=[JAXLIB])
    with pytest.raises(InexactError, match="wrong sums"):
        admit(exactness="same-topology", hazards=WRONG)
    with pytest.raises(InexactError, match="no state"):
        admit(exactness="same-topology", allow=["hazards"], not_captured=["no state"])
    with pytest.raises(UsageError):
        admit(exactness="any", allow=["everything"])
    assert admit(exactness="any", hazards=WRONG, not_captured=["no state"]).level == "approximate"


def test_text_and_json() -> None:
    grade = Grade("same-topology", ("8 devices",))
    assert str(grade) == "exact on the same topology: 8 devices"
    assert Grade.from_json(grade.as_json()) == grade
    with pytest.raises(UsageError):
        Grade.from_json({"level": "superb", "reasons": []})


def test_hits_are_json() -> None:
    assert Hit(**WRONG[0].as_json()) == WRONG[0]
