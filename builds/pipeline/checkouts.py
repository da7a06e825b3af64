"""Fetching the sources of one build: public ones as anybody, selected ones with a token.

A token is asked for when it is needed, for that repository and to read only, and is shown to git
alone, by :mod:`scm.git`. It is masked in the record before git is started. What the installation
and the owner may do is looked at each time anew, because the job may have waited long.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from builds.images.phases import measured
from builds.pipeline.build_record import BuildRecord
from builds.planner.plan import PlannedSource
from controlplane.database.retries import DATABASE_RETRY_SECONDS, retry_database
from scm import git
from scm.selections import SourceToken, source_token
from workspaces.lifecycle.sources import references_of
from workspaces.models import BuildJob

CLOCKS_APART = timedelta(seconds=60)
"""How far the provider's clock may be from ours."""


class SourceFetcher:
    """Resolves and checks out the sources of one job, and holds their tokens meanwhile.

    Its methods raise ``SourceError``, also for what has become of a selected repository since it
    was selected (:func:`scm.selections.source_token`).
    """

    def __init__(
        self,
        job: BuildJob,
        policy: git.SourcePolicy,
        record: BuildRecord,
        cancelled: threading.Event,
    ) -> None:
        self._job = job
        self._policy = policy
        self._record = record
        self._cancelled = cancelled
        self._references: Mapping[str, UUID] | None = None
        self._tokens: dict[str, SourceToken] = {}

    def resolve(self, source: PlannedSource) -> git.ResolvedSource:
        """Return the commit that a source means now.

        A selected repository is looked for where it is by now, should it have been renamed.
        """
        token = self._token(source.id)
        return git.resolve(
            token.url if token else source.url,
            source.ref,
            self._policy,
            self._cancelled,
            _credential(token),
        )

    @measured("fetch")
    def checkout(self, sources: Mapping[str, git.ResolvedSource], folder: Path) -> dict[str, Path]:
        """Make a checkout of each source in ``folder`` and return where each one is."""
        checkouts = {}
        for source_id, source in sources.items():
            into = checkouts[source_id] = folder / source_id
            with self._record.step(
                f"source {source_id}", ["git", "fetch", source.url, source.commit]
            ):
                credential = _credential(self._token(source_id))
                git.checkout(source, into, self._policy, self._cancelled, credential)
        return checkouts

    def _token(self, source_id: str) -> SourceToken | None:
        """Return a token that lasts for as long as a fetch may take; None for a public source."""
        if self._references is None:
            self._references = self._persistently_read_references()
        repository_id = self._references.get(source_id)
        if repository_id is None:
            return None
        token = self._tokens.get(source_id)
        if token is None or _ends_within(token, self._policy.fetch_timeout):
            token = retry_database(
                lambda: source_token(
                    repository_id, owner_user_id=self._job.attempt.sandbox.owner_user_id
                ),
                timeout=DATABASE_RETRY_SECONDS,
                cancelled=self._cancelled,
            )
            self._record.hide(token.token)
            self._tokens[source_id] = token
        return token

    def _persistently_read_references(self) -> Mapping[str, UUID]:
        return retry_database(
            lambda: references_of(self._job.attempt.sandbox_id),
            timeout=DATABASE_RETRY_SECONDS,
            cancelled=self._cancelled,
        )


def _ends_within(token: SourceToken, seconds: float) -> bool:
    return token.expires_at <= datetime.now(UTC) + timedelta(seconds=seconds) + CLOCKS_APART


def _credential(token: SourceToken | None) -> git.GitCredential | None:
    if token is None:
        return None
    return git.GitCredential(token.origin, token.token, token.username)
