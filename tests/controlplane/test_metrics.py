"""``GET /metrics``: the installation in numbers, whichever process is asked."""

from __future__ import annotations

import json
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families
from pytest_django.fixtures import Settings

from controlplane.metrics import counting, services
from controlplane.metrics.families import (
    API_SECONDS,
    FAMILIES,
    FOUND_BY_SWEEPER,
    INGEST_LAG,
    RECORD_BATCHES,
    Counter,
)
from controlplane.work.models import Heartbeat
from tests.conftest import Api
from workspaces.models import BuildJob, Sandbox, Transition

ROOT = Path(__file__).resolve().parents[2]


class Page:
    """One answer, read as Prometheus reads it."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Return one number; 0 when it is not there yet."""
        return self.samples.get((name, tuple(sorted(labels.items()))), 0.0)

    def labels(self, name: str, label: str) -> set[str]:
        """Return every value of one label."""
        return {dict(labels)[label] for found, labels in self.samples if found == name}


def scrape() -> Page:
    """Ask once."""
    answer = Client().get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Page(answer.content.decode())


@pytest.fixture(autouse=True)
def _nothing_counted() -> None:
    """Forget what earlier tests have counted in this process."""
    counting.take()


@pytest.mark.django_db
def test_every_family_is_there_before_anything_happened() -> None:
    page = scrape()
    for family in FAMILIES:
        name = family.name.removesuffix("_total")
        assert page.families[name].documentation == family.help
    assert page.value("svc_database_up") == 1
    assert page.labels("svc_metrics_complete", "part") == {"counters", "builds", "runs"}
    assert page.value("svc_lease_renewals_total", worker="run", outcome="lost") == 0
    assert ("svc_lease_renewals_total", (("outcome", "lost"), ("worker", "run"))) in page.samples


@pytest.mark.django_db
def test_what_was_counted_is_written_once_and_added_up() -> None:
    before = scrape().value("svc_found_by_sweeper_total", worker="build")
    FOUND_BY_SWEEPER.count(worker="build")
    FOUND_BY_SWEEPER.count(2, worker="build")
    services.flush()
    services.flush()
    FOUND_BY_SWEEPER.count(worker="build")
    assert scrape().value("svc_found_by_sweeper_total", worker="build") == before + 4
    assert scrape().value("svc_found_by_sweeper_total", worker="build") == before + 4


@pytest.mark.django_db
def test_a_histogram_counts_each_bucket_with_those_below_it() -> None:
    for seconds in (0.01, 0.05, 0.06, 4.0, 1000.0):
        INGEST_LAG.observe(seconds)
    page = scrape()
    name = "svc_record_ingest_lag_seconds"
    counted = {bound: page.value(f"{name}_bucket", le=bound) for bound in ("0.05", "0.1", "5")}
    assert counted == {"0.05": 2, "0.1": 3, "5": 4}
    assert page.value(f"{name}_bucket", le="+Inf") == page.value(f"{name}_count") == 5
    assert page.value(f"{name}_sum") == pytest.approx(1004.12)


@pytest.mark.django_db(transaction=True)
def test_processes_that_write_at_once_lose_nothing() -> None:
    def write(number: int) -> None:
        try:
            for _ in range(20):
                # Each in another order, so that rows are met in every order.
                for worker in ("build", "run") if number % 2 else ("run", "build"):
                    FOUND_BY_SWEEPER.count(worker=worker)
                RECORD_BATCHES.count()
                services.flush()
        finally:
            connections.close_all()

    before = scrape()
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    services.flush()
    after = scrape()
    for name, labels in (
        ("svc_found_by_sweeper_total", {"worker": "build"}),
        ("svc_found_by_sweeper_total", {"worker": "run"}),
        ("svc_record_batches_total", {}),
    ):
        assert after.value(name, **labels) - before.value(name, **labels) == 80


@pytest.mark.django_db
def test_counts_that_could_not_be_written_are_written_later() -> None:
    RECORD_BATCHES.count(3)
    with connection.execute_wrapper(_refuse), pytest.raises(OperationalError):
        services.flush()
    assert counting.pending() == {("svc_record_batches_total", (), ""): 3}
    before = services.stored().get(("svc_record_batches_total", (), ""), 0)
    services.flush()
    assert services.stored()[("svc_record_batches_total", (), "")] == before + 3


@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_holds_is_not_waited_for_by_who_has_a_heart_to_beat() -> None:
    RECORD_BATCHES.count(3)
    services.flush()
    before = services.stored()
    RECORD_BATCHES.count(4)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM metric_count FOR UPDATE")
            with pytest.raises(OperationalError):
                services.flush()
            assert counting.pending() == {("svc_record_batches_total", (), ""): 4}
            cursor.execute("ROLLBACK")
    finally:
        other.close()
    services.flush()
    key = ("svc_record_batches_total", (), "")
    assert services.stored()[key] == before[key] + 4


def _refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    raise OperationalError("the server is away")


