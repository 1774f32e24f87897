"""The view `episodes` gives an episode no reward of which all rewards have weight 0. No row changes."""

from __future__ import annotations

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: an upgrade makes the declared views anew at its end."""
