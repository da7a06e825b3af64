"""The private key of the source-hosting app, as operators put it into the environment."""

from __future__ import annotations

import os
from pathlib import Path

from marshmallow import ValidationError

from controlplane.settings_environment import env, note_fault

_SETTING, _PATH_SETTING = "SCM_APP_PRIVATE_KEY", "SCM_APP_PRIVATE_KEY_PATH"
_SHORTEST_BITS = 2048
"""RS256 wants no shorter key (RFC 7518 section 3.3)."""
_LARGEST_FILE = 64 * 1024
_HINT = "Give the PEM file that the provider made for the app."


def app_private_key(text: str, path: str) -> str:
    """Return the PEM of the app's key: ``text``, or the content of the file at ``path``.

    Empty when there is neither, or when the file cannot be used, which is noted as a fault.
    """
    path = path.strip()
    if path and (env.str(_SETTING, "") or env.str(f"{_SETTING}_FILE", "")):
        note_fault(_PATH_SETTING, f"Set either this or {_SETTING}, not both.")
        return ""
    return _normalized(_content_of(path) if path else text)


def _content_of(path: str) -> str:
    try:
        with Path(os.path.expandvars(path)).expanduser().open("rb") as file:
            content = file.read(_LARGEST_FILE).decode("ascii")
        rsa_private_key(content)
    except (OSError, RuntimeError) as exc:
        note_fault(_PATH_SETTING, f"The file cannot be read ({type(exc).__name__}).")
    except UnicodeDecodeError:
        note_fault(_PATH_SETTING, f"Must be an RSA private key in PEM. {_HINT}")
    except ValidationError as exc:
        note_fault(_PATH_SETTING, " ".join(map(str, exc.messages)))
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


def rsa_private_key(text: str) -> None:
    """Refuse what is not an RSA private key in PEM, with line ends or ``\\n``; unset is allowed."""
    if not text.strip():
        return
    # Every process reads the settings; few installations have an app.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

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
