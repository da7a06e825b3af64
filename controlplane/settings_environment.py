"""Reading the environment: typed values, secrets out of files, and all faults told at once.

``controlplane.settings`` alone calls these. A reader that finds a fault notes it and goes on with a
harmless value; :func:`tell_all_faults` then ends the process with one text for all of them. No
message repeats the value of a secret.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from environs import Env, EnvValidationError, validate
from marshmallow import ValidationError

from controlplane.oci_names import is_image

env = Env(eager=False)


# What `env` does not see: faults of secrets' files, and of settings that belong together.
_other_faults: dict[str, list[str]] = {}


def secret(name: str, default: str = "", check: Callable[[str], None] = lambda _: None) -> str:
    """Return the secret ``name``, from the file that ``NAME_FILE`` names when that is set."""
    path: str = env.str(f"{name}_FILE", "")
    if not path:
        value: str | None = env.str(name, default, validate=check)
        return (value or "").strip()  # None when the check failed, which env.seal() tells
    try:
        # A secret's file usually ends with a newline that is not part of the secret.
        content = Path(path).read_text(encoding="utf-8").strip()
        check(content)
    except (OSError, UnicodeDecodeError) as exc:
        _other_faults[f"{name}_FILE"] = [f"The file cannot be read ({type(exc).__name__})."]
    except ValidationError as exc:
        _other_faults[f"{name}_FILE"] = [str(message) for message in exc.messages]
    else:
        return content
    return ""


def tell_all_faults() -> None:
    """End the process with a text that names everything that is wrong with the environment.

    Whoever started it wants to know the settings' names, not where in our code they are read: there
    is no traceback, and the exit code is 1 in every process.
    """
    faults: dict[str, Any] = {}
    try:
        env.seal()
    except EnvValidationError as exc:
        assert isinstance(exc.error_messages, Mapping)
        faults.update(exc.error_messages)
    faults = {**_other_faults, **faults}
    if faults:
        told = [f"  {name}: {' '.join(map(str, texts))}" for name, texts in sorted(faults.items())]
        hint = "deploy/README.md explains every setting."
        raise SystemExit("\n".join(["The environment is not valid.", *told, hint]))


def note_fault(name: str, text: str) -> None:
    """Note what is wrong with the setting ``name``; :func:`tell_all_faults` tells it."""
    _other_faults.setdefault(name, []).append(text)


def has_fault(name: str) -> bool:
    """Tell whether a fault was noted at the setting ``name``."""
    return name in _other_faults


def positive(name: str, default: int) -> int:
    """Return the whole number ``name``, 1 or more."""
    value: int = env.int(name, default, validate=validate.Range(min=1))
    return value


def port(name: str, default: int) -> int:
    """Return the TCP port ``name``."""
    value: int = env.int(name, default, validate=validate.Range(min=1, max=65_535))
    return value


def port_or_none(name: str, default: int) -> int:
    """Return the TCP port ``name``; 0 means none."""
    value: int = env.int(name, default, validate=validate.Range(min=0, max=65_535))
    return value


def zero_or_more(name: str, default: int) -> int:
    """Return the whole number ``name``, 0 or more; 0 mostly means that there is no limit."""
    value: int = env.int(name, default, validate=validate.Range(min=0))
    return value


def words(name: str, default: list[str], word: str) -> list[str]:
    """Return the comma-separated words of ``name``; each matches the pattern ``word``."""
    value: list[str] | None = env.list(name, default, subcast=str.strip, validate=_each(word))
    return [item for item in value or () if item]


def _each(word: str) -> Callable[[list[str]], None]:
    def check(items: list[str]) -> None:
        wrong = [item for item in items if item and not re.fullmatch(word, item)]
        if wrong:
            raise ValidationError(f"Not valid here: {', '.join(map(repr, wrong))}.")

    return check


def host(value: str) -> None:
    """Refuse what is neither the name of a host nor an address; unset is allowed."""
    try:
        ipaddress.ip_address(value or "::")
    except ValueError:
        labels = value.removesuffix(".").split(".")
        # Four numbers are an address that is wrong, and no name.
        named = not labels[-1].isdecimal() and all(
            re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", label)
            for label in labels
        )
        if not named:
            raise ValidationError("Must be a host name or an IP address.") from None


def hosts_answered(values: list[str]) -> None:
    """Refuse what is not a host name, ``.`` and a domain, or ``*``; and nothing at all."""
    if not values:
        raise ValidationError(
            "Must name at least one host, or be '*'; otherwise no request would be answered."
        )
    wrong = [
        value
        for value in values
        if not re.fullmatch(r"\*|\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]", value)
    ]
    if wrong:
        shown = ", ".join(map(repr, wrong))
        raise ValidationError(f"Neither a host name without a port nor '*': {shown}.")


def is_loopback(bound: str) -> bool:
    """Tell whether only this machine reaches what listens on ``bound``."""
    try:
        return ipaddress.ip_address(bound).is_loopback
    except ValueError:
        return bound.lower().rstrip(".") == "localhost"


def own_hosts(bound: str, url: str | None) -> list[str]:
    """Return the names under which a service that listens on ``bound`` is meant.

    ``url`` is where people find its pages. No page can make one of these names its own, which is
    what lets a foreign page pass for one of ours (DNS rebinding).
    """
    try:
        public = urlsplit(url or "").hostname or ""
    except ValueError:
        public = ""
    named = ["localhost", "127.0.0.1", "::1", bound, public, socket.gethostname()]
    everywhere = {"", "0.0.0.0", "::"}  # noqa: S104 - read, not bound
    names = dict.fromkeys(name.lower() for name in named if name not in everywhere)
    return [f"[{name}]" if ":" in name else name for name in names]


def queue(name: str, default: str) -> str:
    """Return the name of a queue of ours that ``name`` gives."""
    value: str = env.str(name, default, validate=_queue_name)
    return value


def _queue_name(value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,200}", value) or value.startswith("amq."):
        raise ValidationError("Must be letters, digits and . _ : - and not begin with 'amq.'.")


def engine_address(value: str) -> None:
    """Refuse what is not the address of an engine, as Docker clients write it; unset is fine."""
    if value and not re.fullmatch(
        r"unix:///\S([^\t\r\n\f\v]*\S)?|(tcp|http|https|ssh)://[^\s/]\S*", value
    ):
        raise ValidationError("Must be like unix:///var/run/docker.sock or tcp://HOST:PORT.")


def image(name: str, default: str) -> str:
    """Return the reference of an image that ``name`` gives."""
    value: str = env.str(name, default, validate=_image_reference)
    return value


def _image_reference(value: str) -> None:
    if not is_image(value):
        raise ValidationError("Must name an image, like debian:bookworm-slim.")


def not_above(name: str, value: float | None, ceiling: str, most: float | None) -> None:
    """Note a fault where what is given by default is more than what may be asked for."""
    if value is not None and most is not None and value > most:
        note_fault(name, f"Must not be above {ceiling}, which is {most}.")


def preview_domain(value: str) -> None:
    """Refuse what is no name that others can stand before, perhaps with a port; or nothing."""
    name, colon, at = value.partition(":")
    host(name)
    if is_address(name) or (colon and not (at.isdecimal() and 0 < int(at) < 65_536)):
        raise ValidationError("Must be a domain, perhaps with a port, or empty.")


def is_address(name: str) -> bool:
    """Tell whether ``name`` is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def preview_authority(domain: str, scheme: str, port: int) -> str:
    """Return the domain of previews with the port that browsers use, where that is to be said."""
    if ":" in domain:
        name, _, at = domain.partition(":")
        return name if at == {"http": "80", "https": "443"}.get(scheme) else domain
    # Over TLS browsers come to a proxy, and at its usual port.
    return domain if scheme == "https" or port == 80 else f"{domain}:{port}"


