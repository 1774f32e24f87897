# ruff: noqa: A002  (arguments are named as the fields they fill)
"""Events in a few words: every constructor fills in what the claim at hand does not care about.

    call("c1", [system("s"), user("u")], answer("hi", ids=[5, 6]), prompt_ids=[1, 2])

Messages are Python values or `Raw` JSON text, which is kept byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from tracestore.wire.agent import Agent
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.blob import Blob
from tracestore.wire.call import Call, Policy
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet, Member, MemberScore
from tracestore.wire.completion import Completion, CompletionBody
from tracestore.wire.consumption import Consumption
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.encode import encode
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent
from tracestore.wire.gap import Gap
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.snapshot import Snapshot
from tracestore.wire.tool_call import ToolCall

Made = TypeVar("Made", bound=BaseModel)
Message = Raw | Mapping[str, Any] | str

POLICY = Policy(name="policy", version=1)
"""The policy that samples unless a test says otherwise."""


def raw(value: Any) -> Raw:
    """JSON text of a value in which `Raw` spans stand verbatim."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, Mapping):
        items = (json.dumps(key).encode() + b":" + raw(item) for key, item in value.items())
        return Raw(b"{" + b",".join(items) + b"}")
    if isinstance(value, (list, tuple)):
        return Raw(b"[" + b",".join(raw(item) for item in value) + b"]")
    return Raw.of(value)


def posted(event: AnyEvent) -> tuple[AnyEvent, bytes]:
    """The event and the text a client would post for it."""
    return event, encode(event)


def _made(model: type[Made], /, **fields: Any) -> Made:
    """The model with the fields that say something: what is None is left unsaid."""
    return model.model_validate({name: value for name, value in fields.items() if value is not None})


