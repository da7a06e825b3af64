"""Small images, pushed into the real registry without the client that is tested."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import uuid

import requests

from tests.registries.account import BASIC
from tests.support.waiting import LONG_WAIT

BASE_URL = os.environ.get("REGISTRY_BASE_URL", "http://127.0.0.1:5000")
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
GONE = "sha256:" + "0" * 64
"""The digest of nothing."""


def digest_of(content: bytes) -> str:
    """Return the digest by which a registry knows some content."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def push_blob(repository: str, content: bytes) -> dict[str, object]:
    """Push a blob and return its descriptor."""
    url = f"{BASE_URL}/v2/{repository}/blobs/uploads/"
    location = requests.post(url, auth=BASIC, timeout=LONG_WAIT).headers["Location"]
    digest = digest_of(content)
    put = requests.put(
        location, params={"digest": digest}, data=content, auth=BASIC, timeout=LONG_WAIT
    )
    assert put.status_code == 201
    return {"size": len(content), "digest": digest, "mediaType": "application/octet-stream"}


def put_manifest(repository: str, reference: str, media_type: str, document: object) -> str:
    """Push a manifest and return its digest."""
    content = json.dumps(document).encode()
    put = requests.put(
        f"{BASE_URL}/v2/{repository}/manifests/{reference}",
        data=content,
        headers={"Content-Type": media_type},
        auth=BASIC,
        timeout=LONG_WAIT,
    )
    assert put.status_code == 201, put.text
    return digest_of(content)


def push_image(repository: str, tag: str, media_type: str = DOCKER_MANIFEST) -> str:
    """Push a small image of two layers and return its digest."""
    layers = [push_blob(repository, gzip.compress(uuid.uuid4().bytes)) for _ in range(2)]
    config = push_blob(repository, json.dumps({"id": uuid.uuid4().hex}).encode())
    document = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": config,
        "layers": [*layers, layers[0]],
    }
    return put_manifest(repository, tag, media_type, document)
