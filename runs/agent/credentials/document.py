"""What is delivered: the accounts of one workspace, parsed as strictly as the configuration.

No refusal repeats anything of what was given: where a name is expected, a secret may have got in.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Tuple

from ..masking.known_values import Verbatim, base64_lines
from ..masking.masker import names_secret
from ..strict import RESERVED_PREFIX, ConfigError, Members, is_text

VERSION = 1
MAX_BYTES = 1024 * 1024
MAX_ACCOUNTS = 256
MAX_SECRET_BYTES = 64 * 1024
DEFAULT_HOST = "github.com"

_PROVIDERS = ("claude", "codex", "github", "generic")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9_.-]{0,250}[a-z0-9_])?)(:[0-9]{1,5})?")
_WORD = re.compile(r"[!-~]+")
_REFRESHED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_LONG_WORD = re.compile(r"[A-Za-z0-9._~+/=-]{20,}")
_MAX_DEPTH = 8
_LONGEST_IN_LINES = 16 * 1024


class Account(NamedTuple):
    """One account; `name` of a `generic` one is that of its variable, `host` is `github`'s."""

    id: str
    provider: str
    name: str
    secret: str
    host: str = DEFAULT_HOST

    def to_wire(self) -> Dict[str, str]:
        """The account as it is delivered."""
        members = self._asdict()
        if self.provider != "github":
            del members["host"]
        return members


def parse(content: bytes) -> Tuple[Account, ...]:
    """The accounts that are delivered; raises ConfigError for the first fault."""
    top = _document(content, frozenset(["version", "accounts"]))
    items = top.items("accounts")
    if len(items) > MAX_ACCOUNTS:
        top.refuse("accounts", f"must be at most {MAX_ACCOUNTS}")
    accounts = [_account(item, f"/accounts/{index}") for index, item in enumerate(items)]
    for index, account in enumerate(accounts):
        others = accounts[:index]
        if any(other.id == account.id for other in others):
            raise ConfigError(f"/accounts/{index}/id appears twice")
        if any(_place(other) == _place(account) for other in others):
            raise ConfigError(f"/accounts/{index} is a second account for the same purpose")
    return tuple(accounts)


def parse_withdrawal(content: bytes) -> FrozenSet[str]:
    """The ids of the accounts that are to be removed; raises ConfigError."""
    top = _document(content, frozenset(["version", "ids"]))
    ids = top.items("ids")
    if not all(isinstance(item, str) and _UUID.fullmatch(item) for item in ids):
        top.refuse("ids", "must be UUIDs in lower case")
    return frozenset(ids)


def secrets_of(account: Account) -> List[bytes]:
    """Everything in the account that must not be shown, also what is inside of its secret."""
    found = [account.secret]
    if account.provider == "codex":
        # Not the whole of it: most of its lines are ordinary text.
        texts = _texts(decoded(account.secret), 0)
        found = [text for name, text in texts if names_secret(name) or _LONG_WORD.fullmatch(text)]
    return [text.encode() for text in found]


def lines_of(secret: str) -> List[bytes]:
    """What a file with tokens in it looks like in base64: of its lines none is ordinary text."""
    if len(secret) > _LONGEST_IN_LINES:
        return []
    return [Verbatim(line) for line in base64_lines(secret.encode())]


def decoded(secret: str) -> Any:
    """The JSON in a secret; None when it is none."""
    try:
        return json.loads(secret)
    except (ValueError, RecursionError):
        return None


def tokens_of(value: Any) -> List[str]:
    """Every text in decoded JSON whose member's name says that it is secret."""
    return [text for name, text in _texts(value, 0) if names_secret(name)]


def is_codex(secret: str) -> bool:
    """Whether this is what the provider's tool can read."""
    return is_text(secret) and isinstance(decoded(secret), dict)


def renews(later: str, earlier: str) -> bool:
    """Whether the provider's tool has made `later` out of `earlier`, or out of its successor."""
    return (
        is_codex(later)
        and _holder(later) == _holder(earlier)
        and _refreshed(later) > _refreshed(earlier)
    )


def _holder(secret: str) -> object:
    value = decoded(secret)
    tokens = value.get("tokens") if isinstance(value, dict) else None
    return tokens.get("account_id") if isinstance(tokens, dict) else None


def _refreshed(secret: str) -> str:
    """When it was renewed last, as text that sorts by time; empty when it does not say."""
    value = decoded(secret)
    told = value.get("last_refresh") if isinstance(value, dict) else None
    match = _REFRESHED.fullmatch(told) if isinstance(told, str) else None
    return f"{match[1]}.{match[2] or '':0<9}" if match else ""


def _document(content: bytes, known: FrozenSet[str]) -> Members:
    if len(content) > MAX_BYTES:
        raise ConfigError(f"the document is longer than {MAX_BYTES} bytes")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise ConfigError("the document is not JSON") from None
    top = _members(value, "", known)
    version = top.take("version")
    if type(version) is not int or version != VERSION:
        top.refuse("version", f"must be {VERSION}")
    return top


def _members(value: object, pointer: str, known: FrozenSet[str]) -> Members:
    members = Members(value, pointer)
    if isinstance(value, dict) and not known.issuperset(value):
        raise ConfigError(f"{pointer or '/'} has a member that is not known")
    return members


def _account(item: object, pointer: str) -> Account:
    known = frozenset(["id", "provider", "name", "secret", "host"])
    members = _members(item, pointer, known)
    account_id = members.word("id")
    if not _UUID.fullmatch(account_id):
        members.refuse("id", "must be a UUID in lower case")
    provider = members.choice("provider", _PROVIDERS)
    name, secret = members.text("name"), members.word("secret")
    if len(secret.encode()) > MAX_SECRET_BYTES:
        members.refuse("secret", f"is longer than {MAX_SECRET_BYTES} bytes")
    host = DEFAULT_HOST
    if members.has("host"):
        host = members.word("host")
        if provider != "github" or not _HOST.fullmatch(host):
            members.refuse("host", "must be the name of a host, and only of a github account")
    if provider == "codex" and not is_codex(secret):
        members.refuse("secret", "must be a JSON object")
    if provider in ("claude", "github") and not _WORD.fullmatch(secret):
        members.refuse("secret", "must be one word of printable ASCII")
    if provider == "generic":
        if not (name.isascii() and name.isidentifier()):
            members.refuse("name", "is not a name for an environment variable")
        if name.startswith(RESERVED_PREFIX):
            members.refuse("name", f"is reserved: names in {RESERVED_PREFIX}* are the platform's")
    return Account(account_id, provider, name, secret, host)


def _place(account: Account) -> Tuple[str, str]:
    return account.provider, account.name if account.provider == "generic" else ""


def _texts(value: Any, depth: int) -> Iterator[Tuple[str, str]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _texts(item, depth + 1)
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str):
                yield name, item
            else:
                yield from _texts(item, depth + 1)
