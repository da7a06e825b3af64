"""Root, liveness, readiness and setup state."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import DjangoAssertNumQueries
from pytest_django.fixtures import Settings

from tests.conformance import document
from tests.conftest import Answer, Api
from tests.factories import make_worker
from tests.runs.executable import make_run_worker
from tests.support.engines import make_engine


def check(answer: Answer, name: str) -> dict[str, object]:
    found: dict[str, object] = next(c for c in answer.body["checks"] if c["name"] == name)
    return found


def test_the_root_names_the_release_and_where_it_is_described(api: Api) -> None:
    assert api.get("/").body == {
        "name": "controlplane",
        "version": "0.4.0",
        "docsPath": "/docs",
        "openApiPath": "/openapi.json",
    }


@pytest.mark.django_db
@pytest.mark.usefixtures("unreachable_broker")
def test_liveness_touches_nothing(
    api: Api, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0):
        assert api.get("/healthz").body == {"status": "ok"}


@pytest.mark.django_db
def test_readiness_is_degraded_without_a_build_worker(api: Api, settings: Settings) -> None:
    settings.RABBITMQ_CONSUMER_TIMEOUT_MS = 10**9
    settings.CORS_ALLOWED_ORIGINS_SETTING = "http://localhost:4000"
    make_run_worker("run-worker-a")
    answer = api.get("/readyz")
    assert answer.body["status"] == "degraded"
    assert not check(answer, "buildWorker")["ok"]
    make_worker("worker-dead", seen=timedelta(minutes=5))
    assert api.get("/readyz").body["status"] == "degraded"
    make_worker("worker-a")
    answer = api.get("/readyz")
    assert answer.body["status"] == "ok"
    assert check(answer, "buildWorker")["detail"] == "1 alive."


@pytest.mark.django_db
def test_readiness_is_degraded_without_a_run_worker(api: Api, settings: Settings) -> None:
    settings.RABBITMQ_CONSUMER_TIMEOUT_MS = 10**9
    settings.CORS_ALLOWED_ORIGINS_SETTING = "http://localhost:4000"
    make_worker("worker-a")
    make_run_worker("worker-dead", seen=timedelta(minutes=5))
    answer = api.get("/readyz")
    assert answer.body["status"] == "degraded"
    assert not check(answer, "runWorker")["ok"]
    make_run_worker("run-worker-a")
    answer = api.get("/readyz")
    assert answer.body["status"] == "ok"
    assert check(answer, "runWorker")["detail"] == "1 alive."


@pytest.mark.django_db
def test_readiness_names_the_engine_that_lacks_a_worker(api: Api) -> None:
    for name, state in (("local", "active"), ("second", "draining"), ("third", "leaving")):
        make_engine(name, state=state)
    for name in ("local", "second"):
        make_worker(f"build-{name}", engine=name)
    make_run_worker("run-local", engine="local")
    answer = api.get("/readyz")
    assert (check(answer, "buildWorker")["ok"], check(answer, "runWorker")["ok"]) == (True, False)
    detail = str(check(answer, "runWorker")["detail"])
    assert detail.startswith("1 alive, but no run worker of second;")
    make_run_worker("run-of-all")
    assert check(api.get("/readyz"), "runWorker")["detail"] == "2 alive."


@pytest.mark.django_db
def test_a_broker_that_takes_long_jobs_back_is_reported(api: Api, settings: Settings) -> None:
    settings.RABBITMQ_CONSUMER_TIMEOUT_MS = 60_000
    answer = api.get("/readyz")
    found = check(answer, "brokerAcknowledgement")
    assert not found["ok"]
    assert "consumer_timeout" in str(found["detail"])


@pytest.mark.django_db
def test_pages_of_everywhere_that_may_read_a_loopback_api_are_reported(
    api: Api, settings: Settings
) -> None:
    settings.CORS_ALLOWED_ORIGINS_SETTING = "*"
    settings.SVC_BIND_HOST = "0.0.0.0"  # noqa: S104 - of a container, say
    settings.SVC_PUBLISHED_HOST = "127.0.0.1"
    found = check(api.get("/readyz"), "corsOrigins")
    assert (found["ok"], found["required"]) == (False, False)
    assert "SVC_CORS_ALLOWED_ORIGINS" in str(found["detail"])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("origins", "detail"),
    [
        ("*", "Pages of every origin may read answers."),
        ("http://localhost:4000", "Limited to the origins that were named."),
        ("", "Limited to the origins that were named."),
    ],
)
def test_readiness_says_whose_pages_may_read_an_api_that_others_reach(
    api: Api, settings: Settings, origins: str, detail: str
) -> None:
    settings.CORS_ALLOWED_ORIGINS_SETTING = origins
    settings.SVC_PUBLISHED_HOST = "10.0.0.7"
    settings.SVC_NETWORK_GUARD = "external"  # others than this machine are let in
    found = check(api.get("/readyz"), "corsOrigins")
    assert (found["ok"], found["detail"]) == (True, detail)


@pytest.mark.django_db
def test_the_description_of_readiness_names_what_the_api_is_not_ready_without(
    api: Api, settings: Settings
) -> None:
    settings.SVC_PUBLISHED_HOST = "10.0.0.7"
    settings.SVC_NETWORK_GUARD = "external"
    checks = api.get("/readyz").body["checks"]
    required = [each["name"] for each in checks if each["required"]]
    description = document()["paths"]["/readyz"]["get"]["description"]
    assert [name for name in required if name not in description] == []
    assert "isolation" in required


@pytest.mark.django_db
def test_readiness_names_the_broker_that_is_away(api: Api, settings: Settings) -> None:
    settings.RABBITMQ_URL = "amqp://someone:hunter2@127.0.0.1:1/"
    answer = api.get("/readyz", expect=503)
    assert answer.body["status"] == "unavailable"
    assert [c["name"] for c in answer.body["checks"] if not c["ok"] and c["required"]] == ["broker"]
    assert "hunter2" not in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["amqp://:1", "not a url", "http://127.0.0.1:1", "amqp://[::1"])
def test_readiness_survives_a_broker_url_that_is_nonsense(
    api: Api, settings: Settings, url: str
) -> None:
    settings.RABBITMQ_URL = url
    settings.RABBITMQ_CONNECT_TIMEOUT_MS = 300
    answer = api.get("/readyz", expect=503)
    assert [c["name"] for c in answer.body["checks"] if not c["ok"] and c["required"]] == ["broker"]


@pytest.mark.django_db
def test_a_broker_that_says_nothing_does_not_hold_readiness_up(
    api: Api, settings: Settings
) -> None:
    settings.RABBITMQ_CONNECT_TIMEOUT_MS = 300
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings.RABBITMQ_URL = f"amqp://a:b@127.0.0.1:{server.getsockname()[1]}/"
        answer = api.get("/readyz", expect=503)
    assert not check(answer, "broker")["ok"]


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["nonsense", "ftp://a/", "http://[::1", "http://a:notaport", ""])
def test_readiness_survives_a_registry_url_that_is_nonsense(
    api: Api, settings: Settings, url: str
) -> None:
    settings.REGISTRY_BASE_URL = url
    assert not check(api.get("/readyz", expect=503), "registry")["ok"]


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://user:hunter2@127.0.0.1:1"])
def test_readiness_names_the_registry_that_is_away(api: Api, settings: Settings, url: str) -> None:
    settings.REGISTRY_BASE_URL = url
    answer = api.get("/readyz", expect=503)
    assert [c["name"] for c in answer.body["checks"] if not c["ok"] and c["required"]] == [
        "registry"
    ]
    assert "hunter2" not in answer.content.decode()


@pytest.mark.django_db
def test_readiness_reports_pending_migrations(api: Api) -> None:
    (last,) = MigrationLoader(connection).graph.leaf_nodes("runs")
    MigrationRecorder(connection).record_unapplied(*last)
    answer = api.get("/readyz", expect=503)
    assert "1 migration" in str(check(answer, "database")["detail"])


@pytest.mark.django_db
def test_set_up_is_needed_until_a_staff_account_exists(api: Api, settings: Settings) -> None:
    settings.SVC_SSH_HOST, settings.SVC_SSH_PORT = "ssh.example", 2022
    state = api.get("/v1/system/setup-state").body
    assert state == {
        "needsSetup": True,
        "sshGateway": {"host": "ssh.example", "port": 2022, "usernamePrefix": "ws"},
    }
    users = get_user_model().objects
    users.create_user("plain", password="x")
    assert api.get("/v1/system/setup-state").body["needsSetup"] is True
    users.create_user("gone", password="x", is_staff=True, is_active=False)
    assert api.get("/v1/system/setup-state").body["needsSetup"] is True
    users.create_user("staff", password="x", is_staff=True)
    assert api.get("/v1/system/setup-state").body["needsSetup"] is False
