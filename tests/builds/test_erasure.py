"""Erasing an owner takes everything that is his, and nothing of anybody else."""

from __future__ import annotations

import base64
import uuid
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from pytest_django.fixtures import Settings

from accounts.models import ConnectedAccount, SshKey
from builds.erasure import StillThere, erase_owner
from registries.client import RegistryClient
from runs.models import Run
from runs.services import create_boot_run
from scm.models import Installation
from tests.conftest import OWNER
from tests.registries.images import BASE_URL, push_image
from tests.runs.record_factory import make_run, record
from tests.security.owned import Place, contents, fill
from workspaces import services as workspaces
from workspaces.models import Attempt, BuildJob, Sandbox, Transition, Workspace

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
    other_owners()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM run_event")
        (events,) = cursor.fetchone()
    before = holds(OTHER)
    with pytest.raises(StillThere, match="1 workspaces that are being deleted"):
        erase_owner(OWNER, wait_seconds=0)
    assert Transition.objects.get().kind == Transition.Kind.DELETE
    assert not SshKey.objects.filter(owner_user_id=OWNER).exists()
    assert ConnectedAccount.objects.get(owner_user_id=OWNER).sealed is None
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    assert holds(OWNER) == []
    assert holds(OTHER) == before
    assert Installation.objects.get().holder_user_id == ""
    assert erased.tags == [f"{repository}:mine"]
    assert (erased.rows["record"], erased.rows["run"], erased.rows["workspace"]) == (2, 2, 1)
    client = RegistryClient(BASE_URL)
    assert client.head_manifest(repository, digest) is None
    client.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM run_event")
        (left,) = cursor.fetchone()
    assert 0 < left < events
    again = erase_owner(OWNER, wait_seconds=0)
    assert (sum(again.rows.values()), again.tags) == (0, [])


def test_an_image_that_somebody_else_has_as_well_stays(place: Place, repository: str) -> None:
    digest = push_image(repository, "shared")
    publish(Attempt.objects.get(pk=place.ids["attemptId"]), repository, "shared", digest)
    publish(other_owners(), repository, "shared", digest)
    workers_are_done()
    erased = erase_owner(OWNER, wait_seconds=0)
    assert erased.tags == []
    assert erased.kept_tags == [f"{repository}:shared (others have this image)"]
    client = RegistryClient(BASE_URL)
    assert client.head_manifest(repository, "shared") == digest
    client.close()
    assert holds(OWNER) == []


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
    assert "Erased so far:\n  SSH key: 1" in out.getvalue().replace("  Profile: 1\n", "")
    workers_are_done()
    out = StringIO()
    call_command("eraseowner", OWNER, "--yes", "--wait", "0", stdout=out)
    assert "workspace: 1" in out.getvalue()
    assert holds(OWNER) == []
