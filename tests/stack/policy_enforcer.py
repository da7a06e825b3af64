"""Enforces network policies in a node of the test cluster, whose network plugin does not.

It knows what our policies use: a selector of labels, no ingress, and egress to address blocks with
exceptions, or to some TCP ports anywhere. It is no network plugin: it looks several times a second.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from types import TracebackType

from controlplane.errors import ControlPlaneError
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.kubernetes.cluster import PODS, POLICIES, Cluster, Document, labels_of

LOOK_SECONDS = 0.2
WAIT = ("-w", "10")
"""Docker and the node itself change rules, too."""


class PolicyEnforcer:
    """Enforces the policies of one namespace while it is entered."""

    def __init__(self, admin: Cluster, network_namespace: str) -> None:
        self._admin = admin
        self._namespace = network_namespace
        self._over = threading.Event()
        # Each namespace has its own, because each process enforces one.
        self._chain = f"SVC-{admin.namespace}"[:28]
        self._written = ""
        self._thread = threading.Thread(target=self._run, name="policy enforcer")
        self.enabled = True

    def __enter__(self) -> PolicyEnforcer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._write([])

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Enforce nothing for as long as this lasts."""
        self.enabled = False
        try:
            yield
        finally:
            self.enabled = True

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self._write(self._rules() if self.enabled else [])
            except (LaunchError, ControlPlaneError):
                continue  # the API server is being restarted
            except subprocess.CalledProcessError:
                continue  # somebody else is changing the rules; nothing counts as written

    def _rules(self) -> list[str]:
        policies = self._admin.list(POLICIES, {})
        return [
            rule
            for pod in self._admin.list(PODS, {})
            if (address := pod.get("status", {}).get("podIP"))
            for policy in policies
            if _selects(policy, pod)
            for rule in _rules_of(self._chain, policy, address)
        ]

    def _write(self, rules: list[str]) -> None:
        text = "\n".join(["*filter", f":{self._chain} - [0:0]", *rules, "COMMIT", ""])
        if text == self._written:
            return
        self._iptables("iptables-restore", *WAIT, "--noflush", input_=text)
        if not self._written:
            self._iptables("iptables", *WAIT, "-D", "FORWARD", "-j", self._chain, check=False)
            self._iptables("iptables", *WAIT, "-I", "FORWARD", "-j", self._chain)
        self._written = text

    def _iptables(self, *command: str, input_: str = "", check: bool = True) -> None:
        subprocess.run(
            ["nsenter", f"--net=/run/netns/{self._namespace}", *command],
            input=input_,
            text=True,
            check=check,
            capture_output=True,
        )


def _selects(policy: Document, pod: Document) -> bool:
    wanted = policy["spec"]["podSelector"].get("matchLabels", {}).items()
    return all(labels_of(pod).get(name) == value for name, value in wanted)


def _rules_of(chain: str, policy: Document, address: str) -> list[str]:
    known = "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    rules = [f"-A {chain} -s {address} {known}", f"-A {chain} -d {address} {known}"]
    for rule in policy["spec"].get("egress") or ():
        for port in () if rule.get("to") else rule.get("ports") or ():
            rules.append(f"-A {chain} -s {address} -p tcp --dport {port['port']} -j RETURN")
        for place in rule.get("to") or ():
            block = place.get("ipBlock")
            if block is None:
                continue
            for exception in block.get("except") or ():
                rules.append(f"-A {chain} -s {address} -d {exception} -j REJECT")
            rules.append(f"-A {chain} -s {address} -d {block['cidr']} -j RETURN")
    return [*rules, f"-A {chain} -s {address} -j REJECT", f"-A {chain} -d {address} -j REJECT"]
