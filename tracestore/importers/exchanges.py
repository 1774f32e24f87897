"""A recorded request to a model and what came back -> a call.

Bodies come as text, as bytes, or parsed. A request body that is JSON text is the call's request byte for
byte, unless a credential stands beside its messages; a parsed one is written once. Whatever else the exchange
says, its headers included, goes into the call's `meta`, without credentials (`credentials`), which are
counted in a warning and kept nowhere.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tracestore.importers import exact, streams
from tracestore.importers.conversations import tool_calls
from tracestore.importers.credentials import Told, safe_request, safe_url, without
from tracestore.importers.documents import embedded_value
from tracestore.importers.guard import known
from tracestore.importers.items import Item, content_id, gap, made, raw
from tracestore.importers.notes import Notes
from tracestore.importers.streams import Answer, Choice, completion
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Attempt, Call, CallError, Dialect
from tracestore.wire.episode import Episode
from tracestore.wire.errors import EventError
from tracestore.wire.limits import Limits
from tracestore.wire.scan import SPAN, Each, Shape, scan

_ENDPOINTS: tuple[tuple[str, Dialect], ...] = (
    ("/chat/completions", "openai_chat"),
    ("/responses", "openai_responses"),
    ("/messages", "anthropic_messages"),
    ("/completions", "text"),
)
_ACTIONS = ("generatecontent", "/converse")
"""In the paths of Gemini and Bedrock, whose requests are in none of our dialects."""
ASKED = ("messages", "input", "contents", "prompt")
"""What a request to a model has one of."""
_RETRY = "x-stainless-retry-count"
_ANY_SIZE = Limits(max_event_bytes=2**40)
LEFT_OUT = "a header, URL field or body field that may hold a credential was left out"


@dataclass
class Exchange:
    """One request over HTTP and its response, as far as they were recorded."""

    method: str | None = None
    url: str | None = None
    request: Any = None
    """Body: text, bytes or a parsed value; None where it was not recorded."""
    request_headers: dict[str, Any] = field(default_factory=dict)
    status: int | None = None
    response: Any = None
    """Body, the same."""
    response_headers: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    """What else the recording says of it."""

    started_at: int | None = None
    """UTC nanoseconds; None where it was not recorded."""
    ended_at: int | None = None
    broken: CallError | None = None
    """Why it ended before the response did; None where it did not, or nobody knows."""

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the endpoint; None where it is no model's."""
        try:
            path = urlsplit(self.url or "").path.lower().rstrip("/")
        except ValueError:
            return None
        if any(action in path for action in _ACTIONS):
            return "openai_chat"
        return next((dialect for ending, dialect in _ENDPOINTS if path.endswith(ending)), None)

    @property
    def is_call(self) -> bool:
        """Whether a model was asked: at a known endpoint, or with an answer in a known shape.

        Without its request, the answer decides.
        """
        if self.url is None and self.request is None:
            return answered(self.response) is not None
        if (self.method or "POST").upper() != "POST":
            return False
        request = request_body(self.request)
        body = None if request is None else request.value()
        if isinstance(body, dict):
            is_asked = any(name in body for name in ASKED)
        else:  # cut off, or nested too deeply to be read
            is_asked = body is None or (isinstance(body, str) and body.lstrip().startswith("{"))
        if not is_asked:
            return False
        if self.dialect is not None:
            return True
        answer = answered(self.response)
        return answer is not None and bool(answer.choices)

    @property
    def retries(self) -> int | None:
        """How often the client had tried before; None where it does not say."""
        value = {name.lower(): one for name, one in self.request_headers.items()}.get(_RETRY)
        value = value[0] if isinstance(value, list) and value else value
        return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else None


def conversation(exchanges: Sequence[Exchange], *, prefix: str, notes: Notes) -> Iterator[Item]:
    """An episode of one agent with a call for each exchange.

    Its ids are made of content: of the first exchange for the episode, of all up to its own for a call, or up
    to its first attempt. So a recording that has grown, or lies there twice, names the same things.

    Args:
        exchanges: with a model, in order.
        prefix: of the ids, e.g. `http`.
    """
    if not exchanges:
        return
    chain = episode_id = content_id(prefix, _content(exchanges[0]))
    agent_id = f"{episode_id}/main"
    yield made(Episode, id=episode_id)
    yield made(Agent, id=agent_id, episode_id=episode_id, role="main", depth=0)
    num_without = 0
    for ordinal, tries in enumerate(_attempts(exchanges)):
        names: dict[str, Any] = {"episode_id": episode_id, "agent_id": agent_id, "ordinal": ordinal}
        for place, exchange in enumerate(tries):
            chain = content_id(prefix, [chain, _content(exchange)])
            if place == 0:
                names["id"] = f"{episode_id}/{chain.removeprefix(prefix + '-')}"
        num_without += tries[-1].request is None
        yield from call_of(
            tries,
            answer=answered(tries[-1].response),
            request=request_body(tries[-1].request, told=lambda: notes.warn(LEFT_OUT)),
            names=names,
            notes=notes,
        )
    if num_without:
        yield gap(
            episode_id,
            "missing_prompt",
            "answers are recorded without their requests",
            episode_id=episode_id,
            agent_id=agent_id,
        )


