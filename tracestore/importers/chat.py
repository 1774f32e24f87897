"""Chat logs and chat data sets (JSON, JSON lines) -> calls, each with what it read and wrote.

    {request: {messages, ...}, response: {...}}           a logged exchange, of the other APIs too
    {messages, response, kwargs, cost, timestamp, ...}    LiteLLM's completion logs, mostly one file a call
    {custom_id, body}, {custom_id, response: {body}}      OpenAI batches, input and output
    {custom_id, params}, {custom_id, result: {message}}   Anthropic's
    {messages, tools?}, [{role, content}, ...]            fine-tuning data, and bare conversations
    {conversations: [{from, value}]}                      the same as ShareGPT spells it
    {prompt, completion}                                  the same for the completions API, or as messages
    {input, preferred_output, non_preferred_output}       preference data: a candidate set of two answers, of
    {prompt, chosen, rejected}                            which one was selected

- A logged exchange is a call with its whole context; the graph links it to the calls it goes on from, by the
  messages. Which conversation it is of: the session that it names, else the messages up to the first of a
  user. Conversations that begin with the same messages are therefore one episode, a tree: nothing in a log
  tells them apart. Nor does a log state the order of calls, so they have no ordinals.
- An exchange whose response is a text is answered by that text; one whose response is null, or in no known
  shape, is a call without its answer, which is a gap unless it failed.
- Equal records of one file are several calls: a request may well be sent twice.
- In a conversation without responses every message of the assistant is a call, and reads what stands before
  it. Who wrote it, a model or a person, the file does not say.
- A line of a batch's output whose input is not among the files is a call without a request. So is one whose
  `custom_id` several inputs have.
- Credentials beside the messages (LiteLLM logs the key it was given) are taken over nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracestore.importers import streams
from tracestore.importers.conversations import ANSWERS, history, tool_calls
from tracestore.importers.credentials import Told, safe_request, without
from tracestore.importers.documents import Record, records
from tracestore.importers.exchanges import answered_call
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, guarded, known, number
from tracestore.importers.items import Item, Names, content_id, left, made, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.spool import Spool
from tracestore.importers.streams import Answer, Choice
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, Dialect, Usage
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet, Member
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.tool_call import ToolCall

_NAME = "openai-chat"
_SESSIONS = ("session_id", "conversation_id", "thread_id", "litellm_session_id", "trace_id")
_SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}
_ASKED = ("messages", "input", "prompt", "contents")
_BATCH_INPUT = ("body", "params")
_BATCH_OUTPUT = ("response", "error", "result")


# --- Kinds of records ------------------------------------------------------------------------------


def _kind(value: Any) -> str | None:
    """What a record is; None where it is none of ours."""
    if _are_messages(value):
        return "conversation"
    if not isinstance(value, dict):
        return None
    kinds = {
        "batch input": isinstance(value.get("custom_id"), str) and any(one in value for one in _BATCH_INPUT),
        "batch output": isinstance(value.get("custom_id"), str)
        and any(one in value for one in _BATCH_OUTPUT),
        "exchange": _is_exchange(value),
        "preference": {"input", "preferred_output", "non_preferred_output"} <= value.keys()
        or {"chosen", "rejected"} <= value.keys(),
        "conversation": _is_conversation(value),
        "prompt and completion": _is_prompt_and_completion(value),
    }
    return next((kind for kind, it_is in kinds.items() if it_is), None)


def _are_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(as_dict(one).get("role"), str) for one in value)
    )


def _is_conversation(value: dict[str, Any]) -> bool:
    spoken = value.get("conversations")
    is_spoken = isinstance(spoken, list) and all(
        isinstance(as_dict(one).get("from"), str) and "value" in one for one in spoken
    )
    return _are_messages(value.get("messages")) or (is_spoken and bool(spoken))


def _is_prompt_and_completion(value: dict[str, Any]) -> bool:
    prompt, said = value.get("prompt"), value.get("completion")
    return (isinstance(prompt, str) and isinstance(said, str)) or (
        _are_messages(prompt) and _are_messages(said)
    )


def _is_exchange(value: dict[str, Any]) -> bool:
    if "response" not in value:
        return False
    request = value.get("request")
    return (
        any(one in request for one in _ASKED)
        if isinstance(request, dict)
        else _are_messages(value.get("messages"))
    )


def _recognises(head: Head) -> bool:
    return _kind(head.first) is not None


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """The episodes, calls and candidates of the sources; batches come last, when their inputs are known."""
    batches = Spool()
    for source in sources:
        names = Names("chat")
        for record in records(source, notes=notes):
            kind = _kind(record.value)
            if kind is None:
                notes.refuse(record.at, "no chat: it has messages, a request and response, or a prompt")
                continue
            notes.rows[f"{_NAME}/{kind}"] += 1
            if kind.startswith("batch"):
                batches.add(f"{record.value['custom_id']}", record, source=source.name)
            else:
                name = names.of(record.value)
                yield from guarded(_READERS[kind](record, name, notes), at=record.at, notes=notes)
    for custom_id in batches.keys():  # noqa: SIM118 - a Spool is no mapping
        yield from _batch(custom_id, [record for _, record in batches.of(custom_id)], notes)


# --- Exchanges -------------------------------------------------------------------------------------


def _exchange(record: Record, name: str, notes: Notes) -> Iterator[Item]:
    value = dict(record.value)
    request = _request(value)
    response = value.pop("response")
    session = _session(value, request)
    if session is None:
        notes.infer("the conversation of a call", evidence="the messages up to the first of a user")
    episode_id = safe_id(session) if session else content_id("chat", _beginning(request))
    yield from _opened(episode_id)
    yield from _call(
        request, response, value, call_id=f"{episode_id}/{name}", episode_id=episode_id, notes=notes
    )


def _request(value: dict[str, Any]) -> dict[str, Any]:
    """The request of a logged exchange, taken out of its record; LiteLLM spreads it over the record."""
    if isinstance(value.get("request"), dict):
        return dict(value.pop("request"))
    request = {"messages": value.pop("messages")}
    if isinstance(value.get("kwargs"), dict):
        kwargs = value.pop("kwargs")
        request = {**kwargs, **request}
        if "messages" in kwargs and kwargs["messages"] != request["messages"]:
            value["kwargs"] = {"messages": kwargs["messages"]}
    for name in ("model", "tools"):
        if name in value and (name not in request or request[name] == value[name]):
            request[name] = value.pop(name)
    return request


def _session(value: dict[str, Any], request: dict[str, Any]) -> str | None:
    places = (value, as_dict(value.get("metadata")), as_dict(request.get("metadata")))
    found = (place[name] for place in places for name in _SESSIONS if isinstance(place.get(name), str))
    return next((one for one in found if one), None)


def _beginning(request: dict[str, Any]) -> Any:
    """The messages of a request up to the first of a user: how its conversation began."""
    messages = next((request[name] for name in ("messages", "input", "contents") if name in request), None)
    if not isinstance(messages, list):
        return [request.get("system"), messages if messages is not None else request.get("prompt")]
    end = next((n for n, one in enumerate(messages) if as_dict(one).get("role") == "user"), len(messages) - 1)
    return [request.get("system") or request.get("instructions"), messages[: end + 1]]


def _opened(episode_id: str) -> Iterator[Item]:
    yield made(Episode, id=episode_id)
    yield made(Agent, id=f"{episode_id}/main", episode_id=episode_id, role="main", depth=0)


def _call(
    request: dict[str, Any] | None,
    response: Any,
    rest: dict[str, Any],
    *,
    call_id: str,
    episode_id: str,
    notes: Notes,
    revision: int | None = None,
) -> Iterator[Item]:
    answer = _answer(response)
    if answer is None and response is not None:
        rest["response"] = response
    cost = number(rest.get("cost"))
    if answer is not None and cost is not None:
        counted = Usage() if answer.usage is None else answer.usage
        answer.usage, _ = counted.model_copy(update={"cost_usd": cost}), rest.pop("cost")
    name = next(
        (name for name in ("timestamp", "created_at") if nanoseconds(rest.get(name)) is not None), None
    )
    at = None if name is None else nanoseconds(rest.pop(name))
    failed = next((rest[one] for one in ("exception", "error") if rest.get(one)), None)
    if answer is None and failed is not None:
        answer = Answer("openai_chat", error=failed)
    if answer is not None and answer.rest:
        rest["answer"] = answer.rest

    def told() -> None:
        notes.warn("a field that may hold a credential was left out")

    yield from answered_call(
        answer,
        request=None if request is None else raw(safe_request(request, told=told)),
        dialect=_dialect(request, answer),
        names={"id": call_id, "episode_id": episode_id, "agent_id": f"{episode_id}/main"},
        revision=revision,
        ended_at=at,
        meta=left("chat", _safe(rest, told)),
    )


def _safe(rest: dict[str, Any], told: Told) -> dict[str, Any]:
    """What is left of a record without credentials; what came from a model stays as it is."""
    said = {name: rest[name] for name in ("answer", "response") if name in rest}
    safe: dict[str, Any] = without({name: one for name, one in rest.items() if name not in said}, told=told)
    return safe | said


def _answer(response: Any) -> Answer | None:
    if isinstance(response, str) and response:
        return Answer("openai_chat", [Choice({"role": "assistant", "content": response})])
    return streams.whole(response)


def _dialect(request: dict[str, Any] | None, answer: Answer | None) -> Dialect:
    if answer is not None and answer.dialect != "openai_chat":
        return answer.dialect
    if request is not None and "messages" not in request and "contents" not in request:
        return "openai_responses" if "input" in request else "text"
    return "openai_chat"


def _batch(custom_id: str, lines: Sequence[Record], notes: Notes) -> Iterator[Item]:
    """The calls of one custom id: each line of output, with the request where one input alone has the id."""
    inputs = {content_id("body", _asked(record)): record for record in lines if _asked(record) is not None}
    outputs = {content_id("batch", record.value): record for record in lines if _asked(record) is None}
    asked = next(iter(inputs.values())) if len(inputs) == 1 else None
    if not inputs:
        notes.warn("a batch output whose input is not among the files")
    if len(inputs) > 1:
        notes.warn("several batch inputs have one custom_id; none is taken for its outputs")
    for name, record in sorted(outputs.items()):
        yield from guarded(_batch_call(name, record, asked, notes), at=record.at, notes=notes)
    if not outputs or asked is None:
        for record in inputs.values():
            notes.leftover(f"{_NAME}: batch input without its output", record.value, at=record.at)


def _asked(record: Record) -> Any:
    """The request in a line of a batch's input; None for a line of output."""
    return next((record.value[name] for name in _BATCH_INPUT if name in record.value), None)


