"""Where the cluster is and who we are there: from a kubeconfig, or from the Pod that we run in."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException

from workspaces.runtimes.base import LaunchError

_UNREADABLE = (ConfigException, OSError, ValueError, TypeError, KeyError)


@dataclass(frozen=True, slots=True)
class Server:
    """The API server's address, as a connection of our own needs it."""

    host: str
    port: int
    tls: bool
    path: str
    """What comes before ``/api``; empty unless something in between serves several clusters."""


class Access:
    """The way to one cluster. Clients of the library are not for several threads: one for each.

    ``kubeconfig`` is a file, or empty for what the cluster gives to a Pod. It is read at the first
    call; a failure is told as ``adapter-unavailable`` then, and tried again.
    """

    def __init__(self, kubeconfig: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._lock = threading.Lock()
        self._configuration: Configuration | None = None
        self._local = threading.local()

    def configuration(self) -> Configuration:
        """Return the library's settings; raises ``adapter-unavailable`` when there are none."""
        with self._lock:
            if self._configuration is None:
                self._configuration = self._read()
            return self._configuration

    def client(self) -> ApiClient:
        """Return this thread's client."""
        found: ApiClient | None = getattr(self._local, "client", None)
        if found is None:
            found = self._local.client = ApiClient(self.configuration())
        return found

    def headers(self) -> dict[str, str]:
        """Return what says who we are; the token is read anew where it changes.

        Raises ``adapter-unavailable`` where it cannot be read.
        """
        headers: dict[str, str] = {}
        try:
            self.client().update_params_for_auth(headers, [], ["BearerToken"], "", "GET", None)
        except _UNREADABLE as error:
            raise self._unreadable() from error
        return headers

    def server(self) -> Server:
        """Return where the API server is."""
        parts = urlsplit(str(self.configuration().host))
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return Server(parts.hostname or "", port, tls, parts.path.rstrip("/"))

    def tls(self) -> tuple[ssl.SSLContext, str | None]:
        """Return how to speak TLS with it, and the name that its certificate has to have.

        None: the name of the server.
        """
        settings = self.configuration()
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert or None)
        if settings.ca_cert_data:
            context.load_verify_locations(cadata=settings.ca_cert_data)
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        return context, settings.tls_server_name or None

    def _read(self) -> Configuration:
        found = Configuration()
        try:
            if self._kubeconfig:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    self._kubeconfig, client_configuration=found, persist_config=False
                )
            else:
                config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        except _UNREADABLE as error:
            raise self._unreadable() from error
        # A call that is repeated is repeated by whoever knows whether that is safe.
        found.retries = urllib3.Retry(0, redirect=False)
        return found

    def _unreadable(self) -> LaunchError:
        where = "the kubeconfig" if self._kubeconfig else "the Pod's service account"
        return LaunchError(
            "adapter-unavailable", f"The cluster's address and account cannot be read from {where}."
        )