def _attempts(exchanges: Sequence[Exchange]) -> Iterator[list[Exchange]]:
    """The exchanges of each call: mostly one, several where the client counts its retries."""
    tries: list[Exchange] = []
    for place, exchange in enumerate(exchanges):
        tries.append(exchange)
        following = exchanges[place + 1] if place + 1 < len(exchanges) else None
        if following is None or not _is_retried(exchange, following):
            yield tries
            tries = []


def _content(exchange: Exchange) -> Any:
    url = None if exchange.url is None else safe_url(exchange.url, told=_no_one)
    return as_json([exchange.method, url, exchange.status, exchange.request, exchange.response])


def _no_one() -> None:
    """Is told of what is left out, where it is counted elsewhere."""


def as_json(value: Any) -> Any:
    """A value of a recording as JSON has it: bytes as text where they are text, else as base64."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {str(name): as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list) else value


def _is_retried(exchange: Exchange, following: Exchange) -> bool:
    """Whether the next exchange is another try of this one: the client counts it as a retry."""
    before, after = exchange.retries or 0, following.retries or 0
    return exchange.request is not None and after == before + 1 and exchange.request == following.request


def call_of(
    tries: Sequence[Exchange],
    *,
    answer: Answer | None,
    request: Raw | None,
    names: Mapping[str, Any],
    notes: Notes,
    rest: Mapping[str, Any] | None = None,
) -> Iterator[Item]:
    """The call of an exchange, the last of its attempts, with its tool calls and what is missing of it.

    Args:
        answer: `answered` of its response.
        request: `request_body` of its request.
        names: id, episode_id and agent_id, and whatever else is known of the call by its field.
        rest: what else goes into its `meta`, beside `http`.
    """
    exchange = tries[-1]
    for kind, num in () if answer is None else answer.event_types.items():
        notes.rows[f"stream event/{kind}"] += num
    is_refused = exchange.status is not None and exchange.status >= 400
    if answer is None and exchange.response not in (None, "", b"") and not is_refused:
        notes.warn("a response of no known shape, kept in meta")
    http = as_json(_http(tries, answer, told=lambda: notes.warn(LEFT_OUT)))
    yield from answered_call(
        answer,
        request=request,
        dialect=exchange.dialect,
        status_code=exchange.status if is_refused else None,
        broken=exchange.broken,
        # Of a recording that goes on after an attempt, the longer one holds.
        revision=len(tries) if exchange.request is not None else None,
        endpoint=None if exchange.url is None else safe_url(exchange.url, told=lambda: notes.warn(LEFT_OUT)),
        attempts=tuple(map(_attempt, tries)) if len(tries) > 1 else None,
        started_at=tries[0].started_at,
        ended_at=exchange.ended_at,
        meta=raw({"http": http, **(rest or {})}),
        names=names,
    )


def _http(tries: Sequence[Exchange], answer: Answer | None, *, told: Told) -> dict[str, Any]:
    """What of a call's exchanges has no place in its event, without credentials."""
    exchange = tries[-1]
    rest: dict[str, Any] = {
        **exchange.rest,
        "method": exchange.method,
        "request_headers": exchange.request_headers,
        "response_headers": exchange.response_headers,
        "status": exchange.status,
    }
    rest = {name: without(value, told=told) for name, value in rest.items()}
    rest["response"] = answer.rest if answer is not None else exchange.response
    if len(tries) > 1:
        rest["earlier_responses"] = [one.response for one in tries[:-1]]
    return {name: value for name, value in rest.items() if value not in (None, {}, [])}


def answered_call(
    answer: Answer | None,
    *,
    request: Raw | None,
    names: Mapping[str, Any],
    dialect: Dialect | None = None,
    status_code: int | None = None,
    broken: CallError | None = None,
    **fields: Any,
) -> Iterator[Item]:
    """A call with its answer and tool calls, and a gap where it was answered and the answer is not there.

    Args:
        answer: None where it was not recorded, or in no known shape.
        names: id, episode_id and agent_id, and whatever else is known of the call by its field.
        dialect: of the request; None: that of its answer.
        status_code: of an exchange that failed.
        broken: why the answer is not whole, where it is known.
        fields: what else is known of the call; `names` win.
    """
    choices = [] if answer is None else answer.choices
    error = None if answer is None else answer.error
    is_failed = status_code is not None or error is not None
    if not choices and not is_failed and broken is None:
        yield gap(
            names["id"],
            "unrecorded_stream",
            "the response was not recorded, or holds no answer",
            episode_id=names["episode_id"],
            call_id=names["id"],
        )
    ids = None if answer is None else answer.prompt_token_ids
    call: dict[str, Any] = {
        "model": model_of(answer, None if request is None else request.value()),
        "provider_id": None if answer is None else answer.provider_id,
        "dialect": dialect or (answer.dialect if answer is not None else "openai_chat"),
        "request": request,
        "prompt_token_ids": None if ids is None else TokenIds.of(ids),
        "completions": tuple(map(completion, choices)) or None,
        "usage": None if answer is None else answer.usage,
        "status": _status(choices, is_failed=is_failed, is_broken=broken is not None),
        "error": call_error(error, status_code=status_code) if is_failed else broken,
    }
    yield made(Call, **{**call, **fields, **names})
    for index, choice in enumerate(choices):
        yield from tool_calls(
            choice.message, completion=index, call_id=names["id"], episode_id=names["episode_id"]
        )


