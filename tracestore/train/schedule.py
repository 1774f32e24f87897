"""The learning rate of each step."""

from __future__ import annotations

from typing import Literal

import torch
from transformers import get_scheduler

from tracestore.errors import TracestoreError

Schedule = Literal["constant", "linear", "cosine"]


class ScheduleWithoutEnd(TracestoreError):
    """A schedule that falls to 0 needs to know the last step."""

    exit_code = 2


def scheduler(
    optimizer: torch.optim.Optimizer, *, schedule: Schedule, warmup_steps: int, steps: int | None
) -> torch.optim.lr_scheduler.LRScheduler:
    """The rate rises from 0 over `warmup_steps`, then stays, or falls to 0 in a line or along a cosine.

    Raises:
        ScheduleWithoutEnd: linear or cosine without `steps`.
    """
    if schedule != "constant" and steps is None:
        raise ScheduleWithoutEnd(schedule=schedule, hint="say the number of steps (--steps N)")
    name = "constant_with_warmup" if schedule == "constant" else schedule
    made: torch.optim.lr_scheduler.LRScheduler = get_scheduler(
        name, optimizer, num_warmup_steps=warmup_steps, num_training_steps=steps
    )
    return made
