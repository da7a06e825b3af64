"""The HTTP client of one OCI registry (OCI distribution specification 1.1).

Promises: every call ends within its time limits; names follow the OCI grammar before they become
part of a URL; no redirect is followed, so the credentials stay with the registry; answers are read
up to a limit; a manifest is only believed when its bytes have its digest. Failures name the
registry's status and nothing of this installation.

::

    RegistryError          502 registry-failed             the registry failed or was not reached
    InvalidReferenceError  400 registry-reference-invalid  a name does not follow the grammar
"""

from __future__ import annotations

import hashlib
import json
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from controlplane.errors import BadGateway, BadRequest
from controlplane.oci_names import is_digest, is_repository, is_tag

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    *_INDEXES,
)
"""All that is accepted. Without this header registries answer a converted manifest of format 1,
which has another digest."""

_MANIFEST_LIMIT = 4 * 1024 * 1024
"""The size up to which the specification wants registries to accept manifests."""
_OTHER_LIMIT = 1024 * 1024
_MOUNTS_AT_ONCE = 4


class RegistryError(BadGateway):
    """The registry failed, was not reached or answered something that cannot be right."""

    code, title = "registry-failed", "Registry failed"

    def __init__(self, detail: str, *, upstream_status: int | None = None) -> None:
        super().__init__(detail)
        self.upstream_status = upstream_status


