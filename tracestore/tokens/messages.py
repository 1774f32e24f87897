"""Posted messages of any dialect -> the messages that chat templates take.

    {role, content, reasoning_content?, tool_calls?, tool_call_id?, name?}

The names are those of transformers' chat templates: tool calls as `{type, id, function: {name, arguments}}`
with the arguments parsed where they are a JSON object (templates write them with `tojson`), each tool result
a message of role `tool`, reasoning apart from the content. What a template message cannot say is an error
(`Unrenderable`), or is named in `left_out`; nothing disappears unsaid.

- Blocks of text become one text: those of an answer that stand side by side were one stream and are joined
  as they are (a server cuts them at citations), all others by a line break, as vLLM does.
- A Responses answer is a list of items; those of one answer become one message again.
- `developer` is `system`, `function` is `tool`, `model` is `assistant`: templates know one name alone.
- Formats that keep messages in a spelling of their own are read too: Gemini and ADK (`parts`), Inspect (a
  tool call whose `function` is its name), pi (`toolCall`, roles `toolResult`, `bashExecution`, summaries),
  OpenCode (a `tool` part with its result).
- A tool that the provider runs inside an answer (web search) has its results in no transcript: `hosted_tool`
  is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tracestore.graph.messages import Message, role_of_value
from tracestore.graph.model import CompletionKey
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect

TemplateMessage: TypeAlias = "dict[str, Any]"
TemplateTool: TypeAlias = "dict[str, Any]"
Atom: TypeAlias = "tuple[Literal['reasoning', 'text', 'call', 'item'], Any]"
"""A part of a message; `item` marks where one item of a Responses answer ends."""

GUARD = "\ufdd0"
"""A noncharacter, put into text that spells a control token; see `Reader`."""

_ROLES = {
    "developer": "system",
    "function": "tool",
    "model": "assistant",
    "toolResult": "tool",
    "bashExecution": "user",
    "compactionSummary": "user",
    "branchSummary": "user",
}
_CONTENT = ("content", "parts", "refusal", "text", "summary")
"""Where the content of a message stands; the first of them that is not null."""
_TEXT = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "computer_screenshot", "audio", "input_audio", "video"}
    | {"video_url", "input_video", "document", "file", "input_file"}
)
_GEMINI_MEDIA = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
_HOSTED = re.compile(r"^(server|mcp)_tool_use$|^\w+_tool_result$")
_ARGUMENTS = ("arguments", "input", "action", "operation")
_UNSAYABLE = re.compile(f"[\ud800-\udfff{GUARD}]")
_RANK = {"reasoning": 0, "text": 1, "call": 2}
_CACHED_MESSAGES = 65_536


class Written(dict[str, Any]):
    """A JSON object that templates write again with every context: `template` keeps what it has written."""

    __slots__ = ("texts",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.texts: dict[object, str] = {}


class Unrenderable(Exception):
    """A context or an answer has no place in a chat template."""

    def __init__(self, why: str, detail: str | None = None) -> None:
        self.why = why
        """A label that is counted."""
        self.detail = detail
        super().__init__(why if detail is None else f"{why}: {detail}")


@dataclass(frozen=True, slots=True)
class Said:
    """One message, or one item of an answer."""

    message: TemplateMessage
    """As templates take it; never changed."""
    atoms: tuple[Atom, ...]
    """Its parts in their order."""
    joins: bool = False
    """Whether it is an item that makes one message with the items of the same answer beside it."""
    left_out: frozenset[str] = frozenset()
    """What was there and is not in `message`: hidden_reasoning, hosted_tool, part_order,
    unpaired_surrogate."""

    @property
    def role(self) -> str:
        role: str = self.message["role"]
        return role


class Reader:
    """Reads posted messages; remembers those it has read, since contexts repeat them.

    Text that spells a control token (a tool result with `<|im_end|>` in it) is no control token: templates
    would make one of it, so a noncharacter is put behind its first letter, which `Tokenizer` takes out again.
    Surrogates without a partner, which no tokenizer takes, become U+FFFD.
    """

    def __init__(self, controls: re.Pattern[str] | None) -> None:
        self._controls = controls
        self._known: dict[tuple[Raw, str | None, Dialect], tuple[Said, ...]] = {}
        self._tools: dict[Raw, tuple[list[TemplateTool], frozenset[str]]] = {}

    def read(self, message: Message, dialect: Dialect) -> tuple[Said, ...]:
        """What one posted message says, in order.

        Raises:
            Unrenderable: media, or a part that is none of the known ones.
        """
        key = (message.raw, message.role, dialect)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _CACHED_MESSAGES:
                self._known.clear()
            value = message.raw.value()
            known = self._known[key] = tuple(_Reading(self._controls, dialect).of(value, message.role))
        return known

    def tools(self, tools: Raw) -> tuple[list[TemplateTool], frozenset[str]]:
        """Offered tools as templates take them, and what is left out: tools that are no functions."""
        if tools not in self._tools:
            reading = _Reading(self._controls, "openai_chat")
            value = tools.value()
            functions = [_function(tool) for tool in value] if isinstance(value, list) else [None]
            if None in functions:
                reading.left_out.add("tools")
            known = [Written(reading.plain(one)) for one in functions if one is not None]
            plain: list[TemplateTool] = [Written({"type": "function", "function": one}) for one in known]
            self._tools[tools] = plain, frozenset(reading.left_out)
        return self._tools[tools]


def conversation(entries: Sequence[tuple[Said, CompletionKey | None]]) -> list[TemplateMessage]:
    """What was said as template messages: items of one answer joined, tool results named after their tools.

    Args:
        entries: each message and its author; items of different authors stay apart.
    """
    messages: list[TemplateMessage] = []
    names: dict[str, str] = {}
    at = 0
    while at < len(entries):
        said, author = entries[at]
        end = at + 1
        while said.joins and end < len(entries) and entries[end][0].joins and entries[end][1] == author:
            end += 1
        message = said.message if end == at + 1 else joined([one for one, _ in entries[at:end]]).message
        for call in message.get("tool_calls", ()):
            names[call.get("id", "")] = call["function"]["name"]
        name = names.get(message.get("tool_call_id", "")) if message["role"] == "tool" else None
        messages.append(message if name is None or "name" in message else {**message, "name": name})
        at = end
    return messages


def joined(items: Sequence[Said]) -> Said:
    """The items of one answer as one message."""
    atoms: list[Atom] = []
    for item in items:
        atoms += [*item.atoms, ("item", None)]
    left_out = frozenset().union(*(item.left_out for item in items))
    return _assembled(items[0].role, atoms, left_out=left_out, joins=True)


def _assembled(
    role: str,
    atoms: Sequence[Atom],
    *,
    left_out: frozenset[str] = frozenset(),
    joins: bool = False,
    **more: str | None,
) -> Said:
    text, reasoning, calls = "", [], []
    before: str | None = None
    rank = 0
    for kind, value in atoms:
        if kind == "text" and value:
            streamed = not text or (role == "assistant" and before == "text")
            text += value if streamed else f"\n{value}"
        elif kind == "reasoning" and value:
            reasoning.append(value)
        elif kind == "call":
            calls.append(value)
        if kind != "item":
            left_out = left_out | {"part_order"} if _RANK[kind] < rank else left_out
            rank = max(rank, _RANK[kind])
        before = kind
    message: TemplateMessage = {"role": role, "content": text}
    if reasoning:
        # transformers gives both names to the templates: those of gpt-oss read the second.
        message["reasoning_content"] = message["thinking"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    message.update({name: value for name, value in more.items() if value is not None})
    return Said(message=message, atoms=tuple(atoms), joins=joins, left_out=left_out)


class _Reading:
    """One posted message."""

    def __init__(self, controls: re.Pattern[str] | None, dialect: Dialect) -> None:
        self._controls = controls
        self._dialect = dialect
        self.left_out: set[str] = set()

    def of(self, value: Any, role: str | None) -> Iterator[Said]:
        stated = role_of_value(value, default=role) or "user"
        role = _ROLES.get(stated, stated)
        if not isinstance(value, dict):
            yield from self._blocks(role, value)
            return
        kind = value.get("type")
        if isinstance(kind, str) and "role" not in value:
            yield self._item(kind, value, role)
            return
        self._refuse_media(value)
        first: list[Atom] = [("reasoning", one) for one in self._reasoning(value)]
        last: list[Atom] = [("call", self._chat_call(call)) for call in _chat_calls(value)]
        content = next((value[name] for name in _CONTENT if value.get(name) is not None), None)
        if stated == "bashExecution":
            # In pi's words to the model: what its user ran without asking it.
            content = f"Ran `{value.get('command')}`\n```\n{value.get('output')}\n```"
        if role == "tool":
            ids = value.get("tool_call_ids") or (None,)
            call_id = value.get("tool_call_id", value.get("toolCallId", ids[0]))
            yield self._result(call_id, content, name=value.get("name", value.get("toolName")))
        elif content is None and not (first or last or "content" in value):
            raise Unrenderable("unknown_part", "a message without content")
        else:
            yield from self._blocks(role, content, first=first, last=last)

    def plain(self, value: Any) -> Any:
        """A value with every text in it made safe."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(key): self.plain(item) for key, item in value.items()}
        return [self.plain(item) for item in value] if isinstance(value, list) else value

    def _text(self, value: Any) -> str:
        if value is None:
            return ""
        if not isinstance(value, str):
            raise Unrenderable("unknown_part", f"{type(value).__name__} where text should be")
        if _UNSAYABLE.search(value):
            self.left_out.add("unpaired_surrogate")
            value = _UNSAYABLE.sub("\ufffd", value)
        text: str = value
        if self._controls is None:
            return text
        return self._controls.sub(lambda found: f"{found[0][0]}{GUARD}{found[0][1:]}", text)

    def _said(self, role: str, atoms: Sequence[Atom], **more: str | None) -> Said:
        joins = self._dialect == "openai_responses" and role == "assistant"
        return _assembled(role, atoms, joins=joins, left_out=frozenset(self.left_out), **more)

    def _blocks(
        self, role: str, content: Any, *, first: Sequence[Atom] = (), last: Sequence[Atom] = ()
    ) -> Iterator[Said]:
        """A message of content blocks; results of tools in it become messages of their own.

        A user sends results where they stand. Those inside an answer came after all of it.
        """
        atoms: list[Atom] = list(first)
        behind: list[Said] = []
        said_any = False
        for block in content if isinstance(content, list) else [content]:
            result = self._result_in(block)
            if result is None or block.get("type") == "tool":
                atoms += self._block(block)
            if result is not None and role == "assistant":
                behind.append(result)
            elif result is not None:
                if atoms:
                    yield self._said(role, atoms)
                yield result
                atoms, said_any = [], True
        atoms += last
        if atoms or not said_any:
            yield self._said(role, atoms)
        yield from behind

    def _result_in(self, block: Any) -> Said | None:
        """The result of a tool that a block holds."""
        if not isinstance(block, dict):
            return None
        if block.get("type") == "tool_result":
            return self._result(block.get("tool_use_id"), block.get("content"))
        answered = block.get("functionResponse", block.get("function_response"))
        if isinstance(answered, dict):
            return self._result(answered.get("id"), answered.get("response"), name=answered.get("name"))
        state = block.get("state") if block.get("type") == "tool" else None
        if isinstance(state, dict) and ("output" in state or "error" in state):
            return self._result(block.get("callID"), state.get("output", state.get("error")))
        return None

    def _block(self, block: Any) -> Iterator[Atom]:
        if not isinstance(block, dict):
            yield "text", self._text(block)
            return
        kind = block.get("type")
        if kind in _TEXT:
            yield "text", self._text(block.get("text"))
        elif kind == "refusal":
            yield "text", self._text(block.get("refusal"))
        elif kind in ("thinking", "reasoning"):
            yield "reasoning", self._text(block.get("thinking", block.get("text")))
        elif kind == "redacted_thinking":
            self.left_out.add("hidden_reasoning")
        elif kind in ("tool_use", "toolCall"):
            arguments = block.get("input", block.get("arguments"))
            yield "call", self._call(block.get("id"), block.get("name"), arguments)
        elif kind == "tool" and isinstance(block.get("state"), dict):
            yield "call", self._call(block.get("callID"), block.get("tool"), block["state"].get("input"))
        elif isinstance(kind, str) and _HOSTED.search(kind):
            self.left_out.add("hosted_tool")
        elif kind is None:
            yield from self._part(block)
        else:
            raise Unrenderable("media" if kind in _MEDIA else "unknown_part", str(kind))

    def _part(self, part: Mapping[str, Any]) -> Iterator[Atom]:
        """A part of a Gemini message, which is known by its only key."""
        called = part.get("functionCall", part.get("function_call"))
        if isinstance(part.get("text"), str):
            yield ("reasoning" if part.get("thought") is True else "text"), self._text(part["text"])
        elif isinstance(called, dict):
            yield "call", self._call(called.get("id"), called.get("name"), called.get("args"))
        elif not _GEMINI_MEDIA.isdisjoint(part):
            raise Unrenderable("media", "a part with data")
        else:
            raise Unrenderable("unknown_part", f"a part with {', '.join(sorted(part)[:3]) or 'nothing'}")

    def _item(self, kind: str, value: Mapping[str, Any], role: str) -> Said:
        """An item of the Responses API that states no role."""
        if kind == "reasoning":
            return self._said("assistant", [("reasoning", one) for one in self._reasoning_item(value)])
        if kind.endswith("_output"):
            return self._result(value.get("call_id"), value.get("output"))
        if kind.endswith("_call") and isinstance(value.get("call_id"), str):
            arguments = next((value[name] for name in _ARGUMENTS if name in value), None)
            name = value.get("name", kind.removesuffix("_call"))
            return self._said("assistant", [("call", self._call(value["call_id"], name, arguments))])
        if kind.endswith("_call"):
            self.left_out.add("hosted_tool")
            return self._said("assistant", [])
        return self._said(role, list(self._block(value)))

    def _result(self, call_id: Any, content: Any, *, name: Any = None) -> Said:
        if _is_data(content):
            content = json.dumps(content, ensure_ascii=False)
        atoms = [
            atom
            for block in (content if isinstance(content, list) else [content])
            for atom in self._block(block)
        ]
        return self._said(
            "tool",
            atoms,
            tool_call_id=call_id if isinstance(call_id, str) else None,
            name=self._text(name) if isinstance(name, str) else None,
        )

    def _reasoning(self, message: Mapping[str, Any]) -> Iterator[str]:
        """The reasoning that stands beside the content of a chat message, under any of its names."""
        for name in ("reasoning_content", "reasoning"):
            if isinstance(message.get(name), str):
                yield self._text(message[name])
                return
        blocks = message.get("thinking_blocks")
        for block in blocks if isinstance(blocks, list) else ():
            yield from (text for kind, text in self._block(block) if kind == "reasoning")

    def _reasoning_item(self, item: Mapping[str, Any]) -> Iterator[str]:
        """The reasoning itself where the item has it, else its summary."""
        parts = item.get("content") or item.get("summary") or ()
        if not parts and item.get("encrypted_content") is not None:
            self.left_out.add("hidden_reasoning")
        for part in parts if isinstance(parts, (list, tuple)) else [parts]:
            yield from (text for _, text in self._block(part))

    def _chat_call(self, call: Any) -> dict[str, Any]:
        body = call.get("function", call.get("custom")) if isinstance(call, dict) else None
        if isinstance(body, str):
            return self._call(call.get("id"), body, call.get("arguments"))
        if not isinstance(body, dict):
            raise Unrenderable("unknown_part", "a tool call without a function")
        return self._call(call.get("id"), body.get("name"), body.get("arguments", body.get("input")))

    def _call(self, call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
        if isinstance(arguments, str):
            arguments = _parsed(arguments)
        known = {"id": call_id} if isinstance(call_id, str) else {}
        plain = self.plain({} if arguments is None else arguments)
        function = {
            "name": self._text(name),
            "arguments": Written(plain) if isinstance(plain, dict) else plain,
        }
        return {"type": "function", **known, "function": function}

    def _refuse_media(self, message: Mapping[str, Any]) -> None:
        found = next((name for name in ("audio", "images", "image", "videos") if message.get(name)), None)
        if found is not None:
            raise Unrenderable("media", found)


def _chat_calls(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        return calls
    old = message.get("function_call")
    return [{"function": old}] if isinstance(old, dict) else []


def _is_data(content: Any) -> bool:
    """Whether the result of a tool is JSON of its own, not content blocks."""
    if isinstance(content, list):
        return any(isinstance(block, dict) and "type" not in block for block in content)
    return isinstance(content, dict) and content.get("type") not in _MEDIA


def _parsed(arguments: str) -> Any:
    """The object that the text of arguments spells; the text itself where it spells none."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _function(tool: Any) -> dict[str, Any] | None:
    """A tool as the function it is, from the spellings of the three APIs; None for what is no function."""
    if not isinstance(tool, dict):
        return None
    if isinstance(tool.get("function"), dict):
        function: dict[str, Any] = tool["function"]
        return function
    if "name" not in tool or tool.get("type", "function") not in ("function", "custom"):
        return None
    parameters = tool.get("parameters", tool.get("input_schema"))
    known = {"name": tool["name"], "description": tool.get("description"), "parameters": parameters}
    return {name: value for name, value in known.items() if value is not None}
