"""Owners change what a workspace may reach while it runs, and allow what it was refused."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import Client
from pytest_django.fixtures import Settings

from accounts.providers import Provider
from tests.accounts.connected import connect
from tests.conftest import OWNER, Api
from tests.runs.ready import ready_attempt
from tests.security.owned import STRANGER
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.test_enforcement import sandbox
from tests.workspaces.test_admin import act
from workspaces.blueprint import Egress
from workspaces.egress import proposals
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.bound.authorities import authority_of
from workspaces.egress.bound.placeholders import new_placeholder
from workspaces.egress.decisions import Decision, DecisionLog
from workspaces.egress.proposals import MAX_WAITING, note_refusals
from workspaces.models import (
    Attempt,
    CredentialReference,
    EgressNetwork,
    EgressProposal,
    Sandbox,
    WorkspaceEvent,
)

pytestmark = pytest.mark.django_db

EGRESS: dict[str, Any] = {"rules": [{"hosts": ["a.test"]}]}


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


def running(egress: dict[str, Any] | None = None) -> Attempt:
    """Return the attempt of a workspace with a policy, and with a network that has it."""
    told = egress or EGRESS
    spec = {"harness": {"id": "shell"}, "runtime": {"network": {"egress": told}}}
    attempt = ready_attempt(spec=spec)
    register = egress_of(attempt, Egress.model_validate(told))
    assert register is not None
    register(f"e{uuid4().hex[:14]}")
    return attempt


def place(attempt: Attempt, *more: object) -> str:
    return "/".join([f"/v1/workspaces/{attempt.workspace_id}/egress", *map(str, more)])


def hosts(attempt: Attempt) -> list[str]:
    """Return the hosts that the workspace's network has rules for."""
    row = EgressNetwork.objects.get(attempt=attempt)
    return [host for rule in row.policy["rules"] for host in rule["rule"]["hosts"]]


def put(api: Api, attempt: Attempt, policy: Any, *, expect: int = 200) -> Any:
    body = {"ownerUserId": OWNER, "policy": policy}
    return api.request("PUT", place(attempt), body, expect=expect).body


def test_a_policy_is_replaced_for_the_network_for_later_starts_and_in_the_history(api: Api) -> None:
    attempt = running()
    before = EgressNetwork.objects.get(attempt=attempt).revision
    answer = put(api, attempt, {"presets": ["python@1"], "rules": [{"hosts": ["b.test"]}]})
    assert answer["policy"]["rules"] == [{"hosts": ["b.test"], "ports": [443]}]
    assert api.get(place(attempt)).body == answer
    assert hosts(attempt)[0] == "b.test"
    assert "pypi.org" in hosts(attempt)
    row = EgressNetwork.objects.get(attempt=attempt)
    assert row.revision == before + 1
    spec = Sandbox.objects.get(pk=attempt.sandbox_id).spec
    assert spec["runtime"]["network"]["egress"] == answer["policy"]
    assert Attempt.objects.get(pk=attempt.pk).spec["runtime"]["network"]["egress"] == EGRESS
    event = WorkspaceEvent.objects.get(type="egress.changed")
    assert event.data == {"policy": answer["policy"], "networks": 1, "requestedBy": OWNER}
    put(api, attempt, answer["policy"])
    assert EgressNetwork.objects.get(attempt=attempt).revision == row.revision


def test_a_network_that_is_made_after_a_change_has_the_changed_policy(api: Api) -> None:
    attempt = running()
    register = egress_of(attempt, Egress.model_validate(EGRESS))
    building = egress_of(attempt, Egress.model_validate(EGRESS), is_build=True)
    assert register is not None
    assert building is not None
    building("e00000000000001")
    put(api, attempt, {"rules": [{"hosts": ["later.test"]}]})
    register("e00000000000002")
    building("e00000000000001")

    def of(bridge: str) -> Any:
        return EgressNetwork.objects.get(pk=bridge).policy["rules"][0]["rule"]["hosts"]

    assert (of("e00000000000002"), of("e00000000000001")) == (["later.test"], ["a.test"])


