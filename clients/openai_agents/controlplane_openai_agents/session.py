"""A workspace as the SDK wants a sandbox to be."""

from __future__ import annotations

import io
from collections.abc import Awaitable
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, Permissions, User

from controlplane_client import (
    AsyncClient,
    AsyncWorkspace,
    ControlPlaneError,
    PreconditionFailed,
)
from controlplane_client.models import FileInfo
from controlplane_openai_agents.archives import left_out, spooled
from controlplane_openai_agents.commands import Commands
from controlplane_openai_agents.failures import (
    NO_FILE,
    code_of,
    exec_failed,
    read_failed,
    shell_exit_code,
    start_failed,
    write_failed,
)
from controlplane_openai_agents.paths import followed
from controlplane_openai_agents.state import BACKEND, ControlPlaneSandboxSessionState

OUTPUT_BYTES = 16 * 1024 * 1024
"""How much of each output ``exec`` returns; the record has all of it."""

_ACCOUNT_PROGRAMS = frozenset({"groupadd", "useradd", "usermod"})
_KINDS = {
    "directory": EntryKind.DIRECTORY,
    "file": EntryKind.FILE,
    "symlink": EntryKind.SYMLINK,
}

T = TypeVar("T")


class ControlPlaneExecResult(ExecResult):
    """How a command ended, and which run its record is."""

    def __init__(
        self, *, stdout: bytes, stderr: bytes, exit_code: int, run_id: str, truncated: bool
    ) -> None:
        super().__init__(stdout=stdout, stderr=stderr, exit_code=exit_code)
        self.run_id = run_id
        self.truncated = truncated
        """Whether it wrote more than 16 MiB; the record has all of it."""


