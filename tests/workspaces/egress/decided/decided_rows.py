"""Workspaces with a policy, decisions of their proxy, and what their records have of them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

from runs.agent.record.frames import Kind
from runs.models import Run, RunEvent, RunHead, RunLoss
from tests.runs.ready import ready_attempt
from workspaces.blueprint import Egress
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.decided import serving
from workspaces.egress.decisions import Decision
from workspaces.models import Attempt, EgressNetwork

EGRESS: dict[str, Any] = {"rules": [{"hosts": ["a.test"]}]}
SPEC = {"harness": {"id": "shell"}, "runtime": {"network": {"egress": EGRESS}}}


def with_policy(served_by: str = "") -> tuple[Attempt, Run]:
    """Return an attempt with a policy and one network, and its boot run."""
    attempt = ready_attempt(spec=SPEC)
    register = egress_of(attempt, Egress.model_validate(EGRESS))
    assert register is not None
    bridge = f"e{uuid4().hex[:14]}"
    register(bridge)
    if served_by:
        assert serving.take(bridge, attempt.pk, served_by)
    return attempt, Run.objects.get(pk=attempt.run_id)


def network_of(attempt: Attempt) -> EgressNetwork:
    return EgressNetwork.objects.get(attempt=attempt)


def decision(
    attempt_id: UUID, host: str = "a.test", *, allowed: bool = True, **more: Any
) -> Decision:
    members: dict[str, Any] = {
        "allowed": allowed,
        "protocol": "tls",
        "host": host,
        "address": "203.0.113.1",
        "port": 443,
        "rule": "rules/0" if allowed else "default",
        "reason": "" if allowed else "No rule names it.",
        "connections": 1,
    }
    return Decision(attempt_id, **{**members, **more})


def recorded(run: Run) -> list[dict[str, Any]]:
    """Return what the record says of decisions, in order."""
    rows = RunEvent.objects.filter(run_number=run.number, kind=Kind.EGRESS_DECIDED)
    return [json.loads(bytes(row.meta)) for row in rows.order_by("sequence")]


def hosts(run: Run) -> list[tuple[str, int]]:
    return [(each.get("host", "-"), each["connections"]) for each in recorded(run)]


def losses(run: Run) -> list[str]:
    rows = RunLoss.objects.filter(run_number=run.number).order_by("position")
    return list(rows.values_list("reason", flat=True))


def head_of(run: Run) -> RunHead:
    return RunHead.objects.get(pk=run.number)
