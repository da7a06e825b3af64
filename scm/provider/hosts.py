"""Where the provider's repositories are, as told by where its API is."""

from __future__ import annotations

from urllib.parse import urlsplit

from scm.git_urls import DEFAULT_PORTS


def clone_base(api_base_url: str) -> str:
    """Return where repositories are cloned from: the web address of the provider.

    An API at ``api.HOST`` belongs to ``HOST``; one below a path (``HOST/api/v3``) to its own host.
    A port that goes without saying is left out, as git leaves it out when it asks for a password.
    """
    url = urlsplit(api_base_url)
    scheme = url.scheme.lower()
    netloc = url.netloc.lower().removesuffix(f":{DEFAULT_PORTS[scheme]}")
    if url.path.strip("/") == "" and netloc.startswith("api."):
        netloc = netloc.removeprefix("api.")
    return f"{scheme}://{netloc}"


def clone_url(api_base_url: str, full_name: str) -> str:
    """Return the address from which the repository ``owner/name`` is cloned."""
    return f"{clone_base(api_base_url)}/{full_name}.git"
