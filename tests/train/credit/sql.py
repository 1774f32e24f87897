"""Every credit rule a second time, in SQL over the columns of an export's shards.

`tables` unnests the shards; `RULES` has a query for each rule that gives (g, sample, completion, token, a):
the advantage of a completion in a sample, or of one token of it where `token` is not NULL. Parameters are
plain text in braces. Nothing here is shared with the rules: what they say in Python is said once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tracestore.shards.read import Export

Key = tuple[str, int, int, int | None]
"""(group, sample, completion, token of it or None)."""

_UNNESTED = """
CREATE TABLE {name} AS
SELECT s.group_id AS g, i AS {key}, unnest(s.{column}[i + 1])
  FROM shard s, LATERAL (SELECT unnest(range(len(s.{column}))) AS i)
"""

_TABLES = [
    *(
        _UNNESTED.format(name=f"{key}_", key=key, column=f"{key}s")
        for key in ("episode", "agent", "call", "completion", "segment", "sample", "reward")
    ),
    # Segments of completions, in order, with the place of their first token in the completion.
    """
    CREATE TABLE piece AS
    SELECT g, segment, completion, start, length,
           coalesce(sum(length) OVER (PARTITION BY g, completion ORDER BY segment
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
      FROM segment_ WHERE completion IS NOT NULL
    """,
    "CREATE TABLE chain AS SELECT g, sample, episode, agent, unnest(completions) AS completion FROM sample_",
    """
    CREATE TABLE path AS
    SELECT p.g, p.sample, p.segment, p.place, s.completion, s.length,
           coalesce(sum(s.length) OVER (PARTITION BY p.g, p.sample ORDER BY p.place
                                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS position
      FROM (SELECT g, sample, unnest(segments) AS segment, unnest(range(len(segments))) AS place
              FROM sample_) p
      JOIN segment_ s USING (g, segment)
    """,
    # Trained tokens: where they stand in the row and in their completion.
    """
    CREATE TABLE trained AS
    SELECT p.g, p.completion, p.before + i AS token, p.start + i AS at
      FROM piece p, LATERAL (SELECT unnest(range(p.length)) AS i)
      JOIN shard ON shard.group_id = p.g
     WHERE shard.reason[p.start + i + 1] = 0
    """,
    # Composed rewards of the episodes that count, and whom they are compared with.
    """
    CREATE TABLE graded AS
    SELECT e.g, e.episode, e.episode_id, e.status, coalesce(e.forked_from_episode_id, '') AS origin,
           coalesce(sum(r.value * coalesce(r.weight, 1)), 0) AS r
      FROM episode_ e
      LEFT JOIN reward_ r ON r.g = e.g AND r.episode = e.episode AND r.target = 'episode'
                         AND r.weight IS DISTINCT FROM 0
     WHERE e.in_statistics
     GROUP BY ALL
    HAVING count(r.value) > 0 OR e.status = 'budget_exhausted'
    """,
    # Own scores of agents.
    """
    CREATE TABLE scored AS
    SELECT a.g, a.agent, a.episode, a.depth, a.parent, a.status, a.trainable,
           CASE WHEN a.parent IS NULL THEN any_value(e.r)
                ELSE coalesce(sum(r.value * coalesce(r.weight, 1)), a.score) END AS s
      FROM agent_ a
      LEFT JOIN graded e ON e.g = a.g AND e.episode = a.episode
      LEFT JOIN reward_ r ON r.g = a.g AND r.agent = a.agent AND r.target = 'agent'
                         AND r.name NOT IN ('used', 'in_scope') AND r.weight IS DISTINCT FROM 0
     GROUP BY a.g, a.agent, a.episode, a.depth, a.parent, a.status, a.trainable, a.score
    """,
    """
    CREATE TABLE spawning AS SELECT DISTINCT g, spawned_by_completion AS completion
      FROM agent_ WHERE spawned_by_completion IS NOT NULL
    """,
    """
    CREATE TABLE fact AS SELECT g, agent, name, arg_max(value, reward_id) AS value
      FROM reward_ WHERE name IN ('used', 'in_scope') GROUP BY ALL
    """,
]

_OF_EPISODES = """
WITH advantage AS ({scalar})
SELECT c.g, c.sample, c.completion, NULL AS token, a.a FROM chain c JOIN advantage a USING (g, episode)
"""
_STD = """
SELECT g, episode, status,
       CASE WHEN max(r) OVER w = min(r) OVER w THEN 0
            ELSE (r - avg(r) OVER w) / {std}(r) OVER w END AS a
  FROM graded WINDOW w AS (PARTITION BY g, origin)
"""
_SHARED = """
SELECT g, episode, CASE WHEN max(r) OVER w = min(r) OVER w THEN 0 ELSE r - avg(r) OVER w END AS a
  FROM graded WINDOW w AS (PARTITION BY g, origin)
"""

_LEAVES = """
own AS (
  SELECT s.g, s.sample, s.episode, sum(r.value * coalesce(r.weight, 1)) AS value
    FROM sample_ s
    JOIN agent_ a USING (g, agent)
    JOIN reward_ r ON r.g = s.g AND r.target = 'completion' AND r.completion = s.completions[-1]
                  AND r.weight IS DISTINCT FROM 0
   WHERE a.depth = 0 GROUP BY ALL
),
leaf AS (
  SELECT e.g, coalesce(e.forked_from_episode_id, e.episode_id) AS tree, 's' || o.sample AS leaf, o.value,
         [o.sample] AS samples
    FROM own o JOIN episode_ e USING (g, episode) WHERE e.in_statistics
  UNION ALL
  SELECT e.g, coalesce(e.forked_from_episode_id, e.episode_id), 'e' || e.episode, any_value(d.r),
         list(s.sample)
    FROM graded d JOIN episode_ e USING (g, episode) JOIN sample_ s USING (g, episode)
    JOIN agent_ a ON a.g = s.g AND a.agent = s.agent AND a.depth = 0
   WHERE NOT EXISTS (FROM own o WHERE o.g = e.g AND o.episode = e.episode)
   GROUP BY ALL
)"""

_ALONG = """
turn AS (
  SELECT c.g, c.sample, c.agent, c.completion, k.ordinal,
         k.purpose = 'summarize' AS is_summary, e.r
    FROM chain c
    JOIN completion_ m USING (g, completion)
    JOIN call_ k ON k.g = c.g AND k.call = m.call
    JOIN graded e ON e.g = c.g AND e.episode = c.episode
   WHERE EXISTS (FROM trained t WHERE t.g = c.g AND t.completion = c.completion)
)"""

RULES: Mapping[str, str] = {
    "shared": _OF_EPISODES.format(scalar=_SHARED),
    "memagent": _OF_EPISODES.format(scalar=_SHARED),
    "shared-std": _OF_EPISODES.format(scalar=_STD.format(std="stddev_samp")),
    "resum": _OF_EPISODES.format(scalar=_STD.format(std="stddev_samp")),
    "shared-std:ddof=0": _OF_EPISODES.format(scalar=_STD.format(std="stddev_pop")),
    "supo": _OF_EPISODES.format(
        scalar=f"FROM ({_STD.format(std='stddev_samp')}) WHERE coalesce(status, '') <> 'budget_exhausted'"
    ),
    "rloo": _OF_EPISODES.format(
        scalar="""
        SELECT g, episode, CASE WHEN max(r) OVER w = min(r) OVER w THEN 0
               ELSE r - (sum(r) OVER w - r) / (count(*) OVER w - 1) END AS a
          FROM graded WINDOW w AS (PARTITION BY g, origin)"""
    ),
    # k = 2: the sum over the pairs that it is in of the better reward, over C(n, 2).
    "pkpo:k=2": _OF_EPISODES.format(
        scalar="""
        SELECT a.g, a.episode, sum(greatest(a.r, b.r)) / any_value(n.n * (n.n - 1) / 2.0) AS a
          FROM graded a
          JOIN graded b ON b.g = a.g AND b.origin = a.origin AND b.episode <> a.episode
          JOIN (SELECT g, origin, count(*) AS n FROM graded GROUP BY ALL) n
               ON n.g = a.g AND n.origin = a.origin
         GROUP BY a.g, a.episode"""
    ),
    "own": """
    WITH peer AS (
      SELECT s.g, s.agent, s.s, s.depth, e.origin FROM scored s JOIN graded e USING (g, episode)
       WHERE s.trainable IS DISTINCT FROM FALSE
         AND EXISTS (FROM call_ k WHERE k.g = s.g AND k.agent = s.agent)
    ), advantage AS (
      SELECT g, agent, CASE WHEN max(s) OVER w = min(s) OVER w THEN 0 ELSE s - avg(s) OVER w END AS a
        FROM peer WINDOW w AS (PARTITION BY g, origin, depth)
    )
    SELECT c.g, c.sample, c.completion, NULL AS token, a.a FROM chain c JOIN advantage a USING (g, agent)
    """,
    "used": f"""
    WITH RECURSIVE u AS (
      SELECT g, agent, 1.0::DOUBLE AS share FROM agent_ WHERE parent IS NULL
      UNION ALL
      SELECT a.g, a.agent, u.share * coalesce(f.value, a.finding_used::INT)
        FROM agent_ a JOIN u ON u.g = a.g AND u.agent = a.parent
        LEFT JOIN fact f ON f.g = a.g AND f.agent = a.agent AND f.name = 'used'
    ), advantage AS ({_SHARED})
    SELECT c.g, c.sample, c.completion, NULL AS token, a.a * u.share AS a
      FROM chain c JOIN advantage a USING (g, episode) JOIN u USING (g, agent)
    """,
    "foldgrpo:context_limit=16,unsaid_tools=ok": """
    WITH penalty AS (
      SELECT c.g, c.sample, c.completion, c.episode,
             CASE WHEN a.trainable IS FALSE THEN 0
                  ELSE CASE WHEN a.depth = 0 AND min(p.position) > 0.5 * 16
                                 AND NOT EXISTS (FROM spawning x
                                                  WHERE x.g = c.g AND x.completion = c.completion)
                            THEN -1 ELSE 0 END
                       + CASE WHEN a.depth > 0 AND any_value(f.value) = 0 THEN -0.2 ELSE 0 END
                       + CASE WHEN any_value(m.tool_failed) THEN -1 ELSE 0 END
             END AS q
        FROM chain c
        JOIN agent_ a USING (g, agent)
        JOIN path p ON p.g = c.g AND p.sample = c.sample AND p.completion = c.completion
        LEFT JOIN fact f ON f.g = c.g AND f.agent = c.agent AND f.name = 'in_scope'
        JOIN completion_ m ON m.g = c.g AND m.completion = c.completion
       GROUP BY c.g, c.sample, c.completion, c.episode, a.depth, a.trainable
    ), spread AS (
      SELECT g, episode, r, avg(r) OVER w AS mean, stddev_samp(r) OVER w AS std,
             max(r) OVER w = min(r) OVER w AS is_even
        FROM graded WINDOW w AS (PARTITION BY g, origin)
    )
    SELECT p.g, p.sample, p.completion, NULL AS token,
           CASE WHEN s.is_even THEN 0 ELSE (greatest(0, least(1, s.r + p.q)) - s.mean) / s.std END AS a
      FROM penalty p JOIN spread s USING (g, episode)
    """,
    "parl:anneal_steps=8,subagents=2": """
    WITH delegated AS (
      SELECT g, episode, count(*) AS assigned, count(*) FILTER (WHERE status = 'ok') AS finished
        FROM (SELECT c.* FROM agent_ c JOIN agent_ p ON p.g = c.g AND p.agent = c.parent WHERE p.depth = 0)
       GROUP BY ALL
    ), paid AS (
      SELECT e.g, e.episode, e.origin,
             e.r + greatest(0, 1 - {step} / 8.0)
                   * coalesce(0.2 * least(1, d.assigned / 2.0) + 0.1 * d.finished / d.assigned, 0) AS r
        FROM graded e LEFT JOIN delegated d USING (g, episode)
    ), advantage AS (
      SELECT g, episode, CASE WHEN max(r) OVER w = min(r) OVER w THEN 0 ELSE r - avg(r) OVER w END AS a
        FROM paid WINDOW w AS (PARTITION BY g, origin)
    )
    SELECT c.g, c.sample, c.completion, NULL AS token, a.a
      FROM chain c JOIN advantage a USING (g, episode) JOIN agent_ o USING (g, agent) WHERE o.depth = 0
    """,
    "rao": """
    WITH RECURSIVE node AS (
      SELECT s.*, s.agent AS root, e.origin FROM scored s JOIN graded e USING (g, episode)
       WHERE s.depth = 0 AND s.trainable IS DISTINCT FROM FALSE
         AND EXISTS (FROM call_ k WHERE k.g = s.g AND k.agent = s.agent)
      UNION ALL
      SELECT s.*, n.root, n.origin FROM scored s JOIN node n ON n.g = s.g AND s.parent = n.agent
       WHERE s.trainable IS DISTINCT FROM FALSE
    ), whole AS (
      SELECT * FROM node n
       WHERE NOT EXISTS (FROM node b WHERE b.g = n.g AND b.root = n.root
                          AND b.status IN ('infra_error', 'cancelled', 'interrupted'))
    ), paid AS (
      SELECT x.*, x.s + 0.4 * coalesce((SELECT avg(c.s) FROM whole c
                                         WHERE c.g = x.g AND c.parent = x.agent), 0) AS r
        FROM whole x
    ), baseline AS (
      SELECT a.g, a.agent AS root, avg(b.r) AS b
        FROM paid a
        LEFT JOIN paid b ON b.g = a.g AND b.origin = a.origin AND b.depth = 0 AND b.agent <> a.agent
       WHERE a.depth = 0 GROUP BY ALL
    ), deep AS (
      SELECT depth, count(*) AS n FROM whole x
       WHERE EXISTS (FROM sample_ s WHERE s.g = x.g AND s.agent = x.agent) GROUP BY depth
    ), weight AS (
      SELECT depth, (SELECT sum(n) / count(*) FROM deep) / n AS w FROM deep
    )
    SELECT c.g, c.sample, c.completion, NULL AS token,
           w.w * CASE WHEN b.b IS NULL THEN 0 ELSE p.r - b.b END AS a
      FROM chain c JOIN paid p USING (g, agent) JOIN baseline b ON b.g = p.g AND b.root = p.root
      JOIN weight w ON w.depth = p.depth
    """,
    "tree-grpo": f"""
    WITH {_LEAVES}, standard AS (
      SELECT samples, g,
             CASE WHEN count(*) OVER intra = 1 THEN value / (1 + 1e-6)
                  WHEN max(value) OVER intra = min(value) OVER intra THEN 0
                  ELSE (value - avg(value) OVER intra) / (stddev_samp(value) OVER intra + 1e-6) END
             + CASE WHEN count(*) OVER inter = 1 THEN value / (1 + 1e-6)
                    WHEN max(value) OVER inter = min(value) OVER inter THEN 0
                    ELSE (value - avg(value) OVER inter) / (stddev_samp(value) OVER inter + 1e-6) END AS a
        FROM leaf WINDOW intra AS (PARTITION BY g, tree), inter AS (PARTITION BY g)
    )
    SELECT c.g, c.sample, c.completion, NULL AS token, s.a
      FROM chain c JOIN standard s ON s.g = c.g AND list_contains(s.samples, c.sample)
    """,
    "treerl": f"""
    WITH RECURSIVE {_LEAVES}, node AS (
      SELECT p.g, p.segment, list(DISTINCT l.leaf ORDER BY l.leaf) AS leaves
        FROM path p JOIN leaf l ON l.g = p.g AND list_contains(l.samples, p.sample)
       GROUP BY ALL
    ), worth AS (
      SELECT n.g, n.segment, n.leaves, s.parent, s.completion,
             (SELECT avg(l.value) FROM leaf l WHERE l.g = n.g AND list_contains(n.leaves, l.leaf)) AS v
        FROM node n JOIN segment_ s USING (g, segment)
    ), top AS (
      SELECT g, avg(value) AS v, count(*) AS n FROM leaf GROUP BY g
    ), climb AS (
      SELECT g, segment, leaves, v, parent AS above FROM worth WHERE completion IS NOT NULL
      UNION ALL
      SELECT c.g, c.segment, c.leaves, c.v, w.parent
        FROM climb c JOIN worth w ON w.g = c.g AND w.segment = c.above
       WHERE w.completion IS NULL OR w.leaves = c.leaves
    ), paid AS (
      SELECT c.g, c.segment,
             CASE WHEN len(c.leaves) = t.n THEN 0
                  ELSE ((c.v - t.v) + (c.v - coalesce(w.v, t.v))) / sqrt(len(c.leaves)) END AS a
        FROM climb c
        JOIN top t USING (g)
        LEFT JOIN worth w ON w.g = c.g AND w.segment = c.above
       WHERE c.above IS NULL OR (w.completion IS NOT NULL AND w.leaves <> c.leaves)
    )
    SELECT c.g, c.sample, c.completion, p.before + i AS token, a.a
      FROM chain c
      JOIN leaf l ON l.g = c.g AND list_contains(l.samples, c.sample)
      JOIN piece p ON p.g = c.g AND p.completion = c.completion
      JOIN paid a ON a.g = p.g AND a.segment = p.segment, LATERAL (SELECT unnest(range(p.length)) AS i)
    """,
    "mem1:gamma=0.9,lambda=0.8": f"""
    WITH {_ALONG}, step AS (
      SELECT t.g, t.sample, t.completion, x.token, t.agent, t.r, v.v,
             row_number() OVER w AS n, lead(v.v, 1, 0) OVER w AS v_next, lead(1) OVER w IS NULL AS is_last
        FROM turn t JOIN trained x USING (g, completion) JOIN critic v ON v.g = t.g AND v.at = x.at
      WINDOW w AS (PARTITION BY t.g, t.agent ORDER BY t.ordinal, x.token)
    ), delta AS (
      SELECT *, CASE WHEN is_last THEN r ELSE 0 END + 0.9 * v_next - v AS d FROM step
    )
    SELECT a.g, a.sample, a.completion, a.token, sum(pow(0.9 * 0.8, b.n - a.n) * b.d) AS a
      FROM delta a JOIN delta b ON b.g = a.g AND b.agent = a.agent AND b.n >= a.n GROUP BY ALL
    """,
    "compaction-rl:gamma=0.9": f"""
    WITH {_ALONG}, cut AS (
      SELECT *, CASE WHEN sample = lag(sample) OVER w AND NOT is_summary AND NOT lag(is_summary) OVER w
                     THEN 0 ELSE 1 END AS begins
        FROM turn WINDOW w AS (PARTITION BY g, agent ORDER BY ordinal)
    ), placed AS (
      SELECT *, sum(begins) OVER (PARTITION BY g, agent ORDER BY ordinal) AS segment FROM cut
    ), step AS (
      SELECT t.g, t.sample, t.completion, x.token, t.agent, t.segment, t.r, v.v,
             row_number() OVER w AS n, lead(v.v, 1, 0) OVER w AS v_next, lead(1) OVER w IS NULL AS is_last,
             count(*) OVER (PARTITION BY t.g, t.agent, t.segment) AS trained
        FROM placed t JOIN trained x USING (g, completion) JOIN critic v ON v.g = t.g AND v.at = x.at
      WINDOW w AS (PARTITION BY t.g, t.agent, t.segment ORDER BY t.ordinal, x.token)
    ), delta AS (
      SELECT *, 1 - 1 / (1.5 * trained) AS lambda,
             CASE WHEN is_last THEN r ELSE 0 END + 0.9 * v_next - v AS d,
             (SELECT count(*) FROM step l
               WHERE l.g = s.g AND l.agent = s.agent AND l.segment > s.segment) AS after
        FROM step s
    )
    SELECT a.g, a.sample, a.completion, a.token,
           any_value(pow(0.9 * a.lambda, a.after)) * sum(pow(0.9 * a.lambda, b.n - a.n) * b.d) AS a
      FROM delta a JOIN delta b ON b.g = a.g AND b.agent = a.agent AND b.segment = a.segment AND b.n >= a.n
     GROUP BY a.g, a.sample, a.completion, a.token
    """,
}


def critic(group: str, num_tokens: int) -> np.ndarray:
    """float64 [T], values that any critic could have said."""
    return np.sin(np.arange(num_tokens) + len(group)) / 2


def tables(export: Export) -> duckdb.DuckDBPyConnection:
    """A database with the export's shards, unnested."""
    batches = [batch for shard in export.manifest.shards for batch in export.batches(shard)]
    connection = duckdb.connect()
    connection.register("shard", pa.Table.from_batches(batches))
    for statement in _TABLES:
        connection.execute(statement)
    values = [
        (batch.column("group_id")[0].as_py(), at, float(value))
        for batch in batches
        for at, value in enumerate(
            critic(batch.column("group_id")[0].as_py(), len(batch.column("token_ids")[0]))
        )
    ]
    columns: Sequence[Any] = list(zip(*values, strict=True)) if values else [[], [], []]
    connection.register(
        "critic",
        pa.table(
            {
                "g": pa.array(columns[0], pa.string()),
                "at": pa.array(columns[1], pa.int64()),
                "v": pa.array(columns[2], pa.float64()),
            }
        ),
    )
    return connection


def by_sql(connection: duckdb.DuckDBPyConnection, rule: str, *, step: int = 0) -> dict[Key, float]:
    """What the query of a rule says."""
    rows = connection.execute(RULES[rule].replace("{step}", str(step))).fetchall()
    found = {(g, sample, completion, token): float(a) for g, sample, completion, token, a in rows}
    assert len(found) == len(rows), "one advantage each"
    return found
