"""One HTTP exchange with a registry, within the limits of :mod:`controlplane.security.outbound`.

What is added: the account is told to the registry alone, and failures become a ``RegistryError``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from controlplane.security.outbound import Answer, Outbound, OutboundError
from registries.errors import Reason, RegistryError


def expect(answer: Answer, *statuses: int) -> None:
    """Raise :class:`RegistryError` unless the status is one of these."""
    if answer.status in statuses:
        return
    if 300 <= answer.status < 400:
        reason, more = Reason.REDIRECTED, " (a redirect, which is not followed)"
    elif answer.status in (401, 403):
        reason, more = Reason.UNAUTHORIZED, ": it requires an account, or a different one"
    else:
        reason, more = Reason.STATUS, ""
    raise RegistryError(
        f"The registry answered with status {answer.status}{more}.",
        reason,
        upstream_status=answer.status,
    )


class Transport:
    """Sends requests to the registry at ``base_url``; may be shared by threads.

    Time-outs are seconds. ``total_timeout`` is how far away :meth:`deadline` is.
    """

    def __init__(
        self,
        base_url: str,
        *,
        account: tuple[str, str] | None,
        connect_timeout: float,
        read_timeout: float,
        total_timeout: float,
        extra_ca_file: str | None,
    ) -> None:
        headers = {}
        if account:
            # As RFC 7617 has it today; requests itself would encode it as Latin-1.
            encoded = base64.b64encode(":".join(account).encode()).decode()
            headers["Authorization"] = f"Basic {encoded}"
        self._outbound = Outbound(
            base_url,
            upstream="registry",
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            total_timeout=total_timeout,
            extra_ca_file=extra_ca_file,
            headers=headers,
        )
        self.base_url = self._outbound.base_url
        self.close = self._outbound.close
        self.deadline = self._outbound.deadline

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        limit: int,
        content: bytes | None = None,
        until: float | None = None,
    ) -> Answer:
        """Return the answer, whatever its status; raise :class:`RegistryError` when there is none.

        When it asks again, and when not, :meth:`controlplane.security.outbound.Outbound.send` says.
        """
        try:
            return self._outbound.send(
                method, path, headers=headers, limit=limit, content=content, until=until
            )
        except OutboundError as error:
            raise RegistryError(
                error.detail,
                Reason(error.reason.value),
                upstream_status=error.status,
                cause=error.cause,
            ) from None
