"""Requests of workspaces with bound accounts: secrets are put in, placeholders sent nowhere."""

from __future__ import annotations

import ssl
from uuid import UUID

from django.conf import settings

from workspaces.egress import web
from workspaces.egress.bound import placeholders
from workspaces.egress.bound.bound_secrets import BoundSecrets, NoSecret
from workspaces.egress.host_policy import Verdict
from workspaces.egress.refusal import Refused, refused
from workspaces.egress.relaying import Connection
from workspaces.egress.tls_ending import PROTOCOLS

_WITHOUT_PLACEHOLDER = "-"


class BoundRequests:
    """Puts secrets into requests that may have them."""

    def __init__(self) -> None:
        self._secrets = BoundSecrets()
        self._upstream_tls: ssl.SSLContext | None = None

    @property
    def upstream_tls(self) -> ssl.SSLContext:
        """How hosts have to prove their names: as to any program of this installation."""
        if self._upstream_tls is None:
            context = ssl.create_default_context()
            if settings.SVC_EXTRA_CA_FILE:
                context.load_verify_locations(cafile=settings.SVC_EXTRA_CA_FILE)
            context.set_alpn_protocols(list(PROTOCOLS))
            self._upstream_tls = context
        return self._upstream_tls

    def require_placed(
        self, connection: Connection, request: web.Request, verdict: Verdict
    ) -> None:
        """Raise ``Refused`` for a head that has a placeholder where none is replaced."""
        known = connection.placeholders
        if not known:
            return
        wanted = {each.account_id: _WITHOUT_PLACEHOLDER for each in verdict.bound}
        headers = _put_in(connection, request, verdict, wanted)
        if placeholders.in_head(request.target, headers, known):
            raise self.misplaced(request.host, verdict)
        if verdict.bound and request.method.upper() == "TRACE":
            reason = "TRACE would have the host send the secret back."
            raise refused(verdict.rule, reason, request.host)

    def misplaced(self, host: str, verdict: Verdict) -> Refused:
        """Return the refusal of a placeholder that was sent where nobody replaces it."""
        why = verdict.reason or f"No rule puts its secret in at this place of requests to {host}."
        reason = f"The client sent the placeholder of a bound account. {why}"
        return refused("placeholder", reason, host, finding=True)

    async def put_in(self, connection: Connection, request: web.Request, verdict: Verdict) -> None:
        """Put secrets in the place of their placeholders; raises ``Refused``."""
        owner, found = connection.network.owner_user_id, {}
        try:
            for each in verdict.bound:
                if _has(connection, request, each.account_id):
                    found[each.account_id] = await self._secrets.secret_of(owner, each.account_id)
            request.headers = _put_in(connection, request, verdict, found)
        except (NoSecret, placeholders.NotAHeader) as error:
            raise refused("credential-not-usable", str(error), request.host) from error


def _has(connection: Connection, request: web.Request, account_id: UUID) -> bool:
    placeholder = connection.network.placeholders.get(account_id)
    return placeholder is not None and placeholders.in_head(b"", request.headers, [placeholder])


def _put_in(
    connection: Connection, request: web.Request, verdict: Verdict, wanted: dict[UUID, str]
) -> list[tuple[bytes, bytes]]:
    by_header: dict[bytes, dict[bytes, str]] = {}
    for each in verdict.bound:
        placeholder = connection.network.placeholders.get(each.account_id)
        if placeholder is not None and each.account_id in wanted:
            by_header.setdefault(each.header.encode(), {})[placeholder] = wanted[each.account_id]
    return placeholders.put_in(request.headers, by_header)