@pytest.mark.parametrize(
    ("policy", "code", "pointer"),
    [
        ({"default": "maybe"}, "not-allowed", "/policy/default"),
        ({"presets": ["pyhton"]}, "unknown-preset", "/policy/presets/0"),
        ({"rule": []}, "unknown-member", "/policy/rule"),
        ([], "wrong-type", "/policy"),
        (
            {"rules": [{"hosts": ["a.test"], "credential": "github"}]},
            "credential-not-given",
            "/policy/rules/0/credential",
        ),
    ],
)
def test_a_policy_that_cannot_be_kept_changes_nothing(
    api: Api, policy: Any, code: str, pointer: str
) -> None:
    attempt = running()
    (fault,) = put(api, attempt, policy, expect=400)["errors"]
    assert (fault["code"], fault["pointer"]) == (code, pointer)
    assert hosts(attempt) == ["a.test"]


def test_a_workspace_without_a_policy_cannot_be_given_one_while_it_runs(api: Api) -> None:
    attempt = ready_attempt()
    assert put(api, attempt, EGRESS, expect=409)["code"] == "egress-policy-absent"
    assert api.get(place(attempt), expect=409).body["code"] == "egress-policy-absent"


def test_only_an_account_that_was_never_inside_can_be_bound_while_a_workspace_runs(
    api: Api,
) -> None:
    attempt = running()
    account = UUID(connect("github"))
    reference = CredentialReference.objects.create(
        attempt=attempt, account_id=account, provider="github"
    )
    wanted = {"rules": [{"hosts": ["api.github.com"], "credential": "github"}]}
    (fault,) = put(api, attempt, wanted, expect=400)["errors"]
    assert "was given when it started" in fault["detail"]

    reference.placeholder = new_placeholder(Provider.GITHUB)
    reference.save()
    assert put(api, attempt, wanted, expect=409)["code"] == "egress-authority-absent"
    assert authority_of(attempt.workspace_id) == authority_of(attempt.workspace_id)
    put(api, attempt, wanted)
    (rule,) = EgressNetwork.objects.get(attempt=attempt).policy["rules"]
    assert rule["accountId"] == str(account)


def test_a_bound_account_is_not_delivered_and_one_of_codex_cannot_be_bound(api: Api) -> None:
    connect("github")
    connect("codex")
    connect("generic", "API_KEY")
    connect("generic", "OTHER")
    body = sandbox(
        {
            "rules": [
                {"hosts": ["api.github.com"], "credential": "github"},
                {"hosts": ["b.test"], "credential": "API_KEY", "header": "X-Api-Key"},
            ]
        }
    )
    body["credentials"] = {"github": "default", "codex": "default", "generic": ["API_KEY", "OTHER"]}
    started = api.post("/v1/sandboxes", body, expect=202).body
    references = CredentialReference.objects.filter(attempt=started["attemptId"])
    given = {each.account.name: each.placeholder for each in references.exclude(provider="codex")}
    assert given["default"].startswith("ghp_")
    assert given["API_KEY"].startswith("svcplaceholder")
    assert given["OTHER"] == ""

    body["spec"]["runtime"]["network"]["egress"]["rules"][0]["credential"] = "codex"
    (fault,) = api.post("/v1/sandboxes", body, expect=400).body["errors"]
    assert fault["pointer"] == "/spec/runtime/network/egress/rules/0/credential"
    assert "Codex" in fault["detail"]


def refused(host: str, *, protocol: str = "tls", port: int = 443, another: bool = True) -> Any:
    def of(attempt: Attempt) -> Decision:
        return Decision(
            attempt.pk,
            allowed=False,
            protocol=protocol,
            host=host,
            address="",
            port=port,
            rule="default",
            reason="",
            connections=2,
            another_rule=another,
        )

    return of


