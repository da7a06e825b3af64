"""The registry client against the real registry."""

from __future__ import annotations

import pytest
import requests

from registries.client import InvalidReferenceError, RegistryClient
from tests.registries.account import BASIC
from tests.registries.images import (
    BASE_URL,
    DOCKER_MANIFEST,
    GONE,
    OCI_INDEX,
    OCI_MANIFEST,
    digest_of,
    push_image,
    put_manifest,
)
from tests.support.waiting import LONG_WAIT


def test_the_registry_answers(client: RegistryClient) -> None:
    client.ping()


@pytest.mark.parametrize("media_type", [DOCKER_MANIFEST, OCI_MANIFEST])
def test_a_manifest_is_found_by_tag_and_by_digest(
    client: RegistryClient, repository: str, media_type: str
) -> None:
    digest = push_image(repository, "v1", media_type)
    assert client.head_manifest(repository, "v1") == digest
    assert client.head_manifest(repository, digest) == digest
    manifest = client.get_manifest(repository, "v1")
    assert manifest is not None
    assert (manifest.digest, manifest.media_type) == (digest, media_type)
    assert digest_of(manifest.content) == digest


def test_what_does_not_exist_is_none(client: RegistryClient, repository: str) -> None:
    assert client.head_manifest(repository, "v1") is None
    assert client.get_manifest(repository, "v1") is None
    push_image(repository, "v1")
    assert client.head_manifest(repository, "v2") is None
    assert client.head_manifest(repository, GONE) is None


@pytest.mark.parametrize("media_type", [DOCKER_MANIFEST, OCI_MANIFEST])
def test_a_copy_names_the_same_manifest_in_another_repository(
    client: RegistryClient, repository: str, media_type: str
) -> None:
    digest = push_image(repository, "v1", media_type)
    assert client.copy(repository, digest, f"{repository}/copy", "other")
    assert client.head_manifest(f"{repository}/copy", "other") == digest
    assert client.copy(repository, digest, f"{repository}/copy", "again")
    assert client.head_manifest(f"{repository}/copy", "again") == digest
    manifest = client.get_manifest(f"{repository}/copy", digest)
    assert manifest is not None
    for layer in manifest.parsed()["layers"]:
        url = f"{BASE_URL}/v2/{repository}/copy/blobs/{layer['digest']}"
        assert requests.head(url, auth=BASIC, timeout=LONG_WAIT).status_code == 200


def test_a_copy_within_a_repository_adds_a_tag_and_may_move_one(
    client: RegistryClient, repository: str
) -> None:
    first, second = push_image(repository, "v1"), push_image(repository, "v2")
    assert client.copy(repository, first, repository, "v2")
    assert client.head_manifest(repository, "v2") == first
    assert client.head_manifest(repository, second) == second


def test_an_index_is_copied_with_its_manifests(client: RegistryClient, repository: str) -> None:
    children = [push_image(repository, f"child{n}", OCI_MANIFEST) for n in range(2)]
    manifests = []
    for child in children:
        manifest = client.get_manifest(repository, child)
        assert manifest is not None
        manifests.append(
            {
                "mediaType": OCI_MANIFEST,
                "digest": child,
                "size": len(manifest.content),
                "platform": {"architecture": "amd64", "os": "linux"},
            }
        )
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}
    digest = put_manifest(repository, "all", OCI_INDEX, index)
    assert client.copy(repository, digest, f"{repository}-copy", "all")
    assert client.head_manifest(f"{repository}-copy", "all") == digest
    assert client.head_manifest(f"{repository}-copy", children[1]) == children[1]


def test_what_is_gone_cannot_be_copied(client: RegistryClient, repository: str) -> None:
    digest = push_image(repository, "v1")
    assert not client.copy(f"{repository}-none", digest, repository, "v2")
    assert not client.copy(repository, GONE, repository, "v2")
    assert client.delete_manifest(repository, digest)
    assert not client.copy(repository, digest, f"{repository}-copy", "v1")
    assert client.head_manifest(f"{repository}-copy", "v1") is None


def test_an_image_whose_layer_is_gone_is_not_copied(
    client: RegistryClient, repository: str
) -> None:
    digest = push_image(repository, "v1")
    manifest = client.get_manifest(repository, digest)
    assert manifest is not None
    layer = manifest.parsed()["layers"][1]["digest"]
    blob = f"{BASE_URL}/v2/{repository}/blobs/{layer}"
    requests.delete(blob, auth=BASIC, timeout=LONG_WAIT).raise_for_status()
    assert not client.copy(repository, digest, f"{repository}-copy", "v1")
    assert client.head_manifest(f"{repository}-copy", "v1") is None


def test_a_manifest_is_deleted_once(client: RegistryClient, repository: str) -> None:
    digest = push_image(repository, "v1")
    assert client.delete_manifest(repository, digest)
    assert client.head_manifest(repository, "v1") is None
    assert not client.delete_manifest(repository, digest)
    with pytest.raises(InvalidReferenceError):
        client.delete_manifest(repository, "v1")
