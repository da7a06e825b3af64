"""Who asks for a policy is told what is wrong with it, and whether it would be kept."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from pytest_django.fixtures import Settings

from controlplane.readiness import check_all
from tests.conftest import OWNER, Api
from tests.runs.ready import ready_attempt, ready_attempts
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from workspaces.blueprint import Egress
from workspaces.egress import known_networks
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decisions import BURST, Decision, DecisionLog
from workspaces.egress.known_networks import KnownNetworks
from workspaces.egress.open_networks import Network
from workspaces.lifecycle.enforcement.isolation import IsolationTask, check_egress
from workspaces.models import EgressNetwork, Engine, NetworkGuardReport, WorkspaceEvent
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.configured import configured_adapter

pytestmark = pytest.mark.django_db


def sandbox(egress: dict[str, Any]) -> dict[str, Any]:
    return {
        "ownerUserId": OWNER,
        "registryId": "default",
        "repository": "team/app",
        "tag": "one",
        "spec": {"harness": {"id": "shell"}, "runtime": {"network": {"egress": egress}}},
    }


def test_an_unknown_preset_is_refused_and_the_known_ones_are_named(api: Api) -> None:
    body = sandbox({"presets": ["python", "pyhton", "npm@99"]})
    answer = api.post("/v1/sandboxes", body, expect=400).body
    assert [(each["code"], each["pointer"][-10:]) for each in answer["errors"]] == [
        ("unknown-preset", "/presets/1"),
        ("unknown-preset", "/presets/2"),
    ]
    assert "python" in answer["errors"][0]["detail"]


def test_presets_that_cannot_be_read_are_no_mystery(api: Api, settings: Settings) -> None:
    settings.SVC_EGRESS_PRESETS = "/nowhere/presets.toml"
    answer = api.post("/v1/sandboxes", sandbox({"presets": ["python"]}), expect=400).body
    assert answer["errors"][0]["code"] == "unknown-preset"
    assert "/nowhere" not in str(answer)
    with pytest.raises(LaunchError) as caught:
        egress_of(ready_attempt(), Egress(presets=("python",)))
    assert caught.value.code == "egress-not-enforced"


def test_a_credential_of_an_account_that_the_workspace_is_not_given_is_refused(api: Api) -> None:
    body = sandbox({"rules": [{"hosts": ["api.example.com"], "credential": "work"}]})
    (fault,) = api.post("/v1/sandboxes", body, expect=400).body["errors"]
    assert fault["pointer"] == "/spec/runtime/network/egress/rules/0/credential"
    assert fault["code"] == "credential-not-given"
    assert "credentials" in fault["detail"]


@pytest.mark.parametrize("mode", ["external", "off"])
def test_no_policy_is_kept_without_our_rules(mode: str, settings: Settings) -> None:
    settings.SVC_NETWORK_GUARD = mode
    with pytest.raises(LaunchError) as caught:
        IsolationTask(configured_adapter()).require_egress()
    assert caught.value.code == "egress-not-enforced"


def test_no_policy_is_kept_where_it_is_switched_off(settings: Settings) -> None:
    settings.SVC_NETWORK_GUARD, settings.SVC_EGRESS_PORT = "on", 0
    with pytest.raises(LaunchError, match="SVC_EGRESS_PORT is 0"):
        IsolationTask(configured_adapter()).require_egress()
    assert "switched off" in check_egress()


def test_readiness_says_why_no_policy_is_kept(settings: Settings) -> None:
    settings.SVC_NETWORK_GUARD = "on"

    def told() -> tuple[bool, str, bool]:
        (found,) = (check for check in check_all() if check.name == "egress")
        return found.ok, found.detail, found.required

    assert told() == (
        False,
        "No build worker reports whether egress policies are enforced.",
        False,
    )
    NetworkGuardReport.objects.report("one", enforced=True, detail="", egress="It is not there.")
    assert told() == (False, "It is not there.", False)
    NetworkGuardReport.objects.report("two", enforced=True, detail="")
    assert told() == (False, "Engine one: It is not there.", False)
    Engine.objects.create(name="first", engine_id="one")
    assert told() == (False, "Engine first: It is not there.", False)
    NetworkGuardReport.objects.report("one", enforced=True, detail="")
    assert told()[0]


def test_a_network_is_known_with_the_rules_of_its_presets_by_the_name_of_its_bridge() -> None:
    register = egress_of(ready_attempt(), Egress(presets=("python",)))
    assert register is not None
    register("e0123456789abcd")
    (row,) = EgressNetwork.objects.all()
    assert row.policy["rules"][0]["name"] == "presets/python@1/0"
    assert egress_of(ready_attempt(), None) is None


def test_a_network_that_is_made_known_twice_has_the_policy_of_the_second_time() -> None:
    attempt = ready_attempt()
    for host in ("a.test", "b.test"):
        register = egress_of(attempt, Egress.model_validate({"rules": [{"hosts": [host]}]}))
        assert register is not None
        register("e0123456789abcd")
    (row,) = EgressNetwork.objects.all()
    assert row.policy["rules"][0]["rule"]["hosts"] == ["b.test"]


async def known_at_loopback(networks: KnownNetworks) -> Network | None:
    with ThreadPoolExecutor(1) as one:
        asyncio.get_running_loop().set_default_executor(one)
        found = await networks.whose("127.0.0.1")
        await asyncio.to_thread(connections.close_all)
    return found


@pytest.mark.django_db(transaction=True)
def test_a_network_that_nobody_knows_is_not_looked_up_again_at_once(
    monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.setattr(known_networks, "UNKNOWN_SECONDS", 3600.0)
    asked = KnownNetworks("lo", journal)
    assert asyncio.run(known_at_loopback(asked)) is None
    register = egress_of(ready_attempt(), Egress())
    assert register is not None
    register("lo")
    assert asyncio.run(known_at_loopback(asked)) is None
    assert asyncio.run(known_at_loopback(KnownNetworks("lo", journal))) is not None

    EgressNetwork.objects.all().delete()
    monkeypatch.setattr(known_networks, "UNKNOWN_SECONDS", 0.0)
    asked = KnownNetworks("lo", journal)
    assert asyncio.run(known_at_loopback(asked)) is None
    register("lo")
    assert asyncio.run(known_at_loopback(asked)) is not None


@pytest.mark.django_db(transaction=True)
def test_connections_that_come_together_are_of_one_network_whose_policy_is_replaced_for_all(
    journal: Journal,
) -> None:
    attempt = ready_attempt()
    register = egress_of(attempt, Egress.model_validate({"rules": [{"hosts": ["a.test"]}]}))
    assert register is not None
    register("lo")
    networks = KnownNetworks("lo", journal)

    async def found() -> set[int]:
        with ThreadPoolExecutor(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            together = await asyncio.gather(*(networks.whose("127.0.0.1") for _ in range(4)))
            await asyncio.to_thread(connections.close_all)
        return {id(network) for network in together}

    assert len(asyncio.run(found())) == 1


@pytest.mark.django_db(transaction=True)
def test_a_policy_that_cannot_be_read_lets_nothing_pass_and_keeps_no_other_from_being_replaced(
    monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.setattr(known_networks, "LOOK_SECONDS", 0.01)
    attempt = ready_attempt()
    register = egress_of(attempt, Egress.model_validate({"rules": [{"hosts": ["a.test"]}]}))
    assert register is not None
    register("lo")
    networks = KnownNetworks("lo", journal)

    def replace(policy: object) -> None:
        EgressNetwork.objects.replace_policy(attempt.pk, policy)

    async def followed() -> None:
        with ThreadPoolExecutor(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            network = await networks.whose("127.0.0.1")
            assert network is not None
            before = network.policy
            following = asyncio.create_task(networks.follow())
            broken = {
                **before.to_wire(),
                "rules": [{**before.to_wire()["rules"][0], "accountId": 7}],
            }
            for policy, allowed in ((broken, False), (before.to_wire(), True)):
                await asyncio.to_thread(replace, policy)
                async with asyncio.timeout(LONG_WAIT):
                    while network.policy.about_name("a.test").allowed != allowed:
                        assert not following.done()
                        await asyncio.sleep(0.01)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await asyncio.to_thread(connections.close_all)

    asyncio.run(followed())


def test_a_flood_of_refusals_hides_no_finding() -> None:
    attempt = ready_attempt()
    decisions = DecisionLog()

    def refuse(host: str, *, finding: bool = False) -> None:
        decisions.add(
            Decision(
                attempt.pk,
                allowed=False,
                protocol="http",
                host=host,
                address="198.51.100.2",
                port=80,
                rule="placeholder" if finding else "default",
                reason="",
                connections=1,
                finding=finding,
            )
        )

    for number in range(3 * BURST):
        refuse(f"n{number}.test")
    refuse("first.test", finding=True)
    decisions.flush()
    for number in range(3 * BURST):
        refuse(f"m{number}.test")
    refuse("second.test", finding=True)
    decisions.flush()
    findings = WorkspaceEvent.objects.filter(attempt=attempt, type="egress.finding")
    assert [each.data["host"] for each in findings.order_by("pk")] == ["first.test", "second.test"]


def test_every_decision_is_counted_and_events_are_bounded() -> None:
    attempt = ready_attempt()
    decisions = DecisionLog()
    for number in range(3 * BURST):
        for _ in range(2):
            decisions.add(
                Decision(
                    attempt.pk,
                    allowed=number % 2 == 0,
                    protocol="tls",
                    host=f"n{number}.test",
                    address="198.51.100.2",
                    port=443,
                    rule="default",
                    reason="",
                    connections=1,
                    sent=10,
                    received=5,
                )
            )
    events = WorkspaceEvent.objects.filter(attempt=attempt, type__startswith="egress.")

    def counted() -> int:
        decisions.flush()
        return sum(event.data["connections"] for event in events.all())

    eventually(lambda: counted() == 3 * BURST * 2, what="each decision is counted")
    assert events.count() <= BURST + 5
    named = [event.data for event in events if "unnamed" not in event.data]
    assert {(each["connections"], each["bytesSent"]) for each in named} == {(2, 20)}


def test_what_a_client_says_as_a_host_cannot_keep_other_decisions_from_being_written() -> None:
    attempt, other = ready_attempts(2)
    decisions = DecisionLog()
    for who, host in ((attempt, "a\0b"), (other, "b.test")):
        decisions.add(
            Decision(
                who.pk,
                allowed=False,
                protocol="tls",
                host=host,
                address="198.51.100.2",
                port=443,
                rule="default",
                reason="",
                connections=1,
            )
        )
    decisions.flush()
    assert WorkspaceEvent.objects.filter(attempt=other, data__host="b.test").exists()
