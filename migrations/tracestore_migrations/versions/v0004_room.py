"""Rows that take less room: packed token ids, and no second row for what a call continues.

Rows that exist keep their ids as they are (`num_ids` is NULL). The edges of the kind `continuation` are
deleted, since each repeats what `call.link_call_key` says, which gets an index instead; the views `edges` and
`branches` are made anew and show the same rows as before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracestore_migrations.steps import delete_rows, once

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _add_columns() -> None:
    op.add_column("token_run", sa.Column("packed_ids", sa.LargeBinary()))
    op.add_column("token_run", sa.Column("num_ids", sa.BigInteger()))


def _make_index_and_views() -> None:
    some = sa.text("link_call_key IS NOT NULL")
    op.create_index(
        "ix_call_link",
        "call",
        ["project_id", "link_call_key"],
        sqlite_where=some,
        postgresql_where=some,
        if_not_exists=True,
    )
    for name, view in (("edges", _EDGES), ("branches", _BRANCHES)):
        op.execute(f"DROP VIEW {name}")
        op.execute(view)


STEPS = (
    once("columns", _add_columns),
    delete_rows("edge", where="kind = 'continuation'", key=("project_id", "kind", "owner_key", "position")),
    once("index and views", _make_index_and_views),
)


_EDGES = """CREATE VIEW edges AS
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
  FROM (SELECT project_id, episode_key, kind, position, from_call_key, from_completion, from_agent_key,
               from_episode_key, tool_call_id, to_call_key, to_agent_key, to_episode_key, context_edit_key
          FROM edge
        UNION ALL
        SELECT project_id, episode_key, 'continuation', 0, link_call_key, link_completion, NULL,
               NULL, NULL, key, NULL, NULL, NULL
          FROM call
         WHERE link_call_key IS NOT NULL) d
  JOIN project p ON p.project_id = d.project_id
  JOIN episode e ON e.project_id = d.project_id AND e.key = d.episode_key
  LEFT JOIN call fc ON fc.project_id = d.project_id AND fc.key = d.from_call_key
  LEFT JOIN agent fa ON fa.project_id = d.project_id AND fa.key = d.from_agent_key
  LEFT JOIN episode fe ON fe.project_id = d.project_id AND fe.key = d.from_episode_key
  LEFT JOIN call tc ON tc.project_id = d.project_id AND tc.key = d.to_call_key
  LEFT JOIN agent ta ON ta.project_id = d.project_id AND ta.key = d.to_agent_key
  LEFT JOIN episode te ON te.project_id = d.project_id AND te.key = d.to_episode_key
  LEFT JOIN context_edit x ON x.project_id = d.project_id AND x.key = d.context_edit_key"""

_BRANCHES = """CREATE VIEW branches AS
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
  LEFT JOIN node n ON n.project_id = ends.project_id AND n.key = ends.last_node_key"""
