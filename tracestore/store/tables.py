"""Every table of the store, in one place to read.

How to read a table:

- `project_id` leads every key: a row, an index and a foreign key never cross the wall between tenants.
- `key` is our own int64, unique in its project, where it counts up under the lock of the project's row: from
  1, since what SQLite keeps of a number is as long as the number, or in projects of versions before 0005 from
  `project_id << 40`. `project_id << 40 | key` is unique in the whole database either way; views show that.
  `X_key` refers to the row of table X. `id` and `X_id` are the client's text.
- `pos` is the commit position at which a fact came, `end_pos` the one at which its last phase came. Every
  position is one event that was stored, so a snapshot is a number: the rows whose events came up to it.
- A row that is referred to before it came is a placeholder: `is_placeholder`, and no `pos`.
- Unknown is NULL. Times are nanoseconds UTC. Text that clients may fill freely is `ExactText`.
- Foreign keys are checked at commit, so rows of one transaction may be written in any order.

Columns that could be computed are kept only where an analyst or a linking step reads them: the match key
and depth of a node, the link of a call, the edges. `verify` recomputes each of them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import SchemaItem

from tracestore.store.types import ExactText

REVISION = "0009"
"""Migration that makes exactly these tables; `tracestore_migrations` has it as its head."""

PARTITIONS = 8
"""Parts of a large table on PostgreSQL, where each project lies in one: its rows, its indexes, its vacuum.

Large are here only tables to which little or nothing refers. PostgreSQL takes several times as long to check
a reference to a partitioned table, and contents, nodes and calls are referred to often: with them in parts
too, storing a call took 2.5 to 3 times the server's CPU (benchmarks/RESULTS.md, "PostgreSQL").
"""

KEY_BITS = 40
"""Bits of a key below the project's number: 2^40 rows for each of 2^23 projects."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "last": lambda constraint, table: list(constraint.columns)[-1].name,
        "fk": "fk_%(table_name)s_%(last)s",
    }
)


def _table(
    name: str, *items: SchemaItem | list[SchemaItem], rowid: bool = True, is_large: bool = False
) -> Table:
    """A table of one project.

    Args:
        rowid: False clusters narrow rows by their primary key on SQLite.
        is_large: PostgreSQL keeps its rows in PARTITIONS parts, by project.
    """
    flat = [part for item in items for part in (item if isinstance(item, list) else [item])]
    return Table(
        name,
        metadata,
        Column("project_id", BigInteger, nullable=False),
        *flat,
        ForeignKeyConstraint(["project_id"], ["project.project_id"]),
        sqlite_with_rowid=rowid,
        postgresql_partition_by="HASH (project_id)" if is_large else None,
    )


def _key() -> list[SchemaItem]:
    return [Column("key", BigInteger, nullable=False), PrimaryKeyConstraint("project_id", "key")]


def _id(table: str) -> list[SchemaItem]:
    return [Column("id", Text, nullable=False), UniqueConstraint("project_id", "id", name=f"uq_{table}_id")]


def _ref(column: str, table: str, *, required: bool = False) -> list[SchemaItem]:
    target = [f"{table}.project_id", f"{table}.key"]
    return [
        Column(column, BigInteger, nullable=not required),
        ForeignKeyConstraint(["project_id", column], target, deferrable=True, initially="DEFERRED"),
    ]


def _at() -> list[SchemaItem]:
    return [Column("at", BigInteger), *_ref("meta_key", "content")]


def _times() -> list[SchemaItem]:
    return [Column("started_at", BigInteger), Column("ended_at", BigInteger), *_ref("meta_key", "content")]


def _pos() -> list[SchemaItem]:
    return [Column("pos", BigInteger, nullable=False)]


def _phases() -> list[SchemaItem]:
    return [Column("end_pos", BigInteger), *_placeholder()]


def _placeholder() -> list[SchemaItem]:
    return [
        Column("pos", BigInteger),
        Column("is_placeholder", Boolean, nullable=False),
        CheckConstraint("is_placeholder = (pos IS NULL)", name="placeholder_has_no_pos"),
    ]


def _one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(
        f"{column} IN ({', '.join(repr(value) for value in values)})", name=f"{column}_is_known"
    )


def _not_negative(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} >= 0", name=f"{column}_not_negative")


def _some_index(name: str, column: str) -> Index:
    """An index of the rows that have a value there."""
    where = text(f"{column} IS NOT NULL")
    return Index(name, "project_id", column, sqlite_where=where, postgresql_where=where)


