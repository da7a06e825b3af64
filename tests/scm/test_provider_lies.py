"""The provider's client against a provider that answers what cannot be right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from scm.provider import Reason
from tests.registries.fake_registry import answer
from tests.scm.fake_provider import FakeProvider, running_provider, send_json
from tests.scm.provider_calls import (
    CALLS,
    Call,
    client_of,
    failure,
    instead,
    lie,
    list_repositories,
    make_token,
    read_installation,
)


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    """A provider with one installation."""
    with running_provider() as provider:
        provider.install("app", "other")
        yield provider


NO_OBJECTS = {
    "nothing": b"",
    "no json": b"<html>",
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "not utf-8": b'{"id": "\xff"}',
    "a huge number": b'{"id": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("body", NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_what_is_no_object_is_not_believed(fake: FakeProvider, call: Call, body: bytes) -> None:
    status = 200 if call is read_installation else 201
    if call is list_repositories:
        instead(fake, "repositories?", answer(200, body))
    else:
        fake.override = lambda asked: answer(status, body)
    assert failure(call(fake)).reason is Reason.MALFORMED


def without(document: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a copy without the member at ``a/b``."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    *parents, last = path.split("/")
    inner = copy
    for name in parents:
        inner = inner[name]
    inner.pop(last, None)
    return copy


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy with another value at ``a/b``."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    *parents, last = path.split("/")
    inner = copy
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return copy


INSTALLATION_LIES: list[tuple[str, object]] = [
    ("id", None), ("id", "7"), ("id", True), ("id", 0), ("id", -7), ("id", 7.0), ("id", 2**63),
    ("id", 8), ("account", None), ("account", []), ("account", "octo-org"), ("account/id", "1"),
    ("account/login", None), ("account/login", 5), ("account/login", ""),
    ("account/login", "x" * 500), ("account/login", "a\u0000b"), ("account/login", "a\u202eb"),
    ("account/login", "\ud800"), ("repository_selection", None), ("repository_selection", "some"),
    ("repository_selection", ["all"]), ("permissions", []), ("permissions", {"contents": 1}),
    ("permissions", {"contents": "all"}), ("permissions", {"A B": "read"}),
    ("permissions", {"contents": ["read"]}), ("suspended_at", "yesterday"), ("suspended_at", True),
    ("suspended_at", {}), ("suspended_at", 1e400), ("suspended_at", 10**18),
    ("suspended_at", "2026-01-02T03:04:05"), ("suspended_at", "2026-13-02T03:04:05Z"),
]  # fmt: skip


@pytest.mark.parametrize(
    "number", range(len(INSTALLATION_LIES)), ids=lambda n: f"{n}-{INSTALLATION_LIES[n][0]}"
)
def test_an_installation_that_cannot_be_one_is_not_believed(
    fake: FakeProvider, number: int
) -> None:
    path, value = INSTALLATION_LIES[number]
    truth = fake.installations[7].shown()
    fake.override = lambda asked: lie(changed(truth, path, value))
    assert failure(read_installation(fake)).reason is Reason.MALFORMED


REPOSITORY_LIES: list[tuple[str, object]] = [
    ("id", None), ("id", "700"), ("id", 2**64), ("owner", None), ("owner/login", 1),
    ("owner/login", ".."), ("owner/login", "a/b"), ("name", None), ("name", ""), ("name", "."),
    ("name", ".."), ("name", "a/b"), ("name", "a b"), ("name", "-c\n"), ("name", "x?y#z"),
    ("name", "x@evil.example"), ("name", "ü"), ("name", "x" * 300), ("default_branch", None),
    ("default_branch", ""), ("default_branch", "-f"), ("default_branch", "a..b"),
    ("default_branch", "a b"), ("default_branch", "x" * 2000), ("default_branch", "x\ud800"),
    ("private", None), ("private", "false"), ("private", 0), ("archived", None),
    ("pushed_at", "soon"), ("pushed_at", []),
]  # fmt: skip


@pytest.mark.parametrize(
    "number", range(len(REPOSITORY_LIES)), ids=lambda n: f"{n}-{REPOSITORY_LIES[n][0]}"
)
def test_a_repository_that_cannot_be_one_is_not_believed(fake: FakeProvider, number: int) -> None:
    path, value = REPOSITORY_LIES[number]
    shown = fake.installations[7].repositories[0].shown()
    page = {"total_count": 1, "repositories": [changed(shown, path, value)]}
    instead(fake, "repositories?", lie(page))
    assert failure(list_repositories(fake)).reason is Reason.MALFORMED


@pytest.mark.parametrize(
    "page",
    [{}, {"total_count": 1}, {"repositories": []}, {"total_count": "1", "repositories": []},
     {"total_count": -1, "repositories": []}, {"total_count": True, "repositories": []},
     {"total_count": 1, "repositories": {}}, {"total_count": 1, "repositories": [None]}],
    ids=range(8),
)  # fmt: skip
def test_a_list_that_cannot_be_one_is_not_believed(fake: FakeProvider, page: object) -> None:
    instead(fake, "repositories?", lie(page))
    assert failure(list_repositories(fake)).reason is Reason.MALFORMED


def test_a_list_without_end_is_left(fake: FakeProvider) -> None:
    shown = fake.installations[7].repositories[0].shown()
    body = json.dumps({"total_count": 10**9, "repositories": [shown]}).encode()
    link = '</installation/repositories?page=2>; rel="next"'
    instead(fake, "repositories?", answer(200, body, Link=link))
    assert failure(list_repositories(fake)).reason is Reason.MALFORMED
    assert len(fake.requests) == 3


def test_a_list_that_grows_for_ever_is_left(fake: FakeProvider) -> None:
    shown = fake.installations[7].repositories[0].shown()

    def more(request: BaseHTTPRequestHandler) -> None:
        page = [{**shown, "id": 1000 + len(fake.requests)}]
        document = {"total_count": 10**6, "repositories": page}
        send_json(request, 200, document, {"Link": '<https://x.example/>; rel="next"'})

    instead(fake, "repositories?", more)
    error = failure(lambda: client_of(fake, total=120).repositories(7))
    assert error.reason is Reason.MALFORMED
    assert len(fake.requests) == 501


TOKEN: dict[str, Any] = {
    "token": "ghs_0123456789",
    "expires_at": "2999-01-02T03:04:05Z",
    "permissions": {"contents": "read", "metadata": "read"},
    "repositories": [{"id": 700}],
}
TOKEN_LIES: list[tuple[str, object]] = [
    ("token", None), ("token", 5), ("token", ""), ("token", "a b c d e f g h"),
    ("token", "ghs_0123\r\nX-Evil: 1"), ("token", "x" * 5000), ("token", "ghs_012345ü"),
    ("expires_at", None), ("expires_at", "soon"), ("expires_at", "2020-01-02T03:04:05Z"),
    ("permissions", []), ("permissions", {"contents": "write"}),
    ("permissions", {"contents": "read", "administration": "read"}),
    ("permissions", {"contents": "read", "metadata": "write"}), ("repositories", {}),
    ("repositories", [{"id": 701}]), ("repositories", [{"id": 700}, {"id": 701}]),
    ("repositories", ["app"]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TOKEN_LIES)), ids=lambda n: f"{n}-{TOKEN_LIES[n][0]}")
def test_a_token_that_is_none_or_opens_more_is_not_taken(fake: FakeProvider, number: int) -> None:
    path, value = TOKEN_LIES[number]
    fake.override = lambda asked: lie(changed(TOKEN, path, value), 201)
    assert failure(make_token(fake)).reason is Reason.MALFORMED


@pytest.mark.parametrize("path", ["permissions", "repositories"])
def test_a_token_of_which_the_provider_says_little_is_taken(fake: FakeProvider, path: str) -> None:
    fake.override = lambda asked: lie(without(TOKEN, path), 201)
    assert client_of(fake).installation_token(7, repository_ids=[700]).token == TOKEN["token"]
