"""Erasing an owner takes everything that is his, and nothing of anybody else."""

from __future__ import annotations

import base64
import uuid
from io import StringIO

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from accounts.models import ConnectedAccount, Profile, RenewedSecret, SshKey
from builds import erasure, erasure_page
from builds.erasure import StillThere, erase_owner
from registries.services import configured_registry
from runs.models import Run
from runs.services import create_boot_run
from scm.models import Installation, InstallationGrant
from tests.conftest import OWNER
from tests.registries.images import push_image
from tests.runs.record_factory import make_run, record
from tests.security.owned import Place, contents, fill
from workspaces import services as workspaces
from workspaces.models import (
    Attempt,
    BuildJob,
    PublishedRepository,
    Sandbox,
    Transition,
    WarmMember,
    WarmPlan,
    Workspace,
)

pytestmark = pytest.mark.django_db(transaction=True)

OTHER = "usr_other"


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture
def repository() -> str:
    return f"tests/erase-{uuid.uuid4().hex}"


@pytest.fixture
def place() -> Place:
    """What the owner has, with a record of his own and of his boot."""
    place = fill()
    record(Run.objects.get(mode=Run.Mode.BOOT, owner_user_id=OWNER))
    return place


def publish(attempt: Attempt, repository: str, tag: str, digest: str) -> None:
    """Say that the attempt's job has published an image."""
    BuildJob.objects.filter(attempt=attempt).update(
        repository=repository, tag=tag, published_digest=digest
    )


def fail(attempt: Attempt, repository: str, tag: str, error_code: str = "push-failed") -> None:
    """Say that the attempt's job has failed and published nothing."""
    BuildJob.objects.filter(attempt=attempt).update(
        repository=repository,
        tag=tag,
        status="failed",
        error_code=error_code,
        error_message="It failed.",
        published_digest="",
    )


def other_owners() -> Attempt:
    """Let somebody else have a workspace, a record and a key; return the attempt."""
    workspace = workspaces.create_workspace(owner_user_id=OTHER, name="Other")
    sandbox = Sandbox.objects.create(
        workspace=workspace,
        owner_user_id=OTHER,
        registry_id="default",
        repository="tests/other",
        tag="latest",
        spec={"harness": {"id": "shell"}},
    )
    attempt = workspaces.create_attempt(
        sandbox=sandbox,
        relation=Sandbox.Relation.LAUNCH,
        trigger_type=Attempt.TriggerType.API,
        requested_by=OTHER,
    )
    create_boot_run(attempt)
    BuildJob.objects.create(
        attempt=attempt, registry_id="default", repository="a", tag="b", max_attempts=3
    )
    record(make_run(workspace=workspace, owner_user_id=OTHER))
    return attempt


def workers_are_done() -> None:
    """Write what the workers write once they have carried the deletes out."""
    Workspace.objects.filter(owner_user_id=OWNER).update(deleted_at=Now())
    Transition.objects.filter(workspace__owner_user_id=OWNER).update(finished_at=Now())


def holds(owner: str) -> list[str]:
    """Return the tables in which the owner's name still stands."""
    found = []
    with connection.cursor() as cursor:
        for table in contents():
            cursor.execute(f'SELECT 1 FROM "{table}" AS t WHERE t::text LIKE %s', [f"%{owner}%"])  # noqa: S608
            if cursor.fetchone():
                found.append(table)
    return found


def test_nothing_is_left_of_an_owner_and_everything_of_the_others(
    place: Place, repository: str
) -> None:
    digest = push_image(repository, "mine")
    publish(Attempt.objects.get(pk=place.ids["attemptId"]), repository, "mine", digest)
    assert PublishedRepository.objects.claim("default", repository, owner_user_id=OWNER)
    other_owners()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM run_event")
        (events,) = cursor.fetchone()
    before = holds(OTHER)
    with pytest.raises(StillThere, match="workspaces being deleted: 1"):
        erase_owner(OWNER, wait_seconds=0)
    assert Transition.objects.get().kind == Transition.Kind.DELETE
    assert not SshKey.objects.filter(owner_user_id=OWNER).exists()
    assert not ConnectedAccount.objects.filter(owner_user_id=OWNER, sealed__isnull=False).exists()
    assert not RenewedSecret.objects.exists()
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    assert holds(OWNER) == []
    assert holds(OTHER) == before
    assert Installation.objects.get().holder_user_id == ""
    assert erased.tags == [f"{repository}:mine"]
    assert (erased.rows["record"], erased.rows["run"], erased.rows["workspace"]) == (2, 2, 1)
    client = configured_registry()
    assert client.head_manifest(repository, digest) is None
    client.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM run_event")
        (left,) = cursor.fetchone()
    assert 0 < left < events
    again = erase_owner(OWNER, wait_seconds=0)
    assert (sum(again.rows.values()), again.tags) == (0, [])


