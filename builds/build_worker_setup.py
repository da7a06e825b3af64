"""The build worker with its parts, out of the settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

from django.conf import settings

from builds.build_worker import BuildWorker, ReconcilerTimes
from builds.engine_report import EngineReport
from builds.images.compiler import Compiler
from builds.images.garbage import ImageKeeper
from builds.images.work_folders import make_root
from builds.minute_samples import EVERY, MinuteSampler
from builds.pipeline.build import ImageBuilder, source_policy
from builds.pipeline.launch import BootLimits, WorkspaceLauncher
from builds.pipeline.runner import JobRunner
from builds.planner import Catalogue
from controlplane.database.locks import advisory_lock
from controlplane.work.failure_detector import FailureDetector
from controlplane.work.models import heartbeat_stale
from controlplane.work.notifications import Heard, listen_to
from controlplane.work.periodic import PeriodicTask
from controlplane.work.worker import WorkerTimes, new_worker_id
from registries.services import configured_registry
from scm.webhooks import keep_deliveries
from workspaces.credentials.upkeep import look_after_credentials
from workspaces.engines.engine_adapters import served_adapter, served_docker_host
from workspaces.engines.runtime_adapters import placement_engine, runtime_adapter
from workspaces.lifecycle.enforcement.cluster_isolation import ClusterIsolation
from workspaces.lifecycle.enforcement.disk_watch import EVERY as LOOK_AT_DISKS_EVERY
from workspaces.lifecycle.enforcement.disk_watch import DiskWatch
from workspaces.lifecycle.enforcement.isolation import EVERY as LOOK_AT_ISOLATION_EVERY
from workspaces.lifecycle.enforcement.isolation import IsolationTask
from workspaces.lifecycle.enforcement.shared_limits import EVERY as LIFT_KERNEL_LIMITS_EVERY
from workspaces.lifecycle.enforcement.shared_limits import lift_kernel_limits
from workspaces.lifecycle.teardown import TransitionExecutor
from workspaces.lifecycle.transition_worker import TransitionWorker
from workspaces.lifecycle.transitions import expire_workspaces
from workspaces.models.known_engines import CHANNEL as ENGINES
from workspaces.models.known_engines import LOCAL_ENGINE
from workspaces.models.transition import CHANNEL
from workspaces.packages.sync import sync_task
from workspaces.runtimes.configured_cluster import on_kubernetes
from workspaces.runtimes.docker.build.build_steps import StepLimits
from workspaces.warm_pool.pool import WarmPool

TRANSITION_THREADS = 3
"""How many workspaces one worker stops or deletes at a time."""
LOOK_EVERY = timedelta(seconds=2)
"""How often each looks for one, with a query of its own index, when nobody tells of any."""
KEEP_POOL_EVERY = timedelta(seconds=5)
LISTEN_AGAIN_AFTER = timedelta(seconds=1)


def _wake(events: Sequence[threading.Event]) -> None:
    for event in events:
        event.set()


def _machine() -> str:
    """Return where the engine listens as far as its machine may be ours; a tunnel says nothing."""
    return settings.DOCKER_HOST if settings.SVC_ENGINE == LOCAL_ENGINE else ""


def _nothing() -> None:
    """Require nothing."""


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _step_limits(isolation: IsolationTask) -> StepLimits:
    adapter = served_adapter()
    longest = settings.WORKSPACE_BUILD_TIMEOUT_MS / 1000

    def network(egress: Callable[[str], None] | None) -> AbstractContextManager[str]:
        isolation.require()
        if egress is not None:
            isolation.require_egress()
        # Two builds, one after the other, and the clocks of two machines.
        oldest = 2 * longest + 3600
        return adapter.build_network(uuid4(), oldest=oldest, egress=egress)

    return StepLimits(
        network=network,
        memory_mb=settings.WORKSPACE_BUILD_MEMORY_MB,
        cpus=settings.WORKSPACE_BUILD_CPUS,
        pids=settings.WORKSPACE_BUILD_PIDS,
    )


def job_runner(isolation: IsolationTask | None = None) -> JobRunner:
    """Return what runs claimed jobs, with every part configured."""
    isolation = isolation or IsolationTask(served_adapter())
    temp_root = settings.SVC_DATA_DIR / "builds"
    make_root(temp_root)
    extra_ca_file = settings.SVC_EXTRA_CA_FILE
    registry = configured_registry()
    return JobRunner(
        catalogue=Catalogue(
            base_images=settings.SVC_BASE_IMAGES,
            default_family=settings.SVC_DEFAULT_OS_FAMILY,
            runtime_families=frozenset({"k8s", "k3s"} if on_kubernetes() else {"docker"}),
        ),
        builder=ImageBuilder(
            compiler=Compiler(
                docker_cli=settings.DOCKER_CLI,
                docker_host=served_docker_host(),
                push_registry=settings.REGISTRY_PUSH_REGISTRY,
                registry=registry,
                build_timeout=settings.WORKSPACE_BUILD_TIMEOUT_MS / 1000,
                push_timeout=settings.WORKSPACE_PUSH_TIMEOUT_MS / 1000,
                temp_root=temp_root,
                push_lock=advisory_lock,
                username=settings.REGISTRY_USERNAME or None,
                password=settings.REGISTRY_PASSWORD or None,
                limits=_step_limits(isolation),
            ),
            registry=registry,
            sources=source_policy(),
            temp_root=temp_root,
            extra_ca=Path(extra_ca_file).read_bytes() if extra_ca_file else b"",
            instance_id=settings.SVC_INSTANCE_ID,
        ),
        launcher=WorkspaceLauncher(
            adapter=runtime_adapter(),
            boot_limits=BootLimits(
                step_seconds=settings.WORKSPACE_STEP_TIMEOUT_MS / 1000,
                grace_seconds=settings.WORKSPACE_STOP_GRACE_MS / 1000,
                credential_seconds=settings.WORKSPACE_CREDENTIALS_TIMEOUT_MS / 1000,
            ),
            instance_id=settings.SVC_INSTANCE_ID,
            timeout=settings.WORKSPACE_LAUNCH_TIMEOUT_MS / 1000,
            # A Pod's launch asks for itself, with its own image.
            require_isolation=_nothing if on_kubernetes() else isolation.require,
            require_egress=_nothing if on_kubernetes() else isolation.require_egress,
            pool=_warm_pool(isolation),
        ),
    )


def _warm_pool(isolation: IsolationTask) -> WarmPool:
    return WarmPool(
        served_adapter(),
        instance_id=settings.SVC_INSTANCE_ID,
        # A Pod belongs to its workspace from the start.
        size=0 if on_kubernetes() else settings.WORKSPACE_WARM_POOL_SIZE,
        memory_mb=settings.WORKSPACE_WARM_POOL_MEMORY_MB,
        timeout=settings.WORKSPACE_LAUNCH_TIMEOUT_MS / 1000,
        require_isolation=isolation.require,
        pause=1.0,
    )


def build_worker(*, max_jobs: int | None = None) -> BuildWorker:
    """Return a build worker with every setting applied."""
    isolation = IsolationTask(served_adapter())
    runner = job_runner(isolation)
    builder, adapter, pool = runner.builder, runner.launcher.adapter, runner.launcher.pool
    worker_id = new_worker_id()
    stale = heartbeat_stale()
    executor = TransitionExecutor(
        adapter=adapter,
        grace=_milliseconds(settings.WORKSPACE_STOP_GRACE_MS),
        stale=stale,
    )
    images = ImageKeeper(
        compiler=builder.compiler,
        registry=builder.registry,
        instance_id=builder.instance_id,
        keep=_milliseconds(settings.WORKSPACE_IMAGE_KEEP_MS),
    )
    heartbeat = _milliseconds(settings.WORKER_HEARTBEAT_INTERVAL_MS)
    detector = FailureDetector(heartbeat)
    transitions = TransitionWorker(
        worker_id,
        executor,
        stale=stale,
        is_reliable=detector.is_reliable,
        engine=placement_engine(),
    )
    sampler = MinuteSampler(engine_id=adapter.engine_id, docker_host=_machine(), stale=stale)
    woken = [threading.Event() for _ in range(TRANSITION_THREADS)]
    report = EngineReport(
        settings.SVC_ENGINE,
        served_adapter().facts,
        builder.compiler,
        instance_id=builder.instance_id,
    )

    def on_news(news: Heard | None) -> None:
        told = {CHANNEL, ENGINES} if news is None else {channel for channel, _ in news}
        if CHANNEL in told:
            _wake(woken)
        if ENGINES in told:
            worker.wake()

    worker = BuildWorker(
        runner=runner,
        broker_url=settings.RABBITMQ_URL,
        broker_timeout=settings.RABBITMQ_CONNECT_TIMEOUT_MS / 1000,
        builds=settings.WORKSPACE_BUILD_QUEUE_PREFETCH,
        starts=settings.WORKSPACE_START_CONCURRENCY,
        times=WorkerTimes(
            lease=_milliseconds(settings.WORKSPACE_BUILD_JOB_LEASE_DURATION_MS),
            heartbeat=heartbeat,
            stale=stale,
            sweep=_milliseconds(settings.WORKER_SWEEP_INTERVAL_MS),
            overdue=_milliseconds(settings.WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS),
            keep=_milliseconds(settings.WORKER_RECONCILE_INTERVAL_MS),
        ),
        reconciler=ReconcilerTimes(
            grace=_milliseconds(settings.WORKER_RECONCILE_GRACE_MS),
            keep_ended=_milliseconds(settings.WORKSPACE_KEEP_ENDED_MS),
        ),
        tasks=[
            PeriodicTask(
                name="credentials",
                every=_milliseconds(settings.WORKER_CREDENTIALS_INTERVAL_MS),
                run=partial(look_after_credentials, adapter, instance_id=builder.instance_id),
            ),
            PeriodicTask(
                name="deliveries",
                every=_milliseconds(settings.SCM_DELIVERY_UPKEEP_INTERVAL_MS),
                run=keep_deliveries,
            ),
            PeriodicTask(
                name="images",
                every=_milliseconds(settings.WORKER_IMAGES_INTERVAL_MS),
                run=images.tidy,
            ),
            PeriodicTask(
                name="packages",
                every=_milliseconds(settings.PACKAGE_SYNC_INTERVAL_MS),
                run=sync_task(),
            ),
            *(
                PeriodicTask(
                    name=f"transitions {number}",
                    every=LOOK_EVERY,
                    run=partial(transitions.run, number=number),
                    woken=event,
                )
                for number, event in enumerate(woken, start=1)
            ),
            PeriodicTask(
                name="notifications",
                every=LISTEN_AGAIN_AFTER,
                run=partial(listen_to, [CHANNEL, ENGINES], on_news),
            ),
            PeriodicTask(
                name="expiry",
                every=_milliseconds(settings.WORKER_SWEEP_INTERVAL_MS),
                steps={"expiry": expire_workspaces},
            ),
            PeriodicTask(
                name="isolation",
                every=LOOK_AT_ISOLATION_EVERY,
                first=timedelta(0),
                steps={
                    "isolation": ClusterIsolation(isolation).look
                    if on_kubernetes()
                    else isolation.look
                },
            ),
            PeriodicTask(
                name="disks",
                every=LOOK_AT_DISKS_EVERY,
                run=DiskWatch(
                    served_adapter(),
                    instance_id=builder.instance_id,
                    # A Pod has a limit of its own, which its node holds.
                    max_bytes=0 if on_kubernetes() else settings.SVC_WORKSPACE_MAX_DISK_BYTES,
                    image=settings.SVC_NETWORK_GUARD_IMAGE or settings.SVC_BASE_IMAGES["debian"],
                ).look,
            ),
            PeriodicTask(
                name="kernel limits",
                every=LIFT_KERNEL_LIMITS_EVERY,
                first=timedelta(0),
                run=partial(lift_kernel_limits, served_adapter()),
            ),
            PeriodicTask(name="samples", every=EVERY, steps={"samples": sampler.take}),
            PeriodicTask(
                name="warm pool",
                every=KEEP_POOL_EVERY,
                first=timedelta(0),
                run=pool.keep,
                woken=pool.woken,
            ),
        ],
        max_jobs=max_jobs,
        worker_id=worker_id,
        failure_detector=detector,
        engine=placement_engine(),
        # On Kubernetes the engine that builds is not the one that workspaces run on.
        report=str if on_kubernetes() else report.write,
    )
    return worker
