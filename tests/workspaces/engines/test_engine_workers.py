"""The keeper of workers: what it starts, what it ends, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from controlplane.work.models import Heartbeat
from deploy.services.process import ProcessRecord
from tests.stack.worker_process import CommandProcess, eventually
from tests.support.engines import make_engine
from tests.support.waiting import LONG_WAIT
from workspaces.engines.certificates import engine_folder
from workspaces.engines.worker_keeper import (
    FIRST_PAUSE,
    KILL_AFTER,
    LONGEST_PAUSE,
    WELL_AFTER,
    Child,
    WorkerKeeper,
)
from workspaces.models import Engine

_PROGRAM = """
import json, os, signal, sys
folder, kind, deaf = sys.argv[1:]
if deaf:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
path = os.path.join(folder, str(os.getpid()))
with open(path + ".part", "w") as file:
    json.dump({"kind": kind, **os.environ}, file)
os.rename(path + ".part", path)
while True:
    signal.pause()
"""


class Kept(WorkerKeeper):
    """A keeper whose workers are a program that only waits, and whose clock a test moves."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.folder = folder
        self.deaf = False
        super().__init__(argv=self._argv, clock=lambda: self.now)

    def _argv(self, kind: str) -> Sequence[str]:
        deaf = "deaf" if self.deaf else ""
        return [sys.executable, "-c", _PROGRAM, str(self.folder), kind, deaf]

    def begun(self) -> list[Child]:
        """Look, and return the workers that run and are not told to end, once they work."""
        self.look()
        kept = [child for child in self.children if child.told_at is None]
        for child in kept:
            eventually(
                (self.folder / str(child.process.pid)).exists, what="it works", timeout=LONG_WAIT
            )
        return kept

    def told(self, child: Child) -> dict[str, str]:
        """Return the environment of a worker."""
        text = (self.folder / str(child.process.pid)).read_text()
        return dict(json.loads(text))


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Kept]:
    """Have a keeper; what it has started is gone afterwards."""
    kept = Kept(tmp_path)
    yield kept
    for child in kept.children:
        child.process.kill()
        child.process.wait()


def added(name: str, **given: str) -> None:
    """Have an engine that an operator has added."""
    make_engine(name, **given)  # type: ignore[arg-type]
    Engine.objects.filter(pk=name).update(url=f"tcp://{name}:2376")


def names(children: Sequence[Child]) -> list[tuple[str, str]]:
    """Return whose workers these are."""
    return sorted((child.engine, child.kind) for child in children)


@pytest.mark.django_db
def test_each_engine_that_was_added_has_both_workers_and_the_first_one_has_its_own(
    keeper: Kept,
) -> None:
    make_engine("local")
    added("second")
    added("third", state="draining")
    added("fourth", state="gone")
    both = keeper.begun()
    assert names(both) == [
        *(("second", "build"), ("second", "run")),
        *(("third", "build"), ("third", "run")),
    ]
    assert {keeper.told(child)["SVC_ENGINE"] for child in both} == {"second", "third"}
    assert {child.process.pid for child in keeper.begun()} == {child.process.pid for child in both}


