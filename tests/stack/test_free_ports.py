"""Ports that two processes beside each other do not both choose."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.stack import free_ports
from tests.support.waiting import LONG_WAIT

CHOOSE = """
from tests.stack import free_ports
free_ports._LOWEST, free_ports._ABOVE = {lowest}, {above}
free_ports._LOCKS = {locks!r}
print(*free_ports.free_ports({count}), flush=True)
input()
"""


def choosing(locks: Path, count: int) -> subprocess.Popen[str]:
    """Another process that chooses ports of so few and keeps them until it is told to end.

    What the rest of this machine has locked is no matter to those with locks of their own. So they
    look at none of its ports: who is given one might be about to listen there.
    """
    return subprocess.Popen(
        [
            *(sys.executable, "-c"),
            CHOOSE.format(lowest=10_900, above=12_000, count=count, locks=str(locks)),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_kernel_gives_none_of_them_to_anybody() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports.free_ports(50)
    assert len(set(ports)) == 50
    if lowest > 13_000:  # as it is unless an administrator has changed it
        assert max(ports) < lowest
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_what_another_process_has_chosen_is_chosen_by_nobody_else(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    with choosing(locks, 600) as first, choosing(locks, 300) as second:
        told = [each.stdout.readline() for each in (first, second) if each.stdout]
        for each in (first, second):
            each.communicate("\n", timeout=LONG_WAIT)
    one, two = (set(map(int, each.split())) for each in told)
    assert (len(one), len(two)) == (600, 300)
    assert not one & two


def test_a_port_on_which_something_listens_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = free_ports.free_port()
    monkeypatch.setattr(free_ports, "_chosen", set())
    monkeypatch.setattr(random, "sample", lambda ports, count: [taken, taken + 1])
    with socket.create_server(("127.0.0.1", taken)):
        if free_ports._locked(taken + 1) and free_ports._is_free(taken + 1):
            assert free_ports.free_port() == taken + 1
        else:
            with pytest.raises(RuntimeError):
                free_ports.free_port()
