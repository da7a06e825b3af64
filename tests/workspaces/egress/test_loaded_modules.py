"""What an egress proxy loads with its first workspace, and not before: memory of an idle proxy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.controlplane.test_start_cost import BLUEPRINT, CERTIFICATES, NEEDED_BY_FEW
from tests.runs.ready import ready_attempt
from tests.stack.worker_process import ROOT, environment
from workspaces.blueprint import Egress
from workspaces.egress.agreed_policy import egress_of

pytestmark = pytest.mark.django_db(transaction=True)

_PROXY = """
import asyncio, json, sys
from ipaddress import IPv4Network
from pathlib import Path

import django
django.setup()
from django.core.management import load_command_class
load_command_class("workspaces", "egressproxy")

from workspaces.egress.decided.journal import Journal
from workspaces.egress.decisions import DecisionLog
from workspaces.egress.dialling import Dialler
from workspaces.egress.known_networks import KnownNetworks, _of_bridge
from workspaces.egress.name_addresses import ReachableAddresses
from workspaces.egress.proxy import EgressProxy

def tell():
    print(json.dumps(list(sys.modules)))

heard = []
journal, decisions = Journal(Path(sys.argv[1])), DecisionLog()
networks = KnownNetworks("e", journal, lambda: heard.append(True))
dialler = Dialler(ReachableAddresses([], IPv4Network("10.0.0.0/8")), ["127.0.0.1"])
EgressProxy(networks.whose, dialler, journal.add)
asyncio.run(networks.look())
assert heard
journal.flush()
journal.recover()
decisions.flush()
tell()
assert _of_bridge(sys.argv[2], journal) is not None
tell()
"""


def _network() -> str:
    """Have a policy agreed on, and return the name of the bridge it is for."""
    attempt = ready_attempt()
    register = egress_of(attempt, Egress(presets=("python",)))
    assert register is not None
    bridge = f"e{uuid4().hex[:14]}"
    register(bridge)
    return bridge


def test_an_egress_proxy_loads_blueprints_and_certificates_with_its_first_workspace(
    tmp_path: Path,
) -> None:
    proxy = subprocess.run(
        [sys.executable, "-c", _PROXY, str(tmp_path / "egress-journal"), _network()],
        cwd=ROOT,
        env=environment(DJANGO_SETTINGS_MODULE="controlplane.settings"),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    idle, served = (set(json.loads(line)) for line in proxy.stdout.splitlines())
    assert idle.isdisjoint(NEEDED_BY_FEW), idle.intersection(NEEDED_BY_FEW)
    assert served.issuperset((*BLUEPRINT, *CERTIFICATES))
