"""Git sources, public and private: which commit a ref means, and a checkout of it.

:func:`resolve` asks the remote, :func:`checkout` fetches one commit into a folder. Both run the
``git`` command and promise: only the schemes and hosts the policy allows, connected to at the
addresses that were judged (see :mod:`scm.git_addresses`); no redirect that was not judged the same
way; no prompt, no credential helper, no configuration, hook or template of this machine; no
submodule, no filter program; a limit in time and in bytes; and messages that name the URL and the
ref only. A private source comes with a :class:`GitCredential`, which only its own origin is shown
and which never is in an argument, a variable, a file or the checkout. It needs git 2.37, the first
that can be told which address a name has.
"""

from scm.git.askpass import GitCredential
from scm.git.checkout import checkout
from scm.git.command import SourcePolicy
from scm.git.remote import ResolvedSource, resolve
from scm.git_urls import SourceError

__all__ = ["GitCredential", "ResolvedSource", "SourceError", "SourcePolicy", "checkout", "resolve"]
