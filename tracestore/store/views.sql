-- What analysts read. One view per block; the same names and columns on SQLite, PostgreSQL and DuckDB.
--
-- Every row says which `project` and which `episode_id` it is of, and names things by their client's ids.
-- `content_id` and `message_id` are the store's own numbers, unique in the database (`tables.py` says how they are
-- made of keys): `message_text(content_id)` is the full text of a message. It is a function of our SQLite
-- connections and of `tracestore sql` (a PostgreSQL server cannot unpack zstd: ask it through `tracestore sql`), so
-- no view reads bodies. No view parses JSON: what stands in columns here was extracted when it came. No view
-- reads another view.
--
-- So that the three engines give the same rows:
-- - Unknown is NULL. Engines sort it differently: say `NULLS FIRST` or `NULLS LAST`.
-- - Whole numbers are 64 bit (a sum is cast back: PostgreSQL makes it `numeric`, DuckDB HUGEINT), all others
--   double precision; a ratio is of doubles. Times are nanoseconds UTC, whole numbers.
-- - Claims (`is_...`, `selected`, ...) are booleans, on SQLite 1 and 0; `WHERE is_complete` reads the same on all.
-- - What is being deleted is gone: its episode has no `first_pos` from the first step on.
-- - Text is compared and sorted by code point, case and all; on a PostgreSQL database with another collation say
--   `ORDER BY ... COLLATE "C"`. Rows have no order but the one that a query states.

-- Episodes: one attempt at one task each. An episode of which only parts have come has no `status` and
-- `is_recorded` false. `sampled_tokens` counts completions with token ids, each once; `reward` is the weighted sum
-- of the episode's own rewards; those of weight 0 grade nothing.
CREATE VIEW episodes AS
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
         WHERE r.project_id = e.project_id AND r.episode_key = e.key AND r.target = 'episode'
           AND coalesce(r.weight, 1) <> 0) AS reward,
       e.started_at,
       e.ended_at,
       e.first_pos AS position
  FROM episode e
  JOIN project p ON p.project_id = e.project_id
  LEFT JOIN task_group g ON g.project_id = e.project_id AND g.key = e.group_key
  LEFT JOIN episode fe ON fe.project_id = e.project_id AND fe.key = e.forked_from_episode_key
  LEFT JOIN call fc ON fc.project_id = e.project_id AND fc.key = e.forked_from_call_key
 WHERE e.first_pos IS NOT NULL;

-- Agents: who spawned them, and what came of them. `is_complete` is false while its end has not come.
-- `depth` is as stated, `tree_depth` counts the agents above it that have come.
CREATE VIEW agents AS
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
            JOIN agent q
              ON q.project_id = a.project_id AND q.key = above.agent_key AND q.pos IS NOT NULL
             AND q.episode_key = a.episode_key
        )
        SELECT count(*)
          FROM above
          JOIN agent q
            ON q.project_id = a.project_id AND q.key = above.agent_key AND q.pos IS NOT NULL
           AND q.episode_key = a.episode_key)
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
         WHERE c.project_id = a.project_id AND c.agent_key = a.key AND c.episode_key = a.episode_key
           AND c.pos IS NOT NULL) AS num_calls,
       a.started_at,
       a.ended_at
  FROM agent a
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent pa ON pa.project_id = a.project_id AND pa.key = a.parent_agent_key
  LEFT JOIN call sc ON sc.project_id = a.project_id AND sc.key = a.spawned_by_call_key
  LEFT JOIN snapshot s ON s.project_id = a.project_id AND s.key = a.snapshot_key
 WHERE a.pos IS NOT NULL;

-- Calls: one model call each. `link_call_id` and `link_completion` are what it continues, `link` how that is
-- known (named, inferred, matched, ambiguous, none). `prompt_tokens` and `completion_tokens` are what the
-- provider counted, `prompt_ids` and `sampled_tokens` how many token ids were recorded.
CREATE VIEW calls AS
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
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN call pc ON pc.project_id = c.project_id AND pc.key = c.parent_call_key
  LEFT JOIN call lc ON lc.project_id = c.project_id AND lc.key = c.link_call_key
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
 WHERE c.pos IS NOT NULL;

-- Tool calls: the tool uses of completions, in order of `position`, each with its execution where one was
-- recorded. `tool_call_id` is the model's own id, `execution_id` that of the recorded execution. An execution
-- whose use was not found in a message has no position.
CREATE VIEW tool_calls AS
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
  JOIN episode e ON e.project_id = u.project_id AND e.key = u.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key;

