"""A checkout of one commit, made the same way every time.

It is a shallow clone as a person would want to find it: ``origin`` is the plain URL, a branch is
checked out as a branch. It is also as reproducible as git allows: nothing in it depends on when or
where it was made, and the folder's own modification time is the time of the commit.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from threading import Event

from controlplane.folders import remove_tree
from controlplane.subprocesses import ProcessResult
from scm.git.askpass import GitCredential
from scm.git.command import Git, SourcePolicy, session
from scm.git.remote import ResolvedSource
from scm.git_urls import COMMIT_ID, SourceError, SourceUrl, is_ref, parse_url

_FETCHED = "refs/svc/fetched"
_DATE = re.compile(r"[0-9]{1,10}")
_BLOCK = 4096
"""What a file takes at least, however small it is."""


def checkout(
    source: ResolvedSource,
    into: Path,
    policy: SourcePolicy,
    cancelled: Event,
    credential: GitCredential | None = None,
) -> None:
    """Make ``into``, which must not exist, a checkout of ``source``; it is gone after a failure.

    Nothing of the credential, with which a private source is fetched, is in the checkout. Raises
    :class:`SourceError`.
    """
    url = parse_url(source.url)
    if not COMMIT_ID.fullmatch(source.commit) or not (
        is_ref(source.ref) or COMMIT_ID.fullmatch(source.ref)
    ):
        raise SourceError("source-ref-not-found", "The commit or the ref is malformed.")
    try:
        into.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(url, error) from None
    try:
        with session(url, policy, policy.fetch_timeout, cancelled, credential) as git:
            _Checkout(git, source, into).make()
    except OSError as error:
        remove_tree(into)
        raise _unwritable(url, error) from None
    except BaseException:
        remove_tree(into)
        raise


def _unwritable(url: SourceUrl, error: OSError) -> SourceError:
    reason = error.strerror or "unknown error"
    return SourceError(
        "source-checkout-failed", f"The checkout of {url} could not be written: {reason}."
    )


class _Checkout:
    """The steps from nothing to a checkout."""

    def __init__(self, git: Git, source: ResolvedSource, into: Path) -> None:
        self._git = git
        self._source = source
        self._into = into

    def make(self) -> None:
        """Fetch the commit, write its files, leave nothing that differs from time to time."""
        git, tree = self._git, self._into
        kind = "sha256" if len(self._source.commit) == 64 else "sha1"
        git.must("init", "--quiet", "--template=", f"--object-format={kind}", tree=tree)
        git.must("remote", "add", "origin", str(git.source), tree=tree)
        self._fetch()
        commit = git.must("rev-parse", "--verify", "--quiet", f"{_FETCHED}^{{commit}}", tree=tree)
        branch = self._source.ref.removeprefix("refs/heads/")
        if branch != self._source.ref:
            git.must("update-ref", f"refs/remotes/origin/{branch}", commit, tree=tree)
            git.must("update-ref", f"refs/heads/{branch}", commit, tree=tree)
            git.must("symbolic-ref", "HEAD", f"refs/heads/{branch}", tree=tree)
            git.must("config", f"branch.{branch}.remote", "origin", tree=tree)
            git.must("config", f"branch.{branch}.merge", self._source.ref, tree=tree)
        else:
            git.must("update-ref", "--no-deref", "HEAD", commit, tree=tree)
        git.must("update-ref", "-d", _FETCHED, tree=tree)
        self._measure(commit)
        git.must("reset", "--hard", "--quiet", tree=tree)
        # An index that was read from the tree holds no inode and no time of this machine.
        (tree / ".git" / "index").unlink(missing_ok=True)
        git.must("read-tree", "HEAD", tree=tree)
        date = git.must("log", "-1", "--format=%ct", tree=tree)
        # git prints what the commit has, however impossible as a date.
        moment = int(date) if _DATE.fullmatch(date) else 0
        for name in ("logs", "hooks", "branches"):
            shutil.rmtree(tree / ".git" / name, ignore_errors=True)
        for name in ("FETCH_HEAD", "ORIG_HEAD", "description"):
            (tree / ".git" / name).unlink(missing_ok=True)
        os.utime(tree, (moment, moment))

    def _measure(self, commit: str) -> None:
        """Refuse a tree whose files would be too large, before git holds all of it in memory.

        A few kilobytes of objects can stand for millions of files.
        """
        meter = _TreeMeter(self._git.max_bytes)
        listing = ("ls-tree", "-r", "--full-tree", "--format=%(objectsize)", commit)
        result = self._git.run(*listing, tree=self._into, meter=meter)
        if not result.ok:
            raise self._git.failure(result, otherwise="source-checkout-failed")

    def _fetch(self) -> None:
        """Fetch the commit itself; from an old server what leads to it."""
        commit, ref = self._source.commit, self._source.ref
        result = self._try(f"+{commit}:{_FETCHED}", "--depth=1")
        if result.ok:
            return
        if b"unadvertised object" not in result.tail:
            raise self._git.failure(result, otherwise="source-checkout-failed")
        if ref != commit and self._try(f"+{ref}:{_FETCHED}", "--depth=1").ok:
            tip = self._git.must("rev-parse", f"{_FETCHED}^{{commit}}", tree=self._into)
            if tip == commit:
                return
        # The ref has moved on, or a bare commit was asked for: only the whole history can tell.
        (self._into / ".git" / "shallow").unlink(missing_ok=True)
        refs = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        result = self._try(*refs)
        if not result.ok:
            raise self._git.failure(result, otherwise="source-checkout-failed")
        if not self._git.run("update-ref", _FETCHED, commit, tree=self._into).ok:
            raise SourceError(
                "source-ref-not-found", f"{self._git.source} does not have the commit {commit}."
            )

    def _try(self, *refspecs_and_options: str) -> ProcessResult:
        options = [item for item in refspecs_and_options if item.startswith("--")]
        refspecs = [item for item in refspecs_and_options if not item.startswith("--")]
        return self._git.run(
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", *options),
            *("--", self._git.address, *refspecs),
            tree=self._into,
            remote=True,
        )


class _TreeMeter:
    """Adds up the sizes that ``git ls-tree`` prints, a line each, in whole blocks."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._rest = b""

    def __call__(self, chunk: bytes) -> bool:
        """Take the next piece of the listing; return whether the limit is exceeded."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            size = int(line) if line.isdigit() else 0
            self._total += max(1, -(-size // _BLOCK)) * _BLOCK
        return self._total > self._limit
