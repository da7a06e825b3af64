"""``make bench-egress``: the egress proxy beside connections without it. Not a test.

Clients are workspaces, hosts are in a network namespace of this machine, and the direct way is that
of a workspace without a policy, measured in turns with the others.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

import docker  # noqa: E402 - settings first
from django.conf import settings  # noqa: E402
from docker.models.containers import Container  # noqa: E402

from accounts.connected import connect_account  # noqa: E402
from accounts.providers import Provider  # noqa: E402
from runs.agent_archive import agent_archive, agent_digest  # noqa: E402
from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, Measure, report  # noqa: E402
from tests.conftest import OWNER  # noqa: E402
from tests.runs.ready import ready_attempt  # noqa: E402
from tests.security.internet import internet  # noqa: E402
from tests.security.surroundings import PUBLIC  # noqa: E402
from tests.security.test_egress import Place  # noqa: E402
from tests.security.tls_hosts import PORT, tls_hosts  # noqa: E402
from tests.stack.free_ports import free_port  # noqa: E402
from tests.stack.worker_process import ROOT, CommandProcess, environment  # noqa: E402
from tests.workspaces.conftest import (  # noqa: E402
    DOCKER_HOST,
    DOCKERFILE,
    Launcher,
    published,
    tar_of,
)
from workspaces.blueprint import Egress  # noqa: E402
from workspaces.egress.agreed_policy import egress_of, policy_of, replace_policy  # noqa: E402
from workspaces.egress.bound.authorities import authority_of  # noqa: E402
from workspaces.egress.bound.placeholders import new_placeholder  # noqa: E402
from workspaces.egress.known_networks import network_of  # noqa: E402
from workspaces.models import Attempt, CredentialReference, EgressNetwork  # noqa: E402
from workspaces.runtimes.docker import DockerAdapter  # noqa: E402
from workspaces.services import references_of  # noqa: E402

KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
SECRET = "a-secret-of-the-benchmark"
BULK_BYTES = 96 << 20
ROUNDS = 5
CONNECTIONS = 40
RELOADS = 7
NETWORKS = 1000
MEBIBYTE = 1 << 20

CLIENT = """
import json, socket, ssl, sys, time
what, address, ca, login, count = json.loads(sys.argv[1])
context = ssl.create_default_context()
context.load_verify_locations(cadata=ca)
if address != "PUBLIC_ADDRESS":
    context.load_verify_locations("/etc/ssl/certs/ca-certificates.crt")
def looked_up():
    # As a workspace with a policy does by connecting to a name.
    name = b"\\7allowed\\4test\\0"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(10)
        head = b"ab\\1\\0\\0\\1" + bytes(6)
        datagrams.sendto(head + name + b"\\0\\1\\0\\1", (address, 53))
        datagrams.recv(512)
def opened():
    if address == "PUBLIC_ADDRESS":
        looked_up()
    plain = socket.create_connection((address, PORT), timeout=60)
    return context.wrap_socket(plain, server_hostname="allowed.test")
def asked(path):
    tls = opened()
    lines = [f"GET {path} HTTP/1.1", "Host: allowed.test:PORT", f"Authorization: Bearer {login}"]
    tls.sendall("\\r\\n".join([*lines, "Connection: close", "", ""]).encode())
    return tls
buffer = bytearray(1 << 18)
if what == "bulk":
    began = time.perf_counter()
    tls, left = asked(f"/bulk={count}"), count
    first = tls.recv(65536)
    assert b" 200 " in first, first[:500]
    left -= len(first.partition(b"\\r\\n\\r\\n")[2])
    while left > 0:
        got = tls.recv_into(buffer)
        assert got
        left -= got
    print(json.dumps(time.perf_counter() - began))
elif what == "connect":
    times = []
    for _ in range(count):
        began = time.perf_counter()
        opened().close()
        times.append(time.perf_counter() - began)
    print(json.dumps(times))
else:
    tls = opened()
    print("open", flush=True)
    try:
        tls.recv(1)
    except OSError:
        pass
    print(json.dumps(time.time()), flush=True)