# messages


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, *, tool_calls: Sequence[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
    calls = {"tool_calls": list(tool_calls)} if tool_calls else {}
    return {"role": "assistant", "content": content, **calls, **more}


def tool_use(name: str, arguments: str = "{}", *, id: str = "t1") -> dict[str, Any]:
    """An OpenAI tool call; `arguments` is the sampled text."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(content: Any, *, tool_call_id: str = "t1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": tool_call_id, "content": content}


# calls


def answer(
    message: Message | None = "ok",
    *,
    ids: Sequence[int] | None = None,
    logprobs: Sequence[float | None] | None = None,
    finish_reason: str | None = "stop",
    **fields: Any,
) -> CompletionBody:
    """One completion; a string is the text of an assistant message.

    `ids` without `logprobs` get -0.5 each; pass `logprobs=()` for none.
    """
    if isinstance(message, str):
        message = assistant(message)
    if ids is not None and logprobs is None:
        logprobs = [-0.5] * len(ids)
    return _made(
        CompletionBody,
        message=None if message is None else raw(message),
        finish_reason=finish_reason,
        token_ids=None if ids is None else TokenIds.of(list(ids)),
        logprobs=Logprobs.of(list(logprobs)) if ids is not None and (logprobs or not ids) else None,
        **fields,
    )


def call(
    id: str = "c0",
    messages: Sequence[Message] | Raw | None = (),
    *answers: CompletionBody | str,
    episode: str = "e",
    agent: str = "main",
    parent: str | None = None,
    completion: int | None = None,
    delta: bool = False,
    prompt_ids: Iterable[int] | None = None,
    prompt_ids_delta: Iterable[int] | None = None,
    tools: Any = None,
    params: Mapping[str, Any] | None = None,
    policy: Policy | None = POLICY,
    **fields: Any,
) -> Call:
    """One model call. `messages` is a list, a whole request as Raw, or None for no request.

    `parent` and `completion` name what it continues; `delta` says that `messages` only follow it. Answers
    that are strings become assistant messages without token ids; no answer leaves `completions` unset.
    """
    if messages is None or isinstance(messages, Raw):
        request = messages
    else:
        body: dict[str, Any] = {"model": "m", "messages": list(messages), **(params or {})}
        request = raw(body if tools is None else {**body, "tools": tools})
    fields.setdefault("status", "ok" if answers else None)
    return _made(
        Call,
        id=id,
        episode_id=episode,
        agent_id=agent,
        request=request,
        context="delta" if delta else None,
        parent_call_id=parent,
        parent_completion=completion,
        prompt_token_ids=None if prompt_ids is None else TokenIds.of(list(prompt_ids)),
        prompt_token_ids_delta=None if prompt_ids_delta is None else TokenIds.of(list(prompt_ids_delta)),
        completions=tuple(answer(a) if isinstance(a, str) else a for a in answers) or None,
        policy=policy,
        **fields,
    )


def completion(
    call_id: str = "c0",
    index: int = 0,
    body: CompletionBody | str = "ok",
    *,
    id: str | None = None,
    episode: str = "e",
) -> Completion:
    """A completion posted on its own."""
    body = answer(body) if isinstance(body, str) else body
    fields = {name: getattr(body, name) for name in body.model_fields_set}
    return _made(
        Completion, id=id or f"{call_id}/{index}", episode_id=episode, call_id=call_id, index=index, **fields
    )


# everything else


def group(id: str = "g", **fields: Any) -> Group:
    return _made(Group, id=id, **fields)


def episode(id: str = "e", **fields: Any) -> Episode:
    return _made(Episode, id=id, **fields)


def agent(id: str = "main", *, episode: str = "e", **fields: Any) -> Agent:
    return _made(Agent, id=id, episode_id=episode, **fields)


def subagent(
    id: str,
    *,
    spawned_by: tuple[str, int] | str,
    parent: str = "main",
    tool_call: str | None = "t1",
    episode: str = "e",
    **fields: Any,
) -> Agent:
    """A subagent of `parent`, spawned by a call (completion 0) or a (call, completion)."""
    spawner, index = (spawned_by, 0) if isinstance(spawned_by, str) else spawned_by
    return _made(
        Agent,
        id=id,
        episode_id=episode,
        parent_agent_id=parent,
        spawned_by_call_id=spawner,
        spawned_by_completion=index,
        spawned_by_tool_call_id=tool_call,
        **{"role": "subagent", **fields},
    )


def tool_call(id: str = "x1", call_id: str = "c0", *, episode: str = "e", **fields: Any) -> ToolCall:
    return _made(
        ToolCall,
        id=id,
        episode_id=episode,
        call_id=call_id,
        **{"tool_call_id": "t1", "name": "run", **fields},
    )


def compaction(
    id: str = "edit1", *, episode: str = "e", agent: str = "main", edit: str = "compaction", **fields: Any
) -> ContextEdit:
    """A context edit; a compaction unless `edit` says otherwise."""
    return _made(ContextEdit, id=id, episode_id=episode, agent_id=agent, edit=edit, **fields)


def member(
    call_id: str | None = None, index: int = 0, *, agent: str | None = None, score: float | None = None
) -> Member:
    return _made(Member, call_id=call_id, completion=index, agent_id=agent, score=score)


def candidate_set(
    id: str = "set1", *members: Member, episode: str = "e", agent: str = "main", **fields: Any
) -> CandidateSet:
    return _made(CandidateSet, id=id, episode_id=episode, agent_id=agent, members=members, **fields)


def selection(
    id: str = "sel1",
    set_id: str = "set1",
    *selected: int,
    episode: str = "e",
    scores: Mapping[int, float] | None = None,
    **fields: Any,
) -> CandidateSelection:
    return _made(
        CandidateSelection,
        id=id,
        episode_id=episode,
        candidate_set_id=set_id,
        selected=selected,
        scores=None if scores is None else tuple(MemberScore(member=m, score=s) for m, s in scores.items()),
        **fields,
    )


def reward(
    id: str = "r1", value: float = 1.0, *, name: str = "reward", episode: str = "e", **fields: Any
) -> Reward:
    """A reward of the episode, or of what the target's fields (`call_id`, `completion`, ...) name."""
    target = {field: fields.pop(field) for field in tuple(fields) if field in RewardTarget.model_fields}
    return _made(
        Reward, id=id, target=RewardTarget(episode_id=episode, **target), name=name, value=value, **fields
    )


def gap(id: str = "gap1", cause: str = "no_token_ids", *, episode: str = "e", **fields: Any) -> Gap:
    return _made(Gap, id=id, episode_id=episode, cause=cause, **fields)


def snapshot(id: str = "m1", hash: str = "h1", *, episode: str = "e", **fields: Any) -> Snapshot:
    return _made(Snapshot, id=id, episode_id=episode, hash=hash, **fields)


def blob(id: str = "b1", hash: str = "0" * 64, *, episode: str = "e", **fields: Any) -> Blob:
    return _made(Blob, id=id, episode_id=episode, hash=hash, **fields)


def consumption(id: str = "u1", call_id: str = "c0", *, episode: str = "e", **fields: Any) -> Consumption:
    return _made(
        Consumption,
        id=id,
        episode_id=episode,
        call_id=call_id,
        **{
            "run": "run1",
            "step": 0,
            "export_hash": "0" * 64,
            "shard": "0.arrow",
            "sample_id": "s0",
            "tokens": 1,
            **fields,
        },
    )
