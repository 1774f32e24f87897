"""What a provider sends back -> the answer it amounts to: whole bodies, and streams of chunks or events.

    OpenAI Chat Completions   {choices: [{message}]}; chunks {choices: [{index, delta}]}, then [DONE]
    OpenAI Completions        the same with {text}: the message is the text
    OpenAI Responses          {object: "response", output}; events response.*, of which response.completed,
                              .incomplete or .failed carries the whole
    Anthropic Messages        {type: "message", content}; events message_start, content_block_start, _delta,
                              _stop, message_delta, message_stop
    Gemini                    {candidates: [{content{role, parts}}], usageMetadata}; chunks of the same shape,
                              whose parts follow each other. The message is the content

The deltas of a stream are laid end to end, byte for byte. The arguments of a tool use whose JSON ended early
stay the string that came; nothing is repaired. A stream that stops without its last event gives what had
come, marked partial. Whatever of a body or event has no place in the answer is kept beside it.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracestore.importers import exact, guard, usage
from tracestore.importers.documents import embedded
from tracestore.importers.guard import as_dict, as_list
from tracestore.importers.items import raw, taken
from tracestore.wire.arrays import MAX_TOKEN_ID, Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect, Usage
from tracestore.wire.completion import CompletionBody

_TOKEN_ID = re.compile(r"token_id:([0-9]{1,10})")
"""How vLLM writes the text of a token with `return_tokens_as_token_ids`."""


class Sent(NamedTuple):
    """One server-sent event."""

    event: str | None
    """Its name, where it has one."""
    data: str


@dataclass
class Choice:
    """One completion."""

    message: Any
    """As the next request would send it; None: nothing came."""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    """One a token of `token_ids`; None where they do not go together."""
    top_logprobs: Any = None
    """Logprobs with the texts of their tokens, as the server gave them."""
    partial: bool = False
    """The stream ended before it did."""
    span: Raw | None = None
    """The message as it stood in its body, to the byte; None where it was laid together, or parsed before."""


@dataclass
class Answer:
    """What one request was answered with."""

    dialect: Dialect
    choices: list[Choice] = field(default_factory=list)
    usage: Usage | None = None
    model: str | None = None
    provider_id: str | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None
    """The error object, where the answer is one."""
    rest: Any = None
    """What has no place above; None where everything has."""
    event_types: Counter[str] = field(default_factory=Counter)
    """Of a stream: its events by their type."""
    events: list[dict[str, Any]] = field(default_factory=list, repr=False, compare=False)
    """Of a stream: all that could be read, as they came."""


def sent(text: str) -> Iterator[Sent]:
    """The events of a text/event-stream; the last one may lack its end.

    Comments are passed over, as the standard says; CR, LF and CRLF end a line.

    Source: WHATWG HTML, 9.2.6 Interpreting an event stream.
    """
    name: str | None = None
    data: list[str] = []
    for line in [*text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        label, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Sent(name, "\n".join(data))
            name, data = None, []
        elif label == "event":
            name = value
        elif label == "data":
            data.append(value)


def whole(body: Any) -> Answer | None:
    """The answer in a body that came at once; None where it is none that is known here."""
    if isinstance(body, list) and body and all(map(_is_gemini, body)):
        return _gemini(body)  # a stream without `alt=sse` is one array
    if not isinstance(body, dict):
        return None
    body = copy.copy(body)
    if isinstance(body.get("choices"), list):
        return _chat(body)
    if body.get("object") == "response" or (isinstance(body.get("output"), list) and "id" in body):
        return _response(body)
    if body.get("type") == "message" and isinstance(body.get("content"), list):
        return _anthropic(body)
    if _is_gemini(body) or isinstance(body.get("promptFeedback"), dict):
        return _gemini([body])
    if "error" in body:
        dialect: Dialect = "anthropic_messages" if body.get("type") == "error" else "openai_chat"
        return Answer(dialect, error=body.pop("error"), rest=body or None)
    return None


def streamed(texts: Iterable[str]) -> Answer | None:
    """The answer that the data of a stream's events amounts to; None where it is of no known kind.

    Args:
        texts: JSON texts, and `[DONE]` where OpenAI ends a chat stream.
    """
    events: list[dict[str, Any]] = []
    unread: list[Any] = []
    is_done = False
    for text in texts:
        if text.strip() in ("", "[DONE]"):
            is_done = is_done or bool(text.strip())
            continue
        try:
            value = exact.loads(text)
        except (ValueError, RecursionError):
            unread.append(text)  # the last one of a stream that was cut
            continue
        (events if isinstance(value, dict) else unread).append(value)
    answer = assembled(events, is_done=is_done)
    if answer is None:
        return None
    if unread:
        answer.rest = _joined(answer.rest, {"unread": unread})
    answer.event_types = Counter(str(event.get("type") or event.get("object")) for event in events)
    answer.event_types["unread"] += len(unread)
    answer.events = events
    return answer


def assembled(events: Sequence[dict[str, Any]], *, is_done: bool = False) -> Answer | None:
    """The same of events that are parsed.

    Args:
        is_done: whether `[DONE]` came.
    """
    types = {str(event.get("type")) for event in events}
    if any(isinstance(event.get("choices"), list) for event in events):
        return _chat_stream(events, is_done=is_done)
    if types & {"message_start", "content_block_start", "content_block_delta"}:
        return _anthropic_stream(events)
    if any(one.startswith("response.") for one in types):
        return _response_stream(events)
    if any(map(_is_gemini, events)):
        return _gemini(events)
    failed = next((event for event in events if "error" in event), None)
    return None if failed is None else whole(failed)


# --- OpenAI Chat Completions -----------------------------------------------------------------------


def _chat(body: dict[str, Any]) -> Answer:
    answer = Answer("openai_chat")
    _envelope(answer, body)
    answer.choices = choices_of(body)
    if answer.prompt_token_ids is None:
        answer.prompt_token_ids = _ids_of_choices(body)
    for choice, ids in zip(answer.choices, _extended(answer, body), strict=False):
        _given_ids(choice, ids)
    if "error" in body and body["error"] is not None:
        answer.error = body.pop("error")
    answer.usage, body_usage = usage.of(body.pop("usage", None))
    if body_usage:
        body["usage"] = body_usage
    answer.rest = body or None
    return _as_text(answer)


def choices_of(body: dict[str, Any]) -> list[Choice]:
    """The choices of a chat or text completion, with ids and logprobs where a server added them.

    What they hold is taken out of the body; what else a choice says stays there.
    """
    choices, rests = [], []
    for given in taken(body, "choices", list) or []:
        if not isinstance(given, dict):
            rests.append(given)
            continue
        one = dict(given)
        message = one.pop("message", None)
        if message is None and isinstance(one.get("text"), str):
            message = one.pop("text")
        reason = taken(one, "finish_reason", str)
        choice = Choice(message, finish_reason=reason, top_logprobs=one.pop("logprobs", None))
        if _are_ids(one.get("token_ids")):
            choice.token_ids = one.pop("token_ids")
        _read_meta_info(choice, one)
        choices.append(_with_logprobs(choice))
        if one.get("index") == len(choices) - 1:
            one.pop("index")
        rests.append(one)
    if any(rests):
        body["choices"] = rests
    return choices


def _ids_of_choices(body: dict[str, Any]) -> list[int] | None:
    """The prompt's ids, which the completions API gives with each choice: those of the first, taken out."""
    rests = as_list(body.get("choices"))
    for one in rests:
        if isinstance(one, dict) and _are_ids(one.get("prompt_token_ids")):
            ids: list[int] = one.pop("prompt_token_ids")
            if not any(rests):
                del body["choices"]
            return ids
    return None


