"""Revisions of events, and the tokens that a server wrote to its cache.

Rows that exist state no revision and replaced nothing: NULL. What their calls wrote to a cache is not known:
NULL as well. The view `calls` is made anew, and the view `tool_calls` is new.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in ("revision", "first_pos", "num_replaced"):
        op.add_column("raw_event", sa.Column(column, sa.BigInteger()))
    op.add_column("call", sa.Column("cache_write_tokens", sa.BigInteger()))
    op.execute("DROP VIEW calls")
    op.execute(_CALLS)
    op.execute(_TOOL_CALLS)


_CALLS = """CREATE VIEW calls AS
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
 WHERE c.pos IS NOT NULL"""

_TOOL_CALLS = """CREATE VIEW tool_calls AS
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
       u.result_key AS result_content_id,
       u.status,
       u.exit_status,
       u.error,
       u.started_at,
       u.ended_at
  FROM tool_call u
  JOIN project p ON p.project_id = u.project_id
  JOIN call c ON c.project_id = u.project_id AND c.key = u.call_key
  JOIN episode e ON e.project_id = u.project_id AND e.key = u.episode_key
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key"""
