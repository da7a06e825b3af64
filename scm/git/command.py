"""The ``git`` command in a clean room: what it may reach, and what its words mean."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from controlplane.folders import scratch_folder
from controlplane.security.redaction import bounded_tail, redact
from controlplane.subprocesses import ProcessResult, ProcessStartError, run_process
from scm.git.askpass import GitCredential
from scm.git_addresses import LookupTimedOutError, is_public, look_up
from scm.git_urls import SourceError, SourceUrl

_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """What the operator allows, and the limits. Times are seconds."""

    allow_file: bool = False
    allow_private: bool = False
    resolve_timeout: float = 30.0
    fetch_timeout: float = 600.0
    max_bytes: int = 2 * 1024**3
    """Of everything on disk: the fetched objects and the files made of them."""
    extra_ca_file: str | None = None


@contextmanager
def session(
    source: SourceUrl,
    policy: SourcePolicy,
    timeout: float,
    cancelled: Event | None,
    credential: GitCredential | None = None,
) -> Iterator[Git]:
    """Judge a source and yield a ``git`` that can reach it and nothing else.

    A ``credential`` for another origin counts for nothing. One for this origin also says that the
    operator chose the host, so it may be on a private network.
    """
    deadline = time.monotonic() + timeout
    if credential is not None:
        credential = credential if credential.is_for(source) else None
    config = [
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("credential.helper", ""),
        ("safe.directory", "*"),
        ("protocol.allow", "never"),
        (f"protocol.{source.scheme}.allow", "always"),
        ("http.followRedirects", "false"),
        ("http.lowSpeedLimit", "100"),
        ("http.lowSpeedTime", "60"),
        ("fetch.recurseSubmodules", "false"),
        ("submodule.recurse", "false"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("init.defaultBranch", "main"),
    ]
    address = str(source)
    if source.scheme == "file":
        if not policy.allow_file:
            raise SourceError(
                "source-url-forbidden", "file URLs are not allowed by the operator of this server."
            )
    else:
        allow_private = policy.allow_private or credential is not None
        addresses = _judged_addresses(source, allow_private, timeout, cancelled)
        if source.scheme == "git":
            address = f"git://{addresses[0]}:{source.port}{source.path}"
        elif ":" not in source.host and source.host not in addresses:
            # A literal address needs no pin; for a name git must not ask again.
            pinned = ",".join(addresses)
            config.append(("http.curloptResolve", f"{source.host}:{source.port}:{pinned}"))
    with ExitStack() as stack:
        try:
            home = stack.enter_context(scratch_folder("git"))
            if policy.extra_ca_file:
                config.append(("http.sslCAInfo", str(_ca_bundle(policy.extra_ca_file, home))))
            descriptor = None
            if credential is not None:
                descriptor = stack.enter_context(credential.descriptor())
                config.append(credential.helper(descriptor))
            (home / "gitconfig").write_text("".join(map(_config_line, config)))
        except OSError as error:
            reason = error.strerror or "unknown error"
            raise SourceError(
                "source-checkout-failed", f"Reading {source} could not be prepared: {reason}."
            ) from None
        yield Git(
            source, address, home, deadline, policy.max_bytes, cancelled, descriptor, credential
        )


def _judged_addresses(
    source: SourceUrl, allow_private: bool, timeout: float, cancelled: Event | None
) -> list[str]:
    """Return the addresses of the source's host, as URLs spell them, or refuse the source."""
    try:
        found = look_up(source.host, timeout=timeout, cancelled=cancelled)
    except ValueError:
        raise SourceError(
            "source-url-forbidden", f"The host of {source} is an address in an unusual notation."
        ) from None
    except LookupTimedOutError:
        raise SourceError(
            "source-timed-out", f"The name service did not resolve the host of {source} in time."
        ) from None
    if cancelled is not None and cancelled.is_set():
        raise SourceError("source-cancelled", f"Reading {source} was cancelled.")
    if not allow_private and not all(map(is_public, found)):
        raise SourceError(
            "source-url-forbidden", f"The host of {source} is not on the public internet."
        )
    if not found:
        raise SourceError("source-unreachable", f"The host of {source} does not exist.")
    return [f"[{entry}]" if entry.version == 6 else str(entry) for entry in found]


