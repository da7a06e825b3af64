"""Calling a provider that misbehaves, and looking at how that is told."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from scm.provider import ProviderClient, ProviderError
from tests.scm.fake_provider import APP_ID, Behaviour, FakeProvider, send_json

HIDDEN = ("127.0.0.1", "http://", "Traceback", "urllib3", "ghs_", "eyJ", "hunter2")


def hurried(
    fake: FakeProvider, *, total: float = 5, url: str = "", app_id: str = APP_ID, key: str = ""
) -> ProviderClient:
    """Return a client that waits half a second for an answer."""
    return ProviderClient(
        url or fake.url,
        app_id=app_id,
        private_key=key or fake.private_key,
        connect_timeout=0.5,
        read_timeout=0.5,
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


def read_installation(fake: FakeProvider) -> Callable[[], object]:
    return lambda: hurried(fake).installation(7)


def make_token(fake: FakeProvider) -> Callable[[], object]:
    return lambda: hurried(fake).installation_token(7, repository_ids=[700])


def list_repositories(fake: FakeProvider) -> Callable[[], object]:
    return lambda: hurried(fake).repositories(7)


CALLS = [read_installation, make_token, list_repositories]
Call = Callable[[FakeProvider], Callable[[], object]]
