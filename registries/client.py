"""The HTTP client of one OCI registry (OCI distribution specification 1.1).

Promises: every call ends within its time limits; names follow the OCI grammar before they become
part of a URL; no redirect is followed, so the credentials stay with the registry; answers are read
up to a limit; a manifest is only believed when its bytes have its digest. Failures name the
registry's status and nothing of this installation (``registries.errors``).
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any
from urllib.parse import urlsplit

from controlplane.logging import carried
from controlplane.oci_names import is_digest, is_repository, is_tag
from controlplane.security.outbound import Answer
from registries.errors import InvalidReferenceError, Reason, RegistryError
from registries.responses import (
    Extension,
    digests_of,
    extensions_of,
    malformed,
    media_type_of,
    next_query_of,
    object_of,
    tags_of,
)
from registries.transport import Transport, expect

__all__ = ["Extension", "InvalidReferenceError", "Manifest", "RegistryClient", "RegistryError"]

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    *_INDEXES,
    "application/vnd.oci.artifact.manifest.v1+json",
)
"""All that is asked for. Without this header registries answer a converted manifest of format 1,
which has another digest. Another type that a registry has and answers nevertheless is read too."""

_MANIFEST_LIMIT = 4 * 1024 * 1024
"""The size up to which the specification wants registries to accept manifests."""
_TAGS_LIMIT = 8 * 1024 * 1024
"""Of all pages together: some hundred thousand tags."""
_PAGES_LIMIT = 1000
_OTHER_LIMIT = 1024 * 1024
_MOUNTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as the registry stores it; ``digest`` is that of ``content``."""

    digest: str
    media_type: str
    content: bytes

    def parsed(self) -> dict[str, Any]:
        """Return the JSON object; raises :class:`RegistryError` when it is none."""
        return object_of(self.content, "a manifest")


