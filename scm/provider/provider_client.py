"""The client of the provider's API: installations, their repositories, and tokens for them.

Promises: every call ends within its time limits, all pages included; redirects are refused, so that
tokens are shown to the provider alone; answers are read up to a limit and believed only when they
have the right shape; lists end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from requests.utils import parse_header_links

from controlplane.security.outbound import Answer, Outbound, OutboundError
from scm.provider.answers import (
    InstallationFacts,
    RepositoryFacts,
    exceeds,
    malformed,
    object_of,
    read_installation,
    read_page,
    read_token,
)
from scm.provider.errors import (
    InstallationGoneError,
    InstallationSuspendedError,
    ProviderError,
    RateLimitedError,
    Reason,
    TokenRefusedError,
)
from scm.provider.tokens import AppKey

_API_VERSION = "2022-11-28"
_PAGE_SIZE = 100
_PAGES_LIMIT = 500
_PAGE_BYTES = 8 * 1024 * 1024
_OTHER_BYTES = 1024 * 1024
_LISTINGS = 3
"""How often a list is read that changes under us."""
_LONGEST_WAIT = 24 * 3600
LIST_PERMISSIONS = {"metadata": "read"}
READ_PERMISSIONS = {"contents": "read"}


@dataclass(frozen=True, slots=True)
class InstallationToken:
    """Opens what it was asked for until ``expires_at``; ``repr`` does not show it."""

    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class RepositoryListing:
    """The repositories of an installation; ``is_complete`` unless they changed all the while."""

    repositories: list[RepositoryFacts]
    is_complete: bool


class ProviderClient:
    """Talks to the API at ``base_url`` as the app. One client may be shared by threads.

    Time-outs are seconds: ``read_timeout`` limits one answer as a whole, ``total_timeout`` a
    question with its repetitions and pages; questions that are given the same ``until``, a
    :meth:`deadline`, are limited together. Everything raises :class:`ProviderError`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        app_id: str,
        private_key: str,
        connect_timeout: float = 3.0,
        read_timeout: float = 15.0,
        total_timeout: float = 60.0,
        extra_ca_file: str | None = None,
    ) -> None:
        self._key = AppKey(app_id, private_key)
        self._outbound = Outbound(
            base_url,
            upstream="source-hosting provider",
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            total_timeout=total_timeout,
            extra_ca_file=extra_ca_file,
            headers={
                "Accept": "application/vnd.github+json",
                "X-GitHub-Api-Version": _API_VERSION,
                "User-Agent": "control-plane",
            },
        )

    def close(self) -> None:
        """Close the connections that are kept open."""
        self._outbound.close()

    def deadline(self) -> float:
        """Return when questions that begin now and belong together have to be answered."""
        return self._outbound.deadline()

    def installation(
        self, external_installation_id: int, *, until: float | None = None
    ) -> InstallationFacts:
        """Return what is known of an installation; a suspended one is told, too."""
        path = f"/app/installations/{external_installation_id}"
        answer = self._send("GET", path, self._key.token(), until=until)
        if _is_gone(answer):
            raise InstallationGoneError
        _expect(answer, 200)
        facts = read_installation(object_of(answer.content, "an installation"))
        if facts.external_id != external_installation_id:
            raise malformed("a different installation than the one requested")
        return facts

    def installation_token(
        self,
        external_installation_id: int,
        *,
        repository_ids: Collection[int] | None,
        permissions: Mapping[str, str] = READ_PERMISSIONS,
        until: float | None = None,
    ) -> InstallationToken:
        """Return a token for these repositories (``None``: all) and permissions, and no more."""
        asked: dict[str, object] = {"permissions": dict(permissions)}
        if repository_ids is not None:
            assert repository_ids  # the provider takes an empty list for "all"
            asked["repository_ids"] = sorted(repository_ids)
        path = f"/app/installations/{external_installation_id}/access_tokens"
        answer = self._send("POST", path, self._key.token(), body=asked, until=until)
        if _is_gone(answer):
            raise InstallationGoneError
        if answer.status == 422:
            raise TokenRefusedError
        _expect(answer, 201)
        given = read_token(object_of(answer.content, "a token"))
        if given.permissions is not None and exceeds(given.permissions, permissions):
            raise malformed("a token with more permissions than requested")
        if repository_ids is not None and (given.repository_ids or set()) - set(repository_ids):
            raise malformed("a token for other repositories than requested")
        return InstallationToken(given.token, given.expires_at)

    def repositories(
        self, external_installation_id: int, *, until: float | None = None
    ) -> RepositoryListing:
        """Return all repositories of an installation, from all pages, each once.

        A list that changes between its pages is read again; when it never holds still, what was
        seen is returned as incomplete.
        """
        until = self.deadline() if until is None else until
        token = self.installation_token(
            external_installation_id,
            repository_ids=None,
            permissions=LIST_PERMISSIONS,
            until=until,
        )
        for _ in range(_LISTINGS):
            listing = self._all_pages(token, until)
            if listing.is_complete:
                break
        return listing

    def _all_pages(self, token: InstallationToken, until: float) -> RepositoryListing:
        """Return what is on all pages; complete when they agree on how many there are."""
        found: dict[int, RepositoryFacts] = {}
        totals: set[int] = set()
        for number in range(1, _PAGES_LIMIT + 1):
            path = f"/installation/repositories?per_page={_PAGE_SIZE}&page={number}"
            answer = self._send("GET", path, token.token, limit=_PAGE_BYTES, until=until)
            _expect(answer, 200)
            page, total = read_page(object_of(answer.content, "a list of repositories"))
            known = len(found)
            found.update((repository.external_id, repository) for repository in page)
            totals.add(total)
            if not _has_next(answer, len(page)):
                return RepositoryListing(list(found.values()), totals == {len(found)})
            if len(found) == known:
                break
        raise malformed("a list of repositories without an end")

    def _send(
        self,
        method: str,
        path: str,
        token: str,
        *,
        body: Mapping[str, object] | None = None,
        limit: int = _OTHER_BYTES,
        until: float | None = None,
    ) -> Answer:
        headers = {"Authorization": f"Bearer {token}"}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        try:
            return self._outbound.send(
                method, path, headers=headers, limit=limit, content=content, until=until
            )
        except OutboundError as error:
            raise ProviderError(
                error.detail,
                Reason(error.reason.value),
                upstream_status=error.status,
                cause=error.cause,
            ) from None


