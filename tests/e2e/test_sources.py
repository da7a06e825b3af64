"""Which commit ends up in the workspace, for each way to name one."""

from __future__ import annotations

import pytest

from tests.stack.service import GitServer, Stack

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def library(git_server: GitServer) -> str:
    """A repository with three commits; the tags ``first`` and ``second`` name two of them."""
    url = git_server.publish("library", {"version": "1\n"})
    for number, tag in ((2, "second"), (3, "third")):
        (git_server.folder / "library.work" / "version").write_text(f"{number}\n")
        git_server.commit("library", tag)
    return url


@pytest.mark.parametrize(
    ("ref", "version", "head"),
    [
        pytest.param(None, "3", "trunk", id="the default branch"),
        pytest.param("second", "2", "HEAD", id="a tag"),
        pytest.param("a commit", "1", "HEAD", id="a commit"),
    ],
)
def test_the_ref_decides_what_is_checked_out(
    stack: Stack,
    git_server: GitServer,
    library: str,
    ref: str | None,
    version: str,
    head: str,
) -> None:
    wanted = git_server.commits["library:first"] if ref == "a commit" else ref
    source = {"url": library, **({"ref": wanted} if wanted else {})}

    started = stack.ready({"sources": {"workspace": source}})

    look = "cd /workspace/repo && cat version && git rev-parse --abbrev-ref HEAD && git status -s"
    assert stack.inside(started, look).split() == [version, head]


def test_a_repository_of_the_servers_own_disk_is_cloned_where_the_operator_allows_it(
    stack: Stack, git_server: GitServer, library: str
) -> None:
    url = f"file://{git_server.folder}/library.git"

    started = stack.ready({"sources": {"workspace": {"url": url, "ref": "trunk"}}})

    assert (
        stack.inside(started, "git -C /workspace/repo rev-parse HEAD")
        == (git_server.commits["library:third"])
    )
    assert stack.inside(started, "cat /workspace/repo/version") == "3"
