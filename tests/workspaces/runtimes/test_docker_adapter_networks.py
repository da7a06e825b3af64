"""Every workspace gets a free subnet of the pool, and no network is forgotten."""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from uuid import uuid4

import pytest

from tests.security.surroundings import ip
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST, Launcher
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api import EngineConnections
from workspaces.runtimes.docker.networks import MachineRoutes, bridge_prefix, free_subnets

POOL = IPv4Network("10.215.0.0/16")


def test_every_free_subnet_is_offered_once_beginning_where_it_is_told() -> None:
    pool = IPv4Network("10.0.0.0/26")
    found = [str(subnet) for subnet in free_subnets(pool, [], start=6)]
    assert found == ["10.0.0.32/28", "10.0.0.48/28", "10.0.0.0/28", "10.0.0.16/28"]


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        (["10.0.0.0/28"], ["10.0.0.16/28", "10.0.0.32/28", "10.0.0.48/28"]),
        (["10.0.0.20/30"], ["10.0.0.0/28", "10.0.0.32/28", "10.0.0.48/28"]),
        (["10.0.0.16/27"], ["10.0.0.32/28", "10.0.0.48/28"]),
        (["10.0.0.0/8"], []),
        (["10.0.0.32/27", "10.0.0.16/28"], ["10.0.0.0/28"]),
        (
            ["172.17.0.0/16", "fd00::/64", "", "nonsense", "9.255.255.0/24", "10.0.0.64/28"],
            ["10.0.0.0/28", "10.0.0.16/28", "10.0.0.32/28", "10.0.0.48/28"],
        ),
    ],
)
def test_what_overlaps_a_taken_network_is_not_offered(taken: list[str], left: list[str]) -> None:
    pool = IPv4Network("10.0.0.0/26")
    assert [str(subnet) for subnet in free_subnets(pool, taken, start=0)] == left


def test_only_narrow_routes_are_in_the_way_and_bridges_left_behind_come_last() -> None:
    routes, ours = MachineRoutes("one"), f"{bridge_prefix('one')}01234567"
    lines = [
        ("eth0", "00000000", "00000000"),
        ("tun0", "0000000A", "000000FF"),
        ("tun0", "0000D50A", "C0FFFFFF"),
        ("tun1", "1000D50A", "F0FFFFFF"),
        ("*", "2700D50A", "FFFFFFFF"),
        (ours, "0000D50A", "F0FFFFFF"),
        ("eth1", "0000A8C0", "00FFFFFF"),
        ("nonsense", "", ""),
    ]
    text = "\n".join(f"{name} {to} 00000000 0001 0 0 0 {mask} 0" for name, to, mask in lines)
    pool = IPv4Network("10.213.0.0/26")

    def offered() -> list[str]:
        return [
            str(subnet).removeprefix("10.213.") for subnet in routes.free_subnets(pool, [], start=0)
        ]

    assert offered()[:4] == ["0.0/28", "0.16/28", "0.32/28", "0.48/28"]
    routes.read(f"Iface Destination Gateway ...\n{text}\n")
    assert offered() == ["0.48/28", "0.0/28", "0.48/28"]


@pytest.mark.docker
@pytest.mark.parametrize("ours", [False, True], ids=["somebody else's", "a bridge left behind"])
def test_a_launch_gets_no_addresses_that_the_engines_machine_reaches_otherwise(
    make_launcher: Callable[..., Launcher], ours: bool
) -> None:
    launcher = make_launcher(network_pool=str(POOL))
    request = launcher.request(outbound=True)
    first = POOL.network_address + request.run_id.int % (POOL.num_addresses // 16) * 16
    prefix = bridge_prefix(launcher.instance_id) if ours else "x"
    cable = f"{prefix}{request.run_id.hex[:6]}"
    guard = launcher.adapter.network_guard(base_image=BASE_IMAGE)
    ip("link", "add", cable, "type", "veth", "peer", "name", f"{cable}b")
    try:
        ip("address", "add", f"{first + 1}/28", "dev", cable)
        ip("link", "set", cable, "up")
        guard.ensure()
        workspace = launcher.container(launcher.launch(request))
        (network,) = workspace.attrs["NetworkSettings"]["Networks"].values()
        address = IPv4Address(network["IPAddress"])
        assert address in POOL
        (route,) = json.loads(ip("-json", "route", "get", str(address)))
        assert route["dev"].startswith(bridge_prefix(launcher.instance_id))
        assert address not in IPv4Network((int(first), 28))
    finally:
        guard.remove()
        ip("link", "delete", cable)


@pytest.mark.docker
@pytest.mark.slow
def test_forty_networks_are_more_than_the_engines_own_pools_and_all_fit(
    launcher: Launcher,
) -> None:
    with EngineConnections(DOCKER_HOST, launcher.instance_id).connect(60) as engine:
        for number in range(40):
            labels = {"svc.instance": launcher.instance_id, "svc.run": str(uuid4())}
            name = f"svc-test-{launcher.instance_id}-{number}"
            engine.create_network(name, labels, pool=POOL, start=0)
    subnets = {network.attrs["IPAM"]["Config"][0]["Subnet"] for network in launcher.networks()}
    assert len(subnets) == 40
    assert launcher.adapter.sweep_networks(()) == 40
    assert launcher.networks() == []


@pytest.mark.docker
def test_launches_that_reach_for_the_same_subnet_all_get_one(launcher: Launcher) -> None:
    faults: list[LaunchError] = []
    barrier = threading.Barrier(4)

    def create(number: int) -> None:
        labels = {"svc.instance": launcher.instance_id, "svc.run": str(uuid4())}
        try:
            with EngineConnections(DOCKER_HOST, launcher.instance_id).connect(60) as engine:
                barrier.wait(LONG_WAIT)
                name = f"svc-test-{launcher.instance_id}-{number}"
                engine.create_network(name, labels, pool=POOL, start=7)
        except LaunchError as error:
            faults.append(error)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_WAIT)
    assert faults == []
    subnets = {network.attrs["IPAM"]["Config"][0]["Subnet"] for network in launcher.networks()}
    assert len(subnets) == 4


@pytest.mark.docker
def test_a_pool_without_a_free_subnet_is_reported_and_leaves_nothing(
    make_launcher: Callable[..., Launcher],
) -> None:
    launcher = make_launcher(network_pool="10.216.0.0/28")
    launcher.launch(launcher.request(outbound=True))
    with pytest.raises(LaunchError) as caught:
        launcher.launch(launcher.request(outbound=True))
    assert caught.value.code == "network-pool-empty"
    assert len(launcher.left_over()) == 2


@pytest.mark.docker
def test_the_sweep_spares_networks_in_use_and_networks_of_runs_to_keep(launcher: Launcher) -> None:
    in_use = launcher.request(outbound=True)
    launcher.launch(in_use)
    kept, forgotten = uuid4(), uuid4()
    with EngineConnections(DOCKER_HOST, launcher.instance_id).connect(60) as engine:
        for run_id in (kept, forgotten):
            labels = {"svc.instance": launcher.instance_id, "svc.run": str(run_id)}
            engine.create_network(f"svc-{run_id}", labels, pool=POOL, start=run_id.int)

    assert launcher.adapter.sweep_networks([kept]) == 1
    names = {str(network.name) for network in launcher.networks()}
    assert len(names) == 2
    assert f"svc-{kept}" in names
    assert any(name.startswith(f"svc-{in_use.run_id}-") for name in names)
    for network in launcher.networks():
        assert ipaddress.ip_network(network.attrs["IPAM"]["Config"][0]["Subnet"]).prefixlen == 28
