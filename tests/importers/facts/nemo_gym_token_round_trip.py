"""Facts of NeMo-Gym's token round-trip document, from what is imported of it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    calls = sorted(imported.of("call"), key=lambda call: call.ordinal)
    items: list[Any] = []
    for call in calls:
        items += json.loads(call.request)["input"] + json.loads(call.completions[0].message)
    return {
        "output_items": [item["type"] for item in items],
        "model_calls_with_tokens": len(calls),
        "token_items": [_tokens(call) for call in calls],
        "prefix": [_prefix(before, after) for before, after in pairwise(calls)],
        "trainable_tokens": imported.report["sampled_tokens"],
    }


def _tokens(call: Any) -> dict[str, Any]:
    answer = call.completions[0]
    return {
        "prompt": len(call.prompt_token_ids),
        "generation": len(answer.token_ids),
        "logprobs": len(answer.logprobs),
        "sum_logprob": round(float(answer.logprobs.array.astype(np.float64).sum()), 6),
        "first_prompt_id": call.prompt_token_ids.json()[0],
        "last_generation_id": answer.token_ids.json()[-1],
    }


def _prefix(before: Any, after: Any) -> dict[str, Any]:
    seen = before.prompt_token_ids.json() + before.completions[0].token_ids.json()
    prompt = after.prompt_token_ids.json()
    common = next(
        (place for place, (one, other) in enumerate(zip(seen, prompt, strict=False)) if one != other),
        min(len(seen), len(prompt)),
    )
    return {
        "prev_total": len(seen),
        "next_prompt": len(prompt),
        "common_prefix": common,
        "is_prefix": common == len(seen),
    }
