"""What a workspace reaches, judged by packets: nothing of the machine, nor what is private."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from ipaddress import IPv4Address, IPv4Network
from uuid import uuid4

import docker
import pytest
from docker.api.client import APIClient
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool

from tests.security.surroundings import (
    METADATA,
    PORT,
    PRIVATE,
    PUBLIC,
    Place,
    greeting_host,
    outside_world,
    reached,
)
from tests.stack.small_engine import small_engine
from tests.stack.worker_process import eventually
from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST, Launcher, step
from tests.workspaces.conftest import docker_client as docker_client
from tests.workspaces.conftest import launcher as launcher
from tests.workspaces.conftest import make_launcher as make_launcher
from tests.workspaces.conftest import publish as publish
from tests.workspaces.conftest import workspace_image as workspace_image
from tests.workspaces.runtimes.test_docker_adapter_isolation import own_address
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker import DockerAdapter
from workspaces.runtimes.docker.engine_api import EngineConnections
from workspaces.runtimes.docker.network_guard.keeper import NetworkGuard
from workspaces.runtimes.docker.network_guard.rules import GuardRules, resolvers_in

pytestmark = pytest.mark.docker

GREET = (
    "import socket\n"
    f"server = socket.create_server(('0.0.0.0', {PORT}))\n"
    "while True:\n"
    "    connection, _ = server.accept()\n"
    "    connection.sendall(b'welcome')\n"
    "    connection.close()\n"
)

_PROGRAM = base64.b64encode(GREET.encode()).decode()
SERVE = f"echo {_PROGRAM} | base64 -d > /tmp/greet.py; python3 /tmp/greet.py > /tmp/greeted 2>&1 &"


@pytest.fixture(scope="module")
def surroundings() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(outside_world())
        stack.enter_context(greeting_host())
        yield


@pytest.fixture
def guarded(launcher: Launcher) -> Iterator[Callable[..., NetworkGuard]]:
    """Make a guard of the launcher's installation; its rules go with the test."""
    made: list[NetworkGuard] = []

    def make(*allowed: str) -> NetworkGuard:
        made.append(launcher.adapter.network_guard(allowed=allowed, base_image=BASE_IMAGE))
        return made[-1]

    yield make
    for guard in made:
        guard.remove()


def settings_of(network: Network) -> tuple[str, str]:
    """Subnet and gateway."""
    settings = network.attrs["IPAM"]["Config"][0]
    return settings["Subnet"], settings["Gateway"]


def address_in(container: Container) -> str:
    container.reload()
    return str(next(iter(container.attrs["NetworkSettings"]["Networks"].values()))["IPAddress"])


@pytest.fixture
def published(launcher: Launcher) -> Iterator[tuple[int, str]]:
    """Somebody else's container: the port under which the machine has it, and its own address."""
    container = launcher.client.containers.run(
        launcher.image,
        ["-c", GREET],
        entrypoint="python3",
        ports={f"{PORT}/tcp": None},
        detach=True,
    )
    try:
        eventually(
            lambda: reached(container, {"itself": ("tcp", "127.0.0.1", PORT)}), what="it greets"
        )
        container.reload()
        yield (
            int((container.ports[f"{PORT}/tcp"] or [{}])[0]["HostPort"]),
            str(container.attrs["NetworkSettings"]["IPAddress"]),
        )
    finally:
        remove_container(container)