def test_what_was_refused_is_proposed_once_and_approved_by_the_owner_alone(api: Api) -> None:
    attempt = running()
    decisions = DecisionLog()
    for one in (
        refused("b.test", port=8443),
        refused("b.test", port=8443),
        refused("c.test", protocol="dns", port=53),
        refused("d.test", another=False),
    ):
        decisions.add(one(attempt))
    decisions.flush()
    items = api.get(place(attempt, "proposals")).body["items"]
    assert [(each["host"], each.get("port"), each["refusals"]) for each in items] == [
        ("c.test", None, 2),
        ("b.test", 8443, 4),
    ]
    named, tried = (each["proposalId"] for each in items)
    for action in ("approve", "dismiss"):
        there = place(attempt, "proposals", tried, action)
        api.post(there, {"ownerUserId": STRANGER}, expect=404)
        api.post(there, {}, expect=400)

    api.post(place(attempt, "proposals", tried, "approve"), {"ownerUserId": OWNER}, expect=200)
    body = {"ownerUserId": OWNER, "ports": [443, 8080]}
    answer = api.post(place(attempt, "proposals", named, "approve"), body, expect=200).body
    assert answer["policy"]["rules"] == [
        {"hosts": ["a.test"], "ports": [443]},
        {"hosts": ["b.test"], "ports": [8443]},
        {"hosts": ["c.test"], "ports": [443, 8080]},
    ]
    assert hosts(attempt) == ["a.test", "b.test", "c.test"]
    assert api.get(place(attempt, "proposals")).body["items"] == []
    again = api.post(place(attempt, "proposals", named, "approve"), body, expect=404).body
    assert again["code"] == "egress-proposal-not-found"


def test_what_is_dismissed_is_counted_and_proposed_no_more(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = running()
    note_refusals(attempt.pk, {("b.test", 443): 1, ("c.test", 443): 1})
    for proposal in EgressProposal.objects.all():
        action = "dismiss" if proposal.host == "b.test" else "approve"
        there = place(attempt, "proposals", proposal.pk, action)
        api.post(there, {"ownerUserId": OWNER}, expect=204 if action == "dismiss" else 200)
    note_refusals(attempt.pk, {("b.test", 443): 5, ("c.test", 443): 5})
    assert not EgressProposal.objects.waiting().exists()
    assert set(EgressProposal.objects.values_list("refusals", flat=True)) == {6}
    # Allowed once, and refused again long after that: its rule must have gone.
    monkeypatch.setattr(proposals, "SETTLED", proposals.SETTLED * 0)
    note_refusals(attempt.pk, {("b.test", 443): 1, ("c.test", 443): 1})
    assert [each.host for each in EgressProposal.objects.waiting()] == ["c.test"]


def test_a_workspace_cannot_fill_the_table_with_names() -> None:
    attempt = running()
    note_refusals(attempt.pk, {(f"n{number}.test", None): 1 for number in range(150)})
    note_refusals(attempt.pk, {(f"m{number}.test", None): 1 for number in range(150)})
    assert EgressProposal.objects.count() == MAX_WAITING
    note_refusals(uuid4(), {("b.test", None): 1})


@pytest.mark.django_db(transaction=True)
def test_what_is_refused_is_noted_while_a_worker_writes_to_the_attempt() -> None:
    attempt = running()

    def note() -> None:
        try:
            note_refusals(attempt.pk, {("b.test", 443): 1})
        finally:
            connection.close()

    noting = threading.Thread(target=note)
    with transaction.atomic():
        Attempt.objects.select_for_update().get(pk=attempt.pk)
        noting.start()
        until = time.monotonic() + LONG_WAIT
        while noting.is_alive() and time.monotonic() < until:
            noting.join(0.1)
            Attempt.objects.exists()  # an idle transaction would be ended
        waits = noting.is_alive()
    noting.join()
    assert not waits
    assert EgressProposal.objects.waiting().count() == 1


def test_only_what_a_rule_can_name_is_proposed() -> None:
    attempt = running()
    note_refusals(attempt.pk, {(host, 443): 1 for host in ("-a.test", "a-.test", "", "b.test")})
    assert [each.host for each in EgressProposal.objects.all()] == ["b.test"]


def test_an_operator_decides_in_the_admin() -> None:
    attempt = running()
    note_refusals(attempt.pk, {("b.test", 443): 1, ("c.test", 443): 1})
    staff = Client()
    staff.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    wanted, unwanted = EgressProposal.objects.order_by("host")
    assert act(staff, EgressProposal, "approve", [wanted]) == ["b.test: approved."]
    assert act(staff, EgressProposal, "dismiss", [unwanted]) == ["c.test: dismissed."]
    assert hosts(attempt) == ["a.test", "b.test"]
    assert WorkspaceEvent.objects.get(type="egress.changed").data["requestedBy"] == "ada"
    (told,) = act(staff, EgressProposal, "approve", [wanted])
    assert "was already decided" in told
