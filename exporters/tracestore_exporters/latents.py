"""Store -> latents that agents handed on, for training what connects the agents.

Latents have no logprobs, so nothing sampled after one has an importance ratio and shards leave it out
(`Reason.LATENT`). What can be learned from them is learned by computing the episode again with the same
frozen weights, and for that this writes what `tracestore.shards.latents` holds: calls in order, prompts,
tensors.

    blob `latent`          a call reads it at `position`; `agent_id` computed it
    blob `latent_output`   the call that computed it: same agent, same hash
    blob `link`            what carried it into the call that reads it
    agent `checkpoint`     hash of its frozen weights
    call `ordinal`         the round

An episode that lacks one of these is left out for a counted reason, never guessed at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tracestore.graph.model import Graph
from tracestore.graph.tokens import prompt_ids
from tracestore.shards.latents import (
    ITEM_BYTES,
    LatentEpisode,
    LatentsManifest,
    Read,
    Step,
    Tensor,
    write_latents,
)
from tracestore.store.blobs.base import BlobNotFound, Blobs
from tracestore.wire.blob import Blob
from tracestore_exporters.export import BeyondLatest, Progress, groups_of
from tracestore_exporters.interchange import SpecNotFollowed
from tracestore_exporters.masks import episode_reason
from tracestore_exporters.rendering import Source
from tracestore_exporters.spec import Spec
from tracestore_exporters.staging import staged_folder
from tracestore_exporters.writing import episode_id

Payload = Callable[[str], bytes | None]
"""Hash -> the bytes that hash to it; None: they did not come, or were damaged."""
_FOLLOWED = frozenset({"groups", "splits", "statuses", "validation", "started_from", "started_before"})


class _LeftOut(Exception):
    """Why an episode cannot be computed again."""


def export_latents(
    store: Source,
    blobs: Blobs | None,
    project: str,
    out: str | Path,
    spec: Spec,
    *,
    snapshot: int | None = None,
    progress: Progress | None = None,
) -> LatentsManifest:
    """Writes the latents of a snapshot into a new folder.

    Args:
        blobs: where the payloads lie; None: nowhere that is known, and every episode lacks its own.
        spec: which episodes. Rules of redaction are refused: no pattern finds a text in a tensor.

    Raises:
        NotEmpty: something is in the folder.
        SpecNotFollowed: the spec asks for what cannot be done here.
        UnknownGroup, BeyondLatest: as `export`.
    """
    _require_followed(spec)
    latest = store.snapshot(project)
    if snapshot is not None and snapshot > latest:
        raise BeyondLatest(snapshot=snapshot, latest=latest, hint=f"name one up to {latest}, or none")
    at = latest if snapshot is None else snapshot
    groups = groups_of(store, project, spec, snapshot=at)
    names = [name for group in groups for name in sorted(group.episode_ids)]
    payload = _payloads(blobs, project)
    found: list[LatentEpisode] = []
    left_out: Counter[str] = Counter()
    with staged_folder(out) as folder:
        for done, name in enumerate(names, start=1):
            graph = store.load_graph(project, name, snapshot=at)
            reason = episode_reason(graph, spec)
            try:
                if reason is not None:
                    raise _LeftOut(reason.label)
                found.append(latent_episode(graph, payload))
            except _LeftOut as error:
                left_out[str(error)] += 1
            if progress is not None:
                progress(done, len(names))
        return write_latents(folder, found, project=project, snapshot=at, left_out=left_out)


def _require_followed(spec: Spec) -> None:
    usual = Spec(objective=spec.objective)
    fields = [name for name in Spec.model_fields if getattr(spec, name) != getattr(usual, name)]
    wrong = [name for name in fields if name not in _FOLLOWED]
    if wrong:
        hint = f"of a spec it follows {', '.join(sorted(_FOLLOWED))}"
        raise SpecNotFollowed(format="latents", fields=wrong, hint=hint)


def _payloads(blobs: Blobs | None, project: str) -> Payload:
    def payload(name: str) -> bytes | None:
        size = None if blobs is None else blobs.size(project, name)
        if blobs is None or size is None:
            return None
        try:
            data = b"".join(blobs.read(project, name, start=0, stop=size))
        except BlobNotFound:
            return None
        return data if sha256(data).hexdigest() == name else None

    return payload


def latent_episode(graph: Graph, payload: Payload) -> LatentEpisode:
    """The calls of an episode that computed or read a latent, each after the one whose latent it reads.

    Raises:
        _LeftOut: something is missing or said twice; its text is the reason.
    """
    reads = _reads(graph)
    if not reads:
        raise _LeftOut("no_latent")
    order = _ordered(reads)
    place = {call_id: index for index, call_id in enumerate(order)}
    outputs = {read.source: read.blob for read in reads.values()}
    if len(order) - len(outputs) != 1:
        raise _LeftOut("not_one_decoded_text")
    return LatentEpisode(
        episode_id=episode_id(graph),
        group_id=None if graph.episode is None else graph.episode.group_id,
        task=_task(graph),
        steps=tuple(
            _step(graph, call_id, reads.get(call_id), outputs.get(call_id), place, payload)
            for call_id in order
        ),
    )


@dataclass(frozen=True)
class _Reading:
    blob: Blob
    source: str
    """The call that computed it."""
    link: str | None


def _reads(graph: Graph) -> Mapping[str, _Reading]:
    """By the call that reads. Raises _LeftOut."""
    outputs = list(_of_role(graph, "latent_output"))
    links = {call_id: blob.hash for call_id, blob in _of_role(graph, "link")}
    found: dict[str, _Reading] = {}
    for call_id, blob in _of_role(graph, "latent"):
        if call_id in found:
            raise _LeftOut("several_latents_of_a_call")
        sources = {
            source
            for source, output in outputs
            if output.hash == blob.hash and graph.calls[source].agent_id == blob.agent_id
        }
        if len(sources) != 1:
            raise _LeftOut("several_sources_of_a_latent" if sources else "no_source_of_a_latent")
        found[call_id] = _Reading(blob, sources.pop(), links.get(call_id))
    return found


def _of_role(graph: Graph, role: str) -> Iterator[tuple[str, Blob]]:
    """(call, blob) of the blobs of a role whose call has come."""
    for blob in graph.blobs.values():
        if blob.role == role and blob.call_id in graph.calls:
            yield blob.call_id, blob


def _ordered(reads: Mapping[str, _Reading]) -> list[str]:
    """Every call, sources first; of two that do not depend on each other the lesser id. Raises _LeftOut."""
    waiting = {read.source for read in reads.values()} | reads.keys()
    done: list[str] = []
    while waiting:
        ready = sorted(one for one in waiting if one not in reads or reads[one].source not in waiting)
        if not ready:
            raise _LeftOut("latents_go_round")
        done.append(ready[0])
        waiting.remove(ready[0])
    return done


def _step(
    graph: Graph,
    call_id: str,
    read: _Reading | None,
    output: Blob | None,
    place: Mapping[str, int],
    payload: Payload,
) -> Step:
    call = graph.calls[call_id]
    agent = graph.agents.get(call.agent_id)
    prompt = prompt_ids(graph, call_id)
    if prompt is None or len(prompt) == 0:
        raise _LeftOut("no_prompt_ids")
    if call.ordinal is None:
        raise _LeftOut("no_ordinal")
    sampled = [graph.completions[key].token_ids for key in graph.completions_of(call_id)]
    ids = next((ids for ids in sampled if ids is not None and len(ids)), None)
    if output is None and ids is None:
        raise _LeftOut("no_token_ids")
    name = None if agent is None else agent.name
    return Step(
        call_id=call_id,
        agent=call.agent_id if name is None else name,
        round=call.ordinal,
        model=None if agent is None else agent.checkpoint,
        prompt_ids=tuple(prompt.tolist()),
        reads=None if read is None else _read(read, place, length=len(prompt)),
        latent=None if output is None else _tensor(output, payload),
        latent_hash=None if output is None else output.hash,
        token_ids=None if output is not None or ids is None else tuple(ids.array.tolist()),
    )


def _read(read: _Reading, place: Mapping[str, int], *, length: int) -> Read:
    position = read.blob.position
    if position is None:
        raise _LeftOut("no_position_of_a_latent")
    if position > length:
        raise _LeftOut("a_latent_behind_the_prompt")
    return Read(step=place[read.source], position=position, link=read.link)


def _tensor(blob: Blob, payload: Payload) -> Tensor:
    if blob.dtype not in ITEM_BYTES or blob.shape is None or len(blob.shape) != 2 or not all(blob.shape):
        raise _LeftOut("no_dtype_and_shape_of_a_latent")
    data = payload(blob.hash)
    if data is None:
        raise _LeftOut("no_payload")
    tensor = Tensor(blob.dtype, tuple(blob.shape), data)
    if not tensor.is_whole:
        raise _LeftOut("a_payload_of_another_shape")
    return tensor


def _task(graph: Graph) -> Any:
    for one in (graph.episode, graph.group):
        if one is not None and one.task is not None:
            return one.task.value()
    return None