ROUTES = [
    ("GET", "/healthz", "GET", "/healthz", "200"),
    ("GET", "/v1/runs/018f0000-0000-7000-8000-000000000000", "GET", "/v1/runs/{run_id}", "404"),
    ("GET", "/v1/runs/not-an-id", "GET", "unmatched", "404"),
    ("GET", "/v1/nobody/knows/this", "GET", "unmatched", "404"),
    ("DELETE", "/healthz", "DELETE", "/healthz", "405"),
    ("BREW", "/healthz", "other", "/healthz", "405"),
    ("GET", "/admin/workspaces/buildjob/", "GET", "/admin", "302"),
    ("GET", "/static/there-is-none.css", "GET", "/static", "404"),
    ("GET", "/administrators", "GET", "unmatched", "404"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "path", "shown", "route", "status"), ROUTES)
def test_an_answer_is_counted_under_its_route_and_never_its_path(
    method: str, path: str, shown: str, route: str, status: str
) -> None:
    labels = {"method": shown, "route": route}
    before = scrape()
    Client(raise_request_exception=False).generic(method, path)
    after = scrape()
    for name, more in (
        ("svc_api_answers_total", {"status": status}),
        ("svc_api_request_seconds_count", {}),
    ):
        now, then = (page.value(name, **labels, **more) for page in (after, before))
        assert now == then + 1, (name, labels)
    assert path == route or path not in after.labels("svc_api_answers_total", "route")


@pytest.mark.django_db
def test_clients_cannot_make_as_many_labels_as_they_like() -> None:
    scrape()
    client = Client(raise_request_exception=False)
    before = len(scrape().samples)
    for number in range(30):
        client.generic(f"M{number}", f"/{number}", headers={"x-request-id": f"r{number}"})
    assert len(scrape().samples) - before <= len(API_SECONDS.bounds) + 4


@pytest.mark.django_db
def test_the_queue_is_measured(api: Api, request_body: dict[str, Any]) -> None:
    before = scrape()
    answer = api.post("/v1/sandboxes", request_body).body
    job = BuildJob.objects.filter(pk=answer["jobId"])
    job.update(queued_at=Now() - timedelta(hours=5))
    page = scrape()
    assert (
        page.value("svc_build_jobs", phase="queued")
        - before.value("svc_build_jobs", phase="queued")
        == 1
    )
    assert page.value("svc_build_queue_oldest_seconds") >= 5 * 3600
    assert page.value("svc_sandboxes", status="queued") >= 1
    assert page.value("svc_runs_open", mode="boot", status="queued") >= 1

    job.update(
        status="running",
        worker_id="a-worker",
        claimed_at=Now() - timedelta(hours=2),
        lease_expires_at=Now() - timedelta(seconds=1),
    )
    page = scrape()
    assert page.value("svc_build_jobs", phase="building") >= 1
    assert page.value("svc_build_oldest_claim_seconds") >= 2 * 3600
    assert page.value("svc_build_leases_expired") >= 1


@pytest.mark.django_db
def test_stops_and_deletes_that_wait_are_measured(api: Api, request_body: dict[str, Any]) -> None:
    before = scrape()
    for kind in ("stop", "delete", "delete"):
        answer = api.post("/v1/workspaces", request_body).body
        Transition.objects.create(
            workspace_id=answer["workspaceId"],
            kind=kind,
            cause="user",
            requested_by="usr_test",
            requested_at=Now() - timedelta(hours=3),
        )
    page = scrape()
    for kind, more in (("stop", 1), ("delete", 2)):
        grown = [one.value("svc_transitions_open", kind=kind) for one in (before, page)]
        assert grown[1] == grown[0] + more
    assert page.value("svc_transitions_oldest_seconds") >= 3 * 3600
    Transition.objects.update(finished_at=Now())
    page = scrape()
    assert page.value("svc_transitions_open", kind="delete") == 0
    assert page.value("svc_transitions_oldest_seconds") == 0


@pytest.mark.django_db
def test_workers_are_alive_draining_or_silent() -> None:
    before = scrape()
    for name, seen, draining in (
        ("a", timedelta(0), False),
        ("b", timedelta(0), True),
        ("c", timedelta(hours=1), False),
    ):
        Heartbeat.objects.create(
            kind=Heartbeat.Kind.BUILD,
            worker_id=name,
            hostname="h",
            pid=1,
            capacity=3,
            draining=draining,
            seen_at=Now() - seen,
            engine_name="second",
            slots={"build": {"capacity": 3, "in_use": 2}},
        )
    after = scrape()
    for state in ("alive", "draining", "silent"):
        grown = [page.value("svc_build_workers", state=state) for page in (before, after)]
        assert grown[1] == grown[0] + 1, state
    for name, grown_by in (("svc_build_slots", 3), ("svc_build_slots_in_use", 2)):
        values = [page.value(name, lane="build", engine="second") for page in (before, after)]
        assert values[1] == values[0] + grown_by, name


