"""NeMo-Gym rollouts (JSON lines) and its token round-trip document -> episodes of one agent.

A rollout line holds `responses_create_params` (the first request), `response` (an OpenAI Responses object
whose `output` is the whole conversation after it, observations included), `reward`, `_ng_task_index`,
`_ng_rollout_index`, and what the environment adds.

- Items keep their Responses shape: a call answers with a list of items, the next call reads
  `function_call_output` items and user messages. Token lists are cut out of the items; they are the call's.
- `prompt_token_ids`, `generation_token_ids` and `generation_log_probs` stand on the last item of a call.
  Lists that are empty or absent mean that the server gave none, which is stated as a gap.
- Where a call ends is not written down otherwise. A call is a run of items that the model wrote; a new one
  begins after an observation, after an item with token ids, at reasoning, and at a message that follows a
  message or a function call.
- Rollouts of one `_ng_task_index` whose first request is the same are a group; without an index, or without
  others, an episode is on its own.
- `usage` is of the whole rollout: it goes to the call where there is one, else it stays in `meta`, with
  everything else the line says. All zeros is how servers say that they did not count.
- `reward_components` are parts of `reward`: they are recorded with weight 0.
- `mask_sample: true` keeps a rollout out of the loss: the episode is imported as `inference_only`.

The round-trip document (`input` is one Responses object) holds two calls of one conversation with their ids.
Its first prompt is there as ids only, and nothing graded it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.documents import Document, Item, Names, Notes, content_id, made, parsed, raw
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
_IN_LINE = frozenset({"responses_create_params", "response", "reward", "reward_components", "mask_sample"})


def is_rollout(value: Any) -> bool:
    """Whether a parsed document is a line of a rollout file."""
    return isinstance(value, dict) and isinstance(value.get("responses_create_params"), dict)


def is_round_trip(value: Any) -> bool:
    """Whether a parsed document is the token round-trip document."""
    return isinstance(value, dict) and isinstance(value.get("input"), dict) and "output" in value["input"]


def events(documents: Iterable[Document], *, notes: Notes) -> Iterator[Item]:
    """Episodes, calls, tool calls and rewards of the documents, then the groups that they make up.

    A line without a `response` is a task that nobody attempted: it is noted, and no episode.
    """
    names = Names("nemo-gym")
    groups: dict[str, int] = {}
    for document in documents:
        value = parsed(document, notes)
        if value is None:
            continue
        if is_rollout(value) and isinstance(value.get("response"), dict):
            group_id = _group_id(value)
            if group_id is not None:
                groups[group_id] = groups.get(group_id, 0) + 1
            yield from _rollout(value, names.of(value), group_id, notes)
        elif is_rollout(value):
            notes.not_understood["task without a response"] += 1
        elif is_round_trip(value):
            yield from _round_trip(value, names.of(value), notes)
        else:
            notes.refused.append(f"line {document.number}: no rollout: it has responses_create_params")
    for group_id in groups:
        # No size: a file that has grown since must give the same event.
        yield made(Group, id=group_id, closed_by="event")


def _group_id(value: dict[str, Any]) -> str | None:
    index = value.get("_ng_task_index")
    if index is None:
        return None
    agent = (value.get("agent_ref") or {}).get("name")
    return content_id("nemo-gym-task", [index, agent, value["responses_create_params"]])


def _rollout(value: dict[str, Any], episode_id: str, group_id: str | None, notes: Notes) -> Iterator[Item]:
    response, params = value["response"], value["responses_create_params"]
    shell = {
        name: one for name, one in response.items() if name not in ("output", "tools") and one is not None
    }
    line = {name: one for name, one in value.items() if name not in _IN_LINE and one is not None}
    index = value.get("_ng_task_index")
    yield made(
        Episode,
        id=episode_id,
        group_id=group_id,
        task_id=None if index is None else f"task-{index}",
        status="timeout" if value.get("agent_timed_out") is True else None,
        inference_only=True if value.get("mask_sample") is True else None,
        meta=raw({"nemo_gym": {**line, "response": shell}}),
    )
    conversation = _Conversation(
        episode_id=episode_id,
        prompt=_prompt(params),
        shared=_shared(params, response),
        model=response.get("model"),
        provider_id=response.get("id"),
        usage=_usage(response.get("usage")),
        is_cut=(response.get("incomplete_details") or {}).get("reason") == "max_output_tokens",
    )
    yield from conversation.items(response.get("output") or (), notes)
    yield from _rewards(value, episode_id)


def _round_trip(value: dict[str, Any], episode_id: str, notes: Notes) -> Iterator[Item]:
    response = value["input"]
    shell = {
        name: one for name, one in response.items() if name not in ("output", "tools") and one is not None
    }
    yield made(Episode, id=episode_id, meta=raw({"nemo_gym": {"round_trip": shell}}))
    conversation = _Conversation(
        episode_id=episode_id,
        prompt=None,
        shared=_shared({}, response),
        model=response.get("model"),
        provider_id=response.get("id"),
        usage=_usage(response.get("usage")),
        is_cut=False,
    )
    yield from conversation.items(response["output"], notes)


def _prompt(params: dict[str, Any]) -> list[Any]:
    given = params.get("input")
    if given is None:
        return []
    return given if isinstance(given, list) else [{"role": "user", "content": given}]


def _shared(params: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """What every request has beside its input; the response says what params leave out."""
    said = {name: one for name, one in params.items() if name != "input" and one is not None}
    for name in ("model", "tools", "temperature", "top_p", "max_output_tokens", "tool_choice"):
        if name not in said and response.get(name) is not None:
            said[name] = response[name]
    return said


def _usage(value: dict[str, Any] | None) -> Usage | None:
    if not value or not any(value.get(name) for name in ("input_tokens", "output_tokens")):
        return None
    given = {
        "prompt_tokens": value.get("input_tokens"),
        "cached_tokens": (value.get("input_tokens_details") or {}).get("cached_tokens"),
        "completion_tokens": value.get("output_tokens"),
        "reasoning_tokens": (value.get("output_tokens_details") or {}).get("reasoning_tokens"),
    }
    return Usage(**{name: one for name, one in given.items() if one is not None})


def _rewards(value: dict[str, Any], episode_id: str) -> Iterator[Item]:
    parts = value.get("reward_components")
    scores: list[tuple[str, Any, float | None]] = [("reward", value.get("reward"), None)]
    scores += [(name, one, 0.0) for name, one in (parts if isinstance(parts, dict) else {}).items()]
    for name, one, weight in scores:
        if isinstance(one, (int, float)):
            yield made(
                Reward,
                id=f"{episode_id}/{name}",
                target=RewardTarget(episode_id=episode_id),
                name=name,
                value=float(one),
                weight=weight,
                scorer="environment",
            )


@dataclass
class _Turn:
    """One call: what it read beyond the call before it, and the items it wrote."""

    read: list[Any] = field(default_factory=list)
    wrote: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[Any, Any, Any] | None:
        """(prompt ids, sampled ids, logprobs) of the item that carries them."""
        for item in self.wrote:
            if item.get("generation_token_ids"):
                prompt, sampled, logprobs = (item.get(name) for name in _TOKEN_FIELDS)
                return prompt, sampled, logprobs
        return None


def _turns(prompt: list[Any], output: Iterable[Any]) -> list[_Turn]:
    """The calls of a conversation, by the rule of the module.

    Observations after the last call are a turn that wrote nothing.
    """
    turns = [_Turn(read=list(prompt))]
    for item in output:
        turn = turns[-1]
        if not _is_written(item):
            if turn.wrote:
                turns.append(turn := _Turn())
            turn.read.append(item)
            continue
        if turn.wrote and _begins_call(item, after=turn.wrote[-1]):
            turns.append(turn := _Turn())
        turn.wrote.append(item)
    return turns


def _is_written(item: Any) -> bool:
    """Whether the model wrote an item."""
    kind = item.get("type", "message")
    return item.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")


def _begins_call(item: dict[str, Any], *, after: dict[str, Any]) -> bool:
    kind = item.get("type", "message")
    is_new_thought = kind == "reasoning" or (kind == "message" and after.get("type") != "reasoning")
    return bool(after.get("generation_token_ids")) or is_new_thought


@dataclass(frozen=True)
class _Conversation:
    episode_id: str
    prompt: list[Any] | None
    """None: the file has its ids, not its text."""
    shared: dict[str, Any]
    model: str | None
    provider_id: str | None
    usage: Usage | None
    is_cut: bool
    """The last answer ended at the token limit."""

    @property
    def agent_id(self) -> str:
        return f"{self.episode_id}/main"

    def items(self, output: Iterable[Any], notes: Notes) -> Iterator[Item]:
        """Agent, calls, tool calls and gaps."""
        yield made(
            Agent, id=self.agent_id, episode_id=self.episode_id, role="main", depth=0, model=self.model
        )
        turns = _turns(self.prompt or [], output)
        unread = turns.pop().read if not turns[-1].wrote else []
        if not turns:
            yield self._gap("no_calls", "the response has no output")
            return
        results = _results([*(one for turn in turns for one in turn.read), *unread])
        for ordinal, turn in enumerate(turns):
            yield self._call(
                ordinal, turn, is_last=ordinal == len(turns) - 1, alone=len(turns) == 1, notes=notes
            )
            yield from self._tool_calls(ordinal, turn, results)
        without = sum(turn.tokens is None for turn in turns)
        if without:
            yield self._gap("no_token_ids", f"{without} of {len(turns)} calls")
        if self.prompt is None:
            yield self._gap("missing_prompt", "the first prompt is recorded as ids only", call=0)
        # Results of tool calls are kept with the call; anything else after the last answer has no place.
        lost = sum(item.get("type") != "function_call_output" for item in unread)
        if lost:
            notes.not_understood["message after the last answer"] += lost

    def _call(self, ordinal: int, turn: _Turn, *, is_last: bool, alone: bool, notes: Notes) -> Item:
        prompt, sampled, logprobs = turn.tokens or (None, None, None)
        if any(item.get("routed_experts") for item in turn.wrote):
            notes.not_understood["routed_experts"] += 1
        answer: dict[str, Any] = {
            "message": raw([_plain(item) for item in turn.wrote]),
            "finish_reason": "length" if is_last and self.is_cut else None,
            "token_ids": None if not sampled else TokenIds.of(sampled),
            "logprobs": None if not sampled or not logprobs else Logprobs.of(logprobs),
        }
        return made(
            Call,
            id=f"{self.episode_id}/{ordinal}",
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            ordinal=ordinal,
            model=self.model,
            provider_id=self.provider_id if is_last else None,
            dialect="openai_responses",
            request=raw({**self.shared, "input": [_plain(item) for item in turn.read]}),
            context="delta" if ordinal else "whole",
            parent_call_id=f"{self.episode_id}/{ordinal - 1}" if ordinal else None,
            prompt_token_ids=None if not prompt else TokenIds.of(prompt),
            completions=(CompletionBody(**{k: v for k, v in answer.items() if v is not None}),),
            usage=self.usage if alone else None,
        )

    def _tool_calls(self, ordinal: int, turn: _Turn, results: dict[str, list[Any]]) -> Iterator[Item]:
        uses = [item for item in turn.wrote if item.get("type") == "function_call"]
        for place, use in enumerate(uses):
            # Ids of tool calls may repeat in a conversation: results go to them in order.
            result = results[use["call_id"]].pop(0) if results.get(use.get("call_id")) else None
            yield made(
                ToolCall,
                id=f"{self.episode_id}/{ordinal}/tool/{place}",
                episode_id=self.episode_id,
                call_id=f"{self.episode_id}/{ordinal}",
                tool_call_id=use.get("call_id"),
                name=use.get("name"),
                arguments=use.get("arguments"),
                result=None if result is None else Raw.of(result),
            )

    def _gap(self, cause: str, detail: str, *, call: int | None = None) -> Item:
        return made(
            Gap,
            id=f"{self.episode_id}/{cause}",
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            call_id=None if call is None else f"{self.episode_id}/{call}",
            cause=cause,
            detail=detail,
        )


def _results(read: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in read:
        if item.get("type") == "function_call_output" and item.get("call_id") is not None:
            found.setdefault(item["call_id"], []).append(item.get("output"))
    return found


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """The item without the token lists, which are the call's."""
    return {name: one for name, one in item.items() if name not in (*_TOKEN_FIELDS, "routed_experts")}
