"""Looking after the accounts in workspaces that run, as long as they run.

Three tasks, again and again: give a workspace that its engine has started again what it waits for;
take accounts away that were deleted or marked invalid meanwhile; and propose to the owner what a
tool has renewed, since a renewal makes the secret before it worthless. One worker of an engine is
at it at a time.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TypeVar

import structlog
from django.db import (
    DatabaseError,
    InterfaceError,
    close_old_connections,
    connections,
    transaction,
)
from django.db.models import Exists, OuterRef, Prefetch, Q
from django.db.models.functions import Now

from accounts import delivery
from accounts.delivery import DeliveryError
from accounts.models import ConnectedAccount
from accounts.renewal import RENEWING, Renewal, propose_renewed
from accounts.resolution import Reference
from accounts.sealing import SealError
from controlplane.database.locks import try_advisory_lock
from workspaces import services as workspaces
from workspaces.credentials.documents import as_delivered, document_of, note_delivered
from workspaces.models import Attempt, CredentialReference, RuntimeInstance, WorkspaceEvent
from workspaces.runtimes import credentials
from workspaces.runtimes.base import LaunchError, RenewedCredential, RuntimeAdapter

log = structlog.get_logger(__name__)

T = TypeVar("T")

ACTIVE = ConnectedAccount.Status.ACTIVE
DELIVERY_LASTS = timedelta(seconds=2 * credentials.SECONDS)
"""From opening the accounts until the workspace surely has them, or never gets them."""
OWNERS_AT_ONCE = 4
"""Whose workspaces are asked at the same time; each owner's are asked one after the other."""
ROUND_SECONDS = 60.0
"""When a round asks nobody's next workspace any more: the next round is soon."""

_rounds = itertools.count()


@dataclass(slots=True)
class Upkeep:
    """What one round did."""

    delivered: int = 0
    """Workspaces that had waited."""
    withdrawn: int = 0
    """Accounts taken away, in all workspaces."""
    renewed: int = 0
    """Secrets that were proposed to their owners."""

    def __add__(self, other: Upkeep) -> Upkeep:
        """Return what two did together."""
        return Upkeep(
            self.delivered + other.delivered,
            self.withdrawn + other.withdrawn,
            self.renewed + other.renewed,
        )


def look_after_credentials(
    adapter: RuntimeAdapter, stopped: threading.Event, *, instance_id: str
) -> Upkeep:
    """Go through the running workspaces of one engine once, unless another worker is at it.

    A workspace that does not answer takes the time of its owner alone, and a round has an end; what
    it has left out comes first in one of the next. Raises ``LaunchError`` when the engine cannot be
    asked at all, and what went wrong for a reason of ours when all others were looked after.
    """
    engine_id = adapter.engine_id()
    with try_advisory_lock(f"credentials:{instance_id}:{engine_id}") as held:
        if not held:
            return Upkeep()
        done = _Round(adapter, stopped).look_after(_by_owner(_running(engine_id)))
    if done != Upkeep():
        log.info("credentials_looked_after", **asdict(done))
    return done


def _by_owner(attempts: Sequence[Attempt]) -> list[list[Attempt]]:
    """Return each owner's attempts, in every round from another one on."""
    owned: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        owned.setdefault(attempt.workspace.owner_user_id, []).append(attempt)
    number = next(_rounds)
    return _from(number, [_from(number, mine) for mine in owned.values()])


def _from(number: int, members: list[T]) -> list[T]:
    """Return the same members, beginning with another one."""
    first = number % len(members) if members else 0
    return members[first:] + members[:first]


