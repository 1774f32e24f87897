"""The command line as a user types it, in this process, with its JSON answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracestore.cli.main import main


def run_verb(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    """Exit code and last JSON line of `tracestore VERB ... --json`."""
    code = main([*map(str, argv), "--json"])
    out = capsys.readouterr().out.strip()
    return code, json.loads(out.splitlines()[-1]) if out else {}
