"""What workspaces with a policy reach: a name server and a proxy, which are their only way out.

- :mod:`.host_policy`  what a policy says of a host; :mod:`.presets` lists that the operator keeps
- :mod:`.agreed_policy`  the policy of a network, before it is made and while it is used
- :mod:`.name_addresses`  which address stands for a name, and which addresses nobody may reach
- :mod:`.name_server`  answers for allowed names only, out of nothing but the policy;
  :mod:`.name_listener` is asked
- :mod:`.client_hello`  which host a TLS client asks for; :mod:`.web`  one HTTP request
- :mod:`.allowance`  how much of something a workspace may have at once
- :mod:`.proxy`  decides on every connection; :mod:`.dialling` and :mod:`.relaying` pass bytes on
- :mod:`.known_networks`  whose network a connection comes from;
  :mod:`.open_networks` what is open there
- :mod:`.decisions`  writes decisions as events; :mod:`.proposals` what an owner may allow
- :mod:`.decided`  has each decision in the record of the boot run
- :mod:`.bound`  accounts whose secrets never enter a workspace; :mod:`.bound_requests` puts them in
- :mod:`.tls_ending`  the server's side of TLS, where a rule has to see requests

The network guard sends all TCP and DNS of such a workspace here, and drops the rest
(``workspaces.runtimes.docker.network_guard``).
"""
