"""Reading what a registry answered: nothing is believed before its shape has been looked at."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import urlsplit

from requests.utils import parse_header_links

from controlplane.oci_names import is_digest, is_tag
from controlplane.security.outbound import Answer
from registries.errors import Reason, RegistryError

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}")
_MAX_DEPTH = 64
_MAX_QUERY = 4096


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension of the API that a registry says it has (OCI extension "_oci")."""

    name: str
    url: str | None = None
    description: str | None = None
    endpoints: list[str] = field(default_factory=list)


def malformed(what: str) -> RegistryError:
    """Return the error for an answer that cannot be right: ``what`` completes the sentence."""
    return RegistryError(f"The registry answered with {what}.", Reason.MALFORMED)


def object_of(content: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in ``content``, fit to be shown in an answer of ours."""
    try:
        document = json.loads(content.decode(), parse_constant=_refuse, parse_float=_finite)
        json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or _is_deep(document):
        raise malformed(f"{what} that is not a JSON object")
    return document


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


def _is_deep(document: object) -> bool:
    level = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


def media_type_of(answer: Answer) -> str:
    """Return the media type without its parameters, empty when there is none."""
    media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
    if media_type and not _MEDIA_TYPE.fullmatch(media_type):
        raise malformed("a malformed media type")
    return media_type


def tags_of(answer: Answer) -> list[str]:
    """Return the tags of one page of a list; a repository whose tags are gone has ``null``."""
    tags = object_of(answer.content, "a list of tags").get("tags")
    if tags is None:
        return []
    if not isinstance(tags, list) or not all(isinstance(tag, str) and is_tag(tag) for tag in tags):
        raise malformed("a list of tags with an invalid tag")
    return tags


def next_query_of(answer: Answer) -> str | None:
    """Return the query of the page after this one, ``None`` on the last page.

    Only the query is taken of a ``Link`` (RFC 8288): wherever it points, the registry is asked.
    """
    links = parse_header_links(answer.headers.get("Link", ""))
    target = next((link["url"] for link in links if link.get("rel", "").lower() == "next"), None)
    if target is None:
        return None
    try:
        query = urlsplit(target).query
    except ValueError:
        query = ""
    if not query or len(query) > _MAX_QUERY or not query.isascii():
        raise malformed("a malformed link to the next page")
    return query


def extensions_of(answer: Answer) -> list[Extension]:
    """Return the extensions that a registry lists."""
    listed = object_of(answer.content, "a list of extensions").get("extensions")
    if not isinstance(listed, list | None):
        raise malformed("an invalid list of extensions")
    return [_extension(entry) for entry in listed or []]


def _extension(entry: object) -> Extension:
    if not isinstance(entry, dict):
        raise malformed("an extension that is not a JSON object")
    name, endpoints = entry.get("name"), entry.get("endpoints") or []
    url, description = entry.get("url"), entry.get("description")
    if not isinstance(name, str) or not name:
        raise malformed("an extension without a name")
    if not isinstance(endpoints, list) or not all(isinstance(each, str) for each in endpoints):
        raise malformed("an extension whose endpoints are not a list of texts")
    if not isinstance(url, str | None) or not isinstance(description, str | None):
        raise malformed("an extension whose URL or description is not text")
    return Extension(name, url, description, endpoints)


def digests_of(document: dict[str, Any], member: str) -> list[str]:
    """Return the digests that a manifest names in ``member``, without those kept elsewhere."""
    value = document.get(member, [])
    entries = value if isinstance(value, list) else [value]
    digests = [
        entry.get("digest") if isinstance(entry, dict) else None
        for entry in entries
        if not (isinstance(entry, dict) and entry.get("urls"))
    ]
    if not all(isinstance(digest, str) and is_digest(digest) for digest in digests):
        raise malformed("a manifest that names a malformed digest")
    return [str(digest) for digest in digests]
