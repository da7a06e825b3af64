"""Several engines: whose worker claims what, what clients read, and the operator's command."""

from __future__ import annotations

import importlib
import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.test import Client, override_settings
from django.urls import reverse

from runs.models import Run
from runs.recording import claims, run_sweeper
from tests.conftest import Api
from tests.factories import LEASE, make_job, make_worker
from tests.runs.ready import ready_attempt
from tests.support import attempt_steps
from tests.support.engines import STALE, make_engine, persistent, silence
from tests.workspaces.lifecycle.test_lifecycle_races import asked
from workspaces import services as workspaces
from workspaces.engines import engine_adapters
from workspaces.engines.certificates import (
    CertificatesError,
    make_certificates,
    read_certificates,
    seal_certificates,
    unpacked,
)
from workspaces.lifecycle import engines
from workspaces.models import (
    Attempt,
    BuildJob,
    Engine,
    RuntimeInstance,
    Transition,
    WarmMember,
    WarmPlan,
)
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.remote.engine_folders import docker_host_of, place_of

pytestmark = pytest.mark.django_db

KEY = "A" * 43 + "="


@pytest.fixture(autouse=True)
def _two() -> None:
    make_engine("local")
    make_engine("second")


def on(name: str, attempt: Attempt) -> Attempt:
    """Have a ready workspace be on an engine."""
    assert RuntimeInstance.objects.filter(attempt=attempt).update(
        engine_name=name, engine_id=f"id-of-{name}"
    )
    return attempt


def shown(api: Api, attempt: Attempt) -> Any:
    return api.get(f"/v1/workspaces/{attempt.workspace_id}").body


def engine(*arguments: str) -> str:
    out = io.StringIO()
    call_command("engine", *arguments, stdout=out)
    return out.getvalue()


# ---------------------------------------------------------------- who claims what


def test_a_worker_claims_the_jobs_of_its_engine_and_none_before_it_is_placed() -> None:
    placed, free = make_job(engine_name="second"), make_job()
    given: dict[str, Any] = {"worker_id": "w", "lease": LEASE}
    assert BuildJob.objects.claim(placed.pk, **given, engine="local") is None
    assert BuildJob.objects.claim(placed.pk, **given, engine="second") is not None
    assert BuildJob.objects.claim(free.pk, **given, engine="local") is None
    Engine.objects.filter(pk="second").update(state="gone")
    claimed = BuildJob.objects.claim(free.pk, **given, engine="local")
    assert claimed is not None
    assert claimed.engine_name == "local"


def test_an_engine_that_is_drained_or_gone_starts_nothing_and_ends_what_it_began() -> None:
    waiting, launching = make_job(engine_name="second"), make_job(engine_name="second")
    given: dict[str, Any] = {"worker_id": "w", "lease": timedelta(), "engine": "second"}
    assert BuildJob.objects.claim(launching.pk, **given) is not None
    for state in ("draining", "gone"):
        Engine.objects.filter(pk="second").update(state=state)
        assert BuildJob.objects.claim(waiting.pk, **given) is None
        assert BuildJob.objects.claim(launching.pk, **given) is not None


def test_a_transition_is_for_the_worker_of_the_engine_where_the_workspace_is() -> None:
    attempt = on("second", asked())
    given: dict[str, Any] = {"alive": None, "lease": LEASE}
    assert Transition.objects.claim_next("w", **given, engine="local") is None
    claimed = Transition.objects.claim_next("w", **given, engine="second")
    assert claimed is not None
    assert claimed.workspace_id == attempt.workspace_id


def test_runs_are_recorded_by_the_workers_of_the_engine_where_the_workspace_is() -> None:
    attempt = on("second", ready_attempt())
    boot = Run.objects.get(pk=attempt.run_id)
    command = Run.objects.create(
        workspace_id=attempt.workspace_id,
        attempt=attempt,
        owner_user_id="usr_test",
        harness_id="shell",
        mode=Run.Mode.ONE_SHOT,
        command={"executable": "true"},
        recorded=True,
    )
    both = {boot.pk, command.pk}
    found = {
        name: set(run_sweeper.claimable_runs(overdue=timedelta(), limit=10, engine=name))
        for name in ("local", "second", "")
    }
    assert found == {"local": set(), "second": both, "": both}
    for run in (boot, command):
        given: dict[str, Any] = {"worker_id": "w", "lease": LEASE}
        assert claims.claim(run.pk, **given, engine="local") is None
        assert claims.claim(run.pk, **given, engine="second") is not None


# ---------------------------------------------------------------- what clients read


