"""The API as the set-up calls it: standard library only, and failures that a person can read."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from deploy.services.errors import SetupError

Answer = dict[str, Any]


class RefusedError(SetupError):
    """The API answered with a problem; `code` says which."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def indented(answer: Answer) -> str:
    """An answer as readable JSON, a little to the right."""
    text = json.dumps(answer, indent=2, ensure_ascii=False)
    return "\n".join(f"  {line}" for line in text.splitlines())


class Api:
    """The API as one owner sees it; an answer that is a problem becomes a SetupError."""

    def __init__(self, url: str, owner: str) -> None:
        self.url = url
        self.owner = owner

    def get(self, path: str, **parameters: str) -> Answer:
        """Read one resource of the owner's."""
        query = urllib.parse.urlencode({"ownerUserId": self.owner, **parameters})
        return self.call("GET", f"{path}?{query}")

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """Send one request. Raises RefusedError with the problem that was answered, and SetupError
        when there is no answer that makes sense."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{self.url}{path}", data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                parsed = json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            message = f"{method} {path} was answered {error.code}:\n{text}"
            raise RefusedError(message, _problem_code(text)) from error
        except (OSError, ValueError) as error:
            raise SetupError(f"{method} {path} was not answered: {error}") from error
        if not isinstance(parsed, dict):
            raise SetupError(f"{method} {path}: an object was expected, not {parsed!r}")
        return parsed


def _problem_code(text: str) -> str:
    try:
        return str(json.loads(text)["code"])
    except (ValueError, KeyError, TypeError):
        return ""
