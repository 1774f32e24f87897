"""A stored episode and a scorer -> reward events that stand beside those it has.

A scorer is a function of an `Episode`, as `Database.episode` gives it. It returns a number, several numbers
by name, `Score`s of agents, calls or what else a reward can be for, or None for no reward. The id of a reward
is made of the scorer, its version, the name and the target: scoring again stores nothing twice, and another
version adds rows of its own.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tracestore.analysis.episode import Episode
from tracestore.errors import TracestoreError
from tracestore.graph.model import Graph
from tracestore.wire.base import Raw
from tracestore.wire.reward import Reward, RewardTarget


class NoScorer(TracestoreError):
    """There is no such scorer"""

    exit_code = 2


class NotScored(TracestoreError):
    """What the scorer says of an episode cannot be kept"""


@dataclass(frozen=True)
class Score:
    """One reward of an episode, or of the finest thing that is named (`tracestore.wire.reward`)."""

    value: float
    name: str | None = None
    """None: the name of the whole rescoring."""
    agent_id: str | None = None
    call_id: str | None = None
    completion: int | None = None
    candidate_set_id: str | None = None
    member: int | None = None
    token_start: int | None = None
    token_length: int | None = None


_PLACES = [one.name for one in fields(Score) if one.name not in ("value", "name")]
ScorerFunction = Callable[[Episode], Any]


@dataclass(frozen=True)
class Rescoring:
    """A scorer, and what is recorded with every reward that it gives."""

    function: ScorerFunction
    scorer: str
    """`module:function`."""
    version: str
    name: str
    """Of a reward for which the scorer names none."""
    weight: float
    """In the composed reward. 0: the row is on record, changes no sum and grades nothing."""

    def rewards(self, episode_id: str, graph: Graph) -> list[Reward]:
        """What the scorer gives an episode, in its order.

        Raises:
            NotScored: the scorer failed, or gave what is no finite number, or what is of nothing in the
                episode, or what would count beside another of its name.
        """
        found: dict[str, Reward] = {}
        for score in _scores(_asked(self.function, episode_id, graph)):
            made = self._reward(episode_id, graph, score)
            if made.id in found:
                raise NotScored(name=made.name, hint="it scores one thing twice by one name: name the scores")
            found[made.id] = made
        for reward in found.values():
            self._require_alone(reward, graph)
        return list(found.values())

    def namesakes(self, reward: Reward, graph: Graph) -> list[Reward]:
        """Other rewards of the same name on the same target: a spec that names them adds them all."""
        others = (one for one in graph.rewards.values() if one.id != reward.id)
        return [one for one in others if one.name == reward.name and one.target == reward.target]

    def _reward(self, episode_id: str, graph: Graph, score: Score) -> Reward:
        name = self.name if score.name is None else score.name
        places = {place: getattr(score, place) for place in _PLACES}
        known = {place: value for place, value in places.items() if value is not None}
        try:
            target = RewardTarget(episode_id=episode_id, **known)
        except ValidationError as error:
            problem = "; ".join(one["msg"] for one in error.errors())
            raise NotScored(name=name, problem=problem, hint="see tracestore.wire.reward") from error
        _require_there(graph, target)
        value = _number(score.value, name)
        parts = [self.scorer, self.version, name, target.model_dump(exclude_none=True)]
        return Reward(
            id=f"rescore-{sha256(Raw.of(parts)).hexdigest()[:32]}",
            target=target,
            name=name,
            value=value,
            weight=self.weight,
            scorer=self.scorer,
            scorer_version=self.version,
        )

    def _require_alone(self, reward: Reward, graph: Graph) -> None:
        """Refuse a reward that would count beside another that counts by the same name."""
        counting = [one.id for one in self.namesakes(reward, graph) if one.weight != 0]
        if self.weight != 0 and counting:
            hint = "both would count: give it another --name, or --weight 0"
            raise NotScored(name=reward.name, beside=counting[0], hint=hint)


def load_scorer(spelled: str) -> tuple[ScorerFunction, str]:
    """`module:function`, found as Python finds modules, the working directory first -> the function, and the
    version of its module: the beginning of the sha256 of its file.

    Raises:
        NoScorer: nothing of that name can be imported or called.
    """
    module_name, colon, name = spelled.partition(":")
    if not colon or not module_name or not name:
        raise NoScorer(scorer=spelled, hint="write module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # for what the function imports later too
    try:
        module = import_module(module_name)
    except Exception as error:  # a module may fail in any way while it is imported
        raise NoScorer(scorer=spelled, reason=_told(error), hint="it must be importable from here") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise NoScorer(scorer=spelled, hint=f"{module_name} has no function {name}")
    file = module.__file__
    source = b"" if file is None else Path(file).read_bytes()
    return function, sha256(source).hexdigest()[:12]


def _asked(function: ScorerFunction, episode_id: str, graph: Graph) -> Any:
    try:
        return function(Episode(episode_id, graph))
    except Exception as error:  # the scorer is somebody else's
        raise NotScored(problem=_told(error)) from error


def _told(error: Exception) -> str:
    """An exception, and the line from which it came."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def _scores(said: Any) -> Iterator[Score]:
    """What a scorer returned as scores. A number by itself or by name is of the whole episode."""
    if said is None:
        return
    if isinstance(said, Score):
        yield said
    elif isinstance(said, Real):
        yield Score(float(said))
    elif isinstance(said, Mapping):
        yield from (Score(value, name) for name, value in said.items() if value is not None)
    elif isinstance(said, Iterable) and not isinstance(said, (str, bytes)):
        for one in said:
            if not isinstance(one, Score):
                raise NotScored(got=type(one).__name__, hint="a list of scores holds Score objects")
            yield one
    else:
        hint = "return a number, numbers by name, a list of Score, or None"
        raise NotScored(got=type(said).__name__, hint=hint)


def _number(value: Any, name: str) -> float:
    if not isinstance(value, Real):
        raise NotScored(name=name, got=repr(value), hint="a reward is a number")
    if not math.isfinite(value):
        hint = "a reward is a finite number; return None where there is none"
        raise NotScored(name=name, value=float(value), hint=hint)
    return float(value)


def _require_there(graph: Graph, target: RewardTarget) -> None:
    """Raises NotScored for a target that the episode does not hold."""
    call, completion, candidates = target.call_id, target.completion, target.candidate_set_id
    agents = graph.agents.keys() | {one.agent_id for one in graph.calls.values()}
    if target.agent_id is not None and target.agent_id not in agents:
        raise NotScored(agent_id=target.agent_id, hint="the episode has no such agent")
    if call is not None and call not in graph.calls:
        raise NotScored(call_id=call, hint="the episode has no such call")
    if candidates is not None:
        members = graph.candidate_sets[candidates].members if candidates in graph.candidate_sets else ()
        if target.member is None or target.member >= len(members):
            raise NotScored(
                candidate_set_id=candidates, member=target.member, hint="there is no such candidate"
            )
    if call is None or completion is None:
        return
    answer = graph.completions.get((call, completion))
    if answer is None:
        raise NotScored(call_id=call, completion=completion, hint="the call has no such completion")
    if target.token_start is None or target.token_length is None or answer.token_ids is None:
        return
    if target.token_start + target.token_length > len(answer.token_ids):
        hint = f"the completion has {len(answer.token_ids)} tokens"
        raise NotScored(call_id=call, token_start=target.token_start, hint=hint)