def test_nothing_of_the_machine_or_private_is_reached_while_the_rest_of_the_world_is(
    launcher: Launcher,
    surroundings: None,
    published: tuple[int, str],
    guarded: Callable[..., NetworkGuard],
) -> None:
    runtime = launcher.launch(launcher.request(outbound=True))
    workspace = launcher.container(runtime)
    (network,) = launcher.networks()
    _, gateway = settings_of(network)
    port, theirs = published
    forbidden: dict[str, Place] = {
        "the gateway": ("tcp", gateway, PORT),
        "the gateway, by datagrams": ("udp", gateway, PORT),
        "another bridge of the machine": ("tcp", "172.17.0.1", PORT),
        "the machine's own address": ("tcp", own_address(), PORT),
        "a port that is published at the gateway": ("tcp", gateway, port),
        "a port that is published at the machine's address": ("tcp", own_address(), port),
        "a container on another bridge": ("tcp", theirs, PORT),
        "metadata": ("tcp", METADATA, PORT),
        "a private address": ("tcp", PRIVATE, PORT),
    }
    allowed: dict[str, Place] = {
        "the world": ("tcp", PUBLIC, PORT),
        "the world, by datagrams": ("udp", PUBLIC, PORT),
    }
    unguarded = reached(workspace, forbidden | allowed)
    # The engine closes this way itself, but for moments in which it makes a network.
    assert unguarded | {"a container on another bridge"} == set(forbidden | allowed)

    guard = guarded()
    assert guard.ensure().startswith("Workspaces cannot reach")
    assert reached(workspace, forbidden | allowed) == set(allowed)
    assert launcher.inside(runtime, "getent", "hosts", "deb.debian.org")[0] == 0

    later = launcher.launch(launcher.request(outbound=True))
    assert reached(launcher.container(later), forbidden | allowed) == set(allowed)


def test_a_workspace_reaches_no_other_but_what_stands_beside_it_in_its_own_network(
    launcher: Launcher, guarded: Callable[..., NetworkGuard]
) -> None:
    guarded().ensure()
    one, other = (
        launcher.container(launcher.launch(launcher.request(outbound=True))) for _ in range(2)
    )
    beside = launcher.client.containers.run(
        launcher.image,
        ["-c", GREET],
        entrypoint="python3",
        network=next(iter(one.attrs["NetworkSettings"]["Networks"])),
        labels={"svc.instance": launcher.instance_id},
        detach=True,
    )
    place: dict[str, Place] = {"it": ("tcp", address_in(beside), PORT)}
    eventually(lambda: reached(beside, place), what="it greets")
    assert reached(one, place) == {"it"}
    assert reached(other, place) == set()


def test_a_workspace_reaches_no_other_while_the_engine_makes_networks(
    launcher: Launcher, guarded: Callable[..., NetworkGuard]
) -> None:
    # For each network the engine takes the jump to its own isolation away and adds it again.
    guarded().ensure()
    serving = launcher.launch(launcher.request(outbound=True, boot={"startup": [step(SERVE)]}))
    one = launcher.container(serving)
    eventually(lambda: reached(one, {"it": ("tcp", address_in(one), PORT)}), what="it greets")
    other = launcher.launch(launcher.request(outbound=True))
    trying = (
        "import os, socket\n"
        "tried = connected = 0\n"
        "while not os.path.exists('/tmp/enough') or not tried:\n"
        "    with socket.socket() as s:\n"
        "        s.settimeout(0.02)\n"
        f"        connected += s.connect_ex(('{address_in(one)}', {PORT})) == 0\n"
        "    tried += 1\n"
        "    open('/tmp/tried', 'w').close()\n"
        "print(connected, 'connected')\n"
    )
    code, _ = launcher.inside(
        other,
        "sh",
        "-c",
        f'python3 -c "{trying}" > /tmp/said 2>&1 & while ! [ -e /tmp/tried ]; do sleep 0.1; done',
    )
    assert code == 0
    for number in range(8):
        launcher.client.networks.create(
            f"svc-test-{launcher.instance_id}-{number}",
            labels={"svc.instance": launcher.instance_id},
        ).remove()
    launcher.inside(other, "touch", "/tmp/enough")
    ended = "while ! [ -s /tmp/said ]; do sleep 0.1; done; cat /tmp/said"
    assert launcher.inside(other, "sh", "-c", ended) == (0, "0 connected\n")


