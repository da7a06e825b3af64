"""Workspaces come and go while workers die and containers vanish; in the end nothing is left.

``CHAOS_CYCLES`` says how many live and are deleted (12 unless it is set), and ``CHAOS_SEED`` what
happens to them.
"""

from __future__ import annotations

import os
import random

import pytest
import requests
from docker.errors import APIError

from tests.chaos.verdict import assert_nothing_open
from tests.stack.private_stack import OWNER, PrivateStack
from tests.stack.processes import Worker, wait_for
from tests.stack.sandboxes import Started, blueprint, started
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(14_400)]

CYCLES = int(os.environ.get("CHAOS_CYCLES", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "20261122"))
ENDED = ("stopped", "failed", "cancelled")
AT_ONCE = 5
"""How many workspaces live at the same time."""


class Cycles:
    """Workspaces that are asked for one thing after the other, and what happens to them."""

    def __init__(self, stack: PrivateStack) -> None:
        self._stack = stack
        self._chance = random.Random(SEED)
        self._workers: list[Worker] = [stack.start_worker(), stack.start_worker()]
        self.deleted: list[Started] = []

    def run(self, most: int) -> None:
        """Do all that some workspaces go through, with bad things in their course; delete them."""
        stack, chance = self._stack, self._chance
        jobs = [
            stack.post(blueprint(persistence=chance.choice(("persistent", "ephemeral"))))
            for _ in range(min(most, chance.randint(1, AT_ONCE)))
        ]
        for step in (self._wait_ready, self._stop, self._start, self._wait_ready):
            for job in jobs:
                if chance.random() < 0.8:
                    step(job)
                self._something_bad(job)
        for job in jobs:
            if chance.random() < 0.5:
                self._something_bad(job)
            self._delete(job)
            self.deleted.append(job)

    def settle(self) -> None:
        """Have two workers that live, whatever was killed."""
        self._workers = [each for each in self._workers if each.exit_code is None]
        while len(self._workers) < 2:
            self._workers.append(self._stack.launch_worker())

    # ------------------------------------------------------------ what is asked for

    def _status(self, job: Started) -> str:
        return str(self._stack.get(f"/v1/workspaces/{job.workspace_id}")["status"])

    def _wait_ready(self, job: Started) -> None:
        """Wait until it is ready or has ended; what happens to it may be a reason for either."""
        wait_for(lambda: self._status(job) in ("ready", *ENDED), "it is ready or has ended")

    def _stop(self, job: Started) -> None:
        self._post(job, "stop", 202)
        if self._chance.random() < 0.5:
            wait_for(lambda: self._status(job) in ENDED, "it is stopped")

    def _start(self, job: Started) -> None:
        answer = self._post(job, "start", 202, 409)  # it may not have ended
        if answer.status_code == 202:
            assert started(answer.json()).workspace_id == job.workspace_id

    def _delete(self, job: Started) -> None:
        url = f"{self._stack.api}/v1/workspaces/{job.workspace_id}?ownerUserId={OWNER}"
        for _ in range(self._chance.randint(1, 2)):
            answer = requests.delete(url, timeout=LONG_WAIT)
            assert answer.status_code == 202, answer.text

    def _post(self, job: Started, what: str, *expected: int) -> requests.Response:
        url = f"{self._stack.api}/v1/workspaces/{job.workspace_id}/{what}"
        answer = requests.post(url, json={"ownerUserId": OWNER}, timeout=LONG_WAIT)
        assert answer.status_code in expected, answer.text
        return answer

    # ------------------------------------------------------------ what happens

    def _something_bad(self, job: Started) -> None:
        if self._chance.random() < 0.5:
            return
        self._chance.choice((self._kill_worker, self._remove_containers))(job)

    def _kill_worker(self, _: Started) -> None:
        self._chance.choice(self._workers).kill()
        self.settle()

    def _remove_containers(self, job: Started) -> None:
        """Remove what the workspace has, as a person with access to the engine may do."""
        for container in self._stack.engine.containers():
            if container.labels.get("svc.workspace") == job.workspace_id:
                try:
                    container.remove(force=True)
                except APIError as error:  # a worker was quicker
                    assert error.status_code in (404, 409), error


def test_after_all_cycles_nothing_is_left_of_what_was_deleted(stack: PrivateStack) -> None:
    cycles = Cycles(stack)
    while (left_to_do := CYCLES - len(cycles.deleted)) > 0:
        cycles.run(left_to_do)
    cycles.settle()

    def left() -> list[str]:
        engine = stack.engine
        containers = [str(each.name) for each in engine.containers()]
        networks = [str(each.name) for each in engine.networks()]
        return [*containers, *networks, *engine.volumes(), *stack.folders()]

    def waiting() -> list[str]:
        rows = stack.database.rows(
            "select id::text from workspaces_workspace where deleted_at is null and id = any(%s)",
            [job.workspace_id for job in cycles.deleted],
        )
        return [row[0] for row in rows]

    wait_for(
        lambda: (waiting(), left()) == ([], []),
        lambda: f"nothing is left of what was deleted: {waiting()}, {left()}",
    )
    assert_nothing_open(stack)
    for job in cycles.deleted:
        assert stack.get(f"/v1/workspaces/{job.workspace_id}")["status"] == "deleted"
        assert stack.events(job).count("workspace.deleted") == 1