class ControlPlaneSandboxSession(BaseSandboxSession):
    """A workspace that an agent works in; everything it does there is recorded.

    Commands are runs, and files are read and changed by the service's own calls, so both stand in
    the record as what they are. Made by ``ControlPlaneSandboxClient``.
    """

    state: ControlPlaneSandboxSessionState

    def __init__(self, client: AsyncClient, state: ControlPlaneSandboxSessionState) -> None:
        self.state = state
        self._client = client
        self._commands = Commands()
        self._resolved_root: PurePosixPath | None = None

    @property
    def workspace(self) -> AsyncWorkspace:
        """The workspace, for what the SDK has no word for: its runs, its record."""
        return self._client.workspace(self.state.workspace_id)

    # ------------------------------------------------------------ life

    async def _prepare_backend_workspace(self) -> None:
        root = str(self._root)
        try:
            await self.workspace.files.mkdir(root)
        except ControlPlaneError as error:
            raise start_failed(root, error) from error

    async def running(self) -> bool:
        """Whether the workspace can be worked in now."""
        try:
            return (await self.workspace.refresh()).status == "ready"
        except ControlPlaneError:
            return False

    async def _shutdown_backend(self) -> None:
        if self.state.on_exit == "keep":
            return
        try:
            await self.workspace.stop()
        except ControlPlaneError as error:
            if code_of(error) != "workspace-not-found":
                raise

    # ------------------------------------------------------------ commands

    async def _environment(self) -> dict[str, str]:
        return {**self.state.options.env, **await self.state.manifest.environment.resolve()}

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ControlPlaneExecResult:
        words = [str(word) for word in command]
        env, cwd = await self._environment(), str(self._root)
        try:
            ended = await self.workspace.exec(words, cwd=cwd, env=env, timeout=timeout)
            stdout, stderr, truncated = ended.stdout_bytes, ended.stderr_bytes, ended.truncated
            if truncated:
                run = await self._client.run(ended.run_id)
                parts = [
                    await run.output(name, limit=OUTPUT_BYTES) for name in ("stdout", "stderr")
                ]
                stdout, stderr = (part.content for part in parts)
                truncated = any(part.more for part in parts)
        except ControlPlaneError as error:
            raise exec_failed(words, error) from error
        if ended.error_code == "run-timeout":
            told = {"backend": BACKEND, "run_id": ended.run_id}
            raise ExecTimeoutError(command=words, timeout_s=timeout, context=told)
        if ended.exit_code is None and ended.error:
            stderr += f"{ended.error}\n".encode()
        code = shell_exit_code(ended.exit_code, ended.exit_signal, ended.error_code)
        return ControlPlaneExecResult(
            stdout=stdout,
            stderr=stderr,
            exit_code=code,
            run_id=ended.run_id,
            truncated=truncated,
        )

    async def _exec_checked_nonzero(self, *command: str | Path) -> ExecResult:
        if str(command[0]) in _ACCOUNT_PROGRAMS:
            # The workspace's user is not root.
            command = ("sudo", "-n", *command)
        return await super()._exec_checked_nonzero(*command)

    def supports_pty(self) -> bool:
        """Whether commands may go on while the model does something else."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command, and tell how far it is after ``yield_time_s``."""
        return await self._commands.start(
            self.workspace,
            self._prepare_exec_command(*command, shell=shell, user=user),
            cwd=str(self._root),
            env=await self._environment(),
            timeout=timeout,
            terminal=tty,
            seconds=10.0 if yield_time_s is None else yield_time_s,
            tokens=max_output_tokens,
        )

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Give a command input, or look again at what it wrote."""
        seconds = 0.25 if yield_time_s is None else yield_time_s
        return await self._commands.write(
            session_id, chars, seconds=seconds, tokens=max_output_tokens
        )

    async def pty_terminate_all(self) -> None:
        """End the commands that the model left running."""
        await self._commands.end_all()

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            link = await self.workspace.link(port)
        except ControlPlaneError as error:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": BACKEND, "code": code_of(error), "detail": str(error)},
                cause=error,
            ) from error
        address = urlsplit(link.url)
        tls = address.scheme == "https"
        return ExposedPortEndpoint(
            host=address.hostname or "",
            port=address.port or (443 if tls else 80),
            tls=tls,
            query=address.query,
        )

    # ------------------------------------------------------------ files

    @property
    def _root(self) -> PurePosixPath:
        return PurePosixPath(self._workspace_root_path().as_posix())

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        policy = self._workspace_path_policy()
        wanted = PurePosixPath(policy.normalize_sandbox_path(path, for_write=for_write))
        try:
            leads_to = await self._followed(wanted)
        except ControlPlaneError as error:
            failed = write_failed if for_write else read_failed
            raise failed(Path(path), error) from error
        if self._resolved_root is None or not leads_to.is_relative_to(self._resolved_root):
            try:
                policy.normalize_sandbox_path(leads_to, for_write=for_write)  # granted there, too?
            except InvalidManifestPathError as error:
                raise InvalidManifestPathError(
                    rel=str(path), reason="escape_root", context={"resolved_path": str(leads_to)}
                ) from error
        return Path(wanted)

    async def _followed(self, path: PurePosixPath) -> PurePosixPath:
        stat = self.workspace.files.stat
        if self._resolved_root is None:
            self._resolved_root = await followed(stat, self._root)
        if path.is_relative_to(self._root):
            return await followed(stat, path.relative_to(self._root), self._resolved_root)
        return await followed(stat, path)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return the content of a file."""
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        return io.BytesIO(await self._reading(path, self._content(path)))

    async def _content(self, path: Path) -> bytes:
        return await self.workspace.files.read(str(await self._validate_path_access(path)))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._reading(path, self._beginning(path, max_bytes))

    async def _beginning(self, path: Path, size: int) -> bytes:
        place = str(await self._validate_path_access(path))
        parts = [part async for part in self.workspace.files.stream(place, end=size)]
        return b"".join(parts)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Store a file, whole or not at all."""
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        place = await self._validate_path_access(path, for_write=True)
        await self._changing(path, self.workspace.files.write(str(place), _bytes(path, data)))

    async def _write_new_file(
        self, path: Path, data: io.IOBase, *, user: str | User | None = None
    ) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        place = await self._validate_path_access(path, for_write=True)
        try:
            await self.workspace.files.write(str(place), _bytes(path, data), only_new=True)
        except PreconditionFailed as problem:
            raise FileExistsError(str(place)) from problem
        except ControlPlaneError as error:
            raise write_failed(path, error) from error

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """Return what is in a folder."""
        if user is not None:
            return await super().ls(path, user=user)
        place = await self._validate_path_access(path)
        found = await self._reading(Path(path), self.workspace.files.list(str(place)))
        return [_entry(place, each) for each in found]

    async def rm(
        self, path: Path | str, *, recursive: bool = False, user: str | User | None = None
    ) -> None:
        """Remove a file, or with ``recursive`` whatever is there, if anything is."""
        if user is not None:
            await super().rm(path, recursive=recursive, user=user)
            return
        place = await self._validate_path_access(path, for_write=True)
        try:
            await self.workspace.files.remove(str(place), recursive=recursive)
        except ControlPlaneError as error:
            if recursive and code_of(error) in NO_FILE:
                return
            raise write_failed(Path(path), error) from error

    async def mkdir(
        self, path: Path | str, *, parents: bool = False, user: str | User | None = None
    ) -> None:
        """Create a folder."""
        if user is not None:
            await super().mkdir(path, parents=parents, user=user)
            return
        place = await self._validate_path_access(path, for_write=True)
        await self._changing(Path(path), self.workspace.files.mkdir(str(place), parents=parents))

    async def persist_workspace(self) -> io.IOBase:
        """Return a tar of the working folder, without what the manifest says is not kept."""
        root = self._root
        packed = await self._reading(Path(root), spooled(self.workspace.files.pack(str(root))))
        return await left_out(packed, self._persist_workspace_skip_relpaths())

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack such a tar into the working folder, all of it or nothing."""
        root = str(self._root)
        await self._changing(Path(root), self._unpacked(data, root))

    async def _unpacked(self, data: io.IOBase, root: str) -> None:
        await self.workspace.files.mkdir(root)
        await self.workspace.files.unpack(data, root)  # type: ignore[arg-type]  # only read from

    async def _reading(self, path: Path, call: Awaitable[T]) -> T:
        try:
            return await call
        except ControlPlaneError as error:
            raise read_failed(path, error) from error

    async def _changing(self, path: Path, call: Awaitable[object]) -> None:
        try:
            await call
        except ControlPlaneError as error:
            raise write_failed(path, error) from error


def _bytes(path: Path, data: io.IOBase) -> bytes:
    content = data.read()
    if isinstance(content, str):
        return content.encode()
    if not isinstance(content, bytes | bytearray):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
    return bytes(content)


def _entry(folder: Path, info: FileInfo) -> FileEntry:
    return FileEntry(
        path=str(folder / info.name),
        permissions=Permissions.from_mode(info.mode | (0o40000 if info.is_dir else 0)),
        owner="",
        group="",
        size=info.size,
        kind=_KINDS.get(info.type, EntryKind.OTHER),
    )
