"""``devcontainer.json`` as a blueprint: what has a counterpart is translated, the rest is named."""
