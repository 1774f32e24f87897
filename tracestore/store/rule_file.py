"""JSON that a person wrote -> checked values, or an error that says where it is wrong."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tracestore.errors import TracestoreError

M = TypeVar("M", bound=BaseModel)


def parsed(text: str | bytes, *, wrong: type[TracestoreError], hint: str) -> Any:
    """The value of a JSON text.

    Raises:
        wrong: it is none, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(reason=str(error), hint=hint) from None


def rules_of(values: Any, model: type[M], *, wrong: type[TracestoreError], hint: str) -> tuple[M, ...]:
    """Rules of a parsed array.

    Raises:
        wrong: it is no array, or one of them cannot be used: `rule` is its place and field.
    """
    if not isinstance(values, list):
        raise wrong(hint=hint)
    return tuple(_rule(value, place, model, wrong, hint) for place, value in enumerate(values))


def _rule(value: Any, place: int, model: type[M], wrong: type[TracestoreError], hint: str) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (place, *first["loc"])))
        raise wrong(rule=where, reason=first["msg"].removeprefix("Value error, "), hint=hint) from None
