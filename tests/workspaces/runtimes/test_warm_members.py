"""Containers of the warm pool: launched for nobody, and taken by one run each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.workspaces.conftest import Launcher
from tests.workspaces.runtimes.test_docker_adapter_races import only_container
from workspaces.runtimes import boot
from workspaces.runtimes.base import ClaimedMember, LaunchRequest

pytestmark = pytest.mark.docker


def warmed(launcher: Launcher) -> ClaimedMember:
    """A container that waits for the run that takes it."""
    member_id = uuid4()
    request = launcher.request(member_id, unbound=True, attempt_count=0, outbound=True)
    runtime = launcher.launch(replace(request, boot=boot.UNBOUND_CONFIGURATION))
    return ClaimedMember(member_id, runtime.engine_id)


def taking(launcher: Launcher, member: ClaimedMember, **changes: Any) -> LaunchRequest:
    return launcher.request(outbound=True, member=member, **changes)


def phase_of(launcher: Launcher, run_id: UUID) -> str:
    answer = launcher.adapter.call_agent(run_id, ("status",), timeout=20)
    status = boot.parse_status(answer.stdout)
    assert status is not None
    return status.phase


def test_a_member_waits_and_becomes_the_container_of_the_run_that_takes_it(
    launcher: Launcher,
) -> None:
    member = warmed(launcher)
    assert phase_of(launcher, member.member_id) == "unbound"

    request = taking(launcher, member, boot={"env": {"GREETING": "hello"}})
    runtime = launcher.launch(request)

    assert runtime.resource_id == only_container(launcher)
    assert runtime.reference == f"svc-{request.run_id}"
    assert runtime.engine_id == member.engine_id
    assert phase_of(launcher, request.run_id) == "ready"
    assert launcher.adapter.observe(member.member_id) is None
    observed = launcher.adapter.observe(request.run_id)
    assert observed is not None
    assert observed.resource_id == runtime.resource_id
    assert [each.run_id for each in launcher.adapter.list()] == [request.run_id]


def test_what_was_taken_is_removed_with_its_run_and_leaves_nothing(launcher: Launcher) -> None:
    member = warmed(launcher)
    request = taking(launcher, member)
    launcher.launch(request)

    assert not launcher.adapter.remove(member.member_id)
    only_container(launcher)
    assert launcher.adapter.remove(request.run_id)
    assert launcher.left_over() == []
