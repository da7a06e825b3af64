"""Where workspaces run: one adapter class for each kind of engine.

``base`` is what the rest of the product knows: the values and the ``RuntimeAdapter`` protocol.
``docker`` is the adapter for the Docker Engine and the only module that imports its SDK;
``networks`` and ``boot`` are the parts of it that need no engine.
"""
