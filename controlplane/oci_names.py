"""The grammars of names in a registry (OCI distribution specification 1.1, "Pulling manifests")."""

from __future__ import annotations

import re

REPOSITORY = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


def is_repository(name: str) -> bool:
    """Whether ``name`` may name a repository, at most 255 characters as engines want it."""
    return len(name) <= 255 and REPOSITORY.fullmatch(name) is not None


def is_tag(name: str) -> bool:
    """Whether ``name`` may be a tag."""
    return TAG.fullmatch(name) is not None


def is_digest(name: str) -> bool:
    """Whether ``name`` is the digest of a manifest or blob."""
    return _DIGEST.fullmatch(name) is not None


def is_image(reference: str) -> bool:
    """Whether ``reference`` may name an image, with a registry before it and a tag after it."""
    return _IMAGE.fullmatch(reference) is not None
