"""The registry client and a registry behind TLS: only a trusted certificate of its name will do."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from registries.client import RegistryClient, RegistryError
from registries.errors import Reason
from tests.registries.certificates import certificate
from tests.registries.fake_registry import FakeRegistry, answer, trickle
from tests.support.waiting import LONG_WAIT


@contextmanager
def served(path: Path) -> Iterator[FakeRegistry]:
    """Run a registry with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    fake = FakeRegistry(context)
    fake.behaviour = answer(200, b"{}")
    try:
        yield fake
    finally:
        fake.close()


def client_of(
    url: str, trusted: Path | None = None, *, seconds: float = LONG_WAIT
) -> RegistryClient:
    """Return a client with an account that trusts what the machine does, and this."""
    return RegistryClient(
        url,
        username="joe",
        password="hunter2",
        connect_timeout=LONG_WAIT,
        read_timeout=seconds,
        total_timeout=LONG_WAIT,
        extra_ca_file=str(trusted) if trusted else None,
    )


def refusal(client: RegistryClient) -> RegistryError:
    """Return the error of a ping."""
    with pytest.raises(RegistryError) as caught:
        client.ping()
    client.close()
    return caught.value


def test_the_operators_authority_is_trusted_and_answers_trickle_in_vain(tmp_path: Path) -> None:
    path = certificate(tmp_path)
    with served(path) as fake:
        client = client_of(fake.url, path)
        client.ping()
        client.ping()
        client.close()
        fake.behaviour = trickle(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 90)
        assert refusal(client_of(fake.url, path, seconds=1)).reason is Reason.TIMED_OUT


@pytest.mark.parametrize(("trusted", "address", "days"), [
    (False, "127.0.0.1", 1), (True, "127.0.0.2", 1), (True, "127.0.0.1", -1),
], ids=["unknown authority", "another name", "expired"])  # fmt: skip
def test_any_other_certificate_is_refused_before_the_account_is_told(
    tmp_path: Path, trusted: bool, address: str, days: int
) -> None:
    path = certificate(tmp_path, address=address, days=days)
    with served(path) as fake:
        error = refusal(client_of(fake.url, path if trusted else None))
        assert error.reason is Reason.TLS_FAILED
        assert "certificate" in error.detail
        assert fake.requests == []


def test_a_registry_that_speaks_no_tls_is_told_apart_from_its_certificate(
    fake: FakeRegistry,
) -> None:
    error = refusal(client_of(fake.url.replace("http:", "https:")))
    assert error.reason is Reason.TLS_FAILED
    assert "certificate" not in error.detail
    assert fake.requests == []
