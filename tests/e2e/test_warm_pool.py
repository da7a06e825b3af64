"""A workspace out of the warm pool is a workspace like any other, and nobody else's."""

from __future__ import annotations

import pytest

from tests.stack.service import Stack, Started
from tests.stack.worker_process import eventually
from workspaces.models import WarmMember

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def worker_settings() -> dict[str, str]:
    return {"WORKSPACE_WARM_POOL_SIZE": "2"}


def waiting() -> int:
    return WarmMember.objects.filter(status="ready").count()


@pytest.fixture(scope="module")
def cold(stack: Stack) -> Started:
    """The first start of the plan, after which containers wait."""
    started = stack.ready({})
    assert not WarmMember.objects.filter(run_id=started.answer["runId"]).exists()
    eventually(waiting, what="a container that waits")
    return started


def test_the_next_start_takes_a_container_that_waits(stack: Stack, cold: Started) -> None:
    import time

    for _ in range(4):
        b = time.perf_counter()
        again = stack.ready({})
        print("WARM", time.perf_counter() - b, again.job.reused)
        member = WarmMember.objects.get(run_id=again.answer["runId"])
        assert member.status == "claimed"
        assert stack.inside(again, "whoami") == "workspace"
        eventually(waiting, what="a container that waits")
    print(stack.worker.told[-3000:])