def test_what_waits_with_the_owners_image_is_not_wanted_any_more(
    place: Place, repository: str
) -> None:
    assert PublishedRepository.objects.claim("default", repository, owner_user_id=OWNER)
    digest = "sha256:" + "0" * 64
    plans = {
        name: WarmPlan.objects.create(
            key=name, shape={"image": f"registry.invalid/{name}@{digest}"}
        )
        for name in (repository, f"{repository}-other", f"others/{repository}", "tests/other")
    }
    for plan in plans.values():
        WarmMember.objects.create(plan=plan, engine_id="engine")
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    assert (erased.rows["warm plan"], erased.rows["warm member"]) == (1, 1)
    assert repository not in set(WarmMember.objects.values_list("plan_id", flat=True))
    assert WarmMember.objects.count() == 3


def test_an_image_that_somebody_else_has_as_well_stays(place: Place, repository: str) -> None:
    digest = push_image(repository, "shared")
    publish(Attempt.objects.get(pk=place.ids["attemptId"]), repository, "shared", digest)
    publish(other_owners(), repository, "shared", digest)
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    assert erased.tags == []
    assert erased.kept_tags == [f"{repository}:shared (another owner or a foreign tag uses it)"]
    client = configured_registry()
    assert client.head_manifest(repository, "shared") == digest
    client.close()
    assert holds(OWNER) == []


@pytest.mark.parametrize("error_code", ["push-failed", "unsupported-package"])
def test_an_image_that_no_job_published_stays_and_is_named(
    place: Place, repository: str, error_code: str
) -> None:
    """Somebody may have pushed it by hand, under the tag that a job asked for."""
    digest = push_image(repository, "base")
    fail(Attempt.objects.get(pk=place.ids["attemptId"]), repository, "base", error_code)
    assert PublishedRepository.objects.claim("default", repository, owner_user_id=OWNER)
    assert erasure.would_erase(OWNER).tags == []
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    told = f"{repository}:base (no job has published it, so it may be another's)"
    assert (erased.tags, erased.kept_tags) == ([], [told])
    client = configured_registry()
    assert client.head_manifest(repository, "base") == digest
    client.close()
    assert holds(OWNER) == []


@pytest.mark.parametrize(
    ("error_code", "goes"), [("push-failed", True), ("unsupported-package", False)]
)
def test_a_tag_keeps_an_image_unless_a_push_of_the_owners_wrote_it(
    place: Place, repository: str, error_code: str, goes: bool
) -> None:
    digest = push_image(repository, "good")
    attempt = Attempt.objects.get(pk=place.ids["attemptId"])
    publish(attempt, repository, "good", digest)
    BuildJob.objects.create(
        attempt=attempt,
        registry_id="default",
        repository=repository,
        tag="release",
        max_attempts=3,
        status="failed",
        error_code=error_code,
        error_message="It failed.",
        finished_at=Now(),
    )
    client = configured_registry()
    assert client.copy(repository, digest, repository, "release")
    assert erasure.would_erase(OWNER).tags == [f"{repository}:good"]
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    kept = [f"{repository}:good (another owner or a foreign tag uses it)"]
    assert (erased.tags, erased.kept_tags) == (([f"{repository}:good"], []) if goes else ([], kept))
    assert (client.head_manifest(repository, digest) is None) is goes
    client.close()


