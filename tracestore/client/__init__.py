"""Harness -> events over HTTP: record, batch, spool, retry. The standard library is enough.

A rollout with a subagent, a compaction and two candidates:

    with Client("http://127.0.0.1:8421") as client, client.episode(group_id="g", task_id="t") as episode:
        main = episode.agent(role="main", model="m", policy=("actor", 3))
        plan = main.call(messages=asked, completion=planned, prompt_token_ids=[1, 2, 3])
        helper = main.subagent(call=plan, tool_call_id="look_up", policy=("actor", 3))
        helper.call(messages=scope, completion=found)
        helper.end(return_message=found["message"])
        summary = main.call(messages=history, completion=short, parent=plan, purpose="summarize")
        main.compaction(summary=summary, replaced=[plan], tokens_before=900, tokens_after=120)
        tries = main.call(messages=compacted, completions=[one, other])
        episode.candidates(tries, scores=[0.2, 0.9]).select([1], selector="judge")
        episode.reward("correct", 1.0)

A completion is a mapping with the fields of the wire (`message`, `finish_reason`, `token_ids`,
`logprobs`, ...). Where JSON is expected, Python values are written as JSON, and `bytes` are JSON text that is
kept as it is, so that a request can be recorded byte for byte as it was sent. Token ids and logprobs may be
anything with `tolist()`.

Events go out in batches on a background thread. `flush` and the end of the `with` block return when the
server has them on its disk. Every event has its id before it is sent: a retry is recognised and stored once.
In a coroutine the same two are `await client.aflush()` and `async with Client() as client`; recording itself
only puts an event into a queue, and waits where that is full (10,000 events or 256 MB).

`with episode:` and `with agent:` set what is current for the block: `@tool` functions and SDKs wrapped by
`tracestore.instrument.wrap` record under it, each thread and asyncio task under its own. In the block `with
replayed_tools(URL):` functions under `@tool` give what was recorded, and do not run.
"""

from tracestore.client.current import ToolUse, current_agent, current_call, current_episode, tool_use
from tracestore.client.errors import (
    ClientClosed,
    ClientError,
    NotRecordable,
    NotReplayed,
    PayloadTooLarge,
    RecordedToolError,
    Rejected,
    RejectedEvents,
    RequestRefused,
    ServerAway,
    SpoolUnusable,
)
from tracestore.client.outbox import Stats
from tracestore.client.recording import (
    Agent,
    Call,
    Candidate,
    CandidateSet,
    Client,
    Completion,
    Episode,
    Group,
)
from tracestore.client.replayed import ToolReplay, replayed_tools
from tracestore.client.tools import tool

__all__ = [
    "Agent",
    "Call",
    "Candidate",
    "CandidateSet",
    "Client",
    "ClientClosed",
    "ClientError",
    "Completion",
    "Episode",
    "Group",
    "NotRecordable",
    "NotReplayed",
    "PayloadTooLarge",
    "RecordedToolError",
    "Rejected",
    "RejectedEvents",
    "RequestRefused",
    "ServerAway",
    "SpoolUnusable",
    "Stats",
    "ToolReplay",
    "ToolUse",
    "current_agent",
    "current_call",
    "current_episode",
    "replayed_tools",
    "tool",
    "tool_use",
]
