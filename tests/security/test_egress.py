"""What a workspace with an egress policy reaches: what that names, and nothing in any other way.

Judged by what arrives at the other end (``internet``), not only by what clients inside believe.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from docker.models.containers import Container
from pytest_django.fixtures import Settings

from builds.planner import plan
from registries.services import configured_registry
from runs.agent_archive import agent_archive
from runs.boot_runs import BootRuns
from runs.models import Run
from runs.record import egress_endings
from runs.record.verify import verify_run
from tests.builds.bench import NEVER, Bench
from tests.builds.planner.images import CATALOGUE, extra_ca
from tests.runs.ready import ready_attempt
from tests.security import egress_attempts
from tests.security.internet import MACHINE, OTHER, SECOND, Internet, internet
from tests.security.surroundings import METADATA, PRIVATE, PUBLIC
from tests.stack.free_ports import free_port
from tests.stack.worker_process import CommandProcess, eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, Launcher
from tests.workspaces.conftest import docker_client as docker_client
from tests.workspaces.conftest import launcher as launcher
from tests.workspaces.conftest import make_launcher as make_launcher
from tests.workspaces.conftest import publish as publish
from tests.workspaces.conftest import workspace_image as workspace_image
from tests.workspaces.egress.decided.decided_rows import losses, recorded
from tests.workspaces.runtimes.test_docker_adapter_isolation import own_address
from workspaces.blueprint import Blueprint, Egress
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.name_addresses import address_for
from workspaces.models import Attempt, WorkspaceEvent
from workspaces.runtimes.base import LaunchedRuntime, LaunchError
from workspaces.runtimes.docker.build.build_steps import StepLimits
from workspaces.runtimes.docker.network_guard.keeper import NetworkGuard

pytestmark = [pytest.mark.docker, pytest.mark.django_db(transaction=True)]

POLICY: dict[str, Any] = {
    "rules": [
        {"hosts": ["allowed.test"], "ports": [443, 8443, 22, 9000]},
        {"hosts": ["allowed.test"], "ports": [80], "methods": ["GET"], "paths": ["/open/*"]},
        {"hosts": ["*.wild.test"], "ports": [443]},
        {"hosts": ["private.test", "metadata.test", "machine.test", "loopback.test"]},
        {"hosts": ["second.test"]},
        {"hosts": ["nowhere.test"]},
    ]
}


class Place:
    """An installation with a guard and an egress proxy, before the small internet."""

    def __init__(self, launcher: Launcher, world: Internet, folder: Path) -> None:
        self.launcher = launcher
        self.world = world
        self.folder = folder
        self.port = free_port()
        # Of its own: a proxy stores what others in its folder have left.
        self.environment = {"SVC_DATA_DIR": str(folder / "data")}
        self.guard: NetworkGuard = launcher.adapter.network_guard(
            base_image=BASE_IMAGE, egress_port=self.port
        )
        self.ended = ExitStack()
        self.ended.callback(self.guard.remove)

    def start_proxy(self) -> None:
        self.proxy = CommandProcess(
            self.folder / "egressproxy.log",
            "egressproxy",
            SVC_EGRESS_PORT=str(self.port),
            SVC_EGRESS_RESOLVERS=PUBLIC,
            **self.environment,
        )
        self.ended.callback(self.proxy.stop)
        eventually(self.listens, what="the egress proxy listens")

    def listens(self) -> bool:
        assert self.proxy.process.poll() is None, self.proxy.told[-4000:]
        return "egress_proxy_started" in self.proxy.told

    def launch(self, policy: Mapping[str, Any]) -> tuple[LaunchedRuntime, Attempt]:
        attempt = ready_attempt()
        egress = egress_of(attempt, Egress.model_validate_json(json.dumps(policy)))
        request = self.launcher.request(outbound=True, egress=egress)
        return self.launcher.launch(request), attempt


@pytest.fixture
def place(launcher: Launcher, tmp_path: Path, settings: Settings) -> Iterator[Place]:
    settings.SVC_INSTANCE_ID = launcher.instance_id
    with internet(tmp_path) as world:
        place = Place(launcher, world, tmp_path)
        with place.ended:
            place.start_proxy()
            place.guard.ensure()
            yield place


def tried(
    container: Container, attempts: Mapping[str, list[Any]], *, wait: float = 4
) -> dict[str, str]:
    """What came of each attempt inside the container; each waits so many seconds."""
    told = base64.b64encode(json.dumps(list(attempts.values())).encode()).decode()
    program = Path(egress_attempts.__file__).read_text()
    code, output = container.exec_run(["python3", "-c", program, told, str(wait)])
    said = cast("bytes", output).decode()
    assert code == 0, said
    return dict(zip(attempts, json.loads(said), strict=True))


def successful(outcomes: Mapping[str, str]) -> set[str]:
    return {name for name, said in outcomes.items() if "welcome" in said}


def get(path: str = "/open/a", host: str = "allowed.test", method: str = "GET") -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"


ALLOWED: dict[str, list[Any]] = {
    "TLS": ["tls", "allowed.test", 443, "allowed.test"],
    "TLS at another port of the rule": ["tls", "allowed.test", 8443, "allowed.test"],
    "TLS below a wildcard": ["tls", "files.wild.test", 443, "files.wild.test"],
    "TLS in two records": ["crafted", "allowed.test", 443, "split"],
    "HTTP": ["raw", "allowed.test", 80, get()],
    "HTTP with a query": ["raw", "allowed.test", 80, get("/open/a?b=c")],
    "HTTP byte by byte": ["pieces", "allowed.test", 80, get()],
    "SSH": ["raw", "allowed.test", 22, "SSH-2.0-client\r\n"],
    "another protocol at a port of a rule": ["raw", "allowed.test", 9000, "hello\n"],
    "the name": ["dns", "192.0.2.53", "allowed.test", 1],
    "the name, from any server": ["dns", "8.8.8.8", "allowed.test", 1],
    "the name, over TCP": ["dns", "192.0.2.53", "allowed.test", 1, "tcp"],
    "fifty at once": ["many", "allowed.test", 80, get(), 50],
}

_AT = {name: str(address_for(name)) for name in ("allowed.test", "other.test")}
REFUSED: dict[str, list[Any]] = {
    # Names and addresses
    "a name of no rule": ["tls", "other.test", 443, "other.test"],
    "a wildcard's own name": ["tls", "wild.test", 443, "wild.test"],
    "a name that ends like a rule's": ["tls", "notallowed.test", 443, "notallowed.test"],
    "a name that begins like a rule's": ["tls", "allowed.test.other.test", 443, "allowed.test"],
    "an address, TLS": ["tls", OTHER, 443, None],
    "an address, HTTP": ["raw", OTHER, 80, get(host=OTHER)],
    "an address, SSH": ["raw", OTHER, 22, "SSH-2.0-client\r\n"],
    "an address, another protocol": ["raw", OTHER, 9000, "hello\n"],
    "an address with an allowed server name": ["tls", OTHER, 443, "allowed.test"],
    "an address with an allowed Host": ["raw", OTHER, 80, get()],
    "an allowed host by its address": ["tls", PUBLIC, 443, "allowed.test"],
    "an address as a number": ["raw", str(int.from_bytes(b"\xc6\x33\x64\x03", "big")), 80, get()],
    "the address that stands for a name of no rule": ["tls", _AT["other.test"], 443, "other.test"],
    "an address that stands for nothing": ["tls", "198.18.7.7", 443, "allowed.test"],
    "a private address": ["raw", PRIVATE, 80, get(host=PRIVATE)],
    "metadata": ["raw", METADATA, 80, get("/latest/meta-data/", METADATA)],
    "an address of the machine": ["raw", MACHINE, 80, get(host=MACHINE)],
    "a secondary address of the machine": ["raw", SECOND, 80, get(host=SECOND)],
    "the machine at its own address": ["raw", "OWN", 80, get(host="OWN")],
    "the gateway": ["raw", "GATEWAY", 22, "SSH-2.0-client\r\n"],
    "the proxy itself": ["raw", "GATEWAY", "PROXY", get()],
    "another bridge": ["raw", "172.17.0.1", 80, get(host="172.17.0.1")],
    # Names that lead where nobody may go
    "a name that leads to a private address": ["tls", "private.test", 443, "private.test"],
    "a name that leads to metadata": ["tls", "metadata.test", 443, "metadata.test"],
    "a name that leads to the machine": ["tls", "machine.test", 443, "machine.test"],
    "a name that leads to a secondary address": ["tls", "second.test", 443, "second.test"],
    "a name that leads to loopback": ["tls", "loopback.test", 443, "loopback.test"],
    "a name that leads nowhere": ["tls", "nowhere.test", 443, "nowhere.test"],
    # Ports and protocols
    "a port of no rule": ["tls", "allowed.test", 853, "allowed.test"],
    "HTTP at a port of no rule": ["raw", "allowed.test", 8080, get()],
    "HTTP at 443": ["raw", "allowed.test", 443, get()],
    "SSH at 443": ["raw", "allowed.test", 443, "SSH-2.0-client\r\n"],
    "SSH at 80": ["raw", "allowed.test", 80, "SSH-2.0-client\r\n"],
    "TLS at 80": ["tls", "allowed.test", 80, "allowed.test"],
    "TLS at 22": ["tls", "allowed.test", 22, "allowed.test"],
    "something at 443": ["raw", "allowed.test", 443, "\x00\x01hello\n"],
    "something at 80": ["raw", "allowed.test", 80, "\x00\x01hello\n"],
    "something at 22": ["raw", "allowed.test", 22, "hello\n"],
    # Fronting
    "another server name": ["tls", "allowed.test", 443, "other.test"],
    "no server name": ["tls", "allowed.test", 443, None],
    "a hidden server name (ECH)": ["crafted", "allowed.test", 443, "ech"],
    "two server names": ["crafted", "allowed.test", 443, "two names"],
    "a second server name later": ["late", "allowed.test", 443, "other.test"],
    "another Host": ["raw", "allowed.test", 80, get(host="other.test")],
    "Host with another port": ["raw", "allowed.test", 80, get(host="allowed.test:8080")],
    "Host with a user": ["raw", "allowed.test", 80, get(host="allowed.test@other.test")],
    "two Hosts": [
        "raw",
        "allowed.test",
        80,
        "GET /open/a HTTP/1.1\r\nHost: allowed.test\r\nHost: other.test\r\n\r\n",
    ],
    "no Host": ["raw", "allowed.test", 80, "GET /open/a HTTP/1.0\r\n\r\n"],
    "absolute form": ["raw", "allowed.test", 80, get("http://other.test/open/a")],
    "CONNECT to an address": ["raw", "allowed.test", 80, get(f"{OTHER}:443", method="CONNECT")],
    "CONNECT to the proxy": ["raw", "GATEWAY", "PROXY", get("other.test:443", method="CONNECT")],
    # Requests
    "a method of no rule": ["raw", "allowed.test", 80, get(method="PUT")],
    "a path of no rule": ["raw", "allowed.test", 80, get("/closed")],
    "a path that leads out": ["raw", "allowed.test", 80, get("/open/../closed")],
    "a path that leads out, encoded": ["raw", "allowed.test", 80, get("/open/%2e%2e/closed")],
    "a path that leads out, with a parameter": [
        "raw",
        "allowed.test",
        80,
        get("/open/..;/closed"),
    ],
    "a Host with a tab": ["raw", "allowed.test", 80, get(host="allowed\t.test")],
    "a length and chunks": [
        "raw",
        "allowed.test",
        80,
        (
            "GET /open/a HTTP/1.1\r\nHost: allowed.test\r\n"
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
    ],
    "a folded header": ["raw", "allowed.test", 80, "GET /open/a HTTP/1.1\r\n Host: x\r\n\r\n"],
    "two lengths": [
        "raw",
        "allowed.test",
        80,
        (
            "GET /open/a HTTP/1.1\r\nHost: allowed.test\r\n"
            "Content-Length: 4\r\nContent-Length: 40\r\n\r\nabcd"
        ),
    ],
    # DNS
    "a name of no rule, asked": ["dns", "192.0.2.53", "other.test", 1],
    "a tunnel in labels": ["dns", "192.0.2.53", f"{'a' * 60}.{'b' * 60}.tunnel.test", 1],
    "a tunnel in TXT": ["dns", "192.0.2.53", "x.tunnel.test", 16],
    "TXT of an allowed name": ["dns", "192.0.2.53", "allowed.test", 16],
    "keys for ECH": ["dns", "192.0.2.53", "allowed.test", 65],
    "IPv6 addresses": ["dns", "192.0.2.53", "allowed.test", 28],
    "any record": ["dns", "192.0.2.53", "allowed.test", 255],
    "another name server": ["dns", OTHER, "other.test", 1],
    "another name server, over TCP": ["dns", OTHER, "other.test", 1, "tcp"],
    "the engine's name server": ["dns", "127.0.0.11", "other.test", 1],
    "DNS over TLS": ["tls", PUBLIC, 853, "dns.test"],
    "DNS over HTTPS": ["tls", "dns.google", 443, "dns.google"],
    # Other than TCP
    "QUIC": ["udp", PUBLIC, 443],
    "datagrams": ["udp", OTHER, 9000],
    "NTP": ["udp", PUBLIC, 123],
    "datagrams to the gateway": ["udp", "GATEWAY", 9000],
    "ICMP": ["ping", OTHER],
    "raw sockets": ["protocol", OTHER, 47],
    "SCTP": ["protocol", OTHER, 132],
    "IPv6": ["v6", "2001:db8::1", 443],
    "mapped IPv6": ["v6", f"::ffff:{OTHER}", 22],
    "a client that waits": ["silent", OTHER, 22],
}


def filled_in(attempts: Mapping[str, list[Any]], **places: str | int) -> dict[str, list[Any]]:
    def put(word: Any) -> Any:
        if word in places:
            return places[word]
        return word.replace("OWN", str(places["OWN"])) if isinstance(word, str) else word

    return {name: [put(word) for word in words] for name, words in attempts.items()}


def test_a_workspace_reaches_what_its_policy_names_and_nothing_in_any_other_way(
    place: Place,
) -> None:
    assert len(REFUSED) >= 60
    runtime, attempt = place.launch(POLICY)
    container = place.launcher.container(runtime)
    (network,) = place.launcher.networks()
    gateway = network.attrs["IPAM"]["Config"][0]["Gateway"]

    allowed = tried(container, ALLOWED, wait=60)
    failed = {name: allowed.get(name) for name in set(ALLOWED) - successful(allowed)}
    assert not failed, failed
    refused = tried(
        container, filled_in(REFUSED, GATEWAY=gateway, PROXY=place.port, OWN=own_address())
    )
    assert successful(refused) == set(), {name: refused[name] for name in successful(refused)}

    world = place.world
    ports = {port for protocol, to, port in world.packets if to == PUBLIC and protocol == 6}
    assert {(protocol, to) for protocol, to, _ in world.packets} == {(6, PUBLIC), (17, PUBLIC)}
    assert ports == {443, 8443, 80, 22, 9000}
    assert {port for protocol, _, port in world.packets if protocol == 17} == {53}
    # Nobody is asked for a name that is not allowed, or that nobody connects to.
    assert world.asked == {
        *("allowed.test", "files.wild.test", "private.test", "metadata.test"),
        *("machine.test", "second.test", "loopback.test", "nowhere.test"),
    }
    http = {first for port, first in world.first_lines if port == 80}
    assert http == {"GET /open/a HTTP/1.1", "GET /open/a?b=c HTTP/1.1"}

    assert json.loads(refused["a path of no rule"].partition("\r\n\r\n")[2])["rule"] == "rules/1"
    events = WorkspaceEvent.objects.filter(workspace_id=attempt.workspace_id)
    kinds = WorkspaceEvent.Type

    def told(kind: str, **data: Any) -> list[Any]:
        return [each.data for each in events.filter(type=kind, data__contains=data)]

    eventually(
        lambda: told(kinds.EGRESS_ALLOWED, host="allowed.test", port=443),
        what="an event tells what was reached",
    )
    eventually(
        lambda: told(kinds.EGRESS_REFUSED, host="other.test", protocol="tls", rule="one-name"),
        what="an event tells of another server name",
    )
    eventually(
        lambda: told(kinds.EGRESS_REFUSED, host="second.test", rule="private-address"),
        what="a secondary address of the machine is told to be its own",
    )


def test_nothing_passes_while_the_proxy_is_killed_and_all_that_is_allowed_once_it_is_back(
    place: Place,
) -> None:
    runtime, _ = place.launch(POLICY)
    container = place.launcher.container(runtime)
    place.guard.require_egress()
    assert successful(tried(container, ALLOWED, wait=60)) == set(ALLOWED)
    known = {name: ["raw", _AT["allowed.test"], *words[2:]] for name, words in ALLOWED.items()}
    by_address = {name: words for name, words in known.items() if ALLOWED[name][0] == "raw"}
    assert by_address

    place.proxy.process.kill()
    place.proxy.process.wait()
    before = place.world.packets
    places = filled_in(REFUSED, GATEWAY="192.0.2.1", PROXY=place.port, OWN=own_address())
    assert successful(tried(container, ALLOWED | by_address | places)) == set()
    assert place.world.packets == before
    with pytest.raises(LaunchError) as caught:
        place.guard.require_egress()
    assert caught.value.code == "egress-not-enforced"
    assert "manage.py egressproxy" in caught.value.message

    place.proxy.log.unlink()
    place.start_proxy()
    place.guard.require_egress()
    # What was looked up before is known again once it is said.
    tls = {"TLS by what was looked up": ["tls", _AT["allowed.test"], 443, "allowed.test"]}
    assert successful(tried(container, tls | ALLOWED, wait=60)) == set(tls | ALLOWED)


def test_what_a_proxy_has_let_pass_is_in_the_record_once_wherever_it_was_killed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_endings, "SETTLE_SECONDS", LONG_WAIT)
    runtime, attempt = place.launch(POLICY)
    run = Run.objects.get(pk=attempt.run_id)
    container = place.launcher.container(runtime)
    passed = {name: words for name, words in ALLOWED.items() if words[1:3] == ["allowed.test", 80]}
    assert successful(tried(container, passed, wait=60)) == set(passed)
    place.proxy.process.kill()
    place.proxy.process.wait()

    place.proxy.log.unlink()
    place.start_proxy()
    place.guard.require_egress()
    told = [each for each in _awaited(run, 53) if each["connections"]]
    assert {each["host"] for each in told} == {"allowed.test"}
    assert sum(each["connections"] for each in told) == 53

    refused = {"another": ["raw", "other.test", 80, get("/", "other.test")]}
    assert successful(tried(container, passed | refused, wait=60)) == set(passed)
    # The end of the record waits for the proxy, and after it nothing passes.
    assert BootRuns().end_boot_run(attempt, failed=False, code="cancelled", message="Over.")
    assert sum(each["connections"] for each in recorded(run) if each["decision"] == "allowed") == (
        106
    )
    assert egress_endings.NOT_SETTLED not in losses(run)
    assert verify_run(run).ok
    assert successful(tried(container, passed)) == set()


def _awaited(run: Run, connections: int) -> list[dict[str, Any]]:
    """Return what the record says of decisions, once it has so many connections."""

    def counted() -> list[dict[str, Any]]:
        told = recorded(run)
        return told if sum(each["connections"] for each in told) >= connections else []

    return eventually(counted, what="the decisions are in the record", timeout=LONG_WAIT)


def test_each_workspace_is_held_to_its_own_policy_and_one_without_reaches_the_world(
    place: Place,
) -> None:
    places = {
        "one": ["raw", "allowed.test", 80, get("/")],
        "other": ["raw", "other.test", 80, get("/", "other.test")],
    }
    for wanted, policy in (
        ({"one"}, {"rules": [{"hosts": ["allowed.test"], "ports": [80]}]}),
        ({"other"}, {"rules": [{"hosts": ["other.test"], "ports": [80]}]}),
        (set(), {}),
        ({"one", "other"}, {"default": "allow"}),
        ({"other"}, {"default": "allow", "rules": [{"hosts": ["allowed.test"]}]}),
    ):
        runtime, _ = place.launch(policy)
        assert successful(tried(place.launcher.container(runtime), places, wait=15)) == wanted, (
            policy
        )
    free = place.launcher.launch(place.launcher.request(outbound=True))
    address = {"an address": ["raw", OTHER, 80, get("/", OTHER)]}
    assert successful(tried(place.launcher.container(free), address, wait=60)) == set(address)


def test_a_network_that_nobody_knows_reaches_nothing(place: Place) -> None:
    request = place.launcher.request(outbound=True, egress=lambda bridge: None)
    container = place.launcher.container(place.launcher.launch(request))
    assert successful(tried(container, ALLOWED)) == set()
    assert place.world.packets == set()


def test_a_flood_of_refused_names_is_counted_in_a_bounded_number_of_events(place: Place) -> None:
    runtime, attempt = place.launch({})
    container = place.launcher.container(runtime)
    flood = {str(number): ["dns", "192.0.2.53", f"n{number}.test", 1] for number in range(180)}
    assert successful(tried(container, flood)) == set()
    events = WorkspaceEvent.objects.filter(attempt=attempt, type=WorkspaceEvent.Type.EGRESS_REFUSED)

    def counted() -> int:
        return sum(each.data["connections"] for each in events.all())

    eventually(lambda: counted() >= 180, what="each refusal is counted")
    assert events.count() < 150
    assert events.filter(data__unnamed=True).exists()


def test_programs_that_know_nothing_of_a_proxy_work_and_get_a_reason_for_what_is_refused(
    place: Place,
) -> None:
    runtime, _ = place.launch(POLICY)
    fetch = (
        "import sys, urllib.request, urllib.error\n"
        "try:\n"
        "    print(urllib.request.urlopen(sys.argv[1]).read().decode())\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code, error.read().decode())\n"
    )
    inside = place.launcher.inside
    assert inside(runtime, "python3", "-c", fetch, "http://allowed.test/open/a") == (0, "welcome\n")
    code, said = inside(runtime, "python3", "-c", fetch, "http://allowed.test/closed")
    assert (code, said[:4]) == (0, "403 ")
    problem = json.loads(said[4:])
    assert problem["code"] == "egress-refused"
    assert (problem["rule"], problem["host"], problem["port"]) == ("rules/1", "allowed.test", 80)
    assert "/closed" in problem["detail"]
    suggested = problem["allowedBy"]["runtime"]["network"]["egress"]["rules"][0]
    Egress.model_validate_json(json.dumps({"rules": [suggested]}))


def test_what_an_author_installs_in_a_build_is_held_to_the_policy_and_packages_are_not(
    place: Place, tmp_path: Path
) -> None:
    request = "GET /open/a HTTP/1.1\\r\\nHost: {}\\r\\n\\r\\n"
    reach = f"exec 3<>/dev/tcp/{{}}/80 && printf '{request}' >&3 && cat <&3"
    install = "\n".join(
        [
            f"set -e  # {uuid4()}: no step of an earlier build is taken",
            f"({reach.format('allowed.test', 'allowed.test')}) | grep welcome",
            f"! ({reach.format('other.test', 'other.test')}) | grep welcome",
            f"! ({reach.format(OTHER, OTHER)}) | grep welcome",
            "command -v tree",
        ]
    )
    blueprint = Blueprint.parse(
        {
            "harness": {"id": "custom", "command": ["mine"], "install": install},
            "tooling": {"packages": [{"id": "tree"}]},
            "runtime": {"network": {"egress": POLICY}},
        }
    )
    attempt = ready_attempt()
    limits = StepLimits(
        network=lambda egress: place.launcher.adapter.build_network(
            uuid4(), oldest=3600, egress=egress
        ),
        memory_mb=1024,
        cpus=1.0,
        pids=512,
    )
    bench = Bench(tmp_path / "builds", configured_registry(), limits=limits)
    try:
        built = bench.compiler.build(
            replace(plan(blueprint, "debian", CATALOGUE), sources=()),
            checkouts={},
            agent=agent_archive(),
            extra_ca=extra_ca(),
            job_id=uuid4(),
            attempt_count=1,
            labels={},
            log=bench,
            cancelled=NEVER,
            egress=egress_of(attempt, blueprint.runtime.network.egress),
        )
        bench.built.append(built)
    finally:
        bench.discard_all()
    assert (80, "GET /open/a HTTP/1.1") in place.world.first_lines
    assert OTHER not in {to for _, to, _ in place.world.packets}
