"""Who answers a request of a replay: the recording, or a model.

strict           the recording answers, or nobody does
record-missing   what was never recorded is answered by a model
live-after K     the first K calls of the recording are answered by it, all others by a model
policy           a model answers everything; an answer that is the recorded one is no divergence
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from tracestore.errors import TracestoreError

ModeName = Literal["strict", "record-missing", "live-after", "policy"]
MODES: tuple[ModeName, ...] = get_args(ModeName)


class UnknownMode(TracestoreError):
    """There is no such way to replay"""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True)
class Mode:
    """Who answers."""

    name: ModeName = "strict"
    live_after: int | None = None
    """`live-after`: how many calls of the recording, in its order, it answers."""

    @property
    def needs_model(self) -> bool:
        """Whether anything may go to a model."""
        return self.name != "strict"


STRICT = Mode()


def mode_of(name: str | None, live_after: int | None) -> Mode | None:
    """The mode that is named; a number of calls alone is `live-after`. None: nothing is named.

    Raises:
        UnknownMode: there is none of this name, or the number stands where it says nothing.
    """
    if name is None and live_after is None:
        return None
    found = next((one for one in MODES if one == (name or "live-after")), None)
    if found is None:
        raise UnknownMode(mode=name, modes=list(MODES), hint="name one of them")
    if (found == "live-after") != (live_after is not None):
        raise UnknownMode(
            mode=found, live_after=live_after, hint="live-after and its number of calls stand together"
        )
    return Mode(found, live_after)
