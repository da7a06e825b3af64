"""What the facade refuses by itself, before it asks the API for anything."""

from __future__ import annotations

import gzip
import hmac
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.e2b_process import E2BProcess
from tests.stack.runs import GATEWAY_TOKEN
from tests.stack.worker_process import CommandProcess
from tests.support.waiting import LONG_WAIT

SDK = {"lang": "python", "package_version": "2.28.0", "x-api-key": "anything"}
SANDBOX = "01a20ac1-151b-75b4-983a-3a10b70ae05d"
NOBODY = "http://127.0.0.1:1"
SETTINGS = {
    "WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN,
    "SVC_BIND_HOST": "127.0.0.1",
    "SVC_E2B_PORT": "4999",
}


@pytest.fixture(scope="module")
def facade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[E2BProcess]:
    """A facade whose API does not answer."""
    log = tmp_path_factory.mktemp("e2b") / "e2b.log"
    made = E2BProcess(log, api=NOBODY, WORKSPACE_SSH_GATEWAY_TOKEN=GATEWAY_TOKEN)
    try:
        yield made
    finally:
        assert made.stop() == 0, made.told


def ask(
    facade: E2BProcess,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Send one request; return status and document of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", facade.port, timeout=LONG_WAIT)
    content = None if body is None else json.dumps(body)
    sent = {**({} if body is None else {"content-type": "application/json"}), **(headers or {})}
    try:
        connection.request(method, path, content, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"user-agent": "curl/8"},
        {"lang": "python", "package_version": "2.64.0"},
        {"lang": "python", "package_version": "2.28.0rc1"},
        {"lang": "python", "package_version": "9" * 5000},
        {"lang": "js", "package_version": "2.60.0"},
        {"lang": "rust", "package_version": "2.28.0"},
        {"user-agent": "e2b-js-sdk/1.0.0"},
    ],
)
def test_a_client_that_was_not_tested_is_told_which_are(
    facade: E2BProcess, headers: dict[str, str]
) -> None:
    status, told = ask(facade, "GET", "/v2/sandboxes", headers=headers)
    assert (status, told["code"]) == (400, 400)
    assert (
        "e2b 2.8.0 to 2.63.0 for Python and e2b 2.8.4 to 2.51.0 for JavaScript" in told["message"]
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"/sandboxes/{SANDBOX}/snapshots", {}),
        ("PUT", f"/sandboxes/{SANDBOX}/network", {}),
        ("POST", "/v3/templates", {}),
        ("POST", "/sandboxes", {"templateID": "base", "volumeMounts": [{"name": "a"}]}),
        ("POST", "/sandboxes", {"templateID": "base", "mcp": {"a": {}}}),
        ("POST", "/sandboxes", {"templateID": "base", "network": {"denyOut": ["1.1.1.1"]}}),
    ],
)
def test_a_call_that_is_not_supported_says_so(
    facade: E2BProcess, method: str, path: str, body: Any
) -> None:
    status, told = ask(facade, method, path, body, SDK)
    assert (status, told["message"][:29]) == (501, "This service does not support")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "", "nothing", "team/base", ".hidden", "a" * 300]
)
def test_an_unknown_template_is_refused_with_those_that_there_are(
    facade: E2BProcess, name: str
) -> None:
    status, told = ask(facade, "POST", "/v2/sandboxes", {"templateID": name}, SDK)
    assert status == 404
    assert told["message"].endswith("there are: base.")


@pytest.mark.parametrize(
    ("body", "status"),
    [([], 400), ({"templateID": 1}, 400), ({"templateID": "base", "timeout": "x"}, 400)],
)
def test_a_body_that_is_wrong_is_refused(facade: E2BProcess, body: Any, status: int) -> None:
    assert ask(facade, "POST", "/sandboxes", body, SDK)[0] == status


def test_a_page_in_a_browser_is_refused(facade: E2BProcess) -> None:
    origin = {"origin": "https://evil.example"}
    assert ask(facade, "GET", "/sandboxes", headers=SDK | origin)[0] == 403
    for name in ("evil.example", f"49983-{SANDBOX}.evil.example", f"49983-{SANDBOX}.evil:80"):
        for path in ("/sandboxes", "/health", "/files?path=a"):
            assert ask(facade, "GET", path, headers=SDK | {"host": name})[0] == 400
    text = {"content-type": "text/plain"}
    assert ask(facade, "POST", "/sandboxes", {"templateID": "base"}, SDK | text)[0] == 415


