"""The admin: short sign-ins, cookies that stay within TLS, and a port of its own."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from tests.conftest import Api
from tests.controlplane.test_settings import value_of
from tests.stack.free_ports import free_port
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]
LOGIN = "/admin/login/"


@pytest.mark.django_db
def test_a_sign_in_lasts_eight_hours() -> None:
    get_user_model().objects.create_superuser("ada", password="a long password")
    client = Client()
    before = timezone.now()
    answer = client.post(LOGIN, {"username": "ada", "password": "a long password"})
    assert answer.status_code == 302
    assert client.get("/admin/").status_code == 200
    assert client.cookies["sessionid"]["max-age"] == 8 * 3600
    assert client.cookies["sessionid"]["httponly"]
    ends = Session.objects.get().expire_date - before
    assert timedelta(hours=8) <= ends < timedelta(hours=8, minutes=5)
    Session.objects.update(expire_date=timezone.now())
    assert client.get("/admin/").status_code == 302


def test_the_operator_says_how_long() -> None:
    assert value_of("s.SESSION_COOKIE_AGE", {"SVC_ADMIN_SESSION_MS": "900000"}) == 900


@pytest.mark.parametrize(
    ("url", "secure"), [("https://web.example", True), ("http://localhost:3000", False)]
)
def test_behind_tls_the_cookies_are_secure_and_the_admins_forms_work(
    url: str, secure: bool
) -> None:
    shown = "[s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.CSRF_TRUSTED_ORIGINS.count(%r)]"
    assert value_of(shown % url, {"SVC_WEB_URL": url}) == [secure, secure, 1]


@pytest.mark.parametrize("path", ["/admin/", "/admin/login/", "/metrics", "/metrics/", "/admin"])
def test_with_a_port_of_its_own_the_other_ports_have_no_admin(
    api: Api, settings: Settings, path: str
) -> None:
    settings.SVC_ADMIN_PORT = 4999
    for headers in ({}, {"host": "localhost:4999"}, {"x-forwarded-port": "4999"}):
        assert api.get(path, headers=headers, expect=404).body["code"] == "not-found"
    api.get("/healthz")


def status(port: int, path: str) -> int:
    """What the service says at one of its ports."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def listens(port: int) -> bool:
    try:
        return status(port, "/healthz") == 200
    except OSError:
        return False


def test_the_real_server_keeps_the_admin_to_its_port() -> None:
    port, admin = free_port(), free_port()
    given = {"SVC_API_PORT": str(port), "SVC_WEB_PORT": "0", "SVC_API_WORKERS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "controlplane.wsgi"],
        cwd=ROOT,
        env={**os.environ, **given, "SVC_ADMIN_PORT": str(admin)},
        stdin=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: listens(port) and listens(admin), what="both ports answer")
        for path in ("/admin/login/", "/metrics", "/%61dmin/login/"):
            assert (status(port, path), status(admin, path)) == (404, 200)
        for path in ("/docs", "/openapi.json", "/static/admin/css/base.css"):
            assert (status(port, path), status(admin, path)) == (200, 200)
    finally:
        server.terminate()
        server.wait(LONG_WAIT)
