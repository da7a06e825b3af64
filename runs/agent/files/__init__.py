"""The files of a workspace for the control plane: read, written, listed and packed as its user.

`files_wire` has the frames, `access` what the record is told of each call, `read_files`, `writing`
and `archives` the actions, `listening` what listens on ports. Every file is opened by a process
that has become the workspace's user: nobody gets at more through the control plane than a shell
would.
"""
