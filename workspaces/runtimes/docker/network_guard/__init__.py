"""What keeps workspaces and builds away from the engine's machine and from each other.

``rules`` says what may pass, as text for nftables; ``keeper`` has the engine's machine hold to it.
"""
