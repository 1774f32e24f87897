"""A whole answer and how its stream was cut -> the events of that stream again.

Each event says what it said when it was recorded (`importers.cuts`): of every text as many characters, in the
same place. What is laid together from them must be the answer; where it is not (a message was redacted since,
a server told a value twice), there are no pieces, and the stream goes out as it does without cuts.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracestore.graph.spans import elements, members
from tracestore.importers import cuts, streams
from tracestore.importers.cuts import Cuts, parted
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect

Body = Mapping[str, Any]
_OF_ITSELF = ("choices", "usage", "prompt_token_ids")
_EMPTY = {"text": "", "thinking": "", "signature": "", "input": {}}
"""Fields of a block that deltas fill -> what it begins with."""
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "signature": ("signature_delta", "signature"),
    "content": ("compaction_delta", "content"),
    "input": ("input_json_delta", "partial_json"),
    "citations": ("citations_delta", "citation"),
}


class _Differ(Exception):
    """The cuts are not those of this answer."""


def pieces_of(body: Body, dialect: Dialect, found: Cuts) -> list[dict[str, Any]] | None:
    """The data of each event; None where the answer was not cut so.

    Args:
        body: `answers.body_of`.
        found: cuts of an answer of this dialect.
    """
    try:
        events = list(_anthropic(body, found) if dialect == "anthropic_messages" else _chat(body, found))
    except _Differ:
        return None
    return events if _says(events) == _said(body) else None


def _says(events: Sequence[dict[str, Any]]) -> Any:
    """What a reader of the events has in the end."""
    answer = streams.assembled([_plain(event) for event in events], is_done=True)
    choices = [] if answer is None else answer.choices
    # Halves of an emoji that were sent apart are one when the text is written and read.
    return [
        (json.loads(json.dumps(_plain(one.message))), one.finish_reason, one.token_ids) for one in choices
    ]


def _said(body: Body) -> Any:
    answer = streams.whole(_plain(body))
    choices = [] if answer is None else answer.choices
    return [(_without_nulls(one.message), one.finish_reason, one.token_ids) for one in choices]


def _plain(value: Any) -> Any:
    """A value without spans."""
    if isinstance(value, Raw):
        return value.value()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _without_nulls(message: Any) -> Any:
    """A message as a stream tells it, which says nothing of what is null."""
    if isinstance(message, dict):
        return {name: one for name, one in message.items() if one is not None}
    return message


class _Cursor:
    """Values of an answer, given out from their beginning on."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()

    def next(self, path: str, value: Any, size: int | None) -> Any:
        """The next part of a value; all of it where it came whole."""
        if size is None:
            return value
        start, self._given[path] = self._given[path], self._given[path] + size
        if isinstance(value, str):
            return _units(value, start, start + size)
        if isinstance(value, Raw):
            parts = elements(value)[start : start + size]
            return [Raw(value[first:last]) for first, last in parts]
        if not isinstance(value, list):
            raise _Differ
        return value[start : start + size]


def _units(text: str, start: int, end: int) -> str:
    """Some UTF-16 units of a text; half of a pair is a lone surrogate."""
    if text.isascii():
        return text[start:end]
    units = text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end]
    return units.decode("utf-16-le", "surrogatepass")


# --- Chat and text ------------------------------------------------------------------------------------------


def _chat(body: Body, found: Cuts) -> Iterator[dict[str, Any]]:
    head = {name: body[name] for name in body if name not in _OF_ITSELF}
    if body.get("object") == "chat.completion":
        head["object"] = "chat.completion.chunk"
    roots = [_root(choice) for choice in body["choices"]]
    told = {path for steps in found for path, _ in steps}
    cursor, begun = _Cursor(), set[int]()
    for number, steps in enumerate(found):
        event = dict(head)
        choices: dict[int, dict[str, Any]] = {}
        if number == 0 and cuts.PROMPT in body and cuts.PROMPT not in told:
            event[cuts.PROMPT] = body[cuts.PROMPT]
        for path, size in steps:
            if path in (cuts.USAGE, cuts.PROMPT):
                event |= {path: body[path]} if path in body else {}
                continue
            first, *names = parted(path)
            index = int(first) if first.isdigit() else -1
            if not 0 <= index < len(roots):
                raise _Differ
            choice = choices.setdefault(index, _begun_choice(index, is_text="text" in roots[index]))
            value = _at(roots[index], names)
            if names and value is not None:
                _put(choice, names, cursor.next(path, value, size))
            if index not in begun:
                # What the recording has and no event of it told: that was asked for in the harness's place.
                begun.add(index)
                for name in ("token_ids", "logprobs"):
                    if name in roots[index] and not any(one.startswith(f"{index}/{name}") for one in told):
                        choice[name] = roots[index][name]
        yield event | {"choices": list(choices.values())}


