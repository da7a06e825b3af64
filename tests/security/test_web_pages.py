"""A web page that somebody merely looks at neither acts in their place nor reads what is theirs."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from pytest_django.fixtures import Settings
from pytest_django.live_server_helper import LiveServer

from tests.conftest import OWNER, Api
from tests.scm.deliveries import SECRET, deliver
from tests.stack.browser import Page, browser
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db

EVIL = "https://evil.example"
MISSING = "019af2c0-0000-7000-8000-00000000000a"
WRITES = [
    ("POST", "/v1/sandboxes"),
    ("POST", "/v1/runs"),
    ("PATCH", f"/v1/workspaces/{MISSING}/name"),
    ("DELETE", f"/v1/workspaces/{MISSING}"),
    ("POST", "/v1/scm/webhooks"),
    ("POST", "/admin/login/"),
]


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://testserver:81"},
        {"origin": "https://testserver"},
        {"origin": "http://testserver.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"origin": EVIL, "sec-fetch-site": "same-origin"},
    ],
)
def test_a_foreign_page_changes_nothing(
    api: Api, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = api.request(method, path, {"ownerUserId": OWNER}, headers=headers, expect=403)
    assert answer.body["code"] == "origin-not-trusted"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://testserver", "sec-fetch-site": "same-origin"},
        {"origin": "https://pages.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://localhost:3000"},
        {"origin": "https://a.team.example", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin"},
    ],
)
def test_our_own_and_trusted_pages_and_other_clients_write(
    api: Api, request_body: dict[str, Any], settings: Settings, headers: dict[str, str]
) -> None:
    settings.SVC_WEB_URL = "https://pages.example:443/svc"
    settings.CSRF_TRUSTED_ORIGINS = ["http://localhost:3000", "https://*.team.example"]
    api.post("/v1/sandboxes", request_body, headers=headers)


def test_reading_is_for_cors_to_decide(api: Api, settings: Settings) -> None:
    headers = {"origin": EVIL, "sec-fetch-site": "cross-site"}
    assert api.get("/healthz", headers=headers).headers["access-control-allow-origin"] == EVIL
    settings.CORS_ALLOWED_ORIGIN_REGEXES = []
    assert "access-control-allow-origin" not in api.get("/healthz", headers=headers).headers


PREVIEWS = [
    f"http://8080-{MISSING}.localhost:3001",
    f"http://8080-{MISSING}.LOCALHOST.:3001",
    f"https://1-{MISSING}.localhost",
    "null",
]


@pytest.mark.parametrize("origin", PREVIEWS)
def test_a_page_of_a_preview_reads_nothing_whatever_cors_says(
    api: Api, settings: Settings, origin: str
) -> None:
    settings.CORS_ALLOWED_ORIGIN_REGEXES = [".*"]
    settings.CORS_ALLOWED_ORIGINS = [origin]
    answer = api.get("/v1/system/setup-state", headers={"origin": origin})
    assert "access-control-allow-origin" not in answer.headers
    asked = {"origin": origin, "access-control-request-method": "POST"}
    preflight = api.request("OPTIONS", "/v1/sandboxes", headers=asked)
    assert "access-control-allow-origin" not in preflight.headers
    other = api.get("/v1/system/setup-state", headers={"origin": EVIL})
    assert other.headers["access-control-allow-origin"] in {EVIL, "*"}


@pytest.mark.parametrize("origin", PREVIEWS)
def test_a_page_of_a_preview_writes_nothing_though_its_domain_is_trusted(
    api: Api, settings: Settings, origin: str
) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["http://*.localhost:3001", "https://*.localhost"]
    answer = api.post("/v1/sandboxes", {}, headers={"origin": origin}, expect=403)
    assert answer.body["code"] == "origin-not-trusted"


def test_a_refused_write_can_be_read_where_cors_allows_it(api: Api) -> None:
    answer = api.post("/v1/sandboxes", {}, headers={"origin": EVIL}, expect=403)
    assert answer.headers["access-control-allow-origin"] == EVIL


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "text/plain; a=application/json", "multipart/form-data"]
)
def test_a_body_that_a_page_sends_without_being_asked_for_leave_is_not_read(
    api: Api, request_body: dict[str, Any], content_type: str
) -> None:
    answer = api.post("/v1/sandboxes", request_body, content_type=content_type, expect=415)
    assert answer.body["code"] == "unsupported-media-type"
    assert not Workspace.objects.exists()


def test_a_request_without_a_body_needs_no_type(api: Api, request_body: dict[str, Any]) -> None:
    workspace = api.post("/v1/sandboxes", request_body).body["workspaceId"]
    path = f"/v1/workspaces/{workspace}/stop?ownerUserId={OWNER}"
    assert api.post(path, raw=b"", content_type="", expect=None).status < 400  # type: ignore[arg-type]


def test_a_delivery_of_source_hosting_names_no_origin(api: Api, settings: Settings) -> None:
    settings.SCM_APP_WEBHOOK_SECRET = SECRET
    deliver(api, "ping", {"zen": "Keep it logically awesome."})


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a b", "10.0.0.9"]
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/workspaces?ownerUserId=a", "/docs", "/admin/"])
def test_a_name_that_somebody_points_at_us_is_refused_without_a_traceback(
    api: Api, caplog: pytest.LogCaptureFixture, host: str, path: str
) -> None:
    answer = api.get(path, headers={"host": host}, expect=400)
    assert answer.body["code"] == "host-not-allowed"
    assert "access-control-allow-origin" not in answer.headers
    # Of this request; threads of others may have something to say.
    logged = [record for record in caplog.records if record.thread == threading.get_ident()]
    assert [record for record in logged if record.exc_info] == []
    assert not any("Traceback" in record.getMessage() for record in logged)
    assert sum("host_refused" in record.getMessage() for record in logged) == 1


@pytest.mark.parametrize("host", ["localhost:4000", "127.0.0.1", "[::1]:4000", "LOCALHOST"])
def test_the_names_of_this_machine_are_answered(api: Api, host: str) -> None:
    api.get("/healthz", headers={"host": host})


def test_a_page_of_the_admin_posts_to_itself() -> None:
    get_user_model().objects.create_superuser("ada", password="lovelace-1815")
    client = Client(enforce_csrf_checks=True)
    client.get("/admin/login/")
    form = {
        "csrfmiddlewaretoken": client.cookies["csrftoken"].value,
        "username": "ada",
        "password": "lovelace-1815",
    }
    answer = client.post("/admin/login/", form, headers={"origin": "http://testserver"})
    assert answer.status_code == 302


# ---------------------------------------------------------------- a real page


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A tab of a browser of the test's own."""
    with browser(tmp_path / "profile") as tab:
        yield tab