def test_what_is_in_a_repository_that_the_owner_never_published_to_stays(
    place: Place, repository: str
) -> None:
    digest = push_image(repository, "theirs")
    fail(Attempt.objects.get(pk=place.ids["attemptId"]), repository, "theirs")
    workers_are_done()
    assert erase_owner(OWNER, wait_seconds=0).tags == []
    client = configured_registry()
    assert client.head_manifest(repository, "theirs") == digest
    client.close()


def test_a_registry_that_is_away_stops_it_before_a_row_is_lost(
    place: Place, settings: Settings
) -> None:
    publish(Attempt.objects.get(pk=place.ids["attemptId"]), "a/b", "c", "sha256:" + "0" * 64)
    workers_are_done()
    address, settings.REGISTRY_BASE_URL = settings.REGISTRY_BASE_URL, "http://127.0.0.1:1"
    with pytest.raises(StillThere, match="image could not be removed"):
        erase_owner(OWNER, wait_seconds=0)
    assert BuildJob.objects.exists()
    settings.REGISTRY_BASE_URL = address
    erase_owner(OWNER, wait_seconds=0)
    assert holds(OWNER) == []


def test_the_command_tells_what_would_go_and_changes_nothing(place: Place) -> None:
    before, out = contents(), StringIO()
    call_command("eraseowner", OWNER, "--dry-run", stdout=out)
    assert contents() == before
    told = out.getvalue()
    for line in ("Would erase:", "workspace: 1", "run: 2", "record: 2", "SSH key: 1"):
        assert line in told


def test_the_command_asks_tells_what_is_left_and_ends_when_it_is_done(place: Place) -> None:
    with pytest.raises(CommandError, match="--yes"):
        call_command("eraseowner", OWNER)
    assert SshKey.objects.filter(owner_user_id=OWNER).exists()
    out = StringIO()
    with pytest.raises(CommandError, match="being deleted"):
        call_command("eraseowner", OWNER, "--yes", "--wait", "0", stdout=out)
    told = out.getvalue()
    for line in ("Erased so far:", "SSH key: 1", "renewed secret: 1"):
        assert line in told
    workers_are_done()
    out = StringIO()
    call_command("eraseowner", OWNER, "--yes", "--wait", "0", stdout=out)
    assert "workspace: 1" in out.getvalue()
    assert holds(OWNER) == []


