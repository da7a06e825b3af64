"""What probes ask: whether a process is alive and ready, with and without its database."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy import health
from tests.stack.worker_process import ROOT, environment, eventually

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("kind", ["run", "build"])
def test_a_worker_is_alive_while_its_database_and_broker_are_away(
    kind: str, tmp_path: Path
) -> None:
    sign = tmp_path / "alive"
    away = environment(
        DATABASE_URL=f"postgres://nobody:nothing@{NOWHERE}/none",
        RABBITMQ_URL=f"amqp://nobody:nothing@{NOWHERE}/",
        WORKER_ALIVE_FILE=str(sign),
    )
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "manage.py", f"{kind}worker"],
            cwd=ROOT,
            env=away,
            stdout=log,
            stderr=log,
        )
        try:
            eventually(lambda: sign.exists() or worker.poll() is not None, what="it is alive")
            assert worker.poll() is None, (tmp_path / "log").read_text()
            sign.unlink()
            eventually(sign.exists, what="it stays alive")
        finally:
            worker.kill()
            worker.wait()


def test_a_worker_whose_loop_stands_still_is_not_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sign = tmp_path / "alive"
    monkeypatch.setenv("WORKER_ALIVE_FILE", str(sign))
    assert health.main(["alive"]) == 1
    assert "FileNotFoundError" in capsys.readouterr().err
    future = time.time() + 3600  # however slow this test is
    sign.touch()
    os.utime(sign, (future, future))
    assert health.main(["alive"]) == 0
    os.utime(sign, (time.time() - 3600,) * 2)
    assert health.main(["alive"]) == 1
    assert "has not gone on" in capsys.readouterr().err


@pytest.mark.parametrize("check", ["build-ready", "run-ready"])
def test_a_worker_without_its_database_is_not_ready(
    check: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DATABASE_URL_FILE", raising=False)
    monkeypatch.setenv("DATABASE_URL", f"postgres://nobody:nothing@{NOWHERE}/none")
    assert health.main([check]) == 1
    assert "the database does not answer" in capsys.readouterr().err


def test_what_waits_for_the_database_asks_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DATABASE_URL_FILE", raising=False)
    assert health.main(["database"]) == 0
    monkeypatch.setenv("DATABASE_URL", f"postgres://nobody:nothing@{NOWHERE}/none")
    assert health.main(["database"]) == 1
    assert "the database does not answer" in capsys.readouterr().err
