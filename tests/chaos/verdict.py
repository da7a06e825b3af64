"""What must be true at the end of every story, whatever was killed in its course."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.chaos.processes import wait_for
from tests.chaos.sandboxes import Started
from tests.chaos.stack import Stack

ONCE = (
    "attempt.queued",
    "attempt.running",
    "image.published",
    "runtime.pending",
    "runtime.running",
    "attempt.succeeded",
)


def assert_ready(stack: Stack, job: Started, *, claims: int, seconds: float = 120.0) -> Any:
    """The workspace is ready, everything happened once, and nothing is left over."""
    shown = stack.wait_status(job, "ready", seconds)
    assert_nothing_open(stack)
    assert stack.database.claims(job) == claims
    assert stack.database.job_status(job) == "succeeded"

    happened = Counter(stack.events(job))
    assert {name: happened[name] for name in ONCE} == dict.fromkeys(ONCE, 1), happened
    assert set(happened) == {"workspace.created", *ONCE}

    containers = stack.engine.containers(job)
    assert [container.status for container in containers] == ["running"]
    code, output = containers[0].exec_run(["cat", "/home/workspace/setup.log"])
    assert (code, output) == (0, b"ran\n")

    digest = shown["publishedImage"]["digest"]
    assert stack.registry.tags(job) == {job.tag: digest}
    assert containers[0].attrs["Config"]["Image"].endswith(f"@{digest}")
    assert_nothing_left_over(stack, job)
    return shown


def assert_ended(
    stack: Stack,
    job: Started,
    status: str,
    *,
    claims: int,
    code: str | None = None,
    tags: int = 0,
    seconds: float = 60.0,
) -> Any:
    """The sandbox ended without a workspace, says why, and nothing is left over."""
    shown = stack.wait_status(job, status, seconds)
    if code is not None:
        assert shown["error"]["code"] == code, shown["error"]
        assert shown["error"]["message"]
    assert_nothing_open(stack)
    assert stack.database.claims(job) == claims
    wait_for(lambda: not stack.engine.containers(job), "the run's container is gone")
    assert len(stack.registry.tags(job)) == tags
    assert_nothing_left_over(stack, job)
    return shown


def assert_nothing_open(stack: Stack) -> None:
    """No attempt and no job is in a state that somebody would have to end."""

    def still_open() -> list[Any]:
        return stack.database.rows(
            "select 'attempt', id, status from workspaces_attempt"
            " where status in ('queued', 'running') union all"
            " select 'job', id, status from workspaces_buildjob"
            " where status in ('queued', 'running') or lease_expires_at is not null union all"
            " select 'runtime', run_id, status from workspaces_runtimeinstance"
            " where status = 'pending'"
        )

    wait_for(lambda: not still_open(), "no attempt, job or runtime is open")


def assert_nothing_left_over(stack: Stack, job: Started) -> None:
    """No name of an image, no folder and no network stays behind."""
    wait_for(
        lambda: not stack.engine.local_names(job), "no local name of the job's image is left", 20
    )
    wait_for(lambda: not stack.folders(), "no folder of a build is left")
    live = {container.labels["svc.run"] for container in stack.engine.containers()}
    wait_for(
        lambda: {network.attrs["Labels"]["svc.run"] for network in stack.engine.networks()} == live,
        "only the networks of live containers are left",
        20,
    )
    assert len(stack.engine.networks()) == len(live)
    wait_for(lambda: stack.broker.depth() == 0, "no message waits")
