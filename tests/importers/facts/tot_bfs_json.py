"""Facts of Tree of Thoughts logs, from what is imported of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    counted = imported.report["candidates"]
    metas = {one.id: json.loads(one.meta)["tree_of_thoughts"] for one in imported.of("episode")}
    first = min(metas, key=lambda name: metas[name]["idx"])
    usage = max((meta["usage_so_far"] for meta in metas.values()), key=lambda one: one["prompt_tokens"])
    beams = _beams(imported)
    return {
        "puzzles": imported.notes.rows["tree-of-thoughts/puzzle"],
        "steps": len(imported.of("candidate_set")),
        "candidates": counted["sampled"],
        "kept": counted["selected"],
        "rejected": counted["not_selected"],
        "duplicate_candidates": _duplicates(imported),
        "puzzles_with_a_solution_in_final_beam": sum(1 in beam for beam in beams.values()),
        "first_of_beam_solved": sum(beam[0] == 1 for beam in beams.values()),
        "first_puzzle": {
            "x": next(json.loads(one.task) for one in imported.of("episode") if one.id == first),
            "candidates": [len(one.members) for one in _of(imported, "candidate_set", first)],
            "kept": [len(one.selected) for one in _of(imported, "candidate_selection", first)],
            "infos": [{"r": value} for value in beams[first]],
        },
        "usage_so_far_last": usage,
    }


def _of(imported: Imported, kind: str, episode_id: str) -> list[Any]:
    return [event for event in imported.of(kind) if event.episode_id == episode_id]


def _beams(imported: Imported) -> dict[str, list[int]]:
    """The rewards of each puzzle's last kept thoughts, in their order."""
    rewards = {
        (one.target.candidate_set_id, one.target.member): int(one.value) for one in imported.of("reward")
    }
    return {
        one.episode_id: [rewards[one.candidate_set_id, member] for member in one.selected]
        for one in imported.of("candidate_selection")
        if (one.candidate_set_id, one.selected[0]) in rewards
    }


def _duplicates(imported: Imported) -> int:
    """Thoughts of a step that say what another of the step says: partial solution and addition are equal."""
    calls = {call.id: call for call in imported.of("call")}

    def text(call_id: str, completion: int) -> str:
        call = calls[call_id]
        said: str = json.loads(call.completions[completion].message)["content"]
        parent = call.parent_call_id
        return (text(parent, call.parent_completion) if parent else "") + said

    found = 0
    for one in imported.of("candidate_set"):
        texts = Counter(text(member.call_id, member.completion) for member in one.members)
        found += sum(num - 1 for num in texts.values())
    return found
