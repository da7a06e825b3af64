"""A task that is woken is done at once, and what an owner asks for wakes who does it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connections

from controlplane.work.notifications import listen
from controlplane.work.periodic import PeriodicTask
from controlplane.work.stopping import StopEvent
from tests.runs.ready import ready_attempt
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle.transitions import TransitionRequest, request_transition
from workspaces.models import Transition
from workspaces.models.transition import CHANNEL

pytestmark = pytest.mark.django_db(transaction=True)

WAIT_SECONDS = LONG_WAIT


def test_a_task_that_is_woken_does_not_wait_until_it_is_due() -> None:
    done, woken, stopped = threading.Semaphore(0), threading.Event(), StopEvent()
    task = PeriodicTask(
        name="test", every=timedelta(hours=1), run=lambda _stopped: done.release(), woken=woken
    )
    thread = threading.Thread(target=task.repeat, args=[stopped], kwargs={"worker": "build"})
    thread.start()
    try:
        for _ in range(3):
            assert not done.acquire(timeout=0.2)
            woken.set()
            assert done.acquire(timeout=WAIT_SECONDS)
    finally:
        stopped.set()
        woken.set()
        thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert not done.acquire(blocking=False)


def test_a_stop_that_is_asked_for_is_announced_to_the_workers() -> None:
    heard, stopped = threading.Semaphore(0), StopEvent()

    def work() -> None:
        listen(CHANNEL, heard.release, stopped)
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert heard.acquire(timeout=WAIT_SECONDS)
        workspace_id = ready_attempt().workspace_id
        transition_request = TransitionRequest(
            workspace_id=workspace_id, kind=Transition.Kind.STOP, owner_user_id=None
        )
        assert request_transition(transition_request)
        assert heard.acquire(timeout=WAIT_SECONDS)
    finally:
        stopped.set()
        thread.join(WAIT_SECONDS)
