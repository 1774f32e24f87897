"""A conversation and the token ids the model reads for it, extended but never tokenised twice.

    next prompt ids = prompt ids ++ sampled ids ++ ids of the template around the new messages

Only the first prompt goes through the chat template whole. Sampled text is never encoded: the ids that were
sampled are the ids of the next prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sample_traces.sampler import Sampled, Sampler

Message = dict[str, Any]


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str, tool_calls: Sequence[dict[str, Any]] = ()) -> Message:
    calls = {"tool_calls": list(tool_calls)} if tool_calls else {}
    return {"role": "assistant", "content": content, **calls}


def tool(content: str, tool_call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": tool_call_id, "content": content}


def tool_use(place: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool use of an assistant message, by its place there."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"use_{place}", "type": "function", "function": function}


def used_tool(use: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a tool use."""
    return use["function"]["name"], json.loads(use["function"]["arguments"])


@dataclass
class Chat:
    """What one agent has in its context."""

    sampler: Sampler
    messages: list[Message] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Ids of the messages, up to where the assistant speaks next."""
    _answered: tuple[int, list[int]] = (0, [])
    """Messages and ids up to the last answer."""

    def begin(self, messages: Sequence[Message]) -> None:
        """A new context, rendered whole."""
        self.messages = list(messages)
        self.ids = self.sampler.render(self.messages)

    def answered(self, sampled: Sampled, message: Message) -> None:
        """The assistant said this."""
        self.messages.append(message)
        self.ids = [*self.ids, *sampled.ids]
        if sampled.finish_reason == "length":
            # The template closes a message that the model was cut off in.
            self.ids.append(self.sampler.stop)

    def add(self, *messages: Message) -> None:
        """Messages follow, then it is the assistant's turn."""
        self._answered = (len(self.messages), self.ids)
        text = "".join(f"\n<|im_start|>{m['role']}\n{m['content']}<|im_end|>" for m in messages)
        self.messages += messages
        self.ids = [*self.ids, *self.sampler.encode(text + "\n<|im_start|>assistant\n")]

    def undo_add(self) -> None:
        """Take back what was added since the last answer."""
        num_messages, self.ids = self._answered
        del self.messages[num_messages:]