def _extended(answer: Answer, body: dict[str, Any]) -> list[Any]:
    """SGLang's `sglext`: the ids of the prompt, taken into the answer, and those of each choice.

    Source: SGLang's protocol, `return_input_ids_in_sglext` and `return_output_ids_in_sglext`.
    """
    given = as_dict(body.get("sglext"))
    if answer.prompt_token_ids is None and _are_ids(given.get("input_ids")):
        answer.prompt_token_ids = given.pop("input_ids")
    found = taken(given, "output_ids", list) or []
    if "sglext" in body:
        del body["sglext"]
        body |= {"sglext": given} if given else {}
    return found


def _given_ids(choice: Choice, ids: Any) -> None:
    """Give a choice the ids that stood beside it, where it has none of its own."""
    if choice.token_ids is None and _are_ids(ids):
        choice.token_ids = ids
        _with_logprobs(choice)


def _read_meta_info(choice: Choice, given: dict[str, Any]) -> None:
    """SGLang's `meta_info.output_token_logprobs` of a choice: rows of logprob, id and text (mostly null)."""
    info = as_dict(given.get("meta_info"))
    rows = as_list(info.get("output_token_logprobs"))
    if choice.token_ids is not None or not all(isinstance(row, list) and len(row) > 1 for row in rows):
        return
    ids = [row[1] for row in rows]
    try:
        values = guard.logprobs([row[0] for row in rows])
    except ValueError:
        return  # they are no numbers: they stay where they stand
    if _are_ids(ids):
        choice.token_ids, choice.logprobs = ids, values
        if all(row[2:] in ([], [None]) for row in rows):
            del info["output_token_logprobs"]
            given["meta_info"] = info


