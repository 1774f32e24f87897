"""The processes that train together, and what they must agree on before any of them computes.

Every rank reads the same groups, gives the same credit and makes the same plan; a rank computes its share of
it. What only the ranks together can tell (the sums over a step, whether a number is finite) goes over a group
of its own, on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from tracestore.errors import TracestoreError

Item = TypeVar("Item")

_PATIENCE = timedelta(days=30)
"""How long ranks wait for the first one, which may itself wait for an export to go on. When a rank ends with
an error the others do not wait on: torchrun ends them."""


class RanksDisagree(TracestoreError):
    """Ranks planned different steps: summed, their gradients would be of no step at all."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone, every method gives back what it was given."""

    rank: int = 0
    size: int = 1
    group: Any = None
    """Process group that carries Python objects; None when alone."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gathered(self, value: Item) -> list[Item]:
        """The value of every rank, in order of rank: equal on all of them, and so are sums over it."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def from_first(self, make: Callable[[], Item]) -> Item:
        """What `make` gives on rank 0; the other ranks wait for it."""
        if self.size == 1:
            return make()
        sent: list[Any] = [make() if self.is_first else None]
        dist.broadcast_object_list(sent, src=0, group=self.group)
        made: Item = sent[0]
        return made

    def require_same(self, **facts: Any) -> None:
        """Raises RanksDisagree, naming what differs, unless every rank says the same."""
        said = self.gathered(facts)
        differing = {name: [of_rank[name] for of_rank in said] for name in facts}
        differing = {
            name: values for name, values in differing.items() if any(v != values[0] for v in values)
        }
        if differing:
            raise RanksDisagree(
                **differing,
                hint="values are by rank: give every rank the same command and the same export",
            )


ALONE = Ranks()


@contextmanager
def ranks_of_environment() -> Iterator[Ranks]:
    """The ranks that torchrun started, over gloo on CPUs and nccl on GPUs; else this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
    try:
        yield Ranks(dist.get_rank(), size, dist.new_group(backend="gloo", timeout=_PATIENCE))
    finally:
        dist.destroy_process_group()
