"""Token ids that begin like others: what two calls share is known without comparing it.

prompt 1 = the first 5 ids of answer 0, then 6 7      begins with answer 0: its base says so
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TokenArray = NDArray[np.int32]
"""int32 [T]; read-only where it is the recorded buffer itself."""


class TokenRun:
    """The first `base_length` ids of another run, then its own."""

    __slots__ = ("_spelled", "base", "base_length", "length", "own")

    def __init__(self, own: TokenArray, base: TokenRun | None = None, base_length: int = 0) -> None:
        self.own = own
        self.base = base
        self.base_length = base_length
        self.length = base_length + len(own)
        self._spelled: TokenArray | None = own if base_length == 0 else None

    def __len__(self) -> int:
        return self.length

    @property
    def ids(self) -> TokenArray:
        """All of them, int32 [T]; spelled out once and kept."""
        if self._spelled is None:
            pieces: list[TokenArray] = []
            run, end = self, self.length
            while end:
                pieces.append(run.own[: end - run.base_length] if end > run.base_length else run.own[:0])
                end = min(end, run.base_length)
                if end:
                    assert run.base is not None, "what comes before a run's own ids is its base's"
                    run = run.base
            self._spelled = np.concatenate(pieces[::-1])
        return self._spelled

    def from_(self, position: int) -> tuple[TokenArray, int]:
        """(ids, the position of the first of them) that hold all from `position` on."""
        if position >= self.base_length:
            return self.own, self.base_length
        return self.ids, 0

    def begins_with(self, other: TokenRun) -> bool:
        """Whether the other's ids are an exact prefix of these."""
        return other.length <= self.length and (self._holds(other) or self._repeats(other))

    def _holds(self, other: TokenRun) -> bool:
        """Whether the bases say so already."""
        run: TokenRun | None = self
        while run is not None and run is not other:
            if run.base_length < other.length:
                return False
            run = run.base
        return run is not None

    def _repeats(self, other: TokenRun) -> bool:
        """Whether all compared say so: the last ones first, since where contexts part they part late."""
        ids, end = self.ids, other.length
        run = other
        while end:
            if end > run.base_length:
                start = run.base_length
                if not np.array_equal(ids[start:end], run.own[: end - start]):
                    return False
                end = start
            if end:
                assert run.base is not None, "what comes before a run's own ids is its base's"
                run = run.base
        return True
