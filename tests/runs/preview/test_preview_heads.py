"""What the preview gateway takes from heads and leaves out of them, without a workspace."""

from __future__ import annotations

import asyncio
import time

import pytest

from controlplane.security.preview_links import TOKEN_PARAMETER, Grant, sign, signing_key
from runs.preview.admission import Admission, Place
from runs.preview.client_connection import ClientConnection
from runs.preview.exchange import SharedByConnections
from runs.preview.message_heads import page_headers, response_headers
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused
from tests.support.waiting import LONG_WAIT

WORKSPACE = "019af2c0-0000-7000-8000-00000000000a"
SETTINGS = PreviewSettings(
    host="127.0.0.1",
    port=0,
    domain="localhost",
    authority="localhost:4080",
    scheme="http",
    api_base_url="http://127.0.0.1:1",
    token="the-gateway",
    docker_host="unix:///nowhere",
    owner_header="",
    trusts=lambda _: False,
    cookie=60.0,
    max_connections=1,
    max_unadmitted=8,
    max_unadmitted_per_address=4,
    drain=1.0,
    head=0.5,
)


@pytest.mark.parametrize(
    ("target", "passed"),
    [
        ("/path?a=1&{token}&b=2", "/path?a=1&b=2"),
        ("/path?{token}", "/path"),
        ("/path?{token}&{token}", "/path"),
        ("/path?a={token}", "/path?a={token}"),
        ("/path?", "/path?"),
        ("/path?a=%26{name}=x", "/path?a=%26{name}=x"),
    ],
)
def test_the_token_of_a_link_never_reaches_the_server(target: str, passed: str) -> None:
    grant = Grant(kind="link", workspace_id=WORKSPACE, port=8000, owner="ada", expires_at=2**40)
    token = f"{TOKEN_PARAMETER}={sign(grant, signing_key(SETTINGS.token))}"
    known = {"token": token, "name": TOKEN_PARAMETER}
    admission = Admission(SETTINGS)
    assert admission.target(target.format(**known)) == passed.format(**known)
    opened = admission.opened(Place(WORKSPACE, 8000), "POST", f"/?{token}")
    assert opened is None


def test_who_has_no_link_is_told_how_to_get_one() -> None:
    with pytest.raises(PreviewRefused, match=f"POST /v1/workspaces/{WORKSPACE}/ports/8000/links"):
        Admission(SETTINGS).admit(Place(WORKSPACE, 8000), "GET", {})


def test_no_server_of_a_workspace_speaks_for_the_whole_domain() -> None:
    told = [
        (b"content-length", b"0"),
        (b"clear-site-data", b'"cookies"'),
        (b"nel", b"{}"),
        (b"report-to", b"{}"),
        (b"alt-svc", b'h2="elsewhere:443"'),
    ]
    passed = response_headers(told, Admission(SETTINGS))
    assert [name for name, _ in passed] == [b"content-length"]


def test_no_other_preview_shows_a_page_in_a_frame_unless_its_server_allows_it() -> None:
    own = b"frame-ancestors 'self'"
    opener = (b"cross-origin-opener-policy", b"same-origin-allow-popups")
    policy = b"content-security-policy"
    assert page_headers([]) == [(policy, own), opener]
    assert page_headers([(policy, b"default-src 'self'")]) == [(policy, own), opener]
    assert page_headers([(policy, b"Frame-Ancestors https://a.example")]) == [opener]
    assert page_headers([(b"x-frame-options", b"DENY")]) == [opener]
    assert page_headers([(b"cross-origin-opener-policy", b"unsafe-none")]) == [(policy, own)]


def test_a_head_that_comes_byte_by_byte_is_cut_off() -> None:
    async def bytes_until_cut_off() -> int:
        loop = asyncio.get_running_loop()
        shared = SharedByConnections(SETTINGS)
        server = await loop.create_server(lambda: ClientConnection(shared), "127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            ended = asyncio.ensure_future(reader.read())
            sent = 0
            began = time.monotonic()
            while not ended.done() and time.monotonic() - began < LONG_WAIT:
                writer.write(b"x")
                sent += 1
                await asyncio.sleep(0.05)
            assert ended.done(), f"{sent} bytes of a head are still waited for"
            ended.exception()
            writer.close()
            return sent
        finally:
            server.close()
            shared.workspaces.close()

    assert asyncio.run(bytes_until_cut_off()) > 1
