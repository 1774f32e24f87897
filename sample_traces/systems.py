"""Name -> system: a folder here with a `harness.py` is one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from sample_traces.system import System
from tracestore.cli.demo import SAMPLED

FOLDER = Path(__file__).resolve().parent


def names() -> tuple[str, ...]:
    """All systems, those that are sampled first, in the order of a first reading."""
    found = {path.parent.name for path in FOLDER.glob("*/harness.py")}
    return (*(name for name in SAMPLED if name in found), *sorted(found - set(SAMPLED)))


def system(name: str) -> System:
    """The system of a folder here.

    Raises:
        ModuleNotFoundError: there is no such folder.
    """
    found = importlib.import_module(f"sample_traces.{name}.harness").SYSTEM
    assert isinstance(found, System)
    return found


def systems() -> Mapping[str, System]:
    """All of them, by name."""
    return {name: system(name) for name in names()}
