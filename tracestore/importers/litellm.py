"""A chat completion as LiteLLM dumps it -> its message, its usage, and what is left of it.

What its usage counts, and under which names: see `usage`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tracestore.importers import usage
from tracestore.importers.guard import as_list
from tracestore.wire.call import Usage


class Answer(NamedTuple):
    """A response taken apart."""

    message: dict[str, Any] | None
    finish_reason: str | None
    provider_id: str | None
    model: str | None
    usage: Usage | None
    rest: dict[str, Any]
    """Its fields without these."""


def answer(response: dict[str, Any]) -> Answer:
    """The first choice of a response; more choices stay in the rest."""
    rest = dict(response)
    choices = [dict(one) for one in as_list(rest.pop("choices", None)) if isinstance(one, dict)]
    first = choices[0] if choices else {}
    message, reason = first.pop("message", None), first.pop("finish_reason", None)
    if any(choices):
        rest["choices"] = choices
    provider_id, model = rest.pop("id", None), rest.pop("model", None)
    counted, rest_of_usage = usage.of(rest.pop("usage", None))
    if rest_of_usage:
        rest["usage"] = rest_of_usage
    return Answer(
        message if isinstance(message, dict) else None,
        reason if isinstance(reason, str) else None,
        provider_id if isinstance(provider_id, str) else None,
        model if isinstance(model, str) else None,
        counted,
        rest,
    )