def model_of(answer: Answer | None, request: Any) -> str | None:
    """The model that answered, else the one that was asked."""
    if answer is not None and answer.model:
        return answer.model
    model = request.get("model") if isinstance(request, dict) else None
    return model if isinstance(model, str) else None


def _status(choices: Sequence[Choice], *, is_failed: bool, is_broken: bool) -> Any:
    if any(choice.partial for choice in choices) or (is_broken and not is_failed):
        return "aborted"
    return "failed" if is_failed else ("ok" if choices else None)


def _attempt(exchange: Exchange) -> Attempt:
    return known(
        Attempt,
        status_code=exchange.status,
        started_at=exchange.started_at,
        ended_at=exchange.ended_at,
        error=None if exchange.broken is None else exchange.broken.message,
    )


def call_error(error: Any, *, status_code: int | None = None) -> CallError:
    """The error that an answer states, in whatever shape; the status code alone where it states none."""
    stated = error if isinstance(error, dict) else {}
    kind, message = stated.get("type"), stated.get("message")
    if error is not None and not isinstance(message, str):
        message = raw(error).decode("utf-8")
    return known(
        CallError,
        type=kind if isinstance(kind, str) else None,
        message=message if isinstance(message, str) else None,
        status_code=status_code,
    )


# --- Bodies ----------------------------------------------------------------------------------------


def request_body(body: Any, *, told: Told = _no_one) -> Raw | None:
    """A request as JSON text: the very text where it is one; text that is no JSON as a string.

    Of a Gemini request the `contents` stand as `messages`, which none of our dialects calls so.

    Args:
        told: called for each credential that was left out.
    """
    if body is None or body in ("", b""):
        return None
    if isinstance(body, bytes):
        body = unpacked(body).decode("utf-8", "backslashreplace")
    found = embedded_value(body) if isinstance(body, str) else None
    if isinstance(body, str) and found is None:
        return raw(body)
    span, value = (None, body) if found is None else found
    if not isinstance(value, dict):
        return raw(value) if span is None else span
    safe = safe_request(value, told=told)
    if isinstance(value.get("contents"), list) and "messages" not in value:
        safe = {"messages": safe.pop("contents")} | safe
    return span if span is not None and safe == value else raw(as_json(safe))


def answered(body: Any) -> Answer | None:
    """The answer in a response body: JSON, a stream of events, or chunks one a line; None where it is none.

    A body that was recorded compressed is unpacked.
    """
    if isinstance(body, bytes):
        body = unpacked(body).decode("utf-8", "backslashreplace")
    if not isinstance(body, str):
        return streams.whole(body)
    text = body.lstrip("\ufeff \r\n\t")
    if text.startswith(("event:", "data:", ":")):
        return streams.streamed(event.data for event in streams.sent(text))
    try:
        answer = streams.whole(exact.loads(text))
    except (ValueError, RecursionError):
        lines = [line for line in text.splitlines() if line.strip()]
        return streams.streamed(lines) if text.startswith("{") else None
    return None if answer is None else _with_spans(answer, text)


_SPANS: Shape = {
    "choices": Each({"message": SPAN, "text": SPAN}),
    "output": SPAN,
    "role": SPAN,
    "content": SPAN,
}


def _with_spans(answer: Answer, text: str) -> Answer:
    """An answer whose messages are the bytes that came, as far as an event may hold them."""
    try:
        body = scan(text.encode("utf-8"), opaque=_SPANS, limits=_ANY_SIZE)
    except (EventError, UnicodeEncodeError):
        return answer
    if not isinstance(body, dict):
        return answer  # a stream of Gemini that came as one array
    spans: list[Any] = [body.get("output")]
    if answer.dialect == "anthropic_messages":
        role, content = body.get("role", b'"assistant"'), body.get("content")
        spans = [None if content is None else Raw(b'{"role":' + role + b',"content":' + content + b"}")]
    elif "choices" in body:
        spans = [one.get("message", one.get("text")) for one in body["choices"] if isinstance(one, dict)]
    if len(spans) == len(answer.choices):
        for choice, span in zip(answer.choices, spans, strict=True):
            choice.span = span if isinstance(span, Raw) and span != b"null" else None
    return answer


def unpacked(body: bytes) -> bytes:
    """A body that was recorded compressed, as it was sent."""
    try:
        return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    except (OSError, EOFError, zlib.error):
        return body