def _config_line(entry: tuple[str, str]) -> str:
    section, _, key = entry[0].rpartition(".")
    head, _, sub = section.partition(".")
    value = entry[1].replace("\\", "\\\\").replace('"', '\\"')
    return f'[{head} "{sub}"]' * bool(sub) + f"[{head}]" * (not sub) + f'\n\t{key} = "{value}"\n'


def _ca_bundle(extra: str, home: Path) -> Path:
    """Write the system's authorities and the operator's extra one into one file for git."""
    bundle = home / "ca.pem"
    candidates = (ssl.get_default_verify_paths().cafile, *_CA_BUNDLES)
    system = next((path for path in candidates if path and Path(path).is_file()), None)
    parts = [Path(path).read_bytes() for path in (system, extra) if path]
    bundle.write_bytes(b"\n".join(parts))
    return bundle


@dataclass(frozen=True, slots=True)
class Git:
    """The ``git`` command in a clean room, for one source and until one deadline."""

    source: SourceUrl
    address: str
    """What to connect to: the URL, with the judged address in it where git cannot be pinned."""
    home: Path
    deadline: float
    max_bytes: int
    cancelled: Event | None
    descriptor: int | None = None
    """Where the credential is read, if there is one for the source."""
    credential: GitCredential | None = None

    def run(
        self,
        *arguments: str,
        tree: Path | None = None,
        remote: bool = False,
        trace: bool = False,
        meter: Callable[[bytes], bool] | None = None,
    ) -> ProcessResult:
        """Run one git command; with ``tree`` in that checkout, whose size is watched.

        Only one that speaks to the ``remote`` may read the credential. ``meter`` gets the output
        instead and returns whether it has seen too much.
        """
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self.home / "gitconfig"),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TEMPLATE_DIR": "",
            "GIT_CEILING_DIRECTORIES": str((tree or self.home).parent),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS": "false",
            "GIT_SSH_COMMAND": "false",
            "GIT_ALLOW_PROTOCOL": self.source.scheme,
            "GIT_LFS_SKIP_SMUDGE": "1",
        }
        if self.source.scheme == "git":
            env["GIT_OVERRIDE_VIRTUAL_HOST"] = f"{self.source.host_in_url}:{self.source.port}"
        if trace:
            env |= {"GIT_TRACE_CURL": "1", "GIT_TRACE_CURL_NO_DATA": "1"}
        watch = _SizeWatch(tree, self.max_bytes) if tree else None
        too_much = Event()

        def measure(chunk: bytes) -> None:
            if meter is not None and meter(chunk):
                too_much.set()

        try:
            result = run_process(
                ["git", *arguments],
                # Never the worker's own folder: it may lie in a repository with a configuration.
                cwd=tree or self.home,
                env=env,
                timeout=max(0.0, self.deadline - time.monotonic()),
                cancelled=self.cancelled,
                output=measure,
                watch=lambda: too_much.is_set() or (watch is not None and watch()),
                stdout_limit=0 if meter else 4 * 1024 * 1024,
                grace=2.0,
                descriptors=[self.descriptor] if remote and self.descriptor is not None else [],
            )
        except ProcessStartError as error:
            raise SourceError("source-checkout-failed", str(error)) from None
        if too_much.is_set() or (result.ok and watch is not None and watch.exceeded()):
            raise self._too_large()
        return result

    def must(self, *arguments: str, tree: Path) -> str:
        """Run a command that has to succeed and return what it printed."""
        result = self.run(*arguments, tree=tree)
        if not result.ok:
            raise self.failure(result, otherwise="source-checkout-failed")
        return result.stdout.decode("utf-8", "replace").strip()

    def _too_large(self) -> SourceError:
        return SourceError(
            "source-too-large",
            f"{self.source} is larger than the {self.max_bytes} bytes that a source may take.",
        )

    def failure(self, result: ProcessResult, otherwise: str = "source-unreachable") -> SourceError:
        """Return the error that the words of a failed git command stand for."""
        source = self.source
        if result.cancelled:
            return SourceError("source-cancelled", f"Reading {source} was cancelled.")
        if result.timed_out:
            return SourceError("source-timed-out", f"{source} did not answer completely in time.")
        if result.stopped:
            return self._too_large()
        secrets = [self.credential.secret] if self.credential is not None else []
        text = bounded_tail(redact(result.tail, secrets), 4096)
        for pattern, code, message in _MEANINGS:
            if self.credential is not None and code == "source-auth-required":
                message = "{source} refuses the access that its installation grants."
            if re.search(pattern, text, re.IGNORECASE):
                return SourceError(code, message.format(source=source))
        said = [line for line in text.splitlines() if line.startswith(("fatal: ", "error: "))]
        last = said[-1] if said else text.strip().rpartition("\n")[2]
        last = last.replace(str(self.home), "").replace(self.address, str(source))
        return SourceError(otherwise, f"git failed on {source} ({result.ending}): {last[:500]}")


