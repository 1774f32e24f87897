"""A verb that serves, in a process of its own for as long as another verb needs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tracestore.errors import TracestoreError


class ServerDown(TracestoreError):
    """The server did not start."""


@contextmanager
def serving(words: Sequence[str]) -> Iterator[str]:
    """`tracestore WORDS --json`, which first says its `url`. Yields it.

    Raises:
        ServerDown: with what it said.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tracestore.cli.main", *words, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise ServerDown(exit_code=process.wait(), hint="its own message stands above")
            yield json.loads(line)["url"]
        finally:
            process.terminate()
            process.wait()