def _is_gone(answer: Answer) -> bool:
    """Tell whether the API says that there is no such thing, and not a proxy before it.

    An app that it does not know is told with this status, too.
    """
    return (
        answer.status == 404
        and b'"message"' in answer.content[:4096]
        and not _is_unknown_app(answer)
    )


def _is_unknown_app(answer: Answer) -> bool:
    return answer.status == 404 and b"Integration not found" in answer.content[:4096]


def _has_next(answer: Answer, length: int) -> bool:
    """Tell whether there is another page.

    Of a ``Link`` (RFC 8288) only that it is there is used: wherever it points, the provider is
    asked for the next number. Without any, a full page may not be the last one.
    """
    header = answer.headers.get("Link", "")
    if header:
        links = parse_header_links(header)
        return any("next" in link.get("rel", "").lower().split() for link in links)
    return length >= _PAGE_SIZE


def _expect(answer: Answer, status: int) -> None:
    """Raise :class:`ProviderError` unless the answer has this status."""
    if answer.status == status:
        return
    told, reason = f"The source-hosting provider answered with status {answer.status}", None
    if 300 <= answer.status < 400:
        told, reason = f"{told} (a redirect, which is not followed).", Reason.REDIRECTED
    elif answer.status == 401 or _is_unknown_app(answer):
        told, reason = f"{told}: it does not accept the app's id and key.", Reason.UNAUTHORIZED
    elif answer.status == 429 or (answer.status == 403 and _is_limited(answer)):
        raise RateLimitedError(upstream_status=answer.status, retry_after=_retry_after(answer))
    elif answer.status == 403 and b"suspended" in answer.content[:4096].lower():
        raise InstallationSuspendedError
    elif answer.status == 403:
        told, reason = f"{told}: the app may not do this.", Reason.FORBIDDEN
    elif answer.status == 404:
        told, reason = f"{told}.", Reason.NOT_FOUND
    raise ProviderError(
        told if reason else f"{told}.", reason or Reason.STATUS, upstream_status=answer.status
    )


def _is_limited(answer: Answer) -> bool:
    headers = answer.headers
    return (
        "Retry-After" in headers
        or headers.get("X-RateLimit-Remaining", "").strip() == "0"
        or b"secondary rate limit" in answer.content[:4096]
    )


def _retry_after(answer: Answer) -> int | None:
    """Return for how many seconds we are to wait, when that is told and sound."""
    for name, base in (("Retry-After", 0.0), ("X-RateLimit-Reset", time.time())):
        text = answer.headers.get(name, "").strip()
        if text.isascii() and text.isdecimal() and len(text) <= 12:
            return int(min(max(int(text) - base, 1), _LONGEST_WAIT))
    return None
