"""Accounts whose secrets never enter a workspace, and the authority that their use takes.

- :mod:`.bindings`  the accounts that rules name; :mod:`.placeholders` what is inside instead
- :mod:`.bound_secrets`  their secrets, opened for a request
- :mod:`.authorities`  certificates of hosts that only one workspace trusts
"""
