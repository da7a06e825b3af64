"""Pages for people: the browser of this machine, where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser

_TEXT_BROWSERS = {"www-browser", "links", "elinks", "lynx", "w3m"}


def opened(url: str) -> bool:
    """Show a page in the browser of whoever sits here; tell whether there is one."""
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if sys.platform.startswith("linux") and not has_screen:
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # One that draws in this terminal would take it over.
    if getattr(browser, "name", "") in _TEXT_BROWSERS:
        return False
    return browser.open(url)
