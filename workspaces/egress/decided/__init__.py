"""Every decision of the egress proxy on its way into the record of the workspace's boot run.

- :mod:`.sums`  what was decided in one pass, equal decisions together, and no more than so many
- :mod:`.journal`  writes each decision to the disk before it takes effect, and stores them in
  order; :mod:`.unstored` is what it has of one attempt
- :mod:`.keeping`  what is needed of the records, which the runs app keeps
- :mod:`.serving`  which proxy serves a network, and that the network's record is about to end;
  :mod:`.settling` stores what was decided there until then
"""
