"""Facts of re-tokenization cases, from what is imported of them."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {"expected_output": "what a repair of ids should give was in no context: it is noted"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    return {call.id.rsplit("/", 1)[1]: len(call.prompt_token_ids) for call in imported.of("call")}
