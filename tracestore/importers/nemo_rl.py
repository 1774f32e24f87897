"""NeMo-RL message logs, training rows and re-tokenization cases -> one episode for each rollout.

Three shapes, JSON or JSON lines:

- A rollout has a `message_log` [{role, content, token_ids, generation_logprobs}] and what else its batch
  holds (`length`, `loss_multiplier`, `total_reward`, `idx`, `task_name`, ...). Each assistant message is a
  call that continues the one before it. `token_ids` are of the message alone, as its place in the whole
  sequence has them: what stands before a call is its prompt, unless a message before it has no ids. Rollouts
  may stand in the list `expected_output` beside the rows they were made from (`input`), in the same order.
- A training row (`train_data_step*.jsonl`) has `content`, `rewards`, `generation_logprobs`, and in newer
  versions `token_ids` with `token_loss_mask`: each maximal run of trained tokens is a call that follows
  everything before it. Without ids there is no call to make: the row is an episode with its reward.
- A re-tokenization case has `seen_token_ids` (what the engine read and sampled in one call, without a sign of
  where the sampled part begins) and `output_prompt_token_ids` (the prompt of the next call, made from text
  again), or `og_model_token_ids`, `model_token_ids` and `template_token_ids`. Each list is what one call had
  in its context: calls whose ids do not extend each other are not one sequence. What a repair should give
  (`expected_output`) was never in a context: it is noted.

NeMo-RL writes `content: ""` where only ids were carried (rollouts of NeMo-Gym): stated as a gap, not as an
empty message. Which weights sampled is not in any of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, logprobs, number, token_ids
from tracestore.importers.items import Item, Names, gap_of_main, left, made, raw, taken
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.reward import Reward, RewardTarget

_CASE = (
    "seen_token_ids",
    "og_model_token_ids",
    "model_token_ids",
    "template_token_ids",
    "output_prompt_token_ids",
)
_REWARDS = ("rewards", "total_reward", "reward")


def _is_rollout(value: Any) -> bool:
    log = value.get("message_log") if isinstance(value, dict) else None
    return isinstance(log, list) and any(isinstance(one, dict) and "token_ids" in one for one in log)


def _is_row(value: Any) -> bool:
    return (
        isinstance(value, dict) and "content" in value and {"generation_logprobs", "rewards"} <= value.keys()
    )


def _is_case(value: Any) -> bool:
    return isinstance(value, dict) and sum(isinstance(value.get(name), list) for name in _CASE) > 1


def _rollouts(value: Any) -> list[Any] | None:
    """Rollouts beside the rows they were made from."""
    found = value.get("expected_output") if isinstance(value, dict) else None
    return found if isinstance(found, list) and any(map(_is_rollout, found)) else None


def _recognises(head: Head) -> bool:
    one = head.first
    return _is_rollout(one) or _is_row(one) or _is_case(one) or _rollouts(one) is not None


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, calls and rewards of the sources."""
    for source in sources:
        names = Names("nemo-rl")
        for record in records(source, notes=notes):
            yield from guarded(_record(record, names, notes), at=record.at, notes=notes)


def _record(record: Record, names: Names, notes: Notes) -> Iterator[Item]:
    value = record.value
    rollouts = _rollouts(value)
    if rollouts is not None:
        given = as_list(value.get("input"))
        for place, one in enumerate(rollouts):
            task = given[place] if place < len(given) else None
            if task is not None:
                notes.infer("the task of a rollout", evidence="the same place in input and expected_output")
            yield from _rollout(one, names.of([task, one]), task, record.at, notes)
        for name, rest in value.items():
            rest = given[len(rollouts) :] if name == "input" and given else rest
            if name != "expected_output" and rest:
                notes.leftover(f"nemo-rl: {name} beside rollouts", rest, at=record.at)
    elif _is_case(value):
        notes.rows["nemo-rl/retokenization case"] += 1
        yield from _case(as_dict(value), names.of(value), record.at, notes)
    elif _is_row(value):
        notes.rows["nemo-rl/training row"] += 1
        yield from _row(as_dict(value), names.of(value), notes)
    else:
        yield from _rollout(value, names.of(value), None, record.at, notes)


def _rollout(value: Any, episode_id: str, task: Any, at: str, notes: Notes) -> Iterator[Item]:
    if not _is_rollout(value):
        notes.refuse(at, "no rollout: it has a message_log with token_ids")
        return
    notes.rows["nemo-rl/rollout"] += 1
    rest = as_dict(value)
    log = _Log(episode_id, [as_dict(message) for message in rest.pop("message_log")])
    items = [*log.items(), *_rewards(rest, episode_id)]
    after = {"messages_after_the_last_answer": log.after} if log.after else {}
    yield made(
        Episode,
        id=episode_id,
        task=None if task is None else raw(task),
        meta=left("nemo_rl", rest | after),
    )
    yield from items


def _rewards(rest: dict[str, Any], episode_id: str) -> Iterator[Item]:
    for name in _REWARDS:
        value = number(rest.get(name))
        if value is not None:
            del rest[name]
            yield made(
                Reward,
                id=f"{episode_id}/{name}",
                target=RewardTarget(episode_id=episode_id),
                name=name,
                value=value,
                scorer="environment",
            )


