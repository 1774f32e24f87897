"""The events of a stream -> what each of them added to the answer, small enough to be kept beside it.

    {delta: {role: "assistant", content: ""}}   0/delta/role whole, 0/delta/content 0
    {delta: {content: "Ic"}}                    0/delta/content 2
    {delta: {content: "h"}}                     0/delta/content 1
    {delta: {}, finish_reason: "stop"}          0/finish_reason whole

A path leads to a value of the answer; the number says how much of it came: UTF-16 units of a text (a server
may cut an emoji in two), elements of a list, None for a value that came whole. With the answer, the cuts say
again what every event said (`replay.pieces`). They hold no text, so what is deleted or redacted stays so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from tracestore.importers.streams import LABELS, PLACE, Answer

Step = tuple[str, int | None]
"""Path, and how much of what lies there came."""
Cuts = list[list[Step]]
"""Of each event."""

KEPT_AS = "http_stream"
"""In the `meta` of a call."""
USAGE, PROMPT = "usage", "prompt_token_ids"
START, STOP, DELTA, END, PING = "message_start", "content_block_stop", "message_delta", "message_stop", "ping"
_BLOCK_TEXTS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "compaction_delta": "content",
    "input_json_delta": "partial_json",
}
"""Type of a delta -> its field."""
_BLANK = re.compile(rb"(?>\r\n|\n|\r){2}")
_DATA = re.compile(rb"(?:\A|[\r\n])data(?:[:\r\n]|\Z)")


def cuts_of(answer: Answer) -> Cuts | None:
    """What each event of a streamed answer added; None of no stream, or one whose events are kept."""
    if not answer.events:
        return None
    if answer.dialect == "anthropic_messages":
        return _anthropic(answer.events)
    return _chat(answer.events) if answer.dialect in ("openai_chat", "text") else None


def utf16(text: str) -> int:
    """UTF-16 units of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def joined(*names: object) -> str:
    """A path of names. In a name, ~ and / are written as in a JSON pointer (RFC 6901)."""
    return "/".join(str(name).replace("~", "~0").replace("/", "~1") for name in names)


def parted(path: str) -> list[str]:
    """The names of a path."""
    return [name.replace("~1", "/").replace("~0", "~") for name in path.split("/")]


# --- As JSON ------------------------------------------------------------------------------------------------


def told(found: Cuts | None, times: Sequence[int] | None) -> dict[str, Any] | None:
    """Cuts and times for the `meta` of a call; None where there is neither.

    Events that add to the same things follow each other, so paths are written once for all of them: runs of
    [paths, how much each event added], one number an event where there is one path. Times are ms, the first
    after the request, the others after the event before.
    """
    kept: dict[str, Any] = {}
    if found is not None:
        runs: list[tuple[list[str], list[Any]]] = []
        for steps in found:
            paths, sizes = [path for path, _ in steps], [size for _, size in steps]
            if not runs or runs[-1][0] != paths:
                runs.append((paths, []))
            runs[-1][1].append(sizes[0] if len(sizes) == 1 else sizes)
        kept["cuts"] = [list(run) for run in runs]
    if times is not None:
        kept["ms"] = [now - last for last, now in pairwise([0, *times])]
    return kept or None


def read(kept: Any) -> tuple[Cuts | None, list[int] | None]:
    """Cuts, and ms after the request, as `told` wrote them; None for what is not there, or not so written."""
    kept = kept if isinstance(kept, dict) else {}
    runs, ms = kept.get("cuts"), kept.get("ms")
    found: Cuts | None = None
    if isinstance(runs, list):
        found = []
        for run in runs:
            steps = _read_run(run)
            if steps is None:
                found = None
                break
            found += steps
    times: list[int] | None = None
    if isinstance(ms, list) and all(type(one) is int for one in ms):
        times = list(accumulate(ms))
    return found, times


def _read_run(run: Any) -> Cuts | None:
    if not (isinstance(run, list) and len(run) == 2 and all(isinstance(one, list) for one in run)):
        return None
    paths, events = run
    found: Cuts = []
    for sizes in events:
        listed = sizes if isinstance(sizes, list) else [sizes]
        are_sizes = all(one is None or (type(one) is int and one >= 0) for one in listed)
        if len(listed) != len(paths) or not are_sizes or not all(isinstance(path, str) for path in paths):
            return None
        found.append(list(zip(paths, listed, strict=True)))
    return found


