"""Calling a provider that misbehaves, and looking at how that is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

import pytest

from scm.provider import ProviderClient, ProviderError
from tests.scm.fake_provider import APP_ID, Behaviour, FakeProvider, send_json

HIDDEN = ("127.0.0.1", "http://", "Traceback", "urllib3", "ghs_", "eyJ", "hunter2")


def client_of(
    fake: FakeProvider,
    *,
    read: float = 60,
    total: float = 120,
    url: str = "",
    app_id: str = APP_ID,
    key: str = "",
) -> ProviderClient:
    """Return a client that waits long enough for a loaded machine, unless told otherwise."""
    return ProviderClient(
        url or fake.url,
        app_id=app_id,
        private_key=key or fake.private_key,
        connect_timeout=60,
        read_timeout=read,
        total_timeout=total,
    )


def failure(call: Callable[[], object]) -> ProviderError:
    """Return the error of a call, which tells nothing that is not for its reader."""
    with pytest.raises(ProviderError) as caught:
        call()
    error = caught.value
    assert (error.status, error.code) == (502, "scm-provider-failed")
    assert error.members["upstream"] == error.told
    assert (error.told["name"], error.told["reason"]) == ("scm-provider", error.reason.value)
    for hidden in HIDDEN:
        assert hidden not in error.detail + json.dumps(error.members)
    return error


def instead(fake: FakeProvider, part: str, behaviour: Behaviour) -> None:
    """Let ``behaviour`` answer requests whose path has ``part``."""
    fake.override = lambda asked: behaviour if part in asked.path else None


def lie(document: object, status: int = 200) -> Behaviour:
    return lambda request: send_json(request, status, document)


def read_installation(fake: FakeProvider, *, read: float = 60) -> Callable[[], object]:
    return lambda: client_of(fake, read=read).installation(7)


def make_token(fake: FakeProvider, *, read: float = 60) -> Callable[[], object]:
    return lambda: client_of(fake, read=read).installation_token(7, repository_ids=[700])


def list_repositories(fake: FakeProvider, *, read: float = 60) -> Callable[[], object]:
    return lambda: client_of(fake, read=read).repositories(7)


CALLS = [read_installation, make_token, list_repositories]


class Call(Protocol):
    """Makes a call that asks the provider, with a read time-out in seconds."""

    def __call__(self, fake: FakeProvider, *, read: float = 60) -> Callable[[], object]: ...