def _main(episode_id: str) -> Item:
    return made(Agent, id=f"{episode_id}/main", episode_id=episode_id, role="main", depth=0)


@dataclass
class _Log:
    episode_id: str
    messages: list[dict[str, Any]]
    after: list[Any] = field(default_factory=list)
    """Messages that no call read."""

    def items(self) -> Iterator[Item]:
        """Agent, calls and gaps."""
        yield _main(self.episode_id)
        seen: list[Any] | None = []
        read: list[Any] = []
        calls = without = 0
        for message in self.messages:
            ids = taken(message, "token_ids", list) or []
            if message.get("role") == "assistant":
                yield self._call(calls, read, message, seen, ids)
                without += not (seen and ids)
                calls, read = calls + 1, []
            else:
                read.append(message)
            seen = seen + ids if seen is not None and ids else None
        self.after = read
        if without:
            yield gap_of_main(self.episode_id, "no_token_ids", f"{without} of {calls} calls")
        if self.messages and not any(message.get("content") for message in self.messages):
            yield gap_of_main(self.episode_id, "missing_prompt", "the messages are recorded as ids only")

    def _call(
        self, ordinal: int, read: list[Any], message: dict[str, Any], seen: list[Any] | None, ids: list[Any]
    ) -> Item:
        given = taken(message, "generation_logprobs", list)
        answer: dict[str, Any] = {
            "message": raw(message),
            "token_ids": token_ids(ids),
            "logprobs": logprobs(given),
        }
        return made(
            Call,
            id=f"{self.episode_id}/{ordinal}",
            episode_id=self.episode_id,
            agent_id=f"{self.episode_id}/main",
            ordinal=ordinal,
            request=raw({"messages": read}),
            context="delta" if ordinal else "whole",
            parent_call_id=f"{self.episode_id}/{ordinal - 1}" if ordinal else None,
            prompt_token_ids=token_ids(seen),
            completions=(known(CompletionBody, **answer),),
        )


def _row(rest: dict[str, Any], episode_id: str, notes: Notes) -> Iterator[Item]:
    ids, mask = rest.get("token_ids"), rest.get("token_loss_mask")
    items = [_main(episode_id), *_rewards(rest, episode_id)]
    if isinstance(ids, list) and isinstance(mask, list) and len(ids) == len(mask):
        del rest["token_ids"], rest["token_loss_mask"]
        given = rest.get("generation_logprobs")
        is_parallel = isinstance(given, list) and len(given) == len(ids)
        runs = _runs(mask)
        for ordinal, (start, end) in enumerate(runs):
            notes.infer("where a call begins and ends", evidence="the runs of trained tokens")
            of_run = given[start:end] if is_parallel and given is not None else None
            items.append(_run(episode_id, ordinal, ids, (start, end), of_run))
        end = runs[-1][1] if runs else 0
        if ids[end:]:
            rest["tokens_after_the_last_call"] = ids[end:]
    else:
        items.append(gap_of_main(episode_id, "no_calls", "a training row without token ids"))
    yield made(Episode, id=episode_id, meta=left("nemo_rl", rest))
    yield from items


def _run(
    episode_id: str, ordinal: int, ids: list[Any], run: tuple[int, int], given: list[Any] | None
) -> Item:
    start, end = run
    answer: dict[str, Any] = {"token_ids": token_ids(ids[start:end]), "logprobs": logprobs(given)}
    return made(
        Call,
        id=f"{episode_id}/{ordinal}",
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        ordinal=ordinal,
        prompt_token_ids=token_ids(ids[:start]),
        context="delta" if ordinal else "whole",
        parent_call_id=f"{episode_id}/{ordinal - 1}" if ordinal else None,
        completions=(known(CompletionBody, **answer),),
    )


def _runs(mask: list[Any]) -> list[tuple[int, int]]:
    """Maximal runs of trained tokens as (start, end). Example: [0, 1, 1, 0, 1] -> [(1, 3), (4, 5)]."""
    is_trained = np.asarray([bool(number(one)) for one in mask], dtype=bool)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_trained, [False]))))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _case(rest: dict[str, Any], episode_id: str, at: str, notes: Notes) -> Iterator[Item]:
    expected = rest.pop("expected_output", None)
    if expected is not None:
        notes.leftover("nemo-rl: what a repair of ids should give", expected, at=at)
    names = [name for name in _CASE if isinstance(rest.get(name), list)]
    lists = [rest.pop(name) for name in names]
    yield made(Episode, id=episode_id, meta=left("nemo_rl", rest | {"calls": names}))
    yield _main(episode_id)
    for ordinal, (name, ids) in enumerate(zip(names, lists, strict=True)):
        yield made(
            Call,
            id=f"{episode_id}/{name}",
            episode_id=episode_id,
            agent_id=f"{episode_id}/main",
            ordinal=ordinal,
            prompt_token_ids=token_ids(ids),
        )
    yield gap_of_main(episode_id, "missing_completion", "the ids do not show where the sampled part begins")


FORMAT = Format("nemo-rl", "NeMo-RL message logs, training rows and re-tokenization cases", _recognises, read)