def test_a_workspace_says_where_it_is_and_whether_its_volumes_pin_it(api: Api) -> None:
    fleeting = on("second", ready_attempt())
    kept = on("local", ready_attempt(spec=persistent()))
    assert shown(api, fleeting)["engine"] == {"name": "second", "pinned": False}
    assert shown(api, kept)["engine"] == {"name": "local", "pinned": True}
    waiting = make_job(engine_name="second").attempt
    assert shown(api, waiting)["engine"] == {"name": "second", "pinned": False}
    assert "engine" not in shown(api, make_job().attempt)


def test_what_is_on_an_engine_that_is_lost_says_so_until_it_answers(api: Api) -> None:
    running, waiting = on("second", ready_attempt()), make_job(engine_name="second").attempt
    silence("second")
    for attempt, status in ((running, "ready"), (waiting, "queued")):
        read = shown(api, attempt)
        assert (read["status"], read["reason"]["code"]) == (status, "engine-lost")
        assert read["reason"]["engine"] == "second"
        assert "second does not answer" in read["reason"]["message"]
    Engine.objects.heard("second", engine_id="x", memory_bytes=1, cpus=1, images=[])
    assert "reason" not in shown(api, running)


def test_a_stop_on_a_lost_engine_says_what_it_waits_for(api: Api) -> None:
    attempt = on("second", asked())
    silence("second")
    reason = shown(api, attempt)["reason"]
    assert (reason["code"], reason["engine"]) == ("stopping", "second")
    assert "Waiting (engine-lost)" in reason["message"]


def test_one_engine_alone_changes_nothing_of_what_is_read(api: Api) -> None:
    Engine.objects.filter(pk="second").delete()
    attempt = on("local", ready_attempt())
    silence("local")
    assert "reason" not in shown(api, attempt)


def test_a_start_that_waits_for_a_drained_engine_says_so(api: Api) -> None:
    make_worker("worker-a")
    attempt = make_job(engine_name="second").attempt
    engine("drain", "second")
    reason = shown(api, attempt)["reason"]
    assert (reason["code"], reason["engine"]) == ("engine-draining", "second")


@pytest.mark.parametrize("several", [True, False])
def test_a_start_that_no_engine_takes_says_so_though_it_is_placed_on_none(
    api: Api, several: bool
) -> None:
    if not several:
        Engine.objects.filter(pk="second").delete()
    make_worker("worker-a")
    attempt = make_job().attempt
    assert shown(api, attempt)["reason"]["code"] == "queued"
    Engine.objects.update(state="draining")
    reason = shown(api, attempt)["reason"]
    assert (reason["code"], reason.get("engine")) == ("engine-draining", None)
    Engine.objects.update(state="gone")
    assert shown(api, attempt)["reason"]["code"] == "engine-draining"


# ---------------------------------------------------------------- the operator's command


def test_the_list_says_how_each_engine_stands() -> None:
    on("second", ready_attempt())
    silence("local")
    told = engine("list").splitlines()
    assert told[0].startswith("local: active, does not answer, last heard: ")
    assert told[1].startswith("second: active, answers, workspaces: 1, memory: 16384 MiB, CPUs: 4")


def test_what_was_on_an_engine_that_is_forgotten_has_failed_and_starts_anywhere(api: Api) -> None:
    attempt = on("second", ready_attempt(spec=persistent()))
    stopping = on("second", asked())
    waiting, launching = make_job(engine_name="second"), make_job(engine_name="second")
    BuildJob.objects.filter(pk=launching.pk).update(
        status="succeeded",
        published_digest="sha256:0",
        finished_at="2026-01-01T00:00:00Z",
        lease_expires_at="2026-01-01T00:00:00Z",
    )
    silence("second")
    assert "have failed with it: 2" in engine("forget", "second")
    read = shown(api, attempt)
    assert (read["status"], read["error"]["code"]) == ("failed", "engine-gone")
    given: dict[str, Any] = {"worker_id": "w", "lease": LEASE, "engine": "local"}
    assert BuildJob.objects.claim(waiting.pk, **given) is not None
    assert BuildJob.objects.claim(launching.pk, **given) is not None
    claimed = Transition.objects.claim_next("w", alive=None, lease=LEASE, engine="local")
    assert claimed is not None
    assert claimed.workspace_id == stopping.workspace_id
    assert Engine.objects.get(pk="second").state == "gone"
    assert engine("list").splitlines()[1].startswith("second: gone, gone for good")