def completion(choice: Choice) -> CompletionBody:
    """A choice as a completion."""
    return guard.known(
        CompletionBody,
        message=choice.span if choice.span or choice.message is None else raw(choice.message),
        finish_reason=choice.finish_reason,
        token_ids=None if choice.token_ids is None else TokenIds.of(choice.token_ids),
        logprobs=choice.logprobs,
        top_logprobs=None if choice.top_logprobs is None else raw(choice.top_logprobs),
        partial=True if choice.partial else None,
    )


def _as_text(answer: Answer) -> Answer:
    """An answer of the completions API, whose messages are texts, as what it is."""
    if answer.choices and all(isinstance(choice.message, str) for choice in answer.choices):
        answer.dialect = "text"
    return answer


def _envelope(answer: Answer, body: dict[str, Any]) -> None:
    answer.model = taken(body, "model", str)
    answer.provider_id = taken(body, "id", str)
    ids = body.get("prompt_token_ids")
    if _are_ids(ids):
        answer.prompt_token_ids = body.pop("prompt_token_ids")


def _with_logprobs(choice: Choice) -> Choice:
    """A choice with what its logprobs say of its tokens: ids (see _TOKEN_ID), and one number for each id."""
    given = as_dict(choice.top_logprobs)
    content = [as_dict(one) for one in as_list(given.get("content"))]
    texts = [one.get("token") for one in content] or as_list(given.get("tokens"))
    matches = [_TOKEN_ID.fullmatch(text) if isinstance(text, str) else None for text in texts]
    if choice.token_ids is None and texts and all(matches):
        ids = [int(match[1]) for match in matches if match is not None]
        choice.token_ids = ids if _are_ids(ids) else None
    values = [one.get("logprob") for one in content] or as_list(given.get("token_logprobs"))
    if choice.token_ids is not None and choice.logprobs is None and len(values) == len(choice.token_ids):
        try:
            choice.logprobs = guard.logprobs(values)
        except ValueError:
            choice.logprobs = None  # they are no numbers: they stay where they stand
    return choice


def _are_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(one) is int and 0 <= one <= MAX_TOKEN_ID for one in value)
    )


def _chat_stream(events: Sequence[dict[str, Any]], *, is_done: bool) -> Answer:
    answer = Answer("openai_chat")
    messages: dict[int, dict[str, Any]] = {}
    choices: dict[int, Choice] = {}
    rests: list[dict[str, Any]] = []
    counts = _Counts("usage")
    ids_of: list[Any] = []
    for event in events:
        body = dict(event)
        _chunk_envelope(answer, body)
        ids_of = _extended(answer, body) or ids_of
        left = [_chat_delta(one, messages, choices) for one in as_list(body.pop("choices", None))]
        body |= {"choices": left} if any(left) else {}
        if answer.prompt_token_ids is None:
            answer.prompt_token_ids = _ids_of_choices(body)
        counts.take(body)
        if body.get("error") is not None:
            answer.error = body.pop("error")
        rests.append(body)
    answer.usage = counts.settled(usage.of)
    for index in sorted(choices):
        choice, message = choices[index], _indexed(messages[index])
        choice.message = message["text"] if message.keys() == {"text"} else (message or None)
        choice.partial = choice.finish_reason is None and not is_done
        answer.choices.append(_with_logprobs(choice))
        _given_ids(choice, ids_of[index] if index < len(ids_of) else None)
    answer.rest = _kept(rests)
    return _as_text(answer)


