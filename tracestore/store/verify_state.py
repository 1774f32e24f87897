"""How far a check of a store has come, in a file: one that was broken off goes on there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Self

from tracestore.errors import TracestoreError
from tracestore.store.verify import Cursor

_EVERY_S = 1.0
"""How often the file is written: what was checked after that is checked again."""


class OtherState(TracestoreError):
    """This file is not the state of a check of this project"""

    exit_code = 2


class NoPlaceForState(TracestoreError):
    """The state of a check cannot be kept there"""

    exit_code = 2


class VerifyState:
    """Where the check of one project stands. Without a file it is kept in memory alone."""

    def __init__(self, file: Path | None, key: dict[str, str], cursor: Cursor | None, findings: int) -> None:
        self.cursor = cursor
        self.findings = findings
        """Those of the runs before included."""
        self._file = file
        self._key = key
        self._is_over = False
        self._written_at = time.monotonic()

    @classmethod
    def read(cls, file: Path | None, *, db: str, project: str) -> Self:
        """The state that an earlier run has left; a new one where there is no file.

        Raises:
            OtherState: it is about another project, or no state at all.
            NoPlaceForState: there is no such folder, or nothing may be written to it.
        """
        key = {"db": db, "project": project}
        if file is not None and not os.access(file.absolute().parent, os.W_OK):
            raise NoPlaceForState(file=str(file), hint="name a file in a folder that is there and writable")
        if file is None or not file.exists():
            return cls(file, key, None, 0)
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
            found = {name: facts[name] for name in key}
            cursor, findings = Cursor(str(facts["step"]), int(facts["after"])), int(facts["findings"])
        except (ValueError, KeyError, TypeError) as error:
            raise OtherState(file=str(file), error=str(error), hint="name another --state") from error
        if found != key:
            raise OtherState(file=str(file), **found, hint="name another --state, or remove it")
        return cls(file, key, cursor, findings)

    def save(self, cursor: Cursor | None, *, findings: int) -> None:
        """A piece is checked, up to the cursor; None: that was the last."""
        self.cursor = cursor
        self.findings += findings
        self._is_over = cursor is None
        if time.monotonic() - self._written_at > _EVERY_S:
            self._write()

    def close(self) -> None:
        """Keep what has been done, or remove the file where all is."""
        if self._is_over and self._file is not None:
            self._file.unlink(missing_ok=True)
        else:
            self._write()

    def _write(self) -> None:
        if self._file is None or self.cursor is None:
            return
        facts = {**self._key, **self.cursor._asdict(), "findings": self.findings}
        partial = self._file.with_name(f"{self._file.name}.partial")
        partial.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        os.replace(partial, self._file)
        self._written_at = time.monotonic()
