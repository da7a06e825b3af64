"""Every workspace gets a free subnet of the pool, and no network is forgotten."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from ipaddress import IPv4Network
from uuid import uuid4

import pytest

from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST, Launcher
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api import EngineConnections
from workspaces.runtimes.docker.networks import free_subnets

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
