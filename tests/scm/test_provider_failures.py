"""The provider's client against a provider that is slow, broken or not there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from scm.provider import (
    InstallationGoneError,
    InstallationSuspendedError,
    RateLimitedError,
    Reason,
    TokenRefusedError,
)
from tests.registries.fake_registry import answer, endless, trickle
from tests.scm.fake_provider import Asked, Behaviour, FakeProvider, pem, running_provider
from tests.scm.provider_calls import (
    CALLS,
    Call,
    client_of,
    failure,
    instead,
    list_repositories,
    make_token,
    read_installation,
)
from tests.stack.free_ports import free_port
from tests.support.waiting import LONG_WAIT


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    """A provider with one installation."""
    with running_provider() as provider:
        provider.install("app", "other")
        yield provider


def test_a_provider_nobody_runs_cannot_be_reached(fake: FakeProvider) -> None:
    client = client_of(fake, url=f"http://127.0.0.1:{free_port()}/api/v3")
    assert failure(lambda: client.installation(7)).reason is Reason.UNREACHABLE


@pytest.mark.parametrize("call", CALLS)
def test_a_provider_that_does_not_answer_is_left(fake: FakeProvider, call: Call) -> None:
    fake.override = lambda asked: lambda request: time.sleep(2 * LONG_WAIT)
    assert failure(call(fake, read=0.5)).reason is Reason.TIMED_OUT


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_that_trickles_is_left(fake: FakeProvider, call: Call) -> None:
    fake.override = lambda asked: trickle(b"HTTP/1.1 200 OK\r\n" + b"x" * 100)
    assert failure(call(fake, read=0.5)).reason is Reason.TIMED_OUT


def test_all_pages_together_end_in_time(fake: FakeProvider) -> None:
    fake.install(*(f"r{number}" for number in range(100)))

    def slowly(asked: Asked) -> Behaviour | None:
        time.sleep(0.3)
        return None

    fake.override = slowly
    error = failure(lambda: client_of(fake, total=0.5).repositories(7))
    assert error.reason is Reason.TIMED_OUT


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [200, 201, 404, 500])
def test_an_answer_without_end_is_read_to_the_limit(
    fake: FakeProvider, call: Call, status: int
) -> None:
    fake.override = lambda asked: endless(status)
    error = failure(call(fake))
    assert (error.reason, error.upstream_status) == (Reason.TOO_LARGE, status)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", CALLS)
def test_no_redirect_is_followed_so_nobody_else_sees_a_token(
    fake: FakeProvider, call: Call, status: int
) -> None:
    with running_provider() as elsewhere:
        elsewhere.install("app")
        for target in (elsewhere.url, fake.url):
            part = "repositories?" if call is list_repositories else "/app/"
            instead(fake, part, answer(status, Location=f"{target}/app/installations/7"))
            before = len(fake.requests)
            error = failure(call(fake))
            assert (error.reason, error.upstream_status) == (Reason.REDIRECTED, status)
            assert len(fake.requests) - before == (2 if call is list_repositories else 1)
        assert elsewhere.requests == []


def test_a_link_to_another_host_is_not_followed(fake: FakeProvider) -> None:
    with running_provider() as elsewhere:
        body = json.dumps(
            {"total_count": 2, "repositories": [fake.installations[7].repositories[0].shown()]}
        ).encode()
        link = f'<{elsewhere.url}/installation/repositories?page=2>; rel="next"'
        instead(fake, "&page=1", answer(200, body, Link=link))
        client_of(fake).repositories(7)
        assert elsewhere.requests == []
        assert [path for path in fake.paths() if "repositories" in path]


def test_an_app_that_the_provider_does_not_take_is_unauthorized(fake: FakeProvider) -> None:
    another_key = pem(rsa.generate_private_key(65537, 2048))
    for client, status, refused in (
        (client_of(fake, app_id="4712"), 404, "Integration not found"),
        (client_of(fake, key=another_key), 401, "could not be decoded"),
    ):
        error = failure(partial(client.installation, 7))
        assert (error.reason, error.upstream_status) == (Reason.UNAUTHORIZED, status)
        assert refused in fake.refusals[-1]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"Retry-After": "30"}, 30),
        (403, {"Retry-After": "60"}, 60),
        (429, {}, None),
        (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        (429, {"Retry-After": "-5"}, None),
        (429, {"Retry-After": "9" * 400}, None),
        (429, {"Retry-After": "999999999"}, 86_400),
        (403, {"X-RateLimit-Remaining": "0"}, None),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, 1),
    ],
    ids=["429", "403", "no word", "a date", "negative", "many digits", "long", "none left", "past"],
)
def test_a_provider_that_wants_fewer_questions_says_when_to_ask_again(
    fake: FakeProvider, call: Call, status: int, headers: dict[str, str], wait: int | None
) -> None:
    refusal = b'{"message": "API rate limit exceeded"}'
    fake.override = lambda asked: answer(status, refusal, **headers)
    error = failure(call(fake))
    assert isinstance(error, RateLimitedError)
    assert (error.reason, error.upstream_status) == (Reason.RATE_LIMITED, status)
    assert error.retry_after == wait
    assert error.told.get("retryAfterSeconds") == wait
    assert len(fake.requests) == 1


def test_a_limit_that_only_the_message_tells_is_one(fake: FakeProvider) -> None:
    refusal = b'{"message": "You have exceeded a secondary rate limit."}'
    fake.override = lambda asked: answer(403, refusal)
    assert failure(read_installation(fake)).reason is Reason.RATE_LIMITED


def test_the_reset_of_a_limit_is_a_moment(fake: FakeProvider) -> None:
    limits = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 1000)}
    fake.override = lambda asked: answer(403, b"{}", **limits)
    error = failure(read_installation(fake))
    assert isinstance(error, RateLimitedError)
    assert error.retry_after is not None
    assert 500 < error.retry_after <= 1000


def test_an_installation_that_is_unknown_is_gone(fake: FakeProvider) -> None:
    client = client_of(fake)
    for call in (
        lambda: client.installation(8),
        lambda: client.installation_token(8, repository_ids=[1]),
        lambda: client.repositories(8),
    ):
        error = failure(call)
        assert isinstance(error, InstallationGoneError)
        assert error.upstream_status == 404


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("body", [b"", b"<html>404</html>", b"[]"], ids=["empty", "page", "list"])
def test_a_404_that_is_not_the_apis_does_not_mean_that_an_installation_is_gone(
    fake: FakeProvider, call: Call, body: bytes
) -> None:
    fake.override = lambda asked: answer(404, body)
    error = failure(call(fake))
    assert not isinstance(error, InstallationGoneError)
    assert error.reason is Reason.NOT_FOUND


@pytest.mark.parametrize("call", [make_token, list_repositories])
def test_a_suspended_installation_gives_no_token(fake: FakeProvider, call: Call) -> None:
    fake.installations[7].suspended_at = "2026-01-02T03:04:05Z"
    assert isinstance(failure(call(fake)), InstallationSuspendedError)


def test_a_token_is_refused_for_what_the_installation_does_not_have(fake: FakeProvider) -> None:
    client = client_of(fake)
    for call in (
        lambda: client.installation_token(7, repository_ids=[999]),
        lambda: client.installation_token(7, repository_ids=[700], permissions={"actions": "read"}),
        lambda: client.installation_token(7, repository_ids=[700], permissions={"issues": "admin"}),
    ):
        assert isinstance(failure(call), TokenRefusedError)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(400, "status"), (403, "forbidden"), (410, "status"), (451, "status"), (500, "status"),
     (503, "status"), (200, "malformed"), (204, "status")],
)  # fmt: skip
def test_any_other_status_is_told(fake: FakeProvider, status: int, reason: str) -> None:
    fake.override = lambda asked: answer(status, b"hunter2 at /srv" if status != 204 else b"")
    error = failure(read_installation(fake))
    assert error.reason.value == reason
    assert error.upstream_status == (None if status == 200 else status)
    assert len(fake.requests) == (3 if status == 503 else 1)


def test_making_a_token_is_not_repeated_when_the_provider_fails(fake: FakeProvider) -> None:
    fake.override = lambda asked: answer(503)
    failure(make_token(fake))
    assert len(fake.requests) == 1