class _Round:
    """One round: several owners at a time, and of each owner one workspace at a time."""

    def __init__(self, adapter: RuntimeAdapter, stopped: threading.Event) -> None:
        self._adapter = adapter
        self._stopped = stopped
        self._until = time.monotonic() + ROUND_SECONDS
        self._owners: queue.SimpleQueue[list[Attempt]] = queue.SimpleQueue()
        self._faults: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def look_after(self, owners: Sequence[list[Attempt]]) -> Upkeep:
        """Look after all of them, as far as time allows."""
        for attempts in owners:
            self._owners.put(attempts)
        at_once = min(len(owners), OWNERS_AT_ONCE)
        if not at_once:
            return Upkeep()
        with ThreadPoolExecutor(at_once, thread_name_prefix="credentials") as pool:
            rounds = [pool.submit(self._take) for _ in range(at_once)]
        if not self._faults.empty():
            raise self._faults.get()
        return sum((each.result() for each in rounds), Upkeep())

    def _take(self) -> Upkeep:
        """Look after the workspaces of one owner after the other."""
        done = Upkeep()
        try:
            while True:
                self._of_owner(self._owners.get_nowait(), done)
        except queue.Empty:
            return done
        finally:
            connections.close_all()

    def _of_owner(self, attempts: Sequence[Attempt], done: Upkeep) -> None:
        for number, attempt in enumerate(attempts):
            # Of every owner one, however long the round has taken.
            if self._stopped.is_set() or (number and time.monotonic() >= self._until):
                return
            try:
                _look_after(self._adapter, attempt, done)
            except (LaunchError, DeliveryError) as exc:
                if _is_launching(attempt) and exc.code == "runtime-gone":
                    continue  # its container is not there yet, or on another engine
                log.warning(
                    "credentials_not_looked_after", run_id=str(attempt.run_id), code=exc.code
                )
            except Exception as exc:
                self._faults.put(exc)
                close_old_connections()  # one that was lost would fail all that come after


def _running(engine_id: str) -> Sequence[Attempt]:
    """Return the attempts whose workspace runs on this engine and is given accounts.

    Also those that are being launched, perhaps here: their steps may take an hour.
    """
    running = RuntimeInstance.objects.expected_to_run(engine_id=engine_id)
    launching = Q(status=Attempt.Status.RUNNING, runtime__status=RuntimeInstance.Status.PENDING)
    references = CredentialReference.objects.select_related("account").order_by("pk")
    given = CredentialReference.objects.filter(attempt=OuterRef("pk"))
    return list(
        Attempt.objects.filter(Exists(given), Q(runtime__in=running) | launching)
        .select_related("workspace")
        .order_by("pk")
        .prefetch_related(Prefetch("credentials", references))
    )


def _is_launching(attempt: Attempt) -> bool:
    return attempt.status == Attempt.Status.RUNNING


def _look_after(adapter: RuntimeAdapter, attempt: Attempt, done: Upkeep) -> None:
    references = list(attempt.credentials.all())
    # The worker that launches a workspace gives it its accounts.
    if (
        not _is_launching(attempt)
        and attempt.is_persistent
        and adapter.waits_for_credentials(attempt.run_id)
    ):
        _deliver_again(adapter, attempt)
        done.delivered += 1
        return
    done.withdrawn += _withdraw(adapter, attempt, references)
    if any(_renews(reference) for reference in references):
        done.renewed += _collect(adapter, attempt, references)


def _renews(reference: CredentialReference) -> bool:
    """Whether the workspace may have a later state of the account than we have."""
    account = reference.account
    return (
        account.provider in RENEWING
        and account.status == ACTIVE
        and account.generation == reference.delivered_generation
    )


def _deliver_again(adapter: RuntimeAdapter, attempt: Attempt) -> None:
    """Give a workspace that was started again what can be given; the rest it goes on without."""
    left_out: dict[str, str] = {}

    def leave_out(reference: Reference, reason: DeliveryError) -> None:
        left_out[str(reference.account_id)] = reason.code

    with transaction.atomic():
        opened = delivery.open_accounts(
            workspaces.references_of(attempt),
            owner_user_id=attempt.workspace.owner_user_id,
            workspace_id=attempt.workspace_id,
            leave_out=leave_out,
        )
        note_delivered(attempt, opened)
        opened = as_delivered(attempt, opened)
    adapter.deliver_credentials(attempt.run_id, document_of(opened))
    delivery.stamp_used(opened)
    workspaces.record_event(
        attempt,
        WorkspaceEvent.Type.CREDENTIALS_DELIVERED,
        "The engine restarted the workspace, which was given its connected accounts again.",
        {
            "connectedAccountIds": [str(account.account_id) for account in opened],
            **({"leftOut": left_out} if left_out else {}),
        },
    )


