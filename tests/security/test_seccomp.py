"""What a workspace's programs may ask of the kernel: no sockets past the network's rules."""

from __future__ import annotations

import errno
import json

import pytest

from tests.workspaces.conftest import Launcher
from tests.workspaces.conftest import docker_client as docker_client
from tests.workspaces.conftest import launcher as launcher
from tests.workspaces.conftest import make_launcher as make_launcher
from tests.workspaces.conftest import publish as publish
from tests.workspaces.conftest import workspace_image as workspace_image

pytestmark = pytest.mark.docker

SYSCALLS = """
import ctypes, errno, json, mmap, os, socket, sys

kernel = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    ctypes.set_errno(0)
    answer = kernel.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if answer >= 0:
        os.close(answer)
    return ctypes.get_errno()

def call_as_32_bit(number, first):
    # mov eax, number; push rbx; mov ebx, first; mov ecx, 1; xor edx, edx; int 0x80; pop rbx; ret
    code = b"\\xb8%b\\x53\\xbb%b\\xb9\\x01\\0\\0\\0\\x31\\xd2\\xcd\\x80\\x5b\\xc3" % (
        number.to_bytes(4, "little"), first.to_bytes(4, "little")
    )
    place = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    place.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    return -ctypes.CFUNCTYPE(ctypes.c_int)(address)()

SOCKET, VSOCK = (41 if os.uname().machine == "x86_64" else 198), 40
print(json.dumps({
    "vsock": [call(SOCKET, VSOCK + (high << 32), kind, 0)
              for high in (0, 1, 0x7fffffff) for kind in (1, 2, 1 | 0o2000000)],
    "io_uring": call(425, 1, 0),
    "32 bit": [call_as_32_bit(359, VSOCK), call_as_32_bit(102, 1)]
              if os.uname().machine == "x86_64" else [errno.EPERM, errno.ENOSYS],
    "others": [call(SOCKET, family, socket.SOCK_STREAM, 0)
               for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)]
              + [call(SOCKET, socket.AF_NETLINK, socket.SOCK_RAW, 0)],
}))
"""

TRACED = """
import ctypes, os, signal, socket, threading
kernel = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    kernel.ptrace(0, 0, 0, 0)  # PTRACE_TRACEME, as gdb and strace start a program
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.WIFSTOPPED(status), status
assert kernel.ptrace(7, child, 0, 0) == 0, ctypes.get_errno()  # PTRACE_CONT
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
kernel.personality(0x0040000)  # gdb turns address randomisation off, where it may
threads = [threading.Thread(target=socket.socketpair) for _ in range(8)]
[each.start() for each in threads]; [each.join() for each in threads]
os.close(os.memfd_create("memory")); os.close(os.eventfd(0)); os.close(os.pidfd_open(os.getpid()))
print("works")
"""


@pytest.mark.parametrize("sudo", [False, True])
def test_no_program_opens_a_socket_to_the_hypervisor(launcher: Launcher, sudo: bool) -> None:
    runtime = launcher.launch(launcher.request(sudo=sudo))
    user = "root" if sudo else "workspace"
    code, printed = launcher.inside(runtime, "python3", "-c", SYSCALLS, user=user)
    assert code == 0, printed
    told = json.loads(printed)
    assert told["vsock"] == [errno.EPERM] * 9
    assert told["32 bit"] == [errno.EPERM, errno.ENOSYS]
    assert told["io_uring"] == errno.EPERM
    assert told["others"] == [0, 0, 0, 0]


def test_programs_are_traced_and_threads_started_as_before(launcher: Launcher) -> None:
    runtime = launcher.launch(launcher.request(sudo=True))
    assert launcher.inside(runtime, "python3", "-c", TRACED) == (0, "works\n")
    assert launcher.inside(runtime, "sudo", "true")[0] == 0
