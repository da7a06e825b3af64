"""Delivering is part of a launch: it fails, is adopted, cancelled and given up like the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from controlplane.errors import JobError
from tests.runs.agent.credentialed import ALL, account, codex, document
from tests.stack.pausing import pause_beside
from tests.workspaces.conftest import Launcher, step
from tests.workspaces.credentialed import WAIT_SECONDS, in_run, until, wanting
from workspaces.runtimes.base import LaunchError, LaunchRequest, RenewedCredential

pytestmark = pytest.mark.docker


@pytest.mark.parametrize(
    "garbage",
    [b"", b"canary", b"\xff\xfe", b"[]", b'{"version": 1}', b"[" * 100_000, b"x" * (2 << 20)],
    ids=["empty", "text", "bytes", "list", "half", "deep", "long"],
)
def test_garbage_is_refused_and_nothing_of_the_launch_is_left(
    launcher: Launcher, garbage: bytes
) -> None:
    with pytest.raises(LaunchError) as caught:
        launcher.launch(wanting(launcher, credentials=lambda: garbage))
    assert caught.value.code == "credentials-refused"
    assert "canary" not in caught.value.message
    assert launcher.left_over() == []


def test_an_agent_that_fails_to_boot_is_told_of_instead_of_its_credentials(
    launcher: Launcher,
) -> None:
    with pytest.raises(LaunchError, match="the user ghost does not exist") as caught:
        launcher.launch(wanting(launcher, boot={"user": "ghost"}))
    assert caught.value.code == "step-failed"
    assert launcher.left_over() == []


def test_a_document_that_cannot_be_made_ends_the_launch_with_its_reason(
    launcher: Launcher,
) -> None:
    def fail() -> bytes:
        raise JobError("account-gone", "The account is gone.")

    with pytest.raises(JobError) as caught:
        launcher.launch(wanting(launcher, credentials=fail))
    assert caught.value.code == "account-gone"
    assert launcher.left_over() == []


def test_a_second_worker_delivers_to_a_container_that_waits_and_to_no_other(
    launcher: Launcher,
) -> None:
    asked: list[str] = []
    wake_up = threading.Event()

    def of(worker: str) -> Callable[[], bytes]:
        def make() -> bytes:
            asked.append(worker)
            return document(account(3, "github", f"github-of-{worker}-0123456789"))

        return make

    def sleep() -> bytes:
        # As long as this takes, the first worker might as well be dead.
        wake_up.wait(WAIT_SECONDS)
        raise JobError("woke-up-late", "It did.")

    first = wanting(launcher, credentials=sleep)
    late: list[str] = []

    def launch_first() -> None:
        try:
            launcher.launch(first)
        except JobError as error:
            late.append(error.code)

    thread = threading.Thread(target=launch_first)
    thread.start()
    until(launcher.containers)
    until(lambda: waits(launcher, first))

    second = replace(first, attempt_count=2, credentials=of("second"))
    runtime = launcher.launch(second)
    assert asked == ["second"]
    third = replace(first, attempt_count=3, credentials=of("third"))
    assert launcher.launch(third).resource_id == runtime.resource_id
    assert asked == ["second"]

    wake_up.set()
    thread.join(WAIT_SECONDS)
    assert late == ["woke-up-late"]
    assert in_run(launcher, first.run_id, "echo $GH_TOKEN") == "github-of-second-0123456789\n"


def waits(launcher: Launcher, request: LaunchRequest) -> bool:
    """Whether its container is there and wants its credentials."""
    try:
        return launcher.adapter.waits_for_credentials(request.run_id)
    except LaunchError:
        return False


def test_a_launch_that_is_cancelled_at_the_delivery_leaves_nothing(launcher: Launcher) -> None:
    cancelled = threading.Event()

    def make() -> bytes:
        cancelled.set()
        return document(*ALL)

    with pytest.raises(LaunchError) as caught:
        launcher.launch(wanting(launcher, credentials=make), cancelled)
    assert caught.value.code == "launch-cancelled"
    assert launcher.left_over() == []


def test_a_container_that_stops_answering_at_the_delivery_is_given_up_at_the_deadline(
    launcher: Launcher,
) -> None:
    paused = threading.Event()

    def make() -> bytes:
        (container,) = launcher.containers()
        pause_beside(container, "credentials deliver")
        paused.set()
        return document(*ALL)

    with pytest.raises(LaunchError) as caught:
        launcher.launch(wanting(launcher, credentials=make, timeout=30.0))
    assert paused.is_set()
    assert caught.value.code == "launch-timed-out"
    assert launcher.left_over() == []


def started(launcher: Launcher) -> bool:
    """Whether the slow step runs."""
    (container,) = launcher.containers()
    if container.status != "running":
        return False
    return int(container.exec_run(["test", "-e", "/tmp/started"]).exit_code or 0) == 0


def test_the_last_word_of_a_container_is_asked_for_before_it_is_removed(
    launcher: Launcher,
) -> None:
    said: list[RenewedCredential] = []
    holder: dict[str, LaunchRequest] = {}

    def before_discard() -> None:
        said.extend(launcher.adapter.collect_credentials(holder["request"].run_id))

    slow = {"startup": [step("touch /tmp/started; sleep 600")]}
    request = wanting(launcher, before_discard=before_discard, boot=slow)
    holder["request"] = request
    cancelled = threading.Event()

    def cancel() -> None:
        until(lambda: launcher.containers() and started(launcher))
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(LaunchError):
        launcher.launch(request, cancelled)
    thread.join(WAIT_SECONDS)
    assert [renewed.secret for renewed in said] == [codex()]


def test_an_answer_that_makes_no_sense_is_refused_without_repeating_it(
    launcher: Launcher, publish: Callable[[str], str]
) -> None:
    lying = publish(
        f"FROM {launcher.image}\n"
        "RUN printf '#!/bin/sh\\necho a-canary-of-the-answer\\n' > /usr/lib/svc/agent\n"
        'ENTRYPOINT ["sleep", "600"]\n'
    )
    launcher.client.containers.run(
        lying,
        detach=True,
        name=f"svc-{UUID(int=5)}",
        labels={"svc.instance": launcher.instance_id, "svc.run": str(UUID(int=5))},
    )
    with pytest.raises(LaunchError) as caught:
        launcher.adapter.collect_credentials(UUID(int=5))
    assert caught.value.code == "credentials-unclear"
    assert "canary" not in caught.value.message
