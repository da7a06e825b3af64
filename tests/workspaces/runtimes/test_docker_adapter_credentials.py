"""Credentials reach real containers, live in their memory only, and leave nothing behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import cast
from uuid import UUID

import pytest

from tests.runs.agent.credentialed import (
    ALL,
    CLAUDE,
    GENERIC,
    GITHUB,
    account,
    codex,
    document,
    identity,
)
from tests.workspaces.conftest import Launcher, step
from tests.workspaces.credentialed import WAIT_SECONDS, environment, in_run, until, wanting
from workspaces.runtimes.base import LaunchError, LaunchRequest, RenewedCredential

pytestmark = pytest.mark.docker
AUTH = "/home/workspace/.codex/auth.json"


def test_every_process_of_the_workspace_has_its_accounts(launcher: Launcher) -> None:
    request = wanting(
        launcher,
        boot={"setup": [step("env -0 > setup")], "startup": [step("env -0 > startup")]},
    )
    runtime = launcher.launch(request)
    for name in ("setup", "startup"):
        env = environment(launcher, runtime, name)
        assert env["CLAUDE_CODE_OAUTH_TOKEN"] == CLAUDE
        assert env["GH_TOKEN"] == env["GITHUB_TOKEN"] == GITHUB
        assert env["SERVICE_LOGIN"] == GENERIC
    told = in_run(launcher, request.run_id, 'echo "$GH_TOKEN"; cat ~/.codex/auth.json')
    assert told == f"{GITHUB}\n{codex()}"
    assert not launcher.adapter.waits_for_credentials(request.run_id)


def test_nothing_of_them_is_in_the_container_but_in_its_memory(launcher: Launcher) -> None:
    request = wanting(launcher, boot={"startup": [step("echo $GH_TOKEN; echo $SERVICE_LOGIN >&2")]})
    runtime = launcher.launch(request)
    container = launcher.container(runtime)

    inspected = json.dumps(container.attrs)
    archive = b"".join(cast("Iterator[bytes]", container.export()))
    logs = container.logs()
    assert b"*" * len(GITHUB) in logs
    for secret in (CLAUDE, GITHUB, GENERIC, "access-canary", "refresh-canary"):
        assert secret not in inspected
        assert secret.encode() not in archive
        assert secret.encode() not in logs
    mount = launcher.inside(runtime, "grep", " /run/svc ", "/proc/mounts")[1]
    assert mount.startswith("tmpfs")
    for option in ("noexec", "nosuid", "nodev"):
        assert option in mount


def test_a_user_without_sudo_reads_only_what_is_meant_for_the_user(launcher: Launcher) -> None:
    runtime = launcher.launch(wanting(launcher))
    place = "/run/svc/credentials"
    for closed in ("accounts.json", "../values.json", "../lock"):
        code, output = launcher.inside(runtime, "cat", f"{place}/{closed}")
        assert code != 0, output
    assert launcher.inside(runtime, "ls", "/run/svc")[0] != 0
    assert launcher.inside(runtime, "cat", f"{place}/github/token") == (0, GITHUB)
    assert launcher.inside(runtime, "cat", f"{place}/github/token", user="nobody")[0] != 0
    assert launcher.inside(runtime, "cat", f"{place}/codex/auth.json", user="nobody")[0] != 0
    code, output = launcher.inside(runtime, "/usr/lib/svc/agent", "credentials", "collect")
    assert code != 0
    assert "canary" not in output


def test_a_workspace_without_credentials_has_no_memory_for_them(launcher: Launcher) -> None:
    request = launcher.request()
    runtime = launcher.launch(request)
    assert not launcher.container(runtime).attrs["HostConfig"].get("Tmpfs")
    with pytest.raises(LaunchError, match="started without credentials") as caught:
        launcher.adapter.deliver_credentials(request.run_id, document(*ALL))
    assert caught.value.code == "credentials-refused"
    with pytest.raises(LaunchError) as caught:
        launcher.adapter.collect_credentials(request.run_id)
    assert caught.value.code == "credentials-unclear"


def test_a_persistent_container_that_the_engine_restarts_waits_until_they_are_delivered(
    launcher: Launcher,
) -> None:
    request = wanting(launcher, restart=True, boot={"startup": [step("env -0 > startup")]})
    runtime = launcher.launch(request)
    launcher.container(runtime).restart(timeout=5)
    until(lambda: launcher.adapter.waits_for_credentials(request.run_id))
    assert launcher.inside(runtime, "ls", "/run/svc/credentials")[0] != 0

    launcher.adapter.deliver_credentials(
        request.run_id, document(account(1, "claude", "the-second-life-of-it"))
    )
    until(lambda: not launcher.adapter.waits_for_credentials(request.run_id))
    until(lambda: ready(launcher, request))
    env = environment(launcher, runtime, "startup")
    assert env["CLAUDE_CODE_OAUTH_TOKEN"] == "the-second-life-of-it"
    assert "GH_TOKEN" not in env


def ready(launcher: Launcher, request: LaunchRequest) -> bool:
    """Whether the agent says so."""
    return (
        launcher.adapter.call_agent(request.run_id, ["status"], timeout=WAIT_SECONDS).exit_code == 0
    )


def test_what_the_harness_renews_is_collected_however_it_writes_it(launcher: Launcher) -> None:
    request = wanting(launcher)
    launcher.launch(request)
    collect = launcher.adapter.collect_credentials
    assert collect(request.run_id) == [RenewedCredential(UUID(identity(2)), codex())]

    for number, how in enumerate(
        (f"cp new {AUTH}", f"cp new ~/.codex/new && mv ~/.codex/new {AUTH}"), start=1
    ):
        renewed = codex(f"renewed-{number}-0123456789abcdef", at=f"2026-01-0{number + 1}T00:00:00Z")
        told = in_run(launcher, request.run_id, f"echo '{renewed}' > new; {how}", number)
        assert told == ""
        assert collect(request.run_id)[0].secret == renewed + "\n"

    launcher.adapter.deliver_credentials(request.run_id, document(account(2, "codex", codex())))
    # What the harness has in the home is newer than what was delivered.
    assert collect(request.run_id)[0].secret == renewed + "\n"
    assert in_run(launcher, request.run_id, f"test -L {AUTH}; echo $?", 3) == "0\n"


def test_what_is_withdrawn_is_gone_for_the_next_process(launcher: Launcher) -> None:
    request = wanting(launcher)
    launcher.launch(request)
    launcher.adapter.withdraw_credentials(request.run_id, [UUID(identity(3)), UUID(int=7)])
    told = in_run(launcher, request.run_id, 'echo "[$GH_TOKEN][$SERVICE_LOGIN]"')
    assert told == f"[][{GENERIC}]\n"
    launcher.adapter.withdraw_credentials(request.run_id, [UUID(identity(2))])
    assert launcher.adapter.collect_credentials(request.run_id) == []
    assert in_run(launcher, request.run_id, f"test -e {AUTH}; echo $?", 2) == "1\n"


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s /etc ~/.codex",
        "ln -s /run/svc ~/.codex",
        "mkdir ~/.codex && ln -s /etc/passwd ~/.codex/auth.json",
        "mkdir ~/.codex && mkfifo ~/.codex/auth.json",
        "mkdir -p ~/.codex/auth.json/below",
        "echo in the way > ~/.codex",
        "mkdir ~/.codex && chmod 0 ~/.codex",
        "ln -s .codex ~/.codex",
    ],
    ids=["etc", "memory", "link", "fifo", "directory", "file", "closed", "loop"],
)
def test_what_the_user_has_planted_in_the_home_leads_nobody_elsewhere(
    launcher: Launcher, plant: str
) -> None:
    request = wanting(launcher, account(1, "claude", CLAUDE))
    runtime = launcher.launch(request)
    assert in_run(launcher, request.run_id, plant) == ""
    passwd = launcher.inside(runtime, "cat", "/etc/passwd")
    launcher.adapter.deliver_credentials(request.run_id, document(*ALL))
    assert launcher.inside(runtime, "cat", "/etc/passwd") == passwd
    assert launcher.inside(runtime, "ls", "/etc/auth.json")[0] != 0
    assert launcher.inside(runtime, "ls", "/run/svc/auth.json", user="root")[0] != 0
    # It is delivered all the same: only its link is missing.
    told = launcher.inside(runtime, "cat", "/run/svc/credentials/codex/auth.json")
    assert told == (0, codex())
    assert launcher.adapter.collect_credentials(request.run_id)[0].secret == codex()


def test_a_full_memory_refuses_a_delivery_and_keeps_what_there_is(launcher: Launcher) -> None:
    request = wanting(launcher)
    launcher.launch(request)
    fill = "head -c 100M /dev/zero > /run/svc/credentials/codex/filler; echo done"
    assert "done" in in_run(launcher, request.run_id, fill)
    other = document(account(1, "claude", "another-value-of-the-account"), *ALL[1:])
    with pytest.raises(LaunchError, match="No space left on device") as caught:
        launcher.adapter.deliver_credentials(request.run_id, other)
    assert caught.value.code == "credentials-refused"
    told = in_run(launcher, request.run_id, 'echo "$CLAUDE_CODE_OAUTH_TOKEN"', 2)
    assert told == f"{CLAUDE}\n"

    free = "rm /run/svc/credentials/codex/filler; echo done"
    assert "done" in in_run(launcher, request.run_id, free, 3)
    launcher.adapter.deliver_credentials(request.run_id, other)


def test_a_home_that_cannot_be_written_does_not_keep_the_workspace_from_starting(
    launcher: Launcher, publish: Callable[[str], str]
) -> None:
    closed = publish(f"FROM {launcher.image}\nRUN chown root:root /home/workspace\n")
    request = wanting(launcher, image=closed)
    runtime = launcher.launch(request)
    assert launcher.inside(runtime, "ls", AUTH)[0] != 0
    assert in_run(launcher, request.run_id, 'echo "$GH_TOKEN"') == f"{GITHUB}\n"


def test_two_deliveries_at_once_leave_one_of_them_whole(launcher: Launcher) -> None:
    request = wanting(launcher)
    runtime = launcher.launch(request)
    failures: list[LaunchError] = []

    def deliver(word: str) -> None:
        both = [
            account(1, "claude", f"claude-of-{word}"),
            account(3, "github", f"github-of-{word}"),
        ]
        try:
            launcher.adapter.deliver_credentials(request.run_id, document(*both))
        except LaunchError as error:
            failures.append(error)

    threads = [threading.Thread(target=deliver, args=(f"number-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert failures == []
    told = in_run(launcher, request.run_id, 'echo "$CLAUDE_CODE_OAUTH_TOKEN $GH_TOKEN"').split()
    assert told[0].removeprefix("claude-of-") == told[1].removeprefix("github-of-")
    code, listed = launcher.inside(runtime, "ls", "/run/svc", user="root")
    assert code == 0
    assert len([name for name in listed.split() if name.startswith("set-")]) == 1
