"""A real server in a process of its own, on loopback and a free port, and the smallest client for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    pid: int
    process: subprocess.Popen[str]
    """Of the server, or of the `prefix` around it."""

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any further."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it finishes what it has in hand."""
        os.kill(self.pid, signal.SIGTERM)

    def ended_with(self) -> int:
        """Its exit code after SIGTERM."""
        self.stop()
        return self.process.wait(timeout=60)


@contextmanager
def running_server(
    database: Path, *, prefix: Sequence[str] = (), url: str | None = None, flags: Sequence[str] = ()
) -> Iterator[Running]:
    """`tracestore serve` on a SQLite file, under `prefix` (strace ...); stopped at the end if it still runs.

    What it says on stderr stands in a `.log` file beside the database.

    Args:
        url: of another database, which is served in place of the file.
        flags: more of the command line.
    """
    log = database.with_suffix(".log")
    command = [*prefix, sys.executable, "-m", "tracestore.cli.main", "serve", "--json", "--port", "0"]
    with (
        log.open("ab") as stderr,
        subprocess.Popen(
            [*command, "--db", url or f"sqlite:///{database}", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the server did not start:\n{log.read_text()}"
        server = Running(**json.loads(line), process=process)
        try:
            yield server
        finally:
            if process.poll() is None:
                # A killed server is gone already; only its parent (strace) is left to end.
                with suppress(ProcessLookupError):
                    server.stop()
            process.wait(timeout=60)


class Connection:
    """One kept-alive connection that posts and gets JSON."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        self._http = http.client.HTTPConnection(where.hostname, where.port, timeout=60)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Status and parsed answer; OSError or HTTPException when the server is gone."""
        self._http.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        return self._answer()

    def get(self, path: str) -> tuple[int, Any]:
        self._http.request("GET", path)
        return self._answer()

    def _answer(self) -> tuple[int, Any]:
        response = self._http.getresponse()
        return response.status, json.loads(response.read())
