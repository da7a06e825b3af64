"""An engine of the tests' own whose workspaces hold the accounts that they are given."""

from __future__ import annotations

import builtins
import json
import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from tests.bench.empty_jobs import NoEngine
from workspaces.runtimes.base import (
    Collect,
    LaunchedRuntime,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
    RenewedCredential,
)


@dataclass
class HoldingEngine(NoEngine):
    """Launches at once, asks for credentials, and remembers what it was told."""

    requests: list[LaunchRequest] = field(default_factory=list)
    held: dict[uuid.UUID, dict[str, Any]] = field(default_factory=dict)
    """By run: the accounts that its workspace has, by id."""
    waiting: set[uuid.UUID] = field(default_factory=set)
    silent: set[uuid.UUID] = field(default_factory=set)
    """Runs whose agent does not answer."""
    asked: list[tuple[str, uuid.UUID]] = field(default_factory=list)
    renewed: dict[uuid.UUID, list[tuple[str, str]]] = field(default_factory=dict)
    observed: list[ObservedRuntime] = field(default_factory=list)
    before_launch: Callable[[], None] | None = None
    before_delivery: Callable[[], None] | None = None
    """When a launch has opened the accounts, and its workspace does not have them yet."""
    after_delivery: Callable[[], None] | None = None
    fails_with: LaunchError | None = None
    while_asked: Callable[[uuid.UUID], None] | None = None
    """While the agent of a run is asked for something."""

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Start, and take what there is to be taken."""
        self.requests.append(request)
        if self.before_launch is not None:
            self.before_launch()
        if request.credentials is not None:
            document = request.credentials()
            if self.before_delivery is not None:
                self.before_delivery()
            self.deliver_credentials(request.run_id, document)
        if self.after_delivery is not None:
            self.after_delivery()
        if self.fails_with is not None:
            raise self.fails_with
        return super().launch(request, cancelled=cancelled)

    def list(self, workspace_id: uuid.UUID | None = None) -> builtins.list[ObservedRuntime]:
        """Return what the test says."""
        return self.observed

    def remove(self, run_id: uuid.UUID, *, collect: Collect | None = None) -> bool:
        """Forget what the workspace had."""
        self.asked.append(("remove", run_id))
        return self.held.pop(run_id, None) is not None

    def waits_for_credentials(self, run_id: uuid.UUID) -> bool:
        """Say whether the workspace waits."""
        self._ask("waits", run_id)
        return run_id in self.waiting

    def deliver_credentials(self, run_id: uuid.UUID, document: bytes) -> None:
        """Take all of them."""
        self._ask("deliver", run_id)
        accounts = json.loads(document)["accounts"]
        self.held[run_id] = {account["id"]: account for account in accounts}
        self.waiting.discard(run_id)

    def collect_credentials(self, run_id: uuid.UUID) -> builtins.list[RenewedCredential]:
        """Return what the test has put there, and what was delivered otherwise."""
        self._ask("collect", run_id)
        found = [
            (account["id"], account["secret"])
            for account in self.held.get(run_id, {}).values()
            if account["provider"] == "codex"
        ]
        return [
            RenewedCredential(uuid.UUID(account), secret)
            for account, secret in self.renewed.get(run_id, found)
        ]

    def withdraw_credentials(self, run_id: uuid.UUID, account_ids: Collection[uuid.UUID]) -> None:
        """Let go of some."""
        self._ask("withdraw", run_id)
        for account_id in account_ids:
            self.held.get(run_id, {}).pop(str(account_id), None)

    def questions(self, what: str) -> int:
        """How often it was asked for this."""
        return sum(asked == what for asked, _ in self.asked)

    def _ask(self, what: str, run_id: uuid.UUID) -> None:
        self.asked.append((what, run_id))
        if run_id in self.silent:
            raise LaunchError("agent-silent", "The agent in the workspace gave no answer.")
        if self.while_asked is not None:
            self.while_asked(run_id)
