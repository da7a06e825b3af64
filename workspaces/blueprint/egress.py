"""What a workspace may reach by name: the policy in ``runtime.network.egress``."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .grammar import Line
from .part import Many, Part

MAX_RULES: Final = 64
MAX_HOSTS: Final = 64
MAX_PORTS: Final = 16
MAX_PRESETS: Final = 16
DEFAULT_PORTS: Final = (443,)
UNSEEN_PORTS: Final = frozenset({22})
"""For protocols that have no requests with methods and paths."""
CLEAR_PORTS: Final = frozenset({22, 80})
"""Not for TLS, and a secret is sent over nothing else."""

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_HEADERS_OF_THE_PROXY = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade"}
)
_PRESET = re.compile(r"[a-z0-9][a-z0-9-]{0,62}(@[0-9]{1,6})?")


def _host(text: str) -> str:
    """Return a host name in small letters; ``*.`` before it means every name below it."""
    name = text.lower().removesuffix(".")
    below = name.startswith("*.")
    labels = name.removeprefix("*.").split(".")
    if _is_address(name):
        raise PydanticCustomError("malformed", "must be a name: rules cannot have addresses.")
    if not name.isascii():
        raise PydanticCustomError("malformed", "must be written in ASCII, as xn--… where needed.")
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise PydanticCustomError(
            "malformed",
            "must be a host name such as api.example.com, or *.example.com for every name below.",
        )
    if below and len(labels) < 2:
        raise PydanticCustomError(
            "malformed", "must have at least two parts behind '*.', as in *.example.com."
        )
    if labels[-1].isdigit():
        raise PydanticCustomError("malformed", "must not end in a number.")
    return name


def is_host(text: str) -> bool:
    """Tell whether a rule can name this host."""
    try:
        return _host(text) == text
    except PydanticCustomError:
        return False


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _preset(text: str) -> str:
    if not _PRESET.fullmatch(text):
        raise PydanticCustomError(
            "malformed", "must be the name of a preset, such as python or python@1."
        )
    return text


def _method(text: str) -> str:
    if not re.fullmatch(r"[A-Z]{1,32}", text):
        raise PydanticCustomError("malformed", "must be an HTTP method in capitals, such as GET.")
    return text


def _header(text: str) -> str:
    name = text.lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name) or name in _HEADERS_OF_THE_PROXY:
        raise PydanticCustomError(
            "malformed",
            "must be the name of a header that a request may have, such as authorization or "
            "x-api-key.",
        )
    return name


def _path(text: str) -> str:
    if not re.fullmatch(r"/[!-~]*", text) or set(text) & set("?#\\%;") or "*" in text[:-1]:
        raise PydanticCustomError(
            "malformed",
            "must be a path that begins with '/', without '%', '?', '#' and ';'; '*' at its end "
            "stands for anything.",
        )
    if {".", ".."} & set(text.split("/")) or "//" in text:
        raise PydanticCustomError("malformed", "must not have '.', '..' or empty parts.")
    return text


_text = StringConstraints(strip_whitespace=True, min_length=1, max_length=1024)
HostPattern = Annotated[str, _text, AfterValidator(_host)]
PresetName = Annotated[str, _text, AfterValidator(_preset)]
Method = Annotated[str, _text, AfterValidator(_method)]
PathPattern = Annotated[str, _text, AfterValidator(_path)]
Header = Annotated[str, _text, AfterValidator(_header)]
Port = Annotated[int, Field(ge=1, le=65535)]


class EgressRule(Part):
    """Hosts that may be reached, and how."""

    hosts: Many[HostPattern] = Field(
        min_length=1,
        max_length=MAX_HOSTS,
        description="Names of hosts; `*.example.org` is every name below `example.org`, and not "
        "that name itself. No addresses.",
    )
    ports: Many[Port] = Field(
        default=DEFAULT_PORTS,
        min_length=1,
        max_length=MAX_PORTS,
        description="TCP ports. 443 is for TLS only, 80 for HTTP only, 22 for SSH only.",
    )
    methods: Many[Method] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="HTTP methods. The proxy then decrypts TLS to these hosts.",
    )
    paths: Many[PathPattern] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Paths; `*` at the end stands for anything. The proxy then decrypts TLS.",
    )
    credential: Line | None = Field(
        default=None,
        description="One of the connected accounts that the workspace is given: `claude`, "
        "`github`, an id, or the name of a `generic` one. The workspace gets a placeholder, which "
        "the proxy replaces with the secret in requests to these hosts. Over TLS only, which it "
        "decrypts.",
    )
    header: Header | None = Field(
        default=None,
        description="The header in which the placeholder is replaced; only with `credential`. "
        "Absent: `authorization`.",
    )

    @field_validator("methods", "paths")
    @classmethod
    def _can_be_seen(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and UNSEEN_PORTS & set(info.data.get("ports", ())):
            raise PydanticCustomError("not-allowed", "cannot be used with port 22, which is SSH's.")
        return value

    @field_validator("credential")
    @classmethod
    def _is_sent_over_tls(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and CLEAR_PORTS & set(info.data.get("ports", ())):
            raise PydanticCustomError(
                "not-allowed", "cannot be used with the ports 22 and 80: it is sent over TLS only."
            )
        return value

    @field_validator("header")
    @classmethod
    def _has_a_credential(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get("credential") is None:
            raise PydanticCustomError("not-allowed", "can be used only with a credential.")
        return value

    @property
    def sees_requests(self) -> bool:
        """Whether the proxy has to read requests, and so has to open TLS."""
        return (self.methods or self.paths or self.credential) is not None


class Egress(Part):
    """Which hosts the workspace may reach, by name. There is no other way out."""

    default: Literal["deny", "allow"] = Field(
        default="deny",
        description="What happens with hosts that no rule or preset names. `allow`: they may be "
        "reached with HTTP, TLS and SSH on any port, but never private addresses.",
    )
    presets: Many[PresetName] = Field(
        default=(),
        max_length=MAX_PRESETS,
        description="Lists of rules that the operator keeps, such as `python`, `npm`, `debian` and "
        "`github`; `python@1` asks for a version. The rules are those of the time of the start.",
    )
    rules: Many[EgressRule] = Field(
        default=(),
        max_length=MAX_RULES,
        description="What may be reached. A host that is named here or in a preset is reached only "
        "as one of its rules says.",
    )
