"""The exceptions of this package.

::

    ControlPlaneError
     ├─ Problem               the service refused: ``code``, ``title``, ``detail``, ``status``
     │   ├─ InvalidRequest    400: ``errors`` lists every fault
     │   ├─ NotFound          404
     │   ├─ Conflict          409
     │   └─ PreconditionFailed  412: somebody else has changed the file
     ├─ Unreachable           no answer, or one that is not the service's, after all tries
     ├─ NotReady              a workspace ended instead of becoming ready
     ├─ WaitTimeout           it did not happen in time
     ├─ RecordGone            a record, or part of it, was removed by retention
     └─ CommandFailed         ``exec(…, check=True)``: the command's exit code is not 0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controlplane_client.models import ExecResult, WorkspaceInfo


class ControlPlaneError(Exception):
    """The base of all exceptions of this package."""


INPUT_IS_OVER = frozenset({"run-ended", "input-ended"})
"""Codes of a command that accepts no more input."""


class Problem(ControlPlaneError):
    """The service refused a request, or failed to carry it out: its problem document (RFC 9457)."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status = status
        self.code: str = str(document.get("code", ""))
        """Stable, for programs; the service's page of error codes says what to do."""
        self.title: str = str(document.get("title", ""))
        self.detail: str = str(document.get("detail", ""))
        self.errors: list[dict[str, Any]] = list(document.get("errors", ()))
        """Every fault with its place: ``pointer``, ``parameter`` or ``header``."""
        self.request_id: str = str(document.get("requestId", ""))
        self.retry_after: float | None = None
        """After how many seconds to try again, if the service says so."""
        self.document = document
        """All of it, as it was sent."""
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        faults = [
            f"{each.get('pointer') or each.get('parameter') or each.get('header') or 'body'}: "
            f"{each.get('detail', '')}"
            for each in self.errors
        ]
        told = self.detail or self.title or f"HTTP {self.status}"
        return "\n".join([f"{told} ({self.code or self.status})", *faults])


class InvalidRequest(Problem):
    """400: the request is wrong."""


class NotFound(Problem):
    """404: there is no such thing, or it belongs to another owner."""


class Conflict(Problem):
    """409: not possible in the current state."""


class PreconditionFailed(Problem):
    """412: the file does not have the content that the request required."""


class Unreachable(ControlPlaneError):
    """The service did not answer, however often it was tried."""


class WaitTimeout(ControlPlaneError):
    """It did not happen in time; the work goes on by itself."""


class RecordGone(ControlPlaneError):
    """The record, or the part that comes next, was removed by retention."""


class NotReady(ControlPlaneError):
    """A workspace ended instead of becoming ready; ``workspace`` says how."""

    def __init__(self, workspace: WorkspaceInfo) -> None:
        self.workspace = workspace
        self.code = workspace.error_code
        told = workspace.error or (workspace.reason.message if workspace.reason else "")
        super().__init__(f"the workspace is {workspace.status}: {told}".rstrip(": "))


class CommandFailed(ControlPlaneError):
    """A command ended with an exit code other than 0; ``result`` has the details."""

    def __init__(self, result: ExecResult) -> None:
        self.result = result
        how = f"exit code {result.exit_code}" if result.exit_code is not None else result.status
        super().__init__(f"the command failed: {how}\n{result.stderr[-2000:]}".rstrip())


_BY_STATUS: dict[int, type[Problem]] = {
    400: InvalidRequest,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
}


def problem_of(status: int, document: Any) -> Problem:
    """Return the exception for an answer that is not a success."""
    told = document if isinstance(document, dict) else {}
    return _BY_STATUS.get(status, Problem)(status, told)
