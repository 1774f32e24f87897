"""What can be wrong with posted JSON: every error names the field and says what to do."""

from __future__ import annotations

from typing import Any, ClassVar

from tracestore.errors import TracestoreError


class BodyError(TracestoreError):
    """The body cannot be read, nothing of it was stored"""


class BodyTooLarge(BodyError):
    """The body is over a limit, nothing of it was stored"""

    status: ClassVar[int] = 413


class EventError(TracestoreError):
    """The event cannot be stored"""

    status: ClassVar[int] = 422

    def __init__(self, *, path: str | None = None, hint: str | None = None, **values: Any) -> None:
        self.path = path
        super().__init__(hint=hint, **values)

    @property
    def problem(self) -> str:
        """The whole message for the person who posted the event: field path, what is wrong, what to do."""
        return str(self)

    def __str__(self) -> str:
        # Path first: items of one response are read as a column.
        return f"{self.path}: {super().__str__()}" if self.path else super().__str__()

    def below(self, step: str) -> EventError:
        """The same error, one step further from the root: `below("completions")`, `below("[3]")`."""
        if self.path is None:
            self.path = step
        else:
            self.path = step + (self.path if self.path.startswith("[") else f".{self.path}")
        self.args = (str(self),)
        return self


class MalformedJson(EventError):
    """Not JSON"""


class NotAnObject(EventError):
    """An event is one JSON object"""


class DuplicateKey(EventError):
    """An object names a key twice"""


class TooDeep(EventError):
    """Arrays and objects are nested too deeply"""


class EventTooLarge(EventError):
    """The event is over the size limit"""

    status: ClassVar[int] = 413


class NotFinite(EventError):
    """NaN or Infinity where it was not declared"""


class NumberTooLarge(EventError):
    """The number does not fit the field"""


class UnknownKind(EventError):
    """No such kind of event"""


class UnsupportedVersion(EventError):
    """This wire version is not read here"""


class InvalidId(EventError):
    """The id cannot be used"""


class UnknownField(EventError):
    """No such field"""


class MissingField(EventError):
    """A required field is missing"""


class InvalidField(EventError):
    """The value does not fit the field"""


class InvalidFields(EventError):
    """Several fields are wrong"""
