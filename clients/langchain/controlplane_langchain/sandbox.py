"""A workspace as ``deepagents`` wants a sandbox to be."""

from __future__ import annotations

import signal

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from controlplane_client import ExecResult, InvalidRequest, Problem, Workspace

_ERRORS = {
    "file-not-found": "file_not_found",
    "file-permission-denied": "permission_denied",
    "not-a-file": "is_directory",
    "not-a-directory": "invalid_path",
    "bad-path": "invalid_path",
    "file-name-too-long": "invalid_path",
    "file-link-loop": "invalid_path",
}
"""Codes of the service: what an agent is told."""

_TIMED_OUT = 124
_NOT_EXECUTED = 125


class ControlPlaneSandbox(BaseSandbox):
    """A workspace that agents of LangChain work in; everything they do in it is recorded.

    Commands are executed by ``bash -lc`` where runs begin. Their output is the standard output and
    behind it the error output, of each the first MiB. Requests that fail raise what
    ``controlplane_client`` raises.
    """

    def __init__(self, workspace: Workspace, *, timeout: float | None = None) -> None:
        """Work in ``workspace``; ``timeout`` is for commands that are given none, in seconds."""
        self.workspace = workspace
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The id of the workspace."""
        return self.workspace.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Execute a command; after ``timeout`` seconds, unless they are 0, it is ended.

        The exit code is that of a shell: 124 after the time limit, 125 if it was not executed to
        its end, 128 and the signal's number if a signal ended it.
        """
        seconds = self._timeout if timeout is None else (timeout or None)
        result = self.workspace.exec(command, timeout=seconds)
        parts = [result.stdout, result.stderr]
        if result.exit_code is None and result.error:
            parts.append(result.error)
        output = ""
        for part in parts:
            output += ("\n" if output and part and not output.endswith("\n") else "") + part
        return ExecuteResponse(output, _exit_code(result), result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; each answer says how it went with that one."""
        answers = []
        for path, content in files:
            error = None if path.startswith("/") else "invalid_path"
            if error is None:
                try:
                    self.workspace.files.write(path, content)
                except Problem as problem:
                    error = _file_error(problem)
            answers.append(FileUploadResponse(path, error))
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; each answer has the content, or says why not."""
        answers = []
        for path in paths:
            content, error = None, None if path.startswith("/") else "invalid_path"
            if error is None:
                try:
                    content = self.workspace.files.read(path)
                except Problem as problem:
                    error = _file_error(problem)
            answers.append(FileDownloadResponse(path, content, error))
        return answers


def _exit_code(result: ExecResult) -> int:
    # An agent is told nothing of how a command ended that has no exit code.
    if result.exit_code is not None:
        return result.exit_code
    if result.error_code == "run-timeout":
        return _TIMED_OUT
    ended_by = signal.Signals.__members__.get(result.exit_signal or "")
    return _NOT_EXECUTED if ended_by is None else 128 + ended_by


def _file_error(problem: Problem) -> str:
    if problem.code in _ERRORS:
        return _ERRORS[problem.code]
    if isinstance(problem, InvalidRequest):
        return "invalid_path"
    # What is wrong with the workspace or the service is no matter of a single file.
    if problem.code.startswith("file-") or problem.code == "workspace-disk-full":
        return problem.detail
    raise problem