def _withdraw(
    adapter: RuntimeAdapter, attempt: Attempt, references: Sequence[CredentialReference]
) -> int:
    """Take away what its owner has deleted or marked invalid since; return how many accounts."""
    over = [
        reference
        for reference in references
        if reference.account.status != ACTIVE
        and reference.delivered_at is not None
        and reference.withdrawn_at is None
    ]
    if not over:
        return 0
    adapter.withdraw_credentials(attempt.run_id, [reference.account_id for reference in over])
    # Written afterwards: a worker that dies in between has it done again, which is harmless.
    done = CredentialReference.objects.filter(pk__in=[reference.pk for reference in over])
    if _is_launching(attempt):
        # The worker that launches may have opened them, and deliver them only after this.
        done = done.filter(delivered_at__lte=Now() - DELIVERY_LASTS)
    with transaction.atomic():
        ids = done.order_by("pk").values_list("account_id", flat=True)
        taken = [str(account_id) for account_id in ids]
        if taken:
            done.update(withdrawn_at=Now())
            workspaces.record_event(
                attempt,
                WorkspaceEvent.Type.CREDENTIALS_WITHDRAWN,
                "Connected accounts that were deleted or marked invalid were removed from the "
                "workspace.",
                {"connectedAccountIds": taken},
            )
    return len(over)


def keep_renewed(adapter: RuntimeAdapter, run_id: uuid.UUID) -> None:
    """Keep what a workspace has renewed, just before it is stopped.

    Takes a bounded time and raises nothing: what cannot be read is lost with the workspace.
    """
    try:
        attempt = Attempt.objects.filter(run_id=run_id).first()
        references = list(attempt.credentials.select_related("account")) if attempt else []
        if attempt and any(_renews(reference) for reference in references):
            _collect(adapter, attempt, references)
    except (LaunchError, DatabaseError, InterfaceError) as exc:
        log.warning("credentials_not_kept", run_id=str(run_id), reason=type(exc).__name__)
    except Exception:
        log.exception("credentials_not_kept", run_id=str(run_id))


def _collect(
    adapter: RuntimeAdapter, attempt: Attempt, references: Sequence[CredentialReference]
) -> int:
    given = {reference.account_id: reference for reference in references if _renews(reference)}
    found = adapter.collect_credentials(attempt.run_id)
    return sum(_keep(attempt, given.get(one.account_id), one) for one in found)


def _keep(
    attempt: Attempt, reference: CredentialReference | None, found: RenewedCredential
) -> bool:
    """Keep one secret out of a workspace, if it is of an account that this workspace was given."""
    facts = {"run_id": str(attempt.run_id), "account": str(found.account_id)}
    if reference is None or reference.delivered_generation is None:
        log.warning("renewed_secret_refused", reason="not given to the workspace", **facts)
        return False
    try:
        result = propose_renewed(
            found.account_id,
            found.secret,
            workspace_id=attempt.workspace_id,
            generation=reference.delivered_generation,
        )
    except SealError:
        log.warning("renewed_secret_refused", reason="the present one does not open", **facts)
        return False
    if result in (Renewal.REFUSED, Renewal.OUTDATED):
        log.info("renewed_secret_refused", reason=result.value, **facts)
    if result is Renewal.PROPOSED:
        workspaces.record_event(
            attempt,
            WorkspaceEvent.Type.CREDENTIALS_RENEWED,
            "A tool in the workspace renewed a connected account. Other workspaces receive the "
            "renewed "
            "secret once its owner approves it.",
            {"connectedAccountId": str(found.account_id)},
        )
    return result in (Renewal.PROPOSED, Renewal.UPDATED)