_MEANINGS = (
    (
        r"could not read (Username|Password)|Authentication failed|returned error: 40[13]\b",
        "source-auth-required",
        "{source} asks for a sign-in: the repository is private or does not exist.",
    ),
    (
        r"returned error: 3\d\d",
        "source-url-forbidden",
        "{source} is redirected to another address; use that one.",
    ),
    (
        r"not our ref|couldn't find remote ref|unadvertised object|not found in upstream",
        "source-ref-not-found",
        "{source} does not have the commit or ref that was asked for.",
    ),
    (
        (
            r"repository '[^']*' not found|does not appear to be a git repository"
            r"|repository not exported|is this a git repository|no such repository"
            r"|returned error: 404|dumb http transport"
        ),
        "source-unreachable",
        "There is no git repository at {source}.",
    ),
    (
        r"timed out|too slow|Operation timeout",
        "source-timed-out",
        "{source} did not answer in time.",
    ),
    (
        r"server certificate|SSL certificate|certificate verif|SSL peer",
        "source-unreachable",
        "{source} shows a certificate that is not trusted here.",
    ),
    (
        (
            r"Could not resolve host|Couldn't resolve|Failed to connect|Couldn't connect"
            r"|Connection refused|unable to connect|Connection reset|Empty reply|early EOF"
            r"|hung up unexpectedly|returned error: (429|5\d\d)|No route to host|unreachable"
        ),
        "source-unreachable",
        "{source} cannot be reached or does not serve the repository now.",
    ),
    (
        r"No space left on device",
        "source-checkout-failed",
        "There is no disk space left for {source}.",
    ),
)
"""What git says (in the C locale), the code it stands for and what we say; first match wins."""


class _SizeWatch:
    """Looks now and then at how much a folder takes on disk."""

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root
        self._limit = limit
        self._next = time.monotonic() + 0.2

    def __call__(self) -> bool:
        """Return whether the folder is too large; seldom, so that looking costs a few percent."""
        started = time.monotonic()
        if started < self._next:
            return False
        found = self.exceeded()
        ended = time.monotonic()
        self._next = ended + max(0.2, 10 * (ended - started))
        return found

    def exceeded(self) -> bool:
        """Measure; every entry counts at least half a kilobyte, so that empty ones count too."""
        total = 0
        folders = [self._root]
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        try:
                            total += max(512, entry.stat(follow_symlinks=False).st_blocks * 512)
                        except FileNotFoundError:
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(Path(entry.path))
                        if total > self._limit:
                            return True
            except (FileNotFoundError, NotADirectoryError):
                continue
        return False
