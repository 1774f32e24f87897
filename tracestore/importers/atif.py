"""ATIF trajectories (Harbor's Agent Trajectory Interchange Format, up to v1.8) -> calls of a tree of agents.

A file is a trajectory, one a line, or an object or list of several. Seen: v1.4 to v1.7 of Harbor's agents
(terminus-2, openhands), of NVIDIA's Relay and of hand-written examples; v1.8 adds audio parts.

- `session_id` is the run: the episode. Up to v1.6 a sub-agent has its own; it then belongs to the episode of
  the trajectory that refers to it, if both are imported together. Without one, `trajectory_id` or the content
  names the episode.
- A trajectory is an agent, named by its `trajectory_id`, else by the reference to it, else by its first step.
- A step of source `agent` is a model call, unless `llm_call_count` is 0 (the harness acted; its tool calls
  are gaps, no model made them). Above 1 the step stands for several calls, which is a gap; the token ids of
  such a step belong to no single prompt and stay in `meta`. A step of another source with `llm_call_count` or
  `metrics` is taken for a call and noted. Steps become messages as `atif_steps` says.
- `is_copied_context` steps are context and never calls. After a call they begin a new context.
- `extra.context_management` on a step is a context edit; with the boundary `replace` (or none) the context
  begins anew with what the step's observation says, and copied steps after it. What else was kept is not in
  the file: a gap, unless copied steps spell it out. Before v1.7 a system step that refers to summarizing
  sub-agents is the mark, and that is noted.
- `continued_trajectory_ref` names the file that goes on with the same agent; it is found by that name, else
  by `agent.extra.continuation_index` and the session. A continuation is a compaction too.
- `subagent_trajectory_ref` is resolved by `trajectory_id` (embedded first), then by path beside the file,
  then by `session_id` where it is not the parent's own. Two references to one trajectory: the first holds.
- `metrics.prompt_tokens` include cached ones. `final_metrics` may include sub-agents and continuations: they
  are never added, and stay in the agent's `meta`. Where nothing else is referred to, more tokens there than
  in the steps are a gap.
- `timestamp` of an agent step is taken for the end of the call. Rewards, finish reasons and who wrote a
  summary are not in the format.
- A file may be written again as it grows: events carry as revision the number of values up to their step.

What our writer adds under `extra.tracestore` is laid over (`carried`): `agent` and `events` of a trajectory,
`call` and `observed` of an agent step, `messages` and `boundary` of others, and the fields of tool calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers.atif_documents import Document, Documents, distinct, embedded, index, trajectories
from tracestore.importers.atif_reading import Reading
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.items import Item, made, raw
from tracestore.importers.notes import Notes
from tracestore.importers.spool import Spool
from tracestore.wire.episode import Episode


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls, context edits and gaps of the trajectories.

    All sources are looked at first, since a sub-agent or a continuation is a file of its own.
    """
    spool = Spool()
    documents: list[Document] = []
    for source in sources:
        for record in records(source, notes=notes):
            found = trajectories(record.value)
            if found is None:
                notes.refuse(record.at, "no ATIF trajectory: it has schema_version and steps")
                continue
            for value in found:
                key = f"{len(documents):08d}"
                is_all = value is record.value
                one = record if is_all else Record(value, record.at, record.line, bytes(raw(value)))
                spool.add(key, one, source=source.name)
                documents += index(value, key, source.name)
    documents = distinct(documents, notes=notes)
    chains = Documents(documents, notes).chains()
    begun = {document.episode_id for document in documents if document.has_episode}
    for chain in chains:
        if chain[0].episode_id not in begun:
            begun.add(chain[0].episode_id)
            yield made(Episode, id=chain[0].episode_id)
        reading = Reading(chain[0], notes)
        for document in chain:
            yield from reading.trajectory(document, *_stored(spool, document))
        yield from reading.ending()


def _stored(spool: Spool, document: Document) -> tuple[dict[str, Any], str]:
    key, *places = document.key.split(".")
    _, record = next(spool.of(key))
    value: dict[str, Any] = record.value
    for place in places:
        value = embedded(value)[int(place)]
    return value, record.at


def _recognises(head: Head) -> bool:
    return trajectories(head.first) is not None


FORMAT = Format("atif", "ATIF trajectories (Harbor, NeMo)", _recognises, read)
