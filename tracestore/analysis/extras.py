"""Packages that only some analysts want, imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tracestore.errors import TracestoreError


class MissingPackage(TracestoreError):
    """This needs a package that is not installed"""

    exit_code = 2


def optional(name: str) -> Any:
    """The module `name`, which the extra `analysis` brings.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        raise MissingPackage(package=name, hint='pip install "tracestore[analysis]"') from missing