def test_ipv6_leads_nowhere_either(
    launcher: Launcher, surroundings: None, guarded: Callable[..., NetworkGuard]
) -> None:
    with EngineConnections(DOCKER_HOST, launcher.instance_id).connect(60) as engine:
        made = engine.create_network(
            f"svc-test-{launcher.instance_id}",
            {"svc.instance": launcher.instance_id},
            pool=IPv4Network("10.213.0.0/16"),
            start=uuid4().int,
        )
    made.reload()
    bridge = made.attrs["Options"]["com.docker.network.bridge.name"]
    made.remove()
    network = launcher.client.networks.create(
        f"svc-test-{launcher.instance_id}",
        driver="bridge",
        enable_ipv6=True,
        ipam=IPAMConfig(pool_configs=[IPAMPool(subnet="fd5c:7a3e::/64")]),
        options={"com.docker.network.bridge.name": bridge},
        labels={"svc.instance": launcher.instance_id},
    )
    inside = launcher.client.containers.run(
        launcher.image,
        ["infinity"],
        entrypoint="sleep",
        network=network.name,
        labels={"svc.instance": launcher.instance_id},
        detach=True,
    )
    places: dict[str, Place] = {"the gateway": ("tcp", "fd5c:7a3e::1", PORT)}
    assert reached(inside, places) == {"the gateway"}
    guarded().ensure()
    assert reached(inside, places) == set()


def test_an_open_connection_to_the_machine_ends_with_the_first_rule(
    launcher: Launcher, surroundings: None, guarded: Callable[..., NetworkGuard]
) -> None:
    runtime = launcher.launch(launcher.request(outbound=True))
    (network,) = launcher.networks()
    _, gateway = settings_of(network)
    hold = (
        "import socket, sys, time\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"s.connect(('{gateway}', {PORT})); s.settimeout(300)\n"
        "s.send(b'a'); print(s.recv(9).decode(), flush=True)\n"
        "open('/tmp/began', 'w').close()\n"
        "import os\n"
        "while not os.path.exists('/tmp/go-on'): time.sleep(0.05)\n"
        "s.settimeout(2); s.send(b'b')\n"
        "try: print(s.recv(9).decode())\n"
        "except OSError as error: print('failed')\n"
    )
    code, said = launcher.inside(
        runtime,
        "sh",
        "-c",
        f'python3 -c "{hold}" > /tmp/said 2>&1 & '
        "while ! [ -e /tmp/began ]; do sleep 0.1; done; cat /tmp/said",
    )
    assert (code, said) == (0, "welcome\n")
    guarded().ensure()
    launcher.inside(runtime, "touch", "/tmp/go-on")
    ended = "while [ $(wc -l < /tmp/said) -lt 2 ]; do sleep 0.1; done; tail -n 1 /tmp/said"
    assert launcher.inside(runtime, "sh", "-c", ended) == (0, "failed\n")


def test_what_the_operator_lists_is_reached_although_it_is_private(
    launcher: Launcher, surroundings: None, guarded: Callable[..., NetworkGuard]
) -> None:
    runtime = launcher.launch(launcher.request(outbound=True))
    guarded(f"{PRIVATE}/32").ensure()
    places: dict[str, Place] = {
        "listed": ("tcp", PRIVATE, PORT),
        "not listed": ("tcp", METADATA, PORT),
    }
    assert reached(launcher.container(runtime), places) == {"listed"}


def test_a_network_that_the_operator_lists_opens_neither_the_machine_nor_other_workspaces(
    launcher: Launcher, surroundings: None, guarded: Callable[..., NetworkGuard]
) -> None:
    runtime = launcher.launch(launcher.request(outbound=True))
    (network,) = launcher.networks()
    _, gateway = settings_of(network)
    guarded("172.16.0.0/12", "10.0.0.0/8").ensure()
    places: dict[str, Place] = {
        "listed": ("tcp", PRIVATE, PORT),
        "the gateway": ("tcp", gateway, PORT),
        "another bridge of the machine": ("tcp", "172.17.0.1", PORT),
    }
    assert reached(launcher.container(runtime), places) == {"listed"}


