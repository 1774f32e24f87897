"""A model that says what a test tells it to say, and a client that keeps what it is given."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from sample_traces.sampler import Sampled, Script
from tracestore.client import Client
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent


class Scripted:
    """Characters are tokens, 0 is the stop token; the answers are given, to whoever asks or by speaker."""

    model_name = "scripted"
    policy = {"name": "scripted", "version": 0}  # noqa: RUF012

    def __init__(self, *answers: str, script: Script | None = None) -> None:
        self.stop = 0
        self._answers: Iterator[str] = iter(answers)
        self._lines = {who: iter(lines) for who, lines in (script or {}).items()}

    def render(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        text = "\n".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>" for m in messages)
        return self.encode(text + "\n<|im_start|>assistant\n")

    def encode(self, text: str) -> list[int]:
        return [token for part in text.split("<|im_end|>") for token in (0, *map(ord, part))][1:]

    def sample(self, prompt: Sequence[int], *, n: int = 1, speaker: str = "", **given: Any) -> list[Sampled]:
        lines = self._lines.get(speaker, self._answers)
        return [self._said(next(lines)) for _ in range(n)]

    def _said(self, text: str) -> Sampled:
        """A text that ends with "..." was cut at the token limit."""
        is_cut = text.endswith("...")
        ids = (*map(ord, text), *(() if is_cut else (self.stop,)))
        return Sampled(ids, (-0.5,) * len(ids), text, "length" if is_cut else "stop")


class Repeating(Scripted):
    """Says the same, whoever asks and however often."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._answers = itertools.repeat(text)


class Kept(Client):
    """A client that posts nothing and keeps the events and the payloads, by their sha256."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.events: list[AnyEvent] = []
        self.payloads: dict[str, bytes] = {}

    def put_blob(self, payload: bytes) -> str:
        name = sha256(payload).hexdigest()
        self.payloads[name] = payload
        return name

    def event(self, kind: str, id: str | None = None, **fields: Any) -> str:  # noqa: A002
        name = id or f"{kind}-{len(self.events)}"
        known = {field: value for field, value in fields.items() if value is not None}
        self.events.append(decode_event(json.dumps({"v": 1, "kind": kind, "id": name, **known}).encode()))
        return name


def kept() -> Iterator[Kept]:
    """For a fixture of a test file."""
    with Kept() as client:
        yield client
