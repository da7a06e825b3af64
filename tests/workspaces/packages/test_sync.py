"""Reading a distribution's index: Debian's for real, and what becomes of it when readings fail."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings as configured
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone
from pytest_django.fixtures import Settings

from controlplane.database.locks import _key
from controlplane.subprocesses import run_process
from tests.builds.bench import write_program
from tests.stack.worker_process import CommandProcess, WorkerProcess, eventually
from tests.support.locked_rows import locked
from tests.support.waiting import LONG_WAIT
from tests.workspaces.packages.package_index import write_index
from workspaces.families import FAMILIES
from workspaces.models import Package, PackageIndex
from workspaces.packages.reading import PackageEngine, configured_engine
from workspaces.packages.sync import (
    PackageSyncBusyError,
    PackageSyncError,
    SyncTimes,
    request_sync,
    sync_due_families,
    sync_family,
)

DEBIAN = FAMILIES["debian"]
BASE_IMAGE = configured.SVC_BASE_IMAGES["debian"]
TIMES = SyncTimes(ttl=timedelta(hours=24), backoff=timedelta(minutes=1))
NEVER = threading.Event()


def docker(*arguments: str) -> str:
    """Return what the engine's command line prints."""
    env = {**os.environ, "DOCKER_HOST": configured.DOCKER_HOST}
    done = run_process(
        [configured.DOCKER_CLI, *arguments], env=env, timeout=LONG_WAIT, stdout_limit=65536
    )
    return done.stdout.decode()


def containers_of(instance_id: str) -> list[str]:
    labels = ("--filter", f"label=svc.instance={instance_id}", "--filter", "label=svc.packages")
    return docker("ps", "--all", "--quiet", *labels).split()


_SLOW_TO_CREATE = """
case "$1" in
create)
    touch {at}/asked
    # Whoever gives up meanwhile has the container removed before it is there.
    setsid sh -c 'for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e {at}/removed ] || sleep 0.2; done
        {cli} "$@" && touch {at}/made' sh "$@" > /dev/null 2>&1 &
    until [ -e {at}/made ]; do sleep 0.05; done ;;
rm) {cli} "$@"; touch {at}/removed ;;
*) exec {cli} "$@" ;;
esac
"""


@pytest.fixture
def engine() -> PackageEngine:
    return configured_engine()