# --- Times --------------------------------------------------------------------------------------------------


def times(chunks: Sequence[bytes], at: Sequence[int], *, since: int) -> list[int]:
    """When each event of a stream had come, in ms after the request; a last one without an end came last.

    Args:
        chunks: the body as it came, without a content coding.
        at: nanoseconds at which each chunk came.
        since: when the request was sent, in nanoseconds.
    """
    found: list[int] = []
    rest = b""
    for chunk, now in zip(chunks, at, strict=True):
        rest += chunk
        # A carriage return at the end may be half of a line end: it is looked at with what comes next.
        held = b"\r" if rest.endswith(b"\r") else b""
        *blocks, rest = _BLANK.split(rest.removesuffix(held))
        rest += held
        found += [max(0, now - since) // 10**6 for block in blocks if _DATA.search(block)]
    if _DATA.search(rest):
        found.append(max(0, at[-1] - since) // 10**6)
    return found


# --- Chat and text ------------------------------------------------------------------------------------------


def _chat(events: Sequence[dict[str, Any]]) -> Cuts:
    places: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    """Path of a list -> (index, id) of its elements that say where they belong."""
    counted = [number for number, event in enumerate(events) if event.get("usage") is not None]
    found: Cuts = []
    for number, event in enumerate(events):
        steps: list[Step] = []
        if event.get("prompt_token_ids") is not None:
            steps.append((PROMPT, None))
        for choice in event.get("choices") or []:
            if isinstance(choice, dict):
                steps += _choice(choice, places)
        if counted[-1:] == [number]:  # what was counted before it is no part of the answer
            steps.append((USAGE, None))
        found.append(steps)
    return found


def _choice(choice: dict[str, Any], places: dict[str, list[tuple[int, Any]]]) -> list[Step]:
    index = choice.get("index", 0)
    steps: list[Step] = []
    for name in ("delta", "text", "logprobs", "token_ids"):
        if choice.get(name) is not None:
            steps += _value(joined(index, name), name, choice[name], places)
    if choice.get("finish_reason") is not None:
        steps.append((joined(index, "finish_reason"), None))
    return steps or [(joined(index), None)]


def _value(path: str, name: str, value: Any, places: dict[str, list[tuple[int, Any]]]) -> Iterator[Step]:
    """What a value of a delta adds, in the order in which it says it."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _value(f"{path}/{joined(key)}", key, one, places)
    elif isinstance(value, list):
        plain = 0
        for one in value:
            place = one.get(PLACE) if isinstance(one, dict) else None
            if not isinstance(place, int):
                plain += 1
                continue
            at = _placed(places[path], place, one.get("id"))
            for key, inner in one.items():
                if key != PLACE:
                    yield from _value(f"{path}/{at}/{joined(key)}", key, inner, places)
        if plain:
            yield path, plain
    elif isinstance(value, str) and name not in LABELS:
        yield path, utf16(value)
    elif value is not None:
        yield path, None


def _placed(held: list[tuple[int, Any]], place: int, id_: Any) -> int:
    """The element that a delta goes on with, as `streams` finds it, or a new one."""
    newest = next((at for at in reversed(range(len(held))) if held[at][0] == place), None)
    if newest is not None and not (held[newest][1] and id_ and held[newest][1] != id_):
        return newest
    held.append((place, id_))
    return len(held) - 1


# --- Anthropic ----------------------------------------------------------------------------------------------


def _anthropic(events: Sequence[dict[str, Any]]) -> Cuts | None:
    found: Cuts = []
    for event in events:
        kind, index, delta = event.get("type"), event.get("index"), event.get("delta")
        if kind == "content_block_start":
            found.append([(joined(index), None)])
        elif kind == STOP:
            found.append([(joined(index, STOP), None)])
        elif kind == "content_block_delta" and isinstance(delta, dict):
            step = _block_delta(index, delta)
            if step is None:
                return None
            found.append([step])
        elif kind in (START, DELTA, END, PING):
            found.append([(kind, None)])
        else:
            return None
    return found


def _block_delta(index: Any, delta: dict[str, Any]) -> Step | None:
    kind = str(delta.get("type"))
    name = _BLOCK_TEXTS.get(kind)
    if kind == "citations_delta":
        return joined(index, "citations"), 1
    if name is None or not isinstance(delta.get(name), str):
        return None
    return joined(index, "input" if name == "partial_json" else name), utf16(delta[name])
