"""What programs in a workspace may ask of the kernel.

``default.json`` is the Docker Engine's own default, unchanged: ``profiles/seccomp/default.json`` of
Moby 20.10.24 (Apache License 2.0, Docker, Inc.), as Debian's golang-github-docker-docker-dev
20.10.24+dfsg1-1+deb12u1 has it. Engines differ in theirs; with this one all keep what follows:

- no sockets of ``AF_VSOCK``: they reach the hypervisor past every rule about networks. Nor does
  ``socketcall``, whose arguments a filter cannot see, make any: 32-bit programs that know no other
  call have no sockets.
- no ``io_uring``, which later engines deny as well: it has its own ways to call the kernel.
"""

from __future__ import annotations

import json
from errno import ENOSYS
from functools import cache
from importlib.resources import files
from typing import Any

AF_VSOCK = 40
_ADDRESS_FAMILY_BITS = 6
"""No kernel knows a family that needs more."""
_DENIED = frozenset({"socketcall", "io_uring_setup", "io_uring_enter", "io_uring_register"})

# Not left to the default: libseccomp allows to socketcall what it allows to socket, and leaves out
# what was said of the family. It would also take an equal answer for the default's.
_NO_SOCKETCALL = {"names": ["socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}


@cache
def profile() -> str:
    """Return the profile as the engine's API takes it after ``seccomp=``."""
    told: dict[str, Any] = json.loads(files(__package__).joinpath("default.json").read_text())
    for rule in told["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in {*_DENIED, "socket"}]
    rules = [rule for rule in told["syscalls"] if rule["names"]]
    told["syscalls"] = [*rules, *_any_family_but(AF_VSOCK), _NO_SOCKETCALL]
    return json.dumps(told, separators=(",", ":"))


def _any_family_but(family: int) -> list[dict[str, Any]]:
    """Return rules that allow a socket when one bit of its family is another one.

    "Not equal" would compare all 64 bits of the register, of which the kernel reads the lower half:
    a program that sets one above would get its socket.
    """
    bits = [1 << place for place in range(_ADDRESS_FAMILY_BITS)]
    return [
        {
            "names": ["socket"],
            "action": "SCMP_ACT_ALLOW",
            "args": [
                {"index": 0, "value": bit, "valueTwo": ~family & bit, "op": "SCMP_CMP_MASKED_EQ"}
            ],
        }
        for bit in bits
    ]
