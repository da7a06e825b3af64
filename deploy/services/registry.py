"""The OCI registry: a private one, and the question whether one that runs already can be used."""

from __future__ import annotations

import base64
import http.client
import secrets
from pathlib import Path
from typing import ClassVar

from deploy.services.errors import MissingPartsError
from deploy.services.htpasswd import htpasswd_line
from deploy.services.private import PrivateService, find_program

CUSTOMARY_PORT = 5000
USER = "svc"


def find_server() -> Path | None:
    """The distribution registry as Debian or its upstream names it."""
    return find_program("docker-registry", "registry")


class PrivateRegistry(PrivateService):
    """A registry of our own on 127.0.0.1: plain HTTP, which Docker allows there, and one account.

    Whoever else works on this machine reads, pushes and deletes nothing in it.
    """

    name: ClassVar[str] = "registry"
    accounts: ClassVar[tuple[str, ...]] = ("docker-registry", "nobody")

    def __init__(self, root: Path, port: int | None, password: str, *, user: str = USER) -> None:
        super().__init__(root, port)
        self._account = (user, password)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def address(self) -> str:
        """Host and port, as they stand at the front of an image reference."""
        return f"127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        user, password = self._account
        told = {"REGISTRY_USERNAME": user, "REGISTRY_PASSWORD": password}
        return settings_for(self.address) | told

    @property
    def data_exists(self) -> bool:
        return (self.root / "data").exists()

    def prepare(self) -> None:
        data = self.account.make_directory(self.root / "data")
        # Uploads under way carry a signature; the same secret lets them survive a restart.
        secret_file = self.root / "secret"
        if not secret_file.exists():
            self.account.write(secret_file, secrets.token_hex(32) + "\n")
        accounts = self.root / "htpasswd"
        self.account.write(accounts, htpasswd_line(*self._account))
        self.account.write(
            self.root / "config.yml",
            "version: 0.1\n"
            "log: {level: warn, accesslog: {disabled: true}}\n"
            "storage:\n"
            "  cache: {blobdescriptor: inmemory}\n"
            f"  filesystem: {{rootdirectory: '{data}'}}\n"
            "  delete: {enabled: true}\n"
            f"http: {{addr: '{self.address}', secret: '{secret_file.read_text().strip()}'}}\n"
            f"auth: {{htpasswd: {{realm: svc, path: '{accounts}'}}}}\n"
            "health: {storagedriver: {enabled: true, interval: 10s, threshold: 3}}\n",
        )

    def argv(self) -> list[str]:
        server = find_server()
        if server is None:
            raise MissingPartsError(f"An OCI registry is needed for {self.root}.")
        return self.account.command(server, "serve", self.root / "config.yml")

    def start(self) -> bool:
        # One that an earlier version started asks for no account.
        if self.running and open_to_all("127.0.0.1", self.port):
            self.stop()
        return super().start()

    def answers(self) -> bool:
        return _answer("127.0.0.1", self.port, account=self._account) == 200 and not open_to_all(
            "127.0.0.1", self.port
        )


def settings_for(address: str) -> dict[str, str]:
    """What the control plane must be told about a registry on plain HTTP."""
    return {"REGISTRY_BASE_URL": f"http://{address}", "REGISTRY_PUSH_REGISTRY": address}


def open_to_all(host: str, port: int, timeout: float = 2.0) -> bool:
    """True when a registry answers there and asks for no account."""
    return _answer(host, port, timeout=timeout) == 200


def _answer(
    host: str, port: int, *, account: tuple[str, str] | None = None, timeout: float = 2.0
) -> int | None:
    """The status with which a registry answers there, or None when none does."""
    headers = {}
    if account is not None:
        encoded = base64.b64encode(":".join(account).encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/v2/", headers=headers)
        answer = connection.getresponse()
        answer.read()
        version = answer.getheader("Docker-Distribution-Api-Version", "")
        return answer.status if version == "registry/2.0" else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def found_address(host: str = "127.0.0.1", port: int = CUSTOMARY_PORT) -> str | None:
    """Host and port of an open registry at this place, the customary one, else None."""
    return f"{host}:{port}" if open_to_all(host, port) else None