def _chunk_envelope(answer: Answer, body: dict[str, Any]) -> None:
    """`_envelope` of a chunk: each says again what the first one said."""
    for name in ("id", "model"):
        held = "provider_id" if name == "id" else name
        if getattr(answer, held) in (None, "", body.get(name)) and isinstance(body.get(name), str):
            setattr(answer, held, body.pop(name))
    if answer.prompt_token_ids is None and _are_ids(body.get("prompt_token_ids")):
        answer.prompt_token_ids = body.pop("prompt_token_ids")


class _Counts:
    """The usage of a stream: each count replaces the one before it, which stays with its chunk."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._holder: dict[str, Any] | None = None
        self._value: Any = None

    def take(self, body: dict[str, Any]) -> None:
        """Take the usage of a chunk, where it has one."""
        value = body.get(self._name)
        if value is None:
            body.pop(self._name, None)
            return
        if self._holder is not None and self._value != value:
            self._holder[self._name] = self._value
        self._holder, self._value = body, body.pop(self._name)

    def settled(self, read: Any) -> Usage | None:
        """The last one, read; what of it has no place stays with its chunk."""
        known: Usage | None
        known, rest = read(self._value)
        if self._holder is not None and rest:
            self._holder[self._name] = rest
        return known


def _chat_delta(given: Any, messages: dict[int, dict[str, Any]], choices: dict[int, Choice]) -> Any:
    """Lay one chunk's choice onto what came before; gives what of it has no place."""
    if not isinstance(given, dict) or not isinstance(given.get("index", 0), int):
        return given
    one = dict(given)
    index = one.pop("index", 0)
    choice = choices.setdefault(index, Choice(None))
    message = messages.setdefault(index, {})
    replaced: dict[str, Any] = {}
    if isinstance(one.get("delta"), dict):
        replaced = _lay(message, one.pop("delta"))
    elif isinstance(one.get("text"), str):
        _lay(message, {"text": one.pop("text")})
    if choice.finish_reason in (None, one.get("finish_reason")):
        choice.finish_reason = taken(one, "finish_reason", str) or choice.finish_reason
    if isinstance(one.get("logprobs"), dict):
        choice.top_logprobs = choice.top_logprobs or {}
        replaced |= _lay(choice.top_logprobs, one.pop("logprobs"))
    for name in ("finish_reason", "logprobs", "token_ids"):
        if one.get(name, 0) is None:
            del one[name]
    if _are_ids(one.get("token_ids")):
        choice.token_ids = (choice.token_ids or []) + one.pop("token_ids")
    return one | ({"replaced": replaced} if replaced else {})


LABELS = frozenset({"role", "id", "type", "name", "call_id", "format", "status", "object"})
"""Strings that are sent whole, and again, and not in pieces."""
PLACE = "index"
"""Tells the element of a list that a delta is of; it is no part of the message."""


