"""Claim to complete of jobs that build nothing, against the same SQL through pgbench.

Everything of ours runs except what leaves the process for another system than the database: the
stand-ins below answer at once. The SQL of one such job is recorded and played by pgbench on rows
that were seeded the same way.
"""

from __future__ import annotations

import builtins
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext

from builds.build_worker_setup import job_runner
from builds.images.compiler import BuiltImage, Compiler, PublishedImage
from builds.pipeline.job_state import JobState
from builds.pipeline.runner import JobRunner
from builds.planner import ImagePlan
from registries.client import RegistryClient
from runs.models import Run
from runs.record.new_record import insert_with_head
from tests.bench.figures import Figure
from tests.support.sent_statements import sent_statements
from workspaces.models import Attempt, BuildJob, Sandbox, Workspace
from workspaces.runtimes.base import (
    AgentAnswer,
    AgentChannel,
    Collect,
    LaunchedRuntime,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
    RenewedCredential,
    RuntimeAdapter,
)

JOBS_IN_A_BLOCK = 50
BLOCKS = 15
TARGET = 0.6
LEASE = timedelta(minutes=15)
WORKER = "bench-worker"
FIRST_RUN_NUMBER = 7_000_000_000
"""Of the seeded boot runs, so large that their numbers are recognised in SQL."""
KINDS = {"workspace": 1, "sandbox": 2, "attempt": 3, "run": 4, "job": 5}


def seeded_id(kind: str, number: int) -> uuid.UUID:
    """Return the id of a seeded row, which pgbench can compute as well."""
    return uuid.UUID(f"00000000-0000-7000-800{KINDS[kind]}-{number:012x}")


class NoCompiler(Compiler):
    """Knows every base image and has built what it is asked for, once: later plans are the same."""

    def __init__(self) -> None:
        """Take nothing: nothing is asked of an engine."""

    def base_image_id(self, reference: str, **_: Any) -> str:
        """Return the same id for each reference."""
        return "sha256:" + "0" * 64

    def build(self, plan: ImagePlan, *, job_id: uuid.UUID, **_: Any) -> BuiltImage:
        """Return an image that does not exist."""
        return BuiltImage("sha256:" + "0" * 64, f"svc-build/{job_id}:1")

    def push(self, built: BuiltImage, *, repository: str, tag: str, **_: Any) -> PublishedImage:
        """Return a publication that does not exist."""
        digest = "sha256:" + "1" * 64
        return PublishedImage(f"none/{repository}:{tag}", f"none/{repository}@{digest}", digest)

    def discard(self, built: BuiltImage) -> None:
        """Have nothing to remove."""


class NoRegistry(RegistryClient):
    """Has every image."""

    def __init__(self) -> None:
        """Take nothing: nothing is asked of a registry."""

    def copy(self, from_repository: str, digest: str, to_repository: str, tag: str) -> bool:
        """Say that it is done."""
        return True


