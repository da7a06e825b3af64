"""However launches of one run meet, one live container is left and the newest launch has it."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest
from docker.api.client import APIClient
from docker.errors import APIError, NotFound
from docker.types import Mount

from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import Launcher, step
from tests.workspaces.runtimes.runtime_suite import HOME
from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchedRuntime, LaunchError, LaunchRequest
from workspaces.runtimes.docker import launch as launching

pytestmark = pytest.mark.docker


@dataclass
class Racer:
    """A launch in a thread of its own, as another worker would do it."""

    launcher: Launcher
    request: LaunchRequest
    cancelled: threading.Event = field(default_factory=threading.Event)
    runtime: LaunchedRuntime | None = None
    error: LaunchError | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.runtime = self.launcher.adapter.launch(self.request, cancelled=self.cancelled)
        except LaunchError as error:
            self.error = error

    def join(self) -> Racer:
        self.thread.join(LONG_WAIT)
        assert not self.thread.is_alive()
        return self


class Meanwhile(threading.Event):
    """Looks like a cancel flag; at one look of the launch at it, something else happens first."""

    def __init__(self, when: Callable[[], object], happen: Callable[[], object]) -> None:
        super().__init__()
        self._when = when
        self._happen: Callable[[], object] | None = happen

    def is_set(self) -> bool:
        if self._happen is not None and self._when():
            happen, self._happen = self._happen, None
            happen()
        return super().is_set()


def until(condition: Callable[[], object], seconds: float = LONG_WAIT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(launcher: Launcher, run_id: UUID) -> bool:
    observed = launcher.adapter.observe(run_id)
    return observed is not None and observed.running


UNTIL_LET_GO = "until [ -e /tmp/go ]; do sleep 0.1; done"
HELD = step(UNTIL_LET_GO)
"""A step that goes on until somebody lets it end."""


def let_go(launcher: Launcher) -> None:
    """Let the step end that is held."""
    (container,) = launcher.containers()
    container.exec_run(["touch", "/tmp/go"])


def let_all_go(launcher: Launcher, racer: Racer) -> bool:
    """Let it end in all containers; whether the racer has ended.

    Who adopts a container that is being discarded makes another one.
    """
    for container in launcher.containers():
        with contextlib.suppress(APIError):  # it has ended meanwhile
            container.exec_run(["touch", "/tmp/go"])
    return not racer.thread.is_alive()


def adopted_by(launcher: Launcher, attempt_count: int) -> bool:
    """Whether a launch of that count has left its marker in the container."""
    (container,) = launcher.containers()
    try:
        chunks, _ = container.get_archive(boot.MARKER_DIRECTORY)
    except NotFound:
        return False
    return attempt_count in [count for count, _ in boot.archived_markers(chunks)]


def only_container(launcher: Launcher) -> str:
    """The id of the one container there is; its network is the only one, too."""
    (container,) = launcher.containers()
    assert container.status == "running"
    assert len(launcher.networks()) <= 1
    return str(container.id)


def test_a_container_of_another_image_is_replaced(
    launcher: Launcher, publish: Callable[[str], str]
) -> None:
    request = launcher.request(outbound=True)
    first = launcher.launch(request)
    base = launcher.client.images.get(launcher.image)
    image = publish(f"FROM {base.id}\nLABEL other=yes\n")
    second = launcher.launch(replace(request, attempt_count=2, image=image))
    assert second.resource_id != first.resource_id
    assert only_container(launcher) == second.resource_id


@pytest.mark.parametrize("newer_by", [0, 1])
def test_a_container_that_a_dead_worker_never_started_is_replaced(
    launcher: Launcher, newer_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "UNSTARTED_SECONDS", 1.0)
    request = launcher.request(attempt_count=2)
    dead = launcher.client.containers.create(
        launcher.image,
        name=f"svc-{request.run_id}",
        labels={
            "svc.instance": launcher.instance_id,
            "svc.run": str(request.run_id),
            "svc.job": str(request.job_id),
            "svc.attempt-count": str(2 - newer_by),
        },
    )
    runtime = launcher.launch(request)
    assert runtime.resource_id != dead.id
    assert only_container(launcher) == runtime.resource_id


def test_what_a_worker_left_that_died_while_discarding_is_removed(launcher: Launcher) -> None:
    request = launcher.request()
    first = launcher.launch(request)
    launcher.container(first).rename(f"{first.reference}-discarded-0123abcd")
    observed = launcher.adapter.observe(request.run_id)
    assert observed is not None
    assert observed.resource_id == first.resource_id

    second = launcher.launch(replace(request, attempt_count=2))
    assert second.resource_id != first.resource_id
    assert only_container(launcher) == second.resource_id


def test_a_newer_launch_adopts_a_boot_in_progress_and_survives_the_end_of_the_older_one(
    launcher: Launcher,
) -> None:
    request = launcher.request(outbound=True, boot={"setup": [HELD]})
    older = Racer(launcher, request)
    until(lambda: running(launcher, request.run_id))
    newer = Racer(launcher, replace(request, attempt_count=2))
    until(lambda: adopted_by(launcher, 2))
    older.cancelled.set()

    older.join()
    let_go(launcher)
    assert older.error is not None
    assert older.error.code == "launch-cancelled"
    newer.join()
    assert newer.runtime is not None
    assert only_container(launcher) == newer.runtime.resource_id


def test_an_adopted_boot_that_fails_is_a_failure_of_both_and_leaves_nothing(
    launcher: Launcher,
) -> None:
    request = launcher.request(
        outbound=True, boot={"setup": [step(f"{UNTIL_LET_GO}; exit 6", "six")]}
    )
    older = Racer(launcher, request)
    until(lambda: running(launcher, request.run_id))
    newer = Racer(launcher, replace(request, attempt_count=2))
    until(lambda: adopted_by(launcher, 2))
    until(lambda: let_all_go(launcher, newer))
    older.join()
    assert newer.error is not None
    assert newer.error.code == "step-failed"
    assert older.error is not None
    assert older.error.code in ("step-failed", "launch-superseded", "container-exited")
    assert launcher.left_over() == []


def test_a_container_removed_behind_our_back_fails_the_launch_that_waited_for_it(
    launcher: Launcher,
) -> None:
    request = launcher.request(outbound=True, boot={"setup": [HELD]})
    racer = Racer(launcher, request)
    until(lambda: running(launcher, request.run_id))
    assert launcher.adapter.remove(request.run_id)
    racer.join()
    assert racer.error is not None
    assert racer.error.code == "container-exited"
    assert "removed" in racer.error.message
    assert launcher.left_over() == []


def test_launches_of_the_same_claim_at_once_end_with_one_container(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "UNSTARTED_SECONDS", LONG_WAIT)
    request = launcher.request(outbound=True)
    racers = [Racer(launcher, request) for _ in range(3)]
    results = {racer.join().runtime for racer in racers}
    assert [racer.error for racer in racers] == [None] * 3
    (runtime,) = results
    assert runtime is not None
    assert only_container(launcher) == runtime.resource_id


def test_launches_of_different_claims_at_once_leave_the_newest_its_container(
    launcher: Launcher,
) -> None:
    request = launcher.request(outbound=True)
    racers = [Racer(launcher, replace(request, attempt_count=count)) for count in (1, 2, 3)]
    for racer in racers:
        racer.join()
    newest = racers[-1]
    assert newest.error is None
    assert newest.runtime is not None
    assert only_container(launcher) == newest.runtime.resource_id
    for older in racers[:-1]:
        assert older.runtime == newest.runtime or older.error is not None
        if older.error is not None:
            # It may look while its container is gone and the newer one's is not there yet.
            assert older.error.code in ("launch-superseded", "container-exited")


def test_a_container_that_is_being_discarded_is_not_adopted(launcher: Launcher) -> None:
    request = launcher.request(outbound=True)
    first = launcher.launch(request)

    def begin_to_discard() -> None:
        launcher.container(first).rename(f"{first.reference}-discarded-0123abcd")

    seen = Meanwhile(lambda: launcher.container(first).name == first.reference, begin_to_discard)
    second = launcher.launch(replace(request, attempt_count=2), seen)
    assert second.resource_id != first.resource_id
    assert [container.id for container in launcher.containers()] == [second.resource_id]


def test_a_container_that_was_adopted_is_not_discarded(launcher: Launcher) -> None:
    request = launcher.request(outbound=True, boot={"setup": [HELD]})
    adopted: list[LaunchedRuntime] = []

    def adopt_and_cancel() -> None:
        let_go(launcher)
        adopted.append(launcher.launch(replace(request, attempt_count=2)))
        older.set()

    older = Meanwhile(lambda: running(launcher, request.run_id), adopt_and_cancel)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(request, older)
    assert caught.value.code == "launch-cancelled"
    assert only_container(launcher) == adopted[0].resource_id
    assert launcher.container(adopted[0]).name == adopted[0].reference


def test_a_name_that_the_engine_refuses_without_showing_whose_it_is_is_waited_for(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    create: Any = APIClient.create_container_from_config
    refused: list[int | None] = []

    def beside_another(api: APIClient, config: Any, name: str, *more: Any) -> Any:
        """Create while another launch, too early to be seen, has the name; twelve times."""
        if len(refused) == 12:
            return create(api, config, name, *more)
        other = create(api, config, name, *more)
        try:
            return create(api, config, name, *more)
        except APIError as error:
            refused.append(error.status_code)
            raise
        finally:
            api.remove_container(other["Id"])

    monkeypatch.setattr(APIClient, "create_container_from_config", beside_another)
    runtime = launcher.launch(launcher.request())
    assert refused == [409] * 12
    assert only_container(launcher) == runtime.resource_id


def test_volumes_that_another_launch_still_has_are_waited_for(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = launcher.request(volumes=(HOME,), fresh_volumes=True)
    launcher.launch(request)
    launcher.adapter.remove(request.run_id)
    mine = {"label": f"svc.instance={launcher.instance_id}"}
    (volume,) = launcher.client.volumes.list(filters=mine)
    mounts = [Mount("/home", volume.name)]
    other = launcher.client.containers.create(request.image, mounts=mounts)
    remove: Any = APIClient.remove_volume
    refused: list[int | None] = []

    def while_it_is_used(api: APIClient, name: str) -> Any:
        try:
            return remove(api, name)
        except APIError as error:
            refused.append(error.status_code)
            other.remove()
            raise

    monkeypatch.setattr(APIClient, "remove_volume", while_it_is_used)
    runtime = launcher.launch(replace(request, attempt_count=2))
    assert refused == [409]
    assert only_container(launcher) == runtime.resource_id


def test_a_container_that_a_newer_launch_removes_as_it_is_created_was_displaced(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    create: Any = APIClient.create_container_from_config

    def and_remove(api: APIClient, *given: Any) -> Any:
        made = create(api, *given)
        api.remove_container(made["Id"])
        return made

    monkeypatch.setattr(APIClient, "create_container_from_config", and_remove)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(launcher.request(outbound=True))
    assert caught.value.code == "container-exited"
    assert launcher.containers() == []
    assert launcher.adapter.sweep_networks(()) == 0


def test_of_many_launches_at_the_same_moment_the_newest_has_the_container(
    launcher: Launcher,
) -> None:
    for _ in range(3):
        request = launcher.request()
        racers = [Racer(launcher, replace(request, attempt_count=1 + n)) for n in range(6)]
        *older, newest = [racer.join() for racer in racers]
        assert newest.runtime is not None, newest.error
        observed = launcher.adapter.observe(request.run_id)
        assert observed is not None
        assert observed.resource_id == newest.runtime.resource_id
        codes = {racer.error.code for racer in older if racer.error is not None}
        assert codes <= {"launch-superseded", "container-exited"}
        launcher.adapter.remove(request.run_id)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_an_older_launch_given_up_at_any_moment_never_takes_the_newer_ones_container(
    launcher: Launcher, seed: int
) -> None:
    chance = random.Random(seed)
    request = launcher.request(boot={"setup": [step("sleep 0.5")]}, outbound=seed % 2 == 0)
    older = Racer(launcher, request)
    time.sleep(chance.uniform(0, 0.8))
    newer = Racer(launcher, replace(request, attempt_count=2))
    time.sleep(chance.uniform(0, 0.8))
    older.cancelled.set()
    older.join()
    newer.join()
    assert newer.error is None
    assert newer.runtime is not None
    assert only_container(launcher) == newer.runtime.resource_id
