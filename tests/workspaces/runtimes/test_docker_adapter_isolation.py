"""The limits of a workspace hold, seen from inside it."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import Launcher
from workspaces.runtimes.base import LaunchedRuntime

pytestmark = pytest.mark.docker

CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SYS_CHROOT": 18,
    "AUDIT_WRITE": 29,
}

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
    print("connected")
except OSError as error:
    print("failed:", error)
"""

FORK_UNTIL_REFUSED = """
import os, time
children = []
try:
    for _ in range(5000):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except OSError as error:
    print(len(children), error.strerror)
for child in children:
    os.kill(child, 9)
"""


@pytest.fixture
def host_listener() -> Iterator[int]:
    """The port of a listener on every address of this machine."""
    with socket.create_server(("0.0.0.0", 0)) as listener:  # noqa: S104 - bridges are the point
        ended = threading.Event()
        listener.settimeout(0.1)

        def accept() -> None:
            while not ended.is_set():
                with ExitStack() as stack:
                    try:
                        connection, _ = listener.accept()
                    except TimeoutError:
                        continue
                    stack.callback(connection.close)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        thread.join()


def connect(launcher: Launcher, runtime: LaunchedRuntime, host: str, port: int) -> str:
    _, output = launcher.inside(runtime, "python3", "-c", CONNECT, host, str(port))
    return output.strip()


def gateway_of(launcher: Launcher) -> str:
    (network,) = launcher.networks()
    return str(network.attrs["IPAM"]["Config"][0]["Gateway"])