@pytest.mark.django_db
def test_measuring_reads_no_table_that_grows_and_asks_a_fixed_number_of_questions(
    api: Api, request_body: dict[str, Any]
) -> None:
    scrape()
    with CaptureQueriesContext(
        connection,
    ) as first:
        scrape()
    for _ in range(3):
        api.post("/v1/sandboxes", request_body)
    scrape()
    with CaptureQueriesContext(connection) as second:
        scrape()
    assert len(second) == len(first) <= 27
    big = (
        *(
            "workspaces_buildjob",
            "workspaces_transition",
            "workspaces_sandbox",
            "sandbox_",
            "runs_run_",
        ),
        *("workspaces_attempt", "transition_"),
    )
    asked = [query["sql"].strip() for query in second]
    tables = ("workspaces_buildjob", "workspaces_sandbox", "runs_run")
    questions = [sql for sql in asked if sql.startswith("SELECT")]
    assert sum(any(table in sql for table in tables) for sql in questions) >= 5
    assert not any("run_event" in sql or "workspaceevent" in sql for sql in questions)
    # Of two indexes that would do for three rows, the planner takes the better one for many.
    sandbox = Sandbox.objects.all()[0]
    Sandbox.objects.bulk_create(
        Sandbox(workspace_id=sandbox.workspace_id, spec={}, status="stopped") for _ in range(3_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE workspaces_sandbox")
        # What the planner would do with a big table: the index is there to be used.
        cursor.execute("SET LOCAL enable_seqscan = off")
        for sql in questions:
            cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}")
            (plan,) = cursor.fetchone()
            read = _read_whole(plan if isinstance(plan, list) else json.loads(plan))
            assert not [name for name in read if name.startswith(big)], (sql, read)


OF_WHAT_IS_OPEN = {
    *("job_queued", "job_leased", "run_open", "run_leased", "attempt_open", "transition_open"),
    "transition_one_open_per_workspace",
}


def _read_whole(plan: Any) -> list[str]:
    """Return the tables and indexes that a plan reads from one end to the other.

    All of an index that holds only what is not finished is little.
    """
    if isinstance(plan, list):
        return [name for part in plan for name in _read_whole(part)]
    if not isinstance(plan, dict):
        return []
    found = [plan["Relation Name"]] if plan.get("Node Type") == "Seq Scan" else []
    if "Index Name" in plan and "Index Cond" not in plan:
        found += {plan["Index Name"]} - OF_WHAT_IS_OPEN
    return found + [name for part in plan.values() for name in _read_whole(part)]


@pytest.mark.django_db(transaction=True)
def test_without_the_database_the_page_says_so_and_shows_what_this_process_knows(
    settings: Settings,
) -> None:
    RECORD_BATCHES.count(7)
    at = connection.settings_dict
    right = at["PORT"]
    connection.close()
    at["PORT"] = "1"
    try:
        page = scrape()
    finally:
        connection.close()
        at["PORT"] = right
    assert page.value("svc_database_up") == 0
    for part in ("counters", "builds", "runs"):
        assert page.value("svc_metrics_complete", part=part) == 0
    assert page.value("svc_record_batches_total") == 7
    assert "svc_build_jobs" not in page.families
    page = scrape()
    assert page.value("svc_database_up") == 1
    assert page.value("svc_record_batches_total") >= 7


@pytest.mark.django_db
def test_one_part_that_fails_does_not_take_the_others_along() -> None:
    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "workspaces_buildjob" in sql:
            sql = sql.replace("workspaces_buildjob", "no_such_table")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        page = scrape()
    assert page.value("svc_metrics_complete", part="builds") == 0
    assert page.value("svc_metrics_complete", part="runs") == 1
    assert page.value("svc_metrics_complete", part="counters") == 1
    assert page.value("svc_database_up") == 1
    assert "svc_runs_open" in page.families
    assert "svc_build_jobs" not in page.families


@pytest.mark.django_db
def test_the_page_is_read_only_and_no_part_of_the_contract(api: Api) -> None:
    answer = api.request("POST", "/metrics", {}, expect=405)
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert "/metrics" not in Client().get("/openapi.json").json()["paths"]


@pytest.mark.django_db
def test_names_follow_the_rules_of_prometheus() -> None:
    shown = [
        line.split()[2]
        for line in Client().get("/metrics").content.decode().splitlines()
        if line.startswith("# TYPE")
    ]
    assert len(shown) == len({name.removesuffix("_total") for name in shown})
    for family in FAMILIES:
        suffix = "_total" if isinstance(family, Counter) else "_seconds"
        assert family.name.startswith("svc_")
        assert family.name.endswith(suffix)
        assert set(family.known) <= set(family.labels)


@pytest.mark.django_db
def test_operators_are_told_of_every_name_and_of_no_other() -> None:
    readme = (ROOT / "deploy" / "README.md").read_text()
    chapter = readme.partition("## Metrics")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(svc_[a-z_]+)", chapter))
    shown = {
        line.split()[2]
        for line in Client().get("/metrics").content.decode().splitlines()
        if line.startswith("# TYPE")
    }
    assert len(told) > 20
    assert told == shown
