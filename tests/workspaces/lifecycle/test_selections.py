"""A selected repository becomes a plain source in the blueprint, and a reference beside it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from scm.models import Installation, InstallationRepository
from scm.services import import_installation
from tests.conftest import OWNER, Api
from tests.scm.fake_provider import FakeProvider, configure, running_provider
from workspaces.lifecycle.start import retry_sandbox
from workspaces.models import BuildJob, Sandbox, SourceReference, Workspace

pytestmark = pytest.mark.django_db

CREATORS = pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/workspaces"])
MEMBERS = pytest.mark.parametrize("member", ["sourceSelection", "dotfilesSelection"])


@pytest.fixture
def provider(settings: Settings) -> Any:
    """A provider with two repositories in an installation that the owner has imported."""
    with running_provider() as running:
        configure(settings, running)
        running.install("app", "dotfiles", id=7)
        import_installation(7, owner_user_id=OWNER)
        yield running


def row(name: str) -> InstallationRepository:
    return InstallationRepository.objects.get(name=name)


def selection(name: str, **members: Any) -> dict[str, Any]:
    """Return the selection of a repository."""
    found = row(name)
    return {
        "provider": "github",
        "installationId": str(found.installation_id),
        "installationRepositoryId": str(found.pk),
        **members,
    }


def url(provider: FakeProvider, name: str) -> str:
    return f"http://{provider.host}/octo-org/{name}.git"


def stored(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the sources in the stored blueprint, and the references beside it."""
    sandbox = Sandbox.objects.get(pk=answer["sandboxId"])
    rows = SourceReference.objects.filter(sandbox=sandbox)
    return {
        "sources": sandbox.spec["sources"],
        "references": dict(rows.values_list("source_id", "installation_repository__name")),
    }


@CREATORS
def test_a_selected_source_is_stored_with_its_plain_address_and_a_reference(
    api: Api, request_body: dict[str, Any], provider: FakeProvider, path: str
) -> None:
    request_body["spec"]["sources"] = {"workspace": {"url": "https://example.org/replaced"}}
    answer = api.post(path, {**request_body, "sourceSelection": selection("app")})
    found = stored(answer.body)
    assert found["sources"]["workspace"] == {
        "kind": "git",
        "provider": "github",
        "url": url(provider, "app"),
        "ref": "main",
    }
    assert found["references"] == {"workspace": "app"}
    shown = api.get(f"/v1/sandboxes/{answer.body['sandboxId']}").body
    assert shown["spec"]["sources"]["workspace"]["url"] == url(provider, "app")
    assert "authRef" not in str(shown)
    # Nothing is asked for before it is needed.
    assert [issued.repository_ids for issued in provider.issued] == [None]


@CREATORS
def test_selected_dotfiles_take_the_place_of_the_dotfiles_in_the_blueprint(
    api: Api, request_body: dict[str, Any], provider: FakeProvider, path: str
) -> None:
    inputs = [{"id": "mine", "purpose": "dotfiles", "url": "https://example.org/dots"}]
    request_body["spec"]["sources"] = {"inputs": inputs}
    chosen = selection("dotfiles", ref="feature/x")
    found = stored(api.post(path, {**request_body, "dotfilesSelection": chosen}).body)
    source_id = f"dotfiles-{row('dotfiles').pk}"
    (item,) = found["sources"]["inputs"]
    assert (item["id"], item["purpose"]) == (source_id, "dotfiles")
    assert (item["url"], item["ref"]) == (url(provider, "dotfiles"), "feature/x")
    assert found["references"] == {source_id: "dotfiles"}


def test_both_may_be_selected(
    api: Api, request_body: dict[str, Any], provider: FakeProvider
) -> None:
    body = {
        **request_body,
        "sourceSelection": selection("app"),
        "dotfilesSelection": selection("dotfiles"),
    }
    references = stored(api.post("/v1/sandboxes", body).body)["references"]
    assert sorted(references.values()) == ["app", "dotfiles"]


