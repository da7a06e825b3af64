"""Erasing an owner: everything that this installation has of one, in an order that can be repeated.

Keys and secrets go first, so that nobody enters or uses anything any more. Workspaces are deleted
as their owner would delete them, by the build workers; once they are, records, images and rows go.
A command that dies in between leaves less than there was, and the next one goes on from there.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.apps import apps
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Length, Now, StrIndex, Substr

from accounts.models import (
    ConnectedAccount,
    CredentialBinding,
    Profile,
    RenewedSecret,
    SshKey,
)
from builds.images.compiler import repository_lock
from controlplane.database.locks import try_advisory_lock
from registries.client import RegistryClient, RegistryError
from registries.services import configured_registry
from runs.models import (
    Run,
    RunChange,
    RunCheckpoint,
    RunHead,
    RunLoss,
    RunOwner,
    RunProcess,
    RunQuerySet,
)
from runs.record.retention import prune
from scm.models import Installation, InstallationGrant
from workspaces.lifecycle.transitions import TransitionRequest, request_transition
from workspaces.models import (
    BuildJob,
    PublishedRepository,
    SandboxRequest,
    Transition,
    WarmPlan,
    Workspace,
)

log = structlog.get_logger(__name__)

BATCH = 50
"""Runs or workspaces whose rows go in one transaction."""
_LOOK_AGAIN_SECONDS = 1.0
_HISTORY_LENGTH = 200
"""So many characters Django's admin stores of what an object is called."""


class StillThere(Exception):
    """Something has to end or to go first; the text says what. Erasing again goes on."""


@dataclass
class Erased:
    """What went, or would go: rows by the name of their kind, tags, and tags that had to stay."""

    rows: Counter[str] = field(default_factory=Counter)
    tags: list[str] = field(default_factory=list)
    kept_tags: list[str] = field(default_factory=list)
    """With the reason in brackets."""


def would_erase(owner: str) -> Erased:
    """Return what :func:`erase_owner` would take away now; nothing is changed."""
    found = Erased()
    more = (_warm_plans(owner), Workspace.objects.owned_by(owner), _runs(owner))
    for rows in (*_secrets(owner), *_rest(owner), *more):
        found.rows[_name(rows)] += rows.count()
    heads = RunHead.objects.filter(owner_user_id=owner, removed_at__isnull=True)
    found.rows["record"] = heads.count()
    found.tags = sorted({f"{job.repository}:{job.tag}" for job in _published(owner)})
    return found


def erase_owner(owner: str, *, wait_seconds: float, erased: Erased | None = None) -> Erased:
    """Erase everything of ``owner``; return what went.

    ``erased`` is added to, so that it tells what went also when this raises :class:`StillThere`:
    while a workspace or run has not ended after ``wait_seconds``, or an image cannot be removed.
    """
    erased = Erased() if erased is None else erased
    for rows in _secrets(owner):
        _delete(rows, erased)
    _end_everything(owner, wait_seconds)
    _remove_records(owner, erased)
    _delete(_warm_plans(owner), erased)
    _remove_images(owner, erased)
    while _delete_runs(owner, erased) or _delete_workspaces(owner, erased):
        pass
    if _runs(owner).exists() or Workspace.objects.owned_by(owner).exists():
        raise StillThere("New work began in the meantime. Erase again.")
    with transaction.atomic():
        # Keys and profiles again: the owner could still make some while workspaces were ending.
        for rows in (*_secrets(owner), *_rest(owner)):
            _delete(rows, erased)
        Installation.objects.filter(holder_user_id=owner).update(holder_user_id="")
    log.info("owner_erased", rows=sum(erased.rows.values()), tags=len(erased.tags))
    return erased


def _secrets(owner: str) -> list[QuerySet[Any]]:
    """Return what opens something, and is not referred to by what is still there."""
    bindings = CredentialBinding.objects.filter(profile__owner_user_id=owner)
    renewed = RenewedSecret.objects.filter(account__owner_user_id=owner)
    return [SshKey.objects.owned_by(owner), renewed, bindings, Profile.objects.owned_by(owner)]


def _rest(owner: str) -> list[QuerySet[Any]]:
    """Return what may go once the workspaces are gone."""
    return [
        ConnectedAccount.objects.owned_by(owner),
        SandboxRequest.objects.filter(owner_user_id=owner),
        InstallationGrant.objects.filter(owner_user_id=owner),
        RunOwner.objects.filter(owner_user_id=owner),
        PublishedRepository.objects.filter(owner_user_id=owner),
        _admin_history(owner),
    ]


