"""Workspaces that take more disk than they may are stopped; measured on a real engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.work.stopping import StopEvent
from tests.runs.ready import ready_attempt
from tests.support.removal import remove_container
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST, Launcher
from workspaces.lifecycle.attempt_states import attempt_states
from workspaces.lifecycle.enforcement.disk_watch import EVERY, TIME_TO_TIDY, DiskWatch
from workspaces.lifecycle.teardown import DISK_LIMIT_EXCEEDED, TransitionExecutor
from workspaces.models import Attempt, RuntimeInstance, Sandbox, Transition, Workspace
from workspaces.runtimes.base import LaunchedRuntime, Volume
from workspaces.runtimes.docker import disk_use
from workspaces.runtimes.docker.engine_api import EngineConnections, own_containers

pytestmark = [pytest.mark.docker, pytest.mark.django_db(transaction=True)]
MB = 1_000_000
LIMIT = 20 * MB
HOME = Volume("home", "/home/workspace")


@dataclass
class Disks:
    """A watch with a small limit, and workspaces for it."""

    launcher: Launcher

    def ready(self, attempt: Attempt | None = None) -> tuple[Attempt, LaunchedRuntime]:
        """A workspace with a volume that runs, in rows and on the engine."""
        attempt = attempt or ready_attempt()
        request = self.launcher.request(
            attempt.run_id, workspace_id=attempt.workspace_id, volumes=(HOME,)
        )
        runtime = self.launcher.launch(request)
        RuntimeInstance.objects.filter(attempt=attempt).update(engine_id=runtime.engine_id)
        return attempt, runtime

    def write(self, runtime: LaunchedRuntime, path: str, size: int) -> None:
        told = self.launcher.inside(runtime, "sh", "-c", f"head -c {size} /dev/zero > {path}")
        assert told == (0, "")

    def look(self, max_bytes: int = LIMIT) -> None:
        watch = DiskWatch(
            self.launcher.adapter,
            instance_id=self.launcher.instance_id,
            max_bytes=max_bytes,
            image=BASE_IMAGE,
        )
        RuntimeInstance.objects.update(disk_looked_at=Now() - 2 * EVERY)
        watch.look(StopEvent())

    def stop(self) -> None:
        """Carry out the one transition that was asked for."""
        lease = timedelta(minutes=3)
        transition = Transition.objects.claim_next("worker-a", alive=None, lease=lease)
        assert transition is not None
        grace = timedelta(seconds=1)
        executor = TransitionExecutor(adapter=self.launcher.adapter, grace=grace, stale=grace)
        executor.execute(transition, threading.Event())


@pytest.fixture
def disks(launcher: Launcher) -> Iterator[Disks]:
    yield Disks(launcher)
    mine: dict[str, Any] = {"label": f"svc.instance={launcher.instance_id}"}
    for container in launcher.containers():
        remove_container(container)
    for volume in launcher.client.volumes.list(filters=mine):
        volume.remove(force=True)


def measured(attempt: Attempt) -> int:
    size = RuntimeInstance.objects.get(attempt=attempt).disk_bytes
    assert size is not None
    return size


def next_attempt(attempt: Attempt) -> Attempt:
    """Another attempt of a workspace, whose rows say that it is ready."""
    fresh = ready_attempt()
    Attempt.objects.filter(pk=fresh.pk).update(
        workspace=attempt.workspace_id, sandbox=attempt.sandbox_id
    )
    Sandbox.objects.filter(pk=attempt.sandbox_id).update(latest_attempt=fresh, status="ready")
    Workspace.objects.filter(pk=fresh.workspace_id).update(latest_sandbox=None)
    fresh.refresh_from_db()
    return fresh


def test_what_is_within_the_limit_is_measured_and_left_alone(disks: Disks) -> None:
    attempt, runtime = disks.ready()
    disks.look()
    before = measured(attempt)
    disks.write(runtime, "/workspace/some", 3 * MB)
    disks.write(runtime, "~/some", 4 * MB)
    disks.look()
    assert 7 * MB <= measured(attempt) - before < 8 * MB
    assert not Transition.objects.exists()


@pytest.mark.parametrize("path", ["/workspace/much", "~/much"], ids=["layer", "volume"])
def test_what_takes_more_is_stopped_and_its_owner_reads_how_much(disks: Disks, path: str) -> None:
    attempt, runtime = disks.ready()
    other, _ = disks.ready()
    disks.write(runtime, path, LIMIT)
    disks.look()
    transition = Transition.objects.get()
    assert (transition.workspace_id, transition.cause) == (attempt.workspace_id, "disk")
    told = f"It used {measured(attempt):,} bytes, and 20,000,000 are allowed."
    attempt.refresh_from_db()
    reason = attempt_states([attempt])[attempt.pk].reason
    assert reason is not None
    assert reason.message == f"The workspace is being stopped. {told}"

    disks.stop()
    state = attempt_states([attempt])[attempt.pk]
    assert (state.status, state.reason and state.reason.code) == ("stopped", DISK_LIMIT_EXCEEDED)
    assert state.reason is not None
    assert state.reason.message == f"The workspace uses more disk than allowed. {told}"
    assert [one.run_id for one in disks.launcher.adapter.list()] == [other.run_id]


def test_a_file_counts_as_much_as_is_in_it(disks: Disks) -> None:
    attempt, runtime = disks.ready()
    made = disks.launcher.inside(runtime, "truncate", "-s", "100G", "/workspace/holes")
    assert made == (0, "")
    disks.look()
    assert measured(attempt) < 2 * MB
    assert not Transition.objects.exists()


def test_without_a_limit_nothing_is_measured(disks: Disks) -> None:
    attempt, _ = disks.ready()
    disks.look(max_bytes=0)
    assert RuntimeInstance.objects.get(attempt=attempt).disk_bytes is None


def test_what_was_looked_at_a_moment_ago_is_not_due(disks: Disks) -> None:
    recent, never, long_ago = ready_attempt(), ready_attempt(), ready_attempt()
    for attempt, age in ((recent, EVERY / 2), (long_ago, 2 * EVERY)):
        RuntimeInstance.objects.filter(attempt=attempt).update(disk_looked_at=Now() - age)
    due = RuntimeInstance.objects.due_for_disk_look(every=EVERY)
    assert [one.attempt_id for one in due] == [never.pk, long_ago.pk]


def test_nothing_stays_of_what_counted_nor_of_a_worker_that_was_killed(disks: Disks) -> None:
    attempt, _ = disks.ready()
    disks.look()
    assert measured(attempt) > 0
    launcher = disks.launcher
    assert [one.name for one in launcher.containers()] == [f"svc-{attempt.run_id}"]

    labels = {"svc.instance": launcher.instance_id, "svc.purpose": disk_use.PURPOSE}
    launcher.client.containers.create(BASE_IMAGE, labels=labels)
    with EngineConnections(DOCKER_HOST, launcher.instance_id).connect(60) as engine:
        own_containers.remove_left(engine, disk_use.PURPOSE)
        assert len(launcher.containers()) == 2
        own_containers.remove_left(engine, disk_use.PURPOSE, oldest=-60)
    assert [one.name for one in launcher.containers()] == [f"svc-{attempt.run_id}"]


def test_one_whose_container_is_gone_keeps_no_other_from_being_measured(disks: Disks) -> None:
    gone, _ = disks.ready()
    disks.launcher.adapter.remove_containers(gone.run_id)
    attempt, _ = disks.ready()
    disks.look()
    assert measured(attempt) > 0
    assert RuntimeInstance.objects.get(attempt=gone).disk_bytes is None


def test_after_such_a_stop_there_is_time_to_remove_something(disks: Disks) -> None:
    attempt, runtime = disks.ready()
    disks.write(runtime, "~/much", LIMIT)
    disks.look()
    disks.stop()
    had = measured(attempt)

    again, runtime = disks.ready(next_attempt(attempt))
    disks.look()
    assert LIMIT < measured(again) <= had
    assert not Transition.objects.open().exists()
    launched = Now() - TIME_TO_TIDY - timedelta(seconds=1)
    RuntimeInstance.objects.filter(attempt=again).update(launched_at=launched)
    disks.look()
    assert Transition.objects.open().get().cause == "disk"


def test_the_time_to_remove_something_is_the_databases_whatever_a_workers_clock_says(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, runtime = disks.ready()
    disks.write(runtime, "~/much", LIMIT)
    disks.look()
    disks.stop()

    disks.ready(next_attempt(attempt))
    now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(hours=1))
    disks.look()
    assert not Transition.objects.open().exists()


def test_the_time_to_remove_something_is_none_to_add_more(disks: Disks) -> None:
    attempt, runtime = disks.ready()
    disks.write(runtime, "~/much", LIMIT)
    disks.look()
    disks.stop()
    _, runtime = disks.ready(next_attempt(attempt))
    disks.write(runtime, "~/more", 2 * MB)
    disks.look()
    assert Transition.objects.open().get().cause == "disk"


def test_what_an_earlier_attempt_took_stops_no_later_one(disks: Disks) -> None:
    """The worker slept between measuring and asking; others stopped it and started it again."""
    attempt, runtime = disks.ready()
    disks.write(runtime, "~/much", LIMIT)
    next_attempt(attempt)
    disks.look()
    assert measured(attempt) > LIMIT
    assert not Transition.objects.exists()


def test_a_program_inside_cannot_hide_what_it_writes(disks: Disks) -> None:
    attempt, runtime = disks.ready()
    disks.write(runtime, "~/hidden", LIMIT)
    hidden = disks.launcher.inside(
        runtime, "sh", "-c", "mkdir ~/.dark && mv ~/hidden ~/.dark && chmod 000 ~/.dark"
    )
    assert hidden == (0, "")
    disks.look()
    assert Transition.objects.get().workspace_id == attempt.workspace_id