def _batch_call(name: str, record: Record, asked: Record | None, notes: Notes) -> Iterator[Item]:
    value = dict(record.value)
    place, holder = ("message", "result") if "result" in value else ("body", "response")
    line = as_dict(value.pop(holder, None))
    body = line.pop(place, None)
    rest = {**value, f"{holder}_line": line} if line else value
    request = None
    if asked is not None:
        request = as_dict(_asked(asked))
        rest["input"] = {
            one: asked.value[one] for one in asked.value if one not in (*_BATCH_INPUT, "custom_id")
        }
    failed = value.pop("error", None) if value.get("error") is not None else line.pop("error", None)
    if body is None and failed is not None:
        body = {"error": failed}
    yield from _opened(name)
    if request is None:
        yield _missing_prompt(name, "the input of a batch is not there")
    # With its request it is made of two records: of a later import that has both, this one holds.
    revision = 2 if asked is not None else 1
    yield from _call(
        request, body, rest, call_id=f"{name}/call", episode_id=name, notes=notes, revision=revision
    )


def _missing_prompt(episode_id: str, detail: str) -> Item:
    return made(
        Gap, id=f"{episode_id}/missing_prompt", episode_id=episode_id, cause="missing_prompt", detail=detail
    )


# --- Conversations ---------------------------------------------------------------------------------


