"""OpenEvolve checkpoint files -> an episode for each program that was sampled, with its scores.

- `programs/<id>.json` {id, code, parent_id, generation, iteration_found, metrics, metadata, prompts, ...} is
  a program. `prompts` {name of a template: {system, user, responses}} is the call that wrote it: its exact
  context and what the model answered. A program without prompts was given, or saved without them.
- `best_program_info.json` {id, generation, iteration, metrics, saved_at, ...} says of a program that it was
  the best when the file was written. It holds the same scores; the rest of it is noted.
- `metadata.json` {islands, archive, best_program_id, ...} is the state of the search, and an evaluation
  {metrics, artifacts} names no program: both are noted.

An episode is a program, since no file says which run a program is of: what ties them is `parent_id`, which
stands in `meta` with the generation and the island. A metric is a reward; `combined_score` is what the search
maximises, the others have weight 0. A metric that is true or false is 1 or 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, number
from tracestore.importers.items import Item, gap, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.reward import Reward, RewardTarget

_SCORE = "combined_score"


def _kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    names = value.keys()
    if {"id", "code", "generation", "metrics"} <= names:
        return "program"
    if {"id", "generation", "iteration", "metrics", "saved_at"} <= names:
        return "best program"
    if {"islands", "archive", "best_program_id"} <= names:
        return "checkpoint"
    return "evaluation" if names == {"metrics", "artifacts"} else None


def _recognises(head: Head) -> bool:
    return len(head.records) == 1 and _kind(head.first) is not None


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their call and rewards."""
    for source in sources:
        for record in records(source, notes=notes):
            yield from guarded(_record(record, notes), at=record.at, notes=notes)


def _record(record: Record, notes: Notes) -> Iterator[Item]:
    kind = _kind(record.value)
    if kind is None:
        notes.refuse(record.at, "no program, best program, checkpoint or evaluation")
        return
    notes.rows[f"openevolve/{kind}"] += 1
    rest = as_dict(record.value)
    if kind == "checkpoint":
        best = rest.pop("best_program_id")
        notes.leftover("openevolve: best program of a checkpoint", best, at=record.at)
    if kind in ("checkpoint", "evaluation"):
        notes.leftover(f"openevolve: {kind}", rest, at=record.at)
        return
    episode_id = rest.pop("id")
    if not isinstance(episode_id, str):
        raise ValueError("a program's id is a text")
    episode_id = safe_id(episode_id)
    rewards = list(_rewards(rest, episode_id))
    yield made(Episode, id=episode_id, phase="start")
    if kind == "best program":
        notes.leftover("openevolve: record of the best program", rest, at=record.at)
    else:
        yield from _program(rest, episode_id)
    yield from rewards


def _rewards(rest: dict[str, Any], episode_id: str) -> Iterator[Item]:
    metrics = as_dict(rest.get("metrics"))
    for name, given in list(metrics.items()):
        value = float(given) if isinstance(given, bool) else number(given)
        if value is None:
            continue
        del metrics[name]
        yield made(
            Reward,
            id=safe_id(f"{episode_id}/{name}"),
            target=RewardTarget(episode_id=episode_id),
            name=name,
            value=value,
            weight=None if name == _SCORE else 0.0,
            scorer="evaluator",
        )
    if isinstance(rest.get("metrics"), dict):
        rest["metrics"] = metrics


def _program(rest: dict[str, Any], episode_id: str) -> Iterator[Item]:
    prompts, moment = taken(rest, "prompts", dict) or {}, nanoseconds(rest.get("timestamp"))
    if moment is not None:
        del rest["timestamp"]
    agent_id = f"{episode_id}/main"
    yield made(
        Episode,
        id=episode_id,
        phase="end",
        ended_at=moment,
        meta=left("openevolve", {name: one for name, one in rest.items() if one not in (None, {})}),
    )
    yield made(Agent, id=agent_id, episode_id=episode_id, role="main", depth=0)
    for template, prompt in prompts.items():
        yield _call(template, as_dict(prompt) or {"prompt": prompt}, episode_id, agent_id)
    if not prompts:
        yield gap(
            episode_id,
            "no_calls",
            "the program was given, or saved without its prompt",
            episode_id=episode_id,
            agent_id=agent_id,
        )


def _call(template: str, rest: dict[str, Any], episode_id: str, agent_id: str) -> Item:
    messages = [{"role": role, "content": rest.pop(role)} for role in ("system", "user") if role in rest]
    answers = as_list(rest.get("responses"))
    if answers:
        del rest["responses"]
    return made(
        Call,
        id=safe_id(f"{episode_id}/{template}"),
        episode_id=episode_id,
        agent_id=agent_id,
        request=raw({"messages": messages}),
        completions=tuple(
            CompletionBody(message=raw({"role": "assistant", "content": one})) for one in answers
        )
        or None,
        meta=left("openevolve", rest),
    )


FORMAT = Format("openevolve", "OpenEvolve programs and checkpoints", _recognises, read)
