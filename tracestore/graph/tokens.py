"""Graph -> the token ids a call read and sampled, exactly as recorded.

    prompt ids of a delta = prompt ids of the parent ++ ids of the completion it continues ++ its own delta

Nothing is ever tokenised here: ids that were not recorded are None.
"""

from __future__ import annotations

import numpy as np

from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.runs import TokenArray, TokenRun

__all__ = ["TokenArray", "completion_ids", "is_ids_incomplete", "prompt_ids", "prompt_run", "sampled_run"]


def prompt_ids(graph: Graph, call_id: str) -> TokenArray | None:
    """The ids that a call read, int32 [T]; None where they, or those they follow, were not recorded.

    Raises:
        KeyError: no such call.
    """
    if graph.textless is not None:
        run = graph.textless.prompts.get(call_id)
        return None if run is None else run.ids
    pieces: list[TokenArray] = []
    seen: set[str] = set()
    while True:
        call = graph.calls[call_id]
        if call.prompt_token_ids is not None:
            pieces.append(call.prompt_token_ids.array)
            break
        parent = graph.links[call_id].parent
        # Delta ids follow the parent that the call names, never one that was found by matching.
        if call.prompt_token_ids_delta is None or parent is None or parent[0] != call.parent_call_id:
            return None
        sampled = completion_ids(graph, parent)
        # Of the parent only the completion may have come.
        if sampled is None or call_id in seen or parent[0] not in graph.calls:
            return None
        seen.add(call_id)
        pieces += [call.prompt_token_ids_delta.array, sampled]
        call_id = parent[0]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces[::-1])


def prompt_run(graph: Graph, call_id: str) -> TokenRun | None:
    """`prompt_ids`, which may know what it begins with."""
    if graph.textless is not None:
        return graph.textless.prompts.get(call_id)
    ids = prompt_ids(graph, call_id)
    return None if ids is None else TokenRun(ids)


def sampled_run(graph: Graph, key: CompletionKey, prompt: TokenRun) -> TokenRun:
    """The prompt of a call and the ids of a completion after it, which has some."""
    if graph.textless is not None:
        return graph.textless.sampled[key]
    ids = completion_ids(graph, key)
    assert ids is not None
    return TokenRun(ids, prompt, prompt.length)


def completion_ids(graph: Graph, key: CompletionKey) -> TokenArray | None:
    """The ids that were sampled, int32 [T]; None where the server gave none or no such completion has
    come."""
    completion = graph.completions.get(key)
    if completion is None or completion.token_ids is None:
        return None
    return completion.token_ids.array


def is_ids_incomplete(graph: Graph, call_id: str) -> bool:
    """Whether some, but not all, of the sampled ids of a call were recorded, as far as its usage can tell.

    Servers count a stop token that they strip, or do not; both counts pass. Calls without any ids are not
    incomplete: they have none. Source: vllm#27482 and #29074, where a tool parser in streaming mode drops
    ids.
    """
    completions = [graph.completions[key] for key in graph.completions_of(call_id)]
    ids = [one.token_ids for one in completions if one.token_ids is not None]
    if len(ids) < len(completions):
        return bool(ids)
    call = graph.calls.get(call_id)
    usage = None if call is None else call.usage
    if not ids or usage is None or usage.completion_tokens is None:
        return False
    recorded = sum(map(len, ids))
    if recorded == usage.completion_tokens:
        return False
    stripped = sum(one.stop_token_stripped is True for one in completions)
    return not recorded <= usage.completion_tokens <= recorded + stripped