@pytest.mark.django_db
def test_a_run_worker_is_not_told_what_only_builds_need(
    keeper: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_APP_PRIVATE_KEY_FILE", "/etc/svc/key")
    monkeypatch.setenv("SVC_CREDENTIALS_KEY", "secret")
    added("second")
    told = {child.kind: keeper.told(child) for child in keeper.begun()}
    assert told["build"]["SVC_CREDENTIALS_KEY"] == "secret"
    assert "SCM_APP_PRIVATE_KEY_FILE" in told["build"]
    assert not {"SVC_CREDENTIALS_KEY", "SCM_APP_PRIVATE_KEY_FILE"} & set(told["run"])


@pytest.mark.django_db
def test_a_worker_that_dies_is_started_again_each_time_a_little_later(keeper: Kept) -> None:
    added("second")
    keeper.kinds = ("build",)
    pause = FIRST_PAUSE
    for _ in range(8):
        (child,) = keeper.begun()
        child.process.kill()
        child.process.wait()
        assert keeper.begun() == []
        assert 0 < keeper.pause() <= 1.0
        keeper.now += pause - 0.01
        assert keeper.begun() == []
        keeper.now += 0.02
        pause = min(2 * pause, LONGEST_PAUSE)
    (child,) = keeper.begun()
    keeper.now += WELL_AFTER
    child.process.kill()
    child.process.wait()
    assert keeper.begun() == []
    keeper.now += FIRST_PAUSE + 0.01
    assert len(keeper.begun()) == 1


@pytest.mark.django_db
def test_new_certificates_have_new_workers_at_once_and_the_old_ones_finish_their_builds(
    keeper: Kept,
) -> None:
    added("second")
    keeper.deaf = True
    old = keeper.begun()
    Engine.objects.filter(pk="second").update(certificates=b"new")
    new = keeper.begun()
    assert names(new) == names(old)
    keeper.now += 100 * KILL_AFTER
    keeper.look()
    assert all(child.process.poll() is None for child in old)
    assert names(keeper.children) == sorted(names(old) + names(new))


@pytest.mark.django_db
def test_the_workers_of_an_engine_that_leaves_end_and_one_that_is_taken_back_has_new_ones(
    keeper: Kept,
) -> None:
    added("second")
    old = keeper.begun()
    Engine.objects.filter(pk="second").update(state="leaving")
    assert keeper.begun() == []
    assert all(child.at_once for child in old)
    Engine.objects.filter(pk="second").update(state="active")
    new = keeper.begun()
    assert names(new) == names(old)
    assert not {child.process.pid for child in new} & {child.process.pid for child in old}
    for child in old:
        child.process.wait(LONG_WAIT)
    keeper.look()
    assert keeper.children == new


@pytest.mark.django_db
def test_a_worker_that_hangs_with_an_engine_that_leaves_is_killed(keeper: Kept) -> None:
    added("second")
    keeper.deaf = True
    hanging = keeper.begun()
    Engine.objects.filter(pk="second").update(state="leaving")
    keeper.look()
    keeper.now += KILL_AFTER - 1
    keeper.look()
    assert all(child.process.poll() is None for child in hanging)
    keeper.now += 2
    keeper.look()
    assert {child.process.wait(LONG_WAIT) for child in hanging} == {-signal.SIGKILL}


@pytest.mark.django_db
def test_the_certificates_of_an_engine_that_is_gone_are_removed(
    keeper: Kept, tmp_path: Path
) -> None:
    added("second")
    added("third", state="gone")
    with override_settings(SVC_DATA_DIR=tmp_path / "data"):
        for name in ("second", "third"):
            engine_folder(name).mkdir(parents=True)
            (engine_folder(name) / "key.pem").write_text("secret")
        keeper.look()
        assert engine_folder("second").exists()
        assert not engine_folder("third").exists()


@pytest.mark.docker
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("how", "only"), [(signal.SIGTERM, ["--only", "build"]), (signal.SIGKILL, ["--only", "run"])]
)
def test_no_worker_outlives_the_keeper(
    how: signal.Signals, only: list[str], build_queue: str, run_queue: str, tmp_path: Path
) -> None:
    make_engine("second")
    Engine.objects.filter(pk="second").update(url=settings.DOCKER_HOST)
    keeper = CommandProcess(
        tmp_path / "keeper.log", "engineworkers", *only, SVC_DATA_DIR=str(tmp_path / "data")
    )
    try:
        eventually(lambda: Heartbeat.objects.exists(), what="the worker works", timeout=LONG_WAIT)
        workers = [ProcessRecord.of(row.pid) for row in Heartbeat.objects.all()]
        os.kill(keeper.process.pid, how)
        ended = keeper.wait(LONG_WAIT)
        assert all(worker is not None and worker.wait_gone(LONG_WAIT) for worker in workers)
        if how == signal.SIGTERM:
            assert ended == 0, keeper.told
            assert not Heartbeat.objects.exists()
    finally:
        keeper.stop()