def test_rules_and_their_keeper_come_back_when_somebody_removes_them(
    launcher: Launcher, surroundings: None, guarded: Callable[..., NetworkGuard]
) -> None:
    guard = guarded()
    guard.ensure()
    runtime = launcher.launch(launcher.request(outbound=True))
    (network,) = launcher.networks()
    places: dict[str, Place] = {"the gateway": ("tcp", settings_of(network)[1], PORT)}

    keeper = launcher.client.containers.get(guard.container_name)
    table = GuardRules(launcher.instance_id, IPv4Network("10.213.0.0/16")).table
    code, said = keeper.exec_run(["nft", "delete", "table", "inet", table])
    assert code == 0, said
    guard.ensure()
    assert reached(launcher.container(runtime), places) == set()

    keeper.remove(force=True)
    assert reached(launcher.container(runtime), places) == set()
    guard.ensure()
    assert reached(launcher.container(runtime), places) == set()
    guard.remove()
    assert reached(launcher.container(runtime), places) == {"the gateway"}


def test_the_keeper_is_made_anew_when_its_image_has_changed(
    launcher: Launcher, publish: Callable[[str], str], guarded: Callable[..., NetworkGuard]
) -> None:
    earlier = guarded()
    earlier.ensure()
    keeper = launcher.client.containers.get(earlier.container_name)
    assert keeper.image is not None
    later = publish(f"FROM {keeper.image.tags[0]}\nLABEL release={uuid4()}\n")
    launcher.adapter.network_guard(image=later).ensure()
    remade = launcher.client.containers.get(earlier.container_name)
    assert remade.image == launcher.client.images.get(later)
    launcher.adapter.network_guard(image=later).ensure()
    assert launcher.client.containers.get(earlier.container_name).id == remade.id


def test_an_engine_that_cannot_keep_the_rules_is_reported_with_its_reason(
    launcher: Launcher,
) -> None:
    guard = launcher.adapter.network_guard(image=BASE_IMAGE)  # it has no nftables
    try:
        with pytest.raises(LaunchError) as caught:
            guard.ensure()
    finally:
        guard.remove()
    assert caught.value.code == "network-not-guarded"
    assert "nft" in caught.value.message


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine where somebody listens, as an egress proxy does."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104
        yield int(server.getsockname()[1])


def connects(address: str, port: int, *, wait: float = LONG_WAIT) -> bool:
    try:
        socket.create_connection((address, port), timeout=wait).close()
    except TimeoutError:
        return False
    return True


def test_nobody_but_networks_with_a_policy_reaches_the_egress_proxy(
    launcher: Launcher, listening: int
) -> None:
    guard = launcher.adapter.network_guard(base_image=BASE_IMAGE, egress_port=listening)
    places = ("127.0.0.1", own_address())
    assert all(connects(address, listening) for address in places)
    try:
        guard.ensure()
        guard.require_egress()
        assert not any(connects(address, listening, wait=1) for address in places)
    finally:
        guard.remove()
    assert all(connects(address, listening) for address in places)


def test_a_kernel_that_cannot_redirect_keeps_all_rules_but_enforces_no_egress_policy(
    launcher: Launcher, listening: int, publish: Callable[[str], str]
) -> None:
    keeper = launcher.adapter.network_guard(base_image=BASE_IMAGE)
    try:
        keeper.ensure()
        made = launcher.client.containers.get(keeper.container_name).image
        assert made is not None
    finally:
        keeper.remove()
    # What nft says there, from a kernel without the module.
    program = (
        '[ "$1" = -f ] || exec /usr/sbin/nft "$@"; rules=$(cat); case $rules in *"type nat"*) '
        'echo "Error: Could not process rule: Not supported" >&2; exit 1;; esac; '
        'printf "%s\\n" "$rules" | exec /usr/sbin/nft -f -'
    )
    told = base64.b64encode(f"#!/bin/sh\n{program}\n".encode()).decode()
    image = publish(
        f"FROM {made.tags[0]}\nRUN echo {told} | base64 -d > /usr/local/sbin/nft"
        " && chmod 755 /usr/local/sbin/nft\n"
    )
    guard = launcher.adapter.network_guard(image=image, egress_port=listening)
    try:
        guard.ensure()
        with pytest.raises(LaunchError, match="does not redirect") as caught:
            guard.require_egress()
        assert caught.value.code == "egress-not-enforced"
        guard.require()
    finally:
        guard.remove()


