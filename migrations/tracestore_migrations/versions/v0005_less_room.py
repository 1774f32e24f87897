"""Rows that take less room still: token ids and logprobs compressed with dictionaries of their project, short
keys, a log of events without their ids, no index that nothing reads.

Rows that exist stay as they are (their dictionaries are NULL), and a project that exists goes on counting its
keys from `project_id << 40`; the views are made anew to show the same numbers for both. `raw_event` is made
anew, in the order of `pos`: its id is that of the row of its entity, and of its hash half is kept.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracestore_migrations.steps import copy_rows, once

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _make_views_and_columns() -> None:
    for name, view in _VIEWS.items():
        op.execute(f"DROP VIEW {name}")
        op.execute(view)
    op.add_column("dictionary", sa.Column("purpose", sa.Text()))
    op.add_column("token_run", sa.Column("dictionary_key", sa.BigInteger()))
    op.add_column("token_run", sa.Column("logprobs_dictionary_key", sa.BigInteger()))
    op.drop_index("ix_call_parent", "call", if_exists=True)


_RAW_EVENT = (
    *("project_id", "kind", "phase", "text_hash", "revision", "pos", "first_pos", "num_replaced"),
    *("episode_key", "entity_key", "field_set_key", "received_at"),
)


def _begin_raw_event() -> None:
    op.drop_index("ix_raw_event_episode", "raw_event", if_exists=True)
    op.rename_table("raw_event", "raw_event_before")
    if op.get_bind().dialect.name == "postgresql":
        # There the name of an index is its own, not its table's.
        op.execute("ALTER INDEX pk_raw_event RENAME TO pk_raw_event_before")
    op.create_table(
        "raw_event",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("text_hash", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.BigInteger()),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.Column("first_pos", sa.BigInteger()),
        sa.Column("num_replaced", sa.BigInteger()),
        sa.Column("episode_key", sa.BigInteger()),
        sa.Column("entity_key", sa.BigInteger(), nullable=False),
        sa.Column("field_set_key", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "pos", name="pk_raw_event"),
        sa.UniqueConstraint("project_id", "entity_key", "phase", name="uq_raw_event_entity"),
        sa.CheckConstraint("phase IN ('start', 'end', 'whole')", name=op.f("ck_raw_event_phase_is_known")),
        sa.CheckConstraint("length(text_hash) = 16", name=op.f("ck_raw_event_text_hash_has_16_bytes")),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_raw_event_project_id"),
        *(
            sa.ForeignKeyConstraint(
                ["project_id", f"{table}_key"],
                [f"{table}.project_id", f"{table}.key"],
                name=f"fk_raw_event_{table}_key",
                deferrable=True,
                initially="DEFERRED",
            )
            for table in ("episode", "field_set")
        ),
        sqlite_with_rowid=False,
    )


def _end_raw_event() -> None:
    op.drop_table("raw_event_before")
    # The planner's figures for the indexes of that name, which were others: the upgrade writes new ones.
    if sa.inspect(op.get_bind()).has_table("sqlite_stat1"):
        op.execute("DELETE FROM sqlite_stat1 WHERE tbl IN ('raw_event', 'raw_event_before')")
    op.create_index("ix_raw_event_episode", "raw_event", ["project_id", "episode_key", "pos"])


STEPS = (
    once("views and columns", _make_views_and_columns),
    once("begin raw_event", _begin_raw_event),
    copy_rows(
        "raw_event_before",
        into="raw_event",
        columns={name: name for name in _RAW_EVENT} | {"text_hash": "substr(text_hash, 1, 16)"},
        key=("project_id", "pos"),
    ),
    once("end raw_event", _end_raw_event),
)

_VIEWS = {
    "agents": """CREATE VIEW agents AS
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
       (a.project_id << 40) | a.scope_prompt_key AS scope_prompt_content_id,
       (a.project_id << 40) | a.return_message_key AS return_message_content_id,
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
    "calls": """CREATE VIEW calls AS
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
       (c.project_id << 40) | c.tools_key AS tools_content_id,
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
       c.cache_write_tokens,
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
    "tool_calls": """CREATE VIEW tool_calls AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS call_id,
       coalesce(u.completion, 0) AS completion,
       u.position,
       u.tool_call_id,
       u.id AS execution_id,
       coalesce(u.sampled_name, u.name) AS name,
       coalesce(u.sampled_arguments, u.arguments) AS arguments,
       u.position IS NOT NULL AS is_sampled,
       u.id IS NOT NULL AS is_executed,
       (u.project_id << 40) | u.result_key AS result_content_id,
       u.status,
       u.exit_status,
       u.error,
       u.started_at,
       u.ended_at
  FROM tool_call u
  JOIN project p ON p.project_id = u.project_id
  JOIN call c ON c.project_id = u.project_id AND c.key = u.call_key
  JOIN episode e ON e.project_id = u.project_id AND e.key = u.episode_key
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key""",
    "messages": """CREATE VIEW messages AS
SELECT p.name AS project,
       e.id AS episode_id,
       (n.project_id << 40) | n.key AS message_id,
       (n.project_id << 40) | n.parent_key AS parent_message_id,
       (n.project_id << 40) | n.twin_of_key AS twin_of_message_id,
       n.depth,
       (n.project_id << 40) | n.content_key AS content_id,
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
    "contexts": """CREATE VIEW contexts AS
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
       (path.project_id << 40) | path.node_key AS message_id,
       (n.project_id << 40) | n.content_key AS content_id,
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
    "branches": """CREATE VIEW branches AS
WITH RECURSIVE ends (project_id, call_key, completion, last_node_key) AS (
  SELECT c.project_id, c.key, m.completion, coalesce(m.node_key, c.prompt_node_key)
    FROM call c
    LEFT JOIN completion m
      ON m.project_id = c.project_id AND m.call_key = c.key AND m.node_key IS NOT NULL
   WHERE c.pos IS NOT NULL
     AND c.context_messages IS NOT NULL
     AND NOT EXISTS (
       SELECT 1 FROM call q
        WHERE q.project_id = m.project_id AND q.link_call_key = m.call_key
          AND q.link_completion = m.completion AND q.link_exact)
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
       (ends.project_id << 40) | ends.last_node_key AS last_message_id
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
}
