"""A workspace that waits to be bound notices it, however early it happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from runs.agent.boot.binding import PHASE, await_binding
from runs.agent.boot.supervisor import Supervisor
from runs.agent.status_file import StatusFile


class BoundAtOnce:
    """Where it says that it waits, and is bound in the same moment."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def write(self, phase: str) -> None:
        assert phase == PHASE
        bound = self._config.with_suffix(".new")
        bound.write_text(json.dumps({"version": 1, "runId": "somebody's"}))
        bound.rename(self._config)


class NothingToWaitFor:
    """What would wait for the next signal, which does not come: the last one was earlier."""

    def turn(self) -> list[int]:
        pytest.fail("It waits although it is bound.")


def test_one_that_is_bound_as_soon_as_it_says_that_it_waits_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "boot.json"
    config.touch(mode=0o600)
    config.write_text('{"version": 1, "unbound": true}')
    status = cast("StatusFile", BoundAtOnce(config))
    assert await_binding(str(config), status, cast("Supervisor", NothingToWaitFor())) is None
