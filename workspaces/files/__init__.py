"""The files and ports of a workspace that runs, as requests reach them: calls of its agent.

``call`` speaks to the agent, ``refusals`` makes errors of what it refuses, ``conditions`` reads the
headers of a request, ``services`` has one function for each action, ``transfer`` makes answers of
what is sent. Nothing here opens a path: the agent does, inside the workspace and as its user.
"""
