"""An exception -> the status and the error text that it is recorded as."""

from __future__ import annotations


def status_of(error: BaseException | None) -> str:
    """ok, failed, timeout, cancelled or interrupted."""
    if error is None:
        return "ok"
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return "interrupted"
    # asyncio's own, by name: importing asyncio would double the import time of the client.
    if type(error).__name__ == "CancelledError":
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) else "failed"


def text_of(error: BaseException | None) -> str | None:
    """Type and message; None where nothing was raised."""
    return None if error is None else f"{type(error).__name__}: {error}"
