"""Certificates between the control plane and engines of other machines: made, kept, unpacked.

Each engine has a CA of its own whose key is thrown away once it has signed two certificates: the
engine's, and the one that the control plane shows to it. The latter is kept sealed in the engine's
row, under a key made of ``SVC_RECORD_SIGNING_KEY``, which every process has that needs it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from django.conf import settings

from controlplane.errors import ControlPlaneError
from controlplane.security import crypto
from controlplane.security.crypto import SealError
from workspaces.models import Engine
from workspaces.runtimes.docker.remote.tls_tunnel import CA_FILE, CERTIFICATE_FILE, KEY_FILE

VALID_FOR = timedelta(days=3650)
FILES = (CA_FILE, CERTIFICATE_FILE, KEY_FILE)
ADDRESS_FILE = "address"
_AS_WRITTEN = (KEY_FILE, CERTIFICATE_FILE, CA_FILE)
_KEY_ID = 0
_LARGEST_FILE = 64 * 1024


class CertificatesError(ControlPlaneError):
    """Certificates cannot be read, kept or opened; the text says what to do."""


def make_certificates(folder: Path, *, name: str, address: str) -> None:
    """Write ``server`` and ``client`` below ``folder``, each with CA, certificate and key.

    Raises ``CertificatesError`` when one of the files is there already.
    """
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate(f"svc engine {name} CA", ca_key, issuer=None, signer=ca_key, address=None)
    for side in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(
            f"svc engine {name} {side}",
            key,
            issuer=ca,
            signer=ca_key,
            address=address if side == "server" else None,
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pem = serialization.Encoding.PEM
        contents = (ca.public_bytes(pem), signed.public_bytes(pem), private)
        try:
            _write(folder / side, dict(zip(FILES, contents, strict=True)), exclusive=True)
        except OSError as error:
            raise CertificatesError(
                f"The certificates cannot be written: {error}. Name a folder that has none."
            ) from error


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    address: str | None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of two machines differ.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .add_extension(_usage(signs=issuer is None), critical=True)
    )
    if issuer is not None:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if address else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if address:
        alternative = x509.SubjectAlternativeName([_general_name(address)])
        builder = builder.add_extension(alternative, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def read_certificates(folder: Path) -> dict[str, str]:
    """Return the three files of ``folder``; raises ``CertificatesError``."""
    found = {}
    for name in FILES:
        try:
            with (folder / name).open("rb") as file:
                found[name] = file.read(_LARGEST_FILE).decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise CertificatesError(
                f"{folder / name} cannot be read as a PEM file: {type(error).__name__}."
            ) from error
    return found


def seal_certificates(certificates: Mapping[str, str], *, name: str) -> bytes:
    """Return certificates sealed for the row of the engine ``name``."""
    content = json.dumps(dict(certificates)).encode()
    return crypto.seal(content, key=_key(), key_id=_KEY_ID, context=_context(name))


def unpacked(engine: Engine) -> Path:
    """Return the folder with an engine's address and certificates, written where they changed.

    It is below the data folder, readable by this user alone: ``ssl`` takes only files, and the
    gateways have no database. Raises ``CertificatesError``.
    """
    folder = engine_folder(engine.name)
    certificates: dict[str, str] = {}
    if engine.certificates is not None:
        try:
            sealed = bytes(engine.certificates)
            opened = crypto.unseal(sealed, keys={_KEY_ID: _key()}, context=_context(engine.name))
        except SealError as error:
            raise CertificatesError(
                f"The certificates of the engine {engine.name} cannot be opened: "
                "SVC_RECORD_SIGNING_KEY was changed. Give them again (manage.py engine add "
                "--replace)."
            ) from error
        certificates = json.loads(opened)
    # The key before its certificate, and that before the CA: a gateway that sees another one of
    # these reads the others with it, and never again (`docker_host_of`). The address last: whoever
    # sees a new one sees all.
    wanted = {name: certificates[name].encode() for name in _AS_WRITTEN if name in certificates}
    _write(folder, {**wanted, ADDRESS_FILE: engine.url.encode()})
    return folder


def engine_folder(name: str) -> Path:
    """Return where address and certificates of an engine are kept for processes."""
    return Path(settings.SVC_DATA_DIR / "engines" / name)


def remove_unpacked(name: str) -> None:
    """Remove what was unpacked of an engine that is gone: its certificates open nothing more."""
    shutil.rmtree(engine_folder(name), ignore_errors=True)


def _write(folder: Path, files: Mapping[str, bytes], *, exclusive: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in files.items():
        path = folder / name
        if exclusive:
            with open(path, "xb", opener=_private) as file:
                file.write(content)
        elif not path.exists() or path.read_bytes() != content:
            part = folder / f".{name}.{os.getpid()}"
            part.unlink(missing_ok=True)
            with open(part, "xb", opener=_private) as file:
                file.write(content)
            part.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _key() -> bytes:
    if not settings.SVC_RECORD_SIGNING_KEY:
        raise CertificatesError(
            "Certificates are kept sealed, and SVC_RECORD_SIGNING_KEY is not set; "
            "manage.py recordkey makes one."
        )
    private = crypto.decode_key(settings.SVC_RECORD_SIGNING_KEY)
    info = b"engine certificates"
    return HKDF(hashes.SHA256(), crypto.KEY_BYTES, salt=None, info=info).derive(private)


def _context(name: str) -> str:
    return f"engine-certificates:{name}"
