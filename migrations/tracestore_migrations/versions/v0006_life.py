"""Deletions and redactions: what was asked for, what is still to be swept, which exports hold what is gone;
and indexes of episodes by what lists filter.

Rows that exist stay as they are; their tombstones, of which there are none yet, have no deletion. The table
`redaction` is made anew: nothing ever wrote to it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
        sa.Column("before_at", sa.BigInteger()),
        sa.CheckConstraint(
            "what IN ('episode', 'project', 'age', 'content', 'blobs')",
            name=op.f("ck_deletion_what_is_known"),
        ),
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
    _redaction()
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
    op.drop_index("ix_episode_first_pos", "episode")
    op.create_index("ix_episode_first_pos", "episode", ["project_id", "first_pos", "started_at"])
    for name, column in (("task", "task_id"), ("status", "status"), ("split", "split")):
        op.create_index(f"ix_episode_{name}", "episode", ["project_id", column, "first_pos"])
    op.create_index("ix_episode_started_at", "episode", ["project_id", "started_at", "first_pos"])


def _redaction() -> None:
    op.drop_table("redaction")
    op.create_table(
        "redaction",
        *_whole("project_id", "key"),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("asked_by", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        *_whole("requested_at"),
        sa.Column("finished_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        *_whole("after_key"),
        sa.Column("first_pos", sa.BigInteger()),
        sa.Column("last_pos", sa.BigInteger()),
        *_whole("num_positions", "num_events", "num_values", "num_contents"),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_redaction"),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_redaction_project_id"),
        sa.CheckConstraint(
            "state IN ('redacting', 'sweeping', 'packing', 'scrubbing', 'done')",
            name=op.f("ck_redaction_state_is_known"),
        ),
    )
    op.create_table(
        "redacted_ids",
        *_whole("project_id", "call_key", "completion"),
        sa.PrimaryKeyConstraint("project_id", "call_key", "completion", name="pk_redacted_ids"),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_redacted_ids_project_id"),
        sa.ForeignKeyConstraint(
            ["project_id", "call_key"],
            ["call.project_id", "call.key"],
            name="fk_redacted_ids_call_key",
            deferrable=True,
            initially="DEFERRED",
        ),
        sqlite_with_rowid=False,
    )


def _whole(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]
