"""What must be true at the end of every story, whatever was killed in its course."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.stack.container_output import heard_to_the_end
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import wait_for
from tests.stack.sandboxes import Started
from tests.support.waiting import LONG_WAIT

ONCE = (
    "attempt.queued",
    "attempt.running",
    "image.published",
    "runtime.pending",
    "runtime.running",
    "attempt.succeeded",
)


def assert_ready(
    stack: PrivateStack, job: Started, *, claims: int, seconds: float = LONG_WAIT
) -> Any:
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
    code, output = heard_to_the_end(containers[0], "cat", "/home/workspace/setup.log")
    assert (code, output) == (0, b"ran\n")

    digest = shown["publishedImage"]["digest"]
    assert stack.registry.tags(job) == {job.tag: digest}
    assert containers[0].attrs["Config"]["Image"].endswith(f"@{digest}")
    assert_nothing_left_over(stack, job)
    return shown


def assert_ended(
    stack: PrivateStack,
    job: Started,
    status: str,
    *,
    claims: int,
    code: str | None = None,
    tags: int = 0,
    seconds: float = LONG_WAIT,
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


def assert_nothing_open(stack: PrivateStack) -> None:
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


def assert_nothing_left_over(stack: PrivateStack, job: Started) -> None:
    """No name of an image, no folder, no container of anything but a run and no network stays."""
    wait_for(lambda: not stack.engine.local_names(job), "no local name of the job's image is left")
    wait_for(lambda: not stack.folders(), "no folder of a build is left")
    # One that reads an index of packages goes by itself or with the next look of a worker.
    wait_for(
        lambda: not stack.engine.strays(),
        lambda: f"no container is left that no launch has made: {stack.engine.strays()}",
    )
    wait_for(lambda: _with_networks(stack) == _live(stack), "live containers alone have networks")
    wait_for(lambda: stack.broker.depth() == 0, "no message waits")


def _live(stack: PrivateStack) -> list[str]:
    found = stack.engine.containers()
    return sorted(each.labels["svc.run"] for each in found if "svc.run" in each.labels)


def _with_networks(stack: PrivateStack) -> list[str]:
    """The runs that have networks; that of a killed build is swept by its age."""
    found = [network.attrs["Labels"] for network in stack.engine.networks()]
    return sorted(labels["svc.run"] for labels in found if "svc.run" in labels)
