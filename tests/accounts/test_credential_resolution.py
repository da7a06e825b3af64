"""Which accounts a new workspace is given, and what is refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from accounts.models import CredentialBinding, Profile
from accounts.resolution import resolve_credentials
from controlplane.errors import Conflict
from tests.accounts.connected import KEY, bind, connect, delete, mark_invalid
from tests.conftest import OWNER, Answer, Api
from tests.factories import claim
from workspaces import services as workspaces
from workspaces.lifecycle.start import retry_sandbox
from workspaces.models import Attempt, BuildJob, CredentialReference, Sandbox, WorkspaceEvent

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


@pytest.fixture
def start(api: Api, request_body: dict[str, Any]) -> Any:
    """Ask for a sandbox with these members beside the usual ones."""

    def ask(expect: int = 202, **members: Any) -> Answer:
        return api.post("/v1/sandboxes", {**request_body, **members}, expect=expect)

    return ask


def given(answer: Answer) -> list[str]:
    """The ids of the accounts that the started workspace is given."""
    attempt = Attempt.objects.get(pk=answer.body["attemptId"])
    return [str(reference.account_id) for reference in workspaces.references_of(attempt)]


def end(answer: Answer) -> None:
    """Let a sandbox come to its end."""
    attempt = Attempt.objects.get(pk=answer.body["attemptId"])
    claim(BuildJob.objects.get(pk=answer.body["jobId"]))
    workspaces.fail_attempt(attempt, code="ended", message="ended")


# ---------------------------------------------------------------- what is given


def test_what_a_request_names_by_id_or_by_name_is_given(start: Any) -> None:
    claude, github = connect("claude"), connect("github", "work")
    first, second = connect("generic", "FIRST"), connect("generic", "SECOND")
    connect("codex")
    named = {"claude": claude, "github": "work", "generic": [second, "FIRST"]}
    assert given(start(credentials=named)) == [claude, github, second, first]


def test_an_account_whose_name_looks_like_an_id_is_given_by_its_name(start: Any) -> None:
    variable = connect("generic", "a" * 32)
    assert given(start(credentials={"generic": ["a" * 32]})) == [variable]


def test_many_accounts_take_no_more_statements_than_one(
    django_assert_num_queries: Any,
) -> None:
    names = [f"VARIABLE_{number}" for number in range(30)]
    accounts = [connect("generic", name) for name in names]
    named = {"generic": [*names[:15], *accounts[15:]], "claude": connect("claude")}
    with django_assert_num_queries(1):
        found = resolve_credentials(named, owner_user_id=OWNER)
    assert [str(one.account_id) for one in found.references] == [named["claude"], *accounts]


def test_a_request_that_says_nothing_is_given_what_the_default_profile_gives(start: Any) -> None:
    assert given(start()) == []
    claude, variable = connect("claude"), connect("generic", "FIRST")
    bind(("generic", variable), ("claude", claude))
    connect("github")
    assert given(start()) == [claude, variable]


def test_an_empty_object_means_none(start: Any) -> None:
    bind(("claude", connect("claude")))
    assert given(start(credentials={})) == []
    assert given(start(spec={"harness": {"id": "shell"}, "credentials": {}})) == []


def test_what_is_named_stands_before_what_a_profile_gives(start: Any) -> None:
    bound, other = connect("claude"), connect("claude", "other")
    github, variable = connect("github"), connect("generic", "FIRST")
    profile = bind(("claude", bound), ("github", github), ("generic", variable))
    assert given(start(credentials={"claude": other})) == [other]
    named = {"profileId": profile, "claude": other}
    assert given(start(credentials=named)) == [other, github, variable]


def test_what_stands_beside_the_spec_counts_before_what_stands_in_it(start: Any) -> None:
    claude, other = connect("claude"), connect("claude", "other")
    spec = {"harness": {"id": "shell"}, "credentials": {"claude": claude}}
    answer = start(spec=spec)
    assert given(answer) == [claude]
    assert given(start(spec=spec, credentials={"claude": other})) == [other]
    assert "credentials" not in Sandbox.objects.get(pk=answer.body["sandboxId"]).spec


def test_what_a_profile_cannot_give_is_left_out_and_told(start: Any) -> None:
    claude, github, codex = connect("claude"), connect("github"), connect("codex")
    bind(("claude", claude), ("github", github), ("codex", codex))
    mark_invalid(claude)
    delete(codex)
    answer = start()
    assert given(answer) == [github]
    queued = WorkspaceEvent.objects.get(
        attempt_id=answer.body["attemptId"], type=WorkspaceEvent.Type.ATTEMPT_QUEUED
    )
    assert queued.data["connectedAccountIds"] == [github]
    assert queued.data["leftOutConnectedAccountIds"] == [claude, codex]


def test_a_profile_that_gives_one_variable_twice_gives_the_provider_s(start: Any) -> None:
    github, variable = connect("github"), connect("generic", "GH_TOKEN")
    profile = bind(("generic", variable), ("github", github))
    assert given(start()) == [github]
    assert given(start(credentials={"profileId": profile, "generic": ["GH_TOKEN"]})) == [variable]


def test_an_archived_default_profile_gives_nothing(start: Any) -> None:
    bind(("claude", connect("claude")))
    Profile.objects.update(status=Profile.Status.ARCHIVED)
    assert given(start()) == []


def test_a_binding_to_another_owner_s_account_gives_nothing(start: Any) -> None:
    """No code of ours writes such a row, and none follows it."""
    profile = bind()
    foreign = connect("claude", owner="usr_b")
    CredentialBinding.objects.create(profile_id=profile, account_id=foreign, provider="claude")
    assert given(start()) == []


# ---------------------------------------------------------------- what is refused


def test_every_fault_is_told_at_once_with_its_place(start: Any) -> None:
    foreign, invalid, deleted = (
        connect("claude", owner="usr_b"),
        connect("github"),
        connect("codex"),
    )
    variable, other = connect("generic", "FIRST"), connect("claude", "mine")
    mark_invalid(invalid)
    delete(deleted)
    named = {
        "profileId": "none", "claude": foreign, "github": invalid, "codex": deleted,
        "generic": ["UNKNOWN", variable, "FIRST", other],
    }  # fmt: skip
    refused = start(404, credentials=named)
    assert refused.body["code"] == "credentials-not-found"
    assert refused.codes == {
        "/credentials/profileId": "not-found",
        "/credentials/claude": "not-found",
        "/credentials/github": "not-active",
        "/credentials/codex": "not-active",
        "/credentials/generic/0": "not-found",
        "/credentials/generic/2": "repeated",
        "/credentials/generic/3": "provider-mismatch",
    }
    assert not Attempt.objects.exists()
    in_spec = start(404, spec={"harness": {"id": "shell"}, "credentials": named})
    assert set(in_spec.codes) == {f"/spec{place}" for place in refused.codes}


def test_the_answer_as_a_whole_is_that_of_the_first_kind_of_fault(start: Any) -> None:
    invalid, github = connect("claude"), connect("github")
    mark_invalid(invalid)
    unfit = start(409, credentials={"claude": invalid})
    assert unfit.body["code"] == "connected-account-not-active"
    wrong = start(400, credentials={"claude": github})
    assert (wrong.body["code"], wrong.codes) == (
        "validation-failed", {"/credentials/claude": "provider-mismatch"},
    )  # fmt: skip
    both = start(400, credentials={"claude": invalid, "codex": github})
    assert set(both.codes.values()) == {"not-active", "provider-mismatch"}
    profile = bind()
    Profile.objects.update(status=Profile.Status.ARCHIVED)
    archived = start(409, credentials={"profileId": profile, "claude": invalid})
    assert archived.body["code"] == "profile-archived"


def test_two_accounts_that_set_one_variable_are_refused(start: Any) -> None:
    connect("github")
    connect("generic", "GITHUB_TOKEN")
    refused = start(400, credentials={"github": "default", "generic": ["GITHUB_TOKEN"]})
    assert refused.codes == {"/credentials/generic/0": "repeated"}


def test_another_owner_s_profile_is_absent(start: Any) -> None:
    profile = bind(owner="usr_b")
    for named in (profile, str(uuid.uuid4()), "default"):
        refused = start(404, credentials={"profileId": named})
        assert refused.codes == {"/credentials/profileId": "not-found"}


@pytest.mark.parametrize(
    ("credentials", "places"),
    [
        (5, {"/credentials"}),
        ([], {"/credentials"}),
        ({"claud": "x"}, {"/credentials/claud"}),
        ({"claude": 5}, {"/credentials/claude"}),
        ({"claude": ["x"]}, {"/credentials/claude"}),
        ({"generic": "x"}, {"/credentials/generic"}),
        ({"generic": ["", 5]}, {"/credentials/generic/0", "/credentials/generic/1"}),
        ({"generic": ["x"] * 101}, {"/credentials/generic"}),
    ],
)
def test_credentials_of_another_shape_are_refused(
    start: Any, credentials: Any, places: set[str]
) -> None:
    assert set(start(400, credentials=credentials).codes) == places


# ---------------------------------------------------------------- again


def test_a_workspace_started_again_is_given_what_it_had(start: Any) -> None:
    claude, github = connect("claude"), connect("github")
    first = start(credentials={"claude": claude})
    bind(("github", github))
    end(first)
    workspace = first.body["workspaceId"]
    second = start(workspaceId=workspace, relation="resume")
    assert given(second) == [claude]
    end(second)
    anew = start(workspaceId=workspace, credentials={"github": github})
    assert given(anew) == [github]
    end(anew)
    assert given(start(workspaceId=workspace, credentials={})) == []


def test_an_operator_s_retry_is_given_what_the_sandbox_had(start: Any) -> None:
    claude = connect("claude")
    first = start(credentials={"claude": claude})
    end(first)
    sandbox = Sandbox.objects.get(pk=first.body["sandboxId"])
    job = retry_sandbox(sandbox, requested_by="op")
    references = CredentialReference.objects.filter(attempt=job.attempt)
    assert [str(one.account_id) for one in references] == [claude]


def test_starting_again_with_an_account_that_ended_asks_for_another(start: Any) -> None:
    claude = connect("claude")
    first = start(credentials={"claude": claude})
    end(first)
    delete(claude)
    workspace = first.body["workspaceId"]
    refused = start(409, workspaceId=workspace)
    assert refused.body["code"] == "connected-account-not-active"
    assert refused.codes == {"/credentials": "not-active"}
    with pytest.raises(Conflict):
        retry_sandbox(Sandbox.objects.get(pk=first.body["sandboxId"]), requested_by="op")
    assert given(start(workspaceId=workspace, credentials={})) == []


def test_starting_another_owner_s_workspace_again_tells_nothing_of_its_accounts(start: Any) -> None:
    first = start(credentials={"claude": connect("claude")})
    end(first)
    refused = start(404, workspaceId=first.body["workspaceId"], ownerUserId="usr_b")
    assert refused.body["code"] == "workspace-not-found"


def test_no_key_is_needed_to_ask_for_a_workspace(start: Any, settings: Settings) -> None:
    claude = connect("claude")
    settings.SVC_CREDENTIALS_KEY = ""
    assert given(start(credentials={"claude": claude})) == [claude]
    assert Attempt.objects.get().requested_by == OWNER