@pytest.fixture
def foreign_site() -> Iterator[str]:
    """The address of a page of somebody else's: another host and another port."""

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>news</title><iframe name=f></iframe>")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def _send(url: str, body: dict[str, Any], **options: Any) -> str:
    given = json.dumps({"method": "POST", "body": json.dumps(body), **options})
    return f"fetch({json.dumps(url)}, {given}).then(a => a.status, e => e.name)"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_page_of_another_origin_in_a_browser_starts_no_workspace(
    live_server: LiveServer, page: Page, foreign_site: str, request_body: dict[str, Any]
) -> None:
    url = live_server.url.replace("127.0.0.1", "localhost") + "/v1/sandboxes"
    page.open(foreign_site)
    # Without a preflight the answer cannot be read; with one, CORS lets it be.
    page.evaluate(_send(url, request_body, mode="no-cors"))
    page.evaluate(
        f"navigator.sendBeacon({json.dumps(url)}, {json.dumps(json.dumps(request_body))})"
    )
    typed = {"headers": {"content-type": "application/json"}}
    assert page.evaluate(_send(url, request_body, **typed)) == 403
    page.evaluate(
        "document.querySelector('iframe').onload = () => { document.title = 'sent' };"
        "document.body.append(Object.assign(document.createElement('form'),"
        f"{{method: 'post', action: {json.dumps(url)}, target: 'f', enctype: 'text/plain'}}));"
        "document.forms[0].submit()"
    )
    page.wait_for("document.title === 'sent'")
    assert not Workspace.objects.exists()
    page.open(live_server.url + "/docs")
    own = live_server.url + "/v1/sandboxes"
    assert page.evaluate(_send(own, request_body, **typed)) == 202
    assert Workspace.objects.count() == 1
