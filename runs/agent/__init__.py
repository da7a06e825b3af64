"""The agent inside every workspace: the container's entry process and its voice.

It travels as one zipapp that is baked into the image (`runs/agent_archive.py`), so this package
uses the standard library of Python 3.8 only, imports nothing from the rest of the project, and
keeps its own imports relative. Every subcommand imports just the modules that it needs: somebody
waits for each start, and where an image has no compiled files an import costs a compilation.
"""
