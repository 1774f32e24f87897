"""The first schema: every table and view.

There are no rows yet that it could do anything to.
"""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    later: list[tuple[str, sa.ForeignKeyConstraint]] = []
    _tables(later)
    for table, constraint in later:
        op.create_foreign_key(
            str(constraint.name),
            table,
            constraint.elements[0].target_fullname.partition(".")[0],
            list(constraint.column_keys),
            [element.target_fullname.partition(".")[2] for element in constraint.elements],
            deferrable=constraint.deferrable,
            initially=constraint.initially,
        )
    for view in _VIEWS:
        op.execute(view)


def _create_index(
    name: str, table: str, *columns: str, unique: bool = False, where: str | None = None
) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(
        name, table, list(columns), unique=unique, sqlite_where=condition, postgresql_where=condition
    )


def _tables(later: list[tuple[str, sa.ForeignKeyConstraint]]) -> None:
    """Create the tables; `later` takes the foreign keys that must wait until all of them are there."""
    # Tables refer to each other in circles. SQLite takes a reference to a table that is not there yet, and
    # cannot add a constraint afterwards; PostgreSQL is the other way round.
    is_sqlite = op.get_bind().dialect.name == "sqlite"

    def _create_table(
        name: str, *parts: sa.schema.SchemaItem, refers_to: dict[str, str] | None = None, **options: Any
    ) -> None:
        keys = [_foreign_key(name, column, target) for column, target in (refers_to or {}).items()]
        if name != "project":
            keys.append(
                sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name=f"fk_{name}_project_id")
            )
        op.create_table(name, *parts, *(keys if is_sqlite else ()), **options)
        if not is_sqlite:
            later.extend((name, key) for key in keys)

    _create_table(
        "project",
        sa.Column("project_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("commit_seq", sa.BigInteger(), nullable=False),
        sa.Column("next_key", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", name="pk_project"),
        sa.UniqueConstraint("name", name="uq_project_name"),
    )
    _create_table(
        "api_key",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_api_key"),
        sa.UniqueConstraint("project_id", "hash", name="uq_api_key_hash"),
    )
    _create_table(
        "tombstone",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "kind", "id", name="pk_tombstone"),
        sqlite_with_rowid=False,
    )
    _create_table(
        "redaction",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("content_key", sa.BigInteger(), nullable=False),
        sa.Column("rule", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("redacted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_redaction"),
        refers_to={"content_key": "content"},
    )
    _create_table(
        "field_set",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_field_set"),
        sqlite_with_rowid=False,
    )
    _create_table(
        "raw_event",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("text_hash", sa.LargeBinary(), nullable=False),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("entity_key", sa.BigInteger(), nullable=False),
        sa.Column("field_set_key", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "kind", "id", "phase", name="pk_raw_event"),
        sa.UniqueConstraint("project_id", "pos", name="uq_raw_event_pos"),
        sa.CheckConstraint("phase IN ('start', 'end', 'whole')", name=op.f("ck_raw_event_phase_is_known")),
        refers_to={"episode_key": "episode", "field_set_key": "field_set"},
        sqlite_with_rowid=False,
    )
    _create_index("ix_raw_event_episode", "raw_event", "project_id", "episode_key", "pos")
    _create_table(
        "dictionary",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("trained_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_dictionary"),
    )
    _create_table(
        "content",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text()),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("dictionary_key", sa.BigInteger()),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("preview", sa.Text()),
        sa.Column("text_lossy", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_content"),
        sa.UniqueConstraint("project_id", "sha256", "role", name="uq_content_sha256"),
        sa.CheckConstraint("codec IN ('raw', 'zstd')", name=op.f("ck_content_codec_is_known")),
        sa.CheckConstraint("length(sha256) = 32", name=op.f("ck_content_sha256_has_32_bytes")),
        sa.CheckConstraint("size >= 0", name=op.f("ck_content_size_not_negative")),
        refers_to={"dictionary_key": "dictionary"},
    )
    _create_table(
        "blob",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger()),
        sa.Column("location", sa.Text()),
        sa.PrimaryKeyConstraint("project_id", "hash", name="pk_blob"),
        sqlite_with_rowid=False,
    )
    _create_table(
        "task_group",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text()),
        sa.Column("task_key", sa.BigInteger()),
        sa.Column("size", sa.BigInteger()),
        sa.Column("closed_by", sa.Text()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("end_pos", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger()),
        sa.Column("is_placeholder", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_task_group"),
        sa.UniqueConstraint("project_id", "id", name="uq_task_group_id"),
        sa.CheckConstraint(
            "is_placeholder = (pos IS NULL)", name=op.f("ck_task_group_placeholder_has_no_pos")
        ),
        refers_to={"task_key": "content", "meta_key": "content"},
    )
    _create_table(
        "episode",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("group_key", sa.BigInteger()),
        sa.Column("task_id", sa.Text()),
        sa.Column("task_key", sa.BigInteger()),
        sa.Column("split", sa.Text()),
        sa.Column("status", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("stop_reason", sa.Text()),
        sa.Column("forked_from_episode_key", sa.BigInteger()),
        sa.Column("forked_from_call_key", sa.BigInteger()),
        sa.Column("inference_only", sa.Boolean()),
        sa.Column("first_pos", sa.BigInteger()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("end_pos", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger()),
        sa.Column("is_placeholder", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_episode"),
        sa.UniqueConstraint("project_id", "id", name="uq_episode_id"),
        sa.CheckConstraint("is_placeholder = (pos IS NULL)", name=op.f("ck_episode_placeholder_has_no_pos")),
        refers_to={
            "group_key": "task_group",
            "task_key": "content",
            "forked_from_episode_key": "episode",
            "forked_from_call_key": "call",
            "meta_key": "content",
        },
    )
    _create_index("ix_episode_first_pos", "episode", "project_id", "first_pos")
    _create_index("ix_episode_group", "episode", "project_id", "group_key")
    _create_table(
        "snapshot",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("hash", sa.Text()),
        sa.Column("parent_hash", sa.Text()),
        sa.Column("wave", sa.BigInteger()),
        sa.Column("commit_order", sa.BigInteger()),
        sa.Column("frozen", sa.Boolean()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger()),
        sa.Column("is_placeholder", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_snapshot"),
        sa.UniqueConstraint("project_id", "id", name="uq_snapshot_id"),
        sa.CheckConstraint("is_placeholder = (pos IS NULL)", name=op.f("ck_snapshot_placeholder_has_no_pos")),
        refers_to={"episode_key": "episode", "agent_key": "agent", "meta_key": "content"},
    )
    _create_index("ix_snapshot_episode", "snapshot", "project_id", "episode_key")
    _create_table(
        "agent",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("parent_agent_key", sa.BigInteger()),
        sa.Column("spawned_by_call_key", sa.BigInteger()),
        sa.Column("spawned_by_completion", sa.BigInteger()),
        sa.Column("spawned_by_tool_call_id", sa.Text()),
        sa.Column("role", sa.Text()),
        sa.Column("name", sa.Text()),
        sa.Column("depth", sa.BigInteger()),
        sa.Column("stage", sa.BigInteger()),
        sa.Column("scope_prompt_key", sa.BigInteger()),
        sa.Column("model", sa.Text()),
        sa.Column("checkpoint", sa.Text()),
        sa.Column("trainable", sa.Boolean()),
        sa.Column("score", sa.Double()),
        sa.Column("return_message_key", sa.BigInteger()),
        sa.Column("finding_used", sa.Boolean()),
        sa.Column("snapshot_key", sa.BigInteger()),
        sa.Column("status", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("end_pos", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger()),
        sa.Column("is_placeholder", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_agent"),
        sa.UniqueConstraint("project_id", "id", name="uq_agent_id"),
        sa.CheckConstraint("is_placeholder = (pos IS NULL)", name=op.f("ck_agent_placeholder_has_no_pos")),
        refers_to={
            "episode_key": "episode",
            "parent_agent_key": "agent",
            "spawned_by_call_key": "call",
            "scope_prompt_key": "content",
            "return_message_key": "content",
            "snapshot_key": "snapshot",
            "meta_key": "content",
        },
    )
    _create_index("ix_agent_episode", "agent", "project_id", "episode_key")
    _create_index("ix_agent_parent", "agent", "project_id", "parent_agent_key")
    _create_table(
        "node",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("parent_key", sa.BigInteger()),
        sa.Column("content_key", sa.BigInteger(), nullable=False),
        sa.Column("match_key", sa.LargeBinary(), nullable=False),
        sa.Column("twin_of_key", sa.BigInteger()),
        sa.Column("depth", sa.BigInteger(), nullable=False),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_node"),
        sa.CheckConstraint("length(match_key) = 16", name=op.f("ck_node_match_key_has_16_bytes")),
        sa.CheckConstraint("(depth = 0) = (parent_key IS NULL)", name=op.f("ck_node_roots_have_depth_0")),
        refers_to={
            "episode_key": "episode",
            "parent_key": "node",
            "content_key": "content",
            "twin_of_key": "node",
        },
        sqlite_with_rowid=False,
    )
    _create_index("ix_node_parent", "node", "project_id", "parent_key")
    _create_index("ix_node_twin_of", "node", "project_id", "twin_of_key", where="twin_of_key IS NOT NULL")
    _create_index(
        "uq_node_place", "node", "project_id", "episode_key", "parent_key", "content_key", unique=True
    )
    _create_index(
        "uq_node_root",
        "node",
        "project_id",
        "episode_key",
        "content_key",
        unique=True,
        where="parent_key IS NULL",
    )
    _create_table(
        "token_run",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("base_key", sa.BigInteger()),
        sa.Column("base_length", sa.BigInteger(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger()),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary()),
        sa.Column("logprobs_dtype", sa.Text()),
        sa.Column("logprobs_nulls", sa.LargeBinary()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_token_run"),
        sa.CheckConstraint("length(ids) % 4 = 0", name=op.f("ck_token_run_ids_are_int32")),
        sa.CheckConstraint(
            "logprobs_dtype IN ('float32', 'float64')", name=op.f("ck_token_run_logprobs_dtype_is_known")
        ),
        refers_to={"base_key": "token_run"},
    )
    _create_table(
        "call",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("ordinal", sa.BigInteger()),
        sa.Column("purpose", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("policy_name", sa.Text()),
        sa.Column("policy_version", sa.BigInteger()),
        sa.Column("provider_id", sa.Text()),
        sa.Column("endpoint", sa.Text()),
        sa.Column("dialect", sa.Text()),
        sa.Column("skeleton_key", sa.BigInteger()),
        sa.Column("tools_key", sa.BigInteger()),
        sa.Column("own_messages", sa.BigInteger()),
        sa.Column("prompt_node_key", sa.BigInteger()),
        sa.Column("context_messages", sa.BigInteger()),
        sa.Column("temperature", sa.Double()),
        sa.Column("top_p", sa.Double()),
        sa.Column("top_k", sa.BigInteger()),
        sa.Column("max_tokens", sa.BigInteger()),
        sa.Column("n", sa.BigInteger()),
        sa.Column("context", sa.Text()),
        sa.Column("parent_call_key", sa.BigInteger()),
        sa.Column("parent_completion", sa.BigInteger()),
        sa.Column("link_call_key", sa.BigInteger()),
        sa.Column("link_completion", sa.BigInteger()),
        sa.Column("link", sa.Text()),
        sa.Column("link_exact", sa.Boolean()),
        sa.Column("prompt_run_key", sa.BigInteger()),
        sa.Column("prompt_ids_are", sa.Text()),
        sa.Column("logprobs_are", sa.Text()),
        sa.Column("non_finite", sa.Boolean()),
        sa.Column("num_completions", sa.BigInteger()),
        sa.Column("prompt_tokens", sa.BigInteger()),
        sa.Column("cached_tokens", sa.BigInteger()),
        sa.Column("completion_tokens", sa.BigInteger()),
        sa.Column("reasoning_tokens", sa.BigInteger()),
        sa.Column("cost_usd", sa.Double()),
        sa.Column("num_attempts", sa.BigInteger()),
        sa.Column("status", sa.Text()),
        sa.Column("error_type", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("error_status_code", sa.BigInteger()),
        sa.Column("first_token_at", sa.BigInteger()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("end_pos", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger()),
        sa.Column("is_placeholder", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_call"),
        sa.UniqueConstraint("project_id", "id", name="uq_call_id"),
        sa.CheckConstraint("context IN ('whole', 'delta')", name=op.f("ck_call_context_is_known")),
        sa.CheckConstraint(
            "link IN ('named', 'inferred', 'matched', 'ambiguous', 'none')",
            name=op.f("ck_call_link_is_known"),
        ),
        sa.CheckConstraint("is_placeholder = (pos IS NULL)", name=op.f("ck_call_placeholder_has_no_pos")),
        sa.CheckConstraint(
            "prompt_ids_are IN ('whole', 'delta')", name=op.f("ck_call_prompt_ids_are_is_known")
        ),
        refers_to={
            "episode_key": "episode",
            "agent_key": "agent",
            "skeleton_key": "content",
            "tools_key": "content",
            "prompt_node_key": "node",
            "parent_call_key": "call",
            "link_call_key": "call",
            "prompt_run_key": "token_run",
            "meta_key": "content",
        },
    )
    _create_index("ix_call_agent", "call", "project_id", "agent_key", "ordinal")
    _create_index("ix_call_episode", "call", "project_id", "episode_key")
    _create_index("ix_call_parent", "call", "project_id", "parent_call_key")
    _create_index("ix_call_prompt_node", "call", "project_id", "prompt_node_key")
    _create_table(
        "pending_message",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("call_key", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("content_key", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "call_key", "position", name="pk_pending_message"),
        refers_to={"call_key": "call", "content_key": "content"},
        sqlite_with_rowid=False,
    )
    _create_table(
        "call_attempt",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("call_key", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("status_code", sa.BigInteger()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("project_id", "call_key", "position", name="pk_call_attempt"),
        refers_to={"call_key": "call"},
        sqlite_with_rowid=False,
    )
    _create_table(
        "completion",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("call_key", sa.BigInteger(), nullable=False),
        sa.Column("completion", sa.BigInteger(), nullable=False),
        sa.Column("message_key", sa.BigInteger()),
        sa.Column("node_key", sa.BigInteger()),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("run_key", sa.BigInteger()),
        sa.Column("num_tokens", sa.BigInteger()),
        sa.Column("top_logprobs_key", sa.BigInteger()),
        sa.Column("partial", sa.Boolean()),
        sa.Column("stop_token_stripped", sa.Boolean()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_completion"),
        sa.UniqueConstraint("project_id", "call_key", "completion", name="uq_completion_of_call"),
        refers_to={
            "call_key": "call",
            "message_key": "content",
            "node_key": "node",
            "run_key": "token_run",
            "top_logprobs_key": "content",
        },
    )
    _create_index("ix_completion_node", "completion", "project_id", "node_key")
    _create_table(
        "completion_event",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("completion_key", sa.BigInteger(), nullable=False),
        sa.Column("non_finite", sa.Boolean()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_completion_event"),
        sa.UniqueConstraint("project_id", "id", name="uq_completion_event_id"),
        refers_to={"completion_key": "completion", "meta_key": "content"},
    )
    _create_index("ix_completion_event_completion", "completion_event", "project_id", "completion_key")
    _create_table(
        "version_run",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("completion_key", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "completion_key", "position", name="pk_version_run"),
        refers_to={"completion_key": "completion"},
        sqlite_with_rowid=False,
    )
    _create_table(
        "tool_call",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text()),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("call_key", sa.BigInteger(), nullable=False),
        sa.Column("completion", sa.BigInteger()),
        sa.Column("tool_call_id", sa.Text()),
        sa.Column("position", sa.BigInteger()),
        sa.Column("sampled_name", sa.Text()),
        sa.Column("sampled_arguments", sa.Text()),
        sa.Column("name", sa.Text()),
        sa.Column("arguments", sa.Text()),
        sa.Column("result_key", sa.BigInteger()),
        sa.Column("status", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("exit_status", sa.BigInteger()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.Column("end_pos", sa.BigInteger()),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_tool_call"),
        sa.UniqueConstraint("project_id", "id", name="uq_tool_call_id"),
        sa.CheckConstraint(
            "id IS NOT NULL OR position IS NOT NULL", name=op.f("ck_tool_call_sampled_or_executed")
        ),
        refers_to={
            "episode_key": "episode",
            "call_key": "call",
            "result_key": "content",
            "meta_key": "content",
        },
    )
    _create_index("ix_tool_call_call", "tool_call", "project_id", "call_key")
    _create_index("ix_tool_call_episode", "tool_call", "project_id", "episode_key")
    _create_table(
        "context_edit",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("agent_key", sa.BigInteger(), nullable=False),
        sa.Column("edit", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text()),
        sa.Column("trigger_call_key", sa.BigInteger()),
        sa.Column("trigger_tool_call_id", sa.Text()),
        sa.Column("author", sa.Text()),
        sa.Column("author_call_key", sa.BigInteger()),
        sa.Column("author_completion", sa.BigInteger()),
        sa.Column("before_call_key", sa.BigInteger()),
        sa.Column("after_call_key", sa.BigInteger()),
        sa.Column("tokens_before", sa.BigInteger()),
        sa.Column("tokens_after", sa.BigInteger()),
        sa.Column("status", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_context_edit"),
        sa.UniqueConstraint("project_id", "id", name="uq_context_edit_id"),
        refers_to={
            "episode_key": "episode",
            "agent_key": "agent",
            "trigger_call_key": "call",
            "author_call_key": "call",
            "before_call_key": "call",
            "after_call_key": "call",
            "meta_key": "content",
        },
    )
    _create_index("ix_context_edit_episode", "context_edit", "project_id", "episode_key")
    _create_table(
        "context_edit_member",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("context_edit_key", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("call_key", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "project_id", "context_edit_key", "part", "position", name="pk_context_edit_member"
        ),
        sa.CheckConstraint("part IN ('replaced', 'kept')", name=op.f("ck_context_edit_member_part_is_known")),
        refers_to={"context_edit_key": "context_edit", "call_key": "call"},
        sqlite_with_rowid=False,
    )
    _create_table(
        "edge",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner_key", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("from_call_key", sa.BigInteger()),
        sa.Column("from_completion", sa.BigInteger()),
        sa.Column("from_agent_key", sa.BigInteger()),
        sa.Column("from_episode_key", sa.BigInteger()),
        sa.Column("tool_call_id", sa.Text()),
        sa.Column("to_call_key", sa.BigInteger()),
        sa.Column("to_agent_key", sa.BigInteger()),
        sa.Column("to_episode_key", sa.BigInteger()),
        sa.Column("context_edit_key", sa.BigInteger()),
        sa.PrimaryKeyConstraint("project_id", "kind", "owner_key", "position", name="pk_edge"),
        sa.CheckConstraint(
            "kind IN ('continuation', 'spawn', 'fork', 'edit_before', 'edit_after', 'summary', 'replaced', 'copy')",
            name=op.f("ck_edge_kind_is_known"),
        ),
        refers_to={
            "episode_key": "episode",
            "from_call_key": "call",
            "from_agent_key": "agent",
            "from_episode_key": "episode",
            "to_call_key": "call",
            "to_agent_key": "agent",
            "to_episode_key": "episode",
            "context_edit_key": "context_edit",
        },
        sqlite_with_rowid=False,
    )
    _create_index(
        "ix_edge_context_edit", "edge", "project_id", "context_edit_key", where="context_edit_key IS NOT NULL"
    )
    _create_index("ix_edge_episode", "edge", "project_id", "episode_key")
    _create_index(
        "ix_edge_from_agent", "edge", "project_id", "from_agent_key", where="from_agent_key IS NOT NULL"
    )
    _create_index(
        "ix_edge_from_call", "edge", "project_id", "from_call_key", where="from_call_key IS NOT NULL"
    )
    _create_index(
        "ix_edge_from_episode", "edge", "project_id", "from_episode_key", where="from_episode_key IS NOT NULL"
    )
    _create_index("ix_edge_to_agent", "edge", "project_id", "to_agent_key", where="to_agent_key IS NOT NULL")
    _create_index("ix_edge_to_call", "edge", "project_id", "to_call_key", where="to_call_key IS NOT NULL")
    _create_index(
        "ix_edge_to_episode", "edge", "project_id", "to_episode_key", where="to_episode_key IS NOT NULL"
    )
    _create_table(
        "candidate_set",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("generator", sa.Text()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger()),
        sa.Column("is_placeholder", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_candidate_set"),
        sa.UniqueConstraint("project_id", "id", name="uq_candidate_set_id"),
        sa.CheckConstraint(
            "is_placeholder = (pos IS NULL)", name=op.f("ck_candidate_set_placeholder_has_no_pos")
        ),
        refers_to={"episode_key": "episode", "agent_key": "agent", "meta_key": "content"},
    )
    _create_index("ix_candidate_set_episode", "candidate_set", "project_id", "episode_key")
    _create_table(
        "candidate_member",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("candidate_set_key", sa.BigInteger(), nullable=False),
        sa.Column("member", sa.BigInteger(), nullable=False),
        sa.Column("call_key", sa.BigInteger()),
        sa.Column("completion", sa.BigInteger()),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("score", sa.Double()),
        sa.PrimaryKeyConstraint("project_id", "candidate_set_key", "member", name="pk_candidate_member"),
        sa.CheckConstraint(
            "(call_key IS NULL) <> (agent_key IS NULL)", name=op.f("ck_candidate_member_names_one_thing")
        ),
        refers_to={"candidate_set_key": "candidate_set", "call_key": "call", "agent_key": "agent"},
        sqlite_with_rowid=False,
    )
    _create_table(
        "candidate_selection",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("candidate_set_key", sa.BigInteger(), nullable=False),
        sa.Column("selector", sa.Text()),
        sa.Column("selector_version", sa.Text()),
        sa.Column("selector_call_key", sa.BigInteger()),
        sa.Column("treatment", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_candidate_selection"),
        sa.UniqueConstraint("project_id", "id", name="uq_candidate_selection_id"),
        refers_to={
            "episode_key": "episode",
            "candidate_set_key": "candidate_set",
            "selector_call_key": "call",
            "meta_key": "content",
        },
    )
    _create_index("ix_candidate_selection_episode", "candidate_selection", "project_id", "episode_key")
    _create_index("ix_candidate_selection_set", "candidate_selection", "project_id", "candidate_set_key")
    _create_table(
        "candidate_choice",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("candidate_selection_key", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("member", sa.BigInteger(), nullable=False),
        sa.Column("score", sa.Double()),
        sa.PrimaryKeyConstraint(
            "project_id", "candidate_selection_key", "part", "position", name="pk_candidate_choice"
        ),
        sa.CheckConstraint(
            "part IN ('selected', 'continued', 'score')", name=op.f("ck_candidate_choice_part_is_known")
        ),
        refers_to={"candidate_selection_key": "candidate_selection"},
        sqlite_with_rowid=False,
    )
    _create_table(
        "reward",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("call_key", sa.BigInteger()),
        sa.Column("completion", sa.BigInteger()),
        sa.Column("candidate_set_key", sa.BigInteger()),
        sa.Column("member", sa.BigInteger()),
        sa.Column("token_start", sa.BigInteger()),
        sa.Column("token_length", sa.BigInteger()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double()),
        sa.Column("scorer", sa.Text()),
        sa.Column("scorer_version", sa.Text()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_reward"),
        sa.UniqueConstraint("project_id", "id", name="uq_reward_id"),
        sa.CheckConstraint(
            "target IN ('episode', 'agent', 'call', 'completion', 'candidate', 'tokens')",
            name=op.f("ck_reward_target_is_known"),
        ),
        refers_to={
            "episode_key": "episode",
            "agent_key": "agent",
            "call_key": "call",
            "candidate_set_key": "candidate_set",
            "meta_key": "content",
        },
    )
    _create_index("ix_reward_episode", "reward", "project_id", "episode_key")
    _create_table(
        "gap",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("call_key", sa.BigInteger()),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_gap"),
        sa.UniqueConstraint("project_id", "id", name="uq_gap_id"),
        refers_to={"episode_key": "episode", "agent_key": "agent", "call_key": "call", "meta_key": "content"},
    )
    _create_index("ix_gap_episode", "gap", "project_id", "episode_key")
    _create_table(
        "blob_ref",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("role", sa.Text()),
        sa.Column("media_type", sa.Text()),
        sa.Column("dtype", sa.Text()),
        sa.Column("shape", sa.Text()),
        sa.Column("size", sa.BigInteger()),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("call_key", sa.BigInteger()),
        sa.Column("completion", sa.BigInteger()),
        sa.Column("position", sa.BigInteger()),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_blob_ref"),
        sa.UniqueConstraint("project_id", "id", name="uq_blob_ref_id"),
        refers_to={
            "episode_key": "episode",
            "hash": "blob.hash",
            "agent_key": "agent",
            "call_key": "call",
            "meta_key": "content",
        },
    )
    _create_index("ix_blob_ref_episode", "blob_ref", "project_id", "episode_key")
    _create_table(
        "consumption_event",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("call_key", sa.BigInteger(), nullable=False),
        sa.Column("completion", sa.BigInteger()),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("export_hash", sa.Text(), nullable=False),
        sa.Column("shard", sa.Text(), nullable=False),
        sa.Column("sample_id", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger()),
        sa.Column("meta_key", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_consumption_event"),
        sa.UniqueConstraint("project_id", "id", name="uq_consumption_event_id"),
        refers_to={"episode_key": "episode", "call_key": "call", "meta_key": "content"},
    )
    _create_index("ix_consumption_call", "consumption_event", "project_id", "call_key")
    _create_index("ix_consumption_episode", "consumption_event", "project_id", "episode_key")
    _create_table(
        "export",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("manifest_hash", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("snapshot_pos", sa.BigInteger(), nullable=False),
        sa.Column("sampled_tokens", sa.BigInteger(), nullable=False),
        sa.Column("trained_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_export"),
        sa.UniqueConstraint("project_id", "manifest_hash", name="uq_export_manifest_hash"),
    )
    _create_table(
        "shard",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("export_key", sa.BigInteger(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("num_rows", sa.BigInteger(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("trained_tokens", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_shard"),
        sa.UniqueConstraint("project_id", "export_key", "file", name="uq_shard_file"),
        refers_to={"export_key": "export"},
    )
    _create_table(
        "sample",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("shard_key", sa.BigInteger(), nullable=False),
        sa.Column("sample_id", sa.Text(), nullable=False),
        sa.Column("episode_key", sa.BigInteger(), nullable=False),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("trained_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_sample"),
        sa.UniqueConstraint("project_id", "shard_key", "sample_id", name="uq_sample_id"),
        refers_to={"shard_key": "shard", "episode_key": "episode", "agent_key": "agent"},
    )
    _create_index("ix_sample_episode", "sample", "project_id", "episode_key")
    _create_table(
        "sample_call",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("sample_key", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("call_key", sa.BigInteger(), nullable=False),
        sa.Column("completion", sa.BigInteger(), nullable=False),
        sa.Column("trained_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "sample_key", "position", name="pk_sample_call"),
        refers_to={"sample_key": "sample", "call_key": "call"},
        sqlite_with_rowid=False,
    )
    _create_index("ix_sample_call_call", "sample_call", "project_id", "call_key")


def _foreign_key(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    referred, _, key = target.partition(".")
    return sa.ForeignKeyConstraint(
        ["project_id", column],
        [f"{referred}.project_id", f"{referred}.{key or 'key'}"],
        name=f"fk_{table}_{column}",
        deferrable=True,
        initially="DEFERRED",
    )


_VIEWS: tuple[str, ...] = (
    """CREATE VIEW episodes AS
SELECT p.name AS project,
       e.id AS episode_id,
       g.id AS group_id,
       coalesce(e.task_id, g.task_id) AS task_id,
       e.split,
       e.status,
       e.error,
       e.stop_reason,
       fe.id AS forked_from_episode_id,
       fc.id AS forked_from_call_id,
       e.inference_only,
       e.pos IS NOT NULL AS is_recorded,
       e.end_pos IS NOT NULL AS is_complete,
       (SELECT count(*) FROM agent a
         WHERE a.project_id = e.project_id AND a.episode_key = e.key AND a.pos IS NOT NULL) AS num_agents,
       (SELECT count(*) FROM call c
         WHERE c.project_id = e.project_id AND c.episode_key = e.key AND c.pos IS NOT NULL) AS num_calls,
       (SELECT sum(m.num_tokens) FROM call c
          JOIN completion m ON m.project_id = c.project_id AND m.call_key = c.key
         WHERE c.project_id = e.project_id AND c.episode_key = e.key) AS sampled_tokens,
       (SELECT sum(r.value * coalesce(r.weight, 1)) FROM reward r
         WHERE r.project_id = e.project_id AND r.episode_key = e.key AND r.target = 'episode') AS reward,
       e.started_at,
       e.ended_at,
       e.first_pos AS position
  FROM episode e
  JOIN project p ON p.project_id = e.project_id
  LEFT JOIN task_group g ON g.project_id = e.project_id AND g.key = e.group_key
  LEFT JOIN episode fe ON fe.project_id = e.project_id AND fe.key = e.forked_from_episode_key
  LEFT JOIN call fc ON fc.project_id = e.project_id AND fc.key = e.forked_from_call_key
 WHERE e.first_pos IS NOT NULL""",
    """CREATE VIEW agents AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       pa.id AS parent_agent_id,
       sc.id AS spawned_by_call_id,
       a.spawned_by_completion,
       a.spawned_by_tool_call_id,
       a.role,
       a.name,
       a.depth,
       a.stage,
       a.model,
       a.checkpoint,
       a.trainable,
       a.score,
       a.finding_used,
       s.id AS snapshot_id,
       a.status,
       a.error,
       a.end_pos IS NOT NULL AS is_complete,
       a.scope_prompt_key AS scope_prompt_content_id,
       a.return_message_key AS return_message_content_id,
       (SELECT count(*) FROM call c
         WHERE c.project_id = a.project_id AND c.agent_key = a.key AND c.pos IS NOT NULL) AS num_calls,
       a.started_at,
       a.ended_at
  FROM agent a
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key
  LEFT JOIN agent pa ON pa.project_id = a.project_id AND pa.key = a.parent_agent_key
  LEFT JOIN call sc ON sc.project_id = a.project_id AND sc.key = a.spawned_by_call_key
  LEFT JOIN snapshot s ON s.project_id = a.project_id AND s.key = a.snapshot_key
 WHERE a.pos IS NOT NULL""",
    """CREATE VIEW calls AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS call_id,
       c.ordinal,
       c.purpose,
       c.model,
       c.policy_name,
       c.policy_version,
       c.provider_id,
       c.endpoint,
       coalesce(c.dialect, 'openai_chat') AS dialect,
       coalesce(c.context, 'whole') AS context,
       pc.id AS parent_call_id,
       c.parent_completion,
       lc.id AS link_call_id,
       c.link_completion,
       c.link,
       c.link_exact,
       c.context_messages,
       c.tools_key AS tools_content_id,
       c.temperature,
       c.top_p,
       c.top_k,
       c.max_tokens,
       c.n,
       c.logprobs_are,
       (SELECT count(*) FROM completion m
         WHERE m.project_id = c.project_id AND m.call_key = c.key) AS num_completions,
       c.prompt_tokens,
       c.cached_tokens,
       c.completion_tokens,
       c.reasoning_tokens,
       c.cost_usd,
       r.num_tokens AS prompt_ids,
       (SELECT sum(m.num_tokens) FROM completion m
         WHERE m.project_id = c.project_id AND m.call_key = c.key) AS sampled_tokens,
       c.num_attempts,
       c.status,
       c.error_type,
       c.error_message,
       c.error_status_code,
       c.end_pos IS NOT NULL AS is_complete,
       c.started_at,
       c.first_token_at,
       c.ended_at
  FROM call c
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN call pc ON pc.project_id = c.project_id AND pc.key = c.parent_call_key
  LEFT JOIN call lc ON lc.project_id = c.project_id AND lc.key = c.link_call_key
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
 WHERE c.pos IS NOT NULL""",
    """CREATE VIEW messages AS
SELECT p.name AS project,
       e.id AS episode_id,
       n.key AS message_id,
       n.parent_key AS parent_message_id,
       n.twin_of_key AS twin_of_message_id,
       n.depth,
       n.content_key AS content_id,
       t.role,
       t.tool_name,
       t.size,
       t.preview,
       t.text_lossy,
       (SELECT count(*) FROM completion m
         WHERE m.project_id = n.project_id AND m.node_key = n.key) AS num_completions
  FROM node n
  JOIN project p ON p.project_id = n.project_id
  JOIN episode e ON e.project_id = n.project_id AND e.key = n.episode_key
  JOIN content t ON t.project_id = n.project_id AND t.key = n.content_key""",
    """CREATE VIEW contexts AS
WITH RECURSIVE path (project_id, call_key, node_key, position) AS (
  SELECT c.project_id, c.key, c.prompt_node_key, c.context_messages - 1
    FROM call c
   WHERE c.prompt_node_key IS NOT NULL
  UNION ALL
  SELECT path.project_id, path.call_key, n.parent_key, path.position - 1
    FROM path
    JOIN node n ON n.project_id = path.project_id AND n.key = path.node_key
   WHERE n.parent_key IS NOT NULL
)
SELECT p.name AS project,
       e.id AS episode_id,
       c.id AS call_id,
       path.position,
       path.node_key AS message_id,
       n.content_key AS content_id,
       t.role,
       t.tool_name,
       t.size,
       t.preview,
       t.text_lossy
  FROM path
  JOIN call c ON c.project_id = path.project_id AND c.key = path.call_key
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  JOIN node n ON n.project_id = path.project_id AND n.key = path.node_key
  JOIN content t ON t.project_id = n.project_id AND t.key = n.content_key""",
    """CREATE VIEW edges AS
SELECT p.name AS project,
       e.id AS episode_id,
       d.kind,
       d.position,
       fc.id AS from_call_id,
       d.from_completion,
       fa.id AS from_agent_id,
       fe.id AS from_episode_id,
       d.tool_call_id,
       tc.id AS to_call_id,
       ta.id AS to_agent_id,
       te.id AS to_episode_id,
       x.id AS context_edit_id
  FROM edge d
  JOIN project p ON p.project_id = d.project_id
  JOIN episode e ON e.project_id = d.project_id AND e.key = d.episode_key
  LEFT JOIN call fc ON fc.project_id = d.project_id AND fc.key = d.from_call_key
  LEFT JOIN agent fa ON fa.project_id = d.project_id AND fa.key = d.from_agent_key
  LEFT JOIN episode fe ON fe.project_id = d.project_id AND fe.key = d.from_episode_key
  LEFT JOIN call tc ON tc.project_id = d.project_id AND tc.key = d.to_call_key
  LEFT JOIN agent ta ON ta.project_id = d.project_id AND ta.key = d.to_agent_key
  LEFT JOIN episode te ON te.project_id = d.project_id AND te.key = d.to_episode_key
  LEFT JOIN context_edit x ON x.project_id = d.project_id AND x.key = d.context_edit_key""",
    """CREATE VIEW branches AS
WITH RECURSIVE ends (project_id, call_key, completion, last_node_key) AS (
  SELECT c.project_id, c.key, m.completion, coalesce(m.node_key, c.prompt_node_key)
    FROM call c
    LEFT JOIN completion m
      ON m.project_id = c.project_id AND m.call_key = c.key AND m.node_key IS NOT NULL
   WHERE c.pos IS NOT NULL
     AND c.context_messages IS NOT NULL
     AND NOT EXISTS (
       SELECT 1 FROM edge d JOIN call q ON q.project_id = d.project_id AND q.key = d.to_call_key
        WHERE d.project_id = m.project_id AND d.from_call_key = m.call_key AND d.kind = 'continuation'
          AND d.from_completion = m.completion AND q.link_exact)
), chain (project_id, end_call_key, end_completion, call_key, num_calls) AS (
  SELECT project_id, call_key, completion, call_key, 1 FROM ends
  UNION ALL
  SELECT chain.project_id, chain.end_call_key, chain.end_completion, c.link_call_key, chain.num_calls + 1
    FROM chain
    JOIN call c ON c.project_id = chain.project_id AND c.key = chain.call_key
   WHERE c.link_call_key IS NOT NULL
), lengths (project_id, end_call_key, end_completion, num_calls) AS (
  SELECT project_id, end_call_key, end_completion, max(num_calls)
    FROM chain
   GROUP BY project_id, end_call_key, end_completion
)
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS end_call_id,
       ends.completion AS end_completion,
       l.num_calls,
       coalesce(n.depth + 1, 0) AS num_messages,
       r.id AS first_call_id,
       ends.last_node_key AS last_message_id
  FROM ends
  JOIN lengths l
    ON l.project_id = ends.project_id AND l.end_call_key = ends.call_key
   AND coalesce(l.end_completion, -1) = coalesce(ends.completion, -1)
  JOIN chain f
    ON f.project_id = l.project_id AND f.end_call_key = l.end_call_key AND f.num_calls = l.num_calls
   AND coalesce(f.end_completion, -1) = coalesce(l.end_completion, -1)
  JOIN call c ON c.project_id = ends.project_id AND c.key = ends.call_key
  JOIN call r ON r.project_id = f.project_id AND r.key = f.call_key
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN node n ON n.project_id = ends.project_id AND n.key = ends.last_node_key""",
    """CREATE VIEW candidates AS
WITH last_selection (project_id, candidate_set_key, selection_key) AS (
  SELECT project_id, candidate_set_key, max(key)
    FROM candidate_selection
   GROUP BY project_id, candidate_set_key
)
SELECT p.name AS project,
       e.id AS episode_id,
       s.id AS candidate_set_id,
       a.id AS agent_id,
       s.generator,
       m.member,
       c.id AS call_id,
       CASE WHEN m.call_key IS NOT NULL THEN coalesce(m.completion, 0) END AS completion,
       ma.id AS member_agent_id,
       coalesce(
         (SELECT max(h.score) FROM candidate_choice h
           WHERE h.project_id = m.project_id AND h.candidate_selection_key = l.selection_key
             AND h.part = 'score' AND h.member = m.member),
         m.score) AS score,
       CASE WHEN l.selection_key IS NOT NULL THEN EXISTS (
         SELECT 1 FROM candidate_choice h
          WHERE h.project_id = m.project_id AND h.candidate_selection_key = l.selection_key
            AND h.part = 'selected' AND h.member = m.member) END AS selected,
       CASE WHEN EXISTS (
         SELECT 1 FROM candidate_choice h
          WHERE h.project_id = m.project_id AND h.candidate_selection_key = l.selection_key
            AND h.part = 'continued') THEN EXISTS (
         SELECT 1 FROM candidate_choice h
          WHERE h.project_id = m.project_id AND h.candidate_selection_key = l.selection_key
            AND h.part = 'continued' AND h.member = m.member) END AS continued,
       x.id AS candidate_selection_id,
       x.selector,
       x.selector_version,
       xc.id AS selector_call_id,
       x.treatment,
       x.reason
  FROM candidate_set s
  JOIN candidate_member m ON m.project_id = s.project_id AND m.candidate_set_key = s.key
  JOIN project p ON p.project_id = s.project_id
  JOIN episode e ON e.project_id = s.project_id AND e.key = s.episode_key
  LEFT JOIN agent a ON a.project_id = s.project_id AND a.key = s.agent_key
  LEFT JOIN call c ON c.project_id = m.project_id AND c.key = m.call_key
  LEFT JOIN agent ma ON ma.project_id = m.project_id AND ma.key = m.agent_key
  LEFT JOIN last_selection l ON l.project_id = s.project_id AND l.candidate_set_key = s.key
  LEFT JOIN candidate_selection x ON x.project_id = l.project_id AND x.key = l.selection_key
  LEFT JOIN call xc ON xc.project_id = x.project_id AND xc.key = x.selector_call_key""",
    """CREATE VIEW rewards AS
SELECT p.name AS project,
       e.id AS episode_id,
       r.id AS reward_id,
       r.target,
       a.id AS agent_id,
       c.id AS call_id,
       r.completion,
       s.id AS candidate_set_id,
       r.member,
       r.token_start,
       r.token_length,
       r.name,
       r.value,
       r.weight,
       r.scorer,
       r.scorer_version,
       r.at,
       r.pos AS seq
  FROM reward r
  JOIN project p ON p.project_id = r.project_id
  JOIN episode e ON e.project_id = r.project_id AND e.key = r.episode_key
  LEFT JOIN agent a ON a.project_id = r.project_id AND a.key = r.agent_key
  LEFT JOIN call c ON c.project_id = r.project_id AND c.key = r.call_key
  LEFT JOIN candidate_set s ON s.project_id = r.project_id AND s.key = r.candidate_set_key""",
    """CREATE VIEW token_counts AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS call_id,
       c.purpose,
       r.num_tokens AS prompt_tokens,
       r.num_tokens - r.base_length AS new_prompt_tokens,
       (SELECT sum(m.num_tokens) FROM completion m
         WHERE m.project_id = c.project_id AND m.call_key = c.key) AS sampled_tokens,
       (SELECT count(*) FROM completion m
         WHERE m.project_id = c.project_id AND m.call_key = c.key) AS num_completions,
       (SELECT count(*) FROM completion m
         WHERE m.project_id = c.project_id AND m.call_key = c.key
           AND m.num_tokens IS NULL) AS completions_without_ids
  FROM call c
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
 WHERE c.pos IS NOT NULL""",
    """CREATE VIEW critical_steps AS
WITH own (project_id, agent_key, parent_key, stage, is_open, steps) AS (
  SELECT a.project_id, a.key, a.parent_agent_key,
         coalesce(a.stage, -a.spawned_by_call_key, 0),
         a.pos IS NOT NULL AND a.end_pos IS NULL,
         (SELECT count(*) FROM call c
           WHERE c.project_id = a.project_id AND c.agent_key = a.key AND c.pos IS NOT NULL)
    FROM agent a
   WHERE a.pos IS NOT NULL
), stages1 (project_id, parent_key, stage, steps, num_open) AS (
  SELECT o.project_id, o.parent_key, o.stage, max(o.steps), sum(CASE WHEN o.is_open THEN 1 ELSE 0 END)
    FROM own o
   GROUP BY o.project_id, o.parent_key, o.stage
), level1 (project_id, agent_key, parent_key, stage, is_open, steps) AS (
  SELECT o.project_id, o.agent_key, o.parent_key, o.stage,
         o.is_open OR coalesce(sum(s.num_open), 0) > 0, o.steps + coalesce(sum(s.steps), 0)
    FROM own o
    LEFT JOIN stages1 s ON s.project_id = o.project_id AND s.parent_key = o.agent_key
   GROUP BY o.project_id, o.agent_key, o.parent_key, o.stage, o.is_open, o.steps
), stages2 (project_id, parent_key, stage, steps, num_open) AS (
  SELECT l.project_id, l.parent_key, l.stage, max(l.steps), sum(CASE WHEN l.is_open THEN 1 ELSE 0 END)
    FROM level1 l
   GROUP BY l.project_id, l.parent_key, l.stage
), level2 (project_id, agent_key, parent_key, stage, is_open, steps) AS (
  SELECT o.project_id, o.agent_key, o.parent_key, o.stage,
         o.is_open OR coalesce(sum(s.num_open), 0) > 0, o.steps + coalesce(sum(s.steps), 0)
    FROM own o
    LEFT JOIN stages2 s ON s.project_id = o.project_id AND s.parent_key = o.agent_key
   GROUP BY o.project_id, o.agent_key, o.parent_key, o.stage, o.is_open, o.steps
), stages3 (project_id, parent_key, stage, steps, num_open) AS (
  SELECT l.project_id, l.parent_key, l.stage, max(l.steps), sum(CASE WHEN l.is_open THEN 1 ELSE 0 END)
    FROM level2 l
   GROUP BY l.project_id, l.parent_key, l.stage
), level3 (project_id, agent_key, parent_key, stage, is_open, steps) AS (
  SELECT o.project_id, o.agent_key, o.parent_key, o.stage,
         o.is_open OR coalesce(sum(s.num_open), 0) > 0, o.steps + coalesce(sum(s.steps), 0)
    FROM own o
    LEFT JOIN stages3 s ON s.project_id = o.project_id AND s.parent_key = o.agent_key
   GROUP BY o.project_id, o.agent_key, o.parent_key, o.stage, o.is_open, o.steps
), stages4 (project_id, parent_key, stage, steps, num_open) AS (
  SELECT l.project_id, l.parent_key, l.stage, max(l.steps), sum(CASE WHEN l.is_open THEN 1 ELSE 0 END)
    FROM level3 l
   GROUP BY l.project_id, l.parent_key, l.stage
), level4 (project_id, agent_key, steps, num_open) AS (
  SELECT o.project_id, o.agent_key, o.steps + coalesce(sum(s.steps), 0), coalesce(sum(s.num_open), 0)
    FROM own o
    LEFT JOIN stages4 s ON s.project_id = o.project_id AND s.parent_key = o.agent_key
   GROUP BY o.project_id, o.agent_key, o.steps
), too_deep (project_id, agent_key) AS (
  SELECT DISTINCT d1.project_id, d1.parent_key
    FROM own d1
    JOIN own d2 ON d2.project_id = d1.project_id AND d2.parent_key = d1.agent_key
    JOIN own d3 ON d3.project_id = d2.project_id AND d3.parent_key = d2.agent_key
    JOIN own d4 ON d4.project_id = d3.project_id AND d4.parent_key = d3.agent_key
    JOIN own d5 ON d5.project_id = d4.project_id AND d5.parent_key = d4.agent_key
)
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       pa.id AS parent_agent_id,
       o.steps AS own_calls,
       CASE WHEN l.num_open = 0 AND x.agent_key IS NULL THEN l.steps END AS critical_steps
  FROM own o
  JOIN level4 l ON l.project_id = o.project_id AND l.agent_key = o.agent_key
  JOIN agent a ON a.project_id = o.project_id AND a.key = o.agent_key
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key
  LEFT JOIN agent pa ON pa.project_id = a.project_id AND pa.key = a.parent_agent_key
  LEFT JOIN too_deep x ON x.project_id = o.project_id AND x.agent_key = o.agent_key""",
    """CREATE VIEW compaction_loss AS
SELECT p.name AS project,
       e.id AS episode_id,
       x.id AS context_edit_id,
       a.id AS agent_id,
       x.edit,
       x.trigger,
       x.author,
       x.status,
       x.reason,
       bc.id AS before_call_id,
       ac.id AS after_call_id,
       wc.id AS author_call_id,
       x.author_completion,
       x.tokens_before,
       x.tokens_after,
       x.tokens_before - x.tokens_after AS tokens_lost,
       bc.context_messages AS messages_before,
       ac.context_messages AS messages_after,
       bc.context_messages - ac.context_messages AS messages_lost,
       (SELECT count(*) FROM context_edit_member m
         WHERE m.project_id = x.project_id AND m.context_edit_key = x.key
           AND m.part = 'replaced') AS num_replaced,
       (SELECT count(*) FROM context_edit_member m
         WHERE m.project_id = x.project_id AND m.context_edit_key = x.key AND m.part = 'kept') AS num_kept
  FROM context_edit x
  JOIN project p ON p.project_id = x.project_id
  JOIN episode e ON e.project_id = x.project_id AND e.key = x.episode_key
  JOIN agent a ON a.project_id = x.project_id AND a.key = x.agent_key
  LEFT JOIN call bc ON bc.project_id = x.project_id AND bc.key = x.before_call_key
  LEFT JOIN call ac ON ac.project_id = x.project_id AND ac.key = x.after_call_key
  LEFT JOIN call wc ON wc.project_id = x.project_id AND wc.key = x.author_call_key""",
    """CREATE VIEW orphans AS
SELECT p.name AS project, e.id AS episode_id, 'call' AS kind, c.id AS id,
       'parent_call' AS missing, q.id AS missing_id
  FROM call c
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  JOIN call q ON q.project_id = c.project_id AND q.key = c.parent_call_key
 WHERE c.pos IS NOT NULL AND (q.pos IS NULL OR q.episode_key <> c.episode_key)
UNION ALL
SELECT p.name, e.id, 'call', c.id, 'agent', a.id
  FROM call c
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
 WHERE c.pos IS NOT NULL AND (a.pos IS NULL OR a.episode_key <> c.episode_key)
UNION ALL
SELECT p.name, e.id, 'completion', v.id, 'call', c.id
  FROM completion_event v
  JOIN completion m ON m.project_id = v.project_id AND m.key = v.completion_key
  JOIN call c ON c.project_id = m.project_id AND c.key = m.call_key
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
 WHERE c.pos IS NULL
UNION ALL
SELECT p.name, e.id, 'agent', a.id, 'parent_agent', q.id
  FROM agent a
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key
  JOIN agent q ON q.project_id = a.project_id AND q.key = a.parent_agent_key
 WHERE a.pos IS NOT NULL AND (q.pos IS NULL OR q.episode_key <> a.episode_key)
UNION ALL
SELECT p.name, e.id, 'agent', a.id, 'spawning_call', q.id
  FROM agent a
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key
  JOIN call q ON q.project_id = a.project_id AND q.key = a.spawned_by_call_key
 WHERE a.pos IS NOT NULL AND (q.pos IS NULL OR q.episode_key <> a.episode_key)
UNION ALL
SELECT p.name, e.id, 'episode', e.id, 'episode', e.id
  FROM episode e
  JOIN project p ON p.project_id = e.project_id
 WHERE e.first_pos IS NOT NULL AND e.pos IS NULL""",
    """CREATE VIEW gaps AS
SELECT p.name AS project,
       e.id AS episode_id,
       g.id AS gap_id,
       a.id AS agent_id,
       c.id AS call_id,
       g.cause,
       g.detail,
       g.at
  FROM gap g
  JOIN project p ON p.project_id = g.project_id
  JOIN episode e ON e.project_id = g.project_id AND e.key = g.episode_key
  LEFT JOIN agent a ON a.project_id = g.project_id AND a.key = g.agent_key
  LEFT JOIN call c ON c.project_id = g.project_id AND c.key = g.call_key""",
    """CREATE VIEW consumption AS
SELECT p.name AS project,
       e.id AS episode_id,
       c.id AS call_id,
       coalesce(u.completion, 0) AS completion,
       u.run,
       u.step,
       u.export_hash,
       u.shard,
       u.sample_id,
       u.tokens,
       u.id AS consumption_id,
       u.at
  FROM consumption_event u
  JOIN project p ON p.project_id = u.project_id
  JOIN episode e ON e.project_id = u.project_id AND e.key = u.episode_key
  JOIN call c ON c.project_id = u.project_id AND c.key = u.call_key""",
)
