"""The client for threads, made of ``_async`` by ``make_sync.py``, but for ``platform.py``."""
