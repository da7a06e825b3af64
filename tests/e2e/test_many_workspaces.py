"""One machine holds a hundred and fifty small workspaces, and each of them is as usable as one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from runs.models import Run
from tests.conftest import OWNER, Api
from tests.stack.service import GitServer, Stack
from tests.stack.ssh_access import SshAccess, access_of
from tests.stack.worker_process import eventually
from workspaces.models import Workspace

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NUMBER = 150
COMMANDS = 24
SESSIONS = 12
SECONDS = 420.0
SMALL = {"runtime": {"resources": {"memoryMb": 64, "pids": 64}}}


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """The whole service with one workspace, in which no test counts on being alone."""
    with access_of(stack, git_server, run_queue, tmp_path_factory.mktemp("many")) as made:
        yield made


@pytest.fixture(scope="module")
def many(access: SshAccess) -> list[str]:
    """The workspaces, all of them ready; asked for at once."""
    stack = access.place.stack
    with override_settings(OWNER_MAX_RUNNING_BUILDS=0):
        answers = [stack.ask(SMALL).answer for _ in range(NUMBER)]
    ids = [str(answer["workspaceId"]) for answer in answers]

    def statuses() -> Counter[str]:
        rows = Workspace.objects.filter(pk__in=ids)
        return Counter(rows.values_list("latest_sandbox__status", flat=True))

    eventually(
        lambda: statuses()["ready"] == NUMBER or statuses()["failed"],
        what=f"all are ready, of which {statuses()}",
        timeout=SECONDS,
    )
    assert statuses() == {"ready": NUMBER}
    return ids


def spread(ids: list[str], number: int) -> list[str]:
    """Return so many of them, the first and the last among them."""
    return [ids[at * (len(ids) - 1) // (number - 1)] for at in range(number)]


def labels_of(thing: Any) -> dict[str, str]:
    """Return the labels of a container or a network."""
    attrs = thing.attrs
    labels: dict[str, str] = attrs["Config"]["Labels"] if "Config" in attrs else attrs["Labels"]
    return labels


def test_commands_run_in_all_of_them(access: SshAccess, many: list[str]) -> None:
    place = access.place
    runs = {
        place.run("sh", "-c", f"echo {number}", workspaceId=workspace): number
        for number, workspace in enumerate(spread(many, COMMANDS))
    }
    for run, number in runs.items():
        place.completed(run)
        assert place.output(run) == f"{number}\n".encode()


def test_the_boots_of_all_are_recorded_by_one_worker(access: SshAccess, many: list[str]) -> None:
    boots = Run.objects.filter(workspace_id__in=many, mode=Run.Mode.BOOT)
    eventually(
        lambda: boots.exclude(worker_id="").count() == NUMBER,
        what="each has a recorder",
        timeout=SECONDS,
    )
    assert boots.values("worker_id").distinct().count() == 1


def test_sessions_stay_open_beside_each_other(access: SshAccess, many: list[str]) -> None:
    entered = spread(many, SESSIONS)
    clients = [access.client(user=f"ws-{workspace}") for workspace in entered]
    with contextlib.ExitStack() as stack:
        for client in clients:
            session = stack.enter_context(client.begun("echo here; exec cat"))
            assert session.line == "here"

        runs = Run.objects.filter(workspace_id__in=entered, mode=Run.Mode.INTERACTIVE)
        eventually(
            lambda: runs.filter(status="running").exclude(worker_id="").count() == SESSIONS,
            what="all sessions are recorded at once",
        )


def test_another_one_starts_and_is_used_like_the_first(access: SshAccess, many: list[str]) -> None:
    stack = access.place.stack
    another = stack.ready(SMALL)
    assert stack.inside(another, "echo there") == "there"


def test_all_are_deleted_and_nothing_of_them_is_left(access: SshAccess, many: list[str]) -> None:
    stack = access.place.stack
    api: Api = stack.api
    for workspace in many:
        api.request("DELETE", f"/v1/workspaces/{workspace}?ownerUserId={OWNER}", expect=202)

    left = Workspace.objects.filter(pk__in=many, deleted_at__isnull=True)
    eventually(lambda: not left.exists(), what="all are deleted", timeout=SECONDS)

    labelled = {"label": "svc.workspace"}
    there = [
        *stack.engine.containers.list(all=True, filters={**labelled}, ignore_removed=True),
        *stack.engine.networks.list(filters={**labelled}),
    ]
    assert not {labels_of(thing)["svc.workspace"] for thing in there} & set(many)
    unfinished = Run.objects.filter(workspace_id__in=many).exclude(status__in=Run.TERMINAL)
    eventually(lambda: not unfinished.exists(), what="their records have ended", timeout=SECONDS)