def _begun_choice(index: int, *, is_text: bool) -> dict[str, Any]:
    return {"index": index, **({} if is_text else {"delta": {}}), "finish_reason": None}


def _root(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice as the paths of its stream lead through it."""
    root = {name: choice[name] for name in ("finish_reason", "token_ids", "logprobs") if name in choice}
    if isinstance(root.get("logprobs"), Raw):
        root["logprobs"] = root["logprobs"].value()
    name, value = ("text", choice["text"]) if "text" in choice else ("delta", choice["message"])
    root[name] = value.value() if isinstance(value, Raw) else value
    return root


def _at(value: Any, names: Sequence[str]) -> Any:
    """What lies at a path; None where there is nothing."""
    for name in names:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _put(onto: dict[str, Any], names: Sequence[str], value: Any) -> None:
    """Lay a value into a choice at a path; a number in it is the index of an element of a list."""
    for place, name in enumerate(names[:-1]):
        if names[place + 1].isdigit():
            onto = _element(onto.setdefault(name, []), int(names[place + 1]))
        elif not name.isdigit():
            onto = onto.setdefault(name, {})
    onto[names[-1]] = value


def _element(held: list[dict[str, Any]], index: int) -> dict[str, Any]:
    found = next((one for one in held if one["index"] == index), None)
    if found is None:
        found = {"index": index}
        held.append(found)
    return found


# --- Anthropic ----------------------------------------------------------------------------------------------


def _anthropic(body: Body, found: Cuts) -> Iterator[dict[str, Any]]:
    content = body["content"]
    blocks = [Raw(content[slice(*place)]) for place in elements(content)] if isinstance(content, Raw) else []
    values = [block.value() for block in blocks]
    filled: Mapping[str, set[str]] = defaultdict(set)
    for path, size in (step for steps in found for step in steps):
        if size is not None:
            filled[path.partition("/")[0]].add(path.partition("/")[2])
    cursor = _Cursor()
    for steps in found:
        [(path, size)] = steps or [("", None)]
        first, *names = parted(path)
        if not first.isdigit():
            yield _of_message(first, body)
            continue
        index = int(first)
        if index >= len(blocks) or not isinstance(values[index], dict):
            raise _Differ
        if not names:
            yield _event(
                "content_block_start", index=index, content_block=_begun(values[index], filled[first])
            )
        elif names == [cuts.STOP]:
            yield _event(cuts.STOP, index=index)
        else:
            [name] = names
            part = cursor.next(path, _text(blocks[index], values[index], name), size)
            yield _event("content_block_delta", index=index, delta=_delta(name, part))


def _of_message(kind: str, body: Body) -> dict[str, Any]:
    usage = body.get("usage") or {}
    if kind == cuts.START:
        begun = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
        return _event(kind, message={**begun, "usage": {**usage, "output_tokens": 0}})
    if kind == cuts.DELTA:
        ended = {name: body.get(name) for name in ("stop_reason", "stop_sequence")}
        return _event(kind, delta=ended, usage={"output_tokens": usage.get("output_tokens", 0)})
    if kind in (cuts.END, cuts.PING):
        return _event(kind)
    raise _Differ


def _event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, **data}


def _begun(block: dict[str, Any], filled: set[str]) -> dict[str, Any]:
    """A block before its deltas."""
    kept = {name: value for name, value in block.items() if not (name == "citations" and name in filled)}
    return kept | {name: empty for name, empty in _EMPTY.items() if name in filled and name in block}


def _text(block: Raw, value: Mapping[str, Any], name: str) -> Any:
    """What the deltas of a block lay together: the arguments as the text that was sampled."""
    if name == "input" and not isinstance(value.get(name), str):
        places = members(block)
        if name not in places:
            raise _Differ
        return block[slice(*places[name])].decode("utf-8")
    return value.get(name)


def _delta(name: str, part: Any) -> dict[str, Any]:
    if name not in _DELTAS:
        raise _Differ
    kind, field = _DELTAS[name]
    if name == "citations":
        [part] = part or [None]
    return {"type": kind, field: part}
