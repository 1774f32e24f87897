"""Ways to put a server where things go wrong: a small disk, system calls that fail, few descriptors."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.serving import Running


@cache
def can_mount() -> bool:
    """Whether a process may have a file system of its own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def on_a_disk_of(size: int, folder: Path) -> list[str]:
    """Prefix of a command that sees a file system of `size` bytes at `folder`. It goes with the process."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]


def seen_by(server: Running, folder: Path) -> Path:
    """`folder` as the process sees it, which may have mounted something there."""
    return Path(f"/proc/{server.pid}/root{folder.resolve()}")


def with_failing_calls(faults: Sequence[str], *, on: Path) -> list[str]:
    """Prefix of a command some of whose system calls on one file fail.

    Args:
        faults: in strace's words, `pwrite64:error=ENOSPC:when=4..9`; calls are counted for each thread.
    """
    injected = [word for fault in faults for word in ("-e", f"inject={fault}")]
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(on), *injected]


def with_descriptors(number: int) -> list[str]:
    """Prefix of a command that may have `number` files and sockets open."""
    return ["sh", "-c", f'ulimit -n {number} && exec "$@"', "sh"]
