"""A pool of an engine that has what a test says, and the launches that could be served from it."""

from __future__ import annotations

import builtins
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from controlplane.work.stopping import StopEvent
from tests.bench.empty_jobs import NoEngine
from tests.support.waiting import LONG_WAIT
from workspaces.models import WarmMember
from workspaces.runtimes.base import (
    Collect,
    LaunchedRuntime,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
)
from workspaces.warm_pool.pool import WarmPool

T = TypeVar("T")
IMAGE = f"registry.invalid/tests/one@sha256:{'1' * 64}"


@dataclass
class Engine(NoEngine):
    """Remembers what was launched. ``broken``: nothing starts; ``at_launch`` happens before."""

    name: str = "engine"
    containers: dict[uuid.UUID, ObservedRuntime] = field(default_factory=dict)
    broken: bool = False
    tried: int = 0
    at_launch: Callable[[LaunchRequest], object] = lambda request: None

    def engine_id(self) -> str:
        return self.name

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        self.tried += 1
        self.at_launch(request)
        if self.broken:
            raise LaunchError("launch-refused", "The engine has no room.")
        self.containers[request.run_id] = ObservedRuntime(
            run_id=request.run_id,
            job_id=request.job_id,
            attempt_count=0,
            resource_id=request.run_id.hex * 2,
            reference=f"svc-{request.run_id}",
            running=True,
            exit_code=None,
            oom_killed=False,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        return super().launch(request, cancelled=cancelled)

    def list(self, workspace_id: uuid.UUID | None = None) -> builtins.list[ObservedRuntime]:
        return [*self.containers.values()]

    def remove(self, run_id: uuid.UUID, *, collect: Collect | None = None) -> bool:
        return self.containers.pop(run_id, None) is not None

    def end(self, member_id: uuid.UUID) -> None:
        """Have a container end by itself."""
        self.containers[member_id] = replace(
            self.containers[member_id], running=False, exit_code=137
        )

    def take(self, member_id: uuid.UUID, run_id: uuid.UUID) -> None:
        """Give a container the name of the run that has claimed it."""
        self.containers[run_id] = replace(self.containers.pop(member_id), run_id=run_id)


def pool_of(engine: NoEngine, *, size: int = 3, memory_mb: int = 0) -> WarmPool:
    return WarmPool(
        engine,
        instance_id="test",
        size=size,
        memory_mb=memory_mb,
        timeout=LONG_WAIT,
        require_isolation=lambda: None,
    )


def start_of(image: str = IMAGE, **changes: Any) -> LaunchRequest:
    """The launch of a workspace that nothing is special about."""
    values: dict[str, Any] = {
        "instance_id": "test",
        "run_id": uuid.uuid4(),
        "attempt_id": uuid.uuid4(),
        "workspace_id": uuid.uuid4(),
        "job_id": uuid.uuid4(),
        "attempt_count": 1,
        "image": image,
        "boot": {},
        "working_directory": "/",
        "outbound": True,
        "memory_mb": 256,
        "cpus": 1.0,
        "pids": 128,
        "sudo": False,
        "restart": False,
        "oci_runtime": "runc",
        "timeout": 60.0,
    }
    return LaunchRequest(**(values | changes))


def ask(question: Callable[[], T]) -> T:
    """What asks the database for a job."""
    return question()


def keep(pool: WarmPool) -> list[uuid.UUID]:
    """Have one pass of the pool; return the members that wait then."""
    pool.keep(StopEvent())
    ready = WarmMember.objects.filter(status=WarmMember.Status.READY)
    return list(ready.order_by("pk").values_list("pk", flat=True))


def filled(engine: Engine, number: int = 3, **options: Any) -> WarmPool:
    """A pool in which as many wait."""
    pool = pool_of(engine, size=number, **options)
    for _ in range(number):
        pool.note_start(start_of())
    assert len(keep(pool)) == number
    return pool
