"""What the service refuses, as the errors that the SDK and its tools know."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from agents.sandbox.errors import (
    ExecTransportError,
    SandboxError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)

from controlplane_client import ControlPlaneError, Problem, Unreachable
from controlplane_openai_agents.state import BACKEND

ErrorT = TypeVar("ErrorT", bound=SandboxError)

NO_FILE = frozenset({"file-not-found", "not-a-directory"})
"""Codes that say that a path leads to nothing."""

_NOT_STARTED = 127
_NOT_ENDED = 125


def code_of(error: ControlPlaneError) -> str:
    """Return the service's code of an error, or the kind of what has none."""
    return error.code if isinstance(error, Problem) else type(error).__name__


def _told(made: ErrorT, error: ControlPlaneError) -> ErrorT:
    # The SDK's own sentences leave out what the service said, and models read only these.
    made.message = f"{made.message}: {error}"
    made.args = (made.message,)
    made.context.update(backend=BACKEND, code=code_of(error))
    if made.retryable is None:
        made.retryable = isinstance(error, Unreachable)
    return made


def start_failed(root: str, error: ControlPlaneError) -> WorkspaceStartError:
    """The workspace could not be made, found or started."""
    return _told(WorkspaceStartError(path=Path(root), cause=error), error)


def exec_failed(command: Sequence[str], error: ControlPlaneError) -> ExecTransportError:
    """The command was not executed, or nobody knows how it ended."""
    return _told(ExecTransportError(command=command, cause=error), error)


def read_failed(path: Path, error: ControlPlaneError) -> SandboxError:
    """A file or folder could not be read."""
    if code_of(error) in NO_FILE:
        return WorkspaceReadNotFoundError(path=path, cause=error)
    return _told(WorkspaceArchiveReadError(path=path, cause=error), error)


def write_failed(path: Path, error: ControlPlaneError) -> WorkspaceArchiveWriteError:
    """A file or folder could not be changed."""
    return _told(WorkspaceArchiveWriteError(path=path, cause=error), error)


def shell_exit_code(exit_code: int | None, exit_signal: str | None, error_code: str | None) -> int:
    """Return the exit code that a shell gives what ended like this."""
    if exit_code is not None:
        return exit_code
    ended_by = signal.Signals.__members__.get(exit_signal or "")
    if ended_by is not None:
        return 128 + ended_by
    return _NOT_STARTED if error_code == "run-start-failed" else _NOT_ENDED
