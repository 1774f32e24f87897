"""A Python process that runs code which a model wrote, and the lines of JSON that a harness speaks with it.

It starts as `python -I -S FILE` with an empty environment: it can import nothing that is installed. It runs
as the user who started it, so it keeps mistakes apart from the harness; code of a model that is not trusted
belongs into a container.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Timer
from time import monotonic
from types import TracebackType
from typing import Any, Self


class Child:
    """The process. Leaving the context waits for its end, or kills it where it still runs.

    Args:
        file: what it runs.
    """

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> int:
        """Its exit status, negative for the signal that ended it; where it waits for a line, none comes."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it had read all
            process.stdin.close()
        killer = Timer(1.0, process.kill)
        killer.start()
        status = process.wait()
        killer.cancel()
        process.stdout.close()
        return status

    def tell(self, what: Any) -> None:
        """A line to it; nothing where it has ended, which `hear` says."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def hear(self, deadline: float) -> dict[str, Any] | None:
        """Its next line; None where it has ended. At the deadline, by `time.monotonic`, it is killed."""
        assert self._process.stdout is not None
        is_late = Event()

        def kill() -> None:
            is_late.set()
            self._process.kill()

        killer = Timer(max(deadline - monotonic(), 0.0), kill)
        killer.start()
        line = self._process.stdout.readline()
        killer.cancel()
        killer.join()  # a line that comes while it is killed comes too late
        if is_late.is_set() or not line.endswith("\n"):
            return None
        said: dict[str, Any] = json.loads(line)
        return said