def _admin_history(owner: str) -> QuerySet[LogEntry]:
    """Return what the admin's history says of the owner's grants, profiles and repositories.

    Also of those that are gone: their names tell whose they were. Django cuts a line off; one that
    ends within a name may be of another owner whose name begins alike, and goes as well.
    """
    called = ContentType.objects.get_for_models(Profile, PublishedRepository).values()
    of_grant = json.dumps({"object": owner})[1:-1]
    lines = LogEntry.objects.alias(
        size=Length("object_repr"),
        whose=Substr("object_repr", StrIndex("object_repr", Value(" of ")) + 4),
        wanted=Value(owner),
    )
    return lines.filter(
        Q(content_type__in=called, object_repr__regex=rf"^\S+ of {re.escape(owner)}$")
        | Q(content_type__in=called, object_repr__regex=r"^\S+ of .")
        & Q(size=_HISTORY_LENGTH, wanted__startswith=F("whose"))
        | Q(
            content_type=ContentType.objects.get_for_model(Installation),
            change_message__contains=of_grant,
        )
    )


def _runs(owner: str) -> RunQuerySet:
    return Run.objects.owned_by(owner)


def _published(owner: str) -> QuerySet[BuildJob]:
    jobs = BuildJob.objects.with_image().filter(registry_id=settings.REGISTRY_NAME)
    return jobs.filter(attempt__workspace__owner_user_id=owner)


def _warm_plans(owner: str) -> QuerySet[WarmPlan]:
    """Return what the warm pool knows of images in the owner's repositories.

    Containers that wait for a start of one have its sources: without a row the reconciler removes
    them.
    """
    repositories = PublishedRepository.objects.filter(owner_user_id=owner)
    of_one = Q(pk__in=[])
    for name in repositories.values_list("name", flat=True):
        # Behind the registry's address; another repository's name may end like this one.
        of_one |= Q(shape__image__regex=rf"^[^/]+/{re.escape(name)}@")
    return WarmPlan.objects.filter(of_one)


def _name(rows: QuerySet[Any]) -> str:
    return str(rows.model._meta.verbose_name)


def _delete(rows: QuerySet[Any], erased: Erased) -> int:
    """Delete rows with all that hangs on them, and count each kind."""
    _, by_model = rows.delete()
    for label, count in by_model.items():
        erased.rows[str(apps.get_model(label)._meta.verbose_name)] += count
    return sum(by_model.values())


# ---------------------------------------------------------------- ending


def _end_everything(owner: str, wait_seconds: float) -> None:
    """Have every workspace deleted and every run ended; raise ``StillThere`` when time is over."""
    ConnectedAccount.objects.owned_by(owner).exclude(
        status=ConnectedAccount.Status.ARCHIVED
    ).update(status=ConnectedAccount.Status.ARCHIVED, sealed=None)
    deadline = time.monotonic() + wait_seconds
    while True:
        for workspace in Workspace.objects.owned_by(owner).filter(deleted_at__isnull=True):
            request_transition(
                TransitionRequest(
                    workspace_id=workspace.pk,
                    kind=Transition.Kind.DELETE,
                    owner_user_id=owner,
                    cause=Transition.Cause.OPERATOR,
                )
            )
        _runs(owner).filter(recorded=False).settle(Run.Status.CANCELLED)
        left = _not_ended(owner)
        if not left:
            return
        if time.monotonic() >= deadline:
            raise StillThere(
                f"Still there: {left}. The build and run workers finish them; then erase again."
            )
        time.sleep(_LOOK_AGAIN_SECONDS)


def _not_ended(owner: str) -> str:
    """Say what has not ended; the empty text when everything has."""
    heads = RunHead.objects.filter(owner_user_id=owner, sealed_at__isnull=True)
    counts = {
        "workspaces being deleted": Workspace.objects.owned_by(owner).filter(
            deleted_at__isnull=True
        ),
        "runs that have not ended": _runs(owner).open(),
        "records that are not complete": heads,
    }
    found = {what: rows.count() for what, rows in counts.items()}
    return ", ".join(f"{what}: {count}" for what, count in found.items() if count)


# ---------------------------------------------------------------- removing


