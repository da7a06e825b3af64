"""The REST API of the source-hosting provider, as an app of it sees it.

::

    ProviderError                     502 scm-provider-failed; `reason` says how it failed
    ├── RateLimitedError              it wants us to wait; ``retry_after`` says how long, when known
    ├── InstallationGoneError         it does not know the installation, or not any more
    ├── InstallationSuspendedError    the account, or the provider, has suspended the installation
    └── TokenRefusedError             it gives no token for these repositories and permissions

Tokens are asked for when they are needed, as narrow as the need, and live in memory alone.
"""

from scm.provider.answers import InstallationFacts, RepositoryFacts, read_installation
from scm.provider.errors import (
    InstallationGoneError,
    InstallationSuspendedError,
    ProviderError,
    RateLimitedError,
    Reason,
    TokenRefusedError,
)
from scm.provider.hosts import clone_base, clone_url
from scm.provider.provider_client import InstallationToken, ProviderClient, RepositoryListing

__all__ = [
    "InstallationFacts",
    "InstallationGoneError",
    "InstallationSuspendedError",
    "InstallationToken",
    "ProviderClient",
    "ProviderError",
    "RateLimitedError",
    "Reason",
    "RepositoryFacts",
    "RepositoryListing",
    "TokenRefusedError",
    "clone_base",
    "clone_url",
    "read_installation",
]
