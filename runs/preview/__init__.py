"""The preview gateway: servers that run in workspaces, as web pages under addresses of their own.

``http://{port}-{workspaceId}.{domain}`` leads to a port of a workspace, for who has opened a signed
link to it. Each workspace has one ``agent connect``, through one exec of the engine, and every
connection to one of its ports is a channel of that stream and an event of the workspace's record.
What a workspace serves never shares an origin, nor a process, with the API.

``preview_settings`` what it may be told · ``admission`` who may pass: hosts, tokens, cookies, pages
of others · ``workspace_ports`` the way into the workspaces · ``message_heads`` what is passed on of
a message's head · ``exchange`` one client's connection · ``refusal_pages`` what it says itself ·
``preview_gateway`` the whole.
"""