@pytest.mark.parametrize("call", ["process.Process/List", "filesystem.Filesystem/Stat"])
def test_a_sandbox_is_opened_by_its_own_token_only(facade: E2BProcess, call: str) -> None:
    named = {"e2b-sandbox-id": SANDBOX}
    for token in ("", "x", f"{SANDBOX}.{'0' * 64}"):
        headers = named | {"x-access-token": token}
        status, told = ask(facade, "POST", f"/{call}", {}, headers)
        assert (status, told["code"]) == (401, "unauthenticated")


def test_a_sandbox_has_a_name_below_the_names_of_the_service(facade: E2BProcess) -> None:
    name = {"host": f"49983-{SANDBOX}.localhost:{facade.port}"}
    assert ask(facade, "GET", "/health", headers=name)[0] == 401


@pytest.mark.parametrize("until", ["1", "-1", "x", "%C2%B2", "9" * 30])
def test_a_signed_address_that_has_expired_is_refused(facade: E2BProcess, until: str) -> None:
    path = f"/files?path=a&signature=v1_x&signature_expiration={until}"
    assert ask(facade, "GET", path)[0] == 401


def test_an_api_that_does_not_answer_is_said_to_be_the_one(facade: E2BProcess) -> None:
    status, told = ask(facade, "GET", f"/sandboxes/{SANDBOX}", headers=SDK)
    assert status == 503
    assert "does not answer" in told["message"]


def own_token() -> str:
    """Return what opens the sandbox, as create would tell."""
    key = hmac.digest(
        GATEWAY_TOKEN.encode(), b"access to sandboxes through the E2B facade", "sha256"
    )
    return f"{SANDBOX}.{hmac.digest(key, f'{SANDBOX}{chr(0)}usr_local'.encode(), 'sha256').hex()}"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (gzip.compress(b"x"), 503),
        (b"", 503),
        (gzip.compress(b"x") + b"more", 400),
        (gzip.compress(b"x") + bytes(8 * 1024 * 1024), 400),
        (gzip.compress(b"x") * 2, 400),
        (gzip.compress(b"x")[:-1], 400),
        (gzip.compress(b"x")[:5], 400),
        (b"plain", 400),
    ],
    ids=["sound", "empty", "more", "much more", "twice", "cut off", "head only", "plain"],
)
def test_a_compressed_body_is_one_whole_gzip_and_nothing_else(
    facade: E2BProcess, content: bytes, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", facade.port, timeout=LONG_WAIT)
    sent = {"x-access-token": own_token(), "content-encoding": "gzip"}
    try:
        connection.request("POST", "/files?path=a", content, sent)
        assert connection.getresponse().status == status
    finally:
        connection.close()


def test_an_owner_may_have_any_name(tmp_path: Path) -> None:
    made = E2BProcess(
        tmp_path / "log",
        api=NOBODY,
        WORKSPACE_SSH_GATEWAY_TOKEN=GATEWAY_TOKEN,
        SVC_TRUSTED_OWNER_HEADER="X-Owner",
        SVC_TRUSTED_PROXIES="127.0.0.1",
    )
    try:
        named = SDK | {"x-owner": "jörg".encode().decode("latin-1")}
        status, told = ask(made, "GET", f"/sandboxes/{SANDBOX}", headers=named)
        assert (status, "does not answer" in told["message"]) == (503, True)
        assert ask(made, "GET", f"/sandboxes/{SANDBOX}", headers=SDK)[0] == 401
    finally:
        assert made.stop() == 0, made.told


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SVC_E2B_PORT": "0"}, "The E2B facade is off"),
        ({"WORKSPACE_SSH_GATEWAY_TOKEN": ""}, "WORKSPACE_SSH_GATEWAY_TOKEN is not set"),
        ({"SVC_PUBLISHED_HOST": "192.0.2.1"}, "is not a loopback address"),
        (
            {
                "SVC_BIND_HOST": "192.0.2.1",
                "SVC_PUBLISHED_HOST": "127.0.0.1",
                "SVC_NETWORK_GUARD": "off",
            },
            "nothing keeps workspaces from reaching it",
        ),
    ],
)
def test_it_does_not_start_where_anybody_would_be_the_owner(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    process = CommandProcess(tmp_path / "log", "e2bfacade", **(SETTINGS | changes))
    assert process.wait() == 1
    assert said in process.told
