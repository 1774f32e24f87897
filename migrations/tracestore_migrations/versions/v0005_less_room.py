"""Rows that take less room still: token ids and logprobs compressed with dictionaries of their project, short
keys, a log of events without their ids, no index that nothing reads.

Rows that exist stay as they are (their dictionaries are NULL), and a project that exists goes on counting its
keys from `project_id << 40`; every view is made anew, to show the same numbers for both and what is new.
`raw_event` is made anew, in the order of `pos`: its id is that of the row of its entity, and of its hash half
is kept.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name, view in _VIEWS.items():
        op.execute(f"DROP VIEW IF EXISTS {name}")
        op.execute(view)
    op.add_column("dictionary", sa.Column("purpose", sa.Text()))
    op.add_column("token_run", sa.Column("dictionary_key", sa.BigInteger()))
    op.add_column("token_run", sa.Column("logprobs_dictionary_key", sa.BigInteger()))
    op.drop_index("ix_call_parent", "call")
    if op.get_bind().dialect.name == "sqlite":
        _raw_event_on_sqlite()
    else:
        _raw_event_in_place()
    _make_deletion()


def _make_deletion() -> None:
    op.create_table(
        "deletion",
        *_whole("project_id", "key"),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        *_whole("requested_at"),
        sa.Column("finished_at", sa.BigInteger()),
        *_whole("num_positions", "num_events", "num_rows", "num_contents", "num_blobs"),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_deletion"),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_deletion_project_id"),
        sa.CheckConstraint("what IN ('episode', 'project', 'age')", name=op.f("ck_deletion_what_is_known")),
        sa.CheckConstraint(
            "state IN ('erasing', 'sweeping', 'done')", name=op.f("ck_deletion_state_is_known")
        ),
    )
    op.create_table(
        "deletion_export",
        *_whole("project_id", "deletion_key"),
        sa.Column("export_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "deletion_key", "export_hash", name="pk_deletion_export"),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_deletion_export_project_id"),
        sa.ForeignKeyConstraint(
            ["project_id", "deletion_key"],
            ["deletion.project_id", "deletion.key"],
            name="fk_deletion_export_deletion_key",
            deferrable=True,
            initially="DEFERRED",
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "doomed",
        *_whole("project_id"),
        sa.Column("name", sa.Text(), nullable=False),
        *_whole("key", "pos"),
        sa.PrimaryKeyConstraint("project_id", "name", "key", name="pk_doomed"),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_doomed_project_id"),
        sqlite_with_rowid=False,
    )
    for column in ("first_pos", "deletion_key", "erased_at"):
        op.add_column("tombstone", sa.Column(column, sa.BigInteger()))
    where = sa.text("deletion_key IS NOT NULL")
    op.create_index(
        "ix_tombstone_deletion",
        "tombstone",
        ["project_id", "deletion_key"],
        sqlite_where=where,
        postgresql_where=where,
    )


def _whole(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


_RAW_EVENT = (
    *("project_id", "kind", "phase", "text_hash", "revision", "pos", "first_pos", "num_replaced"),
    *("episode_key", "entity_key", "field_set_key", "received_at"),
)


def _raw_event_on_sqlite() -> None:
    op.drop_index("ix_raw_event_episode", "raw_event")
    op.rename_table("raw_event", "raw_event_before")
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
    columns = ", ".join(_RAW_EVENT)
    values = columns.replace("text_hash", "substr(text_hash, 1, 16)")
    op.execute(
        f"INSERT INTO raw_event ({columns}) SELECT {values} FROM raw_event_before ORDER BY project_id, pos"
    )
    op.drop_table("raw_event_before")
    # The planner's figures for the indexes of that name, which were others: the upgrade writes new ones.
    if sa.inspect(op.get_bind()).has_table("sqlite_stat1"):
        op.execute("DELETE FROM sqlite_stat1 WHERE tbl IN ('raw_event', 'raw_event_before')")
    op.create_index("ix_raw_event_episode", "raw_event", ["project_id", "episode_key", "pos"])


def _raw_event_in_place() -> None:
    op.drop_constraint("pk_raw_event", "raw_event")
    op.drop_constraint("uq_raw_event_pos", "raw_event")
    op.drop_column("raw_event", "id")
    op.execute("ALTER TABLE raw_event ALTER COLUMN text_hash TYPE bytea USING substr(text_hash, 1, 16)")
    op.create_primary_key("pk_raw_event", "raw_event", ["project_id", "pos"])
    op.create_unique_constraint("uq_raw_event_entity", "raw_event", ["project_id", "entity_key", "phase"])
    op.create_check_constraint(
        op.f("ck_raw_event_text_hash_has_16_bytes"), "raw_event", "length(text_hash) = 16"
    )


_VIEWS = {
    "episodes": """CREATE VIEW episodes AS
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
       (SELECT CAST(sum(m.num_tokens) AS BIGINT) FROM call c
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
       (WITH RECURSIVE above (agent_key) AS (
          SELECT a.parent_agent_key
          UNION
          SELECT q.parent_agent_key
            FROM above
            JOIN agent q ON q.project_id = a.project_id AND q.key = above.agent_key AND q.pos IS NOT NULL
        )
        SELECT count(*)
          FROM above
          JOIN agent q ON q.project_id = a.project_id AND q.key = above.agent_key AND q.pos IS NOT NULL)
         AS tree_depth,
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
       (SELECT CAST(sum(m.num_tokens) AS BIGINT) FROM completion m
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
SELECT p.name AS project,
       e.id AS episode_id,
       c.id AS call_id,
       n.depth AS position,
       (n.project_id << 40) | n.key AS message_id,
       (n.project_id << 40) | n.content_key AS content_id,
       t.role,
       t.tool_name,
       t.size,
       t.preview,
       t.text_lossy,
       aa.id AS author_agent_id,
       ac.id AS author_call_id,
       am.completion AS author_completion,
       (SELECT count(*)
          FROM (SELECT m.key
                  FROM completion m
                 WHERE m.project_id = n.project_id AND m.node_key = coalesce(n.twin_of_key, n.key)
                UNION ALL
                SELECT m.key
                  FROM node s
                  JOIN completion m ON m.project_id = s.project_id AND m.node_key = s.key
                 WHERE s.project_id = n.project_id AND s.twin_of_key = coalesce(n.twin_of_key, n.key)) x)
         AS num_authors
  FROM call c
  JOIN node n
    ON n.project_id = c.project_id
   AND n.key IN (
     WITH RECURSIVE path (node_key) AS (
       SELECT c.prompt_node_key
       UNION ALL
       SELECT (SELECT u.parent_key FROM node u WHERE u.project_id = c.project_id AND u.key = path.node_key)
         FROM path
        WHERE path.node_key IS NOT NULL
     )
     SELECT path.node_key FROM path)
  JOIN content t ON t.project_id = n.project_id AND t.key = n.content_key
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  LEFT JOIN completion am
    ON am.project_id = n.project_id
   AND am.key = (
     SELECT CASE WHEN count(*) = 1 THEN max(x.key) END
       FROM (SELECT m.key
               FROM completion m
              WHERE m.project_id = n.project_id AND m.node_key = coalesce(n.twin_of_key, n.key)
             UNION ALL
             SELECT m.key
               FROM node s
               JOIN completion m ON m.project_id = s.project_id AND m.node_key = s.key
              WHERE s.project_id = n.project_id AND s.twin_of_key = coalesce(n.twin_of_key, n.key)) x)
  LEFT JOIN call ac ON ac.project_id = am.project_id AND ac.key = am.call_key
  LEFT JOIN agent aa ON aa.project_id = ac.project_id AND aa.key = ac.agent_key""",
    "edges": """CREATE VIEW edges AS
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
  LEFT JOIN context_edit x ON x.project_id = d.project_id AND x.key = d.context_edit_key""",
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
    "candidates": """CREATE VIEW candidates AS
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
    "rewards": """CREATE VIEW rewards AS
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
    "token_counts": """CREATE VIEW token_counts AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS call_id,
       c.purpose,
       r.num_tokens AS prompt_tokens,
       r.num_tokens - r.base_length AS new_prompt_tokens,
       (SELECT CAST(sum(m.num_tokens) AS BIGINT) FROM completion m
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
    "critical_steps": """CREATE VIEW critical_steps AS
WITH RECURSIVE own (project_id, agent_key, parent_key, stage, is_open, steps) AS (
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
), below (project_id, agent_key, below_key) AS (
  SELECT o.project_id, o.agent_key, o.agent_key FROM own o
  UNION
  SELECT b.project_id, b.agent_key, o.agent_key
    FROM below b
    JOIN own o ON o.project_id = b.project_id AND o.parent_key = b.below_key
), total (project_id, agent_key, steps) AS (
  SELECT b.project_id, b.agent_key, CAST(sum(o.steps) AS BIGINT)
    FROM below b
    JOIN own o ON o.project_id = b.project_id AND o.agent_key = b.below_key
   GROUP BY b.project_id, b.agent_key
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
       CASE WHEN l.num_open = 0 AND x.agent_key IS NULL THEN CAST(l.steps AS BIGINT) END AS critical_steps,
       b.steps AS sequential_steps,
       CASE WHEN l.num_open = 0 AND x.agent_key IS NULL AND l.steps > 0
            THEN CAST(b.steps AS DOUBLE PRECISION) / l.steps END AS speed_up
  FROM own o
  JOIN total b ON b.project_id = o.project_id AND b.agent_key = o.agent_key
  JOIN level4 l ON l.project_id = o.project_id AND l.agent_key = o.agent_key
  JOIN agent a ON a.project_id = o.project_id AND a.key = o.agent_key
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key
  LEFT JOIN agent pa ON pa.project_id = a.project_id AND pa.key = a.parent_agent_key
  LEFT JOIN too_deep x ON x.project_id = o.project_id AND x.agent_key = o.agent_key""",
    "compaction_loss": """CREATE VIEW compaction_loss AS
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
    "compaction_calls": """CREATE VIEW compaction_calls AS
SELECT p.name AS project,
       e.id AS episode_id,
       x.id AS context_edit_id,
       x.edit,
       x.status,
       m.part,
       m.position,
       c.id AS call_id,
       c.purpose,
       r.num_tokens - r.base_length AS new_prompt_tokens,
       (SELECT CAST(sum(o.num_tokens) AS BIGINT) FROM completion o
         WHERE o.project_id = c.project_id AND o.call_key = c.key) AS sampled_tokens
  FROM context_edit_member m
  JOIN context_edit x ON x.project_id = m.project_id AND x.key = m.context_edit_key
  JOIN project p ON p.project_id = x.project_id
  JOIN episode e ON e.project_id = x.project_id AND e.key = x.episode_key
  JOIN call c ON c.project_id = m.project_id AND c.key = m.call_key
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key""",
    "compaction_messages": """CREATE VIEW compaction_messages AS
WITH RECURSIVE path (project_id, context_edit_key, side, node_key) AS (
  SELECT x.project_id, x.key, 'before',
         coalesce(
           (SELECT CASE WHEN count(*) = 1 THEN max(m.node_key) END FROM completion m
             WHERE m.project_id = c.project_id AND m.call_key = c.key),
           c.prompt_node_key)
    FROM context_edit x
    JOIN call c ON c.project_id = x.project_id AND c.key = x.before_call_key
   WHERE c.prompt_node_key IS NOT NULL
  UNION ALL
  SELECT x.project_id, x.key, 'after', c.prompt_node_key
    FROM context_edit x
    JOIN call c ON c.project_id = x.project_id AND c.key = x.after_call_key
   WHERE c.prompt_node_key IS NOT NULL
  UNION ALL
  SELECT path.project_id, path.context_edit_key, path.side,
         (SELECT n.parent_key FROM node n WHERE n.project_id = path.project_id AND n.key = path.node_key)
    FROM path
   WHERE path.node_key IS NOT NULL
), placed (project_id, context_edit_key, side, node_key, content_key, depth, nth) AS (
  SELECT path.project_id, path.context_edit_key, path.side, n.key, n.content_key, n.depth,
         row_number() OVER (
           PARTITION BY path.project_id, path.context_edit_key, path.side, n.content_key ORDER BY n.depth)
    FROM path
    JOIN node n ON n.project_id = path.project_id AND n.key = path.node_key
)
SELECT p.name AS project,
       e.id AS episode_id,
       x.id AS context_edit_id,
       b.depth AS position,
       (b.project_id << 40) | b.node_key AS message_id,
       (b.project_id << 40) | b.content_key AS content_id,
       t.role,
       t.tool_name,
       t.size,
       t.preview,
       CASE WHEN ac.prompt_node_key IS NOT NULL THEN f.node_key IS NULL END AS vanished
  FROM placed b
  JOIN context_edit x ON x.project_id = b.project_id AND x.key = b.context_edit_key
  JOIN project p ON p.project_id = x.project_id
  JOIN episode e ON e.project_id = x.project_id AND e.key = x.episode_key
  JOIN content t ON t.project_id = b.project_id AND t.key = b.content_key
  LEFT JOIN call ac ON ac.project_id = x.project_id AND ac.key = x.after_call_key
  LEFT JOIN placed f
    ON f.project_id = b.project_id AND f.context_edit_key = b.context_edit_key AND f.side = 'after'
   AND f.content_key = b.content_key AND f.nth = b.nth
 WHERE b.side = 'before'""",
    "orphans": """CREATE VIEW orphans AS
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
    "gaps": """CREATE VIEW gaps AS
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
    "consumption": """CREATE VIEW consumption AS
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
       coalesce(v.version, c.policy_version) AS policy_version,
       u.step - coalesce(v.version, c.policy_version) AS staleness,
       u.id AS consumption_id,
       u.at
  FROM consumption_event u
  JOIN project p ON p.project_id = u.project_id
  JOIN episode e ON e.project_id = u.project_id AND e.key = u.episode_key
  JOIN call c ON c.project_id = u.project_id AND c.key = u.call_key
  LEFT JOIN (SELECT m.project_id, m.call_key, m.completion, min(r.version) AS version
               FROM completion m
               JOIN version_run r ON r.project_id = m.project_id AND r.completion_key = m.key
              GROUP BY m.project_id, m.call_key, m.completion) v
    ON v.project_id = u.project_id AND v.call_key = u.call_key
   AND v.completion = coalesce(u.completion, 0)""",
    "policy_versions": """CREATE VIEW policy_versions AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS call_id,
       m.completion,
       coalesce(r.position, 0) AS position,
       coalesce(r.name, c.policy_name) AS policy_name,
       coalesce(r.version, c.policy_version) AS policy_version,
       coalesce(r.start, 0) AS token_start,
       coalesce(r.next_start, m.num_tokens) - coalesce(r.start, 0) AS num_tokens
  FROM completion m
  JOIN call c ON c.project_id = m.project_id AND c.key = m.call_key
  JOIN project p ON p.project_id = m.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN (SELECT v.project_id, v.completion_key, v.position, v.start, v.name, v.version,
                    lead(v.start) OVER (
                      PARTITION BY v.project_id, v.completion_key ORDER BY v.position) AS next_start
               FROM version_run v) r
    ON r.project_id = m.project_id AND r.completion_key = m.key""",
    "prefix_duplication": """CREATE VIEW prefix_duplication AS
SELECT p.name AS project,
       e.id AS episode_id,
       d.num_calls,
       d.calls_without_ids,
       d.tokens_processed,
       d.tokens_once,
       CASE WHEN d.tokens_once > 0
            THEN CAST(d.tokens_processed AS DOUBLE PRECISION) / d.tokens_once END AS token_duplication,
       d.messages_read,
       (SELECT count(*) FROM node n
         WHERE n.project_id = e.project_id AND n.episode_key = e.key AND n.twin_of_key IS NULL
           AND (EXISTS (SELECT 1 FROM node k WHERE k.project_id = n.project_id AND k.parent_key = n.key)
             OR EXISTS (SELECT 1 FROM call q
                         WHERE q.project_id = n.project_id AND q.prompt_node_key = n.key))) AS messages_once
  FROM (SELECT c.project_id, c.episode_key,
               count(*) AS num_calls,
               CAST(sum(CASE WHEN r.num_tokens IS NULL THEN 1 ELSE 0 END) AS BIGINT) AS calls_without_ids,
               CAST(sum(r.num_tokens + coalesce(m.num_tokens, 0)) AS BIGINT) AS tokens_processed,
               CAST(sum(r.num_tokens - r.base_length + coalesce(m.num_tokens, 0)) AS BIGINT) AS tokens_once,
               CAST(sum(c.context_messages) AS BIGINT) AS messages_read
          FROM call c
          LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
          LEFT JOIN (SELECT o.project_id, o.call_key, CAST(sum(o.num_tokens) AS BIGINT) AS num_tokens
                       FROM completion o
                      GROUP BY o.project_id, o.call_key) m
            ON m.project_id = c.project_id AND m.call_key = c.key
         WHERE c.pos IS NOT NULL
         GROUP BY c.project_id, c.episode_key) d
  JOIN project p ON p.project_id = d.project_id
  JOIN episode e ON e.project_id = d.project_id AND e.key = d.episode_key""",
    "finish_rates": """CREATE VIEW finish_rates AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       d.assigned,
       d.finished,
       d.unfinished_open,
       CAST(d.finished AS DOUBLE PRECISION) / d.assigned AS finish_rate
  FROM (SELECT s.project_id, s.parent_agent_key,
               count(*) AS assigned,
               CAST(sum(CASE WHEN s.end_pos IS NOT NULL AND s.status = 'ok' THEN 1 ELSE 0 END) AS BIGINT)
                 AS finished,
               CAST(sum(CASE WHEN s.end_pos IS NULL THEN 1 ELSE 0 END) AS BIGINT) AS unfinished_open
          FROM agent s
         WHERE s.pos IS NOT NULL AND s.parent_agent_key IS NOT NULL
         GROUP BY s.project_id, s.parent_agent_key) d
  JOIN agent a ON a.project_id = d.project_id AND a.key = d.parent_agent_key
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key""",
    "unfolded_tokens": """CREATE VIEW unfolded_tokens AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS call_id,
       c.ordinal,
       c.purpose,
       coalesce(r.num_tokens, c.prompt_tokens) AS context_tokens,
       coalesce(
         (SELECT CAST(sum(m.num_tokens) AS BIGINT) FROM completion m
           WHERE m.project_id = c.project_id AND m.call_key = c.key),
         c.completion_tokens) AS sampled_tokens
  FROM call c
  JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
 WHERE c.pos IS NOT NULL
   AND a.pos IS NOT NULL
   AND a.parent_agent_key IS NULL
   AND NOT EXISTS (
     SELECT 1 FROM agent s
      WHERE s.project_id = c.project_id AND s.parent_agent_key = a.key AND s.spawned_by_call_key = c.key)""",
}