def test_what_begins_meanwhile_is_ended_before_it_is_erased(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script of the owner's goes on asking while his images are removed."""
    remove_images = erasure._remove_images

    def slowly(owner: str, erased: erasure.Erased) -> None:
        remove_images(owner, erased)
        workspace = workspaces.create_workspace(owner_user_id=OWNER, name="Late")
        make_run(workspace=workspace, status=Run.Status.RUNNING)

    with pytest.raises(StillThere):
        erase_owner(OWNER, wait_seconds=0)
    workers_are_done()
    monkeypatch.setattr(erasure, "_remove_images", slowly)
    with pytest.raises(StillThere, match="New work began"):
        erase_owner(OWNER, wait_seconds=0)
    assert Run.objects.get().status == Run.Status.RUNNING
    assert Workspace.objects.get().name == "Late"


def test_keys_and_profiles_that_come_meanwhile_go_as_well(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of both opens something, so nothing but the last step may be sure of them."""
    remove_images = erasure._remove_images
    key = SshKey.objects.get(owner_user_id=OWNER)

    def slowly(owner: str, erased: erasure.Erased) -> None:
        remove_images(owner, erased)
        key.save(force_insert=True)
        Profile.objects.create(owner_user_id=OWNER, slug="late", name="Late")

    workers_are_done()
    monkeypatch.setattr(erasure, "_remove_images", slowly)
    erased = erase_owner(OWNER, wait_seconds=0)
    assert holds(OWNER) == []
    assert erased.rows["SSH key"] == 2


@pytest.fixture
def operator() -> Client:
    """A signed-in superuser."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    return client


def test_the_admins_history_forgets_the_owner_and_no_other(
    place: Place, operator: Client, repository: str
) -> None:
    assert PublishedRepository.objects.claim("default", repository, owner_user_id=OWNER)
    row = PublishedRepository.objects.get(name=repository)
    freed = reverse("admin:workspaces_publishedrepository_delete", args=[row.pk])
    assert operator.post(freed, {"post": "yes"}).status_code == 302
    bindings = {"bindings-TOTAL_FORMS": 0, "bindings-INITIAL_FORMS": 0}
    for owner in (OWNER, OTHER):
        profile = {"owner_user_id": owner, "slug": "team", "name": "T", "status": "active"}
        added = operator.post(reverse("admin:accounts_profile_add"), {**profile, **bindings})
        assert added.status_code == 302
    installation = Installation.objects.get()
    for owner in (f"{OWNER}2", OTHER):
        grants = {
            "grants-TOTAL_FORMS": 1,
            "grants-INITIAL_FORMS": 0,
            "grants-0-installation": str(installation.pk),
            "grants-0-owner_user_id": owner,
        }
        page = reverse("admin:scm_installation_change", args=[installation.pk])
        assert operator.post(page, grants).status_code == 302
    grant = InstallationGrant.objects.get(owner_user_id=OWNER)
    dropped = {**grants, "grants-INITIAL_FORMS": 1, "grants-0-owner_user_id": OWNER}
    dropped |= {"grants-0-id": str(grant.pk), "grants-0-DELETE": "on"}
    assert operator.post(page, dropped).status_code == 302
    assert LogEntry.objects.count() == 6
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    assert erased.rows["log entry"] == 3
    kept = LogEntry.objects.order_by("pk").values_list("object_repr", flat=True)
    assert list(kept) == [f"team of {OTHER}", str(installation), str(installation)]


def test_the_admins_history_forgets_an_owner_whose_name_it_cut_off(
    place: Place, operator: Client
) -> None:
    for name, owner in (("a" * 190, OWNER), ("a" * 192, f"other_{OWNER}")):
        assert PublishedRepository.objects.claim("default", name, owner_user_id=owner)
        row = PublishedRepository.objects.get(name=name)
        freed = reverse("admin:workspaces_publishedrepository_delete", args=[row.pk])
        assert operator.post(freed, {"post": "yes"}).status_code == 302
    lines = LogEntry.objects.order_by("pk").values_list("object_repr", flat=True)
    assert list(lines) == ["a" * 190 + f" of {OWNER[:6]}", "a" * 192 + " of othe"]
    workers_are_done()
    assert erase_owner(OWNER, wait_seconds=0).rows["log entry"] == 1
    assert list(lines.all()) == ["a" * 192 + " of othe"]


def test_the_page_shows_what_there_is_and_erases_when_the_name_is_repeated(
    place: Place, operator: Client
) -> None:
    page = reverse("erase_owner")
    before = contents()
    shown = operator.get(page, {"owner": OWNER}).content.decode()
    assert "<li>workspace: 1</li>" in shown
    assert "<li>SSH key: 1</li>" in shown
    refused = operator.post(page, {"owner": OWNER, "repeated": "usr_tset"}).content.decode()
    assert "The name was not repeated, so nothing was erased." in refused
    assert {name: rows for name, rows in contents().items() if rows != before[name]} == {}
    workers_are_done()
    done = operator.post(page, {"owner": OWNER, "repeated": OWNER}).content.decode()
    assert "<li>run: 2</li>" in done
    assert "Erase again" not in done
    assert holds(OWNER) == []
    assert LogEntry.objects.get().object_repr == "an owner"


def test_the_page_goes_on_where_workers_have_to_end_something(
    place: Place, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure_page, "WAIT_SECONDS", 0.0)
    form = {"owner": OWNER, "repeated": OWNER}
    began = operator.post(reverse("erase_owner"), form).content.decode()
    assert "workspaces being deleted: 1" in began
    assert "Erase again" in began
    workers_are_done()
    assert "<li>workspace: 1</li>" in operator.post(reverse("erase_owner"), form).content.decode()
    assert holds(OWNER) == []


def test_only_superusers_erase() -> None:
    page = reverse("erase_owner")
    assert Client().post(page, {"owner": OWNER, "repeated": OWNER}).status_code == 302
    staff = Client()
    staff.force_login(get_user_model().objects.create_user("bob", password="x", is_staff=True))
    assert staff.get(page).status_code == 403
    assert staff.post(page, {"owner": OWNER, "repeated": OWNER}).status_code == 403
