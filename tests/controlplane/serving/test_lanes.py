"""Calls of workspaces' files wait for threads so that others always find one."""

from __future__ import annotations

import pytest

from controlplane.serving.lanes import MOST_WAITING, Lanes, lane_of

PATHS = {
    "/v1/workspaces/a/files": "a",
    "/v1/workspaces/a/files/stat": "a",
    "/v1/workspaces/b/archive": "b",
    "/v1/workspaces/b/ports": "b",
    "/v1/workspaces/a/filesystem": "",
    "/v1/workspaces/a/exec": "",
    "/v1/workspaces/a": "",
    "/v1/workspaces//files": "",
    "/v1/runs/a/files": "",
}


@pytest.mark.parametrize(("path", "workspace"), PATHS.items())
def test_what_is_about_files_or_ports_has_its_workspaces_lane(path: str, workspace: str) -> None:
    assert lane_of(path) == workspace


def entered(lanes: Lanes[str], *items: str) -> list[str]:
    """Enter requests named after their workspace and number; return those that start."""
    return [item for item in items if lanes.enter(item, item[0]).start]


def test_one_workspace_has_a_quarter_of_the_threads_and_all_have_half() -> None:
    lanes: Lanes[str] = Lanes(8)
    assert entered(lanes, "a1", "a2", "a3", "b1", "a4", "b2", "b3", "c1") == [
        "a1",
        "a2",
        "b1",
        "b2",
    ]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_of_few_threads_one_is_had(threads: int) -> None:
    lanes: Lanes[str] = Lanes(threads)
    assert entered(lanes, "a1", "b1") == ["a1"]
    assert lanes.leave("a1") == ["b1"]


def test_those_that_wait_start_in_order_when_one_of_theirs_is_done() -> None:
    lanes: Lanes[str] = Lanes(8)
    assert entered(lanes, "a1", "a2", "a3", "a4") == ["a1", "a2"]
    assert lanes.leave("a2") == ["a3"]
    assert entered(lanes, "b1", "b2", "b3") == ["b1", "b2"]
    assert lanes.leave("a1") == ["a4"]
    assert lanes.leave("b1") == ["b3"]
    assert lanes.leave("a3") == []


def test_workspaces_take_turns() -> None:
    lanes: Lanes[str] = Lanes(4)
    assert entered(lanes, "a1", "b1", "a2", "a3", "c1", "c2") == ["a1", "b1"]
    assert lanes.leave("a1") == ["a2"]
    assert lanes.leave("a2") == ["c1"]
    assert lanes.leave("c1") == ["a3"]
    assert lanes.leave("a3") == ["c2"]


def test_who_comes_later_does_not_overtake() -> None:
    lanes: Lanes[str] = Lanes(4)
    assert entered(lanes, "a1", "b1", "c1") == ["a1", "b1"]
    assert lanes.leave("b1") == ["c1"]
    assert entered(lanes, "a2") == []
    assert lanes.leave("c1") == []
    assert entered(lanes, "a3") == []
    assert lanes.leave("a1") == ["a2"]


def test_who_leaves_while_it_waits_is_not_started() -> None:
    lanes: Lanes[str] = Lanes(4)
    assert entered(lanes, "a1", "a2", "a3") == ["a1"]
    assert lanes.leave("a2") == []
    assert lanes.leave("a2") == []
    assert lanes.leave("a1") == ["a3"]


def test_more_than_so_many_of_one_workspace_do_not_wait() -> None:
    lanes: Lanes[str] = Lanes(4)
    for number in range(MOST_WAITING + 1):
        assert not lanes.enter(f"a{number}", "a").refused
    assert lanes.enter("a", "a").refused
    assert lanes.leave("a") == []
    assert not lanes.enter("b", "b").refused
    assert lanes.leave("a0") == ["a1"]
    assert not lanes.enter("a", "a").refused


def test_none_is_started_when_all_of_it_ends() -> None:
    lanes: Lanes[str] = Lanes(4)
    assert entered(lanes, "a1", "a2", "b1", "c1") == ["a1", "b1"]
    lanes.stop()
    assert [lanes.leave(item) for item in ("a1", "b1", "a2")] == [[], [], []]