def reachable(bound: str) -> str:
    """Return the host of a URL at which this machine reaches what listens on ``bound``."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)  # noqa: S104
    return f"[{host}]" if ":" in host else host


def base_url(value: str) -> None:
    """Refuse what is not an address that paths can be appended to."""
    try:
        parts = urlsplit(value)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment or parts.username is not None:
        raise ValidationError("Must be an http or https address without account, query and #.")


def database_url(value: str) -> None:
    """Refuse what is not the address of a PostgreSQL database."""
    _address(value, {"postgres", "postgresql"}, "postgres://USER:PASSWORD@HOST:PORT/DATABASE")


def broker_url(value: str) -> None:
    """Refuse what is not the address of a RabbitMQ."""
    _address(value, {"amqp", "amqps"}, "amqp://USER:PASSWORD@HOST:PORT/VHOST")


def _address(value: str, schemes: set[str], form: str) -> None:
    # The value holds a password, so no text shows anything of it.
    try:
        parts = urlsplit(value)
        sound = parts.scheme in schemes and bool(parts.netloc) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ValidationError(f"Must have the form {form}; percent-encode special characters.")


_ORIGIN = re.compile(r"https?://(\*\.)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def origins(values: list[str]) -> None:
    """Refuse what is not the origin of a page: scheme, host and port, and nothing after them."""
    wrong = [value for value in values if not _ORIGIN.fullmatch(value)]
    if wrong:
        shown = ", ".join(map(repr, wrong))
        raise ValidationError(f"Not an origin like https://web.example or http://a:3000: {shown}.")


def check_cors_origins(name: str, value: str) -> None:
    """Note a fault at ``name`` unless ``value`` is ``*`` or origins, separated by commas."""
    given = [item.strip() for item in value.split(",") if item.strip()]
    try:
        origins([] if given == ["*"] else [item for item in given if item != "null"])
    except ValidationError as exc:
        note_fault(name, " ".join(map(str, exc.messages)))


def account(user: str, password: str) -> str:
    """Return user and password as they stand in a URL."""
    return f"{user}:{quote(password, safe='')}" if password else user


def absolute_path_or_none(value: str) -> None:
    """Refuse a path that is not absolute; unset is allowed."""
    if value:
        absolute_path(value)


def absolute_path(value: str) -> None:
    """Refuse what is not an absolute path."""
    if not value.startswith("/") or not value.isprintable():
        raise ValidationError("Must be an absolute path.")


def registry_name(value: str) -> None:
    """Refuse what cannot stand in front of an image's name."""
    if not re.fullmatch(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?", value):
        raise ValidationError("Must be HOST or HOST:PORT, without scheme and path.")


def registry_or_none(value: str) -> None:
    """Refuse what cannot stand in front of an image's name; unset is allowed."""
    if value:
        registry_name(value)


def amount(value: str) -> None:
    """Refuse what is no amount of bytes as Kubernetes writes it; unset is allowed."""
    if value and not re.fullmatch(r"[1-9][0-9]*([EPTGMK]i?|k)?", value):
        raise ValidationError("Must be an amount of bytes as Kubernetes writes it, like 10Gi.")


_LABEL_WORD = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_NAME = rf"([a-z0-9][a-z0-9.-]{{0,252}}/)?{_LABEL_WORD}"
NODE_LABEL = rf"{_LABEL_NAME}=({_LABEL_WORD})?"
"""A node's label, as ``kubectl label`` takes it."""
TOLERATION = (
    rf"{_LABEL_NAME}(=({_LABEL_WORD})?)?:"
    r"(NoSchedule|PreferNoSchedule|NoExecute(:[1-9][0-9]{0,8})?)"
)
"""A taint as ``kubectl taint`` takes it, and for how many seconds it is tolerated."""


def decimal(value: str) -> None:
    """Refuse what is not a number written in digits; unset is allowed."""
    if value and not re.fullmatch(r"[1-9][0-9]{0,18}", value):
        raise ValidationError("Must be a number in digits.")


def bare_word(value: str) -> None:
    """Refuse what is not one word of letters, digits, dots, dashes and underscores."""
    if value and not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise ValidationError("Must be one word of letters, digits and . _ -")


def basic_user(value: str) -> None:
    """Refuse what cannot be a user name of HTTP basic authentication."""
    if ":" in value or not value.isprintable():
        raise ValidationError("Must not contain a colon or control characters.")


def together(name: str, value: str, other: str, other_value: str) -> None:
    """Note a fault at the one of two settings that is missing while the other one is set."""
    if bool(value) != bool(other_value):
        missing, given = (other, name) if value else (name, other)
        if has_fault(f"{missing}_FILE") or has_fault(f"{missing}_PATH"):
            return
        note_fault(missing, f"Set it together with {given}, or neither.")


def shown_text(value: str) -> None:
    """Refuse text that would act on a terminal."""
    if any(not character.isprintable() and character not in "\n\t" for character in value):
        raise ValidationError("Must not contain control characters.")


def network(value: str) -> None:
    """Refuse what is not an IPv4 network."""
    try:
        ipaddress.IPv4Network(value)
    except ValueError as exc:
        raise ValidationError(str(exc)) from exc


def allowed_networks(values: list[str]) -> None:
    """Refuse what is neither an address nor a network (CIDR) of IPv4, or holds nearly all of it."""
    for value in values:
        network(value)
        for never in ("127.0.0.0/8", "169.254.0.0/16"):
            if ipaddress.IPv4Network(value).supernet_of(ipaddress.IPv4Network(never)):
                raise ValidationError(f"{value} holds {never}, which no workspace may reach.")


def name_servers(values: list[str]) -> None:
    """Refuse what is no IPv4 address, with or without a port."""
    for value in values:
        address, _, port = value.partition(":")
        try:
            ipaddress.IPv4Address(address)
        except ValueError as exc:
            raise ValidationError(str(exc)) from exc
        if ":" in value and not (port.isdecimal() and 0 < int(port) < 65536):
            raise ValidationError(f"{value} has no usable port.")


def image_or_none(value: str) -> None:
    """Refuse what names no image; unset is allowed."""
    if value and not is_image(value):
        raise ValidationError("Must name an image, like registry.example/tools:1.")


def pinned_image_or_none(value: str) -> None:
    """Refuse what does not name an image by its digest; unset is allowed."""
    if value and not (is_image(value) and re.search(r"@sha256:[0-9a-f]{64}\Z", value)):
        raise ValidationError("Must name an image by its digest, like registry.example/a@sha256:…")


def networks(values: list[str]) -> None:
    """Refuse what is neither an address nor a network (CIDR) of IPv4 or IPv6."""
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as exc:
            raise ValidationError(str(exc)) from exc


def owner_header(value: str) -> None:
    """Refuse what is no header's name, or one that means something else; unset is allowed."""
    if value and not re.fullmatch(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*", value):
        raise ValidationError("Must be the name of a header: letters and digits, with dashes.")
    taken = {"authorization", "cookie", "host", "origin", "idempotency-key", "x-request-id"}
    taken |= {"connection", "accept", "x-forwarded-for", "user-agent"}
    if value.lower() in taken or value.lower().startswith(("content-", "x-svc-", "sec-")):
        raise ValidationError("This header already has another meaning.")


def signing_secret(value: str) -> None:
    """Refuse a secret that is too short to sign with; unset is allowed."""
    if value and len(value) < 32:
        raise ValidationError("Must have at least 32 characters.")


def credentials_key(value: str) -> None:
    """Refuse what is not base64 of 32 bytes; unset is allowed."""
    try:
        key = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if value and len(key) != 32:
        raise ValidationError("Must be base64 of exactly 32 random bytes.")