@pytest.mark.parametrize("by_id", [True, False])
def test_nothing_waits_for_an_engine_that_was_given_up_by_its_id_or_was_installed_anew_once(
    by_id: bool,
) -> None:
    stopping, running = on("second", asked()), on("second", ready_attempt())
    plan = WarmPlan.objects.create(key="one", shape={})
    WarmMember.objects.create(plan=plan, engine_id="id-of-second")
    silence("second")
    if by_id:
        assert engines.forget_engine("id-of-second", by="ada", stale=STALE) == 2
    else:
        RuntimeInstance.objects.update(engine_id="id-before-that")
        assert "have failed with it: 2" in engine("forget", "second")
    assert not WarmMember.objects.exists()
    assert set(RuntimeInstance.objects.values_list("error_code", flat=True)) == {"engine-gone"}
    claimed = Transition.objects.claim_next("w", alive=None, lease=LEASE, engine="local")
    assert claimed is not None
    assert claimed.workspace_id == stopping.workspace_id
    boot = Run.objects.get(pk=running.run_id)
    assert claims.claim(boot.pk, worker_id="w", lease=LEASE, engine="local") is not None


def test_containers_that_waited_on_an_engine_that_is_forgotten_count_no_more() -> None:
    plan = WarmPlan.objects.create(key="one", shape={})
    for name in ("local", "second"):
        WarmMember.objects.create(plan=plan, engine_id=f"id-of-{name}")
    silence("second")
    assert "have failed with it: 0" in engine("forget", "second")
    assert WarmMember.objects.get().engine_id == "id-of-local"


def test_an_engine_is_added_once_under_one_name_and_again_after_it_was_gone() -> None:
    given: dict[str, Any] = {"url": "tcp://10.0.0.3:2376", "certificates": None}
    with pytest.raises(engines.EngineRefusedError, match="an engine second already"):
        engines.add_engine("second", **given, engine_id="new")
    with pytest.raises(engines.EngineRefusedError, match="it is called second"):
        engines.add_engine("third", **given, engine_id="id-of-second")
    Engine.objects.filter(pk="second").update(state="gone")
    engines.add_engine("second", **given, engine_id="id-of-second")
    again = Engine.objects.get(pk="second")
    assert (again.state, again.seen_at) == ("active", None)


def test_what_a_worker_of_an_earlier_release_has_written_stays_with_the_first_engine() -> None:
    Engine.objects.filter(pk="second").delete()
    kept, other, launching = ready_attempt(spec=persistent()), ready_attempt(), make_job()
    RuntimeInstance.objects.filter(attempt=kept).update(engine_id="id-of-local")
    RuntimeInstance.objects.filter(attempt=other).update(engine_id="id-of-one-that-is-gone")
    given: dict[str, Any] = {"worker_id": "w", "lease": timedelta()}
    assert BuildJob.objects.claim(launching.pk, **given) is not None
    attempt_steps.await_runtime(launching.attempt, published={})
    engines.add_engine("second", url="tcp://10.0.0.3:2376", certificates=None, engine_id="new")
    assert dict(RuntimeInstance.objects.values_list("attempt", "engine_name")) == {
        kept.pk: "local",
        other.pk: "",
        launching.attempt_id: "local",
    }
    assert BuildJob.objects.claim(launching.pk, **given, engine="second") is None
    assert BuildJob.objects.claim(launching.pk, **given, engine="local") is not None


def test_an_engine_gets_another_address_only_where_it_answers_itself() -> None:
    given: dict[str, Any] = {"url": "tcp://10.0.0.9:2376", "certificates": None}
    with pytest.raises(engines.EngineRefusedError, match="Another engine"):
        engines.replace_access("second", **given, engine_id="id-of-third")
    engines.replace_access("second", **given, engine_id="id-of-second")
    assert Engine.objects.get(pk="second").url == "tcp://10.0.0.9:2376"
    Engine.objects.filter(pk="second").update(state="gone")
    with pytest.raises(engines.EngineRefusedError, match="declared gone"):
        engines.replace_access("second", **given, engine_id="id-of-second")


def test_the_migration_adopts_the_engine_that_there_was() -> None:
    Engine.objects.all().delete()
    adopt = importlib.import_module("workspaces.migrations.0010_engines").ADOPT
    launched, failed = ready_attempt(), make_job().attempt
    workspaces.fail_runtime(failed, code="build-failed", message="It never ran.")
    with connection.cursor() as cursor:
        cursor.execute(adopt)
    names = dict(RuntimeInstance.objects.values_list("attempt", "engine_name"))
    assert names == {launched.pk: "local", failed.pk: ""}
    assert list(Engine.objects.values_list("name", "state", "url")) == [("local", "active", "")]


@pytest.mark.parametrize("url", ["tcp://10.0.0.2:2376", "http://127.0.0.1:1", "ssh://there"])
def test_an_engine_of_another_machine_is_refused_without_certificates(url: str) -> None:
    with pytest.raises(CommandError, match=r"certificates|must be tcp"):
        engine("add", "third", url)


