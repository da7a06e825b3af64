"""A private source is had with a token that only its own host and git's own memory ever hold."""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from scm.git import GitCredential, ResolvedSource, SourceError, SourcePolicy, checkout, resolve
from scm.git.command import session
from scm.git_urls import parse_url
from tests.scm.conftest import NEVER, HttpsServer, Origin, git
from tests.scm.private_git import PrivateGit, basic, serving_privately
from tests.support.waiting import LONG_WAIT

TOKEN = "ghs_" + "c4naryCredential" * 2
SPELLINGS = [
    TOKEN.encode(),
    base64.b64encode(f"x-access-token:{TOKEN}".encode()),
    base64.b64encode(TOKEN.encode()).rstrip(b"="),
]


@pytest.fixture
def private(served: Path) -> Iterator[PrivateGit]:
    """A server that shows the repositories to the holder of the token."""
    with serving_privately(served, TOKEN) as server:
        yield server


@pytest.fixture
def credential(private: PrivateGit) -> GitCredential:
    """The token, for this server."""
    return GitCredential(private.url, TOKEN)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for everything temporary."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class Watch(threading.Thread):
    """Reads the arguments and the environment of every process, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.leaks: set[str] = set()
        self.seen: set[str] = set()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            self.look()

    def look(self) -> None:
        """Look once."""
        for process in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    content = (process / name).read_bytes()
                except OSError:
                    continue
                if name == "cmdline":
                    self.seen.update(content.decode("utf-8", "replace").split("\0"))
                if any(spelling in content for spelling in SPELLINGS):
                    self.leaks.add(f"{name} of {content[:80]!r}")

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def holders(folder: Path) -> list[Path]:
    """Return the files below a folder that hold the token in any spelling."""
    found = []
    for top, _, names in os.walk(folder):  # passes over what git removes meanwhile
        for file in (Path(top, name) for name in names):
            with suppress(FileNotFoundError):
                regular = file.is_file() and not file.is_symlink()
                if regular and any(spelling in file.read_bytes() for spelling in SPELLINGS):
                    found.append(file)
    return found


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_that_holds_the_token_is_found(tmp_path: Path, spelling: bytes) -> None:
    (tmp_path / "config").write_bytes(b"password = " + spelling + b"\n")
    assert holders(tmp_path) == [tmp_path / "config"]


def url_of(private: PrivateGit, kind: str = "") -> str:
    return f"{private.url}/{kind}odd%20name.git"


def test_a_private_repository_is_checked_out_with_the_token_and_keeps_nothing_of_it(
    private: PrivateGit,
    credential: GitCredential,
    origin: Origin,
    policy: SourcePolicy,
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    source = resolve(url_of(private), None, policy, credential=credential)
    checkout(source, tree, policy, NEVER, credential)

    assert source == ResolvedSource(url_of(private), "refs/heads/trunk", origin.trunk)
    assert (tree / "README").read_text() == "two\n"
    assert git(tree, "config", "--get-all", "remote.origin.url") == url_of(private)
    assert "credential" not in (tree / ".git" / "config").read_text()
    assert holders(tmp_path) == []
    assert set(private.shown) == {basic(TOKEN)}


def test_the_token_is_in_no_argument_no_variable_and_no_file_while_git_runs(
    private: PrivateGit,
    credential: GitCredential,
    policy: SourcePolicy,
    tmp_path: Path,
    temporary: Path,
) -> None:
    found: list[Path] = []
    configurations: list[str] = []

    def look() -> None:
        found.extend(holders(tmp_path))
        for file in temporary.rglob("gitconfig"):
            configurations.append(file.read_text())
        watch.look()

    with Watch() as watch:
        private.on_request = look
        source = resolve(url_of(private), "trunk", policy, credential=credential)
        checkout(source, tmp_path / "tree", policy, NEVER, credential)

    assert len(private.shown) >= 3
    # git was there to be looked at, and so was the file that names the descriptor.
    assert any("git-remote-http" in word or word == "ls-remote" for word in watch.seen)
    assert configurations
    assert all("/proc/self/fd/" in text for text in configurations)
    assert watch.leaks == set()
    assert found == []
    assert list(temporary.iterdir()) == []


def test_it_is_the_same_over_https_at_a_host_that_has_a_name(
    https_server: HttpsServer, served: Path, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    trusting = replace(policy, allow_private=False, extra_ca_file=str(https_server.certificate))
    with serving_privately(served, TOKEN, certificate=tmp_path / "server.pem") as private:
        credential = GitCredential(private.url, TOKEN)
        source = resolve(url_of(private), "trunk", trusting, credential=credential)
        checkout(source, tmp_path / "tree", trusting, NEVER, credential)
        assert source.commit == origin.trunk
        assert set(private.shown) == {basic(TOKEN)}
        # The same host and port, but nobody vouches for it: it is not shown the token.
        private.requests.clear()
        with pytest.raises(SourceError) as caught:
            resolve(url_of(private), "trunk", policy, credential=credential)
        assert "not trusted" in caught.value.message
        assert private.requests == []


def test_without_the_token_the_server_asks_for_a_sign_in(
    private: PrivateGit, policy: SourcePolicy
) -> None:
    with pytest.raises(SourceError) as caught:
        resolve(url_of(private), None, policy)
    assert caught.value.code == "source-auth-required"
    assert private.shown == []


def test_a_token_that_is_refused_is_told_without_repeating_it(
    private: PrivateGit, credential: GitCredential, policy: SourcePolicy, tmp_path: Path
) -> None:
    source = resolve(url_of(private), None, policy, credential=credential)
    private.tokens.clear()
    for attempt in (
        lambda: resolve(url_of(private), None, policy, credential=credential),
        lambda: checkout(source, tmp_path / "tree", policy, NEVER, credential),
    ):
        with pytest.raises(SourceError) as caught:
            attempt()
        assert caught.value.code == "source-auth-required"
        assert "refuses the access" in caught.value.message
        assert TOKEN not in str(caught.value)
    assert not (tmp_path / "tree").exists()


def test_a_redirect_on_the_same_host_is_followed_with_the_token(
    private: PrivateGit,
    credential: GitCredential,
    origin: Origin,
    policy: SourcePolicy,
    tmp_path: Path,
) -> None:
    source = resolve(url_of(private, "here/"), None, policy, credential=credential)
    checkout(source, tmp_path / "tree", policy, NEVER, credential)
    assert source.url == url_of(private)
    assert source.commit == origin.trunk


def test_a_redirect_to_another_host_is_refused_and_that_one_sees_nothing(
    private: PrivateGit,
    credential: GitCredential,
    served: Path,
    policy: SourcePolicy,
    tmp_path: Path,
) -> None:
    with serving_privately(served, TOKEN) as elsewhere:
        for target in (elsewhere.url, elsewhere.url.replace("127.0.0.1", "localhost")):
            private.moved_to = target
            with pytest.raises(SourceError) as caught:
                resolve(url_of(private, "away/"), None, policy, credential=credential)
            assert caught.value.code == "source-url-forbidden"
            source = ResolvedSource(url_of(private, "away/"), "HEAD", "1" * 40)
            with pytest.raises(SourceError) as caught:
                checkout(source, tmp_path / "tree", policy, NEVER, credential)
            assert caught.value.code == "source-url-forbidden"
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.org/x",
        "http://git.example.org:8080/x",
        "http://example.org/x",
        "http://git.example.org.evil.example/x",
        "git://git.example.org/x",
    ],
)
def test_a_credential_is_for_one_origin_exactly(url: str) -> None:
    credential = GitCredential("http://git.example.org", TOKEN)
    assert credential.is_for(parse_url("http://git.example.org:80/any/path"))
    assert not credential.is_for(parse_url(url))


def test_git_has_no_descriptor_for_a_source_at_another_origin(
    private: PrivateGit, policy: SourcePolicy, served: Path, tmp_path: Path
) -> None:
    """A host that asks for a sign-in gets none of ours, even when git is started with a token."""
    other = GitCredential("http://localhost:1", TOKEN)
    source = ResolvedSource(url_of(private), "HEAD", "1" * 40)
    with pytest.raises(SourceError) as caught:
        checkout(source, tmp_path / "tree", policy, NEVER, other)
    assert caught.value.code == "source-auth-required"
    assert private.requests
    assert private.shown == []


def test_only_a_command_that_asks_the_remote_can_read_the_credential(
    private: PrivateGit, credential: GitCredential, policy: SourcePolicy, tmp_path: Path
) -> None:
    with session(parse_url(url_of(private)), policy, LONG_WAIT, NEVER, credential) as here:
        assert here.descriptor is not None
        reading = f"alias.read=!cat /proc/self/fd/{here.descriptor}"
        assert TOKEN.encode() in here.run("-c", reading, "read", remote=True).stdout
        assert TOKEN.encode() not in here.run("-c", reading, "read").tail
        assert TOKEN not in repr(here)
        descriptor = Path(f"/proc/self/fd/{here.descriptor}")
        assert "svc-credential" in str(descriptor.readlink())
    with suppress(FileNotFoundError):  # its number may be that of another file by now
        assert "svc-credential" not in str(descriptor.readlink())
    assert TOKEN not in repr(credential)


def test_git_asks_as_often_as_it_likes(credential: GitCredential, private: PrivateGit) -> None:
    with credential.descriptor() as descriptor:
        _, helper = credential.helper(descriptor)
        asked, answered = f"url={private.url}\n\n".encode(), b""
        # After "fill" git tells its helper whether that was right: to store it, or to erase it.
        for operation in ("fill", "fill", "approve", "fill", "reject", "fill"):
            done = subprocess.run(
                ["git", "-c", f"credential.helper={helper}", "credential", operation],
                input=asked if operation == "fill" else answered,
                pass_fds=[descriptor],
                capture_output=True,
                check=True,
            )
            if operation == "fill":
                assert f"password={TOKEN}\n".encode() in done.stdout
                answered = done.stdout + b"\n"


def test_the_provider_may_be_on_a_private_network_because_the_operator_chose_it(
    private: PrivateGit, credential: GitCredential, policy: SourcePolicy, origin: Origin
) -> None:
    strict = replace(policy, allow_private=False)
    source = resolve(url_of(private), None, strict, credential=credential)
    assert source.commit == origin.trunk
    with pytest.raises(SourceError) as caught:
        resolve(url_of(private), None, strict)
    assert caught.value.code == "source-url-forbidden"


@pytest.mark.parametrize("secret", ["", "two\nlines", "carriage\rreturn", "nul\0"])
def test_a_secret_that_would_say_more_than_itself_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        GitCredential("https://git.example.org", secret)


def test_a_credential_for_what_is_not_http_is_refused() -> None:
    for origin in ("git://git.example.org", "file:///srv"):
        with pytest.raises(ValueError, match="with an HTTP server"):
            GitCredential(origin, TOKEN)


def test_sources_that_are_fetched_at_the_same_time_show_each_server_its_own_token_only(
    served: Path, policy: SourcePolicy, tmp_path: Path
) -> None:
    tokens = [f"ghs_{number}{'x' * 30}" for number in range(4)]
    with ExitStack() as stack:
        servers = [stack.enter_context(serving_privately(served, token)) for token in tokens]

        def fetch(number: int) -> Path:
            server, into = servers[number % 4], tmp_path / f"tree-{number}"
            credential = GitCredential(server.url, tokens[number % 4])
            source = resolve(url_of(server), "trunk", policy, credential=credential)
            checkout(source, into, policy, NEVER, credential)
            return into

        with ThreadPoolExecutor(4) as pool:
            trees = list(pool.map(fetch, range(8)))
        assert all((tree / "README").is_file() for tree in trees)
        for server, token in zip(servers, tokens, strict=True):
            assert set(server.shown) == {basic(token)}
