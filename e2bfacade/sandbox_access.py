"""For whom a call is made, and into which sandbox."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from controlplane_client import AsyncClient, AsyncWorkspace, NotFound
from e2bfacade.facade_settings import FacadeSettings
from e2bfacade.http_call import Exchange
from e2bfacade.refused import Refused, not_running

ENVD_PORT = "49983"
"""Under this port the SDKs reach what is in a sandbox; here it is only part of a name."""

_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SANDBOX_ID = re.compile(_ID)
_SANDBOX_HOST = re.compile(rf"([0-9]{{1,5}})-({_ID})\.([a-z0-9.-]+)")
_MAX_CLIENTS = 256


@dataclass(frozen=True)
class Signature:
    """What an address for a file was signed with, and for what."""

    value: str
    expires_at: str
    path: str
    user: str
    operation: str
    """``read`` or ``write``."""

    def fits(self, token: str) -> bool:
        """Tell whether it was made with the token of a sandbox."""
        said = f"{self.path}:{self.operation}:{self.user}:{token}"
        if self.expires_at:
            said += f":{self.expires_at}"
        digest = hashlib.sha256(said.encode("utf-8", "surrogateescape")).digest()
        right = "v1_" + base64.b64encode(digest).rstrip(b"=").decode()
        return hmac.compare_digest(
            right.encode(), self.value.rstrip("=").encode("utf-8", "replace")
        )


class Callers:
    """Knows the owners, and has a client of the API for each."""

    def __init__(self, settings: FacadeSettings) -> None:
        self._settings = settings
        self._clients: OrderedDict[str, AsyncClient] = OrderedDict()

    async def aclose(self) -> None:
        """Close all connections to the API."""
        for client in self._clients.values():
            await client.aclose()

    def client_of(self, exchange: Exchange) -> AsyncClient:
        """Return the API's client for the owner of a request. Raises ``Refused``."""
        name = self._settings.owner_header
        owner = self._settings.owner
        if name:
            owner = exchange.headers.get(name, "").strip()
            if not owner or "," in owner or not self._settings.trusts(exchange.address):
                raise Refused(
                    401,
                    "unauthenticated",
                    "The request names no owner: send it through the proxy that authenticates "
                    "people. The API key identifies nobody here.",
                )
        client = self._clients.get(owner)
        if client is None:
            # The least recent ones are left to the garbage collector: they may be in use.
            while len(self._clients) >= _MAX_CLIENTS:
                self._clients.popitem(last=False)
            client = self._clients[owner] = AsyncClient(
                self._settings.api_base_url,
                owner.encode("latin-1").decode("utf-8", "replace") if name else owner,
                headers={name: owner} if name else None,
                retries=3,
            )
        self._clients.move_to_end(owner)
        return client

    def token_of(self, client: AsyncClient, sandbox_id: str) -> str:
        """Return the token that opens a sandbox of an owner; it begins with the sandbox's id."""
        said = f"{sandbox_id}\0{client.owner}".encode()
        return f"{sandbox_id}.{hmac.digest(self._settings.key, said, 'sha256').hex()}"

    def refuse_pages(self, exchange: Exchange) -> None:
        """Raise ``Refused`` for what a page in a browser has asked: SDKs never look like that."""
        host = _name(exchange.headers.get("host", ""))
        if not (self._settings.answers_to(host) or self._is_of_sandbox(host)):
            raise Refused(
                400,
                "invalid_argument",
                "The service does not answer to this name; SVC_ALLOWED_HOSTS lists those it knows.",
            )
        if "origin" in exchange.headers or "sec-fetch-site" in exchange.headers:
            raise Refused(403, "permission_denied", "Pages in browsers are not served here.")

    def _is_of_sandbox(self, host: str) -> bool:
        """Tell whether a name is one of a sandbox, below a domain that is ours.

        Under somebody else's domain it could be made to mean this machine in a browser.
        """
        found = _SANDBOX_HOST.fullmatch(host)
        if found is None:
            return False
        domain = found[3]
        return self._settings.answers_to(domain) or domain == _name(self._settings.ports_domain)

    def workspace_of(self, exchange: Exchange) -> AsyncWorkspace:
        """Return the workspace that a call into a sandbox is for. Raises ``Refused``.

        Whoever calls has to have the sandbox's token, which create and connect tell.
        """
        token = exchange.headers.get("x-access-token", "").partition(",")[0].strip()
        sandbox_id = self._named(exchange, token)
        client = self.client_of(exchange)
        if not hmac.compare_digest(
            token.encode("utf-8", "replace"), self.token_of(client, sandbox_id).encode()
        ):
            raise Refused(401, "unauthenticated", "The access token is not that of this sandbox.")
        return client.workspace(sandbox_id)

    async def workspace_of_signature(
        self, exchange: Exchange, signature: Signature
    ) -> AsyncWorkspace:
        """Return the workspace whose token an address was signed with. Raises ``Refused``."""
        if signature.expires_at and not (
            signature.expires_at.isascii()
            and signature.expires_at.isdigit()
            and len(signature.expires_at) < 15
            and time.time() < int(signature.expires_at)
        ):
            raise Refused(401, "unauthenticated", "This address has expired; sign a new one.")
        client = self.client_of(exchange)
        wrong = Refused(401, "unauthenticated", "The signature is not that of a running sandbox.")
        found = _SANDBOX_HOST.fullmatch(_name(exchange.headers.get("host", "")))
        if found is not None:
            if not signature.fits(self.token_of(client, found[2])):
                raise wrong
            return client.workspace(found[2])
        # SDKs that are told one address for all sandboxes do not say which one it is.
        async for info in client.workspaces(status="ready"):
            if signature.fits(self.token_of(client, info.id)):
                return client.workspace(info.id)
        raise wrong

    def _named(self, exchange: Exchange, token: str) -> str:
        found = _SANDBOX_HOST.fullmatch(_name(exchange.headers.get("host", "")))
        # Some releases do not say which sandbox it is after they have connected to one.
        told = exchange.headers.get("e2b-sandbox-id") or token.partition(".")[0]
        named = told.partition(",")[0].strip()
        port = exchange.headers.get("e2b-sandbox-port", ENVD_PORT).partition(",")[0].strip()
        if found is not None:
            port, named = found[1], found[2]
        if _SANDBOX_ID.fullmatch(named) is None:
            raise not_running(named or "a sandbox that was not named")
        if port != ENVD_PORT:
            raise Refused(501, "unimplemented", "Ports of sandboxes are reached through previews.")
        return named


def _name(host: str) -> str:
    name = host.strip().lower()
    return name if name.endswith("]") else name.rpartition(":")[0] or name


async def spec_of(workspace: AsyncWorkspace) -> dict[str, Any]:
    """Return the blueprint of a workspace, with all defaults. Raises ``Refused``."""
    try:
        info = await workspace.refresh()
    except NotFound:
        raise not_running(workspace.id) from None
    return dict(info.raw.get("spec") or {})
