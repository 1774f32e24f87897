"""A server's process -> what it costs: CPU time, memory and disk, its children included."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOP_S = 60
_SETTLE_S, _QUIET_S, _LOOK_S = 120, 2.0, 0.5
_IDLE_SHARE = 0.1
"""Of a core."""


@contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    is_read: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own; at the end SIGTERM, and SIGKILL for what does not heed it.

    What it says goes to `log`; its stdout is a pipe instead where somebody reads it (`is_read`).
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_read else file,
            stderr=file,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_S)
        # What it started and left behind.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a process and of its living descendants."""
    return sum(map(_cpu_seconds, _tree(pid)))


def wait_until_idle(pid: int) -> None:
    """Until a process and its descendants have done next to nothing for a while: they may still be starting.

    Raises:
        RuntimeError: they do not come to rest.
    """
    quiet_s, before = 0.0, cpu_seconds(pid)
    for _ in range(round(_SETTLE_S / _LOOK_S)):
        time.sleep(_LOOK_S)
        now = cpu_seconds(pid)
        quiet_s = quiet_s + _LOOK_S if now - before < _IDLE_SHARE * _LOOK_S else 0.0
        before = now
        if quiet_s >= _QUIET_S:
            return
    raise RuntimeError(f"the server has been busy for {_SETTLE_S} s without a request")


def peak_mb(pid: int) -> float:
    """The most memory a process and its living descendants have held, each at its own time."""
    return sum(map(_peak_kb, _tree(pid))) / 1024


def disk_bytes(folder: Path, *, but: Sequence[str] = ()) -> int:
    """Bytes of all files under a folder, without those of the names `but`."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name not in but)


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:  # it grows while it is gone through
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def _cpu_seconds(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # The name, in brackets, may hold anything.
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS_PER_S


def _peak_kb(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 0 if peak is None else int(peak[1])
