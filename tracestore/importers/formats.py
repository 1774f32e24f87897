"""The formats that can be read, and how a source's beginning tells which it is in."""

from __future__ import annotations

import difflib
import itertools
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points

from tracestore.errors import TracestoreError
from tracestore.importers import (
    adapt,
    adk,
    agent_lightning,
    atif,
    atof,
    atropos,
    cassettes,
    chat,
    claude_code,
    claude_sdk,
    cline,
    codex,
    events,
    fast_rlm,
    gemini_cli,
    gemini_responses,
    inspect_ai,
    langfuse,
    langsmith,
    lats,
    mini_swe_agent,
    moatless,
    nemo_gym,
    nemo_rl,
    opencode,
    openevolve,
    openhands,
    otlp,
    phoenix,
    pi,
    provider_answers,
    reflexion,
    rllm,
    rlm,
    swe_agent,
    tree_of_thoughts,
    verifiers,
)
from tracestore.importers.documents import records
from tracestore.importers.format import HEAD_RECORDS, Format, Head
from tracestore.importers.items import Item
from tracestore.importers.notes import Notes
from tracestore.importers.sources import DAMAGED, Source

ENTRY_POINTS = "tracestore.importers"

_OWN = (
    events.FORMAT,
    agent_lightning.FORMAT,
    atif.FORMAT,
    atof.FORMAT,
    phoenix.FORMAT,
    langfuse.FORMAT,
    langsmith.FORMAT,
    otlp.FORMAT,
    nemo_gym.FORMAT,
    atropos.FORMAT,
    inspect_ai.FORMAT,
    codex.FORMAT,
    claude_code.FORMAT,
    claude_sdk.FORMAT,
    nemo_rl.FORMAT,
    pi.FORMAT,
    openhands.FORMAT,
    verifiers.FORMAT,
    opencode.FORMAT,
    swe_agent.FORMAT,
    mini_swe_agent.FORMAT,
    adk.FORMAT,
    gemini_responses.FORMAT,
    rllm.FORMAT,
    gemini_cli.FORMAT,
    fast_rlm.FORMAT,
    cline.FORMAT,
    rlm.FORMAT,
    moatless.FORMAT,
    cassettes.FORMAT,
    provider_answers.FORMAT,
    tree_of_thoughts.FORMAT,
    adapt.FORMAT,
    chat.FORMAT,
    openevolve.FORMAT,
    lats.FORMAT,
    reflexion.FORMAT,
)
"""In the order in which a source is tried: the most telling mark first."""


class UnknownFormat(TracestoreError):
    """There is no such format."""

    exit_code = 2


@cache
def formats() -> Mapping[str, Format]:
    """Every format by name: those here, then those of installed packages."""
    found = {one.name: one for one in _OWN}
    for point in entry_points(group=ENTRY_POINTS):
        one = point.load()
        if not isinstance(one, Format):
            raise UnknownFormat(
                entry_point=point.value, hint="it must name a tracestore.importers.format.Format"
            )
        found.setdefault(one.name, one)
    return found


def named(name: str) -> Format:
    """The format of a name.

    Raises:
        UnknownFormat: there is none.
    """
    if name not in formats():
        near = difflib.get_close_matches(name, formats(), n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnknownFormat(format=name, hint=f"{hint}`tracestore import --list-formats` lists them")
    return formats()[name]


def recognised(source: Source) -> Format | None:
    """The format of a source by what it holds; None where no format knows it."""
    head = head_of(source)
    return next((one for one in formats().values() if one.recognises(head)), None)


def head_of(source: Source) -> Head:
    """How a source begins.

    Raises:
        Unreadable: it may not be read.
    """
    data = source.head()
    if data[:2] == b"PK":
        with source.open() as stream:
            try:
                return Head(data, (), tuple(zipfile.ZipFile(stream).namelist()))
            except DAMAGED:
                return Head(data, ())
    if data.lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1] not in (b"{", b"["):
        return Head(data, ())
    # What cannot be read is noted when the source is read for its events.
    first = itertools.islice(records(source, notes=Notes()), HEAD_RECORDS)
    return Head(data, tuple(record.value for record in first))


def read(sources: Iterable[Source], *, format: str, notes: Notes) -> Iterator[Item]:  # noqa: A002
    """The events of all sources, format by format.

    Args:
        format: a name, or "auto": each source is read in the format that recognises it, and one that none
            does is noted as not understood.

    Raises:
        UnknownFormat: no format has this name.
    """
    by_format: dict[str, list[Source]] = {}
    for source in sources:
        one = named(format) if format != "auto" else _of(source, notes)
        if one is not None:
            notes.files[one.name] += 1
            by_format.setdefault(one.name, []).append(source)
    for name in formats():
        if name in by_format:
            yield from formats()[name].read(by_format[name], notes=notes)


def _of(source: Source, notes: Notes) -> Format | None:
    try:
        one = recognised(source)
    except TracestoreError as error:
        notes.refuse(source.name, error.values.get("problem") or error)
        return None
    if one is not None:
        return one
    head = source.head()
    if not source.is_named:
        kind = "file of no known format" if head.strip() else "empty file"
        notes.leftover(kind, head.decode("utf-8", "backslashreplace"), at=source.name)
    elif head.strip():
        notes.refuse(
            source.name, "no format recognises it; where you know which it is, name it with --format"
        )
    else:
        notes.refuse(source.name, "empty")
    return None
