"""What the secret of each provider looks like, and what may be shown of it.

====================  ======================================================  =====================
provider              secret                                                  kind
====================  ======================================================  =====================
``claude``            the text ``claude setup-token`` prints                  ``oauth-token``
``codex``             the content of ``~/.codex/auth.json``                   ``auth-json``
``github``            a personal access token, or ``gh auth token``           ``gh-cli-token``
``generic``           any text; the account's name is an environment          ``environment``
                      variable
====================  ======================================================  =====================

No message here repeats anything of a secret.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models

MAX_SECRET_LENGTH = 64 * 1024
"""Characters, and bytes in UTF-8: workspaces take no larger one."""
SHORTEST_SECRET_BYTES = 6
SHOWN_SUFFIX = 4
MAX_CLAIM_LENGTH = 200

_CLAUDE = re.compile(r"sk-ant-oat01-[A-Za-z0-9_-]{20,1000}")
_GITHUB = re.compile(
    r"(?:gh[pousr]_[A-Za-z0-9]{20,251}|github_pat_[A-Za-z0-9_]{20,244})|[0-9a-f]{40}"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")
_SECRET_MEMBER = re.compile("token|key|secret|password", re.IGNORECASE)
_RESERVED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TERM", "IFS", "BASH_ENV", "ENV"}
)


class Provider(models.TextChoices):
    """Whose accounts can be connected."""

    CLAUDE = "claude"
    CODEX = "codex"
    GITHUB = "github"
    GENERIC = "generic"


_VARIABLES: Mapping[str, frozenset[str]] = {
    "claude": frozenset({"CLAUDE_CODE_OAUTH_TOKEN"}),
    "codex": frozenset(),
    "github": frozenset({"GH_TOKEN", "GITHUB_TOKEN", "GIT_CONFIG_SYSTEM"}),
}


def variables_of(provider: Provider, name: str) -> frozenset[str]:
    """Return the environment variables that an account of this name sets in a workspace."""
    return frozenset({name}) if provider == Provider.GENERIC else _VARIABLES[provider.value]


class Kind(models.TextChoices):
    """What a sealed secret is."""

    OAUTH_TOKEN = "oauth-token"  # noqa: S105 - its kind, no token
    AUTH_JSON = "auth-json"
    GH_CLI_TOKEN = "gh-cli-token"  # noqa: S105 - its kind, no token
    ENVIRONMENT = "environment"


class SecretRefused(ValueError):
    """The secret is not what the provider gives out; the message says what is expected.

    ``member`` is the member of the request that is wrong: ``secret`` or ``name``.
    """

    def __init__(self, detail: str, *, member: str = "secret") -> None:
        super().__init__(detail)
        self.member = member


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that has its provider's shape. ``metadata`` may be shown, ``value`` never."""

    kind: Kind
    value: str
    metadata: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Secret({self.kind.value})"


def read_secret(provider: Provider, name: str, given: str) -> Secret:
    """Return the secret that a client gave for an account; raises ``SecretRefused``."""
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise SecretRefused("A secret must be well-formed Unicode text.") from None
    if size > MAX_SECRET_LENGTH:
        raise SecretRefused(f"A secret may have at most {MAX_SECRET_LENGTH} bytes in UTF-8.")
    return _READERS[provider](name, given)


def maskable(provider: Provider, secret: str) -> Sequence[str]:
    """Return every text of a secret that must not be shown: of a document its tokens."""
    if provider != Provider.CODEX:
        return [secret]
    try:
        document = json.loads(secret)
    except (ValueError, RecursionError):
        return [secret]
    return [*_tokens(document)] or [secret]


def _tokens(document: Any) -> Iterator[str]:
    """Yield the texts of a document whose members are called like secrets."""
    waiting = [("", document)]
    while waiting:
        called, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend((str(name), inner) for name, inner in value.items())
        elif isinstance(value, list):
            waiting.extend((called, inner) for inner in value)
        elif isinstance(value, str) and value and _SECRET_MEMBER.search(called):
            yield value