def _conversation(record: Record, episode_id: str, notes: Notes) -> Iterator[Item]:
    value = record.value
    rest = {} if isinstance(value, list) else dict(value)
    messages = value if isinstance(value, list) else _messages(rest)
    first = next((n for n, one in enumerate(messages) if as_dict(one).get("role") in ANSWERS), len(messages))
    yield from _chatted(messages[:first], messages[first:], rest, episode_id, record.at, notes)


def _chatted(
    prompt: list[Any], written: list[Any], rest: dict[str, Any], episode_id: str, at: str, notes: Notes
) -> Iterator[Item]:
    """The calls of a conversation of which `written` begins with the first answer."""
    shared = {name: rest.pop(name) for name in ("tools", "functions", "model") if rest.get(name) is not None}
    yield from _opened_with(episode_id, rest)
    agent_id = f"{episode_id}/main"
    items, unread = history(prompt, written, episode_id=episode_id, agent_id=agent_id, shared=shared)
    yield from items
    used = {item.event.tool_call_id for item in items if isinstance(item.event, ToolCall)}
    for message in unread:
        # A result of a tool stands with its tool call; anything else after the last answer nobody read.
        if as_dict(message).get("role") != "tool" or as_dict(message).get("tool_call_id") not in used:
            notes.leftover(f"{_NAME}: message after the last answer", message, at=at)


def _messages(rest: dict[str, Any]) -> list[Any]:
    if "messages" in rest:
        return list(rest.pop("messages"))
    return [_spoken(one) for one in rest.pop("conversations")]


