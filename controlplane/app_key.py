"""The private key of the source-hosting app, as operators put it into the environment."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from marshmallow import ValidationError

from controlplane.environment import env, note_fault, secret

_SHORTEST_BITS = 2048
"""RS256 wants no shorter key (RFC 7518 section 3.3)."""
_LARGEST_FILE = 64 * 1024
_HINT = "Give the PEM file that the provider made for the app."


def app_private_key(name: str) -> str:
    """Return the PEM of the setting ``name``, or of the file that ``NAME_PATH`` names.

    Line ends may be written ``\\n``, as one-line files of settings need them. Empty when neither is
    set, or when what is set cannot be used, which is noted as a fault.
    """
    text = secret(name, check=_check)
    path = env.str(f"{name}_PATH", "").strip()
    if path and (env.str(name, "") or env.str(f"{name}_FILE", "")):
        note_fault(f"{name}_PATH", f"Set either this or {name}, not both.")
        return ""
    if path:
        text = _content_of(path, f"{name}_PATH")
    return _normalized(text)


def _content_of(path: str, setting: str) -> str:
    try:
        with Path(os.path.expandvars(path)).expanduser().open("rb") as file:
            content = file.read(_LARGEST_FILE).decode("ascii")
        _check(content)
    except (OSError, RuntimeError) as exc:
        note_fault(setting, f"The file cannot be read ({type(exc).__name__}).")
    except UnicodeDecodeError:
        note_fault(setting, f"Must be an RSA private key in PEM. {_HINT}")
    except ValidationError as exc:
        note_fault(setting, " ".join(map(str, exc.messages)))
    else:
        return content
    return ""


def _normalized(text: str) -> str:
    """Return ``text`` with real line ends and without quotes around it."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    text = text.replace("\\r", "").replace("\\n", "\n").replace("\r", "")
    return f"{text.strip()}\n" if text else ""


def _check(text: str) -> None:
    """Refuse what is not an RSA private key without a passphrase; no message repeats any of it."""
    if not text.strip():
        return
    try:
        key = load_pem_private_key(_normalized(text).encode(), password=None)
    except TypeError:
        raise ValidationError("Must not be protected by a passphrase.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValidationError(f"Must be an RSA private key in PEM. {_HINT}") from None
    if not isinstance(key, RSAPrivateKey):
        raise ValidationError(f"Must be an RSA private key, not another kind. {_HINT}")
    if key.key_size < _SHORTEST_BITS:
        raise ValidationError(f"Must have {_SHORTEST_BITS} bits or more, not {key.key_size}.")
