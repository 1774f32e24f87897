"""Messages -> text: a Jinja chat template, run as transformers runs it.

The environment is that of `apply_chat_template` (transformers 5): immutable sandbox, trimmed blocks, loop
controls, `{% generation %}`, `tojson` that escapes nothing, `raise_exception`. It is made here because
importing transformers loads torch where it is installed, and because its own call copies every message of
every context. Two things differ on purpose: there is no clock (`strftime_now` tells when the episode
began), so that a text is a function of what was recorded; and documents are never given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tracestore.errors import TracestoreError
from tracestore.tokens.messages import TemplateMessage, TemplateTool, Unrenderable, Written

# What foreign code can run into, beside what it refuses on purpose.
_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class BadTemplate(TracestoreError):
    """The chat template is no Jinja template."""

    exit_code = 2


class _Generation(Extension):
    """`{% generation %}` marks what an assistant says; here it is only passed through."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Fields of a message are looked up at once: the sandbox asks for an attribute first, and a context of
    hundreds of messages asks a hundred thousand times for one that no dict has."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict) and not hasattr(dict, attribute):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


class Template:
    """A compiled chat template."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        """
        Args:
            special_tokens: `bos_token`, `eos_token`, ... as the template may name them.

        Raises:
            BadTemplate: it does not compile.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._compiled = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise BadTemplate(line=error.lineno, problem=error.message) from error

    def text(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[TemplateTool] | None,
        generation: bool,
        now_ns: int | None,
    ) -> str:
        """What the template writes.

        Args:
            generation: with the beginning of an answer at the end.
            now_ns: UTC nanoseconds for templates that ask for the date; None: unknown.

        Raises:
            Unrenderable: template_refused.
        """
        try:
            return self._compiled.render(
                messages=list(messages),
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=generation,
                strftime_now=_clock(now_ns),
                **self._special_tokens,
            )
        except _FAULTS as error:
            raise Unrenderable("template_refused", str(error).partition("\n")[0][:200]) from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    options: dict[str, Any] = {
        "ensure_ascii": ensure_ascii,
        "indent": indent,
        "separators": separators,
        "sort_keys": sort_keys,
    }
    if not isinstance(value, Written):
        return json.dumps(value, **options)
    key = str(options)
    if key not in value.texts:
        value.texts[key] = json.dumps(value, **options)
    return value.texts[key]


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _clock(now_ns: int | None) -> Any:
    def strftime_now(form: str) -> str:
        if now_ns is None:
            raise TemplateError("the template asks for the date, and the episode has no time")
        return datetime.fromtimestamp(now_ns // 10**9, tz=UTC).strftime(form)

    return strftime_now