# --- Tenants ---------------------------------------------------------------------------------------

project = Table(
    "project",
    metadata,
    Column("project_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    # Position of the last committed event. Raised under a lock of this row, so a reader that sees
    # position n sees every event up to n: a plain sequence would miss rows that commit late.
    Column("commit_seq", BigInteger, nullable=False),
    Column("next_key", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("name", name="uq_project_name"),
)

# The key itself is never stored. Its hash is the one thing that is looked up without a project: the key
# alone says which project it opens.
api_key = _table(
    "api_key",
    Column("prefix", Text, nullable=False),  # the part of the key that may be shown
    Column("name", ExactText, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),  # sha256 of the key
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    PrimaryKeyConstraint("project_id", "prefix"),
    UniqueConstraint("hash", name="uq_api_key_hash"),
    _one_of("scopes", "read", "write", "read write", "admin"),
    rowid=False,
)

# A browser that showed a key: it holds a random name, we hold its hash.
session = _table(
    "session",
    Column("hash", LargeBinary, nullable=False),  # sha256 of the cookie
    Column("key_prefix", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["project_id", "key_prefix"], ["api_key.project_id", "api_key.prefix"]),
    PrimaryKeyConstraint("project_id", "hash"),
    UniqueConstraint("hash", name="uq_session_hash"),
    rowid=False,
)

# What was asked to be deleted, and how far that has come. Its steps are transactions of their own, and each
# takes a commit position, by which other servers learn that what they remember may be gone.
deletion = _table(
    "deletion",
    _key(),
    Column("what", Text, nullable=False),
    Column("name", ExactText, nullable=False),  # the episode, the project, or the rule that chose episodes
    Column("reason", ExactText),
    Column("state", Text, nullable=False),
    Column("requested_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("num_positions", BigInteger, nullable=False),  # positions that its steps took
    Column("num_events", BigInteger, nullable=False),  # positions that erased events leave empty
    Column("num_rows", BigInteger, nullable=False),
    Column("num_contents", BigInteger, nullable=False),
    Column("num_blobs", BigInteger, nullable=False),
    Column("before_at", BigInteger),  # what came before this time goes; NULL: not chosen by time
    _one_of("what", "episode", "project", "age", "content", "blobs"),
    _one_of("state", "erasing", "sweeping", "done"),
)

# Exports that may still hold what was deleted.
deletion_export = _table(
    "deletion_export",
    _ref("deletion_key", "deletion", required=True),
    Column("export_hash", ExactText, nullable=False),
    PrimaryKeyConstraint("project_id", "deletion_key", "export_hash"),
    rowid=False,
)

# What is left of something deleted: posting to its id again is refused. Of the kind `content`: an episode
# that keeps its measures alone, and what is posted to it late loses its content too.
tombstone = _table(
    "tombstone",
    Column("kind", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("deleted_at", BigInteger, nullable=False),
    Column("reason", ExactText),
    _pos(),
    # Of an episode: where its first event lay; snapshots from there up to `pos` are gone.
    Column("first_pos", BigInteger),
    Column("deletion_key", BigInteger),
    Column("erased_at", BigInteger),  # NULL: its rows still lie there
    PrimaryKeyConstraint("project_id", "kind", "id"),
    _some_index("ix_tombstone_deletion", "deletion_key"),
    rowid=False,
)

# Rows that something deleted referred to. They go with the next sweep, unless something else refers to them
# or ingest looks them up before.
doomed = _table(
    "doomed",
    Column("name", Text, nullable=False),  # of the table
    Column("key", BigInteger, nullable=False),
    _pos(),
    PrimaryKeyConstraint("project_id", "name", "key"),
    rowid=False,
)

# Rules by which text is taken out of what is stored and of what comes, and how far that has come. Its steps
# take commit positions like those of deletions.
redaction = _table(
    "redaction",
    _key(),
    Column("rules", ExactText, nullable=False),  # as JSON, see `store.rules`
    Column("reason", ExactText),
    Column("asked_by", ExactText),  # the key or the user that asked; NULL: a server without keys
    Column("state", Text, nullable=False),
    Column("requested_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("ended_at", BigInteger),  # NULL: the rules hold for what comes
    Column("after_key", BigInteger, nullable=False),  # episodes and groups up to this key are redacted
    Column("first_pos", BigInteger),  # the lowest position of an event that changed; NULL: none did
    Column("last_pos", BigInteger),  # of the last step that changed any: no snapshot before it is whole
    Column("num_positions", BigInteger, nullable=False),
    Column("num_events", BigInteger, nullable=False),  # that changed
    Column("num_values", BigInteger, nullable=False),  # pieces of text that were replaced in them
    Column("num_contents", BigInteger, nullable=False),  # that nothing refers to any more
    _one_of("state", "redacting", "sweeping", "packing", "scrubbing", "done"),
)

# --- The log of what came --------------------------------------------------------------------------

# The names of the fields that an event named, as JSON: a field posted as null is not a field left out.
field_set = _table("field_set", _key(), Column("fields", Text, nullable=False), rowid=False)

# One row per event and phase; no bodies: an event is read back from the rows of its entity. An event that is
# replaced by a higher revision moves to the position at which that came, and leaves its own empty. The id of
# an event stands in the row of its entity.
raw_event = _table(
    "raw_event",
    Column("kind", Text, nullable=False),
    Column("phase", Text, nullable=False),
    # First half of the sha256 of the posted text. A retry has the same text; an event with another text is
    # compared with the stored one by JSON value, which costs more than all else if done for every event.
    Column("text_hash", LargeBinary, nullable=False),
    Column("revision", BigInteger),  # as stated; NULL counts as 0
    _pos(),
    Column("first_pos", BigInteger),  # at which its first revision came; NULL: this is the first
    Column("num_replaced", BigInteger),  # revisions that came before this one; NULL: none
    _ref("episode_key", "episode"),  # NULL for a group
    Column("entity_key", BigInteger, nullable=False),  # the row of the kind's own table
    _ref("field_set_key", "field_set", required=True),
    Column("received_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("project_id", "pos"),
    UniqueConstraint("project_id", "entity_key", "phase", name="uq_raw_event_entity"),
    _one_of("phase", "start", "end", "whole"),
    Index("ix_raw_event_episode", "project_id", "episode_key", "pos"),
    CheckConstraint("length(text_hash) = 16", name="text_hash_has_16_bytes"),
    rowid=False,
    is_large=True,
)

# --- Bytes, stored once per project ----------------------------------------------------------------

dictionary = _table(
    "dictionary",
    _key(),
    Column("data", LargeBinary, nullable=False),
    Column("trained_at", BigInteger, nullable=False),
    Column("purpose", Text),  # `ids` or `logprobs` of token runs; NULL: contents
)

content = _table(
    "content",
    _key(),
    Column("sha256", LargeBinary, nullable=False),  # of the bytes as posted
    # What the bytes are: the role of a message (`message` where it names none), or `tools`, `skeleton`,
    # `meta`, `task`, ... One text used in two ways is two rows.
    Column("role", ExactText, nullable=False),
    Column("tool_name", ExactText),  # of the tool a message calls or answers, where it says so
    Column("codec", Text, nullable=False),
    _ref("dictionary_key", "dictionary"),
    Column("data", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes as posted
    Column("preview", ExactText),
    Column("text_lossy", Boolean, nullable=False),  # its text holds NUL or lone surrogates
    UniqueConstraint("project_id", "sha256", "role", name="uq_content_sha256"),
    _one_of("codec", "raw", "zstd"),
    CheckConstraint("length(sha256) = 32", name="sha256_has_32_bytes"),
    _not_negative("size"),
)

# A large or binary payload by its hash, which something refers to. Whether and where its bytes lie is known
# to the blob store alone (`store.blobs`), so `location` is NULL.
blob = _table(
    "blob",
    Column("hash", Text, nullable=False),  # sha256, hex
    Column("size", BigInteger),
    Column("location", ExactText),
    PrimaryKeyConstraint("project_id", "hash"),
    rowid=False,
)

# --- Episodes and agents ---------------------------------------------------------------------------

# `group` is a reserved word of SQL; everywhere else it is a group.
task_group = _table(
    "task_group",
    _key(),
    _id("task_group"),
    Column("task_id", Text),
    _ref("task_key", "content"),
    Column("size", BigInteger),
    Column("closed_by", Text),  # as the sender said; by size and by event are computed when read
    _times(),
    _phases(),
)

episode = _table(
    "episode",
    _key(),
    _id("episode"),
    _ref("group_key", "task_group"),
    Column("task_id", Text),
    _ref("task_key", "content"),
    Column("split", Text),
    Column("status", Text),
    Column("error", ExactText),
    Column("stop_reason", ExactText),
    _ref("forked_from_episode_key", "episode"),
    _ref("forked_from_call_key", "call"),
    Column("inference_only", Boolean),
    Column("first_pos", BigInteger),  # of the first event that lies in it, which may be a call
    _times(),
    _phases(),
    Index("ix_episode_group", "project_id", "group_key"),
    # Episodes are listed in the order in which they came. With their times, so that those of a range are
    # found in it without the rows of the others.
    Index("ix_episode_first_pos", "project_id", "first_pos", "started_at"),
    Index("ix_episode_task", "project_id", "task_id", "first_pos"),
    Index("ix_episode_status", "project_id", "status", "first_pos"),
    Index("ix_episode_split", "project_id", "split", "first_pos"),
    Index("ix_episode_started_at", "project_id", "started_at", "first_pos"),
)

snapshot = _table(
    "snapshot",
    _key(),
    _id("snapshot"),
    _ref("episode_key", "episode"),
    _ref("agent_key", "agent"),
    Column("hash", ExactText),
    Column("parent_hash", ExactText),
    Column("wave", BigInteger),
    Column("commit_order", BigInteger),
    Column("frozen", Boolean),
    _at(),
    _placeholder(),
    Index("ix_snapshot_episode", "project_id", "episode_key"),
)

agent = _table(
    "agent",
    _key(),
    _id("agent"),
    _ref("episode_key", "episode"),
    _ref("parent_agent_key", "agent"),
    _ref("spawned_by_call_key", "call"),
    Column("spawned_by_completion", BigInteger),
    Column("spawned_by_tool_call_id", ExactText),
    Column("role", ExactText),
    Column("name", ExactText),
    Column("depth", BigInteger),
    Column("stage", BigInteger),
    _ref("scope_prompt_key", "content"),
    Column("model", ExactText),
    Column("checkpoint", ExactText),
    Column("trainable", Boolean),
    Column("score", Double),
    _ref("return_message_key", "content"),
    Column("finding_used", Boolean),
    _ref("snapshot_key", "snapshot"),
    Column("status", Text),
    Column("error", ExactText),
    _times(),
    _phases(),
    Index("ix_agent_episode", "project_id", "episode_key"),
    Index("ix_agent_parent", "project_id", "parent_agent_key"),
)

# --- Calls and what they saw -----------------------------------------------------------------------

# A message at one exact place: (episode, parent, content). One row however many calls saw it, so a chain
# of n calls costs n rows and not n^2. `match_key` is the graph's node: two spellings of one message at
# one place are two rows with one match key, the later pointing to the first as its twin.
node = _table(
    "node",
    _key(),
    _ref("episode_key", "episode", required=True),
    _ref("parent_key", "node"),
    _ref("content_key", "content", required=True),
    Column("match_key", LargeBinary, nullable=False),
    _ref("twin_of_key", "node"),
    Column("depth", BigInteger, nullable=False),  # 0 for a root
    _pos(),
    CheckConstraint("length(match_key) = 16", name="match_key_has_16_bytes"),
    CheckConstraint("(depth = 0) = (parent_key IS NULL)", name="roots_have_depth_0"),
    # NULL is equal to nothing, so roots need an index of their own.
    Index("uq_node_place", "project_id", "episode_key", "parent_key", "content_key", unique=True),
    Index(
        "uq_node_root",
        "project_id",
        "episode_key",
        "content_key",
        unique=True,
        sqlite_where=text("parent_key IS NULL"),
        postgresql_where=text("parent_key IS NULL"),
    ),
    Index("ix_node_parent", "project_id", "parent_key"),
    _some_index("ix_node_twin_of", "twin_of_key"),
    rowid=False,
)

# Token ids as a chain of deltas: ids(run) = ids(base)[:base_length] ++ ids. A prompt is based on the
# completion it continues at their longest common prefix, a completion on its prompt.
token_run = _table(
    "token_run",
    _key(),
    _ref("base_key", "token_run"),
    Column("base_length", BigInteger, nullable=False),
    Column("num_tokens", BigInteger),  # base_length + len(ids); NULL while the prompt is not known
    Column("ids", LargeBinary, nullable=False),  # little-endian int32; empty where they are packed
    # As `runs.RunCodec` packs them, in halves where there is a `dictionary_key`, else in planes; NULL: they
    # stand in `ids`.
    Column("packed_ids", LargeBinary),
    Column("num_ids", BigInteger),  # how many are packed
    Column("logprobs", LargeBinary),  # one per id, bit for bit, as `runs.RunCodec` packs them
    Column("logprobs_dtype", Text),  # NULL: float32
    Column("logprobs_nulls", LargeBinary),  # little-endian int32: positions the server did not report
    _pos(),
    # That the ids and the logprobs are packed with. SQLite adds a foreign key to no table that is there.
    Column("dictionary_key", BigInteger),
    Column("logprobs_dictionary_key", BigInteger),
    _one_of("logprobs_dtype", "float32", "float64"),
    CheckConstraint("length(ids) % 4 = 0", name="ids_are_int32"),
    is_large=True,
)

call = _table(
    "call",
    _key(),
    _id("call"),
    _ref("episode_key", "episode"),
    _ref("agent_key", "agent"),
    Column("ordinal", BigInteger),
    Column("purpose", ExactText),
    Column("model", ExactText),
    Column("policy_name", ExactText),
    Column("policy_version", BigInteger),
    Column("provider_id", ExactText),
    Column("endpoint", ExactText),
    Column("dialect", Text),
    # The request is its skeleton with the messages of the path to `prompt_node_key` (the last
    # `own_messages` of it) and the tools put back into the holes: byte for byte what was posted.
    _ref("skeleton_key", "content"),
    _ref("tools_key", "content"),
    Column("own_messages", BigInteger),  # messages that the request itself spells out
    _ref("prompt_node_key", "node"),  # NULL: no messages, or the parent of a delta has not come
    Column("context_messages", BigInteger),  # messages the call saw; NULL while that is not known
    # Sampling parameters as the request states them.
    Column("temperature", Double),
    Column("top_p", Double),
    Column("top_k", BigInteger),
    Column("max_tokens", BigInteger),
    Column("n", BigInteger),
    Column("context", Text),
    _ref("parent_call_key", "call"),  # as named by the harness
    Column("parent_completion", BigInteger),
    # The completion that this call continues, and how that is known.
    _ref("link_call_key", "call"),
    Column("link_completion", BigInteger),
    Column("link", Text),
    Column("link_exact", Boolean),  # the linked completion stands on the call's path
    _ref("prompt_run_key", "token_run"),
    Column("prompt_ids_are", Text),
    Column("logprobs_are", Text),
    Column("non_finite", Boolean),
    Column("num_completions", BigInteger),  # posted inside the call; NULL: none were
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("cost_usd", Double),
    Column("num_attempts", BigInteger),
    Column("status", Text),
    Column("error_type", ExactText),
    Column("error_message", ExactText),
    Column("error_status_code", BigInteger),
    Column("first_token_at", BigInteger),
    _times(),
    _phases(),
    _one_of("context", "whole", "delta"),
    _one_of("prompt_ids_are", "whole", "delta"),
    _one_of("link", "named", "inferred", "matched", "ambiguous", "none"),
    Index("ix_call_episode", "project_id", "episode_key"),
    Index("ix_call_agent", "project_id", "agent_key", "ordinal"),
    Index("ix_call_prompt_node", "project_id", "prompt_node_key"),
    _some_index("ix_call_link", "link_call_key"),
)

# The own messages of a delta call whose parent has not come; they become nodes when it does.
pending_message = _table(
    "pending_message",
    _ref("call_key", "call", required=True),
    Column("position", BigInteger, nullable=False),
    _ref("content_key", "content", required=True),
    PrimaryKeyConstraint("project_id", "call_key", "position"),
    rowid=False,
)

call_attempt = _table(
    "call_attempt",
    _ref("call_key", "call", required=True),
    Column("position", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("status_code", BigInteger),
    Column("error", ExactText),
    PrimaryKeyConstraint("project_id", "call_key", "position"),
    rowid=False,
)

# Calls and completions of which no token ids are kept, since they spelled text that was redacted.
redacted_ids = _table(
    "redacted_ids",
    _ref("call_key", "call", required=True),
    Column("completion", BigInteger, nullable=False),  # its index; -1: what the call read
    PrimaryKeyConstraint("project_id", "call_key", "completion"),
    rowid=False,
)

# One answer of a call, posted inside the call, as events of its own, or both.
completion = _table(
    "completion",
    _key(),
    _ref("call_key", "call", required=True),
    Column("completion", BigInteger, nullable=False),  # its index among the answers of its call
    _ref("message_key", "content"),
    _ref("node_key", "node"),  # NULL: no message, or the place of its call is not known
    Column("finish_reason", ExactText),
    _ref("run_key", "token_run"),
    Column("num_tokens", BigInteger),  # sampled; NULL: the server gave no ids
    _ref("top_logprobs_key", "content"),
    Column("partial", Boolean),
    Column("stop_token_stripped", Boolean),
    _pos(),
    UniqueConstraint("project_id", "call_key", "completion", name="uq_completion_of_call"),
    Index("ix_completion_node", "project_id", "node_key"),
)

# A completion posted on its own; what it says of the answer stands in its completion.
completion_event = _table(
    "completion_event",
    _key(),
    _id("completion_event"),
    _ref("completion_key", "completion", required=True),
    Column("non_finite", Boolean),
    _at(),
    _pos(),
    Index("ix_completion_event_completion", "project_id", "completion_key"),
)

version_run = _table(
    "version_run",
    _ref("completion_key", "completion", required=True),
    Column("position", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),  # index of its first token in the completion
    Column("name", ExactText, nullable=False),
    Column("version", BigInteger, nullable=False),
    PrimaryKeyConstraint("project_id", "completion_key", "position"),
    rowid=False,
    is_large=True,
)

# A tool use: as the model sampled it (`position` among the uses of its message), as it was executed
# (`id`), or both, joined by the model's own id of it within one completion.
tool_call = _table(
    "tool_call",
    _key(),
    Column("id", Text),
    _ref("episode_key", "episode"),
    _ref("call_key", "call", required=True),
    Column("completion", BigInteger),  # NULL: the harness left it out, which means 0
    Column("tool_call_id", ExactText),
    Column("position", BigInteger),  # NULL: not found in the message
    Column("sampled_name", ExactText),
    Column("sampled_arguments", ExactText),  # exact argument text, parsable or not
    Column("name", ExactText),
    Column("arguments", ExactText),
    _ref("result_key", "content"),
    Column("status", Text),
    Column("error", ExactText),
    Column("exit_status", BigInteger),
    _times(),
    Column("pos", BigInteger, nullable=False),
    Column("end_pos", BigInteger),
    UniqueConstraint("project_id", "id", name="uq_tool_call_id"),
    CheckConstraint("id IS NOT NULL OR position IS NOT NULL", name="sampled_or_executed"),
    Index("ix_tool_call_call", "project_id", "call_key"),
    Index("ix_tool_call_episode", "project_id", "episode_key"),
    is_large=True,
)

# --- What happened to contexts ---------------------------------------------------------------------

context_edit = _table(
    "context_edit",
    _key(),
    _id("context_edit"),
    _ref("episode_key", "episode", required=True),
    _ref("agent_key", "agent", required=True),
    Column("edit", Text, nullable=False),
    Column("trigger", Text),
    _ref("trigger_call_key", "call"),
    Column("trigger_tool_call_id", ExactText),
    Column("author", Text),
    _ref("author_call_key", "call"),
    Column("author_completion", BigInteger),
    _ref("before_call_key", "call"),
    _ref("after_call_key", "call"),
    Column("tokens_before", BigInteger),
    Column("tokens_after", BigInteger),
    Column("status", Text),
    Column("reason", ExactText),
    _at(),
    _pos(),
    Index("ix_context_edit_episode", "project_id", "episode_key"),
)

context_edit_member = _table(
    "context_edit_member",
    _ref("context_edit_key", "context_edit", required=True),
    Column("part", Text, nullable=False),  # replaced: stood for by the replacement; kept: sent again after it
    Column("position", BigInteger, nullable=False),
    _ref("call_key", "call", required=True),
    PrimaryKeyConstraint("project_id", "context_edit_key", "part", "position"),
    _one_of("part", "replaced", "kept"),
    rowid=False,
)

# Typed relations between calls, agents, episodes and context edits, read from both ends. Which completion a
# call continues is no row here but `call.link_call_key`; the view `edges` shows both. (The constraint still
# names `continuation`, which versions before 0004 wrote: SQLite changes none without writing the table anew.)
#   spawn         from_call or from_agent -> to_agent
#   fork          from_call or from_episode -> to_episode
#   edit_before   from_call -> edit        last call that saw the old context
#   edit_after    edit -> to_call          first call that saw the new one
#   summary       from_call -> edit        whose completion is the replacement
#   replaced      from_call -> edit        whose messages it stands for
#   copy          from_call -> edit        whose messages were sent again after it
edge = _table(
    "edge",
    Column("kind", Text, nullable=False),
    Column("owner_key", BigInteger, nullable=False),  # of the call, agent, episode or edit that states it
    Column("position", BigInteger, nullable=False),  # among the owner's edges of this kind
    _ref("episode_key", "episode"),
    _ref("from_call_key", "call"),
    Column("from_completion", BigInteger),
    _ref("from_agent_key", "agent"),
    _ref("from_episode_key", "episode"),
    Column("tool_call_id", ExactText),
    _ref("to_call_key", "call"),
    _ref("to_agent_key", "agent"),
    _ref("to_episode_key", "episode"),
    _ref("context_edit_key", "context_edit"),
    PrimaryKeyConstraint("project_id", "kind", "owner_key", "position"),
    _one_of(
        "kind",
        "continuation",
        "spawn",
        "fork",
        "edit_before",
        "edit_after",
        "summary",
        "replaced",
        "copy",
    ),
    _some_index("ix_edge_from_call", "from_call_key"),
    _some_index("ix_edge_from_agent", "from_agent_key"),
    _some_index("ix_edge_from_episode", "from_episode_key"),
    _some_index("ix_edge_to_call", "to_call_key"),
    _some_index("ix_edge_to_agent", "to_agent_key"),
    _some_index("ix_edge_to_episode", "to_episode_key"),
    _some_index("ix_edge_context_edit", "context_edit_key"),
    Index("ix_edge_episode", "project_id", "episode_key"),
    rowid=False,
    is_large=True,
)

# --- Candidates and rewards ------------------------------------------------------------------------

candidate_set = _table(
    "candidate_set",
    _key(),
    _id("candidate_set"),
    _ref("episode_key", "episode"),
    _ref("agent_key", "agent"),
    Column("generator", ExactText),
    _at(),
    _placeholder(),
    Index("ix_candidate_set_episode", "project_id", "episode_key"),
)

candidate_member = _table(
    "candidate_member",
    _ref("candidate_set_key", "candidate_set", required=True),
    Column("member", BigInteger, nullable=False),
    _ref("call_key", "call"),
    Column("completion", BigInteger),
    _ref("agent_key", "agent"),
    Column("score", Double),
    PrimaryKeyConstraint("project_id", "candidate_set_key", "member"),
    CheckConstraint("(call_key IS NULL) <> (agent_key IS NULL)", name="names_one_thing"),
    rowid=False,
)

candidate_selection = _table(
    "candidate_selection",
    _key(),
    _id("candidate_selection"),
    _ref("episode_key", "episode", required=True),
    _ref("candidate_set_key", "candidate_set", required=True),
    Column("selector", Text),
    Column("selector_version", ExactText),
    _ref("selector_call_key", "call"),
    Column("treatment", Text),
    Column("reason", ExactText),
    _at(),
    _pos(),
    Index("ix_candidate_selection_set", "project_id", "candidate_set_key"),
    Index("ix_candidate_selection_episode", "project_id", "episode_key"),
)

# What a selection says of members, each list in its posted order.
candidate_choice = _table(
    "candidate_choice",
    _ref("candidate_selection_key", "candidate_selection", required=True),
    Column("part", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("member", BigInteger, nullable=False),
    Column("score", Double),
    PrimaryKeyConstraint("project_id", "candidate_selection_key", "part", "position"),
    _one_of("part", "selected", "continued", "score"),
    rowid=False,
)

# `pos` is the order in which rewards came (`seq` of a shard).
reward = _table(
    "reward",
    _key(),
    _id("reward"),
    _ref("episode_key", "episode", required=True),
    Column("target", Text, nullable=False),  # the finest thing it is for
    _ref("agent_key", "agent"),
    _ref("call_key", "call"),
    Column("completion", BigInteger),
    _ref("candidate_set_key", "candidate_set"),
    Column("member", BigInteger),
    Column("token_start", BigInteger),
    Column("token_length", BigInteger),
    Column("name", ExactText, nullable=False),
    Column("value", Double, nullable=False),
    Column("weight", Double),
    Column("scorer", ExactText),
    Column("scorer_version", ExactText),
    _at(),
    _pos(),
    _one_of("target", "episode", "agent", "call", "completion", "candidate", "tokens"),
    Index("ix_reward_episode", "project_id", "episode_key"),
)

gap = _table(
    "gap",
    _key(),
    _id("gap"),
    _ref("episode_key", "episode", required=True),
    _ref("agent_key", "agent"),
    _ref("call_key", "call"),
    Column("cause", ExactText, nullable=False),
    Column("detail", ExactText),
    _at(),
    _pos(),
    Index("ix_gap_episode", "project_id", "episode_key"),
)

blob_ref = _table(
    "blob_ref",
    _key(),
    _id("blob_ref"),
    _ref("episode_key", "episode", required=True),
    Column("hash", Text, nullable=False),
    Column("role", ExactText),
    Column("media_type", ExactText),
    Column("dtype", ExactText),
    Column("shape", Text),  # "4,896,2", outermost first; "" is a scalar
    Column("size", BigInteger),
    _ref("agent_key", "agent"),
    _ref("call_key", "call"),
    Column("completion", BigInteger),
    Column("position", BigInteger),
    _at(),
    _pos(),
    ForeignKeyConstraint(
        ["project_id", "hash"], ["blob.project_id", "blob.hash"], deferrable=True, initially="DEFERRED"
    ),
    Index("ix_blob_ref_episode", "project_id", "episode_key"),
)

# --- What became of it -----------------------------------------------------------------------------

# The view that analysts read is `consumption`.
consumption = _table(
    "consumption_event",
    _key(),
    _id("consumption_event"),
    _ref("episode_key", "episode", required=True),
    _ref("call_key", "call", required=True),
    Column("completion", BigInteger),  # NULL: the trainer left it out, which means 0
    Column("run", ExactText, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("export_hash", ExactText, nullable=False),
    Column("shard", ExactText, nullable=False),
    Column("sample_id", ExactText, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    _at(),
    _pos(),
    Index("ix_consumption_episode", "project_id", "episode_key"),
    Index("ix_consumption_call", "project_id", "call_key"),
)

export = _table(
    "export",
    _key(),
    Column("manifest_hash", Text, nullable=False),
    Column("location", ExactText, nullable=False),
    Column("spec", ExactText, nullable=False),
    Column("snapshot_pos", BigInteger, nullable=False),
    Column("sampled_tokens", BigInteger, nullable=False),
    Column("trained_tokens", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("project_id", "manifest_hash", name="uq_export_manifest_hash"),
)

shard = _table(
    "shard",
    _key(),
    _ref("export_key", "export", required=True),
    Column("file", ExactText, nullable=False),
    Column("num_rows", BigInteger, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("trained_tokens", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    UniqueConstraint("project_id", "export_key", "file", name="uq_shard_file"),
)

sample = _table(
    "sample",
    _key(),
    _ref("shard_key", "shard", required=True),
    Column("sample_id", ExactText, nullable=False),
    _ref("episode_key", "episode", required=True),
    _ref("agent_key", "agent"),
    Column("cause", Text, nullable=False),  # why a new sample begins here
    Column("num_tokens", BigInteger, nullable=False),
    Column("trained_tokens", BigInteger, nullable=False),
    UniqueConstraint("project_id", "shard_key", "sample_id", name="uq_sample_id"),
    Index("ix_sample_episode", "project_id", "episode_key"),
)

sample_call = _table(
    "sample_call",
    _ref("sample_key", "sample", required=True),
    Column("position", BigInteger, nullable=False),
    _ref("call_key", "call", required=True),
    Column("completion", BigInteger, nullable=False),
    Column("trained_tokens", BigInteger, nullable=False),
    PrimaryKeyConstraint("project_id", "sample_key", "position"),
    Index("ix_sample_call_call", "project_id", "call_key"),
    rowid=False,
)

# What a credit rule gave each branch of an export; all that one rule gave at one step has one `version`. The
# view that analysts read is `credit`.
branch_credit = _table(
    "branch_credit",
    _key(),
    Column("version", BigInteger, nullable=False),
    Column("export_hash", ExactText, nullable=False),
    Column("rows_hash", ExactText, nullable=False),  # of an export that goes on: the rows that it had
    Column("rule", ExactText, nullable=False),
    Column("reward_terms", ExactText),
    Column("step", BigInteger, nullable=False),
    Column("sample_id", ExactText, nullable=False),
    _ref("episode_key", "episode", required=True),
    _ref("agent_key", "agent"),
    Column("cause", Text, nullable=False),
    Column("reward", Double),
    Column("advantage_min", Double),
    Column("advantage_mean", Double),
    Column("advantage_max", Double),
    Column("tokens", BigInteger, nullable=False),
    Column("notes", ExactText),
    Column("written_at", BigInteger, nullable=False),
    Index("ix_branch_credit_episode", "project_id", "episode_key"),
    Index("ix_branch_credit_version", "project_id", "version"),
    Index("ix_branch_credit_export", "project_id", "export_hash"),
)