def _claude(name: str, given: str) -> Secret:
    token = given.strip()
    if not _CLAUDE.fullmatch(token):
        raise SecretRefused(
            "A Claude account needs the token that `claude setup-token` prints: it begins with "
            "sk-ant-oat01- and contains no spaces."
        )
    shown = {"tokenSuffix": token[-SHOWN_SUFFIX:], "connectedVia": "paste"}
    return Secret(Kind.OAUTH_TOKEN, token, shown)


def _github(name: str, given: str) -> Secret:
    token = given.strip()
    if not _GITHUB.fullmatch(token):
        raise SecretRefused(
            "A GitHub account needs a personal access token or what `gh auth token` prints: it "
            "begins with ghp_, gho_, ghu_, ghs_, ghr_ or github_pat_."
        )
    # Nobody was asked whether the token works and what it may do.
    shown = {"tokenSuffix": token[-SHOWN_SUFFIX:], "tokenType": "gh-cli", "scopesVerified": False}
    return Secret(Kind.GH_CLI_TOKEN, token, shown)


def _generic(name: str, given: str) -> Secret:
    if not _VARIABLE.fullmatch(name):
        raise SecretRefused(
            "The name of a generic account is the environment variable that receives its "
            "secret: letters, digits and _, not beginning with a digit.",
            member="name",
        )
    if name.upper() in _RESERVED or name.upper().startswith(("SVC_", "LD_")):
        raise SecretRefused("This environment variable is reserved.", member="name")
    if any(ord(character) < 32 and character not in "\t\n\r" for character in given):
        raise SecretRefused("A secret for the environment must be text without control characters.")
    if len(given.strip().encode()) < SHORTEST_SECRET_BYTES:
        raise SecretRefused(
            f"A secret for the environment must have {SHORTEST_SECRET_BYTES} bytes or more: "
            "shorter ones occur in ordinary text, so they could not be masked in records."
        )
    return Secret(Kind.ENVIRONMENT, given, {"environmentVariable": name})


def _codex(name: str, given: str) -> Secret:
    expected = (
        "A Codex account needs the content of ~/.codex/auth.json: a JSON object with a "
        "tokens.refresh_token or an OPENAI_API_KEY."
    )
    try:
        document = json.loads(given)
    except (ValueError, RecursionError):
        raise SecretRefused(expected) from None
    if not isinstance(document, dict):
        raise SecretRefused(expected)
    tokens = document.get("tokens")
    tokens = tokens if isinstance(tokens, dict) else {}
    if not _text(tokens.get("refresh_token")) and not _text(document.get("OPENAI_API_KEY")):
        raise SecretRefused(expected)
    claims = _claims(tokens.get("id_token"))
    account = _text(tokens.get("account_id")) or _text(_nested_account(claims))
    shown = {
        "accountId": account,
        "authMode": _text(document.get("auth_mode")),
        "lastRefresh": _text(document.get("last_refresh")),
        "email": _text(claims.get("email")),
    }
    return Secret(Kind.AUTH_JSON, given, {name: value for name, value in shown.items() if value})


def _nested_account(claims: Mapping[str, Any]) -> Any:
    nested = claims.get("https://api.openai.com/auth")
    if isinstance(nested, dict):
        return nested.get("chatgpt_account_id")
    return claims.get("chatgpt_account_id")


def _claims(token: Any) -> dict[str, Any]:
    """Return what a JSON web token says, unverified: only for a person to recognise it."""
    if not isinstance(token, str) or token.count(".") != 2:
        return {}
    body = token.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _text(value: Any) -> str:
    """Return printable text of bounded length; nothing for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        return ""
    return value.strip()[:MAX_CLAIM_LENGTH]


_READERS: Mapping[Provider, Callable[[str, str], Secret]] = {
    Provider.CLAUDE: _claude,
    Provider.CODEX: _codex,
    Provider.GITHUB: _github,
    Provider.GENERIC: _generic,
}