def test_an_engine_that_does_not_answer_is_not_added() -> None:
    with pytest.raises(CommandError):
        engine("add", "third", "tcp://127.0.0.1:1")
    assert not Engine.objects.filter(pk="third").exists()


def test_what_nobody_knows_is_told() -> None:
    for action in ("drain", "undrain", "forget"):
        with pytest.raises(CommandError, match="No engine is called 'third'"):
            engine(action, "third")


def test_the_first_engine_writes_its_own_row_and_no_other_one_does() -> None:
    Engine.objects.all().delete()
    told: dict[str, Any] = {"engine_id": "e", "memory_bytes": 5, "cpus": 2, "images": ["a/b"]}
    Engine.objects.heard("local", **told)
    Engine.objects.heard("unknown", **{**told, "engine_id": "f"})
    assert list(Engine.objects.values_list("name", "memory_bytes", "images")) == [
        ("local", 5, ["a/b"])
    ]
    assert Engine.objects.answering(stale=STALE).exists()


# ---------------------------------------------------------------- certificates and addresses


def test_certificates_are_kept_sealed_for_one_engine_and_unpacked_for_this_user(
    tmp_path: Path,
) -> None:
    make_certificates(tmp_path / "made", name="second", address="10.0.0.2")
    given = read_certificates(tmp_path / "made" / "client")
    with override_settings(SVC_RECORD_SIGNING_KEY=KEY, SVC_DATA_DIR=tmp_path / "data"):
        row = Engine.objects.get(pk="second")
        row.url = "tcp://10.0.0.2:2376"
        row.certificates = seal_certificates(given, name="second")
        assert given["key.pem"].encode() not in row.certificates
        folder = unpacked(row)
        assert read_certificates(folder) == given
        assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
        row.name = "third"
        with pytest.raises(CertificatesError, match="cannot be opened"):
            unpacked(row)
    with override_settings(SVC_RECORD_SIGNING_KEY=""), pytest.raises(CertificatesError):
        seal_certificates(given, name="second")


def test_an_endpoint_names_its_engine_unless_that_is_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "address").write_text("tcp://127.0.0.1:5\n")
    assert place_of("docker-exec://abc", "unix:///own", tmp_path) == ("unix:///own", "abc")
    assert place_of("docker-exec://second/abc", "unix:///own", tmp_path) == (
        "tcp://127.0.0.1:5",
        "abc",
    )
    for wrong in ("http://abc", "docker-exec://../abc", "docker-exec://third/abc"):
        with pytest.raises(LaunchError):
            place_of(wrong, "unix:///own", tmp_path)
    assert docker_host_of(tmp_path / "second") == "tcp://127.0.0.1:5"


def test_calls_go_to_the_engine_of_the_workspace(tmp_path: Path) -> None:
    Engine.objects.filter(pk="second").update(url="tcp://127.0.0.1:5")
    with override_settings(SVC_DATA_DIR=tmp_path):
        assert engine_adapters.shared_adapter("second") is not engine_adapters.shared_adapter()
        assert engine_adapters.shared_adapter("local") is engine_adapters.shared_adapter()
        with pytest.raises(LaunchError, match="There is no engine third"):
            engine_adapters.shared_adapter("third")


# ---------------------------------------------------------------- the admin


def test_operators_drain_and_give_up_engines_in_the_admin() -> None:
    staff = Client()
    staff.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    page = reverse("admin:workspaces_engine_changelist")
    assert "16.0 GiB" in staff.get(page).content.decode()
    shown_row = staff.get(reverse("admin:workspaces_engine_change", args=["second"]))
    assert shown_row.status_code == 200
    assert "certificates" not in shown_row.content.decode().lower()

    def act(action: str) -> str:
        data = {"action": action, "_selected_action": ["second"]}
        answer = staff.post(page, data, follow=True)
        return " ".join(map(str, answer.context["messages"]))

    assert "takes nothing new" in act("drain")
    assert Engine.objects.get(pk="second").state == "draining"
    assert "takes workspaces again" in act("undrain")
    Engine.objects.filter(pk="second").update(seen_at=Now() + timedelta(days=1))
    assert "is leaving, and not gone yet" in act("forget")
    assert Engine.objects.get(pk="second").state == "leaving"
    assert "takes workspaces again" in act("undrain")
    silence("second")
    assert "It is gone" in act("forget")
    assert Engine.objects.get(pk="second").state == "gone"
    assert LogEntry.objects.filter(object_id="second").count() == 5


@pytest.mark.parametrize("command", ["buildworker", "runworker"])
def test_a_worker_of_an_engine_that_nobody_has_added_says_what_to_do(command: str) -> None:
    with override_settings(SVC_ENGINE="third"), pytest.raises(CommandError, match="engine add"):
        call_command(command)
