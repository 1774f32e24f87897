"""A step of an ATIF trajectory <-> the chat messages that it stands for.

    source user, system      one message of that role
    source agent             an assistant message: text, reasoning, tool calls
    observation.results      after it: a tool message for each result that names a tool call of the step, or
                             that can be of no other; a user message for one that belongs to no call

ATIF states tool arguments as an object. In the message they are the JSON text of it, as clients send them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers import carried
from tracestore.importers.items import count, raw, taken
from tracestore.importers.usage import counted
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Usage

ROLES = {"agent": "assistant", "user": "user", "system": "system"}


@dataclass(frozen=True)
class Use:
    """A tool use of a step."""

    id: str | None
    name: str | None
    arguments: str | None
    extra: dict[str, Any]
    """What is left of it."""


@dataclass(frozen=True)
class Result:
    """A result of an observation."""

    content: Any
    """Text or parts; None where the file states none."""
    use: int | None
    """Place of the tool use among those of the step; None: of none of them."""
    is_inferred: bool
    """Whether the file leaves open which tool use it is of, and only one can be meant."""
    refs: tuple[dict[str, Any], ...]
    """References to sub-agents' trajectories."""
    extra: dict[str, Any]

    def message(self, uses: Sequence[Use]) -> dict[str, Any] | None:
        """The message that the model reads of it; None where it says nothing."""
        said = {} if self.content is None else {"content": self.content}
        if self.use is not None and (said or not self.is_inferred):
            return {"role": "tool", "tool_call_id": uses[self.use].id} | said
        return {"role": "user"} | said if said else None


@dataclass(frozen=True)
class Step:
    """A step, taken apart."""

    message: dict[str, Any]
    uses: tuple[Use, ...]
    results: tuple[Result, ...]
    rest: dict[str, Any] = field(default_factory=dict)
    """Fields that none of it stands for."""

    @property
    def observed(self) -> list[dict[str, Any]]:
        """The messages of its observation."""
        return [one for result in self.results if (one := result.message(self.uses)) is not None]


def step_of(value: dict[str, Any]) -> Step:
    """Take a step apart. Fields of an unexpected type stay in its rest."""
    rest = dict(value)
    source = taken(rest, "source", str) or ""
    message: dict[str, Any] = {"role": ROLES.get(source, source or "unknown")}
    content = taken(rest, "message", str, list)
    if content is not None:
        message["content"] = content
    if isinstance(rest.get("reasoning_content"), str):
        message["reasoning_content"] = rest.pop("reasoning_content")
    uses, odd_uses = _uses(rest)
    if uses:
        message["tool_calls"] = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.arguments}}
            for use in uses
        ]
    results, odd_results = _results(rest, uses)
    rest |= {"tool_calls": odd_uses} if odd_uses else {}
    rest |= {"observation": odd_results} if odd_results else {}
    return Step(message, uses, results, rest)


def _uses(rest: dict[str, Any]) -> tuple[tuple[Use, ...], list[Any]]:
    """(tool uses, those that are none)."""
    found, odd = [], []
    for value in taken(rest, "tool_calls", list) or ():
        if not isinstance(value, dict):
            odd.append(value)
            continue
        extra = dict(value)
        name, use_id = taken(extra, "function_name", str), taken(extra, "tool_call_id", str)
        arguments = extra.pop("arguments", None)
        text = arguments if isinstance(arguments, str) or arguments is None else _text(arguments)
        found.append(Use(use_id, name, text, extra))
    return tuple(found), odd


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:  # a number that Python would write otherwise
        return raw(value).decode("ascii")


def _results(rest: dict[str, Any], uses: Sequence[Use]) -> tuple[tuple[Result, ...], Any]:
    """(results, what of the observation is none)."""
    observation = taken(rest, "observation", dict)
    if observation is None:
        return (), None
    left = dict(observation)
    values = taken(left, "results", list) or []
    found = [_result(dict(value), uses, len(values)) for value in values if isinstance(value, dict)]
    odd = [value for value in values if not isinstance(value, dict)]
    return tuple(found), (left | {"results": odd} if odd else left)


def _result(value: dict[str, Any], uses: Sequence[Use], num_results: int) -> Result:
    source = value.get("source_call_id")
    places = [place for place, use in enumerate(uses) if use.id == source and source is not None]
    is_inferred = source is None and len(uses) == 1 == num_results
    use = 0 if is_inferred else places[0] if places else None
    if use is not None:
        value.pop("source_call_id", None)
    refs = taken(value, "subagent_trajectory_ref", list, dict) or []
    listed = refs if isinstance(refs, list) else [refs]
    odd = [ref for ref in listed if not isinstance(ref, dict)]
    if odd:
        value["subagent_trajectory_ref"] = odd
    return Result(
        content=taken(value, "content", str, list),
        use=use,
        is_inferred=is_inferred,
        refs=tuple(dict(ref) for ref in listed if isinstance(ref, dict)),
        extra=value,
    )


# --- Fields beside the messages ------------------------------------------------------------------------


def left_of(step: Step) -> dict[str, Any]:
    """What is left of a step and of its parts."""
    parts: dict[str, Sequence[Use | Result]] = {"tool_calls": step.uses, "results": step.results}
    extras = {name: [one.extra for one in listed] for name, listed in parts.items()}
    return step.rest | {name: listed for name, listed in extras.items() if any(listed)}


def own_part(rest: dict[str, Any]) -> dict[str, Any]:
    """Our writer's part of a record's `extra`, taken out of it."""
    extra = rest.get("extra")
    own = extra.get(carried.KEY) if isinstance(extra, dict) else None
    if not isinstance(extra, dict) or not isinstance(own, dict):
        return {}
    rest["extra"] = {name: one for name, one in extra.items() if name != carried.KEY}
    if not rest["extra"]:
        del rest["extra"]
    return own


def usage_of(metrics: dict[str, Any]) -> Usage | None:
    fields = {
        "prompt_tokens": count(metrics, "prompt_tokens"),
        "cached_tokens": count(metrics, "cached_tokens"),
        "completion_tokens": count(metrics, "completion_tokens"),
        "cost_usd": taken(metrics, "cost_usd", float),
    }
    if fields["cost_usd"] is not None:
        fields["cost_usd"] = float(fields["cost_usd"])
    return counted(**fields)


def token_ids_of(metrics: dict[str, Any], name: str) -> TokenIds | None:
    try:
        ids = TokenIds.of(metrics[name])
    except (KeyError, ValueError, OverflowError):
        return None
    del metrics[name]
    return ids


def sampled_of(metrics: dict[str, Any]) -> dict[str, Any]:
    """Token ids and logprobs of a completion; logprobs that do not fit the ids stay where they are."""
    ids = token_ids_of(metrics, "completion_token_ids")
    if ids is None:
        return {}
    values = metrics.get("logprobs")
    try:
        logprobs = Logprobs.of([one.value() if isinstance(one, Raw) else one for one in values or ()])
    except (TypeError, ValueError):
        return {"token_ids": ids}
    if values is None or len(logprobs) != len(ids):
        return {"token_ids": ids}
    del metrics["logprobs"]
    return {"token_ids": ids, "logprobs": logprobs}
