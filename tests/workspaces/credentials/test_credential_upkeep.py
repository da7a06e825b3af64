"""What workers do about accounts: they give them at the launch, and look after them since."""

from __future__ import annotations

import base64
import json
import logging
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.connected import reveal
from accounts.models import ConnectedAccount
from accounts.resolution import Resolution, resolve_credentials
from builds.pipeline.job_state import JobState
from builds.pipeline.runner import JobRunner
from controlplane.errors import JobError
from runs.agent.credentials.document import parse
from tests.accounts.connected import (
    KEY,
    SECRETS,
    approve,
    codex,
    connect,
    delete,
    mark_invalid,
    renewals,
    renewed_secrets,
)
from tests.bench.empty_jobs import empty_runner
from tests.conftest import OWNER
from tests.factories import claim, make_job
from tests.support.waiting import LONG_WAIT
from tests.workspaces.credentials.credential_engine import HoldingEngine
from workspaces.credentials import upkeep as credential_upkeep
from workspaces.credentials.upkeep import Upkeep, look_after_credentials
from workspaces.egress.bound.bindings import placeholders_for
from workspaces.lifecycle.queueing import cancel_job
from workspaces.lifecycle.reconciler import reconcile
from workspaces.models import (
    BuildJob,
    CredentialReference,
    EgressNetwork,
    LeaseLost,
    RuntimeInstance,
    Workspace,
    WorkspaceEvent,
)
from workspaces.runtimes.base import LaunchError, ObservedRuntime, RenewedCredential

pytestmark = pytest.mark.django_db(transaction=True)
SHELL = {"harness": {"id": "shell"}}
PERSISTENT = {**SHELL, "runtime": {"persistence": "persistent"}}


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


@pytest.fixture
def engine() -> HoldingEngine:
    """An engine whose workspaces are started at once."""
    return HoldingEngine()


@pytest.fixture
def runner(engine: HoldingEngine) -> JobRunner:
    """A worker's runner that builds nothing."""
    return empty_runner(engine)


def job_with(spec: dict[str, Any] | None = None, **credentials: Any) -> BuildJob:
    """Create a queued job whose workspace is given these accounts."""
    job = make_job(spec=spec or SHELL)
    resolution = resolve_credentials(credentials, owner_user_id=OWNER)
    _refer(job, resolution)
    return job


def _refer(job: BuildJob, resolution: Resolution) -> None:
    instead = placeholders_for(job.attempt.spec, resolution.references)
    for one in resolution.references:
        CredentialReference.objects.create(
            attempt=job.attempt,
            account_id=one.account_id,
            provider=one.provider,
            placeholder=instead.get(one.account_id, ""),
        )


def started(runner: JobRunner, spec: dict[str, Any] | None = None, **credentials: Any) -> BuildJob:
    """Bring a job with these accounts to a running workspace."""
    job = job_with(spec, **credentials)
    runner.run(JobState(claim(job)))
    return job


def failed(runner: JobRunner, job: BuildJob) -> BuildJob:
    """Run a job to its failure and return its row."""
    with pytest.raises(JobError):
        runner.run(JobState(claim(job)))
    job.refresh_from_db()
    assert job.status == BuildJob.Status.FAILED
    return job


def look_after(engine: HoldingEngine) -> Upkeep:
    """One round."""
    return look_after_credentials(engine, threading.Event(), instance_id="tests")


def reference(job: BuildJob) -> CredentialReference:
    return CredentialReference.objects.get(attempt=job.attempt)


def secret_of(account: str) -> str:
    return reveal(ConnectedAccount.objects.get(pk=account))


# ---------------------------------------------------------------- at the launch