""".replace("PORT", str(PORT)).replace("PUBLIC_ADDRESS", PUBLIC)


class Ways:
    """Three ways from a workspace to a host: direct, through the proxy, and with a secret."""

    def __init__(self, place: Place, certificate: str) -> None:
        self._place = place
        self._certificate = certificate
        account = connect_account(
            owner_user_id=OWNER, provider=Provider.GENERIC, name="API_KEY", secret=SECRET
        )
        self._placeholder = new_placeholder(Provider.GENERIC)
        rule: dict[str, Any] = {"hosts": ["allowed.test"], "ports": [PORT]}
        self.direct = self._container(None, None)
        self.allowed_attempt = ready_attempt()
        self.allowed = self._container(self.allowed_attempt, rule)
        attempt = ready_attempt()
        CredentialReference.objects.create(
            attempt=attempt,
            account=account,
            provider=account.provider,
            placeholder=self._placeholder,
        )
        self.injected = self._container(attempt, {**rule, "credential": "API_KEY"})

    def _container(self, attempt: Attempt | None, rule: dict[str, Any] | None) -> Container:
        launcher = self._place.launcher
        changes: dict[str, Any] = {"outbound": True, "memory_mb": 512, "cpus": 2.0}
        if attempt is not None:
            egress = Egress.model_validate({"rules": [rule]})
            changes["egress"] = egress_of(attempt, egress, references_of(attempt))
            changes["authority"] = authority_of(attempt.workspace_id)
        return launcher.container(launcher.launch(launcher.request(**changes)))

    def command(self, container: Container, what: str, count: int) -> list[str]:
        """Return what a workspace runs to measure something."""
        direct = container is self.direct
        login = self._placeholder if container is self.injected else SECRET
        place = PUBLIC if direct else "allowed.test"
        told = json.dumps([what, place, self._certificate, login, count])
        return ["python3", "-c", CLIENT, told]

    def measured(self, container: Container, what: str, count: int) -> Any:
        """Return what a workspace measures."""
        code, output = container.exec_run(self.command(container, what, count))
        said = cast("bytes", output).decode()
        if code:
            raise RuntimeError(said)
        return json.loads(said)

    def reload_seconds(self) -> float:
        """Take away a rule while a connection is open, and put it back; return how soon it ends."""
        container, attempt = self.allowed, self.allowed_attempt
        engine = container.client.api  # type: ignore[union-attr]  # it came from one
        call = engine.exec_create(container.id, self.command(container, "hold", 0))["Id"]
        output = engine.exec_start(call, stream=True)
        if b"open" not in next(output):
            raise RuntimeError("the connection was not opened")
        row = EgressNetwork.objects.get(attempt=attempt)
        began = time.time()
        replace_policy(attempt.pk, policy_of(Egress(), ()))
        ended = float(b"".join(output))
        EgressNetwork.objects.replace_policy(attempt.pk, row.policy)
        time.sleep(1.0)  # known again
        return ended - began


@contextmanager
def ways(folder: Path) -> Iterator[tuple[Ways, Place]]:
    """Have hosts, a guard, a proxy and workspaces."""
    settings.SVC_CREDENTIALS_KEY = KEY
    client = docker.DockerClient(base_url=DOCKER_HOST, timeout=120)
    context = tar_of(Dockerfile=DOCKERFILE.encode(), svc_agent=agent_archive())
    image = published(client, context, tag=agent_digest()[:32])
    launcher = Launcher(DockerAdapter(DOCKER_HOST, str(uuid4())), client, image, "")
    launcher.instance_id = launcher.adapter.instance_id
    settings.SVC_INSTANCE_ID = launcher.instance_id
    with ExitStack() as stack:
        stack.callback(client.close)
        stack.callback(removed, launcher)
        world = stack.enter_context(internet(folder))
        hosts = stack.enter_context(tls_hosts(folder, {"authorization": SECRET}))
        place = Place(launcher, world, folder)
        place.environment = {"SVC_CREDENTIALS_KEY": KEY, "SSL_CERT_FILE": str(hosts.authority)}
        stack.enter_context(place.ended)
        place.start_proxy()
        place.guard.ensure()
        yield Ways(place, hosts.authority.read_text()), place


def removed(launcher: Launcher) -> None:
    """Remove what was launched."""
    for container in launcher.containers():
        container.remove(force=True, v=True)
    for network in launcher.networks():
        network.remove()


def measure() -> Iterable[Figure]:
    """Measure all of it."""
    with tempfile.TemporaryDirectory() as folder:
        idle = idle_mebibytes(Path(folder))
        floor = floor_mebibytes()
        yield Figure(
            "idle proxy, MiB of its own memory",
            f"{idle:.1f}",
            f"{floor:.1f} (Python with the same packages)",
            idle / floor,
            "<= 10 MiB",
            idle <= 10,
        )
        yield Figure(
            "idle proxy above that floor, MiB",
            f"{idle - floor:.1f}",
            "",
            None,
            "<= 10 MiB",
            idle - floor <= 10,
        )
        with ways(Path(folder)) as (three, _):
            yield from through(three)
        each = mebibytes_of_a_network()
        yield Figure("each workspace, MiB", f"{each:.3f}", "", None, "<= 0.3 MiB", each <= 0.3)


def through(three: Ways) -> Iterable[Figure]:
    """Measure bytes, connections and changes."""
    bulk: dict[str, list[float]] = {"direct": [], "allowed": [], "injected": []}
    connects: dict[str, list[float]] = {"direct": [], "allowed": [], "injected": []}
    for _ in range(ROUNDS):
        for name in bulk:
            container = getattr(three, name)
            bulk[name].append(three.measured(container, "bulk", BULK_BYTES))
            connects[name] += three.measured(container, "connect", CONNECTIONS)
    rates = {name: BULK_BYTES / MEBIBYTE / statistics.median(bulk[name]) for name in bulk}
    for name, least in (("allowed", 0.9), ("injected", 0.5)):
        ratio = rates[name] / rates["direct"]
        what = "allowed bulk over TLS" if name == "allowed" else "bulk with an injected credential"
        yield Figure(
            what,
            f"{rates[name]:.0f} MiB/s",
            f"{rates['direct']:.0f} MiB/s (direct)",
            ratio,
            f">= {least}x",
            ratio >= least,
        )
    for name in ("allowed", "injected"):
        ours, direct = (statistics.median(connects[each]) * 1000 for each in (name, "direct"))
        what = "allowed" if name == "allowed" else "of TLS that is opened"
        target = "<= +3 ms" if name == "allowed" else ""
        yield Figure(
            f"look-up, connect and handshake, {what}, p50",
            f"{ours:.1f} ms",
            f"{direct:.1f} ms (direct)",
            ours / direct,
            target,
            ours - direct <= 3,
        )
    reloads = [three.reload_seconds() for _ in range(RELOADS)]
    yield Figure(
        "a rule is taken away, its connection is closed, longest",
        f"{max(reloads) * 1000:.0f} ms",
        "",
        None,
        "<= 1 s",
        max(reloads) <= 1,
    )


def private_mebibytes(pid: int) -> float:
    """Return the memory that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kinds = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) / 1024


