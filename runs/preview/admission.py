"""Who may pass: the host says which port of which workspace, a token or cookie that it is allowed.

A cookie comes along with requests that a page of somebody else has caused, so with a cookie a
request counts only when it is a navigation or comes from the workspace itself.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace

from controlplane.security.preview_links import (
    TOKEN_HEADER,
    TOKEN_PARAMETER,
    Grant,
    LinkRefused,
    sign,
    verify,
)
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused

_LABEL = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_MOST_KNOWN = 1024
_FOREIGN = ("same-site", "cross-site")

Headers = dict[str, str]
"""The headers of a request by lower-case name; those given twice are joined with commas."""


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a workspace."""

    workspace_id: str
    port: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A link that a browser has opened: where to send it, and the cookie that it gets."""

    location: str
    cookie: str


class Admission:
    """Checks requests against what the service has signed."""

    def __init__(self, settings: PreviewSettings) -> None:
        self._settings = settings
        self._key = settings.key
        self._known: dict[tuple[str, str], Grant] = {}
        """What was verified already, by token and kind; how long it counts is asked each time."""
        self._cookie_name = ("__Host-" if settings.secure else "") + "svc-preview"

    def place(self, host: str) -> Place:
        """Return what a host stands for. Raises ``PreviewRefused``."""
        name = host.lower().rsplit(":", 1)[0] if ":" in host else host.lower()
        label, _, domain = name.partition(".")
        found = _LABEL.fullmatch(label)
        if found is None or domain != self._settings.domain or int(found[1]) > 65535:
            raise PreviewRefused(
                404,
                "preview-unknown-host",
                "There is no preview under this name; a name consists of a port, a workspace's id "
                "and "
                f"{self._settings.domain}.",
            )
        return Place(found[2], int(found[1]))

    def opened(self, place: Place, method: str, target: str) -> Opened | None:
        """Return what becomes of a link that is opened; None for what is none.

        Raises ``PreviewRefused`` for a link that opens nothing, or not this.
        """
        path, tokens = _without_tokens(target)
        if not tokens or method not in ("GET", "HEAD"):
            return None
        grant = self._granted(place, tokens[0], "link")
        lifetime = int(self._settings.cookie)
        until = int(time.time()) + lifetime
        token = sign(replace(grant, kind="cookie", expires_at=until), self._key)
        secure = "; Secure" if self._settings.secure else ""
        return Opened(
            f"{self.origin(place)}{path}",
            f"{self._cookie_name}={token}; Path=/; Max-Age={lifetime}; HttpOnly; SameSite=Lax"
            + secure,
        )

    def target(self, target: str) -> str:
        """Return the target that the workspace's server gets: never with a link's token."""
        return _without_tokens(target)[0]

    def admit(self, place: Place, method: str, headers: Headers) -> Grant:
        """Return what allows a request. Raises ``PreviewRefused``."""
        if TOKEN_HEADER in headers:
            return self._granted(place, headers[TOKEN_HEADER], "link")
        cookies = self._cookies(headers.get("cookie", ""))
        if not cookies:
            raise PreviewRefused(
                401,
                "preview-link-required",
                "Open this preview with a link: POST "
                f"/v1/workspaces/{place.workspace_id}/ports/{place.port}/links makes one.",
            )
        refused: PreviewRefused | None = None
        for token in cookies:
            try:
                grant = self._granted(place, token, "cookie")
            except PreviewRefused as error:
                refused = error
                continue
            self._refuse_foreign_page(place, method, headers)
            return grant
        assert refused is not None
        raise refused

    def origin(self, place: Place) -> str:
        """Return the origin of a preview, as browsers name it."""
        label = f"{place.port}-{place.workspace_id}"
        return f"{self._settings.scheme}://{label}.{self._settings.authority}"

    def is_ours(self, cookie: str) -> bool:
        """Tell whether a cookie, as ``name=value``, is the gateway's own."""
        return cookie.partition("=")[0].strip() == self._cookie_name

    def _cookies(self, header: str) -> list[str]:
        pairs = (each.strip() for each in header.replace(",", ";").split(";"))
        return [each.partition("=")[2] for each in pairs if self.is_ours(each)]

    def _granted(self, place: Place, token: str, kind: str) -> Grant:
        now = time.time()
        try:
            grant = self._known.get((token, kind))
            if grant is None or grant.expires_at <= now:
                grant = verify(
                    token, self._key, kind="link" if kind == "link" else "cookie", now=now
                )
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[token, kind] = grant
        except LinkRefused as error:
            code = "preview-link-expired" if error.expired else "preview-link-invalid"
            raise PreviewRefused(401, code, f"{error} Make a new one.") from None
        if (grant.workspace_id, grant.port) != (place.workspace_id, place.port):
            raise PreviewRefused(
                401, "preview-link-invalid", "This link is for another port or workspace."
            )
        return grant

    def _refuse_foreign_page(self, place: Place, method: str, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None:
            scheme, _, authority = origin.partition("://")
            label, _, rest = authority.partition(".")
            found = _LABEL.fullmatch(label)
            own = scheme == self._settings.scheme and rest == self._settings.authority
            if own and found is not None and found[2] == place.workspace_id:
                return
        navigates = headers.get("sec-fetch-mode") == "navigate" and method in ("GET", "HEAD")
        if origin is not None or (headers.get("sec-fetch-site") in _FOREIGN and not navigates):
            raise PreviewRefused(
                403,
                "preview-foreign-page",
                "Only pages of this workspace may request this, not pages of another origin.",
            )


def _without_tokens(target: str) -> tuple[str, list[str]]:
    """Return a target without the tokens in its query, and these."""
    path, question, query = target.partition("?")
    # What else is in the query stays as it was written.
    members = query.split("&")
    tokens = [each for each in members if each.partition("=")[0] == TOKEN_PARAMETER]
    if not tokens:
        return target, []
    rest = "&".join(each for each in members if each not in tokens)
    return f"{path}{question if rest else ''}{rest}", [each.partition("=")[2] for each in tokens]
