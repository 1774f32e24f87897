"""What credit rules gave the branches of exports, kept beside the traces. No row that exists changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "branch_credit",
        *_whole("project_id", "key", "version"),
        sa.Column("export_hash", sa.Text(), nullable=False),
        sa.Column("rows_hash", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("reward_terms", sa.Text()),
        *_whole("step"),
        sa.Column("sample_id", sa.Text(), nullable=False),
        *_whole("episode_key"),
        sa.Column("agent_key", sa.BigInteger()),
        sa.Column("cause", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Double()) for name in _NUMBERS),
        *_whole("tokens"),
        sa.Column("notes", sa.Text()),
        *_whole("written_at"),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_branch_credit"),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_branch_credit_project_id"),
        *(
            sa.ForeignKeyConstraint(
                ["project_id", f"{table}_key"],
                [f"{table}.project_id", f"{table}.key"],
                name=f"fk_branch_credit_{table}_key",
                deferrable=True,
                initially="DEFERRED",
            )
            for table in ("episode", "agent")
        ),
    )
    op.create_index("ix_branch_credit_episode", "branch_credit", ["project_id", "episode_key"])
    op.create_index("ix_branch_credit_version", "branch_credit", ["project_id", "version"])
    op.create_index("ix_branch_credit_export", "branch_credit", ["project_id", "export_hash"])


_NUMBERS = ("reward", "advantage_min", "advantage_mean", "advantage_max")


def _whole(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]
