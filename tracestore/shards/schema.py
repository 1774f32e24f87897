"""The one Arrow schema of every shard of every export, described field by field.

One row is one group. Lists of tokens use 64-bit offsets; every field carries its description as Arrow
metadata (`doc`), so that a reader in another language finds it in the file.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

SCHEMA_VERSION = 4
"""Rises when a field changes its meaning or leaves; a reader refuses other versions."""


def _field(name: str, kind: pa.DataType, doc: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc})


def _must(name: str, kind: pa.DataType, doc: str) -> pa.Field:
    return _field(name, kind, doc, nullable=False)


def _rows(*fields: pa.Field) -> pa.DataType:
    return pa.list_(pa.field("item", pa.struct(fields), nullable=False))


def _ints(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


I8, I32, I64, F32, F64, TEXT, BOOL = (
    pa.uint8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.bool_(),
)

_SEGMENT = _rows(
    _field("parent", I32, "segment before it; null for a root"),
    _must("start", I64, "first token on the row's token axis"),
    _must("length", I32, "tokens, at least 1"),
    _field("completion", I32, "index into completions when sampled; null when not"),
)
_EPISODE = _rows(
    _must("episode_id", TEXT, "the client's id"),
    _field("status", TEXT, "ok, failed, budget_exhausted, infra_error, cancelled, ..."),
    _field(
        "split", TEXT, "train, eval (also where the spec sets its task aside), test; null counts as train"
    ),
    _field("task_id", TEXT, "the task attempted"),
    _field("forked_from_episode_id", TEXT, "origin whose history this episode shares"),
    _must("ordinal", I32, "place in the group, by episode id"),
    _must(
        "in_statistics",
        BOOL,
        "false: leaves the group statistics (infra error, or excluded by the spec)",
    ),
)
_AGENT = _rows(
    _must("agent_id", TEXT, "the client's id"),
    _must("episode", I32, "index into episodes"),
    _field("parent", I32, "index into agents"),
    _field("role", TEXT, "main, subagent, branch, judge, ..."),
    _field("depth", I32, "0 for a root"),
    _field("stage", I32, "stage of the parent in which it was spawned"),
    _field("model", TEXT, "declared model"),
    _field("checkpoint", TEXT, "declared checkpoint"),
    _field("trainable", BOOL, "false: never trained; null: unknown"),
    _field("score", F64, "its own score"),
    _field("status", TEXT, "ok, failed, ..."),
    _field("spawned_by_call", I32, "index into calls"),
    _field("spawned_by_completion", I32, "index into completions"),
    _field("spawned_by_tool_call_id", TEXT, "the model's id of the spawning tool call"),
    _field("finding_used", BOOL, "whether the parent used what it returned"),
)
_CALL = _rows(
    _must("call_id", TEXT, "the client's id"),
    _must("episode", I32, "index into episodes"),
    _must("agent", I32, "index into agents"),
    _field("ordinal", I32, "place among the agent's calls"),
    _field("purpose", TEXT, "act, summarize, select, judge, ...; null counts as act"),
    _field("model", TEXT, "model that answered"),
    _field("policy_name", TEXT, "policy that sampled it; null: none declared"),
    _field("policy_version", I64, "its version at dispatch"),
    _field("status", TEXT, "ok, failed, aborted"),
    _field("logprobs_are", TEXT, "raw (before temperature, top-p, top-k) or processed"),
    _field("temperature", F64, "as requested"),
    _field("top_p", F64, "as requested"),
    _field("top_k", I64, "as requested"),
    _field("params", TEXT, "all sampling parameters, JSON object with sorted keys"),
    _field("parent_completion", I32, "index into completions: what its messages continue"),
    _must("link", TEXT, "named, inferred, matched, ambiguous, none"),
    _must("rendered", BOOL, "true: a chat template gave its ids; false: they are as recorded"),
)
_COMPLETION = _rows(
    _must("call", I32, "index into calls"),
    _must("index", I32, "place among the call's completions"),
    _field("finish_reason", TEXT, "stop, length, tool_calls, ..."),
    _field("partial", BOOL, "true: an aborted stream"),
    _field("stop_token_stripped", BOOL, "true: a sampled stop token is not in the ids"),
    _field("num_tokens", I32, "sampled ids; null: the server gave none"),
    _field("tool_failed", BOOL, "a tool call of it failed or timed out; null: no outcome is recorded"),
)
_POLICY_RUN = _rows(
    _must("start", I64, "on the row's token axis"),
    _must("length", I64, "tokens"),
    _must("name", TEXT, "policy"),
    _field("version", I64, "policy version; null: unknown"),
)
_SAMPLE = _rows(
    _must("sample_id", TEXT, "the last completion it reproduces, call_id:index"),
    _must("episode", I32, "index into episodes"),
    _must("agent", I32, "index into agents"),
    _must("segments", _ints(I32), "path of segments from the root"),
    _must("completions", _ints(I32), "chain of completions it reproduces"),
    _must("cause", TEXT, "why a sample begins here"),
    _must("num_tokens", I64, "tokens on its path"),
    _must("num_owned", I64, "trained tokens that no earlier sample that trains holds"),
    _must("reason", I8, "0 = trains, else why not: it owns nothing then"),
)
_MEMBER = _rows(
    _field("completion", I32, "index into completions"),
    _field("agent", I32, "index into agents, when the candidate is all that an agent did"),
    _field("score", F64, "the selector's score"),
    _field("selected", BOOL, "null: no selection is recorded"),
    _field("continued", BOOL, "whether later calls build on it"),
)
_CANDIDATE_SET = _rows(
    _must("candidate_set_id", TEXT, "the client's id"),
    _must("episode", I32, "index into episodes"),
    _field("agent", I32, "index into agents"),
    _field("generator", TEXT, "what sampled the members"),
    _field("selector", TEXT, "policy, search, judge, human"),
    _field("selector_version", TEXT, "its version"),
    _must("treatment", TEXT, "shared, negative, runner_up, pairs, exclude"),
    _must("members", _MEMBER, "the alternatives, in recorded order"),
)
_EDIT = _rows(
    _must("edit_id", TEXT, "the client's id"),
    _must("episode", I32, "index into episodes"),
    _must("agent", I32, "index into agents"),
    _must("edit", TEXT, "compaction, fold, rewrite, truncation, tool_result_clearing"),
    _field("trigger", TEXT, "rule or tool_call"),
    _field("author", TEXT, "policy, other_model, harness"),
    _field("author_completion", I32, "index into completions: the replacement's text"),
    _field("before_call", I32, "index into calls: last that saw the old context"),
    _field("after_call", I32, "index into calls: first that saw the new one"),
    _field("replaced", _ints(I32), "indexes into calls; null: unknown"),
    _field("tokens_before", I64, "context length before"),
    _field("tokens_after", I64, "context length after"),
    _field("status", TEXT, "accepted, rejected, cancelled, failed"),
)
_REWARD = _rows(
    _must("reward_id", TEXT, "the client's id"),
    _must("target", TEXT, "tokens, completion, candidate, call, agent, episode"),
    _must("episode", I32, "index into episodes"),
    _field("agent", I32, "index into agents"),
    _field("call", I32, "index into calls"),
    _field("completion", I32, "index into completions"),
    _field("candidate_set", I32, "index into candidate_sets"),
    _field("member", I32, "index into the set's members"),
    _field("token_start", I32, "inside the completion's ids"),
    _field("token_length", I32, "tokens"),
    _must("name", TEXT, "reward name"),
    _must("value", F64, "as recorded"),
    _field("weight", F64, "share in the composed reward, the spec's where it names one; null: 1"),
    _field("scorer", TEXT, "who scored"),
    _field("scorer_version", TEXT, "its version"),
    _must("seq", I64, "place in the row, by reward id"),
)
_BLOB = _rows(
    _must("hash", TEXT, "sha256 of the payload, hex"),
    _field("role", TEXT, "image, routed_experts, ..."),
    _field("media_type", TEXT, "image/png, ..."),
    _field("dtype", TEXT, "where it is a tensor"),
    _field("shape", _ints(I64), "where it is a tensor"),
    _must("episode", I32, "index into episodes"),
    _field("agent", I32, "index into agents"),
    _field("call", I32, "index into calls"),
    _field("completion", I32, "index into completions"),
    _field("position", I32, "token index in the call's prompt ++ completion"),
)

SCHEMA = pa.schema(
    [
        _must("project", TEXT, "the project exported"),
        _field("group_id", TEXT, "null: an episode on its own"),
        _field("task_id", TEXT, "the task the group shares"),
        _must(
            "part",
            I32,
            "0-based; a group larger than a row is cut by episode, each part with the full header",
        ),
        _must("num_parts", I32, "credit waits for all parts of a group"),
        _field("closed_by", TEXT, "event, size, timeout, episodes"),
        _must("token_ids", pa.large_list(pa.field("item", I32, nullable=False)), "all segments, depth-first"),
        _field(
            "logprobs", pa.large_list(F32), "log p(token | before) at the token's own index; null where none"
        ),
        _field("logprobs64", pa.large_list(F64), "instead of logprobs when a value of the row needs float64"),
        _must("reason", pa.large_list(pa.field("item", I8, nullable=False)), "0 = trained, else why not"),
        _must("segments", _SEGMENT, "each token once, depth-first, parents before children"),
        _must("episodes", _EPISODE, "by episode id"),
        _must("agents", _AGENT, "by episode, agent id"),
        _must("calls", _CALL, "by episode, call id"),
        _must("completions", _COMPLETION, "by call, index"),
        _must("policy_runs", _POLICY_RUN, "which policy version sampled which tokens"),
        _must("samples", _SAMPLE, "paths of the forest, in depth-first order of their ends"),
        _must("candidate_sets", _CANDIDATE_SET, "who was sampled, kept, rejected, by whom"),
        _must("edits", _EDIT, "what was replaced by what in a context"),
        _must("rewards", _REWARD, "every reward, unmixed; no advantage is baked in"),
        _must("blobs", _BLOB, "payloads that the ids do not hold"),
    ],
    metadata={"tracestore.schema_version": str(SCHEMA_VERSION)},
)


def _spelled(field: pa.Field) -> str:
    """`name:type` with nested fields spelled out; `!` marks a field that is never null."""
    kind = field.type
    if pa.types.is_struct(kind):
        inner = ",".join(_spelled(kind.field(i)) for i in range(kind.num_fields))
        spelled = f"struct<{inner}>"
    elif pa.types.is_large_list(kind):
        spelled = f"large_list<{_spelled(kind.value_field)}>"
    elif pa.types.is_list(kind):
        spelled = f"list<{_spelled(kind.value_field)}>"
    else:
        spelled = str(kind)
    return f"{field.name}:{spelled}{'' if field.nullable else '!'}"


def schema_hash(schema: pa.Schema = SCHEMA) -> str:
    """sha256 of names, types and nullability, hex; descriptions and metadata do not count."""
    return hashlib.sha256("\n".join(_spelled(field) for field in schema).encode()).hexdigest()
