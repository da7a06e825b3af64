"""What an engine must be able to do for us, and the values that go in and out.

An adapter keeps no state of its own. Everything it needs to recognise what it started is written on
the things themselves as labels, so any worker can observe, adopt or remove what another one
launched. The codes a launch can fail with:

======================  ==========================================================================
``step-failed``         a dotfiles, setup or startup step failed; the message has its name and tail
``container-exited``    the container ended before the workspace was ready
``image-pull-failed``   the engine could not get the image
``oci-runtime-missing`` the engine does not know the OCI runtime that was asked for
``launch-refused``      the engine refused to create or start the container or its network
``network-not-guarded`` the engine's machine does not keep workspaces from reaching it
``egress-not-enforced`` the workspace has an egress policy, and nobody would keep it
``network-pool-empty``  no free subnet is left in the configured pool
``agent-silent``        the container lives, and the agent in it does not answer
``credentials-refused`` the agent would not take the credentials, could not keep them, or has no
                        place for any; its message names none of them
``credentials-unclear`` the agent's answer about its credentials makes no sense
``launch-timed-out``    the workspace was not ready in the time given
``launch-cancelled``    the caller set ``cancelled``
``launch-superseded``   a newer launch of the same run owns the runtime; nothing of it was touched
``volume-in-use``       a container still uses a volume that is to be removed
``adapter-unavailable`` the engine does not answer, or not as it should
``runtime-gone``        a runtime that was to be spoken to does not exist
``runtime-not-running`` it exists and does not run
``quota-exceeded``      the cluster's quota for the namespace is used up
``admission-refused``   the cluster refused the Pod
======================  ==========================================================================
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

from controlplane.errors import JobError


class LaunchError(JobError):
    """A runtime could not be launched, observed or removed; see the codes in the module docstring.

    ``message`` is for the owner of the workspace: bounded, without control characters, and never
    with the engine's address, the container's configuration or anything of ``boot``.
    """


FileReader = Callable[[str], AbstractContextManager[Iterator[bytes] | None]]
"""Opens a tar stream of a path in one container; None when there is no such thing."""

Collect = Callable[[FileReader], None]
"""Takes out of a container what must outlive it, just before the container is removed. Must not
take long, nor raise."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory of a workspace that outlives its containers.

    ``purpose`` tells a workspace's volumes apart; ``path`` is where it is in the container.
    """

    purpose: str
    path: str


@dataclass(frozen=True, slots=True)
class ClaimedMember:
    """A container of the warm pool that a run has claimed: it runs, and its agent waits."""

    member_id: UUID
    """The run that it was launched as, which is nobody's."""
    engine_id: str


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One launch of one run. The whole of it, pulling included, may take ``timeout`` seconds."""

    instance_id: str
    """The installation that owns the runtime; must be the adapter's own."""
    run_id: UUID
    """The boot run. One run has at most one live runtime, named after it."""
    attempt_id: UUID
    workspace_id: UUID
    job_id: UUID
    attempt_count: int
    """The fencing token: a launch with a lower one never touches what a higher one owns."""
    image: str
    """A digest reference, ``registry/repository@sha256:…``."""
    boot: Mapping[str, object] = field(repr=False)
    """The agent's configuration, written into the container before it starts."""
    working_directory: str
    """Where sessions and runs start; recorded with the runtime, created by the agent if missing."""
    outbound: bool
    """False: no network at all but loopback."""
    memory_mb: int
    cpus: float
    pids: int
    sudo: bool
    """True: setuid programs work, so that the workspace's user can become root inside."""
    restart: bool
    """True: the engine starts the runtime again when it ends or the machine restarts."""
    oci_runtime: Literal["runc", "runsc"]
    timeout: float
    egress: Callable[[str], None] | None = field(default=None, repr=False)
    """None: every public address is reached. Else the egress proxy only, and it is called with the
    name of the network's bridge before that is made, so that the policy is known by then."""
    authority: bytes | None = field(default=None, repr=False)
    """A certificate in PEM that all programs inside have to trust; it is no secret."""
    volumes: Sequence[Volume] = ()
    """What is kept of the workspace from one attempt to the next; none may be inside another."""
    fresh_volumes: bool = False
    """True: nothing of the workspace has ever been ready, so what is in its volumes goes and the
    image's own content comes in."""
    before_removal: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called just before that; raises when the launch is not wanted any more, which then removes
    nothing: the workspace may have been started by others since, and hold somebody's work."""
    on_started: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called when the container has started, or one was adopted, before its boot is waited for."""
    collect: Collect | None = field(default=None, repr=False)
    """Called with every container of the run that the launch removes."""
    credentials: Callable[[], bytes] | None = field(default=None, repr=False)
    """Makes the document for ``RuntimeAdapter.deliver_credentials``; None: there are none.

    Called as late as possible, not more than once for each container that waits for them, and what
    it returns is not kept. ``boot`` must say ``"credentials": true`` exactly when this is set. What
    it raises goes through to the caller of the launch, which leaves nothing behind then.
    """
    unbound: bool = False
    """True: for the warm pool, and nobody's yet. It is ready when its agent waits to be bound, and
    ``boot`` says no more than that."""
    member: ClaimedMember | None = None
    """What the run has claimed in the warm pool. It becomes the run's container where it is as it
    should be, and the launch makes a new one otherwise."""
    before_discard: Callable[[], None] | None = field(default=None, repr=False)
    """Called while a running container of the run still has its name, before the launch removes it.

    Must not take long, nor raise.
    """


@dataclass(frozen=True, slots=True)
class LaunchedRuntime:
    """A runtime whose agent has said that the workspace is ready."""

    adapter: str
    resource_id: str
    reference: str
    endpoint: str
    """How gateway and recorder reach it: ``docker-exec://<container id>``; with the engine's name
    before the id where that is not the first one."""
    engine_id: str = ""
    """The engine it runs on, as the engine names itself; only that one can say how it is."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of itself and of its machine."""

    engine_id: str
    memory_bytes: int
    cpus: int


