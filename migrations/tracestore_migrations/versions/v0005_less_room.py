"""Rows that take less room still: token ids compressed with a dictionary of their project.

Rows that exist stay as they are (`dictionary_key` is NULL).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dictionary", sa.Column("purpose", sa.Text()))
    op.add_column("token_run", sa.Column("dictionary_key", sa.BigInteger()))