def idle_mebibytes(folder: Path) -> float:
    """Return the memory of a proxy that nobody uses."""
    proxy = CommandProcess(folder / "idle.log", "egressproxy", SVC_EGRESS_PORT=str(free_port()))
    try:
        while "egress_proxy_started" not in proxy.told:
            time.sleep(0.1)
        time.sleep(1.0)
        return private_mebibytes(proxy.process.pid)
    finally:
        proxy.stop()


def floor_mebibytes() -> float:
    """Return the memory of a process that has loaded Django and our apps, and does nothing."""
    program = (
        "import os, sys, time, django\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'controlplane.settings'\n"
        "django.setup()\nprint('ready', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1.0)
        found = private_mebibytes(process.pid)
        process.kill()
        return found


def mebibytes_of_a_network() -> float:
    """Return the memory that a workspace's policy, authority and names take in the proxy."""
    attempt = ready_attempt()
    egress = Egress(presets=("python", "npm", "github"))
    authority_of(attempt.workspace_id)
    register = egress_of(attempt, egress)
    assert register is not None
    register("e00000000000001")
    row = EgressNetwork.objects.select_related("attempt__workspace").get(pk="e00000000000001")
    network_of(row)
    # What is free is given back first, so that it is not used again unseen.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = private_mebibytes(os.getpid())
    kept = [network_of(row) for _ in range(NETWORKS)]
    return (private_mebibytes(os.getpid()) - before) / len(kept)


def main() -> int:
    """Measure and print the table."""
    measures: dict[str, Measure] = {"egress": in_own_database(measure)}
    return report(measures)


if __name__ == "__main__":
    sys.exit(main())