class RegistryClient:
    """Talks to the registry at ``base_url``, with Basic authentication when it has an account.

    One client may be shared by threads. Time-outs are seconds: ``read_timeout`` limits an answer
    as a whole, ``total_timeout`` a question with its repetitions and pages (each step of a copy).
    """

    def __init__(
        self,
        base_url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        connect_timeout: float = 3.0,
        read_timeout: float = 30.0,
        total_timeout: float = 60.0,
        extra_ca_file: str | None = None,
    ) -> None:
        has_account = username is not None and password is not None
        self._transport = Transport(
            base_url,
            account=(username or "", password or "") if has_account else None,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            total_timeout=total_timeout,
            extra_ca_file=extra_ca_file,
        )

    def close(self) -> None:
        """Close the connections that are kept open."""
        self._transport.close()

    def ping(self) -> None:
        """Return when the registry answers as one; otherwise raise :class:`RegistryError`."""
        expect(self._send("GET", "/v2/"), 200)

    def list_extensions(self) -> list[Extension]:
        """Return the extensions it says it has; a registry that cannot say so has none."""
        answer = self._send("GET", "/v2/_oci/ext/discover")
        if answer.status == 404:
            return []
        expect(answer, 200)
        return extensions_of(answer)

    def list_tags(self, repository: str) -> list[str] | None:
        """Return all tags of a repository, sorted; ``None`` when there is no such repository."""
        path = f"/v2/{_checked(repository)}/tags/list"
        until = self._transport.deadline()
        tags: set[str] = set()
        asked: set[str] = set()
        query: str | None = ""
        left = _TAGS_LIMIT
        while query is not None:
            if query in asked or len(asked) == _PAGES_LIMIT:
                raise malformed("a list of tags without an end")
            page = f"{path}?{query}" if query else path
            answer = self._send("GET", page, limit=left, until=until)
            if answer.status == 404 and not asked:
                return None
            expect(answer, 200)
            asked.add(query)
            tags.update(tags_of(answer))
            left -= len(answer.content)
            query = next_query_of(answer)
        return sorted(tags)

    def head_manifest(self, repository: str, reference: str) -> str | None:
        """Return the digest of what a tag or digest names, ``None`` when it names nothing."""
        answer = self._send("HEAD", self._manifest_path(repository, reference), accept=True)
        if answer.status == 404:
            return None
        expect(answer, 200)
        digest = answer.headers.get("Docker-Content-Digest", "")
        if not is_digest(digest):
            # The header is optional; the content always tells.
            manifest = self.get_manifest(repository, reference)
            return manifest.digest if manifest else None
        if ":" in reference and digest != reference:
            raise malformed("a different manifest than the one requested")
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
        expect(answer, 200)
        stated = reference if is_digest(reference) else answer.headers.get("Docker-Content-Digest")
        algorithm = "sha512" if stated and stated.startswith("sha512:") else "sha256"
        digest = f"{algorithm}:{hashlib.new(algorithm, answer.content).hexdigest()}"
        if stated and stated != digest:
            raise malformed("a manifest that does not match its digest")
        return Manifest(digest, media_type_of(answer), answer.content)

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
            raise InvalidReferenceError("A manifest can be deleted only by its digest.")
        answer = self._send("DELETE", self._manifest_path(repository, digest))
        if answer.status == 404:
            return False
        expect(answer, 202, 200)
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
                raise malformed("an index inside an index")
            for child in digests_of(document, "manifests"):
                if not self._copy(from_repository, child, to_repository, child, depth=1):
                    return False
        else:
            blobs = dict.fromkeys(
                (*digests_of(document, "config"), *digests_of(document, "layers"))
            )
            shared = from_repository == to_repository or self.head_manifest(to_repository, digest)
            if not shared and not self._mount_all(list(blobs), from_repository, to_repository):
                return False
        answer = self._send(
            "PUT", target, content=manifest.content, content_type=manifest.media_type
        )
        if answer.status in (400, 404) and b"UNKNOWN" in answer.content:
            # BLOB_UNKNOWN, MANIFEST_BLOB_UNKNOWN: a blob went away under the manifest.
            return False
        expect(answer, 201)
        if answer.headers.get("Docker-Content-Digest", digest) != digest:
            raise RegistryError(
                "The registry stored a different manifest than the one it was sent.",
                Reason.MALFORMED,
            )
        return True

    def _mount_all(self, blobs: list[str], from_repository: str, to_repository: str) -> bool:
        """Mount each blob; whether all could be. A few at a time: it is a round trip for each."""
        with ThreadPoolExecutor(max_workers=_MOUNTS_AT_ONCE) as pool:
            mounted = pool.map(
                carried(self._mount), blobs, repeat(from_repository), repeat(to_repository)
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
        expect(answer, 201)
        return True

    def _abandon_upload(self, location: str, uploads: str) -> None:
        """Tell the registry that an upload it began will not come; its own expiry is the net."""
        base, given = urlsplit(self._transport.base_url), urlsplit(location)
        same_host = not given.netloc or given.netloc == base.netloc
        if same_host and given.path.startswith(urlsplit(self._transport.base_url + uploads).path):
            path = given.path.removeprefix(base.path) + (f"?{given.query}" if given.query else "")
            self._send("DELETE", path)

    @staticmethod
    def _manifest_path(repository: str, reference: str) -> str:
        if not is_tag(reference) and not is_digest(reference):
            raise InvalidReferenceError("The tag or digest is malformed.")
        return f"/v2/{_checked(repository)}/manifests/{reference}"

    def _send(
        self,
        method: str,
        path: str,
        *,
        accept: bool = False,
        content: bytes | None = None,
        content_type: str = "",
        limit: int = _OTHER_LIMIT,
        until: float | None = None,
    ) -> Answer:
        headers = {"Accept": ", ".join(MANIFEST_TYPES) if accept else "*/*"}
        if content is not None:
            headers["Content-Type"] = content_type
        return self._transport.send(
            method, path, headers=headers, limit=limit, content=content, until=until
        )


def _checked(repository: str) -> str:
    """Return the name of a repository that may become part of a path."""
    if not is_repository(repository):
        raise InvalidReferenceError("The repository's name is malformed.")
    return repository
