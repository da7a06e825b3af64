"""What it takes to store the record of a short command, and that nothing is lost by that."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from runs.models import Run, RunHead, RunOwner, RunProcess
from runs.record import store
from runs.record.verify import verify_run
from tests.runs.executable import claim, make_executable
from tests.runs.record_factory import Source, make_run
from tests.support.sent_statements import sent_statements

pytestmark = pytest.mark.django_db(transaction=True)

STORED = ["BEGIN", "lock", "COPY", "process, run and head", "COMMIT"]
"""The statements that open, store and seal the record of a command with one process."""


def told(run: Run, *, code: int = 0) -> Source:
    """Tell the whole record of a command that printed something."""
    source = Source(run)
    source.started()
    process = source.process()
    source.output(process, b"hello\n")
    source.closed(process)
    source.exited(process, code=code)
    source.sealed(code=code)
    return source


def test_the_record_of_a_short_command_is_stored_in_five_statements() -> None:
    run = claim(make_executable())
    source = told(run, code=3)

    with sent_statements() as sent:
        appended = store.append(
            run.number, source.source_id, source.contents, fence=run.fence, opening=True, run=run
        )

    assert len(sent) == len(STORED), sent
    assert appended.sealed
    settled = Run.objects.get(pk=run.pk)
    assert (settled.status, settled.exit_code, settled.worker_id) == (Run.Status.FAILED, 3, "")
    process = RunProcess.objects.get(run_number=run.number)
    assert (process.argv, process.exit_code, process.exit_reason) == (["/bin/true"], 3, "exited")
    assert None not in (process.started_us, process.ended_us)
    head = RunHead.objects.get(pk=run.number)
    assert RunOwner.objects.get(pk=run.owner_user_id).sealed_bytes == head.stored_bytes > 0
    assert verify_run(settled).ok


def test_a_record_is_sealed_at_the_time_of_the_database() -> None:
    run = claim(make_executable())
    source = told(run)
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        (before,) = cursor.fetchone()

    store.append(
        run.number, source.source_id, source.contents, fence=run.fence, opening=True, run=run
    )

    head = RunHead.objects.filter(pk=run.number, sealed_at__lte=Now()).get()
    assert head.sealed_at is not None
    assert head.sealed_at - before >= timedelta()


def test_a_session_is_settled_by_what_its_row_says_at_the_end() -> None:
    run = claim(make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING))
    source = Source(run)
    source.started()
    source.exited(source.process(), code=0)
    source.sealed(code=0, because="stopped")
    Run.objects.filter(pk=run.pk).update(cancel_requested_at=Now())  # its holder has not heard

    store.append(
        run.number, source.source_id, source.contents, fence=run.fence, opening=True, run=run
    )

    assert Run.objects.get(pk=run.pk).status == Run.Status.CANCELLED


def test_what_was_told_of_a_process_first_counts_though_a_later_batch_tells_all_of_it() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.process(["/bin/first"])
    source.exited(source.process(["/bin/whole"]), code=1)
    source.append()
    source.processes = 0
    source.exited(source.process(["/bin/again"]), code=2)  # it goes by the numbers of the first
    source.exited(source.process(["/bin/again"]), code=2)
    source.exited(source.process(["/bin/third"]), code=3)
    source.append()

    found = RunProcess.objects.filter(run_number=run.number).order_by("process_number")
    assert list(found.values_list("argv", "exit_code")) == [
        (["/bin/first"], 2),
        (["/bin/whole"], 1),
        (["/bin/third"], 3),
    ]