class NoEngine:
    """Launches at once."""

    name = "none"

    def check(self) -> None:
        """Be well."""

    def engine_id(self) -> str:
        """Return the name of no engine."""
        return "none"

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Return a runtime that does not exist."""
        resource = "0" * 64
        return LaunchedRuntime("docker", resource, f"svc-{request.run_id}", f"none://{resource}")

    def warm_key(self, request: LaunchRequest) -> str:
        """Tell images apart and nothing else."""
        return request.image

    def observe(self, run_id: uuid.UUID) -> ObservedRuntime | None:
        """Know of none."""
        return None

    def list(self, workspace_id: uuid.UUID | None = None) -> list[ObservedRuntime]:
        """Know of none."""
        return []

    def call_agent(self, *_: Any, **__: Any) -> AgentAnswer:
        """Have no agent."""
        raise LaunchError("runtime-gone", "There is no engine.")

    def open_agent(self, *_: Any, **__: Any) -> AgentChannel:
        """Have no agent."""
        raise LaunchError("runtime-gone", "There is no engine.")

    def waits_for_credentials(self, run_id: uuid.UUID) -> bool:
        """Wait for none."""
        return False

    def deliver_credentials(self, run_id: uuid.UUID, document: bytes) -> None:
        """Take them."""

    def collect_credentials(self, run_id: uuid.UUID) -> builtins.list[RenewedCredential]:
        """Have none."""
        return []

    def withdraw_credentials(self, run_id: uuid.UUID, account_ids: Collection[uuid.UUID]) -> None:
        """Have none."""

    @contextmanager
    def read_files(self, *_: Any, **__: Any) -> Iterator[Iterator[bytes] | None]:
        """Have no files."""
        yield None

    def stop(self, run_id: uuid.UUID, *, seconds: float) -> bool:
        """Have nothing to stop."""
        return False

    def remove_volumes(self, workspace_id: uuid.UUID) -> int:
        """Have no volumes."""
        return 0

    def workspaces_with_volumes(self) -> set[uuid.UUID]:
        """Have no volumes."""
        return set()

    def remove_containers(self, run_id: uuid.UUID) -> bool:
        """Have nothing to remove."""
        return False

    def remove(self, run_id: uuid.UUID, *, collect: Collect | None = None) -> bool:
        """Have nothing to remove."""
        return False

    def sweep_networks(self, keep_run_ids: Collection[uuid.UUID]) -> int:
        """Have nothing to remove."""
        return 0


def seed(first: int, last: int) -> None:
    """Write queued jobs with everything they belong to."""
    spec = {"harness": {"id": "shell"}}
    numbers = range(first, last)
    Workspace.objects.bulk_create(
        Workspace(id=seeded_id("workspace", number), owner_user_id="usr_bench", name="Bench")
        for number in numbers
    )
    shared: dict[str, Any] = {"registry_id": "default", "repository": "bench/empty"}
    Sandbox.objects.bulk_create(
        Sandbox(
            id=seeded_id("sandbox", number),
            workspace_id=seeded_id("workspace", number),
            owner_user_id="usr_bench",
            tag=f"t{number}",
            spec=spec,
            **shared,
        )
        for number in numbers
    )
    Attempt.objects.bulk_create(
        Attempt(
            id=seeded_id("attempt", number),
            sandbox_id=seeded_id("sandbox", number),
            workspace_id=seeded_id("workspace", number),
            run_id=seeded_id("run", number),
            requested_by="usr_bench",
            spec=spec,
        )
        for number in numbers
    )
    for number in numbers:
        insert_with_head(
            Run(
                id=seeded_id("run", number),
                number=FIRST_RUN_NUMBER + number,
                workspace_id=seeded_id("workspace", number),
                attempt_id=seeded_id("attempt", number),
                owner_user_id="usr_bench",
                harness_id="shell",
                mode=Run.Mode.BOOT,
                recorded=True,
            )
        )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workspaces_sandbox SET latest_attempt_id ="
            " replace(id::text, '-8002-', '-8003-')::uuid WHERE latest_attempt_id IS NULL"
        )
        cursor.execute(
            "UPDATE workspaces_workspace SET latest_sandbox_id ="
            " replace(id::text, '-8001-', '-8002-')::uuid WHERE latest_sandbox_id IS NULL"
        )
    BuildJob.objects.bulk_create(
        BuildJob(
            id=seeded_id("job", number),
            attempt_id=seeded_id("attempt", number),
            tag=f"t{number}",
            max_attempts=3,
            **shared,
        )
        for number in numbers
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def empty_runner(adapter: RuntimeAdapter | None = None) -> JobRunner:
    """Return the product's job runner with nothing outside the database but ``adapter`` behind it.

    Without one, workspaces are launched nowhere.
    """
    runner = job_runner()
    return replace(
        runner,
        builder=replace(runner.builder, compiler=NoCompiler(), registry=NoRegistry()),
        launcher=replace(runner.launcher, adapter=adapter or NoEngine()),
    )


def run_job(runner: JobRunner, number: int) -> None:
    """Claim one job and bring it to its end."""
    job = BuildJob.objects.claim(seeded_id("job", number), worker_id=WORKER, lease=LEASE)
    assert job is not None
    runner.run(JobState(job))


def recorded_script(runner: JobRunner, number: int) -> tuple[str, int]:
    """Run one job; return its SQL as a script of pgbench, and how many statements the job has.

    The script lacks its ``COPY``, which pgbench cannot play: the floor is a little too high.
    """
    with sent_statements() as sent, CaptureQueriesContext(connection) as captured:
        run_job(runner, number)
    statements = [query["sql"].strip().rstrip(";") for query in captured]
    lines = ["\\set n :n + 1"]
    lines += [f"{_for_any_job(statement, number)};" for statement in statements]
    return "\n".join(lines) + "\n", len(sent)


def _for_any_job(statement: str, number: int) -> str:
    for kind in KINDS:
        prefix, last = seeded_id(kind, number).hex[:20], seeded_id(kind, number).hex
        statement = statement.replace(f"'{last}'", f"('{prefix}' || lpad(to_hex(:n), 12, '0'))")
    run_number = str(FIRST_RUN_NUMBER + number)
    if not statement.startswith("SELECT pg_notify"):  # where it is part of a text
        statement = statement.replace(run_number, f"({FIRST_RUN_NUMBER} + :n)")
    # What is left are ids that the job made for new rows.
    statement = re.sub(r"'[0-9a-f]{32}'::uuid", "gen_random_uuid()", statement)
    return statement.replace("\n", " ")


@dataclass(frozen=True)
class Pgbench:
    """The recorded SQL, played as fast as PostgreSQL's own client can."""

    script: Path

    def seconds(self, first: int, jobs: int) -> float:
        """Play as many jobs, from the number ``first`` on; return the seconds for one."""
        at = connection.settings_dict
        env = {
            **os.environ,
            "PGHOST": str(at["HOST"]),
            "PGPORT": str(at["PORT"]),
            "PGUSER": str(at["USER"]),
            "PGPASSWORD": str(at["PASSWORD"]),
        }
        argv = [pgbench(), "-n", "-c", "1", "-t", str(jobs), "-D", f"n={first - 1}"]
        done = subprocess.run(
            [*argv, "-f", str(self.script), str(at["NAME"])],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        rate = re.search(r"tps = ([0-9.]+) \(without initial", done.stdout)
        failed = "aborted" in done.stderr or "ERROR" in done.stderr
        if done.returncode or rate is None or failed:
            raise RuntimeError(f"pgbench failed:\n{done.stderr}\n{done.stdout}")
        return 1 / float(rate[1])


def pgbench() -> str:
    """Return the program, which Debian keeps beside the server."""
    places = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    found = shutil.which("pgbench") or shutil.which("pgbench", path=os.pathsep.join(places))
    if found is None:
        raise RuntimeError("pgbench is not installed (Debian: postgresql-contrib)")
    return found


def measure() -> Figure:
    """Measure in blocks that alternate, so that a busy machine is busy for both."""
    runner = empty_runner()
    seed(1, 2 + (2 * BLOCKS + 2) * JOBS_IN_A_BLOCK)
    number = 1
    run_job(runner, number)  # the plan of all later ones is unchanged
    number += 1
    script, statements = recorded_script(runner, number)
    number += 1
    ours, floor = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.sql"
        path.write_text(script)
        played = Pgbench(path)
        for _ in range(BLOCKS):
            started = time.perf_counter()
            for _ in range(JOBS_IN_A_BLOCK):
                run_job(runner, number)
                number += 1
            ours.append((time.perf_counter() - started) / JOBS_IN_A_BLOCK)
            floor.append(played.seconds(number, JOBS_IN_A_BLOCK))
            number += JOBS_IN_A_BLOCK
    unfinished = BuildJob.objects.filter(pk__lt=seeded_id("job", number)).exclude(
        status=BuildJob.Status.SUCCEEDED, lease_expires_at=None, attempt__runtime__status="running"
    )
    if unfinished.exists():
        raise RuntimeError("some jobs did not come to their end, so nothing was measured")
    ratio = median(theirs / mine for mine, theirs in zip(ours, floor, strict=True))
    return Figure(
        f"claim to complete of empty jobs ({statements} statements each)",
        f"{1 / median(ours):.0f} jobs/s",
        f"{1 / median(floor):.0f} jobs/s (pgbench)",
        ratio,
        f"≥ {TARGET:g}x",
        ratio >= TARGET,
    )
