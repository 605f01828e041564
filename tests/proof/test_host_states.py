"""Which parts of two host states count when a replay is compared with its run."""

from __future__ import annotations

from typing import Any

import pytest

from xptrain.analysis.proof.comparing import differing_host


def host(settings: Any = 1, held: Any = 1, session: Any = 1) -> dict[str, Any]:
    entry = {"name": "Own", "settings": settings, "csv": settings, "state": {"settings": held, "csv": 0.5}}
    return {"session": session, "python": {"callbacks": [entry], "numpy": [1, float("nan")]}}


def test_what_a_callback_was_made_with_and_the_session_do_not_count() -> None:
    assert differing_host(host(), host(settings="elsewhere", session=2)) == []


@pytest.mark.parametrize("inside", [lambda h: h, lambda h: {"end": h}, lambda h: {"parts": [h, host()]}])
def test_an_attribute_of_the_name_settings_counts(inside: Any) -> None:
    found = differing_host(inside(host()), inside(host(held=2)))
    assert [place.partition("python/")[2] for place in found] == ["callbacks/0/state/settings"]


def test_what_only_one_of_them_has_counts() -> None:
    other = host()
    other["python"]["random"] = 1
    assert differing_host(host(), other) == ["python/random"]