class InvalidReferenceError(BadRequest):
    """A repository, tag or digest does not follow the OCI grammar."""

    code, title = "registry-reference-invalid", "Invalid registry reference"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as the registry stores it; ``digest`` is that of ``content``."""

    digest: str
    media_type: str
    content: bytes

    def parsed(self) -> dict[str, Any]:
        """Return the JSON object; raises :class:`RegistryError` when it is none."""
        try:
            document = json.loads(self.content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise RegistryError("The registry answered a manifest that is not a JSON object.")
        return document


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes


class RegistryClient:
    """Talks to the registry at ``base_url``, with Basic authentication when it has an account.

    One client may be shared by threads. ``read_timeout`` limits the wait for each piece of an
    answer, and a whole answer as well.
    """

    def __init__(
        self,
        base_url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        connect_timeout: float = 3.0,
        read_timeout: float = 30.0,
        extra_ca_file: str | None = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._timeouts = (connect_timeout, read_timeout)
        session = requests.Session()
        # Proxies and netrc of the environment would see or change what is sent.
        session.trust_env = False
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        if username is not None and password is not None:
            session.auth = (username, password)
        adapter = _Adapter(extra_ca_file)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        self._session = session

    def close(self) -> None:
        """Close the connections that are kept open."""
        self._session.close()

    def ping(self) -> None:
        """Return when the registry answers as one; otherwise raise :class:`RegistryError`."""
        self._expect(self._send("GET", "/v2/"), 200)

    def head_manifest(self, repository: str, reference: str) -> str | None:
        """Return the digest of what a tag or digest names, ``None`` when it names nothing."""
        answer = self._send("HEAD", self._manifest_path(repository, reference), accept=True)
        if answer.status == 404:
            return None
        self._expect(answer, 200)
        digest = answer.headers.get("Docker-Content-Digest", "")
        if not is_digest(digest):
            # The header is optional; the content always tells.
            manifest = self.get_manifest(repository, reference)
            return manifest.digest if manifest else None
        if ":" in reference and digest != reference:
            raise RegistryError("The registry answered another manifest than it was asked for.")
        return digest

    def get_manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return what a tag or digest names, ``None`` when it names nothing."""
        answer = self._send(
            "GET",
            self._manifest_path(repository, reference),
            accept=True,
            limit=_MANIFEST_LIMIT,
        )
        if answer.status == 404:
            return None
        self._expect(answer, 200)
        stated = reference if is_digest(reference) else answer.headers.get("Docker-Content-Digest")
        algorithm = "sha512" if stated and stated.startswith("sha512:") else "sha256"
        digest = f"{algorithm}:{hashlib.new(algorithm, answer.content).hexdigest()}"
        if stated and stated != digest:
            raise RegistryError("The registry answered a manifest that does not have its digest.")
        media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        return Manifest(digest, media_type, answer.content)

    def copy(self, from_repository: str, digest: str, to_repository: str, tag: str) -> bool:
        """Make ``to_repository:tag`` name the manifest ``digest`` of ``from_repository``.

        Nothing is transferred: the registry is asked to share the blobs. ``False`` means that the
        manifest or one of its blobs is gone, or that the registry cannot share them; then there is
        nothing to reuse. Tags that existed keep their meaning until the last step.
        """
        if not is_digest(digest):
            raise InvalidReferenceError("The digest is malformed.")
        return self._copy(from_repository, digest, to_repository, tag, depth=0)

    def delete_manifest(self, repository: str, digest: str) -> bool:
        """Delete a manifest and the tags that name it; ``False`` when there was none."""
        if not is_digest(digest):
            raise InvalidReferenceError("A manifest is deleted by its digest.")
        answer = self._send("DELETE", self._manifest_path(repository, digest))
        if answer.status == 404:
            return False
        self._expect(answer, 202, 200)
        return True

    def _copy(
        self, from_repository: str, digest: str, to_repository: str, reference: str, *, depth: int
    ) -> bool:
        target = self._manifest_path(to_repository, reference)
        manifest = self.get_manifest(from_repository, digest)
        if manifest is None:
            return False
        document = manifest.parsed()
        if manifest.media_type in _INDEXES:
            if depth > 0:
                raise RegistryError("The registry answered an index inside an index.")
            for child in _digests(document, "manifests"):
                if not self._copy(from_repository, child, to_repository, child, depth=1):
                    return False
        else:
            blobs = dict.fromkeys((*_digests(document, "config"), *_digests(document, "layers")))
            shared = from_repository == to_repository or self.head_manifest(to_repository, digest)
            if not shared and not self._mount_all(list(blobs), from_repository, to_repository):
                return False
        answer = self._send(
            "PUT", target, content=manifest.content, content_type=manifest.media_type
        )
        if answer.status in (400, 404) and b"UNKNOWN" in answer.content:
            # BLOB_UNKNOWN, MANIFEST_BLOB_UNKNOWN: a blob went away under the manifest.
            return False
        self._expect(answer, 201)
        if answer.headers.get("Docker-Content-Digest", digest) != digest:
            raise RegistryError("The registry stored another manifest than it was sent.")
        return True

    def _mount_all(self, blobs: list[str], from_repository: str, to_repository: str) -> bool:
        """Mount each blob; whether all could be. A few at a time: it is a round trip for each."""
        with ThreadPoolExecutor(max_workers=_MOUNTS_AT_ONCE) as pool:
            mounted = pool.map(
                lambda blob: self._mount(blob, from_repository, to_repository), blobs
            )
            return all(list(mounted))

    def _mount(self, blob: str, from_repository: str, to_repository: str) -> bool:
        uploads = f"/v2/{to_repository}/blobs/uploads/"
        answer = self._send("POST", f"{uploads}?mount={blob}&from={from_repository}")
        if answer.status == 202:
            # The registry offers an upload instead: it does not have the blob, or shares none.
            self._abandon_upload(answer.headers.get("Location", ""), uploads)
            return False
        if answer.status == 404:
            return False
        self._expect(answer, 201)
        return True

    def _abandon_upload(self, location: str, uploads: str) -> None:
        """Tell the registry that an upload it began will not come; its own expiry is the net."""
        base, given = urlsplit(self._base_url), urlsplit(location)
        same_host = not given.netloc or given.netloc == base.netloc
        if same_host and given.path.startswith(urlsplit(self._base_url + uploads).path):
            path = given.path.removeprefix(base.path) + (f"?{given.query}" if given.query else "")
            self._send("DELETE", path)

    @staticmethod
    def _manifest_path(repository: str, reference: str) -> str:
        if not is_repository(repository):
            raise InvalidReferenceError("The repository's name is malformed.")
        if not is_tag(reference) and not is_digest(reference):
            raise InvalidReferenceError("The tag or digest is malformed.")
        return f"/v2/{repository}/manifests/{reference}"

    def _send(
        self,
        method: str,
        path: str,
        *,
        accept: bool = False,
        content: bytes | None = None,
        content_type: str = "",
        limit: int = _OTHER_LIMIT,
    ) -> _Answer:
        """Send a request and read its answer, both within the limits."""
        headers = {
            "Accept": ", ".join(MANIFEST_TYPES) if accept else "*/*",
            "Accept-Encoding": "identity",
        }
        if content is not None:
            headers["Content-Type"] = content_type
        try:
            with self._session.request(
                method,
                self._base_url + path,
                headers=headers,
                data=content,
                timeout=self._timeouts,
                allow_redirects=False,
                stream=True,
            ) as response:
                body = self._read(response, limit)
                return _Answer(response.status_code, response.headers, body)
        except (requests.Timeout, urllib3.exceptions.TimeoutError):
            raise RegistryError("The registry did not answer in time.") from None
        except requests.exceptions.SSLError:
            raise RegistryError("The registry's certificate is not trusted.") from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError):
            raise RegistryError("The registry cannot be reached.") from None

    def _read(self, response: requests.Response, limit: int) -> bytes:
        deadline = time.monotonic() + self._timeouts[1]
        body = bytearray()
        # One read of the socket at a time: an answer that trickles meets the deadline.
        while chunk := response.raw.read1(16 * 1024, decode_content=False):
            body += chunk
            if len(body) > limit:
                raise RegistryError(
                    "The registry's answer is too large.", upstream_status=response.status_code
                )
            if time.monotonic() > deadline:
                raise RegistryError(
                    "The registry did not answer in time.", upstream_status=response.status_code
                )
        return bytes(body)

    @staticmethod
    def _expect(answer: _Answer, *statuses: int) -> None:
        if answer.status not in statuses:
            redirected = " (a redirect, which is not followed)" * (300 <= answer.status < 400)
            raise RegistryError(
                f"The registry answered with status {answer.status}{redirected}.",
                upstream_status=answer.status,
            )


def _digests(document: Mapping[str, Any], member: str) -> list[str]:
    """Return the digests that a manifest names in ``member``, without those kept elsewhere."""
    value = document.get(member, [])
    entries = value if isinstance(value, list) else [value]
    digests = [
        entry.get("digest") if isinstance(entry, dict) else None
        for entry in entries
        if not (isinstance(entry, dict) and entry.get("urls"))
    ]
    if not all(isinstance(digest, str) and is_digest(digest) for digest in digests):
        raise RegistryError("The registry answered a manifest that names a malformed digest.")
    return [str(digest) for digest in digests]


class _Adapter(HTTPAdapter):
    """Repeats what is safe to repeat, and trusts the operator's authority beside the usual ones."""

    def __init__(self, extra_ca_file: str | None) -> None:
        self._context = ssl.create_default_context()
        if extra_ca_file:
            self._context.load_verify_locations(extra_ca_file)
        retry = Retry(
            total=2,
            status_forcelist=(502, 503, 504),
            allowed_methods=("GET", "HEAD"),
            # A registry that hangs is not waited for three times.
            read=False,
            redirect=0,
            backoff_factor=0.1,
            respect_retry_after_header=False,
            raise_on_status=False,
        )
        super().__init__(max_retries=retry, pool_maxsize=16)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pool with our trust."""
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)
