"""What workspaces with a policy reach: a name server and a proxy, which are their only way out.

- :mod:`.host_policy`  what a policy says of a host; :mod:`.presets` lists that the operator keeps
- :mod:`.name_addresses`  which address stands for a name, and which addresses nobody may reach
- :mod:`.name_server`  answers for allowed names only, out of nothing but the policy
- :mod:`.client_hello`  which host a TLS client asks for; :mod:`.web`  one HTTP request
- :mod:`.proxy`  decides on every connection, dials, and passes bytes on
- :mod:`.known_networks`  whose network a connection comes from
- :mod:`.decisions`  writes decisions as events

The network guard sends all TCP and DNS of such a workspace here, and drops the rest
(``workspaces.runtimes.docker.network_guard``).
"""
