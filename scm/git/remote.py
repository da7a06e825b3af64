"""Which commit a ref means, asked of the remote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from scm.git.askpass import GitCredential
from scm.git.command import SourcePolicy, session
from scm.git_urls import COMMIT_ID, SHORT_COMMIT_ID, SourceError, SourceUrl, is_ref, parse_url

_REDIRECTS = 3


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A source as it was at one moment."""

    url: str
    """Where it really is: the given URL, or where the forge redirects it to."""
    ref: str
    """The full name (``refs/heads/main``), ``HEAD``, or the commit when one was asked for."""
    commit: str


def resolve(
    url: str,
    ref: str | None,
    policy: SourcePolicy,
    cancelled: Event | None = None,
    credential: GitCredential | None = None,
) -> ResolvedSource:
    """Return the commit that ``ref`` means now; ``None`` means the remote's default branch.

    A ref is a branch, a tag, a full name below ``refs/`` or a full commit id; a branch wins over a
    tag of the same name. Whether a commit exists is only known at the checkout. A private source
    is asked with a ``credential``, and then only at that one's origin, wherever a server redirects
    to. Raises :class:`SourceError`.
    """
    source = parse_url(url)
    wanted = ref.strip() if ref is not None else None
    commit = wanted.lower() if wanted is not None else ""
    names: tuple[str, ...]
    if wanted is None or COMMIT_ID.fullmatch(commit):
        names = ("HEAD",)
    elif not is_ref(wanted):
        raise SourceError("source-ref-not-found", "The ref is not a valid name of a git ref.")
    elif wanted.startswith("refs/"):
        names = (wanted,)
    else:
        names = (f"refs/heads/{wanted}", f"refs/tags/{wanted}", f"refs/{wanted}")
    source, advertised = _list_remote(source, names, policy, cancelled, credential)
    if wanted is not None and COMMIT_ID.fullmatch(commit):
        return ResolvedSource(str(source), commit, commit)
    for name in names:
        if name in advertised.commits:
            # A tag object is not a commit; the remote says what it stands for.
            found = advertised.commits.get(f"{name}^{{}}", advertised.commits[name])
            return ResolvedSource(str(source), advertised.symbolic.get(name, name), found)
    if wanted is None:
        raise SourceError(
            "source-ref-not-found", f"The repository {source} has no default branch; name a ref."
        )
    hint = (
        " It looks like a shortened commit id: give the full id."
        if SHORT_COMMIT_ID.fullmatch(commit)
        else ""
    )
    raise SourceError("source-ref-not-found", f"{source} has no branch or tag {wanted}.{hint}")


@dataclass(frozen=True, slots=True)
class _Advertised:
    commits: dict[str, str] = field(default_factory=dict)
    symbolic: dict[str, str] = field(default_factory=dict)


def _list_remote(
    source: SourceUrl,
    names: Sequence[str],
    policy: SourcePolicy,
    cancelled: Event | None,
    credential: GitCredential | None,
) -> tuple[SourceUrl, _Advertised]:
    """Ask the remote for ``names``; follow its redirects as long as the policy allows each."""
    patterns = [pattern for name in names for pattern in (name, f"{name}^{{}}")]
    for _ in range(_REDIRECTS + 1):
        if credential is not None and not credential.is_for(source):
            # What is there is not the repository that the credential was given for.
            raise SourceError(
                "source-url-forbidden",
                f"The private source is redirected to {source}, which is a different host.",
            )
        with session(source, policy, policy.resolve_timeout, cancelled, credential) as git:
            argv = ("ls-remote", "--symref", "--", git.address, *patterns)
            result = git.run(*argv, remote=True)
            if result.ok:
                return source, _parse_listing(result.stdout)
            if not re.search(rb"returned error: 30[1278]", result.tail):
                raise git.failure(result)
            source = _redirected(source, git.run(*argv, remote=True, trace=True).tail)
    raise SourceError("source-url-forbidden", f"{source} is redirected too many times.")


def _parse_listing(stdout: bytes) -> _Advertised:
    listing = _Advertised()
    for line in stdout.decode("utf-8", "surrogateescape").splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            listing.symbolic[name] = value.removeprefix("ref: ")
        elif COMMIT_ID.fullmatch(value):
            listing.commits[name] = value
    return listing


def _redirected(source: SourceUrl, trace: bytes) -> SourceUrl:
    """Return where a server sends us to; raises when that is not the same kind of place."""
    match = re.search(rb"(?im)recv header: location: *([^\r\n]+)", trace)
    location = match[1].strip().decode("ascii", "replace") if match else ""
    if location.startswith("/"):
        location = f"{source.scheme}://{source.host_in_url}:{source.port}{location}"
    base = location.removesuffix("/info/refs?service=git-upload-pack")
    if base == location or "?" in base:
        raise SourceError(
            "source-url-forbidden",
            f"{source} is redirected to a page that is not a git repository; it may ask for a"
            " sign-in.",
        )
    try:
        target = parse_url(base)
    except SourceError:
        raise SourceError(
            "source-url-forbidden", f"{source} is redirected to an address that is not allowed."
        ) from None
    if source.scheme == "https" and target.scheme != "https":
        raise SourceError(
            "source-url-forbidden", f"{source} is redirected to {target}, which is not encrypted."
        )
    return target