def test_what_the_sdk_loses_of_an_answer_is_not_lost_to_the_guard(
    launcher: Launcher, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where the engine is always quicker than this process.
    monkeypatch.setattr(APIClient, "_read_from_socket", lambda *_, **__: b"")
    guard = launcher.adapter.network_guard(base_image=BASE_IMAGE, egress_port=listening)
    try:
        guard.ensure()
        guard.require_egress()
    finally:
        guard.remove()


@pytest.fixture
def plain_engine(launcher: Launcher) -> Iterator[Launcher]:
    """An engine without a default bridge that keeps no logs which the SDK reads by itself.

    The launcher's image there is the guard's.
    """
    guard = launcher.adapter.network_guard(base_image=BASE_IMAGE)
    try:
        guard.ensure()
        image = launcher.client.containers.get(guard.container_name).image
        assert image is not None
    finally:
        guard.remove()
    (name,) = image.tags
    with (
        small_engine(DOCKER_HOST, name, log_driver="local") as engine,
        closing(docker.DockerClient(engine.url, timeout=round(LONG_WAIT))) as client,
        closing(DockerAdapter(engine.url, launcher.instance_id)) as adapter,
    ):
        yield Launcher(adapter, client, name, launcher.instance_id)


def test_an_engine_with_another_log_driver_and_no_bridge_is_guarded_and_keeps_nothing_of_it(
    plain_engine: Launcher,
) -> None:
    guard = plain_engine.adapter.network_guard(image=plain_engine.image)
    guard.ensure()
    assert plain_engine.adapter.lift_kernel_limits(image=plain_engine.image) == ""
    found = plain_engine.client.containers.list(all=True)
    assert [each.name for each in found] == [guard.container_name]


def test_why_the_guard_cannot_begin_is_told_without_the_engines_address(
    launcher: Launcher,
) -> None:
    guard = launcher.adapter.network_guard(image=f"127.0.0.1:1/{uuid4()}")
    with pytest.raises(LaunchError) as caught:
        guard.ensure()
    assert caught.value.code == "network-not-guarded"
    assert "docker://" not in caught.value.message


def test_a_network_that_is_not_under_the_rules_is_reported(
    launcher: Launcher, guarded: Callable[..., NetworkGuard]
) -> None:
    earlier = launcher.client.networks.create(
        f"svc-test-{launcher.instance_id}",
        labels={"svc.instance": launcher.instance_id, "svc.run": str(uuid4())},
    )
    guard = guarded()
    with pytest.raises(LaunchError, match="earlier version"):
        guard.ensure()
    earlier.remove()
    guard.ensure()


def test_only_resolvers_that_a_container_can_reach_are_taken_from_a_resolv_conf() -> None:
    told = (
        "search lan\nnameserver 10.0.0.2\nnameserver 127.0.0.53\nnameserver fe80::1\nnameserver\n"
    )
    assert resolvers_in(told) == (IPv4Address("10.0.0.2"),)


@pytest.mark.parametrize("listing", ["", "{}", "[]", '{"nftables": [3]}', '{"nftables": []}'])
def test_a_listing_without_the_rules_is_never_taken_for_them(listing: str) -> None:
    assert not GuardRules("svc", IPv4Network("10.213.0.0/16")).are_in(listing)


def test_an_image_of_the_operators_needs_nftables_and_no_more(
    launcher: Launcher, publish: Callable[[str], str]
) -> None:
    image = publish(
        f"FROM {BASE_IMAGE}\n"
        "RUN apt-get update -q && apt-get install -yq --no-install-recommends nftables"
        " && rm -rf /var/lib/apt/lists/*\n"
        "ENV PATH=/usr/bin:/bin\n"
        "USER nobody\n"
        'ENTRYPOINT ["/bin/false"]\n'
    )
    guard = launcher.adapter.network_guard(image=image)
    try:
        assert guard.ensure()
    finally:
        guard.remove()