def own_address() -> str:
    """The address of this machine that its packets to the outside carry."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def test_without_outbound_nothing_outside_is_reachable_that_is_reachable_with_it(
    launcher: Launcher, host_listener: int
) -> None:
    open_one = launcher.launch(launcher.request(outbound=True))
    hosts = [gateway_of(launcher), own_address()]
    for host in hosts:
        assert connect(launcher, open_one, host, host_listener) == "connected"

    closed_one = launcher.launch(launcher.request(outbound=False))
    for host in hosts:
        answer = connect(launcher, closed_one, host, host_listener)
        assert answer == "failed: [Errno 101] Network is unreachable"


def test_without_outbound_there_is_no_interface_no_route_and_no_name_service(
    launcher: Launcher,
) -> None:
    runtime = launcher.launch(launcher.request(outbound=False))
    _, devices = launcher.inside(runtime, "ls", "/sys/class/net")
    assert devices.split() == ["lo"]
    _, routes = launcher.inside(runtime, "cat", "/proc/net/route")
    assert len(routes.splitlines()) == 1  # the heading
    code, _ = launcher.inside(runtime, "getent", "hosts", "example.org")
    assert code != 0
    assert launcher.networks() == []
    assert launcher.inside(runtime, "sh", "-c", "getent hosts $(hostname)")[0] == 0


def test_without_outbound_root_inside_cannot_make_itself_a_way_out(
    launcher: Launcher, host_listener: int
) -> None:
    runtime = launcher.launch(launcher.request(outbound=False, sudo=True))
    for program in (
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    ):
        code, output = launcher.inside(runtime, "sudo", "python3", "-c", program)
        assert code != 0
        assert "Operation not permitted" in output
    for command in (["unshare", "-n", "true"], ["mount", "-t", "tmpfs", "none", "/mnt"]):
        code, _ = launcher.inside(runtime, "sudo", *command)
        assert code != 0


def test_with_outbound_the_workspace_has_a_small_network_of_its_own(
    make_launcher: Callable[..., Launcher],
) -> None:
    launcher = make_launcher(network_pool="10.214.0.0/24")
    first = launcher.launch(launcher.request(outbound=True))
    launcher.launch(launcher.request(outbound=True))
    networks = launcher.networks()
    subnets = [
        ipaddress.IPv4Network(network.attrs["IPAM"]["Config"][0]["Subnet"]) for network in networks
    ]
    assert len(subnets) == 2
    assert not subnets[0].overlaps(subnets[1])
    for subnet in subnets:
        assert subnet.prefixlen == 28
        assert subnet.subnet_of(ipaddress.IPv4Network("10.214.0.0/24"))
    attached = launcher.container(first).attrs["NetworkSettings"]["Networks"]
    assert len(attached) == 1
    assert next(iter(attached)).startswith(f"{first.reference}-")
    assert launcher.container(first).ports == {}


def test_the_memory_limit_is_seen_inside_and_what_exceeds_it_is_killed(launcher: Launcher) -> None:
    runtime = launcher.launch(launcher.request(memory_mb=192))
    read = "cat /sys/fs/cgroup/memory.max || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
    _, limit = launcher.inside(runtime, "sh", "-c", f"({read}) 2>/dev/null")
    assert int(limit) == 192 << 20

    allocate = "import sys; x = bytearray(int(sys.argv[1]) << 20); print('allocated')"
    assert launcher.inside(runtime, "python3", "-c", allocate, "64") == (0, "allocated\n")
    assert launcher.inside(runtime, "python3", "-c", allocate, "600")[0] == 137
    assert launcher.container(runtime).status == "running"
    memory = launcher.container(runtime).attrs["HostConfig"]
    assert memory["Memory"] == memory["MemorySwap"] == 192 << 20


def test_the_share_of_processors_is_seen_inside(launcher: Launcher) -> None:
    runtime = launcher.launch(launcher.request(cpus=0.5))
    old = "/sys/fs/cgroup/cpu/cpu.cfs"
    read = f"cat /sys/fs/cgroup/cpu.max || cat {old}_quota_us {old}_period_us"
    _, output = launcher.inside(runtime, "sh", "-c", f"({read}) 2>/dev/null")
    quota, period = map(int, output.split())
    assert quota / period == pytest.approx(0.5)


def test_a_fork_bomb_is_bounded_and_the_workspace_survives_it(launcher: Launcher) -> None:
    runtime = launcher.launch(launcher.request(pids=64))
    _, output = launcher.inside(runtime, "python3", "-c", FORK_UNTIL_REFUSED)
    count, _, reason = output.strip().partition(" ")
    assert 0 < int(count) < 64
    assert reason == "Resource temporarily unavailable"
    assert launcher.inside(runtime, "true")[0] == 0


def test_without_sudo_nobody_gains_privileges(launcher: Launcher) -> None:
    runtime = launcher.launch(launcher.request(sudo=False))
    _, status = launcher.inside(runtime, "cat", "/proc/self/status")
    assert re.search(r"NoNewPrivs:\s*1$", status, re.MULTILINE)
    code, output = launcher.inside(runtime, "sudo", "id")
    assert code != 0
    assert "no new privileges" in output


def test_with_sudo_the_user_becomes_root_and_installs_packages(launcher: Launcher) -> None:
    runtime = launcher.launch(
        launcher.request(sudo=True, outbound=True, memory_mb=512, timeout=LONG_WAIT)
    )
    install = (
        "sudo apt-get update -q && sudo DEBIAN_FRONTEND=noninteractive "
        "apt-get install -y -q --no-install-recommends iputils-ping openssh-server"
    )
    code, output = launcher.inside(runtime, "bash", "-c", install)
    assert code == 0, output
    assert "audit message" not in output
    assert launcher.inside(runtime, "ping", "-c", "1", "127.0.0.1")[0] == 0
    assert launcher.inside(runtime, "sudo", "id", "-u") == (0, "0\n")


def test_sudo_works_quietly_without_a_network(launcher: Launcher) -> None:
    runtime = launcher.launch(launcher.request(sudo=True, outbound=False))
    assert launcher.inside(runtime, "sudo", "id", "-u") == (0, "0\n")


@pytest.mark.parametrize("sudo", [False, True])
def test_only_the_capabilities_that_are_needed_are_left(launcher: Launcher, sudo: bool) -> None:
    runtime = launcher.launch(launcher.request(sudo=sudo))
    extra = {"SYS_CHROOT", "AUDIT_WRITE"}
    expected = sum(1 << bit for name, bit in CAPABILITIES.items() if sudo or name not in extra)
    _, status = launcher.inside(runtime, "cat", "/proc/1/status", user="root")
    sets = dict(re.findall(r"Cap(\w+):\s*([0-9a-f]+)", status))
    assert int(sets["Bnd"], 16) == expected
    _, status = launcher.inside(runtime, "cat", "/proc/self/status")
    assert re.search(r"CapEff:\s*0+$", status, re.MULTILINE)


def test_the_configuration_is_only_for_root_inside_and_nowhere_in_inspect(
    launcher: Launcher,
) -> None:
    request = launcher.request(
        boot={"secrets": ["correct-horse-battery"], "env": {"WORD": "staple-paper"}}
    )
    runtime = launcher.launch(request)
    _, modes = launcher.inside(
        runtime, "stat", "-c", "%a %u", "/etc/svc", "/etc/svc/boot.json", user="root"
    )
    assert modes.split("\n")[:2] == ["700 0", "600 0"]
    code, output = launcher.inside(runtime, "cat", "/etc/svc/boot.json")
    assert code != 0
    assert "Permission denied" in output

    inspected = json.dumps(launcher.container(runtime).attrs)
    assert "correct-horse-battery" not in inspected
    assert "staple-paper" not in inspected
    assert "correct-horse-battery" not in repr(request)


def test_the_log_of_a_workspace_is_bounded(launcher: Launcher) -> None:
    runtime = launcher.launch()
    log = launcher.container(runtime).attrs["HostConfig"]["LogConfig"]
    assert log == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
