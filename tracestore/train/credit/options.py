"""What a rule can be told: `rao:lambda=0.4,depth_weights=no` -> a rule's name and its options, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tracestore.errors import TracestoreError


class BadOption(TracestoreError):
    """A credit rule cannot be told this."""

    exit_code = 2


class Options(BaseModel):
    """The options of a rule, with the defaults of its paper; a rule without options has this itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def told(self) -> dict[str, Any]:
        """Every option by the name that a user writes, defaults included."""
        return self.model_dump(by_alias=True)


def split(spelled: str) -> tuple[str, dict[str, str]]:
    """`rao:lambda=0.4` -> ("rao", {"lambda": "0.4"}).

    Raises:
        BadOption: something after the colon is no NAME=VALUE, or a name stands twice.
    """
    name, colon, rest = spelled.partition(":")
    given: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not equals or not option or option in given:
            raise BadOption(rule=name, option=part, hint="write RULE:NAME=VALUE,NAME=VALUE, each name once")
        given[option] = value
    return name, given


def read(kind: type[Options], given: Mapping[str, Any], *, rule: str) -> Options:
    """Options of a rule. Raises BadOption, naming those there are."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'options'}: {one['msg']}" for one in error.errors()
        )
        raise BadOption(rule=rule, problem=problems, hint=_known(kind)) from error


def _known(kind: type[Options]) -> str:
    """The options there are, as a sentence."""
    if not kind.model_fields:
        return "this rule has no options"
    named = [
        f"{info.alias or name}{'' if info.is_required() else f'={info.default}'}"
        for name, info in kind.model_fields.items()
    ]
    return f"options: {', '.join(named)}"