def _remove_records(owner: str, erased: Erased) -> None:
    heads = RunHead.objects.filter(owner_user_id=owner, removed_at__isnull=True)
    removed = prune(list(heads.order_by("run_number").values_list("run_number", flat=True)))
    erased.rows["record"] += removed.runs
    numbers = RunHead.objects.filter(owner_user_id=owner).values_list("run_number", flat=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM run_event WHERE run_number = ANY(%s)", [list(numbers)])
        (events,) = cursor.fetchone()
    if events:
        raise StillThere(f"Still there: {events} events that are being read. Erase again.")


def _remove_images(owner: str, erased: Erased) -> None:
    """Remove the owner's images from the registry, but for those that others have as well.

    They are what jobs have published. What else is under a tag that a job asked for is named and
    stays: no row tells whether the job pushed it or somebody else.
    """
    wanted: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    published = _published(owner).values_list("repository", "published_digest", "tag")
    for repository, digest, tag in published:
        wanted[repository, digest].add(tag)
    claimed = PublishedRepository.objects.filter(
        owner_user_id=owner, registry_id=settings.REGISTRY_NAME
    )
    repositories = list(claimed.values_list("name", flat=True))
    if not wanted and not repositories:
        return
    registry = configured_registry()
    try:
        for (repository, digest), tags in sorted(wanted.items()):
            names = [f"{repository}:{tag}" for tag in sorted(tags)]
            _remove_image(registry, owner, repository, digest, names, erased)
        for repository in repositories:
            _name_what_is_left(registry, owner, repository, erased)
    except RegistryError as exc:
        raise StillThere(f"An image could not be removed: {exc}. Erase again.") from exc
    finally:
        registry.close()


def _jobs(owner: str, repository: str) -> QuerySet[BuildJob]:
    return BuildJob.objects.filter(
        registry_id=settings.REGISTRY_NAME,
        repository=repository,
        attempt__workspace__owner_user_id=owner,
    )


def _own_tags(owner: str, repository: str) -> set[str]:
    """Return the tags that jobs of the owner have written, or failed to while they pushed."""
    wrote = ~Q(published_digest="") | Q(error_code="push-failed")
    return set(_jobs(owner, repository).filter(wrote).values_list("tag", flat=True))


def _name_what_is_left(
    registry: RegistryClient, owner: str, repository: str, erased: Erased
) -> None:
    """Name the tags that the registry has and a job that published nothing had asked for."""
    asked = _jobs(owner, repository).filter(published_digest="").values_list("tag", flat=True)
    for tag in sorted(set(asked).intersection(registry.list_tags(repository) or ())):
        name = f"{repository}:{tag}"
        told = any(kept.startswith(f"{name} ") for kept in erased.kept_tags)
        if not told and registry.head_manifest(repository, tag) is not None:
            erased.kept_tags.append(f"{name} (no job has published it, so it may be another's)")


def _remove_image(
    registry: RegistryClient,
    owner: str,
    repository: str,
    digest: str,
    names: list[str],
    erased: Erased,
) -> None:
    same = BuildJob.objects.with_image().filter(repository=repository, published_digest=digest)
    mine = _published(owner).filter(repository=repository, published_digest=digest)
    with try_advisory_lock(repository_lock(repository)) as held:
        if not held:
            raise StillThere(f"An image is being published to {repository}. Erase again.")
        foreign = set(registry.list_tags(repository) or ()) - _own_tags(owner, repository)
        if same.exclude(pk__in=mine).exists() or any(
            registry.head_manifest(repository, tag) == digest for tag in sorted(foreign)
        ):
            erased.kept_tags += [
                f"{name} (another owner or a foreign tag uses it)" for name in names
            ]
            return
        try:
            registry.delete_manifest(repository, digest)
        except RegistryError as exc:
            if exc.upstream_status not in (405, 501):
                raise
            erased.kept_tags += [f"{name} (the registry does not allow deletion)" for name in names]
            return
        mine.update(image_removed_at=Now())
        erased.tags += names


def _delete_runs(owner: str, erased: Erased) -> int:
    """Delete some runs with what is derived of their records; return how many rows."""
    with transaction.atomic():
        with_record = RunHead.objects.filter(run_number=OuterRef("number"), removed_at__isnull=True)
        over = _runs(owner).filter(~Exists(with_record), status__in=Run.TERMINAL)
        runs = over.order_by("number")[:BATCH]
        numbers = list(runs.values_list("number", flat=True))
        for model in (RunChange, RunCheckpoint, RunLoss, RunProcess, RunHead):
            model.objects.filter(run_number__in=numbers).delete()
        return _delete(Run.objects.filter(number__in=numbers), erased)


def _delete_workspaces(owner: str, erased: Erased) -> int:
    """Delete some workspaces with all that was ever started in them; return how many rows."""
    with transaction.atomic():
        gone = Workspace.objects.owned_by(owner).filter(deleted_at__isnull=False, runs__isnull=True)
        ids = list(gone.values_list("pk", flat=True)[:BATCH])
        return _delete(Workspace.objects.filter(pk__in=ids), erased)