def test_the_name_is_made_of_the_selected_ref(
    api: Api, request_body: dict[str, Any], provider: FakeProvider
) -> None:
    body = {**request_body, "repository": "team/shop", "sourceSelection": selection("app")}
    assert api.post("/v1/sandboxes", body).body["name"] == "Shop Latest Main"


@MEMBERS
@pytest.mark.parametrize(
    ("change", "status", "code", "place"),
    [
        ({"installationRepositoryId": "x"}, 404, "source-repository-not-found", "RepositoryId"),
        (
            {"installationRepositoryId": str(uuid.UUID(int=1))},
            404,
            "source-repository-not-found",
            "RepositoryId",
        ),
        ({"installationId": "x"}, 404, "installation-not-found", "installationId"),
        (
            {"installationId": str(uuid.UUID(int=1))},
            404,
            "installation-not-found",
            "installationId",
        ),
        ({"ref": "a..b"}, 400, "validation-failed", "ref"),
    ],
    ids=["no id", "unknown repository", "no installation", "unknown installation", "ref"],
)
def test_a_selection_that_means_nothing_is_refused_where_it_stands(
    api: Api,
    request_body: dict[str, Any],
    provider: FakeProvider,
    member: str,
    change: dict[str, str],
    status: int,
    code: str,
    place: str,
) -> None:
    body = {**request_body, member: selection("app", **change)}
    answer = api.post("/v1/sandboxes", body, expect=status)
    assert answer.body["code"] == code
    assert all(pointer.startswith(f"/{member}/") for pointer in answer.codes)
    assert any(pointer.endswith(place) for pointer in answer.codes)
    assert not Sandbox.objects.exists()


@MEMBERS
def test_another_owner_gets_nothing_of_an_installation(
    api: Api, request_body: dict[str, Any], provider: FakeProvider, member: str
) -> None:
    body = {**request_body, "ownerUserId": "usr_other", member: selection("app")}
    answer = api.post("/v1/sandboxes", body, expect=404)
    assert answer.body["code"] == "installation-not-found"


@pytest.mark.parametrize("status", ["suspended", "deleted"])
def test_an_installation_that_is_not_active_gives_nothing(
    api: Api, request_body: dict[str, Any], provider: FakeProvider, status: str
) -> None:
    Installation.objects.update(status=status)
    body = {**request_body, "sourceSelection": selection("app")}
    assert api.post("/v1/sandboxes", body, expect=403).body["code"] == "installation-not-active"


@pytest.mark.parametrize("member", ["authRef", "reference", "token", "url"])
def test_no_client_can_say_how_a_source_is_signed_in_to(
    api: Api, request_body: dict[str, Any], provider: FakeProvider, member: str
) -> None:
    chosen = selection("app", **{member: f"github-installation-repository:{row('app').pk}"})
    api.post("/v1/sandboxes", {**request_body, "sourceSelection": chosen}, expect=400)
    source = {"url": url(provider, "app"), member: "x"}
    if member != "url":
        request_body["spec"]["sources"] = {"workspace": source}
        api.post("/v1/sandboxes", request_body, expect=400)
    assert not SourceReference.objects.exists()


def test_naming_the_address_of_a_private_repository_gives_no_access_to_it(
    api: Api, request_body: dict[str, Any], provider: FakeProvider
) -> None:
    request_body["spec"]["sources"] = {"workspace": {"url": url(provider, "app")}}
    assert stored(api.post("/v1/sandboxes", request_body).body)["references"] == {}


