"""The endpoints of the registry when it is slow, broken, lying, elsewhere or not there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from pytest_django.fixtures import Settings
from structlog.testing import capture_logs

from tests.conftest import Answer, Api
from tests.registries.fake_registry import FakeRegistry, answer, endless, in_turn, trickle
from tests.registries.images import GONE, OCI_MANIFEST, digest_of
from tests.support.waiting import LONG_WAIT

PATH = "/v1/registries/default"
TAGS, MANIFEST = f"{PATH}/tags?repository=a", f"{PATH}/manifest?repository=a&reference=v1"
ASKING = [f"{PATH}/ping", f"{PATH}/extensions", TAGS, MANIFEST]
PASSWORD = "correct-horse-battery"


@pytest.fixture(autouse=True)
def _hurried(settings: Settings, fake: FakeRegistry) -> None:
    """Configure the fake registry, with an account, and time for its answers."""
    settings.REGISTRY_BASE_URL = fake.url
    settings.REGISTRY_USERNAME, settings.REGISTRY_PASSWORD = "jo-the-robot", PASSWORD
    settings.REGISTRY_CONNECT_TIMEOUT_MS = settings.REGISTRY_READ_TIMEOUT_MS = 300_000
    settings.REGISTRY_TOTAL_TIMEOUT_MS = 300_000


@pytest.fixture
def elsewhere() -> Iterator[FakeRegistry]:
    """Another host, which nobody should ask."""
    fake = FakeRegistry()
    yield fake
    assert fake.requests == []
    fake.close()


def failed(api: Api, path: str, reason: str, status: int | None = None) -> Answer:
    """Return the problem of a request; neither it nor the log tells what is not for its reader."""
    with capture_logs() as logs:
        problem = api.get(path, expect=502)
    body = problem.body
    assert body["code"] == "registry-failed"
    expected: dict[str, Any] = {"name": "registry", "reason": reason}
    assert body["upstream"] == expected | ({} if status is None else {"status": status})
    assert "registry" in body["detail"]
    told = [entry["reason"] for entry in logs if entry["event"] == "registry_failed"]
    assert told == [reason]
    for hidden in ("127.0.0.1", "http", "Traceback", "urllib3", "requests", "Errno", "internals"):
        assert hidden not in body["detail"]
    for hidden in (PASSWORD, "jo-the-robot", "Basic"):
        assert hidden not in problem.content.decode() + repr(logs)
    return problem


def listed(*tags: object, **headers: str) -> Any:
    return answer(200, json.dumps({"name": "a", "tags": tags}).encode(), **headers)


def link(target: str) -> dict[str, str]:
    return {"Link": f'<{target}>; rel="next"'}


@pytest.mark.parametrize("path", ASKING)
def test_a_registry_nobody_runs_is_unreachable(api: Api, settings: Settings, path: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        settings.REGISTRY_BASE_URL = f"http://127.0.0.1:{probe.getsockname()[1]}"
        failed(api, path, "unreachable")


@pytest.mark.parametrize("url", [
    "http://nobody.invalid", "127.0.0.1:5000", "http://[", "ftp://127.0.0.1/", "http://*",
])  # fmt: skip
def test_an_address_of_no_registry_is_unreachable(api: Api, settings: Settings, url: str) -> None:
    settings.REGISTRY_BASE_URL = url
    failed(api, f"{PATH}/ping", "unreachable")


@pytest.mark.parametrize("path", ASKING)
def test_a_registry_that_hangs_or_trickles_is_left_in_time(
    api: Api, fake: FakeRegistry, settings: Settings, path: str
) -> None:
    settings.REGISTRY_READ_TIMEOUT_MS, settings.REGISTRY_TOTAL_TIMEOUT_MS = 500, 1500
    started = time.monotonic()
    fake.behaviour = trickle(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 150)
    failed(api, path, "timed-out")
    fake.behaviour = lambda request: time.sleep(2 * LONG_WAIT)
    failed(api, path, "timed-out")
    assert time.monotonic() - started < LONG_WAIT


@pytest.mark.parametrize("path", ASKING)
@pytest.mark.parametrize(("status", "reason"), [
    (401, "unauthorized"), (403, "unauthorized"), (500, "status"), (503, "status"),
    (400, "status"), (429, "status"), (204, "status"), (418, "status"),
])  # fmt: skip
def test_a_status_that_is_no_answer_is_named(
    api: Api, fake: FakeRegistry, path: str, status: int, reason: str
) -> None:
    fake.behaviour = answer(status, b"" if status == 204 else b"secret internals")
    assert str(status) in failed(api, path, reason, status).body["detail"]


@pytest.mark.parametrize("path", ASKING)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_with_or_without_the_account(
    api: Api, fake: FakeRegistry, elsewhere: FakeRegistry, path: str, status: int
) -> None:
    for location in (f"{elsewhere.url}/v2/", "/v2/again", "http://[", ""):
        fake.requests.clear()
        fake.behaviour = answer(status, b"", Location=location)
        failed(api, path, "redirected", status)
        assert len(fake.requests) == 1


@pytest.mark.parametrize("path", ASKING)
def test_a_body_without_end_is_not_read(api: Api, fake: FakeRegistry, path: str) -> None:
    fake.behaviour = endless(200)
    failed(api, path, "too-large", 200)


@pytest.mark.parametrize("path", ASKING)
@pytest.mark.parametrize(
    "sent", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
def test_what_speaks_no_http_or_breaks_off_is_unreachable(
    api: Api, fake: FakeRegistry, path: str, sent: bytes
) -> None:
    def behave(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(sent)
        request.close_connection = True

    fake.behaviour = behave
    failed(api, path, "unreachable")


@pytest.mark.parametrize("path", ASKING[1:])
@pytest.mark.parametrize("body", [
    b"", b"<html>", b"[]", b"null", b'"text"', b"\xff\xfe{}", b'{"a": NaN}', b'{"a": 1e999}',
    b'{"a": "\\ud800"}', b'{"\\udc00": 1}', b"[" * 100_000, b'{"a":' * 500 + b"1" + b"}" * 500,
    b'{"a": ' + b"1" * 5000 + b"}", b"{} {}",
])  # fmt: skip
def test_what_is_no_json_object_that_can_be_shown_is_malformed(
    api: Api, fake: FakeRegistry, path: str, body: bytes
) -> None:
    fake.behaviour = answer(200, body, Content_Type="application/json")
    failed(api, path, "malformed")


@pytest.mark.parametrize("tags", [
    "v1", 5, {"v1": 1}, [5], [None], [["v1"]], ["v1", "../x"], [""], ["a b"], ["<script>"], True,
])  # fmt: skip
def test_a_list_with_something_that_is_no_tag_is_malformed(
    api: Api, fake: FakeRegistry, tags: object
) -> None:
    fake.behaviour = answer(200, json.dumps({"name": "a", "tags": tags}).encode())
    failed(api, TAGS, "malformed")


@pytest.mark.parametrize("extensions", [
    "x", 5, {"name": "a"}, ["a"], [{}], [{"name": ""}], [{"name": 5}],
    [{"name": "a", "url": 5}], [{"name": "a", "description": []}],
    [{"name": "a", "endpoints": "x"}], [{"name": "a", "endpoints": [5]}],
])  # fmt: skip
def test_a_list_with_something_that_is_no_extension_is_malformed(
    api: Api, fake: FakeRegistry, extensions: object
) -> None:
    fake.behaviour = answer(200, json.dumps({"extensions": extensions}).encode())
    failed(api, f"{PATH}/extensions", "malformed")


def test_extensions_are_shown_with_what_is_known_of_them(api: Api, fake: FakeRegistry) -> None:
    whole = {"name": "_oci", "url": "https://x/", "description": "d", "endpoints": ["_oci/ext"]}
    given = [{**whole, "more": 5}, {"name": "b"}, {"name": "c", "url": None, "endpoints": None}]
    fake.behaviour = answer(200, json.dumps({"extensions": given}).encode())
    shown = api.get(f"{PATH}/extensions").body["extensions"]
    assert shown == [whole, {"name": "b", "endpoints": []}, {"name": "c", "endpoints": []}]
    assert fake.requests[0][:2] == ("GET", "/v2/_oci/ext/discover")
    for none in (b"{}", b'{"extensions": null}', b'{"extensions": []}'):
        fake.behaviour = answer(200, none)
        assert api.get(f"{PATH}/extensions").body == {"extensions": []}


def test_pages_of_tags_are_followed_and_make_one_list(
    api: Api, fake: FakeRegistry, elsewhere: FakeRegistry
) -> None:
    fake.behaviour = in_turn(
        listed("c", "b", **link("/v2/a/tags/list?last=b&n=2")),
        listed("b", "a", Link='<?n=2&last=%2Fz>; rel="next", </v2/>; rel="prev"'),
        answer(200, b'{"tags": null}', **link(f"{elsewhere.url}/v2/x/tags/list?last=y")),
        listed("0", Link='</v2/a/tags/list?last=b>; rel="prev"'),
    )
    assert api.get(TAGS).body == {"repository": "a", "tags": ["0", "a", "b", "c"]}
    assert [path.removeprefix("/v2/a/tags/list") for _, path, _ in fake.requests] == [
        "", "?last=b&n=2", "?n=2&last=%2Fz", "?last=y",
    ]  # fmt: skip


def test_pages_that_lead_back_or_on_for_ever_are_malformed(api: Api, fake: FakeRegistry) -> None:
    fake.behaviour = listed("a", **link("/v2/a/tags/list?last=a"))
    failed(api, TAGS, "malformed")
    assert len(fake.requests) == 2
    fake.behaviour = in_turn(
        listed("a", **link("?last=a")), listed("b", **link("?last=b")),
        listed("c", **link("?last=a")),
    )  # fmt: skip
    failed(api, TAGS, "malformed")


def test_pages_that_never_end_are_left(api: Api, fake: FakeRegistry, settings: Settings) -> None:
    settings.REGISTRY_TOTAL_TIMEOUT_MS = 300_000

    def behave(request: BaseHTTPRequestHandler) -> None:
        listed("a", **link(f"?last={len(fake.requests)}"))(request)

    fake.behaviour = behave
    failed(api, TAGS, "malformed")
    assert len(fake.requests) == 1000


@pytest.mark.parametrize("target", ["/v2/a/tags/list", "http://[?x", "", f"?{'x' * 5000}", "?ü"])
def test_a_link_to_no_page_is_malformed(api: Api, fake: FakeRegistry, target: str) -> None:
    fake.behaviour = listed("a", **link(target))
    failed(api, TAGS, "malformed")


def test_a_page_that_fails_fails_the_list(api: Api, fake: FakeRegistry) -> None:
    for status in (404, 500):
        fake.behaviour = in_turn(listed("a", **link("?last=a")), answer(status))
        failed(api, TAGS, "status", status)


def test_a_manifest_that_does_not_have_its_digest_is_malformed(
    api: Api, fake: FakeRegistry
) -> None:
    content = b'{"schemaVersion": 2}'
    by_digest = f"{PATH}/manifest?repository=a&reference={digest_of(b'other')}"
    fake.behaviour = answer(200, content, Content_Type=OCI_MANIFEST)
    failed(api, by_digest, "malformed")
    for stated in (GONE, "sha256:short", "md5:x"):
        fake.behaviour = answer(200, content, Docker_Content_Digest=stated)
        failed(api, MANIFEST, "malformed")


def test_a_manifest_without_headers_is_shown_with_the_digest_of_its_bytes(
    api: Api, fake: FakeRegistry
) -> None:
    content = b'{"schemaVersion": 2}'
    fake.behaviour = answer(200, content)
    assert api.get(MANIFEST).body == {
        "repository": "a",
        "reference": "v1",
        "digest": digest_of(content),
        "contentType": None,
        "manifest": {"schemaVersion": 2},
    }
    assert OCI_MANIFEST in fake.requests[0][2]["accept"]


@pytest.mark.parametrize("media_type", [
    "application/vnd.oci.artifact.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
    "application/vnd.example.thing.v9+json",
])  # fmt: skip
def test_what_is_no_image_is_shown_as_it_is_stored(
    api: Api, fake: FakeRegistry, media_type: str
) -> None:
    document = {"mediaType": media_type, "artifactType": "application/x", "blobs": [{"size": 3}]}
    content = json.dumps(document).encode()
    fake.behaviour = answer(
        200,
        content,
        Content_Type=f"{media_type}; charset=utf-8",
        Docker_Content_Digest=digest_of(content),
    )
    shown = api.get(MANIFEST).body
    assert (shown["contentType"], shown["digest"]) == (media_type, digest_of(content))
    assert shown["manifest"] == document


@pytest.mark.parametrize("media_type", ["<script>", "a/b/c", "text", "a/" + "b" * 500])
def test_a_malformed_media_type_is_refused(api: Api, fake: FakeRegistry, media_type: str) -> None:
    fake.behaviour = answer(200, b"{}", Content_Type=media_type)
    failed(api, MANIFEST, "malformed")


def test_a_registry_that_fails_after_it_did_not_find_a_manifest_has_failed(
    api: Api, fake: FakeRegistry
) -> None:
    fake.behaviour = in_turn(answer(404), answer(500))
    failed(api, MANIFEST, "status", 500)


@pytest.mark.parametrize("path", ASKING)
def test_the_account_goes_to_the_registry_alone(api: Api, fake: FakeRegistry, path: str) -> None:
    fake.behaviour = answer(200, b'{"tags": []}')
    api.get(path)
    (asked,) = fake.requests
    assert asked[2]["authorization"].startswith("Basic ")


def test_no_account_is_sent_when_there_is_none(
    api: Api, fake: FakeRegistry, settings: Settings
) -> None:
    settings.REGISTRY_USERNAME = settings.REGISTRY_PASSWORD = ""
    fake.behaviour = answer(200, b"{}")
    api.get(f"{PATH}/ping", headers={"Authorization": "Bearer of-the-caller", "Cookie": "a=b"})
    assert not {"authorization", "cookie"} & fake.requests[0][2].keys()