def _lay(onto: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """Append a delta: strings to strings, list elements to those of their `index`, or at the end.

    Gives what of it was replaced: values that are told whole, and told otherwise before.
    """
    replaced: dict[str, Any] = {}
    for name, value in delta.items():
        held = onto.get(name)
        inner: Any = None
        if isinstance(value, list) and (held is None or isinstance(held, list)):
            onto[name] = held if held is not None else []
            inner = _lay_list(onto[name], value)
        elif held is None:
            onto[name] = copy.deepcopy(value)
        elif isinstance(held, str) and isinstance(value, str) and name not in LABELS:
            onto[name] = held + value
        elif isinstance(held, dict) and isinstance(value, dict):
            inner = _lay(held, value)
        elif value is not None and value != "" and value != held:
            inner, onto[name] = held, copy.deepcopy(value)
        if inner:
            replaced[name] = inner
    return replaced


def _lay_list(onto: list[Any], values: list[Any]) -> list[Any]:
    replaced = []
    for value in values:
        held = _same(onto, value)
        if held is None:
            onto.append(copy.deepcopy(value))
        else:
            replaced.append(_lay(held, {name: one for name, one in value.items() if name != PLACE}))
    return [one for one in replaced if one]


def _same(onto: list[Any], value: Any) -> dict[str, Any] | None:
    """The element that a delta goes on with: the newest of its index, unless it is of another id.

    Some servers give all parallel tool calls the index 0.
    """
    place = value.get(PLACE) if isinstance(value, dict) else None
    if not isinstance(place, int):
        return None
    held = next((one for one in reversed(onto) if isinstance(one, dict) and one.get(PLACE) == place), None)
    is_other = held is not None and held.get("id") and value.get("id") and held["id"] != value["id"]
    return None if is_other else held


def _indexed(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose list elements stand in the order of their indexes, without them."""
    for name, value in message.items():
        places = [one.get(PLACE) if isinstance(one, dict) else None for one in as_list(value)]
        if places and all(isinstance(place, int) for place in places):
            inner = sorted(value, key=lambda one: int(one[PLACE]))
            message[name] = [{key: part for key, part in one.items() if key != PLACE} for one in inner]
    return message


# --- OpenAI Responses ------------------------------------------------------------------------------

_UNFINISHED = ("in_progress", "queued", "cancelled", "failed")


def _response(body: dict[str, Any]) -> Answer:
    answer = Answer("openai_responses")
    _envelope(answer, body)
    status = body.get("status")
    reason = as_dict(body.get("incomplete_details")).get("reason")
    if body.get("error"):
        answer.error = body.pop("error")
    output = body.pop("output", None)
    if output or answer.error is None:
        finish = {"max_output_tokens": "length"}.get(reason, reason) if isinstance(reason, str) else None
        finish = finish or (status if status == "completed" else None)
        answer.choices.append(Choice(output, finish, partial=status in _UNFINISHED))
    answer.usage, rest = usage.of(body.pop("usage", None))
    if rest:
        body["usage"] = rest
    answer.rest = body or None
    return answer


_WHOLE = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_OF_ITEM = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}
"""Type of a delta -> the text of its item that it goes on with."""
_OF_PART = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
}
"""Type of a delta -> (list of its item, the place in it, type of the part there, text to go on with)."""


def _response_stream(events: Sequence[dict[str, Any]]) -> Answer:
    last = next(
        (one for one in events if one.get("type") in _WHOLE and isinstance(one.get("response"), dict)), None
    )
    if last is not None:
        answer = _response(dict(last["response"]))
        others = [event for event in events if event is not last]
        others += [rest] if (rest := {name: one for name, one in last.items() if name != "response"}) else []
        # Its deltas say again what the whole says; they stay for those who ask when each came.
        answer.rest = _joined(answer.rest, {"events": others})
        return answer
    items: dict[int, Any] = {}
    begun: dict[str, Any] = {}
    for event in events:
        _response_event(event, items, begun)
    answer = _response({**begun, "output": [items[place] for place in sorted(items)]})
    answer.error = next((one for one in events if one.get("type") == "error"), answer.error)
    for choice in answer.choices:
        choice.partial, choice.finish_reason = True, None
    answer.rest = _joined(answer.rest, {"events": list(events)})
    return answer


def _response_event(event: dict[str, Any], items: dict[int, Any], begun: dict[str, Any]) -> None:
    kind, place = str(event.get("type")), event.get("output_index", 0)
    if kind in ("response.created", "response.in_progress") and isinstance(event.get("response"), dict):
        begun.update(event["response"])
    elif not isinstance(place, int):
        return
    elif kind in ("response.output_item.added", "response.output_item.done"):
        items[place] = copy.deepcopy(event.get("item"))
    elif isinstance(items.get(place), dict) and isinstance(event.get("delta"), str):
        item = items[place]
        if kind in _OF_ITEM:
            item[_OF_ITEM[kind]] = (item.get(_OF_ITEM[kind]) or "") + event["delta"]
        elif kind in _OF_PART:
            _lay_part(item, event, _OF_PART[kind])


def _lay_part(item: dict[str, Any], event: dict[str, Any], where: tuple[str, str, str, str]) -> None:
    parts, place, kind, text = where
    held, at = item.get(parts) or [], event.get(place, 0)
    if isinstance(held, list) and isinstance(at, int) and 0 <= at <= len(held):
        item[parts] = held
        if at == len(held):
            held.append({"type": kind, text: ""})
        held[at][text] = (held[at].get(text) or "") + event["delta"]


# --- Anthropic Messages ----------------------------------------------------------------------------


def _anthropic(body: dict[str, Any]) -> Answer:
    answer = Answer("anthropic_messages")
    _envelope(answer, body)
    body.pop("type")
    message = {"role": body.pop("role", "assistant"), "content": body.pop("content")}
    answer.choices.append(Choice(message, taken(body, "stop_reason", str)))
    answer.usage, rest = usage.of(body.pop("usage", None))
    if rest:
        body["usage"] = rest
    answer.rest = {name: value for name, value in body.items() if value is not None} or None
    return answer


def _anthropic_stream(events: Sequence[dict[str, Any]]) -> Answer:
    stream = _AnthropicStream()
    for event in events:
        stream.take(event)
    return stream.answer()


class _AnthropicStream:
    """The events of one message, laid together as they come."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._rests: list[Any] = []
        self._error: Any = None
        self._is_done = False

    def take(self, event: dict[str, Any]) -> None:
        kind, rest = str(event.get("type")), {key: one for key, one in event.items() if key != "type"}
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._begin(rest)
        elif kind == "message_delta" and isinstance(event.get("delta"), dict):
            self._end(rest)
        elif kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            self._rests.append(_anthropic_block(event, self._blocks, self._inputs))
        elif kind == "message_stop":
            self._is_done = True
            self._rests.append(rest)
        elif kind == "error":
            self._error = rest.pop("error", None)
            self._rests.append(rest)
        elif kind != "ping" or rest:
            self._rests.append(event)

    def _begin(self, rest: dict[str, Any]) -> None:
        """A message begins. One that was begun before it was given up by the server: it is kept beside it."""
        message = rest.pop("message")
        if self._body or self._blocks:
            self._rests.append({"given_up": {**self._body, "content": self._content()}})
        self._blocks, self._inputs = {}, {}
        self._body = copy.deepcopy(message)
        self._rests.append(rest)

    def _end(self, rest: dict[str, Any]) -> None:
        delta, counts = rest.pop("delta"), rest.pop("usage", None)
        first = as_dict(self._body.get("usage"))
        replaced = {
            "usage": {name: one for name, one in first.items() if name in as_dict(counts)},
            **{name: one for name, one in self._body.items() if name in delta and one is not None},
        }
        if isinstance(counts, dict):
            replaced["usage"] = {name: one for name, one in replaced["usage"].items() if counts[name] != one}
            counts = {**first, **counts}
        if counts is not None:
            self._body["usage"] = counts
        self._body |= delta
        replaced = {name: one for name, one in replaced.items() if one}
        self._rests.append({**rest, **({"replaced": replaced} if replaced else {})})

    def _content(self) -> list[Any]:
        return [_closed(self._blocks[place], self._inputs.get(place)) for place in sorted(self._blocks)]

    def answer(self) -> Answer:
        begun = self._body.get("content")
        if begun:
            self._rests.append({"content": begun})
        answer = _anthropic(
            {"role": "assistant"} | self._body | {"type": "message", "content": self._content()}
        )
        answer.error = self._error
        answer.choices[0].partial = not self._is_done
        answer.rest = _joined(answer.rest, _kept(self._rests))
        return answer


_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "compaction_delta": "content",
}
"""Type of a delta -> the field of its block that it goes on with, under the same name in the delta."""


def _anthropic_block(event: dict[str, Any], blocks: dict[int, dict[str, Any]], inputs: dict[int, str]) -> Any:
    """Lay one event onto its block; gives what of it has no place."""
    place = event.get("index")
    if not isinstance(place, int):
        return event
    placed = ("type", "index", "content_block", "delta")
    rest = {name: value for name, value in event.items() if name not in placed}
    if event.get("type") == "content_block_start" and isinstance(event.get("content_block"), dict):
        if place in blocks:
            rest["replaced"] = _closed(blocks[place], inputs.pop(place, None))
        blocks[place] = copy.deepcopy(event["content_block"])
        return rest
    if event.get("type") == "content_block_stop" and place in blocks:
        return rest
    delta = event.get("delta")
    if place not in blocks or not isinstance(delta, dict):
        return event
    used = _anthropic_delta(delta, blocks[place], inputs, place)
    if used is None:
        return event
    unused = {key: value for key, value in delta.items() if key not in used}
    return {**rest, **({"delta": unused} if unused else {})}


def _anthropic_delta(
    delta: dict[str, Any], block: dict[str, Any], inputs: dict[int, str], place: int
) -> set[str] | None:
    """Lay a delta onto its block; gives the fields of it that have a place now, None where it has none."""
    kind = str(delta.get("type"))
    name = _DELTAS.get(kind)
    if kind == "input_json_delta" and isinstance(delta.get("partial_json"), str):
        inputs[place] = inputs.get(place, "") + delta["partial_json"]
        return {"type", "partial_json"}
    if kind == "citations_delta" and "citation" in delta:
        block["citations"] = [*as_list(block.get("citations")), delta["citation"]]
        return {"type", "citation"}
    if name is not None and isinstance(delta.get(name), str) and isinstance(block.get(name) or "", str):
        block[name] = (block.get(name) or "") + delta[name]
        return {"type", name}
    return None


def _closed(block: dict[str, Any], arguments: str | None) -> dict[str, Any]:
    """A block with the arguments that were streamed for it: JSON as sent, or the string where it is none."""
    if not arguments:
        return block
    span = embedded(arguments)
    return {**block, "input": arguments if span is None else span}


# --- Gemini ----------------------------------------------------------------------------------------


def _is_gemini(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("candidates"), list)


def _gemini(chunks: Sequence[dict[str, Any]]) -> Answer:
    answer = Answer("openai_chat")
    choices: dict[int, Choice] = {}
    rests: list[Any] = []
    counts = _Counts("usageMetadata")
    for chunk in chunks:
        body = dict(chunk)
        for name, held in (("modelVersion", "model"), ("responseId", "provider_id")):
            if getattr(answer, held) in (None, body.get(name)):
                setattr(answer, held, taken(body, name, str) or getattr(answer, held))
        left = [_gemini_candidate(one, choices) for one in as_list(body.pop("candidates", None))]
        body |= {"candidates": left} if any(left) else {}
        counts.take(body)
        if body.get("error") is not None:
            answer.error = body.pop("error")
        rests.append(body)
    answer.usage = counts.settled(usage.of_gemini)
    answer.choices = [choices[index] for index in sorted(choices)]
    for choice in answer.choices:
        choice.partial = choice.finish_reason is None
    answer.rest = _kept(rests)
    return answer


def _gemini_candidate(given: Any, choices: dict[int, Choice]) -> Any:
    if not isinstance(given, dict) or not isinstance(given.get("index", 0), int):
        return given
    one = dict(given)
    choice = choices.setdefault(one.pop("index", 0), Choice(None))
    held, content = choice.message, one.get("content")
    replaced: dict[str, Any] = {}
    if held is None:
        choice.message = copy.deepcopy(one.pop("content", None))
    elif isinstance(held, dict) and isinstance(content, dict):
        # Every part is a part, however many there are of one kind.
        parts = as_list(held.get("parts")) + copy.deepcopy(as_list(content.get("parts")))
        replaced = _lay(held, {name: one for name, one in content.items() if name != "parts"})
        held["parts"] = parts
        del one["content"]
    if choice.finish_reason in (None, one.get("finishReason")):
        choice.finish_reason = taken(one, "finishReason", str) or choice.finish_reason
    if isinstance(one.get("logprobsResult"), dict):
        choice.top_logprobs = choice.top_logprobs or {}
        replaced |= _lay(choice.top_logprobs, one.pop("logprobsResult"))
    return one | ({"replaced": replaced} if replaced else {})


# --- What is left ----------------------------------------------------------------------------------


def _kept(rests: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What is left of the chunks: what every one repeats once, then what each says beside that."""
    if len(rests) == 1:
        return rests[0] or None
    first = rests[0] if rests else {}
    shared = {
        name: value
        for name, value in first.items()
        if all(name in rest and rest[name] == value for rest in rests)
    }
    others = [{name: value for name, value in rest.items() if name not in shared} for rest in rests]
    kept = {"every_chunk": shared, "chunks": [one for one in others if one]}
    return {name: value for name, value in kept.items() if value} or None


def _joined(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return {**one, **other} if isinstance(one, dict) and isinstance(other, dict) else [one, other]
