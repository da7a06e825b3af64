"""Only a well-formed name of a repository or a manifest reaches a registry."""

from __future__ import annotations

import pytest

from controlplane.oci_names import is_digest, is_repository, is_tag
from registries.client import InvalidReferenceError, RegistryClient
from tests.registries.images import GONE

BAD_NAMES = [
    *("", "A", "a//b", "/a", "a/", "a/../b", "a b", "a?x=1", "a#b", "a%2fb", "a\n", "-a", "a/-b"),
    *("a" * 256, "a/./b", "ü", "a___b"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_malformed_repository_never_reaches_the_registry(
    client: RegistryClient, name: str
) -> None:
    assert not is_repository(name)
    with pytest.raises(InvalidReferenceError):
        client.head_manifest(name, "v1")
    with pytest.raises(InvalidReferenceError):
        client.copy("a", GONE, name, "v1")


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "a/b", "a b", "a" * 129, "a:b", "sha256:12", "a\n"]
)
def test_a_malformed_reference_never_reaches_the_registry(
    client: RegistryClient, name: str
) -> None:
    assert not is_tag(name)
    assert not is_digest(name)
    with pytest.raises(InvalidReferenceError):
        client.get_manifest("a", name)


@pytest.mark.parametrize("name", ["a", "a/b/c", "a.b", "a_b", "a__b", "a--b", "0", "a" * 255])
def test_a_sound_repository_is_accepted(name: str) -> None:
    assert is_repository(name)
