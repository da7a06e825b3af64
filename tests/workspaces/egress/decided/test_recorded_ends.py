"""Whoever stores the end of a boot record has its proxy store what it has decided first."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.agent.record.frames import Kind
from runs.models import Run
from runs.record import egress_endings
from runs.record.egress_endings import NOT_SETTLED
from runs.record.verify import verify_run
from runs.recording.collect import RUNS_DIRECTORY, drain
from runs.recording.control import RunControl
from runs.recording.recorder import Recorder
from tests.runs.executable import claim
from tests.runs.record_factory import Source
from tests.runs.recording.scripted_agent import ScriptedAgent, Spool, framed
from tests.runs.recording.whole_runs import LIMITS
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    losses,
    network_of,
    with_policy,
)
from tests.workspaces.egress.decided.live_proxy import live_proxy
from workspaces.egress import known_networks
from workspaces.egress.decided.journal import Journal
from workspaces.runtimes.base import FileReader

pytestmark = pytest.mark.django_db(transaction=True)

more_behind_the_end = pytest.mark.parametrize("behind", [0, 1], ids=["nothing", "something"])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a record waits for its proxy as long as it takes."""
    monkeypatch.setattr(egress_endings, "SETTLE_SECONDS", LONG_WAIT)
    monkeypatch.setattr(known_networks, "LOOK_SECONDS", 0.01)


def ended(run: Run, behind: int) -> Source:
    """What a workspace says to its end, and perhaps something after it."""
    source = Source(run)
    source.started()
    source.sealed()
    for _ in range(behind):
        source.event(Kind.NETWORK_SOURCE_OBSERVED, {})
    return source


def assert_whole(run: Run) -> None:
    assert head_of(run).sealed_at is not None
    assert hosts(run) == [("a.test", 1)]
    assert NOT_SETTLED not in losses(run)
    assert verify_run(run).ok


@more_behind_the_end
def test_the_recorder_stores_an_end_behind_all_decisions(journal: Journal, behind: int) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    source = ended(run, behind)
    agent = ScriptedAgent(spools={run.pk: Spool(source.source_id, source.contents)})
    with live_proxy(journal):
        Recorder(claim(run), RunControl(), adapter=agent, limits=LIMITS).record()
    assert network_of(attempt).settled_at is not None
    assert_whole(run)


@more_behind_the_end
def test_what_is_collected_of_a_container_ends_behind_all_decisions(
    journal: Journal, tmp_path: Path, behind: int
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    source = ended(run, behind)
    folder = tmp_path / "runs" / str(run.pk)
    folder.mkdir(parents=True)
    (folder / "spool.json").write_text(f'{{"spoolId": "{source.source_id}"}}')
    (folder / f"{1:020}.seg").write_bytes(b"".join(map(framed, source.contents)))
    with live_proxy(journal):
        drain(reader(tmp_path / "runs"), run.pk)
    assert_whole(run)


def reader(root: Path) -> FileReader:
    """Reads from a folder as the engine reads from a container: a tar."""

    @contextlib.contextmanager
    def read(path: str) -> Iterator[Iterator[bytes]]:
        place = root / path.removeprefix(RUNS_DIRECTORY).lstrip("/")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(place, arcname=place.name)
        yield iter([buffer.getvalue()])

    return read
