"""The certificate authority of each workspace, with which the proxy opens the TLS of some rules.

Only the workspace trusts it. Its private key is made by the worker that launches, kept sealed, and
opened by the proxy, in whose memory all certificates of hosts are made.
"""

from __future__ import annotations

import os
import ssl
from collections import Counter, OrderedDict
from datetime import UTC, datetime, timedelta
from uuid import UUID

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from django.conf import settings
from django.db import transaction

from accounts import sealing
from accounts.sealing import OtherPlace, Rotated, SealError
from controlplane.database.columns import with_columns
from workspaces.egress.allowance import Allowance
from workspaces.egress.tls_ending import PROTOCOLS, TooManyCertificates
from workspaces.models import EgressAuthority

AUTHORITY_LASTS = timedelta(days=3650)
"""A persistent workspace keeps its authority."""
CERTIFICATE_LASTS = timedelta(days=30)
RENEWED_AFTER = timedelta(days=7)
MADE_BEFORE = timedelta(days=1)
"""Clocks inside may be late."""
MAX_HOSTS = 64
"""Certificates that are kept of one workspace."""
MADE_AT_ONCE = 128
MADE_PER_SECOND = 5.0
"""How many certificates of hosts are made for one workspace: each costs the proxy a moment."""


class NoAuthority(Exception):
    """TLS of a workspace cannot be opened; the text says why."""


def authority_of(workspace_id: UUID) -> bytes | None:
    """Return the certificate that a workspace has to trust, in PEM; made if there is none yet.

    None on an installation without ``SVC_CREDENTIALS_KEY``: there is nothing to seal its key with.
    """
    if not settings.SVC_CREDENTIALS_KEY:
        return None
    certificate, key = new_authority(workspace_id)
    sealed = sealing.seal(key, _place(workspace_id))
    given = {"workspace": workspace_id, "certificate": certificate, "sealed": sealed}
    while True:
        (row,) = EgressAuthority.objects.raw(_FOUND_OR_MADE, given)
        if row.certificate == certificate or _opens(row):
            return row.certificate.encode()
        row.delete()


_FOUND_OR_MADE = with_columns(
    """
INSERT INTO workspaces_egressauthority AS kept (workspace_id, certificate, sealed_key, created_at)
VALUES (%(workspace)s, %(certificate)s, %(sealed)s, statement_timestamp())
ON CONFLICT (workspace_id) DO UPDATE SET created_at = kept.created_at
RETURNING kept.*
""",
    kept=EgressAuthority,
)
"""One statement: of two workers that make one at the same time, both get the one that is kept."""


def open_authority(workspace_id: UUID) -> Authority:
    """Return a workspace's authority, able to make certificates; raises ``NoAuthority``."""
    row = EgressAuthority.objects.filter(pk=workspace_id).first()
    if row is None:
        raise NoAuthority("The workspace has no certificate authority: start it again.")
    try:
        key = sealing.unseal(bytes(row.sealed_key), _place(workspace_id))
    except SealError as error:
        raise NoAuthority(
            "The proxy cannot open the key of the workspace's certificate authority: it has no "
            "SVC_CREDENTIALS_KEY, or another one. Start the workspace again once that is set."
        ) from error
    return Authority(row.certificate, key)


def rotate_authorities(dry_run: bool) -> Rotated:
    """Seal the keys of all authorities under the present key; the next start replaces what is lost.

    May be stopped and repeated at any moment.
    """
    found = Counter[str]()
    rows = EgressAuthority.objects.order_by("pk").values_list("pk", flat=True)
    for workspace_id in rows.iterator():
        with transaction.atomic():
            row = EgressAuthority.objects.select_for_update().filter(pk=workspace_id).first()
            if row is None:
                continue
            if sealing.is_present(bytes(row.sealed_key), _place(workspace_id)):
                found["present"] += 1
            else:
                found["resealed" if _opens(row, reseal=not dry_run) else "lost"] += 1
    return Rotated(found["resealed"], found["present"], found["lost"])


def _opens(row: EgressAuthority, *, reseal: bool = True) -> bool:
    """Whether the key opens; one that is sealed under the previous key is sealed anew."""
    place = _place(row.workspace_id)
    try:
        key = sealing.unseal(bytes(row.sealed_key), place)
    except SealError:
        return False
    if reseal and not sealing.is_present(bytes(row.sealed_key), place):
        row.sealed_key = sealing.seal(key, place)
        row.save(update_fields=["sealed_key"])
    return True


def _place(workspace_id: UUID) -> OtherPlace:
    return OtherPlace(f"egress-authority:{workspace_id}")


class Authority:
    """Makes certificates of hosts for one workspace, and keeps them in memory."""

    def __init__(self, certificate: str, key: str) -> None:
        self.certificate = certificate
        self._certificate = x509.load_pem_x509_certificate(certificate.encode())
        opened = serialization.load_pem_private_key(key.encode(), None)
        assert isinstance(opened, ec.EllipticCurvePrivateKey)
        self._key = opened
        self._contexts: OrderedDict[str, tuple[datetime, ssl.SSLContext]] = OrderedDict()
        self._making = Allowance(MADE_AT_ONCE, MADE_PER_SECOND)

    def context_for(self, host: str) -> ssl.SSLContext:
        """Return what a server of this name has to present, and to speak.

        Raises ``TooManyCertificates`` for one more new host than are allowed.
        """
        now = datetime.now(UTC)
        made, context = self._contexts.pop(host, (now, None))
        if context is None or now - made > RENEWED_AFTER:
            if not self._making.take():
                raise TooManyCertificates
            made, context = now, self._new_context(host)
        self._contexts[host] = (made, context)
        if len(self._contexts) > MAX_HOSTS:
            self._contexts.popitem(last=False)
        return context

    def _new_context(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._certificate
        builder = _builder(_named(host[:64]), CERTIFICATE_LASTS, key)
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.SubjectAlternativeName([x509.DNSName(host)]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (_usage(digital_signature=True), True),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ]
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        made = builder.issuer_name(issuer.subject).sign(self._key, hashes.SHA256())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(list(PROTOCOLS))
        _load(context, made.public_bytes(serialization.Encoding.PEM) + _in_pem(key))
        return context


def _load(context: ssl.SSLContext, chain_and_key: bytes) -> None:
    """Load what must be in no file: ``ssl`` takes nothing else, so it is a file in memory."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, chain_and_key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def new_authority(workspace_id: UUID) -> tuple[str, str]:
    """Return certificate and private key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    # In small letters, as those who look for it by a hash of its name have it.
    name = _named(f"egress of workspace {workspace_id}")
    builder = _builder(name, AUTHORITY_LASTS, key).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    builder = builder.add_extension(_usage(key_cert_sign=True), True)
    made = builder.sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode(), _in_pem(key).decode()


def _builder(
    name: x509.Name, lasts: timedelta, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - MADE_BEFORE)
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _in_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
