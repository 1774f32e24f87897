"""One system: a task, a harness that attempts it, and who speaks in the episodes that are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sample_traces.sampler import Sampler, Script
from tracestore.client import Episode

Play = Callable[[Episode, Sampler, int], float]
"""(episode, sampler, seed) -> reward, recording on the way."""


@dataclass(frozen=True)
class System:
    """A harness and the group of episodes that is recorded with it."""

    task: str
    """Id of the task that all episodes of the group attempt."""
    play: Play
    seeds: tuple[int, ...] = ()
    """One sampled episode each; () for a system that is only played by script."""
    scripts: tuple[Script, ...] = ()
    """One scripted episode each."""
    tasks: tuple[str, ...] = ()
    """Id of the task of each scripted episode in turn, a group for each task; () where all attempt `task`."""
    inference_only: bool = False
    """Whether its episodes are recorded for reading, and none trains."""
    scripted_play: Play | None = None
    """Plays the scripts where they show what `play` does not come to."""

    def task_of(self, script: int) -> str:
        """The task that a scripted episode attempts."""
        return self.tasks[script] if self.tasks else self.task

    @property
    def plays_scripts(self) -> Play:
        return self.scripted_play or self.play
