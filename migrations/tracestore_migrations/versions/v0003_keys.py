"""API keys that say what they may do and until when, and the sessions of browsers. One function a table.

`api_key`: made anew, since no version could make a key and the table is empty. `session`: new, and empty.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _api_key()
    _session()


def _api_key() -> None:
    op.drop_table("api_key")
    op.create_table(
        "api_key",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("project_id", "prefix", name="pk_api_key"),
        sa.UniqueConstraint("hash", name="uq_api_key_hash"),
        sa.CheckConstraint(
            "scopes IN ('read', 'write', 'read write', 'admin')", name="ck_api_key_scopes_is_known"
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_api_key_project_id"),
        sqlite_with_rowid=False,
    )


def _session() -> None:
    op.create_table(
        "session",
        sa.Column("project_id", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("key_prefix", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "hash", name="pk_session"),
        sa.UniqueConstraint("hash", name="uq_session_hash"),
        sa.ForeignKeyConstraint(["project_id"], ["project.project_id"], name="fk_session_project_id"),
        sa.ForeignKeyConstraint(
            ["project_id", "key_prefix"],
            ["api_key.project_id", "api_key.prefix"],
            name="fk_session_key_prefix",
        ),
        sqlite_with_rowid=False,
    )
