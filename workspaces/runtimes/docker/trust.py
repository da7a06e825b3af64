"""Has the programs of a workspace trust one more certificate authority, before any of them runs.

The list of authorities is a file of the image; it is read, added to and put back while nothing runs
in the container, so no program of the image has a say in it.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile

from cryptography import x509
from docker.errors import NotFound
from docker.models.containers import Container

from workspaces.runtimes.base import LaunchError

LIST = "/etc/ssl/certs/ca-certificates.crt"
"""Where it is when the image does not say in ``SSL_CERT_FILE``."""
ANCHOR = "/usr/local/share/ca-certificates/svc-egress.crt"
"""From here Debian and Alpine add it again when they write the list anew; programs with a list of
their own can be told to read it, too."""
HASHED = "/etc/ssl/certs"
"""Where OpenSSL looks for an authority by a hash of its name, when it is told of no list."""
MAX_LIST_BYTES = 4 * 1024 * 1024
MAX_LINKS = 4


def trust(container: Container, authority: bytes) -> None:
    """Add an authority, in PEM, to what a container that was not started trusts.

    Raises ``egress-not-enforced`` when what the image trusts cannot be read.
    """
    place = _list_of(container)
    for _ in range(MAX_LINKS + 1):
        found = _read(container, place)
        if found is None:
            raise _refusal(f"has more than {MAX_LIST_BYTES >> 20} MiB")
        if isinstance(found, bytes):
            known = found
            break
        place = posixpath.normpath(posixpath.join(posixpath.dirname(place), found))
    else:
        raise _refusal(f"is behind more than {MAX_LINKS} links")
    files = {
        place: known.rstrip(b"\n") + b"\n" + authority,
        ANCHOR: authority,
        f"{HASHED}/{_hash_of_name(authority)}.0": authority,
    }
    container.put_archive("/", _archive(files))


def _hash_of_name(authority: bytes) -> str:
    """Return what ``openssl x509 -subject_hash`` does for a name in UTF-8 and small letters."""
    name = x509.load_pem_x509_certificate(authority).subject.public_bytes()
    parts = name[2:]  # without the head of the sequence: such a name is short
    digest = hashlib.sha1(parts, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _list_of(container: Container) -> str:
    words = (each.partition("=") for each in container.attrs["Config"].get("Env") or ())
    named: dict[str, str] = {name: value for name, _, value in words}
    path = named.get("SSL_CERT_FILE", "")
    return path if path.startswith("/") else LIST


def _read(container: Container, path: str) -> bytes | str | None:
    """Return a file's content, or where a link leads; nothing where there is neither.

    None for one that is too long.
    """
    try:
        chunks, _ = container.get_archive(path)
    except NotFound:
        return b""
    collected = bytearray()
    for chunk in chunks:
        collected += chunk
        if len(collected) > MAX_LIST_BYTES:
            return None
    with tarfile.open(fileobj=io.BytesIO(collected)) as archive:
        member = archive.next()
        if member is not None and member.issym():
            return member.linkname
        stream = archive.extractfile(member) if member is not None and member.isreg() else None
        return stream.read() if stream is not None else b""


def _refusal(why: str) -> LaunchError:
    return LaunchError(
        "egress-not-enforced",
        f"The image's list of authorities {why}, so the workspace's own cannot be added to it.",
    )


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = 0o644
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