def test_a_workspace_is_launched_with_what_it_was_to_be_given(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    claude, variable = connect("claude"), connect("generic", "TOKEN")
    job = started(runner, claude=claude, generic=["TOKEN"])
    run_id = job.attempt.run_id
    assert {one["provider"]: one["secret"] for one in engine.held[run_id].values()} == {
        "claude": SECRETS["claude"], "generic": SECRETS["generic"],
    }  # fmt: skip
    boot = engine.requests[0].boot
    limits = boot["limits"]
    assert boot["credentials"] is True
    assert isinstance(limits, dict)
    assert limits["credentialSeconds"] == 300
    for secret in SECRETS.values():
        assert secret not in json.dumps(boot)
        assert secret not in repr(engine.requests[0])
    for account in (claude, variable):
        assert ConnectedAccount.objects.get(pk=account).last_used_at is not None
    rows = CredentialReference.objects.filter(attempt=job.attempt)
    assert [row.delivered_generation for row in rows] == [1, 1]


@pytest.mark.parametrize(
    ("api", "host"),
    [
        ("https://api.github.com", "github.com"),
        ("https://git.example.org:443/api/v3", "git.example.org"),
        ("https://git.example.org:1443/api/v3", "git.example.org:1443"),
        ("https://git_server:8443/api/v3", "git_server:8443"),
        ("https://[2001:db8::1]:8443/api/v3", "[2001:db8::1]:8443"),
    ],
)
def test_a_workspace_shows_git_s_token_to_the_provider_as_git_names_it(
    engine: HoldingEngine, runner: JobRunner, settings: Settings, api: str, host: str
) -> None:
    settings.SCM_API_BASE_URL = api
    started(runner, github=connect("github"))
    assert engine.requests[0].credentials is not None
    (account,) = parse(engine.requests[0].credentials())
    assert account.host == host


def test_a_workspace_without_accounts_waits_for_none(
    engine: HoldingEngine, runner: JobRunner, settings: Settings
) -> None:
    settings.SVC_CREDENTIALS_KEY = ""
    started(runner)
    assert engine.requests[0].credentials is None
    assert "credentials" not in engine.requests[0].boot


def test_an_account_that_does_not_open_fails_the_job_before_anything_is_built(
    engine: HoldingEngine, runner: JobRunner, settings: Settings
) -> None:
    account = connect("claude", "work")
    jobs = [job_with(claude=account) for _ in range(3)]
    settings.SVC_CREDENTIALS_KEY = ""
    assert failed(runner, jobs[0]).error_code == "credentials-key-unset"
    settings.SVC_CREDENTIALS_KEY = KEY
    mark_invalid(account)
    invalid = failed(runner, jobs[1])
    assert invalid.error_code == "connected-account-invalid"
    assert "“work”" in invalid.error_message
    delete(account)
    assert failed(runner, jobs[2]).error_code == "connected-account-gone"
    assert engine.requests == []


def test_an_account_that_goes_away_during_the_build_fails_the_launch(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("claude")
    job = job_with(claude=account)
    engine.before_launch = lambda: delete(account)
    assert failed(runner, job).error_code == "connected-account-gone"
    assert engine.held == {}


def test_a_worker_that_lost_the_job_opens_nothing(engine: HoldingEngine, runner: JobRunner) -> None:
    job = job_with(claude=connect("claude"))
    engine.before_launch = lambda: cancelled(job)
    with pytest.raises(LeaseLost):
        runner.run(JobState(claim(job)))
    assert engine.held == {}
    assert reference(job).delivered_at is None


def cancelled(job: BuildJob) -> None:
    assert cancel_job(BuildJob.objects.get(pk=job.pk), reason="Not wanted any more.")


def test_what_a_failing_launch_tells_holds_no_secret(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    secret = "a secret/with a slash"
    connect("generic", "TOKEN", secret)
    encoded = base64.b64encode(f"x{secret}".encode()).decode()
    engine.fails_with = LaunchError(
        "container-exited", f"It ended.\n{secret}\na%20secret/with%20a%20slash\n{encoded}"
    )
    job = failed(runner, job_with(generic=["TOKEN"]))
    assert job.error_code == "container-exited"
    for spelling in (secret, "slash", encoded[4:-4]):
        assert spelling not in job.error_message
    job.attempt.refresh_from_db()
    assert job.attempt.error_message == job.error_message


def test_a_job_that_is_taken_over_gives_the_accounts_once_more(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    """Its first worker dies while it launches; the second one opens them anew."""
    job = job_with(claude=connect("claude"))

    def die() -> None:
        raise SystemExit

    engine.before_launch = die
    with pytest.raises(SystemExit):
        runner.run(JobState(claim(job)))
    BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=timezone.now())
    engine.before_launch = None
    runner.run(JobState(claim(job, worker_id="worker-b")))
    assert len(engine.held[job.attempt.run_id]) == 1


# ---------------------------------------------------------------- given again


def test_a_workspace_that_was_started_again_is_given_its_accounts_again(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    good, bad = connect("generic", "GOOD"), connect("generic", "BAD")
    run_id = started(runner, PERSISTENT, generic=[good, bad]).attempt.run_id
    connect("generic", "GOOD", "the secret of today")
    mark_invalid(bad)
    engine.held.clear()
    engine.waiting.add(run_id)
    assert look_after(engine).delivered == 1
    assert [one["secret"] for one in engine.held[run_id].values()] == ["the secret of today"]
    told = WorkspaceEvent.objects.get(type="credentials.delivered")
    assert told.data == {
        "connectedAccountIds": [good], "leftOut": {bad: "connected-account-invalid"},
    }  # fmt: skip
    assert look_after(engine) == Upkeep(withdrawn=1)
    assert look_after(engine) == Upkeep()


def test_a_workspace_all_of_whose_accounts_are_gone_is_given_none_and_goes_on(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("generic", "GOOD")
    run_id = started(runner, PERSISTENT, generic=[account]).attempt.run_id
    delete(account)
    engine.waiting.add(run_id)
    assert look_after(engine).delivered == 1
    assert engine.held[run_id] == {}


def isolated() -> None:
    """Nothing is launched, so nothing has to be kept away."""


def test_of_a_bound_account_a_workspace_only_ever_has_the_same_placeholder(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    launcher = replace(runner.launcher, require_isolation=isolated, require_egress=isolated)
    bound, other = connect("github"), connect("generic", "TOKEN")
    rules = [{"hosts": ["api.github.com"], "credential": "github"}]
    network = {"egress": {"rules": rules}}
    spec = {**SHELL, "runtime": {"persistence": "persistent", "network": network}}
    job = started(replace(runner, launcher=launcher), spec, github=bound, generic=[other])
    run_id = job.attempt.run_id
    given = {one["id"]: one["secret"] for one in engine.held[run_id].values()}
    assert given[other] == SECRETS["generic"]
    assert given[bound].startswith("ghp_svcplaceholder")
    (request,) = engine.requests
    assert request.authority is not None
    assert request.authority.startswith(b"-----BEGIN CERTIFICATE-----")
    assert request.egress is not None
    request.egress("e00000000000001")
    (rule,) = EgressNetwork.objects.get().policy["rules"]
    assert rule["accountId"] == bound

    engine.held.clear()
    engine.waiting.add(run_id)
    assert look_after(engine).delivered == 1
    assert {one["id"]: one["secret"] for one in engine.held[run_id].values()} == given


def test_without_a_key_a_waiting_workspace_goes_on_waiting(
    engine: HoldingEngine, runner: JobRunner, settings: Settings
) -> None:
    run_id = started(runner, PERSISTENT, claude=connect("claude")).attempt.run_id
    engine.waiting.add(run_id)
    settings.SVC_CREDENTIALS_KEY = ""
    assert look_after(engine) == Upkeep()
    settings.SVC_CREDENTIALS_KEY = KEY
    assert look_after(engine).delivered == 1


def test_workspaces_that_need_nothing_are_not_asked_for_anything(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    started(runner)
    ended = started(runner, PERSISTENT, codex=connect("codex"))
    RuntimeInstance.objects.filter(run_id=ended.attempt.run_id).update(
        status="stopped", finished_at=timezone.now()
    )
    started(runner, claude=connect("claude"))
    engine.asked.clear()
    assert look_after(engine) == Upkeep()
    assert engine.asked == []


# ---------------------------------------------------------------- withdrawn


def test_what_is_deleted_or_marked_invalid_is_taken_from_running_workspaces_once(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    claude, github = connect("claude"), connect("github")
    jobs = [started(runner, claude=claude, github=github) for _ in range(2)]
    delete(claude)
    assert look_after(engine).withdrawn == 2
    mark_invalid(github)
    assert look_after(engine).withdrawn == 2
    assert [engine.held[job.attempt.run_id] for job in jobs] == [{}, {}]
    assert look_after(engine).withdrawn == 0
    assert engine.questions("withdraw") == 4
    told = WorkspaceEvent.objects.filter(attempt=jobs[0].attempt, type="credentials.withdrawn")
    withdrawn = told.order_by("pk").values_list("data", flat=True)
    assert list(withdrawn) == [{"connectedAccountIds": [claude]}, {"connectedAccountIds": [github]}]


def test_a_workspace_that_is_still_being_launched_is_looked_after_too(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    """Its steps take long, and meanwhile one account is renewed and another deleted."""
    account, claude = connect("codex"), connect("claude")
    job = job_with(PERSISTENT, codex=account, claude=claude)
    run_id = job.attempt.run_id
    later = codex("2026-02-01T00:00:00Z")
    seen: list[Upkeep] = []

    def steps_run() -> None:
        engine.renewed[run_id] = [(account, later)]
        delete(claude)
        engine.waiting.add(run_id)
        seen.append(look_after(engine))

    engine.after_delivery = steps_run
    runner.run(JobState(claim(job)))
    assert seen == [Upkeep(withdrawn=1, renewed=1)]
    assert renewed_secrets(account) == [later]
    assert list(engine.held[run_id]) == [account]


def test_an_account_that_is_deleted_while_it_is_on_its_way_is_withdrawn_when_it_has_come(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("claude")
    job = job_with(claude=account)

    def deleted_meanwhile() -> None:
        delete(account)
        look_after(engine)

    engine.before_delivery = deleted_meanwhile
    runner.run(JobState(claim(job)))
    assert list(engine.held[job.attempt.run_id]) == [account]
    assert look_after(engine) == Upkeep(withdrawn=1)
    assert engine.held[job.attempt.run_id] == {}
    assert WorkspaceEvent.objects.filter(type="credentials.withdrawn").count() == 1
    assert look_after(engine) == Upkeep()


def test_one_workspace_that_does_not_answer_keeps_nothing_from_the_others(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("claude")
    silent, other = (started(runner, claude=account).attempt.run_id for _ in range(2))
    delete(account)
    engine.silent.add(silent)
    assert look_after(engine).withdrawn == 1
    assert (len(engine.held[silent]), len(engine.held[other])) == (1, 0)
    engine.silent.clear()
    assert look_after(engine).withdrawn == 1


def test_one_owners_workspaces_do_not_wait_for_anothers(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("claude")
    jobs = [started(runner, claude=account) for _ in range(2)]
    owned_by(jobs[1], "usr_b")
    delete(account)
    both = threading.Barrier(2)

    def meet(run_id: uuid.UUID) -> None:
        # Each answers only while the other one is being asked.
        try:
            both.wait(LONG_WAIT)
        except threading.BrokenBarrierError:
            raise LaunchError("agent-silent", "The agent gave no answer.") from None

    engine.while_asked = meet
    assert look_after(engine).withdrawn == 2


def test_an_owner_with_many_silent_workspaces_ends_no_round_late_and_has_none_forgotten(
    engine: HoldingEngine, runner: JobRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_upkeep, "ROUND_SECONDS", 0.0)
    account = connect("claude")
    runs = {started(runner, claude=account).attempt.run_id for _ in range(3)}
    delete(account)
    engine.silent |= runs
    engine.asked.clear()
    for number in range(3):
        look_after(engine)
        assert engine.questions("withdraw") == number + 1
    assert {run_id for asked, run_id in engine.asked if asked == "withdraw"} == runs


def test_a_fault_of_ours_is_told_when_all_others_were_looked_after(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("claude")
    jobs = [started(runner, claude=account) for _ in range(3)]
    for number, job in enumerate(jobs):
        owned_by(job, f"usr_{number}")
    delete(account)

    def breaks(run_id: uuid.UUID) -> None:
        if run_id == jobs[0].attempt.run_id:
            raise RuntimeError("a fault of ours")

    engine.while_asked = breaks
    with pytest.raises(RuntimeError):
        look_after(engine)
    assert [len(engine.held[job.attempt.run_id]) for job in jobs] == [1, 0, 0]


def owned_by(job: BuildJob, owner: str) -> None:
    Workspace.objects.filter(pk=job.attempt.workspace_id).update(owner_user_id=owner)


# ---------------------------------------------------------------- renewed


def test_a_workspace_that_renews_with_what_is_no_text_keeps_nothing_from_the_others(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    hostile, honest = connect("codex", "one"), connect("codex", "two")
    jobs = [started(runner, codex=account) for account in (hostile, honest)]
    # JSON can spell halves of characters, and who is root in a workspace answers what he likes.
    no_text = codex("2026-01-02T00:00:00Z").removesuffix("}") + ', "x": "\ud800"}'
    renewed = codex("2026-01-02T00:00:00Z", refresh_token="renewed-0000")
    engine.renewed = {
        jobs[0].attempt.run_id: [(hostile, no_text)],
        jobs[1].attempt.run_id: [(honest, renewed)],
    }
    assert look_after(engine) == Upkeep(renewed=1)
    assert renewed_secrets(honest) == [renewed]
    assert renewed_secrets(hostile) == []


def test_a_lost_database_connection_takes_one_workspace_and_not_all_that_come_after_it(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    accounts = [connect("codex", name) for name in ("one", "two", "three")]
    renewed = codex("2026-01-02T00:00:00Z", refresh_token="renewed-0000")
    for account in accounts:
        engine.renewed[started(runner, codex=account).attempt.run_id] = [(account, renewed)]
    collect = engine.collect_credentials

    def lose_the_connection(run_id: uuid.UUID) -> list[RenewedCredential]:
        engine.collect_credentials = collect  # type: ignore[method-assign]
        with suppress(OperationalError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return collect(run_id)

    engine.collect_credentials = lose_the_connection  # type: ignore[method-assign]
    with pytest.raises((OperationalError, InterfaceError)):
        look_after(engine)
    assert [renewed_secrets(account) for account in accounts].count([renewed]) == 2


def test_what_a_tool_has_renewed_is_proposed_once_with_an_event(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    before = codex("2026-01-01T00:00:00Z")
    account = connect("codex", secret=before)
    attempt = started(runner, codex=account).attempt
    assert look_after(engine) == Upkeep()
    for day in (2, 3):
        later = codex(f"2026-01-0{day}T00:00:00Z", refresh_token="renewed-0000")
        engine.renewed[attempt.run_id] = [(account, later)]
        assert look_after(engine) == Upkeep(renewed=1)
        assert look_after(engine) == Upkeep()
    assert secret_of(account) == before
    assert renewed_secrets(account) == [later]
    told = WorkspaceEvent.objects.get(attempt=attempt, type="credentials.renewed")
    assert told.data == {"connectedAccountId": account}


def test_what_a_workspace_has_renewed_reaches_no_other_until_it_is_approved(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    """Who works in a workspace writes tokens of an account of his own into the file."""
    genuine = codex("2026-01-01T00:00:00Z", refresh_token="of-the-owner")
    account = connect("codex", secret=genuine)
    first = started(runner, PERSISTENT, codex=account).attempt
    planted = codex("2026-01-02T00:00:00Z", refresh_token="of-the-attacker")
    engine.renewed[first.run_id] = [(account, planted)]
    look_after(engine)

    second = started(runner, codex=account).attempt
    assert engine.held[second.run_id][account]["secret"] == genuine
    # The workspace itself, which could put it back there anyway, goes on with what it has.
    engine.waiting.add(first.run_id)
    look_after(engine)
    assert engine.held[first.run_id][account]["secret"] == planted

    (waiting,) = renewals(account)
    approve(account, waiting["renewalId"])
    third = started(runner, codex=account).attempt
    assert engine.held[third.run_id][account]["secret"] == planted


def test_a_workspace_renews_only_what_it_was_given(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    mine, other = connect("codex"), connect("codex", "other")
    foreign = connect("codex", owner="usr_b")
    claude = connect("claude")
    run_id = started(runner, codex=mine, claude=claude).attempt.run_id
    later = codex("2026-02-01T00:00:00Z")
    engine.renewed[run_id] = [
        (account, later) for account in (other, foreign, claude, str(uuid.uuid4()))
    ]
    assert look_after(engine) == Upkeep()
    assert secret_of(other) == secret_of(foreign) == SECRETS["codex"]


def test_an_account_connected_again_is_not_asked_of_workspaces_that_had_the_earlier_one(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("codex")
    run_id = started(runner, codex=account).attempt.run_id
    again = codex("2026-01-01T00:00:01Z", refresh_token="again-0000")
    connect("codex", secret=again)
    engine.renewed[run_id] = [(account, codex("2026-03-01T00:00:00Z"))]
    assert look_after(engine) == Upkeep()
    assert secret_of(account) == again
    assert renewals(account) == []


def test_a_container_that_is_removed_is_asked_once_more_for_what_it_renewed(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    account = connect("codex")
    job = started(runner, codex=account)
    run_id = job.attempt.run_id
    RuntimeInstance.objects.filter(run_id=run_id).update(
        status="stopped", finished_at=timezone.now() - timedelta(days=2)
    )
    engine.observed = [
        ObservedRuntime(
            run_id, job.pk, 1, "0" * 64, f"svc-{run_id}", True, None, False,
            timezone.now() - timedelta(hours=1),
        )
    ]  # fmt: skip
    later = codex("2026-02-01T00:00:00Z")
    engine.renewed[run_id] = [(account, later)]
    engine.silent.clear()
    reconcile(engine, instance_id="tests", grace=timedelta(0), keep_ended=timedelta(0))
    assert renewed_secrets(account) == [later]
    asked = [what for what, _ in engine.asked]
    assert asked.index("collect") < asked.index("remove")


def test_a_container_that_does_not_answer_is_removed_all_the_same(
    engine: HoldingEngine, runner: JobRunner
) -> None:
    job = started(runner, codex=connect("codex"))
    run_id = job.attempt.run_id
    RuntimeInstance.objects.all().delete()
    engine.silent.add(run_id)
    engine.observed = [
        ObservedRuntime(
            run_id, job.pk, 1, "0" * 64, f"svc-{run_id}", True, None, False,
            timezone.now() - timedelta(hours=1),
        )
    ]  # fmt: skip
    reconcile(engine, instance_id="tests", grace=timedelta(0), keep_ended=timedelta(0))
    assert engine.questions("remove") == 1


def test_no_log_line_holds_a_secret(
    engine: HoldingEngine, runner: JobRunner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    account = connect("codex")
    job = started(runner, PERSISTENT, codex=account, generic=[connect("generic", "TOKEN")])
    run_id = job.attempt.run_id
    engine.renewed[run_id] = [(account, codex("2026-02-01T00:00:00Z")), (account, "{nonsense")]
    look_after(engine)
    engine.waiting.add(run_id)
    look_after(engine)
    delete(account)
    look_after(engine)
    for secret in (SECRETS["generic"], "refresh-0000", "{nonsense"):
        assert secret not in caplog.text
