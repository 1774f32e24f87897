"""Facts of Atropos group files, from what is imported of them."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {
    "length_mismatch": "a group whose lists differ in length is refused: the report names it",
}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (
        "atropos/nousresearch__atropos/environments/community/selcube/rubiks_process_results_32.jsonl.gz",
        "scores",
    ): (
        [
            [-0.36444444444444446] * 4,
            [-0.36074074074074075] * 4,
            [-0.35444444444444445] * 3 + [0.6355555555555557],
            [-0.3507407407407408] + [0.6392592592592593] * 3,
            [0.5955555555555556, 0.6307407407407408, 0.6455555555555557, 0.6455555555555557],
            [0.6455555555555557, 0.6455555555555557, 0.6455555555555557, 0.6492592592592593],
        ],
        "the counted list has the first four of six groups; ours has all, each sorted",
    ),
}


def facts(imported: Imported) -> dict[str, Any]:
    calls, groups = imported.of("call"), imported.of("group")
    sampled = sum(len(call.completions[0].token_ids) for call in calls)
    last = {call.episode_id: call for call in calls}
    read = sum(len(call.prompt_token_ids) for call in last.values())
    spread = scores(imported)
    return {
        "groups": len(groups),
        "bad_lines": imported.notes.refused,
        "group_sizes": sorted({group.size for group in groups}),
        "sequences": len(imported.of("episode")),
        "tokens": read + sampled,
        "trained_tokens": sampled,
        "mask_equals_token_where_trained": not any("mask is not" in one for one in imported.notes.warnings),
        "scores": sorted(spread),
        "messages": imported.report["messages"],
        "groups_with_zero_score_spread": sum(min(one) == max(one) for one in spread),
    }


def scores(imported: Imported) -> list[list[float]]:
    """The scores of each group, sorted."""
    group_of = {episode.id: episode.group_id for episode in imported.of("episode")}
    found: dict[str, list[float]] = {}
    for reward in imported.of("reward"):
        found.setdefault(group_of[reward.target.episode_id], []).append(reward.value)
    return [sorted(values) for values in found.values()]
