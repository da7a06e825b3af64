"""What a run is given as env and stdin is nowhere in clear, and not there for long."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from controlplane.security.crypto import SealError
from runs.input.sealed import StartInput, open_input, seal_input
from runs.models import Run
from runs.services import request_cancel
from tests.conformance import codes_told
from tests.conftest import OWNER, Api
from tests.runs.executable import make_executable
from tests.runs.ready import ready_attempt
from tests.runs.recording.scripted_agent import ScriptedAgent
from tests.runs.recording.whole_runs import AWAY, assert_whole, record, whole
from tests.runs.test_runs_api import run_queue as run_queue
from workspaces.runtimes.base import AgentAnswer

pytestmark = pytest.mark.django_db(transaction=True)

GIVEN = StartInput({"DATABASE_PASSWORD": "kept-for-the-run"}, "typed once: öpen sesame\n".encode())
TOLD = {"env": dict(GIVEN.env), "stdin": (GIVEN.stdin or b"").decode()}


def body(**values: Any) -> dict[str, Any]:
    """A request for a run in a workspace that is ready."""
    attempt = ready_attempt()
    return {
        "ownerUserId": OWNER,
        "workspaceId": str(attempt.workspace_id),
        "harnessId": "shell",
        "command": {"executable": "cat"},
        **values,
    }


def make_given(**values: Any) -> Run:
    """Create a run to be executed with what is given."""
    run_id = uuid.uuid4()
    sealed = seal_input(GIVEN, run_id=run_id)
    return make_executable(id=run_id, sealed_input=sealed, **values)


def sealed_input(run: Run) -> bytes | memoryview | None:
    return Run.objects.values_list("sealed_input", flat=True).get(pk=run.pk)


@dataclass(slots=True)
class LookingAgent(ScriptedAgent):
    """Looks into the database at each call, as somebody with a copy of it would."""

    run_id: uuid.UUID = field(default_factory=uuid.uuid4)
    seen: list[tuple[str, bool]] = field(default_factory=list)

    def _reach(self, arguments: Sequence[str]) -> None:
        held = Run.objects.filter(pk=self.run_id, sealed_input__isnull=False).exists()
        self.seen.append((arguments[0], held))
        ScriptedAgent._reach(self, arguments)


def test_no_column_of_the_database_has_it_in_clear(api: Api) -> None:
    answer = api.post("/v1/runs", body(**TOLD), expect=201)
    with connection.cursor() as cursor:
        stored = "SELECT to_jsonb(run)::text FROM runs_run run WHERE id = %s"
        cursor.execute(stored, [answer.body["runId"]])
        (row,) = cursor.fetchone()
    for value in (*GIVEN.env.values(), "DATABASE_PASSWORD", "typed once", "sesame"):
        assert value not in row
        assert value.encode().hex() not in row
        assert base64.b64encode(value.encode()).decode()[:-4] not in row
    run = Run.objects.get(pk=answer.body["runId"])
    assert open_input(run.sealed_input, run_id=run.pk) == GIVEN


def test_the_agent_is_given_it_and_it_is_erased_once_the_run_has_started() -> None:
    run = make_given()
    agent = LookingAgent(to_execute={run.pk: whole(run)}, run_id=run.pk)

    run = record(run, agent)

    assert_whole(run)
    (spec,) = agent.specs
    assert spec["env"] == GIVEN.env
    assert base64.b64decode(str(spec["stdin"])) == GIVEN.stdin
    assert agent.seen == [("exec", True)]
    assert sealed_input(run) is None


def test_it_is_kept_until_the_agent_has_answered() -> None:
    run = make_given()
    agent = LookingAgent(to_execute={run.pk: whole(run)}, unreachable=[AWAY, AWAY], run_id=run.pk)

    record(run, agent)

    assert [spec["env"] for spec in agent.specs] == [GIVEN.env]
    assert agent.seen == [("exec", True)] * 3
    assert sealed_input(run) is None


def test_a_worker_that_died_after_the_start_leaves_it_to_be_erased_by_the_next() -> None:
    run = make_given()
    started = whole(run)
    agent = LookingAgent(spools={run.pk: started}, to_execute={run.pk: started}, run_id=run.pk)

    assert_whole(record(run, agent))
    assert agent.seen == [("exec", True)]
    assert sealed_input(run) is None


def test_a_run_that_is_cancelled_before_it_started_loses_it() -> None:
    run = make_given()
    request_cancel(run)
    assert Run.objects.get(pk=run.pk).status == Run.Status.CANCELLED
    assert sealed_input(run) is None


def test_a_run_that_could_not_be_queued_loses_it(api: Api, settings: Settings) -> None:
    settings.RABBITMQ_URL = "amqp://guest:guest@127.0.0.1:9/"
    answer = api.post("/v1/runs", body(**TOLD), expect=502)
    run = Run.objects.get(pk=answer.body["runId"])
    assert run.status == Run.Status.FAILED
    assert run.sealed_input is None


def test_a_run_that_the_agent_refuses_loses_it() -> None:
    run = make_given()
    agent = ScriptedAgent(exec_answer=AgentAnswer(2, b'{"message": "no"}', b""))
    assert record(run, agent).error_code == "command-refused"
    assert sealed_input(run) is None


def test_the_database_itself_keeps_it_in_no_final_run() -> None:
    run = make_given()
    with pytest.raises(IntegrityError, match="run_input_erased_when_final"), transaction.atomic():
        Run.objects.filter(pk=run.pk).update(status="completed", finished_at=run.queued_at)


def test_it_opens_for_no_other_run() -> None:
    run = make_given()
    with pytest.raises(SealError):
        open_input(sealed_input(run), run_id=uuid.uuid4())


def test_a_worker_with_another_key_starts_nothing(settings: Settings) -> None:
    run = make_given()
    settings.SVC_RECORD_SIGNING_KEY = base64.b64encode(b"another key of 32 bytes in all..").decode()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)})

    run = record(run, agent)

    assert (run.status, run.error_code) == (Run.Status.FAILED, "input-unopened")
    assert agent.calls == []
    assert run.sealed_input is None


def test_without_a_key_nothing_is_stored(api: Api, settings: Settings) -> None:
    settings.SVC_RECORD_SIGNING_KEY = ""
    wanted = body()
    execs = f"/v1/workspaces/{wanted['workspaceId']}/exec"
    command = {"command": ["cat"], "background": True}
    for given in ({"env": TOLD["env"]}, {"stdin": ""}):
        for path, values in (("/v1/runs", wanted), (execs, command)):
            answer = api.post(path, {**values, **given}, expect=503)
            assert answer.body["code"] == "record-signing-key-unset"
            assert answer.body["code"] in codes_told("POST", path)
    assert not Run.objects.exclude(mode=Run.Mode.BOOT).exists()
    api.post("/v1/runs", wanted, expect=201)


def test_the_admin_does_not_show_it() -> None:
    run = make_given()
    staff = Client()
    staff.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    page = staff.get(reverse("admin:runs_run_change", args=[run.pk]))
    assert page.status_code == 200
    assert "sealed" not in page.content.decode().lower().replace("sealed_at", "")


def test_a_run_that_waits_is_listed_without_it(api: Api) -> None:
    api.post("/v1/runs", body(**TOLD), expect=201)
    answer = api.get(f"/v1/runs?ownerUserId={OWNER}")
    (shown,) = [run for run in answer.body["items"] if run["mode"] == "one-shot"]
    assert not {"env", "stdin", "sealedInput"} & set(shown)
    assert shown["command"] == {"executable": "cat", "args": []}
