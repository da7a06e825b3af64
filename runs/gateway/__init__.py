"""The SSH gateway: people enter a workspace, and each connection is a recorded run.

One SSH connection is one interactive run, one ``agent session`` in the workspace's container and
one exec of the engine; all channels of the connection go through that one stream. The gateway has
no database: what it knows it asks the control plane for, over the HTTP API.

``configuration`` what it may be told · ``host_key`` who it is · ``limits`` who has to wait and who
is too many · ``control_plane`` what it asks the API · ``entry`` the way from a proven key to a
ready session · ``link`` the session's frames · ``connection`` what we need of asyncssh beyond its
hooks · ``login`` one connection from its first byte · ``channels`` what runs in it · ``gateway``
the whole.
"""
