"""``manage.py warmpool`` shows what waits, and keeps waiting what an operator names."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from tests.workspaces.warm_pool.pools import Engine, ask, filled, start_of
from workspaces.models import WarmPlan

pytestmark = pytest.mark.django_db


def told(*arguments: str) -> str:
    output = io.StringIO()
    call_command("warmpool", *arguments, stdout=output)
    return output.getvalue()


def test_it_lists_what_was_started_what_waits_and_what_is_in_use() -> None:
    pool = filled(Engine(), 3)
    pool.claim(start_of(), ask)
    (line,) = told().splitlines()
    assert "kept: 0, waiting: 2, in use: 1" in line
    assert "256 MB, demand: 3.0" in line


def test_it_says_so_when_nothing_is_known() -> None:
    assert told().startswith("Nothing was started lately that the warm pool could serve")


def test_a_plan_is_kept_by_the_beginning_of_what_the_list_shows() -> None:
    filled(Engine(), 1)
    named = told().partition(":")[0]
    assert "kept: 2," in told(named, "--keep", "2")
    assert WarmPlan.objects.get().keep == 2
    assert "kept: 0," in told(named, "--keep", "0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "--keep", "1"), "No plan is called nothing"),
        (("", "--keep", "1"), "More than one plan"),
        (("x",), "Give a plan and --keep, or neither"),
        (("x", "--keep", "-1"), "must be 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], said: str) -> None:
    pool = filled(Engine(), 1)
    pool.note_start(start_of("registry.invalid/other@sha256:" + "3" * 64))
    with pytest.raises(CommandError, match=said):
        told(*arguments)
