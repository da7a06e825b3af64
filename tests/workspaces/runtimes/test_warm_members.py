"""Containers of the warm pool: launched for nobody, and taken by one run each."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import docker
import pytest

from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST, Launcher, step
from tests.workspaces.runtimes.test_docker_adapter_races import Racer, only_container
from workspaces.runtimes import boot
from workspaces.runtimes.base import ClaimedMember, LaunchError, LaunchRequest
from workspaces.runtimes.docker import DockerAdapter

pytestmark = pytest.mark.docker


def warmed(launcher: Launcher, *, outbound: bool = True) -> ClaimedMember:
    """A container that waits for the run that takes it."""
    member_id = uuid4()
    request = launcher.request(member_id, unbound=True, attempt_count=0, outbound=outbound)
    runtime = launcher.launch(replace(request, boot=boot.UNBOUND_CONFIGURATION))
    return ClaimedMember(member_id, runtime.engine_id)


def taking(launcher: Launcher, member: ClaimedMember, **changes: Any) -> LaunchRequest:
    return launcher.request(**{"outbound": True, "member": member, **changes})


@pytest.fixture(scope="module")
def waiting(
    docker_client: docker.DockerClient, workspace_image: str
) -> Iterator[tuple[Launcher, ClaimedMember]]:
    """One that nothing here is to bind."""
    instance_id = str(uuid4())
    adapter = DockerAdapter(DOCKER_HOST, instance_id)
    launcher = Launcher(adapter, docker_client, workspace_image, instance_id)
    member = warmed(launcher, outbound=False)
    yield launcher, member
    adapter.remove(member.member_id)


def phase_of(launcher: Launcher, run_id: UUID) -> str:
    answer = launcher.adapter.call_agent(run_id, ("status",), timeout=LONG_WAIT)
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


def test_a_member_without_a_network_becomes_a_workspace_without_one(launcher: Launcher) -> None:
    member = warmed(launcher, outbound=False)
    runtime = launcher.launch(taking(launcher, member, outbound=False))
    assert runtime.resource_id == only_container(launcher)
    assert launcher.inside(runtime, "bash", "-c", "echo < /dev/tcp/192.0.2.1/80")[0] != 0
    assert launcher.networks() == []


def test_its_steps_run_as_in_any_other_workspace(launcher: Launcher) -> None:
    member = warmed(launcher)
    boots = {"setup": [step("echo $SVC_RUN_ID > made")], "startup": [step("echo again >> made")]}
    request = taking(launcher, member, boot=boots)
    runtime = launcher.launch(request)
    assert launcher.inside(runtime, "cat", "/workspace/repo/made") == (
        0,
        f"{request.run_id}\nagain\n",
    )


def test_a_step_that_fails_is_the_failure_of_the_launch(launcher: Launcher) -> None:
    member = warmed(launcher)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(taking(launcher, member, boot={"setup": [step("exit 7", "seven")]}))
    assert caught.value.code == "step-failed"
    assert "seven" in caught.value.message
    assert launcher.left_over() == []


def test_credentials_are_delivered_to_it_as_late_as_to_any_other(launcher: Launcher) -> None:
    member = warmed(launcher)
    account = {
        "id": str(uuid4()),
        "provider": "generic",
        "name": "MY_KEY",
        "secret": "correct-horse",
    }
    document = json.dumps({"version": 1, "accounts": [account]}).encode()
    boots = {"credentials": True, "startup": [step('test "$MY_KEY" = correct-horse')]}
    request = taking(launcher, member, boot=boots, credentials=lambda: document)
    assert launcher.launch(request).resource_id == only_container(launcher)


# ---------------------------------------------------------------- what is not as it should be


def test_one_that_has_ended_while_it_waited_makes_a_cold_start(launcher: Launcher) -> None:
    member = warmed(launcher)
    launcher.client.containers.get(f"svc-{member.member_id}").kill()
    request = taking(launcher, member)
    runtime = launcher.launch(request)
    assert phase_of(launcher, request.run_id) == "ready"
    assert {container.name for container in launcher.containers()} == {
        f"svc-{member.member_id}",
        runtime.reference,
    }


def test_one_that_does_not_answer_is_removed_and_makes_a_cold_start(launcher: Launcher) -> None:
    member = warmed(launcher)
    waiting = launcher.client.containers.get(f"svc-{member.member_id}")
    os.kill(waiting.attrs["State"]["Pid"], signal.SIGSTOP)
    # It may have been bound all the same, and then its record tells what its steps did.
    collected: list[object] = []
    request = replace(taking(launcher, member), collect=collected.append)
    runtime = launcher.launch(request)
    assert len(collected) == 1
    assert runtime.resource_id == only_container(launcher) != waiting.id
    assert phase_of(launcher, request.run_id) == "ready"


def test_one_that_another_run_has_is_left_alone(launcher: Launcher) -> None:
    member = warmed(launcher)
    first = taking(launcher, member)
    owned = launcher.launch(first)
    second = launcher.launch(taking(launcher, member))
    assert second.resource_id != owned.resource_id
    assert phase_of(launcher, first.run_id) == "ready"


def test_an_agent_that_is_bound_is_never_bound_to_another_run(launcher: Launcher) -> None:
    member = warmed(launcher)
    request = taking(launcher, member)
    launcher.launch(request)
    other = launcher.request()
    document = boot.binding(f"9-{uuid4().hex}", other.boot)
    answer = launcher.adapter.call_agent(
        request.run_id, boot.BIND, stdin=document, timeout=LONG_WAIT
    )
    assert answer.exit_code == 4
    told = launcher.adapter.call_agent(request.run_id, ("status",), timeout=LONG_WAIT).stdout
    assert json.loads(told)["runId"] == str(request.run_id)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"version": 1, "marker": "../../x", "config": {}}',
        b'{"version": 1, "marker": "1-0123456789abcdef0123456789abcdef", "config": {"version": 1}}',
    ],
)
def test_a_document_that_makes_no_sense_leaves_it_waiting(
    waiting: tuple[Launcher, ClaimedMember], document: bytes
) -> None:
    launcher, member = waiting
    answer = launcher.adapter.call_agent(
        member.member_id, boot.BIND, stdin=document, timeout=LONG_WAIT
    )
    assert answer.exit_code == 2
    assert phase_of(launcher, member.member_id) == "unbound"


@pytest.mark.parametrize("subcommand", ["exec", "session", "files"])
def test_nothing_runs_in_it_before_it_is_somebodys(
    waiting: tuple[Launcher, ClaimedMember], subcommand: str
) -> None:
    launcher, member = waiting
    answer = launcher.adapter.call_agent(
        member.member_id, (subcommand,), stdin=b"{}", timeout=LONG_WAIT
    )
    assert answer.exit_code != 0
    assert phase_of(launcher, member.member_id) == "unbound"


# ---------------------------------------------------------------- workers that die on the way


def test_a_launch_that_died_before_it_took_its_member_is_gone_on_with(launcher: Launcher) -> None:
    member = warmed(launcher)
    runtime = launcher.launch(taking(launcher, member, attempt_count=2))
    assert runtime.resource_id == only_container(launcher)


def test_one_that_died_after_the_new_name_is_gone_on_with(launcher: Launcher) -> None:
    member = warmed(launcher)
    request = taking(launcher, member, attempt_count=2)
    launcher.client.containers.get(f"svc-{member.member_id}").rename(f"svc-{request.run_id}")
    runtime = launcher.launch(request)
    assert runtime.resource_id == only_container(launcher)
    assert phase_of(launcher, request.run_id) == "ready"


def test_one_that_died_after_the_binding_is_gone_on_with(launcher: Launcher) -> None:
    member = warmed(launcher)
    request = taking(launcher, member)
    taken = launcher.launch(request)
    again = launcher.launch(replace(request, attempt_count=2))
    assert again.resource_id == taken.resource_id == only_container(launcher)


def test_an_older_launch_touches_nothing_of_a_newer_one_that_took_the_member(
    launcher: Launcher,
) -> None:
    member = warmed(launcher)
    request = taking(launcher, member, attempt_count=2)
    newer = launcher.launch(request)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(replace(request, attempt_count=1))
    assert caught.value.code == "launch-superseded"
    assert newer.resource_id == only_container(launcher)


def test_an_older_launch_does_not_take_it_beside_what_a_newer_one_has_made(
    launcher: Launcher,
) -> None:
    member = warmed(launcher)
    request = taking(launcher, member, attempt_count=2)
    newer = launcher.launch(replace(request, member=None))
    with pytest.raises(LaunchError) as caught:
        launcher.launch(replace(request, attempt_count=1))
    assert caught.value.code == "launch-superseded"
    assert phase_of(launcher, member.member_id) == "unbound"
    observed = launcher.adapter.observe(request.run_id)
    assert observed is not None
    assert observed.resource_id == newer.resource_id


def test_launches_of_different_claims_at_once_end_with_one_container(launcher: Launcher) -> None:
    member = warmed(launcher)
    request = taking(launcher, member)
    racers = [Racer(launcher, replace(request, attempt_count=count)) for count in (1, 2, 3)]
    for racer in racers:
        racer.join()
    newest = racers[-1]
    assert newest.error is None
    assert newest.runtime is not None
    observed = launcher.adapter.observe(request.run_id)
    assert observed is not None
    assert observed.resource_id == newest.runtime.resource_id
    ours = [one for one in launcher.containers() if one.name == f"svc-{request.run_id}"]
    assert len(ours) == 1
    for older in racers[:-1]:
        assert older.runtime == newest.runtime or older.error is not None


# ---------------------------------------------------------------- what may wait for what


@pytest.mark.parametrize(
    "change",
    [
        {"memory_mb": 512},
        {"cpus": 2.0},
        {"pids": 64},
        {"sudo": True},
        {"outbound": True},
        {"oci_runtime": "runsc"},
        {"image": f"other.invalid/image@sha256:{'0' * 64}"},
    ],
)
def test_what_cannot_be_changed_of_a_container_makes_another_key(
    launcher: Launcher, change: dict[str, Any]
) -> None:
    request = launcher.request()
    key = launcher.adapter.warm_key
    assert key(replace(request, **change)) != key(request)


def test_who_starts_and_what_is_told_to_the_agent_make_no_other_key(launcher: Launcher) -> None:
    one, other = launcher.request(), launcher.request(boot={"env": {"A": "1"}}, attempt_count=3)
    other = replace(
        other, image=f"elsewhere.invalid/of/another/owner@{one.image.partition('@')[2]}"
    )
    assert launcher.adapter.warm_key(one) == launcher.adapter.warm_key(other)