-- Messages: each message once for every place where it stands in an episode. The spellings of one message at
-- one place are rows of their own: `twin_of_message_id` names the first. `num_completions` tells how many
-- completions stand there: 0 for what no recorded call sampled.
CREATE VIEW messages AS
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
  JOIN episode e ON e.project_id = n.project_id AND e.key = n.episode_key AND e.first_pos IS NOT NULL
  JOIN content t ON t.project_id = n.project_id AND t.key = n.content_key;

-- Contexts: for each call the messages it saw, in order from position 0, each with its author: the completion
-- that stands at the message's place. `author_*` is NULL for what no recorded call sampled, and where several
-- completions stand at one place (`num_authors` counts them; the call's links tell them apart). A delta call
-- whose parent has not come has no rows. The path is walked for each call apart, so that asking for one call
-- costs one call; a join as the step of the walk makes PostgreSQL read the whole table at every step.
CREATE VIEW contexts AS
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
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
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
  LEFT JOIN agent aa ON aa.project_id = ac.project_id AND aa.key = ac.agent_key;

-- Edges: how calls, agents, episodes and context edits relate. kind: continuation (call to call), spawn (call
-- or agent to agent), fork (call or episode to episode), edit_before, summary, replaced, copy (call to edit),
-- edit_after (edit to call).
CREATE VIEW edges AS
SELECT d.project,
       d.episode_id,
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
  FROM (SELECT p.name AS project, e.id AS episode_id, g.project_id, g.kind, g.position, g.from_call_key,
               g.from_completion, g.from_agent_key, g.from_episode_key, g.tool_call_id, g.to_call_key,
               g.to_agent_key, g.to_episode_key, g.context_edit_key
          FROM edge g
          JOIN project p ON p.project_id = g.project_id
          JOIN episode e ON e.project_id = g.project_id AND e.key = g.episode_key AND e.first_pos IS NOT NULL
        UNION ALL
        SELECT p.name, e.id, c.project_id, 'continuation', 0, c.link_call_key,
               c.link_completion, NULL, NULL, NULL, c.key,
               NULL, NULL, NULL
          FROM call c
          JOIN project p ON p.project_id = c.project_id
          JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
         WHERE c.link_call_key IS NOT NULL) d
  LEFT JOIN call fc ON fc.project_id = d.project_id AND fc.key = d.from_call_key
  LEFT JOIN agent fa ON fa.project_id = d.project_id AND fa.key = d.from_agent_key
  LEFT JOIN episode fe ON fe.project_id = d.project_id AND fe.key = d.from_episode_key
  LEFT JOIN call tc ON tc.project_id = d.project_id AND tc.key = d.to_call_key
  LEFT JOIN agent ta ON ta.project_id = d.project_id AND ta.key = d.to_agent_key
  LEFT JOIN episode te ON te.project_id = d.project_id AND te.key = d.to_episode_key
  LEFT JOIN context_edit x ON x.project_id = d.project_id AND x.key = d.context_edit_key;

-- Branches: one row for each end, which is a completion that no call continues word for word, or a call that
-- nothing came back from. `num_calls` counts the end's call and those before it along the links. They are walked
-- for each end apart, so that asking for one episode costs one episode.
CREATE VIEW branches AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       c.id AS end_call_id,
       m.completion AS end_completion,
       (WITH RECURSIVE chain (call_key) AS (
          SELECT c.key
          UNION
          SELECT (SELECT q.link_call_key FROM call q
                   WHERE q.project_id = c.project_id AND q.key = chain.call_key)
            FROM chain
           WHERE chain.call_key IS NOT NULL
        )
        SELECT count(chain.call_key) FROM chain) AS num_calls,
       coalesce(n.depth + 1, 0) AS num_messages,
       r.id AS first_call_id,
       (c.project_id << 40) | coalesce(m.node_key, c.prompt_node_key) AS last_message_id
  FROM call c
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
  JOIN call r
    ON r.project_id = c.project_id
   AND r.key = (
     WITH RECURSIVE chain (call_key) AS (
       SELECT c.key
       UNION
       SELECT (SELECT q.link_call_key FROM call q
                WHERE q.project_id = c.project_id AND q.key = chain.call_key)
         FROM chain
        WHERE chain.call_key IS NOT NULL
     )
     SELECT max(q.key)
       FROM chain
       JOIN call q ON q.project_id = c.project_id AND q.key = chain.call_key AND q.link_call_key IS NULL)
  LEFT JOIN completion m
    ON m.project_id = c.project_id AND m.call_key = c.key AND m.node_key IS NOT NULL
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN node n ON n.project_id = c.project_id AND n.key = coalesce(m.node_key, c.prompt_node_key)
 WHERE c.pos IS NOT NULL
   AND c.context_messages IS NOT NULL
   AND NOT EXISTS (
     SELECT 1 FROM call q
      WHERE q.project_id = m.project_id AND q.link_call_key = m.call_key
        AND q.link_completion = m.completion AND q.link_exact);

-- Candidates: the members of each candidate set. A member is `selected` when any of the set's selections chose it,
-- and NULL before there is one; `continued` in the same way, NULL where the harness did not tell it apart. A
-- selection that chose a member which the set lacks counts for nothing. `score` and what is said of the selection
-- are of the last one by id that says it.
CREATE VIEW candidates AS
WITH valid (project_id, candidate_set_key, selection_key, id) AS (
  SELECT x.project_id, x.candidate_set_key, x.key, x.id
    FROM candidate_selection x
   WHERE NOT EXISTS (
     SELECT 1 FROM candidate_choice h
      WHERE h.project_id = x.project_id AND h.candidate_selection_key = x.key AND h.part = 'selected'
        AND NOT EXISTS (
          SELECT 1 FROM candidate_member m
           WHERE m.project_id = x.project_id AND m.candidate_set_key = x.candidate_set_key
             AND m.member = h.member))
), said (project_id, candidate_set_key, part, member, score, place) AS (
  SELECT v.project_id, v.candidate_set_key, h.part, h.member, h.score,
         row_number() OVER (
           PARTITION BY v.project_id, v.candidate_set_key, h.part, h.member ORDER BY v.id DESC)
    FROM valid v
    JOIN candidate_choice h ON h.project_id = v.project_id AND h.candidate_selection_key = v.selection_key
), last_selection (project_id, candidate_set_key, selection_key, place) AS (
  SELECT v.project_id, v.candidate_set_key, v.selection_key,
         row_number() OVER (PARTITION BY v.project_id, v.candidate_set_key ORDER BY v.id DESC)
    FROM valid v
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
         (SELECT max(d.score) FROM said d
           WHERE d.project_id = m.project_id AND d.candidate_set_key = s.key
             AND d.part = 'score' AND d.member = m.member AND d.place = 1),
         m.score) AS score,
       CASE WHEN l.selection_key IS NOT NULL THEN EXISTS (
         SELECT 1 FROM said d
          WHERE d.project_id = m.project_id AND d.candidate_set_key = s.key
            AND d.part = 'selected' AND d.member = m.member) END AS selected,
       CASE WHEN EXISTS (
         SELECT 1 FROM said d
          WHERE d.project_id = m.project_id AND d.candidate_set_key = s.key AND d.part = 'continued') THEN EXISTS (
         SELECT 1 FROM said d
          WHERE d.project_id = m.project_id AND d.candidate_set_key = s.key
            AND d.part = 'continued' AND d.member = m.member) END AS continued,
       x.id AS candidate_selection_id,
       x.selector,
       x.selector_version,
       xc.id AS selector_call_id,
       x.treatment,
       x.reason
  FROM candidate_set s
  JOIN candidate_member m ON m.project_id = s.project_id AND m.candidate_set_key = s.key
  JOIN project p ON p.project_id = s.project_id
  JOIN episode e ON e.project_id = s.project_id AND e.key = s.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = s.project_id AND a.key = s.agent_key
  LEFT JOIN call c ON c.project_id = m.project_id AND c.key = m.call_key
  LEFT JOIN agent ma ON ma.project_id = m.project_id AND ma.key = m.agent_key
  LEFT JOIN last_selection l ON l.project_id = s.project_id AND l.candidate_set_key = s.key AND l.place = 1
  LEFT JOIN candidate_selection x ON x.project_id = l.project_id AND x.key = l.selection_key
  LEFT JOIN call xc ON xc.project_id = x.project_id AND xc.key = x.selector_call_key;

-- Rewards, in the order in which they came (`seq`). `target` is the finest thing a reward is for.
CREATE VIEW rewards AS
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
  JOIN episode e ON e.project_id = r.project_id AND e.key = r.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = r.project_id AND a.key = r.agent_key
  LEFT JOIN call c ON c.project_id = r.project_id AND c.key = r.call_key
  LEFT JOIN candidate_set s ON s.project_id = r.project_id AND s.key = r.candidate_set_key;

-- Token counts: each recorded token once. `new_prompt_tokens` are those a call read that no call before it on
-- its chain had read or sampled, `sampled_tokens` those of all its completions. Sums over calls are right: a
-- shared prefix is counted by the call that brought it. NULL where no ids were recorded. A call that came before the
-- one that it continues counts its prompt whole.
CREATE VIEW token_counts AS
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
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
 WHERE c.pos IS NOT NULL;

-- Critical steps: for each agent the length of its run in model calls when its subagents run side by side: its
-- own calls, plus for each stage those of the longest subagent started in it (Kimi K2.5, PARL). A stage is what
-- the harness says it is, else the call that spawned; a subagent is taken to be waited for before the next
-- stage, so the harness says by one `stage` of two spawns that they overlap; the cost of a nested subagent
-- is its own critical steps. NULL while a subagent below it has not returned, and for an agent with more than
-- twelve levels below it. `sequential_steps` are the calls of the agent and of all below it, one after the
-- other, and `speed_up` how many times as many those are. Each agent is looked at apart, so that asking for one
-- episode costs one episode: `+` keeps SQLite from reading all of an episode's agents to find those of one parent,
-- DISTINCT (of rows that are all distinct) every engine from working out a length anew wherever it is named.
-- A path has 40 digits a level, 20 for the stage and 20 for the agent. What is below a level is folded into it:
-- of the paths that agree as far as the stage the longest counts, and those of the stages add up to the agent's.
-- MATERIALIZED keeps DuckDB's planner from a time that each level multiplies by four.
CREATE VIEW critical_steps AS
SELECT x.project,
       x.episode_id,
       x.agent_id,
       x.parent_agent_id,
       x.own_calls,
       x.steps AS critical_steps,
       x.sequential_steps,
       CASE WHEN x.steps > 0 THEN CAST(x.sequential_steps AS DOUBLE PRECISION) / x.steps END AS speed_up
  FROM (SELECT DISTINCT
               p.name AS project,
               e.id AS episode_id,
               a.id AS agent_id,
               pa.id AS parent_agent_id,
               (SELECT count(*) FROM call c
                 WHERE c.project_id = a.project_id AND c.agent_key = a.key
                   AND +c.episode_key = a.episode_key AND c.pos IS NOT NULL) AS own_calls,
               (WITH RECURSIVE below (agent_key, level, path, is_open) AS (
                  SELECT a.key, 0, CAST('' AS TEXT), 0
                  UNION ALL
                  SELECT q.key, below.level + 1,
                         below.path
                           || substr('00000000000000000000', 1, 20 - length(CAST(coalesce(q.stage, -q.spawned_by_call_key, 0) AS TEXT)))
                           || CAST(coalesce(q.stage, -q.spawned_by_call_key, 0) AS TEXT)
                           || substr('00000000000000000000', 1, 20 - length(CAST(q.key AS TEXT)))
                           || CAST(q.key AS TEXT),
                         CASE WHEN q.end_pos IS NULL THEN 1 ELSE 0 END
                    FROM below
                    JOIN agent q
                      ON q.project_id = a.project_id AND q.parent_agent_key = below.agent_key
                     AND +q.episode_key = a.episode_key AND q.pos IS NOT NULL
                   WHERE below.level < 13
                ), level13 (path, steps, is_unknown) AS MATERIALIZED (
                  SELECT below.path,
                         (SELECT count(*) FROM call c
                           WHERE c.project_id = a.project_id AND c.agent_key = below.agent_key
                             AND +c.episode_key = a.episode_key AND c.pos IS NOT NULL),
                         CASE WHEN below.is_open = 1 OR below.level = 13 THEN 1 ELSE 0 END
                    FROM below
                -- For level 12 to 1:
                ), level{level} (path, steps, is_unknown) AS MATERIALIZED (
                  SELECT substr(s.path, 1, 40 * {level} - 40), CAST(sum(s.steps) AS BIGINT), max(s.is_unknown)
                    FROM (SELECT substr(l.path, 1, 40 * {level} - 20) AS path, max(l.steps) AS steps,
                                 max(l.is_unknown) AS is_unknown
                            FROM level{below} l
                           GROUP BY 1) s
                   GROUP BY 1
                -- End.
                )
                SELECT CASE WHEN is_unknown = 0 THEN steps END FROM level1) AS steps,
               (WITH RECURSIVE below (agent_key) AS (
                  SELECT a.key
                  UNION
                  SELECT q.key
                    FROM below
                    JOIN agent q
                      ON q.project_id = a.project_id AND q.parent_agent_key = below.agent_key
                     AND +q.episode_key = a.episode_key AND q.pos IS NOT NULL
                )
                SELECT CAST(sum((SELECT count(*) FROM call c
                                  WHERE c.project_id = a.project_id AND c.agent_key = below.agent_key
                                    AND +c.episode_key = a.episode_key AND c.pos IS NOT NULL)) AS BIGINT)
                  FROM below) AS sequential_steps
          FROM agent a
          JOIN project p ON p.project_id = a.project_id
          JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key AND e.first_pos IS NOT NULL
          LEFT JOIN agent pa ON pa.project_id = a.project_id AND pa.key = a.parent_agent_key
         WHERE a.pos IS NOT NULL) x;

-- Compaction loss: for each context edit how much of the context went. Tokens are as the harness counted them,
-- messages as the calls before and after it saw them.
CREATE VIEW compaction_loss AS
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
  JOIN episode e ON e.project_id = x.project_id AND e.key = x.episode_key AND e.first_pos IS NOT NULL
  JOIN agent a ON a.project_id = x.project_id AND a.key = x.agent_key
  LEFT JOIN call bc ON bc.project_id = x.project_id AND bc.key = x.before_call_key
  LEFT JOIN call ac ON ac.project_id = x.project_id AND ac.key = x.after_call_key
  LEFT JOIN call wc ON wc.project_id = x.project_id AND wc.key = x.author_call_key;

-- Compaction calls: the calls that each context edit names as replaced by it, or as kept (sent again after it),
-- in the order posted, with the tokens they brought, each once (as in `token_counts`).
CREATE VIEW compaction_calls AS
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
  JOIN episode e ON e.project_id = x.project_id AND e.key = x.episode_key AND e.first_pos IS NOT NULL
  JOIN call c ON c.project_id = m.project_id AND c.key = m.call_key
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key;

-- Compaction messages: what each context edit did to every message of the old context (of the call before it, and
-- its answer where it has one). `vanished`: the new context (of the call after it) has not the same bytes, each
-- counted as often as it stands there; NULL where either call is not known. Of messages alike those of the new
-- context are counted first: the old one's nth is number `num_after` + n of them, and is there if n <= num_after.
-- The names in the window are those that one filters by: a filter on anything else would be applied after it.
CREATE VIEW compaction_messages AS
SELECT d.project,
       d.episode_id,
       d.context_edit_id,
       d.position,
       (d.project_id << 40) | d.node_key AS message_id,
       (d.project_id << 40) | d.content_key AS content_id,
       t.role,
       t.tool_name,
       t.size,
       t.preview,
       CASE WHEN d.is_after_known THEN d.number > 2 * d.num_after END AS vanished
  FROM (SELECT p.name AS project, e.id AS episode_id, x.id AS context_edit_id, x.project_id, s.side,
               n.key AS node_key, n.content_key, n.depth AS position,
               EXISTS (SELECT 1 FROM call ac
                        WHERE ac.project_id = x.project_id AND ac.key = x.after_call_key
                          AND ac.prompt_node_key IS NOT NULL) AS is_after_known,
               row_number() OVER alike AS number,
               sum(CASE WHEN s.side = 'after' THEN 1 ELSE 0 END) OVER alike AS num_after
          FROM context_edit x
          JOIN project p ON p.project_id = x.project_id
          JOIN episode e ON e.project_id = x.project_id AND e.key = x.episode_key AND e.first_pos IS NOT NULL
          JOIN (SELECT 'before' AS side UNION ALL SELECT 'after') s ON s.side IN ('before', 'after')
          JOIN call c
            ON c.project_id = x.project_id
           AND c.key = CASE WHEN s.side = 'before' THEN x.before_call_key ELSE x.after_call_key END
          JOIN node n
            ON n.project_id = c.project_id
           AND n.key IN (
             WITH RECURSIVE path (node_key) AS (
               SELECT coalesce(
                        (SELECT CASE WHEN count(*) = 1 THEN max(m.node_key) END FROM completion m
                          WHERE m.project_id = c.project_id AND m.call_key = c.key AND s.side = 'before'),
                        c.prompt_node_key)
                WHERE c.prompt_node_key IS NOT NULL
               UNION ALL
               SELECT (SELECT u.parent_key FROM node u
                        WHERE u.project_id = c.project_id AND u.key = path.node_key)
                 FROM path
                WHERE path.node_key IS NOT NULL
             )
             SELECT path.node_key FROM path)
        WINDOW alike AS (PARTITION BY p.name, e.id, x.id, n.content_key ORDER BY s.side, n.depth)) d
  JOIN content t ON t.project_id = d.project_id AND t.key = d.content_key
 WHERE d.side = 'before';

-- Orphans: what names something that has not come, computed when read. A parent in another episode has not
-- come either. `missing` says what it is (parent_call, parent_agent, spawning_call, agent, call, episode).
CREATE VIEW orphans AS
SELECT p.name AS project, e.id AS episode_id, 'call' AS kind, c.id AS id,
       'parent_call' AS missing, q.id AS missing_id
  FROM call c
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
  JOIN call q ON q.project_id = c.project_id AND q.key = c.parent_call_key
 WHERE c.pos IS NOT NULL AND (q.pos IS NULL OR q.episode_key <> c.episode_key)
UNION ALL
SELECT p.name, e.id, 'call', c.id, 'agent', a.id
  FROM call c
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
  JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
 WHERE c.pos IS NOT NULL AND (a.pos IS NULL OR a.episode_key <> c.episode_key)
UNION ALL
SELECT p.name, e.id, 'completion', v.id, 'call', c.id
  FROM completion_event v
  JOIN completion m ON m.project_id = v.project_id AND m.key = v.completion_key
  JOIN call c ON c.project_id = m.project_id AND c.key = m.call_key
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
 WHERE c.pos IS NULL
UNION ALL
SELECT p.name, e.id, 'agent', a.id, 'parent_agent', q.id
  FROM agent a
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key AND e.first_pos IS NOT NULL
  JOIN agent q ON q.project_id = a.project_id AND q.key = a.parent_agent_key
 WHERE a.pos IS NOT NULL AND (q.pos IS NULL OR q.episode_key <> a.episode_key)
UNION ALL
SELECT p.name, e.id, 'agent', a.id, 'spawning_call', q.id
  FROM agent a
  JOIN project p ON p.project_id = a.project_id
  JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key AND e.first_pos IS NOT NULL
  JOIN call q ON q.project_id = a.project_id AND q.key = a.spawned_by_call_key
 WHERE a.pos IS NOT NULL AND (q.pos IS NULL OR q.episode_key <> a.episode_key)
UNION ALL
SELECT p.name, e.id, 'episode', e.id, 'episode', e.id
  FROM episode e
  JOIN project p ON p.project_id = e.project_id
 WHERE e.first_pos IS NOT NULL AND e.pos IS NULL;

-- Gaps: what is known to be missing, with its cause, as posted.
CREATE VIEW gaps AS
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
  JOIN episode e ON e.project_id = g.project_id AND e.key = g.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = g.project_id AND a.key = g.agent_key
  LEFT JOIN call c ON c.project_id = g.project_id AND c.key = g.call_key;

-- Snapshots: the memory of agents at one moment, by its hash. `parent_hash` is what it came of, `commit_order` its
-- place among the commits of one `wave`. Which agents started from it stands in `agents.snapshot_id`.
CREATE VIEW snapshots AS
SELECT p.name AS project,
       e.id AS episode_id,
       s.id AS snapshot_id,
       a.id AS agent_id,
       s.hash,
       s.parent_hash,
       s.wave,
       s.commit_order,
       s.frozen,
       s.at
  FROM snapshot s
  JOIN project p ON p.project_id = s.project_id
  JOIN episode e ON e.project_id = s.project_id AND e.key = s.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = s.project_id AND a.key = s.agent_key
 WHERE s.pos IS NOT NULL;

-- Blobs: what refers to large or binary payloads, each by the sha256 of its bytes (`hash`): one payload has a row
-- for every place that refers to it. `position` is the token at which it stands in the call's prompt ++ completion;
-- `shape` is outermost first, empty for a scalar. `size` is in bytes, as stated
-- there or where else the same bytes are referred to.
CREATE VIEW blobs AS
SELECT p.name AS project,
       e.id AS episode_id,
       r.id AS blob_id,
       r.hash,
       r.role,
       r.media_type,
       r.dtype,
       r.shape,
       coalesce(r.size, b.size) AS size,
       a.id AS agent_id,
       c.id AS call_id,
       r.completion,
       r.position,
       r.at
  FROM blob_ref r
  JOIN project p ON p.project_id = r.project_id
  JOIN episode e ON e.project_id = r.project_id AND e.key = r.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN blob b ON b.project_id = r.project_id AND b.hash = r.hash
  LEFT JOIN agent a ON a.project_id = r.project_id AND a.key = r.agent_key
  LEFT JOIN call c ON c.project_id = r.project_id AND c.key = r.call_key;

-- Consumption: which completion was trained in which optimizer step, shard and sample. `policy_version` is the
-- oldest that sampled some of it (`policy_versions` has each); `staleness` is how many versions behind the step it
-- was trained in, where the trainer counts versions in optimizer steps (prime-rl, max_off_policy_steps).
CREATE VIEW consumption AS
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
  JOIN episode e ON e.project_id = u.project_id AND e.key = u.episode_key AND e.first_pos IS NOT NULL
  JOIN call c ON c.project_id = u.project_id AND c.key = u.call_key
  LEFT JOIN (SELECT m.project_id, m.call_key, m.completion, min(r.version) AS version
               FROM completion m
               JOIN version_run r ON r.project_id = m.project_id AND r.completion_key = m.key
              GROUP BY m.project_id, m.call_key, m.completion) v
    ON v.project_id = u.project_id AND v.call_key = u.call_key
   AND v.completion = coalesce(u.completion, 0);

-- Credit: what a credit rule gave each branch of an export (`tracestore credit EXPORT --rule RULE --db URL`), over
-- its trained tokens. All that one rule gave at one optimizer step has one `version`, which counts up in the
-- project: the highest is the latest. `rule` has every option; `rows_hash` differs from `export_hash` where the
-- export goes on, and tells which rows it had. `advantage_...` is NULL where no token has one, and `notes` says why.
CREATE VIEW credit AS
SELECT p.name AS project,
       e.id AS episode_id,
       a.id AS agent_id,
       k.sample_id,
       k.cause,
       k.export_hash,
       k.rows_hash,
       k.rule,
       k.reward_terms,
       k.step,
       k.version,
       k.reward,
       k.advantage_min,
       k.advantage_mean,
       k.advantage_max,
       k.tokens,
       k.notes,
       k.written_at
  FROM branch_credit k
  JOIN project p ON p.project_id = k.project_id
  JOIN episode e ON e.project_id = k.project_id AND e.key = k.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = k.project_id AND a.key = k.agent_key;

-- Policy versions: for each completion the runs of tokens that one version sampled, in order of `position`; a
-- completion without runs is one of its call's version. `num_tokens` is NULL where no ids were recorded.
CREATE VIEW policy_versions AS
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
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key
  LEFT JOIN (SELECT v.project_id, v.completion_key, v.position, v.start, v.name, v.version,
                    lead(v.start) OVER (
                      PARTITION BY v.project_id, v.completion_key ORDER BY v.position) AS next_start
               FROM version_run v) r
    ON r.project_id = m.project_id AND r.completion_key = m.key;

-- Prefix duplication: for each episode how often the same was read again. `tokens_processed` are all that its
-- calls read and sampled, `tokens_once` the same with each token once (`token_counts`); of calls without ids
-- neither has any. `messages_read` is the length of all contexts together, `messages_once` the places they stand at.
CREATE VIEW prefix_duplication AS
SELECT d.project,
       d.episode_id,
       d.num_calls,
       d.calls_without_ids,
       d.tokens_processed,
       d.tokens_once,
       CASE WHEN d.tokens_once > 0
            THEN CAST(d.tokens_processed AS DOUBLE PRECISION) / d.tokens_once END AS token_duplication,
       d.messages_read,
       d.messages_once
  FROM (SELECT p.name AS project,
               e.id AS episode_id,
               (SELECT count(*) FROM call c
                 WHERE c.project_id = e.project_id AND c.episode_key = e.key AND c.pos IS NOT NULL)
                 AS num_calls,
               (SELECT count(*) FROM call c
                  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
                 WHERE c.project_id = e.project_id AND c.episode_key = e.key AND c.pos IS NOT NULL
                   AND r.num_tokens IS NULL) AS calls_without_ids,
               (SELECT CAST(sum(r.num_tokens + coalesce(
                         (SELECT sum(o.num_tokens) FROM completion o
                           WHERE o.project_id = c.project_id AND o.call_key = c.key), 0)) AS BIGINT)
                  FROM call c
                  JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
                 WHERE c.project_id = e.project_id AND c.episode_key = e.key AND c.pos IS NOT NULL)
                 AS tokens_processed,
               (SELECT CAST(sum(r.num_tokens - r.base_length + coalesce(
                         (SELECT sum(o.num_tokens) FROM completion o
                           WHERE o.project_id = c.project_id AND o.call_key = c.key), 0)) AS BIGINT)
                  FROM call c
                  JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
                 WHERE c.project_id = e.project_id AND c.episode_key = e.key AND c.pos IS NOT NULL)
                 AS tokens_once,
               (SELECT CAST(sum(c.context_messages) AS BIGINT) FROM call c
                 WHERE c.project_id = e.project_id AND c.episode_key = e.key AND c.pos IS NOT NULL)
                 AS messages_read,
               (SELECT count(DISTINCT coalesce(n.twin_of_key, n.key)) FROM node n
                 WHERE n.project_id = e.project_id AND n.episode_key = e.key
                   AND (EXISTS (SELECT 1 FROM node k WHERE k.project_id = n.project_id AND k.parent_key = n.key)
                     OR EXISTS (SELECT 1 FROM call q
                                 WHERE q.project_id = n.project_id AND q.prompt_node_key = n.key)))
                 AS messages_once
          FROM episode e
          JOIN project p ON p.project_id = e.project_id
         WHERE e.first_pos IS NOT NULL) d
 WHERE d.num_calls > 0;

-- Finish rates: for each agent that spawned others how many were assigned work and how many finished it: their
-- end has come, with the status `ok` (Kimi K2.5, PARL: r_finish = finished / assigned). Those whose end has not
-- come, or says nothing, are assigned and not finished; `unfinished_open` counts the former.
CREATE VIEW finish_rates AS
SELECT d.project,
       d.episode_id,
       d.agent_id,
       d.assigned,
       d.finished,
       d.unfinished_open,
       CAST(d.finished AS DOUBLE PRECISION) / d.assigned AS finish_rate
  FROM (SELECT p.name AS project, e.id AS episode_id, a.id AS agent_id,
               count(*) AS assigned,
               CAST(sum(CASE WHEN s.end_pos IS NOT NULL AND s.status = 'ok' THEN 1 ELSE 0 END) AS BIGINT)
                 AS finished,
               CAST(sum(CASE WHEN s.end_pos IS NULL THEN 1 ELSE 0 END) AS BIGINT) AS unfinished_open
          FROM agent s
          JOIN agent a
            ON a.project_id = s.project_id AND a.key = s.parent_agent_key AND a.episode_key = s.episode_key
          JOIN project p ON p.project_id = a.project_id
          JOIN episode e ON e.project_id = a.project_id AND e.key = a.episode_key AND e.first_pos IS NOT NULL
         WHERE s.pos IS NOT NULL
         GROUP BY p.name, e.id, a.id) d;

-- Unfolded tokens: what agents at the root of an episode sampled in calls that spawned nothing, with how long the
-- context was. FoldGRPO (arXiv 2510.11967) counts against the policy those beyond half of its context limit, which
-- no trace holds: sum `sampled_tokens` where `context_tokens` is more. The ids' count, else the provider's.
CREATE VIEW unfolded_tokens AS
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
  JOIN agent a ON a.project_id = c.project_id AND a.key = c.agent_key AND a.episode_key = c.episode_key
  JOIN project p ON p.project_id = c.project_id
  JOIN episode e ON e.project_id = c.project_id AND e.key = c.episode_key AND e.first_pos IS NOT NULL
  LEFT JOIN token_run r ON r.project_id = c.project_id AND r.key = c.prompt_run_key
 WHERE c.pos IS NOT NULL
   AND a.pos IS NOT NULL
   AND a.parent_agent_key IS NULL
   AND NOT EXISTS (
     SELECT 1 FROM agent s
      WHERE s.project_id = c.project_id AND s.parent_agent_key = a.key AND s.spawned_by_call_key = c.key);
