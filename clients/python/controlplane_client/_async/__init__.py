"""The client for asyncio. ``_sync`` is made of it by ``make_sync.py``, but for ``platform.py``."""
