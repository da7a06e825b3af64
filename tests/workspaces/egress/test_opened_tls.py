"""Bound secrets are put in where their rule says, and placeholders and secrets go nowhere else."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from pytest_django.fixtures import Settings

from accounts.connected import connect_account, delete_account
from accounts.providers import Provider
from tests.conftest import OWNER
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.loopback import Loopback, loopback, names_of_this_machine, parsed
from workspaces.egress.bound.bound_secrets import BoundSecrets, NoSecret
from workspaces.egress.bound.placeholders import new_placeholder
from workspaces.egress.host_policy import Policy
from workspaces.egress.name_addresses import address_for

with_accounts = pytest.mark.django_db(transaction=True)

SECRET = "canary-of-a-bound-secret"
GITHUB_SECRET = f"ghp_{'c' * 36}"
Scene = Callable[[Loopback, str, str, str], Awaitable[None]]
"""What is done with a loopback, the bound host, another allowed host, and the placeholder."""


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = base64.b64encode(bytes(32)).decode()


def account(provider: Provider = Provider.GENERIC, name: str = "API_KEY") -> UUID:
    secret = GITHUB_SECRET if provider == Provider.GITHUB else SECRET
    return connect_account(owner_user_id=OWNER, provider=provider, name=name, secret=secret).pk


def played(
    folder: Path,
    scene: Scene,
    *,
    provider: Provider = Provider.GENERIC,
    proven: bool = True,
    stored: bool = False,
    **rule: Any,
) -> None:
    """Play a scene at a host with a credential, perhaps of an account, and one without."""
    account_id = account(provider) if stored else UUID(int=7)
    placeholder = new_placeholder(provider)

    async def play(bound: str, other: str) -> None:
        def policy(port: int) -> Policy:
            rules = [
                {"hosts": [bound], "ports": [port], "credential": "it", **rule},
                {"hosts": [other], "ports": [port], "methods": ["GET", "POST"]},
            ]
            return parsed(rules, {0: account_id})

        # One thread, whose connection to the database is closed below.
        with ThreadPoolExecutor(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            await at_loopback(bound, other, policy)
            if stored:
                await asyncio.to_thread(connections.close_all)

    async def at_loopback(bound: str, other: str, policy: Callable[[int], Policy]) -> None:
        async with loopback(
            folder,
            [bound, other],
            policy,
            owner_user_id=OWNER,
            placeholders={account_id: placeholder.encode()},
            proven=proven,
        ) as place:
            await asyncio.wait_for(scene(place, bound, other, placeholder), LONG_WAIT)

    with names_of_this_machine(2) as (bound, other):
        asyncio.run(play(bound, other))


def get(host: str, port: int, *headers: str, path: str = "/", method: str = "GET") -> str:
    return "\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", *headers])


@with_accounts
def test_a_secret_is_put_in_at_its_header_as_it_is_and_inside_of_basic(tmp_path: Path) -> None:
    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        login = base64.b64encode(f"x-access-token:{placeholder}".encode()).decode()
        for value in (f"Bearer {placeholder}", f"token {placeholder}", f"Basic {login}"):
            head = get(bound, place.port, f"Authorization: {value}")
            assert b"welcome" in await place.say(bound, head)
        assert b"welcome" in await place.say(bound, get(bound, place.port))
        said = b"".join(place.upstream.heard)
        assert f"Bearer {GITHUB_SECRET}".encode() in said
        assert f"token {GITHUB_SECRET}".encode() in said
        expected = base64.b64encode(f"x-access-token:{GITHUB_SECRET}".encode())
        assert b"Basic " + expected in said
        assert placeholder.encode() not in said
        assert {(each.protocol, each.rule) for each in place.decisions} == {("https", "rules/0")}

    played(tmp_path, scene, stored=True, provider=Provider.GITHUB)


def test_a_placeholder_anywhere_else_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        bearer = f"Authorization: Bearer {placeholder}"
        key, length = f"X-Api-Key: {placeholder}", f"Content-Length: {len(placeholder)}"
        heads = [
            (bound, get(bound, place.port, bearer), b""),  # the rule's header is another one
            (bound, get(bound, place.port, key, path=f"/open/?a={placeholder}"), b""),
            (bound, get(bound, place.port, key, path="/closed"), b""),
            (bound, get(bound, place.port, key, f"X-{placeholder}: 1", path="/open/"), b""),
            (other, get(other, place.port, key), b""),
            (other, get(other, place.port, bearer), b""),
        ]
        for host, head, body in heads:
            answer = await place.say(host, head, body)
            assert answer.startswith(b"HTTP/1.1 403 "), head
            assert placeholder.encode() not in answer
        assert place.upstream.heard == []
        post = get(other, place.port, length, method="POST")
        assert b"welcome" not in await place.say(other, post, placeholder.encode())
        half = len(placeholder) // 2
        pieces = [placeholder[:half].encode(), placeholder[half:].encode(), b""]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        post = get(other, place.port, "Transfer-Encoding: chunked", method="POST")
        await place.say(other, post, chunks)
        assert placeholder.encode() not in b"".join(place.upstream.heard)
        findings = place.told("placeholder")
        assert [each.finding for each in findings] == [True] * (len(heads) + 2)
        assert {each.host for each in findings} == {bound, other}

    played(tmp_path, scene, paths=["/open/*"], header="x-api-key")


def test_methods_and_paths_hold_inside_of_tls_and_hosts_have_to_agree(tmp_path: Path) -> None:
    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        assert b"welcome" in await place.say(bound, get(bound, place.port, path="/open/a"))
        assert b"welcome" in await place.say(other, get(other, place.port, path="/any"))
        place.upstream.heard.clear()
        for host, head in (
            (bound, get(bound, place.port, path="/closed")),
            (bound, get(bound, place.port, path="/open/../closed")),
            (bound, get(bound, place.port, path="/open/", method="DELETE")),
            (bound, get(other, place.port, path="/open/")),
            (bound, get(bound, 443, path="/open/")),
            (other, get(other, place.port, method="PUT")),
            (other, get(other, place.port, method="TRACE")),
            (other, "PRI * HTTP/2.0"),
            (other, "hello"),
        ):
            answer = await place.say(host, head)
            assert answer.startswith(b"HTTP/1.1 403 "), (head, answer)
        assert place.upstream.heard == []

    played(tmp_path, scene, paths=["/open/*"], methods=["GET"])


def test_no_request_has_a_host_send_the_secret_back(tmp_path: Path) -> None:
    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        for method in ("TRACE", "trace"):
            head = get(bound, place.port, f"Authorization: Bearer {placeholder}", method=method)
            answer = await place.say(bound, head)
            assert answer.startswith(b"HTTP/1.1 403 "), answer
            assert b"TRACE would" in answer
        assert place.upstream.heard == []

    played(tmp_path, scene)


def test_a_client_that_trusts_only_its_own_authorities_is_told_of_in_words(tmp_path: Path) -> None:
    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        def as_others_do() -> None:
            address = (str(address_for(bound)), place.port)
            with socket.create_connection(address, timeout=LONG_WAIT) as connection:
                ssl.create_default_context().wrap_socket(connection, server_hostname=bound)

        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(as_others_do)
        while not place.told("certificate-not-accepted"):
            await asyncio.sleep(0.01)
        (told,) = place.told("certificate-not-accepted")
        assert "unknown ca" in told.reason
        assert "pins certificates" in told.reason

    played(tmp_path, scene)


def test_no_secret_is_sent_to_a_host_that_does_not_prove_its_name(tmp_path: Path) -> None:
    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        head = get(bound, place.port, f"Authorization: Bearer {placeholder}")
        answer = await place.say(bound, head)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"certificate-not-valid" in answer
        assert place.upstream.heard == []

    played(tmp_path, scene, proven=False)


@with_accounts
def test_a_secret_that_many_requests_want_together_is_opened_once() -> None:
    class Counted(ThreadPoolExecutor):
        calls = 0

        def submit(self, *args: Any, **named: Any) -> Any:
            self.calls += 1
            return super().submit(*args, **named)

    account_id = account()

    async def wanted() -> None:
        with Counted(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            secrets = BoundSecrets()
            opened = [asyncio.create_task(secrets.secret_of(OWNER, account_id)) for _ in range(9)]
            await asyncio.sleep(0)
            opened.pop(0).cancel()
            assert await asyncio.gather(*opened) == [SECRET] * 8
            assert one.calls == 1
            stranger = [secrets.secret_of("somebody-else", account_id) for _ in range(3)]
            for told in await asyncio.gather(*stranger, return_exceptions=True):
                assert isinstance(told, NoSecret)
            assert one.calls == 2
            await asyncio.to_thread(connections.close_all)

    asyncio.run(wanted())


@with_accounts
def test_a_secret_that_is_replaced_is_sent_anew_and_one_that_is_deleted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workspaces.egress.bound.bound_secrets.KEPT_SECONDS", 0.0)

    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        head = get(bound, place.port, f"Authorization: Bearer {placeholder}")
        assert b"welcome" in await place.say(bound, head)
        replaced = await asyncio.to_thread(
            connect_account,
            owner_user_id=OWNER,
            provider=Provider.GENERIC,
            name="API_KEY",
            secret="another-secret",
        )
        assert b"welcome" in await place.say(bound, head)
        assert SECRET.encode() in place.upstream.heard[0]
        assert b"Bearer another-secret" in place.upstream.heard[1]
        await asyncio.to_thread(delete_account, replaced.pk, owner_user_id=OWNER)
        answer = await place.say(bound, head)
        assert b"credential-not-usable" in answer
        assert len(place.upstream.heard) == 2

    played(tmp_path, scene, stored=True)


def test_a_policy_that_is_replaced_ends_what_it_does_not_allow_and_nothing_else(
    tmp_path: Path,
) -> None:
    async def scene(place: Loopback, bound: str, other: str, placeholder: str) -> None:
        heads = {host: get(host, place.port, path="/hold") for host in (bound, other)}
        open_ones = {}
        for host, head in heads.items():
            place.upstream.holding.clear()
            open_ones[host] = asyncio.create_task(place.say(host, head))
            await place.upstream.holding.wait()
        rules = [{"hosts": [other], "ports": [place.port], "methods": ["GET"]}]
        assert place.network.replace_policy(parsed(rules, {}), 2)
        assert not place.network.replace_policy(parsed([], {}), 2)
        await open_ones[bound]
        assert not open_ones[other].done()
        (told,) = [each for each in place.decisions if not each.allowed]
        assert (told.host, told.rule) == (bound, "rules/0")
        assert "replaced" in told.reason
        assert b"welcome" in await place.say(other, get(other, place.port))
        assert place.network.replace_policy(parsed([], {}), 3)
        await open_ones[other]

    played(tmp_path, scene)
