"""Everything a caller can fix is a TracestoreError; its docstring is the first half of its message.

The API turns these into problem+json in one place, the CLI into one line on stderr and exit code 1 or 2.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TracestoreError(Exception):
    """Something went wrong that the caller can fix."""

    status: ClassVar[int] = 400
    """HTTP status of the response that reports this error."""
    exit_code: ClassVar[int] = 1
    """Exit code of the command that ends with this error: 1 it failed, 2 it was asked for wrongly."""

    def __init__(self, *, hint: str | None = None, **values: Any) -> None:
        self.hint = hint
        self.values = values
        super().__init__(str(self))

    @property
    def title(self) -> str:
        return (type(self).__doc__ or "").strip().split("\n", 1)[0].rstrip(".")

    def __reduce__(self) -> tuple[Any, ...]:
        # Values have names, which Exception's own way from process to process forgets.
        return _as_it_was, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.values.items() if value is not None)
        message = f"{self.title}: {facts}" if facts else self.title
        return f"{message}; {self.hint}" if self.hint else message


def _as_it_was(kind: type[TracestoreError], args: tuple[Any, ...], state: dict[str, Any]) -> TracestoreError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
