"""What the gateway says itself: problem details for programs, a short page for browsers."""

from __future__ import annotations

import html
import json
from http import HTTPStatus

_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em}}
code{{color:#666}}</style></head>
<body><h1>{title}</h1><p>{detail}</p><p><code>{code}</code></p></body></html>
"""


class PreviewRefused(Exception):
    """A request that is not passed on; ``detail`` is a sentence for whoever sent it."""

    def __init__(self, status: int, code: str, detail: str, *, retry: int = 0) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry = retry
        """After how many seconds it may go better; 0: unknown."""

    def answer(self, accepted: str) -> tuple[list[tuple[str, str]], bytes]:
        """Return headers and body, as HTML where ``accepted`` asks for that."""
        title = HTTPStatus(self.status).phrase
        if "text/html" in accepted:
            kind = "text/html; charset=utf-8"
            body = _PAGE.format(
                title=html.escape(title), detail=html.escape(self.detail), code=self.code
            )
        else:
            kind = "application/problem+json"
            members = {"type": "about:blank", "title": title, "status": self.status}
            body = json.dumps({**members, "code": self.code, "detail": self.detail})
        headers = [
            ("Content-Type", kind),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
        ]
        if self.retry:
            headers.append(("Retry-After", str(self.retry)))
        return headers, body.encode()