@pytest.mark.docker
@pytest.mark.django_db
class TestWhenAReadingFails:
    def test_the_earlier_index_stays_in_use(self, settings: Settings, tmp_path: Path) -> None:
        write_index("debian", {"jq": ["1.6"]})
        before = PackageIndex.objects.get(pk="debian").read_at
        program = write_program(
            tmp_path / "docker",
            '[ "$1" = start ] && { echo "mirror is away" >&2; exit 100; }\nexit 0\n',
        )
        settings.DOCKER_CLI = str(program)
        with pytest.raises(PackageSyncError, match="mirror is away"):
            sync_family("debian", engine=configured_engine(), cancelled=NEVER)
        index = PackageIndex.objects.get(pk="debian")
        assert (index.read_at, index.failures) == (before, 1)
        assert "mirror is away" in index.error
        assert list(Package.objects.values_list("name", "versions")) == [("jq", ["1.6"])]

    @pytest.mark.parametrize(
        ("listing", "words"),
        [
            ("svc:architecture amd64\\nsvc:section candidates\\n", "cut off"),
            ("svc:architecture amd64\\nsvc:end\\n", "no package"),
            ("Reading package lists...\\n", "architecture"),
        ],
        ids=["cut-off", "empty", "not-a-listing"],
    )
    def test_a_listing_that_is_none_changes_nothing(
        self, settings: Settings, tmp_path: Path, listing: str, words: str
    ) -> None:
        write_index("debian", {"jq": ["1.6"]})
        settings.DOCKER_CLI = str(
            write_program(
                tmp_path / "docker", f"[ \"$1\" = start ] && printf '{listing}'\nexit 0\n"
            )
        )
        with pytest.raises(PackageSyncError, match=words):
            sync_family("debian", engine=configured_engine(), cancelled=NEVER)
        assert list(Package.objects.values_list("name", flat=True)) == ["jq"]

    def test_a_base_image_that_does_not_exist_is_told(self, settings: Settings) -> None:
        settings.SVC_BASE_IMAGES = {**settings.SVC_BASE_IMAGES, "debian": "127.0.0.1:1/no:such"}
        with pytest.raises(CommandError, match=r"Not read: debian\. The previous"):
            call_command("syncpackages", "--family", "debian")
        assert "could not make the container" in PackageIndex.objects.get(pk="debian").error

    def test_nothing_is_left_on_the_engine(self, settings: Settings, engine: PackageEngine) -> None:
        stopped = threading.Event()
        stopped.set()
        with pytest.raises(PackageSyncError, match="stopped"):
            sync_family("debian", engine=engine, cancelled=stopped)
        assert containers_of(settings.SVC_INSTANCE_ID) == []
        # Being told to stop is nobody's failure.
        assert not PackageIndex.objects.filter(failures__gt=0).exists()

    def test_a_reading_that_is_stopped_while_its_container_is_made_removes_it(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        """The engine takes a moment, also when the command that asked it is gone."""
        body = _SLOW_TO_CREATE.format(at=tmp_path, cli=settings.DOCKER_CLI)
        program = write_program(tmp_path / "docker", body)
        settings.DOCKER_CLI, settings.SVC_INSTANCE_ID = program, f"test-{uuid.uuid4().hex[:12]}"
        stopped = threading.Event()

        def stop() -> None:
            eventually((tmp_path / "asked").exists, what="the engine was asked for a container")
            stopped.set()

        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(stop)
            with pytest.raises(PackageSyncError, match="stopped"):
                sync_family("debian", engine=configured_engine(), cancelled=stopped)
            stopping.result(LONG_WAIT)
        eventually((tmp_path / "made").exists, what="the engine has made it")
        assert containers_of(settings.SVC_INSTANCE_ID) == []

    def test_what_a_killed_reading_left_is_removed_by_the_next_look(
        self, settings: Settings, engine: PackageEngine
    ) -> None:
        settings.SVC_INSTANCE_ID = f"test-{uuid.uuid4().hex[:12]}"
        engine = configured_engine()
        name = engine._create(DEBIAN, NEVER)
        assert len(containers_of(settings.SVC_INSTANCE_ID)) == 1
        write_index("debian", {"jq": ["1.6"]})
        read = sync_due_families(NEVER, families=["debian"], engine=engine, times=TIMES)
        assert read == 0, name
        assert containers_of(settings.SVC_INSTANCE_ID) == []


@pytest.mark.docker
@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("moment", ["made", "reading", "writing"])
def test_a_reading_that_is_killed_leaves_the_earlier_index(
    settings: Settings, tmp_path: Path, moment: str
) -> None:
    write_index("debian", {"jq": ["1.6"]})
    instance_id = f"test-{uuid.uuid4().hex[:12]}"
    settings.SVC_INSTANCE_ID = instance_id
    process = CommandProcess(tmp_path / "log", "syncpackages", "--family", "debian")
    try:
        # What has begun to write waits for a row, so that it is not done before it was seen.
        with locked(Package.objects.get()) if moment == "writing" else nullcontext():
            eventually(lambda: _has_come_to(moment, instance_id), what=moment)
            process.process.send_signal(signal.SIGKILL)
            process.process.wait(timeout=LONG_WAIT)
        eventually(lambda: not _others_at_work(), what="its connections are closed")
        assert list(Package.objects.values_list("name", "versions")) == [("jq", ["1.6"])]
    finally:
        process.process.kill()
        process.process.wait(timeout=LONG_WAIT)
    # The lock goes with the process's connection, and the container with the next reading.
    eventually(lambda: not _locks_held(), what="the lock is given back")
    assert sync_family("debian", engine=configured_engine(), cancelled=NEVER) > 30_000
    assert containers_of(instance_id) == []
    assert Package.objects.filter(family="debian", name="ripgrep", virtual=False).exists()


def _has_come_to(moment: str, instance_id: str) -> bool:
    if moment == "made":
        return bool(containers_of(instance_id))
    if moment == "reading":
        running = ("--filter", "status=running", "--filter", f"label=svc.instance={instance_id}")
        return bool(docker("ps", "--quiet", *running).split())
    return any("DELETE FROM workspaces_package" in query for query in _others_at_work())


def _others_at_work() -> list[str]:
    """Return what other connections to this database are executing."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state <> 'idle'"
        )
        return [row[0] for row in cursor.fetchall()]


def _locks_held() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_build_worker_reads_what_is_due_and_removes_what_was_left(
    settings: Settings, tmp_path: Path
) -> None:
    settings.SVC_INSTANCE_ID = instance_id = f"test-{uuid.uuid4().hex[:12]}"
    write_index("debian", {"jq": ["1.6"]})
    PackageIndex.objects.update(read_at=timezone.now() - timedelta(days=2))
    configured_engine()._create(FAMILIES["debian"], NEVER)
    worker = WorkerProcess(
        tmp_path / "log", PACKAGE_SYNC_FAMILIES="debian", PACKAGE_SYNC_INTERVAL_MS="200"
    )
    try:
        eventually(
            lambda: Package.objects.filter(name="ripgrep").exists(), what="the index is read"
        )
        eventually(lambda: not containers_of(instance_id), what="no container is left")
    finally:
        worker.process.terminate()
        worker.process.wait(timeout=LONG_WAIT)
    assert PackageIndex.objects.get().packages > 30_000


@pytest.mark.django_db(transaction=True)
def test_readers_see_the_earlier_index_until_the_new_one_is_whole() -> None:
    """Another connection asks while the index is being replaced, between any two statements."""
    write_index("debian", {f"old-{n}": ["1"] for n in range(500)})
    seen: set[tuple[int, int]] = set()
    looked, stop = threading.Event(), threading.Event()

    def look() -> None:
        try:
            over = False
            while not over:
                over = stop.is_set()
                names = list(Package.objects.values_list("name", flat=True))
                old = sum(name.startswith("old-") for name in names)
                seen.add((old, len(names) - old))
                looked.set()
        finally:
            connection.close()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        assert looked.wait(LONG_WAIT)
        write_index("debian", {f"new-{n}": ["1"] for n in range(700)})
    finally:
        stop.set()
        looker.join(timeout=LONG_WAIT)
    assert seen == {(500, 0), (0, 700)}


@pytest.mark.django_db
class TestWhatIsStored:
    def test_only_rows_that_differ_are_touched(self) -> None:
        write_index("debian", {"a1": ["1"], "b1": ["1"], "c1": ["1"]})
        before = dict(Package.objects.values_list("name", "pk"))
        write_index("debian", {"a1": ["1"], "b1": ["2", "1"], "d1": ["1"]})
        after = dict(Package.objects.values_list("name", "pk"))
        assert after["a1"] == before["a1"]
        assert after["b1"] != before["b1"]
        assert set(after) == {"a1", "b1", "d1"}

    def test_families_do_not_touch_each_other(self) -> None:
        write_index("debian", {"jq": ["1.6"]})
        write_index("arch", {"jq": ["1.7"], "yq": ["4"]})
        assert list(Package.objects.filter(family="debian").values_list("name", flat=True)) == [
            "jq"
        ]

    def test_a_real_package_is_no_virtual_one(self) -> None:
        write_index(
            "debian", {"gawk": ["5"], "awk": ["1"]}, provides={"gawk": ["awk", "posix-awk"]}
        )
        assert Package.objects.get(name="awk").versions == ["1"]
        assert Package.objects.get(name="posix-awk").providers == ["gawk"]

    def test_what_no_package_manager_could_be_asked_for_is_left_out(self) -> None:
        names = ["ok", "UPPER", "has_underscore", "ends-", "-x", "a" * 300, "é", "a b", "a;b", ""]
        write_index("debian", {name: ["1"] for name in names})
        assert list(Package.objects.values_list("name", flat=True)) == ["ok"]
        write_index("debian", {"ok": ["1", "2\t3", "4 5", "x" * 300, "6\0"]})
        assert Package.objects.get().versions == ["1"]

    def test_what_no_blueprint_could_hold_is_left_out(self) -> None:
        names = {name: ["1"] for name in ("ok", "a@b", "x" * 129)}
        write_index("arch", names, provides={"ok": ["other", "c@d"]})
        assert set(Package.objects.values_list("name", flat=True)) == {"ok", "other"}


@pytest.mark.django_db
class TestWhenAnIndexIsDue:
    @staticmethod
    def index(**values: object) -> PackageIndex:
        return PackageIndex(family="debian", base_image=BASE_IMAGE, **values)

    def test_one_that_was_never_tried_is(self) -> None:
        assert TIMES.is_due(None, BASE_IMAGE)
        assert TIMES.is_due(self.index(), BASE_IMAGE)

    def test_a_fresh_one_is_not_and_an_old_one_is(self) -> None:
        now = timezone.now()
        assert not TIMES.is_due(self.index(read_at=now - timedelta(hours=23)), BASE_IMAGE)
        assert TIMES.is_due(self.index(read_at=now - timedelta(hours=25)), BASE_IMAGE)

    def test_a_fresh_one_of_another_base_image_is_if_it_is_older_than_the_worker(self) -> None:
        index = self.index(read_at=TIMES.since - timedelta(hours=1))
        assert not TIMES.is_due(index, BASE_IMAGE)
        assert TIMES.is_due(index, "debian:another-release")

    def test_two_workers_with_different_base_images_do_not_read_it_in_turns(self) -> None:
        index = self.index(read_at=TIMES.since + timedelta(seconds=1))
        assert not TIMES.is_due(index, "debian:another-release")

    def test_one_of_another_base_image_waits_after_a_failure_like_any(self) -> None:
        read_at = TIMES.since - timedelta(hours=1)
        index = self.index(read_at=read_at, failures=4, tried_at=timezone.now())
        assert not TIMES.is_due(index, "debian:another-release")

    @pytest.mark.parametrize(
        ("failures", "minutes", "due"),
        [(1, 0.5, False), (1, 2, True), (4, 7, False), (4, 9, True), (60, 1000, False)],
    )
    def test_after_failures_it_waits_twice_as_long_each_time(
        self, failures: int, minutes: float, due: bool
    ) -> None:
        tried_at = timezone.now() - timedelta(minutes=minutes)
        assert TIMES.is_due(self.index(failures=failures, tried_at=tried_at), BASE_IMAGE) is due

    def test_it_never_waits_longer_than_an_index_lives(self) -> None:
        tried_at = timezone.now() - timedelta(hours=25)
        assert TIMES.is_due(self.index(failures=1000, tried_at=tried_at), BASE_IMAGE)

    def test_an_operator_has_it_read_at_once(self) -> None:
        write_index("debian", {"jq": ["1.6"]})
        PackageIndex.objects.update(failures=9, tried_at=Now())
        request_sync("debian")
        assert TIMES.is_due(PackageIndex.objects.get(), BASE_IMAGE)

    def test_one_process_at_a_time_reads_a_family(self, engine: PackageEngine) -> None:
        other = connection.copy()
        name = f"package-sync:{engine.instance_id}:debian"
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_key(name)])
            try:
                with pytest.raises(PackageSyncBusyError):
                    sync_family("debian", engine=engine, cancelled=NEVER)
            finally:
                other.close()
