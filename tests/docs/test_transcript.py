"""How what is printed is held against what a page shows."""

from __future__ import annotations

import pytest

from tests.docs.transcript import difference

ONE = "01a202ed-f50c-71dd-8e3f-9d5589fa706a"
TWO = "01a202ed-f4fa-74dc-a1ac-2018e5b59bb8"
THREE = "01a202ed-f512-731c-9550-333a2a5a4e05"


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ([], ""),
        (["a", "b"], "a\nb\n"),
        (["a", "b"], "a\nb"),
        (["a … c"], "a b c"),
        (["…", "z"], "a\nb\nz\n"),
        (["…", "z"], "z\n"),
        (["at 2026-11-22T11:04:39.046Z."], "at 2027-01-01T00:00:00Z."),
        ([f"{ONE} {ONE}"], f"{TWO} {TWO}"),
        (["sha256:" + "0" * 64], "sha256:" + "9f" * 32),
        (["SHA256:" + "A" * 43], "SHA256:" + "b+" * 21 + "c"),
        (["a.b (c) [d]"], "a.b (c) [d]"),
    ],
)
def test_what_may_differ_may_differ(shown: list[str], printed: str) -> None:
    assert difference(shown, printed, {}) == ""


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ([], "a"),
        (["a"], ""),
        (["a"], "a\nb"),
        (["a … c"], "a b\nc"),
        (["a.b"], "axb"),
        ([ONE], "none"),
        ([f"{ONE} {ONE}"], f"{TWO} {THREE}"),
        (["2026-11-22T11:04:39.046Z"], "yesterday"),
    ],
)
def test_what_may_not_differ_is_told(shown: list[str], printed: str) -> None:
    assert difference(shown, printed, {}) != ""


def test_an_id_is_the_same_one_on_the_whole_page() -> None:
    known: dict[str, str] = {}
    assert difference([f"made {ONE}"], f"made {TWO}", known) == ""
    assert known == {ONE: TWO}
    assert difference([f"read {ONE}"], f"read {TWO}", known) == ""
    assert "not the one" in difference([ONE], ONE, known)
    assert difference([ONE], THREE, known) != ""
