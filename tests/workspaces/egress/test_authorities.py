"""Each workspace has an authority of its own, whose key is sealed."""

from __future__ import annotations

import base64
import ssl
import subprocess
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import call_command
from pytest_django.fixtures import Settings

from tests.runs.ready import ready_attempts
from workspaces.egress.bound import authorities
from workspaces.egress.bound.authorities import (
    MAX_HOSTS,
    Authority,
    NoAuthority,
    authority_of,
    new_authority,
    open_authority,
)
from workspaces.egress.tls_ending import TooManyCertificates
from workspaces.models import EgressAuthority
from workspaces.runtimes.docker.trust import _hash_of_name

KEYS = [base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]


def openssl(*words: str, given: str) -> str:
    return subprocess.run(
        ["openssl", *words], input=given, text=True, check=True, capture_output=True
    ).stdout.strip()


def test_an_authority_is_found_by_the_hash_that_openssl_looks_for() -> None:
    for _ in range(5):
        certificate, _ = new_authority(uuid4())
        expected = openssl("x509", "-noout", "-subject_hash", given=certificate)
        assert _hash_of_name(certificate.encode()) == expected


def test_the_strictest_client_accepts_a_certificate_and_only_for_its_host() -> None:
    authority = Authority(*new_authority(uuid4()))
    for asked, expected in (("a.test", ""), ("b.test", "Hostname mismatch")):
        client = ssl.create_default_context(cadata=authority.certificate)
        client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        assert expected in _handshake(client, authority.context_for("a.test"), asked)
    stranger = ssl.create_default_context(cadata=Authority(*new_authority(uuid4())).certificate)
    assert _handshake(stranger, authority.context_for("a.test"), "a.test")


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> str:
    """Return what the client has against a server's certificate."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    return ""


def test_only_so_many_certificates_are_kept() -> None:
    authority = Authority(*new_authority(uuid4()))
    first = authority.context_for("a.test")
    assert authority.context_for("a.test") is first
    for number in range(MAX_HOSTS):
        authority.context_for(f"n{number}.test")
    assert authority.context_for("a.test") is not first


@pytest.mark.django_db
def test_a_key_is_sealed_for_one_workspace_and_follows_a_rotation(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS = KEYS[0], ""
    one, other = (attempt.workspace_id for attempt in ready_attempts(2))
    certificate = authority_of(one)
    assert certificate is not None
    assert certificate != authority_of(other)
    row = EgressAuthority.objects.get(pk=one)
    assert b"PRIVATE" not in bytes(row.sealed_key)
    EgressAuthority.objects.filter(pk=other).update(sealed_key=row.sealed_key)
    with pytest.raises(NoAuthority):
        open_authority(other)

    settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS = KEYS[1], KEYS[0]
    assert open_authority(one).certificate.encode() == certificate
    assert authority_of(one) == certificate
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""
    assert open_authority(one).certificate.encode() == certificate

    # A key that nobody has any more: the next start makes another authority.
    settings.SVC_CREDENTIALS_KEY = KEYS[0]
    with pytest.raises(NoAuthority, match="SVC_CREDENTIALS_KEY"):
        open_authority(one)
    assert authority_of(one) not in (None, certificate)
    settings.SVC_CREDENTIALS_KEY = ""
    assert authorities.authority_of(one) is None


@pytest.mark.django_db
def test_a_rotation_seals_authorities_too_so_that_what_runs_needs_no_start(
    settings: Settings,
) -> None:
    settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS = KEYS[0], ""
    one, other = (attempt.workspace_id for attempt in ready_attempts(2))
    certificate = authority_of(one)
    assert certificate is not None
    authority_of(other)
    EgressAuthority.objects.filter(pk=other).update(sealed_key=b"damaged")
    settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS = KEYS[1], KEYS[0]

    def rotate(*options: str) -> str:
        told = StringIO()
        call_command("rotatecredentials", *options, stdout=told)
        return told.getvalue()

    before = bytes(EgressAuthority.objects.get(pk=one).sealed_key)
    assert "Would seal 1 authorities of workspaces" in rotate("--dry-run")
    assert bytes(EgressAuthority.objects.get(pk=one).sealed_key) == before
    assert "Sealed 1 authorities of workspaces" in rotate()
    assert "1 already were, 1 cannot be opened with any known key" in rotate()
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""
    assert open_authority(one).certificate.encode() == certificate


def test_certificates_of_new_hosts_are_made_at_a_bounded_rate_and_known_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authorities, "MADE_AT_ONCE", 3)
    monkeypatch.setattr(authorities, "MADE_PER_SECOND", 0.0)
    authority = Authority(*new_authority(uuid4()))
    made = [authority.context_for(f"h{number}.test") for number in range(3)]
    with pytest.raises(TooManyCertificates):
        authority.context_for("h3.test")
    assert authority.context_for("h2.test") is made[2]
