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

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, logprobs, number, token_ids
from tracestore.importers.items import Item, Names, content_id, count, gap, left, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
_CUT_OUT = (*_TOKEN_FIELDS, "routed_experts")
_PLACED = frozenset({"responses_create_params", "response"})


def _is_rollout(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("responses_create_params"), dict)


def _is_round_trip(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("input"), dict) and "output" in value["input"]


def _recognises(head: Head) -> bool:
    return _is_rollout(head.first) or _is_round_trip(head.first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, calls, tool calls and rewards of the sources, then the groups that they make up.

    A line without a `response` is a task that nobody attempted: it is noted, and no episode.
    """
    groups: dict[str, None] = {}
    for source in sources:
        names = Names("nemo-gym")
        for record in records(source, notes=notes):
            yield from guarded(_record(record, names, groups, notes), at=record.at, notes=notes)
    for group_id in groups:
        # No size: a file that has grown since must give the same event.
        yield made(Group, id=group_id, closed_by="event")


def _record(record: Record, names: Names, groups: dict[str, None], notes: Notes) -> Iterator[Item]:
    value = record.value
    if _is_rollout(value) and isinstance(value.get("response"), dict):
        notes.rows["nemo-gym/rollout"] += 1
        group_id = _group_id(value)
        if group_id is not None:
            groups[group_id] = None
        yield from _rollout(value, names.of(value), group_id, notes)
    elif _is_rollout(value):
        notes.rows["nemo-gym/task"] += 1
        notes.leftover("nemo-gym: task without a response", value, at=record.at)
    elif _is_round_trip(value):
        notes.rows["nemo-gym/round trip"] += 1
        yield from _round_trip(record, names.of(value), notes)
    else:
        notes.refuse(record.at, "no rollout: it has responses_create_params")


def _group_id(value: dict[str, Any]) -> str | None:
    index = value.get("_ng_task_index")
    if index is None:
        return None
    agent = as_dict(value.get("agent_ref")).get("name")
    return content_id("nemo-gym-task", [index, agent, value["responses_create_params"]])


def _rollout(value: dict[str, Any], episode_id: str, group_id: str | None, notes: Notes) -> Iterator[Item]:
    line = {name: one for name, one in value.items() if name not in _PLACED and one is not None}
    index = value.get("_ng_task_index")
    rewards = list(_rewards(line, episode_id))
    # Conversation first: it says what it has no place for.
    response, params = value["response"], value["responses_create_params"]
    conversation = _Conversation(
        episode_id=episode_id,
        prompt=_prompt(params),
        shared=_shared(params, response),
        response=response,
        usage=_usage(as_dict(response.get("usage"))),
    )
    items = list(conversation.items(as_list(response.get("output")), notes))
    rest = _left_of(response, params.get("tools")) | conversation.unread
    yield made(
        Episode,
        id=episode_id,
        group_id=group_id,
        task_id=None if index is None else f"task-{index}",
        status="timeout" if value.get("agent_timed_out") is True else None,
        inference_only=taken(line, "mask_sample", bool) or None,
        meta=left("nemo_gym", line | ({"response": rest} if rest else {})),
    )
    yield from items
    yield from rewards


def _round_trip(record: Record, episode_id: str, notes: Notes) -> Iterator[Item]:
    response = record.value["input"]
    conversation = _Conversation(
        episode_id=episode_id, prompt=None, shared=_shared({}, response), response=response, usage=None
    )
    items = list(conversation.items(as_list(response["output"]), notes))
    rest = _left_of(response, response.get("tools")) | conversation.unread
    yield made(Episode, id=episode_id, meta=left("nemo_gym", {"round_trip": rest}))
    yield from items
    for name, value in record.value.items():
        if name != "input":
            notes.leftover(f"nemo-gym: {name} of a round trip", value, at=record.at)


def _left_of(response: dict[str, Any], tools: Any) -> dict[str, Any]:
    """What the response says beside its output; its tools where they are not those of the request."""
    placed = {"output"} if isinstance(response.get("output"), list) else set()
    if tools is None or response.get("tools") == tools:
        placed.add("tools")
    return {name: one for name, one in response.items() if name not in placed and one is not None}


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


def _usage(value: dict[str, Any]) -> Usage | None:
    if not any(value.get(name) for name in ("input_tokens", "output_tokens")):
        return None
    given = {
        "prompt_tokens": count(value, "input_tokens"),
        "cached_tokens": count(as_dict(value.get("input_tokens_details")), "cached_tokens"),
        "completion_tokens": count(value, "output_tokens"),
        "reasoning_tokens": count(as_dict(value.get("output_tokens_details")), "reasoning_tokens"),
    }
    return known(Usage, **given)


def _rewards(line: dict[str, Any], episode_id: str) -> Iterator[Item]:
    """Rewards of a line, taken out of it as far as they are numbers."""
    parts = as_dict(line.get("reward_components"))
    scores: list[tuple[str, dict[str, Any], float | None]] = [("reward", line, None)]
    scores += [(name, parts, 0.0) for name in list(parts)]
    for name, of, weight in scores:
        value = number(of.get(name))
        if value is None:
            continue
        del of[name]
        yield made(
            Reward,
            id=safe_id(f"{episode_id}/{name}" if of is line else f"{episode_id}/part/{name}"),
            target=RewardTarget(episode_id=episode_id),
            name=name,
            value=value,
            weight=weight,
            scorer="environment",
        )
    if isinstance(line.get("reward_components"), dict):
        line["reward_components"] = parts
        if not parts:
            del line["reward_components"]


@dataclass
class _Turn:
    """One call: what it read beyond the call before it, and the items it wrote."""

    read: list[Any] = field(default_factory=list)
    wrote: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> dict[str, Any]:
        """The token lists of the item that carries them, by name; none where the server gave none."""
        return next(
            ({name: item.get(name) for name in _TOKEN_FIELDS} for item in self.wrote if _has_ids(item)), {}
        )

    @property
    def unplaced(self) -> dict[str, Any]:
        """Lists of its items that are none of the call's: empty ones, and what experts were routed to."""
        placed = () if not self.tokens else _TOKEN_FIELDS
        return {
            name: item[name]
            for item in self.wrote
            for name in _CUT_OUT
            if item.get(name) is not None and name not in placed
        }


def _has_ids(item: dict[str, Any]) -> bool:
    return bool(item.get("generation_token_ids"))


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
    return _has_ids(after) or is_new_thought


@dataclass
class _Conversation:
    episode_id: str
    prompt: list[Any] | None
    """None: the file has its ids, not its text."""
    shared: dict[str, Any]
    response: dict[str, Any]
    usage: Usage | None
    unread: dict[str, Any] = field(default_factory=dict)
    """Items after the last answer, which no call read."""

    @property
    def agent_id(self) -> str:
        return f"{self.episode_id}/main"

    @property
    def model(self) -> str | None:
        model = self.response.get("model")
        return model if isinstance(model, str) else None

    def items(self, output: list[Any], notes: Notes) -> Iterator[Item]:
        """Agent, calls, tool calls and gaps."""
        yield made(
            Agent, id=self.agent_id, episode_id=self.episode_id, role="main", depth=0, model=self.model
        )
        turns = _turns(self.prompt or [], output)
        unread = turns.pop().read if not turns[-1].wrote else []
        if not turns:
            self.unread = {"input": unread} if unread else {}
            yield self._gap("no_calls", "the response has no output")
            return
        self.unread = {"output_after_the_last_call": unread} if unread else {}
        results = _results([*(one for turn in turns for one in turn.read), *unread])
        for ordinal, turn in enumerate(turns):
            notes.infer(
                "where a call ends", evidence="its token ids" if turn.tokens else "the order of items"
            )
            yield self._call(ordinal, turn, num=len(turns))
            yield from self._tool_calls(ordinal, turn, results)
        without = sum(not turn.tokens for turn in turns)
        if without:
            yield self._gap("no_token_ids", f"{without} of {len(turns)} calls")
        if self.prompt is None:
            yield self._gap("missing_prompt", "the first prompt is recorded as ids only", call=0)

    def _call(self, ordinal: int, turn: _Turn, *, num: int) -> Item:
        tokens, is_last = turn.tokens, ordinal == num - 1
        is_cut = as_dict(self.response.get("incomplete_details")).get("reason") == "max_output_tokens"
        provider_id = self.response.get("id")
        answer: dict[str, Any] = {
            "message": raw([_plain(item) for item in turn.wrote]),
            "finish_reason": "length" if is_last and is_cut else None,
            "token_ids": token_ids(tokens.get("generation_token_ids")),
            "logprobs": logprobs(tokens.get("generation_log_probs")),
        }
        return made(
            Call,
            id=f"{self.episode_id}/{ordinal}",
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            ordinal=ordinal,
            model=self.model,
            provider_id=provider_id if is_last and isinstance(provider_id, str) else None,
            dialect="openai_responses",
            request=raw({**self.shared, "input": [_plain(item) for item in turn.read]}),
            context="delta" if ordinal else "whole",
            parent_call_id=f"{self.episode_id}/{ordinal - 1}" if ordinal else None,
            prompt_token_ids=token_ids(tokens.get("prompt_token_ids")),
            completions=(known(CompletionBody, **answer),),
            usage=self.usage if num == 1 else None,
            meta=left("nemo_gym", turn.unplaced),
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
                result=None if result is None else raw(result),
            )

    def _gap(self, cause: str, detail: str, *, call: int | None = None) -> Item:
        return gap(
            self.episode_id,
            cause,
            detail,
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            call_id=None if call is None else f"{self.episode_id}/{call}",
        )


def _results(read: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in read:
        if item.get("type") == "function_call_output" and item.get("call_id") is not None:
            found.setdefault(item["call_id"], []).append(item.get("output"))
    return found


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """The item without the token lists, which are the call's."""
    return {name: one for name, one in item.items() if name not in _CUT_OUT}


FORMAT = Format("nemo-gym", "NeMo-Gym rollouts and its token round trip", _recognises, read)