def _spoken(given: dict[str, Any]) -> dict[str, Any]:
    """A message as ShareGPT spells it, as a chat message."""
    one = dict(given)
    said_by = one.pop("from")
    return {"role": _SPEAKERS.get(said_by, said_by), "content": one.pop("value"), **one}


def _opened_with(episode_id: str, rest: dict[str, Any]) -> Iterator[Item]:
    yield made(Episode, id=episode_id, meta=left("chat", rest))
    yield made(Agent, id=f"{episode_id}/main", episode_id=episode_id, role="main", depth=0)


def _prompt_and_completion(record: Record, episode_id: str, notes: Notes) -> Iterator[Item]:
    rest = dict(record.value)
    prompt, said = rest.pop("prompt"), rest.pop("completion")
    if isinstance(prompt, list):
        yield from _chatted(prompt, said, rest, episode_id, record.at, notes)
        return
    yield from _opened_with(episode_id, rest)
    yield made(
        Call,
        id=f"{episode_id}/call",
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        ordinal=0,
        dialect="text",
        request=raw({"prompt": prompt}),
        completions=(CompletionBody(message=raw(said)),),
    )


# --- Preferences -----------------------------------------------------------------------------------


def _preference(record: Record, episode_id: str, notes: Notes) -> Iterator[Item]:
    """Two answers to one prompt, the first of which was preferred."""
    rest = dict(record.value)
    request, answers, dialect = _openai_pair(rest) if "preferred_output" in rest else _chosen_pair(rest)
    scores = [number(rest.get(name)) for name in ("score_chosen", "score_rejected")]
    yield from _opened_with(episode_id, rest)
    call_id, agent_id = f"{episode_id}/call", f"{episode_id}/main"
    yield made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=agent_id,
        ordinal=0,
        dialect=dialect,
        request=None if request is None else raw(request),
        completions=tuple(CompletionBody(message=raw(answer)) for answer in answers),
    )
    if request is None:
        yield _missing_prompt(episode_id, "two answers without the prompt that they answer")
    for index, answer in enumerate(answers):
        yield from tool_calls(answer, completion=index, call_id=call_id, episode_id=episode_id)
    yield made(
        CandidateSet,
        id=f"{episode_id}/pair",
        episode_id=episode_id,
        agent_id=agent_id,
        members=tuple(
            known(Member, call_id=call_id, completion=index, score=score)
            for index, score in enumerate(scores)
        ),
    )
    yield made(
        CandidateSelection,
        id=f"{episode_id}/preferred",
        episode_id=episode_id,
        candidate_set_id=f"{episode_id}/pair",
        selected=(0,),
    )


_Pair = tuple[dict[str, Any] | None, list[Any], Dialect]
"""(request, answers, their dialect)."""


def _openai_pair(rest: dict[str, Any]) -> _Pair:
    request = as_dict(rest.pop("input"))
    answers = [_one_message(rest.pop(name)) for name in ("preferred_output", "non_preferred_output")]
    return request, answers, "openai_chat"


def _one_message(given: Any) -> Any:
    if isinstance(given, list) and len(given) == 1:
        return given[0]
    raise ValueError("an output of a preference is a list of one message")


def _chosen_pair(rest: dict[str, Any]) -> _Pair:
    prompt, chosen, rejected = rest.pop("prompt", None), rest.pop("chosen"), rest.pop("rejected")
    if _are_messages(chosen) and _are_messages(rejected):
        before = chosen[:-1]
        if before != rejected[:-1]:
            raise ValueError(
                "chosen and rejected differ before their last messages: no two answers to one prompt"
            )
        context = prompt if isinstance(prompt, list) else []
        if isinstance(prompt, str) and before:
            rest["prompt"] = prompt  # the messages say it too
        elif isinstance(prompt, str):
            context = [{"role": "user", "content": prompt}]
        messages = [*context, *before]
        return {"messages": messages} if messages else None, [chosen[-1], rejected[-1]], "openai_chat"
    if isinstance(prompt, list):
        answers = [{"role": "assistant", "content": one} for one in (chosen, rejected)]
        return {"messages": prompt}, answers, "openai_chat"
    return None if prompt is None else {"prompt": prompt}, [chosen, rejected], "text"


_READERS = {
    "exchange": _exchange,
    "conversation": _conversation,
    "prompt and completion": _prompt_and_completion,
    "preference": _preference,
}

FORMAT = Format(_NAME, "chat logs, fine-tuning and preference data, OpenAI batches", _recognises, read)