class TestTheOrderOfChecks:
    def test_the_registry_and_the_blueprint_come_before_the_selection(
        self, api: Api, request_body: dict[str, Any], provider: FakeProvider
    ) -> None:
        body = {**request_body, "sourceSelection": selection("app", installationId="x")}
        wrong = {**body, "registryId": "other", "spec": {}}
        answer = api.post("/v1/sandboxes", wrong, expect=404)
        assert answer.body["code"] == "registry-not-found"
        answer = api.post("/v1/sandboxes", {**body, "spec": {}}, expect=400)
        assert answer.body["code"] == "validation-failed"

    def test_the_selection_comes_before_the_packages(
        self, api: Api, request_body: dict[str, Any], provider: FakeProvider
    ) -> None:
        request_body["spec"]["tooling"] = {"packages": [{"id": "no-such-package-at-all"}]}
        body = {**request_body, "sourceSelection": selection("app", installationId="x")}
        answer = api.post("/v1/sandboxes", body, expect=404)
        assert answer.body["code"] == "installation-not-found"

    def test_a_repeated_request_is_answered_although_the_selection_means_nothing_any_more(
        self, api: Api, request_body: dict[str, Any], provider: FakeProvider
    ) -> None:
        body = {**request_body, "sourceSelection": selection("app")}
        key = {"idempotency-key": "one"}
        first = api.post("/v1/sandboxes", body, headers=key)
        Installation.objects.update(status="deleted")
        assert api.post("/v1/sandboxes", body, headers=key).body == first.body

    def test_without_an_app_every_selection_is_named(
        self, api: Api, request_body: dict[str, Any]
    ) -> None:
        chosen = {
            "provider": "github",
            "installationId": "1",
            "installationRepositoryId": "2",
        }
        body = {**request_body, "sourceSelection": chosen, "dotfilesSelection": chosen}
        answer = api.post("/v1/sandboxes", body, expect=503)
        assert answer.body["code"] == "scm-app-unconfigured"
        assert set(answer.codes) == {"/sourceSelection", "/dotfilesSelection"}


class TestStartingAgain:
    @pytest.fixture
    def first(
        self, api: Api, request_body: dict[str, Any], provider: FakeProvider
    ) -> dict[str, Any]:
        """A workspace with a selected source, whose first sandbox has failed."""
        body = {**request_body, "sourceSelection": selection("app")}
        answer: dict[str, Any] = api.post("/v1/sandboxes", body).body
        Sandbox.objects.filter(pk=answer["sandboxId"]).update(status="failed")
        return answer

    def again(
        self, api: Api, body: dict[str, Any], first: dict[str, Any], **members: Any
    ) -> dict[str, Any]:
        whole = {**body, "workspaceId": first["workspaceId"], "relation": "rebuild", **members}
        return stored(api.post("/v1/sandboxes", whole).body)

    def test_a_retry_of_the_sandbox_has_its_references(self, first: dict[str, Any]) -> None:
        sandbox = Sandbox.objects.get(pk=first["sandboxId"])
        job = retry_sandbox(sandbox, requested_by="operator")
        assert BuildJob.objects.filter(attempt__sandbox__source_references__isnull=False).count()
        assert job.attempt.sandbox_id == sandbox.pk

    def test_the_same_blueprint_keeps_the_reference(
        self, api: Api, request_body: dict[str, Any], first: dict[str, Any]
    ) -> None:
        spec = api.get(f"/v1/sandboxes/{first['sandboxId']}").body["spec"]
        found = self.again(api, request_body, first, spec=spec)
        assert found["references"] == {"workspace": "app"}

    def test_another_source_has_none(
        self, api: Api, request_body: dict[str, Any], first: dict[str, Any]
    ) -> None:
        spec = {
            "harness": {"id": "shell"},
            "sources": {"workspace": {"url": "https://example.org/other"}},
        }
        assert self.again(api, request_body, first, spec=spec)["references"] == {}

    def test_another_selection_has_its_own(
        self, api: Api, request_body: dict[str, Any], first: dict[str, Any]
    ) -> None:
        chosen = selection("dotfiles")
        found = self.again(api, request_body, first, sourceSelection=chosen)
        assert found["references"] == {"workspace": "dotfiles"}

    def test_another_owners_workspace_gives_no_reference(
        self, api: Api, request_body: dict[str, Any], first: dict[str, Any]
    ) -> None:
        spec = Sandbox.objects.get(pk=first["sandboxId"]).spec
        body = {
            **request_body,
            "ownerUserId": "usr_other",
            "workspaceId": first["workspaceId"],
            "spec": spec,
        }
        api.post("/v1/sandboxes", body, expect=404)
        assert SourceReference.objects.count() == 1
        assert Workspace.objects.count() == 1
