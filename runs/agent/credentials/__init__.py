"""The accounts of a workspace: taken from the control plane, kept in memory, given to programs.

`document` is what is delivered, `store` the files in memory, `home` what is put into the user's
home, `values` what recorders have to mask, `command` and `git_helper` the subcommands. Nothing of
this is ever on a disk, in an argv or in a message.
"""
