"""JSON Schemas of the answers: what is shown of a thing follows from the event that posts it.

An answer has every field of its event, null where it is unknown. It lacks what belongs to the post (`v`,
`kind`, `phase`) and says `is_complete` of a thing whose start and end may come apart. Numbers that JSON has
not (NaN, infinities) are answered as strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

REF = "#/components/schemas/"
SHOWN = "Stored"
"""What the schema of a shown thing is called: this and the name of its event."""
_OF_THE_POST = ("v", "kind", "phase")
_OF_ONE_CALL = ("request", "prompt_token_ids", "prompt_token_ids_delta", "completions")

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}
WHOLE: Schema = {"type": "integer"}
CLAIM: Schema = {"type": "boolean"}
TIME: Schema = {"type": "integer", "description": "nanoseconds since 1970 (UTC)"}
ANY: Schema = {"description": "any JSON value, byte for byte as it was posted"}


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": REF + name}


def shown(name: str) -> Schema:
    """A reference to what is shown of an event's thing."""
    return ref(SHOWN + name)


def maybe(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def record(description: str | None = None, /, **fields: Schema) -> Schema:
    """An object that has exactly these fields."""
    made: Schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return made if description is None else {"description": description, **made}


def named(schema: Schema, *names: str) -> dict[str, Schema]:
    """Fields that all have one schema."""
    return {name: dict(schema) for name in names}


def shown_events(events: Mapping[str, Schema]) -> dict[str, Schema]:
    """What is shown of each event and of what lies in it, by component name.

    Args:
        events: the schemas of the events, by component name.
    """
    return {SHOWN + name: _shown(schema) for name, schema in events.items() if name != "Event"}


def _shown(schema: Schema) -> Schema:
    properties = {
        name: _answered(value) for name, value in schema["properties"].items() if name not in _OF_THE_POST
    }
    if "phase" in schema["properties"]:
        properties["is_complete"] = dict(CLAIM)
    return record(schema.get("description"), **properties)


def _answered(value: Any) -> Any:
    """A schema of something posted as it is answered: without a default, and with every number written."""
    if isinstance(value, list):
        return [_answered(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "number":
        return dict(NUMBER)
    target = value.get("$ref")
    if target is not None:
        return shown(target.removeprefix(REF))
    return {name: _answered(item) for name, item in value.items() if name not in ("default", "title")}


_LINK = record(
    "How a call follows from another one.",
    parent=maybe(ref("Author")),
    how=one_of("named", "inferred", "matched", "ambiguous", "none"),
    exact=CLAIM,
)
_SUMMARY = {
    "index": WHOLE,
    "finish_reason": maybe(TEXT),
    "partial": maybe(CLAIM),
    "num_token_ids": maybe(WHOLE),
    "preview": maybe(TEXT),
}
_TREE = record(
    "One episode: its agents in depth-first order with their calls in order, and everything around them.",
    id=TEXT,
    episode=maybe(shown("Episode")),
    group=maybe(shown("Group")),
    agents=array(ref("TreeAgent")),
    context_edits=array(shown("ContextEdit")),
    candidate_sets=array(ref("TreeCandidateSet")),
    rewards=array(shown("Reward")),
    gaps=array(shown("Gap")),
    snapshots=array(shown("Snapshot")),
    blobs=array(shown("Blob")),
    consumptions=array(shown("Consumption")),
    orphans=array(ref("NamedThing")),
    unplaced=ref("Unplaced"),
    num_events=WHOLE,
    truncated=CLAIM,
)
_UNPLACED = record(
    "What belongs to a call or a candidate set that has not come.",
    completions=array(ref("UnplacedCompletion")),
    tool_calls=array(shown("ToolCall")),
    candidate_selections=array(shown("CandidateSelection")),
)


def trees(things: Mapping[str, Schema]) -> dict[str, Schema]:
    """The documents of one episode, of one call, and of its context, by component name.

    Args:
        things: what `shown_events` gives.
    """
    agent, call, body, candidates = (
        things[SHOWN + name]["properties"] for name in ("Agent", "Call", "CompletionBody", "CandidateSet")
    )
    place = {"link": ref("Link"), "is_pending": CLAIM}
    used = {"tool_calls": array(shown("ToolCall"))}
    short = {name: schema for name, schema in call.items() if name not in _OF_ONE_CALL}
    whole = {name: schema for name, schema in call.items() if name != "completions"}
    return {
        "Author": record("The completion that authored a message.", call_id=TEXT, completion=WHOLE),
        "Link": _LINK,
        "NamedThing": record(kind=TEXT, id=TEXT),
        "CompletionSummary": record(**_SUMMARY),
        "UnplacedCompletion": record(call_id=TEXT, **_SUMMARY),
        "Unplaced": _UNPLACED,
        "TreeCall": record(**short, **place, completions=array(ref("CompletionSummary")), **used),
        "TreeAgent": record(
            "An agent; one that only a call names has an id and nothing else.",
            **{name: maybe(schema) for name, schema in agent.items() if name != "id"},
            id=TEXT,
            is_recorded=CLAIM,
            calls=array(ref("TreeCall")),
        ),
        "TreeCandidateSet": record(**candidates, selections=array(shown("CandidateSelection"))),
        "EpisodeTree": _TREE,
        "WholeCompletion": record(index=WHOLE, **body),
        "WholeCall": record(**whole, **place, completions=array(ref("WholeCompletion")), **used),
        "ContextMessage": record(author=maybe(ref("Author")), message=ANY),
        "Context": record(
            "The messages a call saw; null while its parent has not come.",
            call_id=TEXT,
            **place,
            messages=maybe(array(ref("ContextMessage"))),
        ),
    }


_MEMBER = record(
    member=WHOLE,
    call_id=maybe(TEXT),
    completion=maybe(WHOLE),
    agent_id=maybe(TEXT),
    score=maybe(NUMBER),
)
_SELECTION = record(
    id=TEXT,
    selector=maybe(TEXT),
    selector_version=maybe(TEXT),
    selector_call_id=maybe(TEXT),
    treatment=maybe(TEXT),
    reason=maybe(TEXT),
    at=maybe(TIME),
    selected=array(WHOLE),
    continued=maybe(array(WHOLE)),
    scores=array(record(member=WHOLE, score=maybe(NUMBER))),
)

ITEMS: dict[str, Schema] = {
    "EpisodeItem": record(
        id=TEXT,
        is_recorded=CLAIM,
        **named(maybe(TEXT), "group_id", "task_id", "split", "status", "error", "stop_reason"),
        **named(maybe(TEXT), "forked_from_episode_id", "forked_from_call_id"),
        inference_only=maybe(CLAIM),
        **named(maybe(TIME), "started_at", "ended_at"),
        **named(WHOLE, "num_agents", "num_calls"),
    ),
    "GroupItem": record(
        id=TEXT,
        is_recorded=CLAIM,
        task_id=maybe(TEXT),
        size=maybe(WHOLE),
        closed_by=maybe(TEXT),
        **named(maybe(TIME), "started_at", "ended_at"),
        num_episodes=WHOLE,
    ),
    "AgentItem": record(
        id=TEXT,
        episode_id=TEXT,
        **named(maybe(TEXT), "parent_agent_id", "spawned_by_call_id"),
        spawned_by_completion=maybe(WHOLE),
        **named(maybe(TEXT), "role", "name"),
        **named(maybe(WHOLE), "depth", "stage"),
        model=maybe(TEXT),
        trainable=maybe(CLAIM),
        score=maybe(NUMBER),
        finding_used=maybe(CLAIM),
        **named(maybe(TEXT), "status", "error"),
        **named(maybe(TIME), "started_at", "ended_at"),
        num_calls=WHOLE,
    ),
    "CallItem": record(
        id=TEXT,
        **named(TEXT, "episode_id", "agent_id"),
        ordinal=maybe(WHOLE),
        **named(maybe(TEXT), "purpose", "model", "policy_name"),
        policy_version=maybe(WHOLE),
        link_call_id=maybe(TEXT),
        link_completion=maybe(WHOLE),
        link=maybe(TEXT),
        link_exact=maybe(CLAIM),
        context_messages=maybe(WHOLE),
        num_completions=WHOLE,
        **named(maybe(WHOLE), "prompt_tokens", "completion_tokens"),
        **named(maybe(TEXT), "status", "error_type"),
        **named(maybe(TIME), "started_at", "ended_at"),
    ),
    "CandidateItem": record(
        id=TEXT,
        **named(maybe(TEXT), "episode_id", "agent_id", "generator"),
        at=maybe(TIME),
        members=array(_MEMBER),
        selections=array(_SELECTION),
    ),
    "RewardItem": record(
        id=TEXT,
        target=TEXT,
        **named(maybe(TEXT), "episode_id", "agent_id", "call_id", "candidate_set_id"),
        **named(maybe(WHOLE), "completion", "member", "token_start", "token_length"),
        name=TEXT,
        value=NUMBER,
        weight=maybe(NUMBER),
        **named(maybe(TEXT), "scorer", "scorer_version"),
        at=maybe(TIME),
        seq=WHOLE,
    ),
    "GapItem": record(
        id=TEXT,
        **named(maybe(TEXT), "episode_id", "agent_id", "call_id", "detail"),
        cause=TEXT,
        at=maybe(TIME),
    ),
    "OrphanItem": record(episode_id=maybe(TEXT), kind=TEXT, id=TEXT, missing=TEXT, missing_id=maybe(TEXT)),
    "IncompleteItem": record(
        kind=TEXT, id=TEXT, episode_id=maybe(TEXT), missing=one_of("start", "end"), received_at=TIME
    ),
    "BlobItem": record(
        id=TEXT,
        **named(maybe(TEXT), "episode_id", "agent_id", "call_id"),
        **named(maybe(WHOLE), "completion", "position"),
        hash=TEXT,
        **named(maybe(TEXT), "role", "media_type", "dtype"),
        size=maybe(WHOLE),
        at=maybe(TIME),
        is_stored=maybe(CLAIM),
    ),
}
"""One row of each list, by component name."""


def page(item: str) -> Schema:
    """A page of rows, and how to ask for the next one."""
    return record(items=array(ref(item)), next_cursor=maybe(TEXT), truncated=CLAIM)


META = record(
    "What a client must know before it posts.",
    product=TEXT,
    version=TEXT,
    wire_versions=array(WHOLE),
    schema_revision=TEXT,
    project=TEXT,
    project_header=TEXT,
    content_encodings=array(TEXT),
    limits={"type": "object", "additionalProperties": maybe(WHOLE)},
)
HEALTH = record(status=one_of("ok"))
PROBLEM: Schema = {
    "description": "What is wrong (RFC 9457), the values needed to put it right, and what to do.",
    "type": "object",
    "properties": {
        **named(TEXT, "type", "title", "detail", "hint"),
        "status": WHOLE,
    },
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": True,
}
POSTED = record(
    "What became of each event of a body, in the order posted.",
    **named(WHOLE, "stored", "duplicate", "conflict", "invalid"),
    items=array(ref("PostedItem")),
)
POSTED_ITEM = record(
    index=WHOLE,
    **named(maybe(TEXT), "kind", "id"),
    status=one_of("stored", "duplicate", "conflict", "invalid"),
    problem=maybe(ref("Problem")),
)
POSTED_ITEM["properties"]["redacted"] = {
    **WHOLE,
    "description": "pieces of text that the project's rules took out of it; absent: none",
}
REWARDED = record(id=TEXT, id_made_by=one_of("client", "server"), status=one_of("stored", "duplicate"))
BLOB_TAKEN = record(hash=TEXT, size=WHOLE, status=one_of("stored", "duplicate"))

SQL_REQUEST: Schema = {
    "type": "object",
    "properties": {
        "query": {**TEXT, "description": "one SELECT over the views"},
        "max_rows": maybe({**WHOLE, "minimum": 0}),
        "format": {"description": "else what Accept asks for", **maybe(one_of("json", "csv", "arrow"))},
    },
    "required": ["query"],
    "additionalProperties": False,
}
SQL_ROWS = record(
    "A table. Whole numbers are exact; numbers that JSON has not, decimals and times are text.",
    columns=array(TEXT),
    rows=array(array({"description": "values in the order of the columns"})),
    truncated={**CLAIM, "description": "whether there are more rows than these"},
)
