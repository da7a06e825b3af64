"""The registry client and a registry behind TLS: only a trusted certificate of its name will do."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from registries.client import RegistryClient, RegistryError
from registries.errors import Reason
from tests.registries.fake_registry import FakeRegistry, answer, trickle


def certificate(directory: Path, *, address: str = "127.0.0.1", days: int = 1) -> Path:
    """Return the path of a key and a certificate that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=10))
        .not_valid_after(end)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "registry.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return path


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


def client_of(url: str, trusted: Path | None = None) -> RegistryClient:
    """Return a client with an account that trusts what the machine does, and this."""
    return RegistryClient(
        url,
        username="joe",
        password="hunter2",
        connect_timeout=1,
        read_timeout=1,
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
        fake.behaviour = trickle(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 90)
        assert refusal(client).reason is Reason.TIMED_OUT


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
