"""The kinds of text a blueprint may hold, each an allow-list.

Every type here is a strict ``str`` (nothing is converted to one). Outer white space is removed
and what is left must not be empty, except for environment values, which are kept byte for byte
because an environment variable may well be empty or end in a blank. NUL, lone surrogates and
control characters are refused in all of them; only :data:`Script` and :data:`EnvValue` may hold
line feeds and tabs. Names that end up as arguments of a program never begin with ``-``.

A validator raises ``PydanticCustomError``; its type is the code of the resulting ``Fault`` and
its message the detail. :mod:`workspaces.blueprint.faults` lists the codes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

SCRIPT_BYTES: Final = 16 * 1024
ENV_VALUE_BYTES: Final = 4 * 1024
LINE_BYTES: Final = 4 * 1024

PACKAGE_ID_LENGTH: Final = 128
PACKAGE_ID_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._:+-]*"

SOURCE_SCHEMES: Final = ("https", "http", "git", "file")

RESERVED_ENV_NAMES: Final = frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH"}
)
"""Set by the agent for every process, or able to change the agent's own programs.

``PATH`` is not among them: a workspace may put its own folders in front.
"""

RESERVED_ENV_PREFIX: Final = "SVC_"

SYSTEM_DIRECTORIES: Final = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc"),
    *("/run", "/sbin", "/sys", "/tmp", "/usr", "/var", "/.dockerenv"),  # noqa: S108 - a refused path
)
"""Neither these nor anything below them may hold the workspace: the distribution owns them, or
they are mounted over when the container starts."""

_LINE_BREAKING = {"Zl", "Zp"}
_INVISIBLE = {"Cf", "Co", "Cn"}
_PATH_SEGMENT = r"[A-Za-z0-9._@+=-]+"
_ABSOLUTE_PATH = re.compile(rf"(?:/{_PATH_SEGMENT})+")
_RELATIVE_PATH = re.compile(rf"(?!-){_PATH_SEGMENT}(?:/{_PATH_SEGMENT})*")
_URL_TEXT = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_SCP_STYLE = re.compile(r"(?:[^/@:]+@)?[^/:@]+:(?!//).+")
_ENCODED_CONTROL_OR_NOTHING = re.compile(r"%(?:[01][0-9A-Fa-f]|7[Ff]|(?![0-9A-Fa-f]{2}))")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_REF_FORBIDDEN = frozenset(" ~^:?*[\\")


def _fault(code: str, detail: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{detail}", {"detail": detail})


def _refuse_control_characters(text: str, *, allowed: str, invisible: bool) -> None:
    for character in text:
        if character in allowed:
            continue
        category = unicodedata.category(character)
        if category == "Cc" or category in _LINE_BREAKING:
            hint = "; end lines with a line feed only" if character == "\r" and allowed else ""
            raise _fault(
                "control-character",
                f"must not hold the control character U+{ord(character):04X}{hint}.",
            )
        if not invisible and category in _INVISIBLE:
            raise _fault(
                "control-character",
                f"must not hold the invisible character U+{ord(character):04X}.",
            )


def _refuse_more_bytes_than(limit: int, text: str) -> None:
    if len(text.encode()) > limit:
        raise _fault("too-long", f"must not be longer than {limit} bytes in UTF-8.")


def _line(text: str) -> str:
    _refuse_control_characters(text, allowed="", invisible=False)
    _refuse_more_bytes_than(LINE_BYTES, text)
    return text


def _script(text: str) -> str:
    _refuse_control_characters(text, allowed="\n\t", invisible=True)
    _refuse_more_bytes_than(SCRIPT_BYTES, text)
    return text


def _matching(pattern: str, expectation: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        _line(text)
        if not compiled.fullmatch(text):
            raise _fault("malformed", f"must {expectation}.")
        return text

    return check


def _env_name(text: str) -> str:
    _refuse_control_characters(text, allowed="", invisible=False)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise _fault(
            "malformed",
            "is not a name of an environment variable: use letters, digits and '_', and do not "
            "begin with a digit.",
        )
    if text in RESERVED_ENV_NAMES or text.startswith(RESERVED_ENV_PREFIX):
        raise _fault("reserved-name", "is set by the control plane and cannot be chosen.")
    return text


def _env_value(text: str) -> str:
    _refuse_control_characters(text, allowed="\n\t", invisible=True)
    _refuse_more_bytes_than(ENV_VALUE_BYTES, text)
    return text


def _refuse_dot_segments(path: str) -> None:
    if any(segment in {".", ".."} for segment in path.split("/")):
        raise _fault("malformed", "must be normalized: no '.' and no '..' between the slashes.")


def _absolute_path(path: str) -> str:
    _line(path)
    if not _ABSOLUTE_PATH.fullmatch(path):
        raise _fault(
            "malformed",
            "must be an absolute, normalized path below '/', of letters, digits and '._@+=-'.",
        )
    _refuse_dot_segments(path)
    return path


def _step_directory(path: str) -> str:
    _line(path)
    if not (_ABSOLUTE_PATH.fullmatch(path) or _RELATIVE_PATH.fullmatch(path)):
        raise _fault(
            "malformed",
            "must be a normalized path of letters, digits and '._@+=-', absolute or relative to "
            "runtime.workingDirectory.",
        )
    _refuse_dot_segments(path)
    return path


def _workspace_directory(path: str) -> str:
    _absolute_path(path)
    for directory in SYSTEM_DIRECTORIES:
        if path == directory or path.startswith(f"{directory}/"):
            raise _fault("reserved-path", f"must not be {directory} or below it.")
    if path == "/home":
        raise _fault("reserved-path", "must not be /home itself.")
    return path


def _source_url(url: str) -> str:
    _line(url)
    if url.startswith("-"):
        raise _fault("malformed", "must be a URL and not begin with '-'.")
    if _SCP_STYLE.fullmatch(url) and not url.lower().startswith("file:"):
        raise _fault(
            "malformed",
            "is not a URL: 'host:path' is not supported; write https://host/path instead.",
        )
    if not _URL_TEXT.fullmatch(url) or _ENCODED_CONTROL_OR_NOTHING.search(url):
        raise _fault(
            "malformed",
            "must be a URL of printable ASCII characters; percent-encode everything else.",
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _fault("malformed", "is not a URL: its host or port cannot be read.") from None
    if not url.startswith(tuple(f"{scheme}://" for scheme in SOURCE_SCHEMES)):
        raise _fault(
            "url-scheme",
            "must begin with https://, http://, git:// or file:// in lower case; for ssh:// use "
            "the https:// address of the same repository.",
        )
    if "@" in parts.netloc:
        raise _fault(
            "url-credentials",
            "must not hold a user name, password or token: it would be stored and shown. Remove "
            "everything before '@'.",
        )
    if "?" in url or "#" in url:
        raise _fault("malformed", "must not have a query or a fragment.")
    if parts.scheme == "file":
        if host not in {"", "localhost"} or port is not None or len(parts.path) < 2:
            raise _fault("malformed", "must name an absolute path, like file:///srv/git/app.git.")
    elif not (_HOST_NAME.fullmatch(host) or ":" in host) or port == 0 or len(parts.path) < 2:
        raise _fault(
            "malformed", "must name a host and a repository, like https://example.com/app.git."
        )
    return url


def _git_ref(ref: str) -> str:
    """Follow ``git check-ref-format --allow-onelevel``; commit ids satisfy it as well."""
    _line(ref)
    wrong = (
        ref.startswith(("-", "/"))
        or ref.endswith(("/", "."))
        or ref == "@"
        or any(sequence in ref for sequence in ("..", "@{", "//"))
        or any(part.startswith(".") or part.endswith(".lock") for part in ref.split("/"))
        or any(
            character in _REF_FORBIDDEN or unicodedata.category(character) == "Zs"
            for character in ref
        )
    )
    if wrong:
        raise _fault("malformed", "must be a branch, a tag or a commit id as git allows them.")
    return ref


_trimmed = StringConstraints(strip_whitespace=True, min_length=1)

Line = Annotated[str, _trimmed, AfterValidator(_line)]
"""One line of text, at most 4 KiB, without invisible characters."""

Label = Annotated[str, _trimmed, Field(max_length=128), AfterValidator(_line)]
"""A short name for people, at most 128 characters."""

Script = Annotated[str, _trimmed, AfterValidator(_script)]
"""A shell script, at most 16 KiB."""

InputId = Annotated[
    str,
    _trimmed,
    Field(max_length=64),
    AfterValidator(
        _matching(
            r"[A-Za-z0-9][A-Za-z0-9._-]*",
            "begin with a letter or digit and continue with letters, digits and '._-'",
        )
    ),
]

PackageId = Annotated[
    str,
    _trimmed,
    Field(max_length=PACKAGE_ID_LENGTH),
    AfterValidator(
        _matching(
            PACKAGE_ID_PATTERN,
            "begin with a letter or digit and continue with letters, digits and '._:+-'",
        )
    ),
]

PackageVersion = Annotated[
    str,
    _trimmed,
    Field(max_length=128),
    AfterValidator(
        _matching(
            r"[A-Za-z0-9][A-Za-z0-9.+:~^_-]*",
            "begin with a letter or digit and continue with letters, digits and '.+:~^_-'",
        )
    ),
]

EnvName = Annotated[str, Field(max_length=128), AfterValidator(_env_name)]
EnvValue = Annotated[str, AfterValidator(_env_value)]

AbsolutePath = Annotated[str, _trimmed, Field(max_length=1024), AfterValidator(_absolute_path)]
StepDirectory = Annotated[str, _trimmed, Field(max_length=1024), AfterValidator(_step_directory)]
WorkspaceDirectory = Annotated[
    str, _trimmed, Field(max_length=1024), AfterValidator(_workspace_directory)
]

SourceUrl = Annotated[str, _trimmed, Field(max_length=2048), AfterValidator(_source_url)]
GitRef = Annotated[str, _trimmed, Field(max_length=255), AfterValidator(_git_ref)]
