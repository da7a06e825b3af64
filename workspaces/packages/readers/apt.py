"""Debian and Ubuntu: the paragraphs of deb822 (Debian Policy 5.1)."""

from __future__ import annotations

from collections.abc import Iterator

from .listing import Candidates, Listing, Offer


def read_apt(listing: Listing) -> Iterator[Offer]:
    """Yield apt's candidate of each package, then the other versions that it could install.

    The candidate is apt's own choice, with the operator's pins in it. Packages of foreign
    architectures are left out.
    """
    native = {listing.architecture, "all"}
    candidates = Candidates()
    for section, fields in _paragraphs(listing):
        name, version = fields.get("Package", ""), fields.get("Version", "")
        if not name or not version or fields.get("Architecture") not in native:
            continue
        if section == "candidates":
            candidates.add(name, version)
            yield Offer(
                name,
                version,
                _component(fields.get("Filename", "")),
                _provided(fields.get("Provides", "")),
            )
        elif candidates.is_new(name, version):
            yield Offer(name, version)


def _paragraphs(listing: Listing) -> Iterator[tuple[str, dict[str, str]]]:
    fields: dict[str, str] = {}
    for section, line in listing:
        if line:
            key, _, value = line.partition(":")
            fields[key] = value.strip()
        elif fields:
            yield section, fields
            fields = {}


def _component(filename: str) -> str:
    """Return ``main`` of ``pool/main/a/…`` and of the security archive's ``pool/updates/main/…``.

    Nothing where the archive is laid out otherwise.
    """
    pool, *folders = filename.split("/")
    component = next((folder for folder in folders if folder != "updates"), "")
    return component if pool == "pool" else ""


def _provided(text: str) -> tuple[str, ...]:
    """Return the names of ``awk, mail-transport-agent (= 1), libx:any``."""
    names = (item.partition("(")[0].strip().partition(":")[0] for item in text.split(","))
    return tuple(name for name in names if name)
