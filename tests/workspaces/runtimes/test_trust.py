"""A workspace that trusts one more authority trusts those of its image as before, or is refused."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from uuid import uuid4

import docker
import pytest
from docker.models.containers import Container

from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST
from workspaces.egress.bound.authorities import new_authority
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.trust import LIST, MAX_LINKS, MAX_LIST_BYTES, trust

pytestmark = pytest.mark.docker


@pytest.fixture
def container() -> Iterator[Container]:
    """A container that was not started."""
    with contextlib.closing(docker.DockerClient(DOCKER_HOST, timeout=round(LONG_WAIT))) as engine:
        made = engine.containers.create(BASE_IMAGE, ["true"], network_mode="none")
        try:
            yield made
        finally:
            remove_container(made)


def put(container: Container, content: bytes, *, place: str = LIST, link: str = "") -> None:
    """Have a list of authorities there, or a link."""
    member = tarfile.TarInfo(place.lstrip("/"))
    member.size = len(content)
    if link:
        member.type, member.linkname = tarfile.SYMTYPE, link
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member, io.BytesIO(content))
    container.put_archive("/", buffer.getvalue())


def content_of(container: Container, place: str) -> bytes:
    chunks, _ = container.get_archive(place)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        file = archive.extractfile(archive.getmembers()[0])
        assert file is not None
        return file.read()


@pytest.mark.parametrize("links", [0, MAX_LINKS, MAX_LINKS + 1])
@pytest.mark.parametrize("size", [6, MAX_LIST_BYTES])
def test_what_the_image_trusts_is_never_replaced(
    container: Container, links: int, size: int
) -> None:
    authority = new_authority(uuid4())[0].encode()
    places = [LIST, *(f"/etc/ssl/certs/list-{number}" for number in range(links))]
    for place, link in pairwise(places):
        put(container, b"", place=place, link=link)
    known = b"x" * size
    put(container, known, place=places[-1])
    if links <= MAX_LINKS and size < MAX_LIST_BYTES:
        trust(container, authority)
        assert content_of(container, places[-1]) == known + b"\n" + authority
        return
    with pytest.raises(LaunchError, match="list of authorities") as caught:
        trust(container, authority)
    assert caught.value.code == "egress-not-enforced"
    assert content_of(container, places[-1]) == known