@dataclass(frozen=True, slots=True)
class ObservedRuntime:
    """What the engine knows of one runtime of ours, live or ended."""

    run_id: UUID
    job_id: UUID
    attempt_count: int
    """The launch that created it; a later launch may have adopted it."""
    resource_id: str
    reference: str
    running: bool
    exit_code: int | None
    """None while it runs, and when it was never started."""
    oom_killed: bool
    """A process of it was killed for want of memory, not necessarily the first one. A list does
    not say so of those that run."""
    created_at: datetime
    ended_code: str = ""
    """The code of why the engine itself ended it, which may be all that is known; empty when it
    did not."""
    ended_message: str = ""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What one short call of the agent in a workspace gave."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class RenewedCredential:
    """What a workspace holds of an account whose tool renews its secret by itself.

    It comes out of the workspace, where anybody may have written anything: text of bounded size,
    and nothing more is promised. It may also be what was delivered, unchanged.
    """

    account_id: UUID
    secret: str = field(repr=False)


class AgentChannel(Protocol):
    """A connection to one subcommand of the agent in a workspace. One reader and one writer."""

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next bytes of its output, ``b""`` at the end, None when none came in time.

        Also None when the descriptor ``wake`` becomes readable first.
        """

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Give it all of ``data`` as input; waits while it does not take any.

        Raises ``agent-silent`` when it takes nothing for ``timeout`` seconds, or not all of it
        ``within`` so many.
        """

    def close_input(self) -> None:
        """End its input."""

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known any more."""

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""

    def close(self) -> None:
        """Give the connection up, whatever the other side does."""


class RuntimeAdapter(Protocol):
    """One kind of engine. Methods may be called from any thread and raise only ``LaunchError``.

    An adapter sees and touches only what carries the instance id it was made with.
    """

    @property
    def name(self) -> str:
        """The adapter's name as it is stored on a runtime instance."""

    def check(self) -> None:
        """Raise ``adapter-unavailable`` unless the engine answers and is recent enough."""

    def engine_id(self) -> str:
        """Return how the engine names itself, stable over its restarts."""

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Return a ready runtime for the run, or leave nothing of this launch behind and raise.

        A healthy runtime that an earlier launch of the same run left is adopted.
        """

    def observe(self, run_id: UUID) -> ObservedRuntime | None:
        """Return the run's runtime as it is now, or None when the engine has none."""

    def list(self, workspace_id: UUID | None = None) -> list[ObservedRuntime]:
        """Return the runtimes of one workspace, or of all of this installation's.

        One for each run, also those that ended.
        """

    def call_agent(
        self, run_id: UUID, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> AgentAnswer:
        """Run the agent with ``arguments`` in the boot run's runtime, as root, and wait for it.

        Raises ``runtime-gone`` when there is no such runtime, ``runtime-not-running`` when it does
        not run, ``agent-silent`` when the time is over.
        """

    def open_agent(self, run_id: UUID, arguments: Sequence[str]) -> AgentChannel:
        """Start the agent with ``arguments`` in the boot run's runtime and stay connected to it.

        Raises as :meth:`call_agent` does. The channel must be closed.
        """

    def waits_for_credentials(self, run_id: UUID) -> bool:
        """Whether the boot in the run's runtime has got as far as waiting for its credentials.

        True after a start by the engine alone: what was delivered before did not outlive that.
        Raises as :meth:`call_agent` does.
        """

    def deliver_credentials(self, run_id: UUID, document: bytes) -> None:
        """Give the run's runtime its credentials; they replace all that it has.

        ``document`` is JSON in UTF-8, at most 1 MiB: ``{"version": 1, "accounts": [{"id": "<uuid>",
        "provider": "claude|codex|github|generic", "name": "…", "secret": "…"}]}``. It travels on
        the agent's standard input only. Either all of it has been taken or nothing has changed; to
        deliver the same again is safe, but takes back what a tool has renewed meanwhile.

        Raises as :meth:`call_agent` does, and ``credentials-refused``.
        """

    def collect_credentials(self, run_id: UUID) -> builtins.list[RenewedCredential]:
        """Return what the run's runtime holds of the accounts whose secrets renew themselves.

        An account whose file was removed or makes no sense is left out. Raises as
        :meth:`call_agent` does, and ``credentials-unclear``.
        """

    def withdraw_credentials(self, run_id: UUID, account_ids: Collection[UUID]) -> None:
        """Remove accounts from the run's runtime; those that it does not have are no fault.

        Programs that run already keep what they have read, and variables that they were started
        with. Raises as :meth:`deliver_credentials` does.
        """

    def read_files(self, run_id: UUID, path: str) -> AbstractContextManager[Iterator[bytes] | None]:
        """Open a tar stream of ``path`` in the boot run's runtime, whether it runs or has ended.

        The value is None when there is no such runtime or path.
        """

    def stop(self, run_id: UUID, *, seconds: float) -> bool:
        """Have the run's runtime end in order, killed after ``seconds``; False when there is none.

        What it wrote stays readable until it is removed. Safe to call again.
        """

    def remove_containers(self, run_id: UUID) -> bool:
        """Remove what the run's programs run in, and leave the rest to :meth:`remove`.

        True when there was any. Safe to call again.
        """

    def remove(self, run_id: UUID, *, collect: Collect | None = None) -> bool:
        """Remove all of the run's things; True when there were any. Safe to call again.

        With ``collect`` a running container is first told to end in order, for a few seconds.
        """

    def remove_volumes(self, workspace_id: UUID) -> int:
        """Remove what was kept of a workspace from one attempt to the next; return how much.

        Safe to call again. Raises ``volume-in-use`` while a runtime of it is there.
        """

    def workspaces_with_volumes(self) -> set[UUID]:
        """Return the workspaces of which something is kept."""

    def sweep_networks(self, keep_run_ids: Collection[UUID]) -> int:
        """Remove unused networks of runs that are not to be kept; return how many.

        ``keep_run_ids`` must hold every run that may be launching just now: for a moment such a
        launch has a network that nothing is connected to yet.
        """


class PoolingAdapter(RuntimeAdapter, Protocol):
    """An engine on which containers may wait (``unbound`` and ``member`` of ``LaunchRequest``)."""

    def warm_key(self, request: LaunchRequest) -> str:
        """Return what the containers of the warm pool have in common that the run could take.

        It changes with everything that cannot be changed of a container that exists.
        """
