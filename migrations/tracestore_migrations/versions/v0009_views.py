"""The views: `episodes` gives an episode no reward of which all rewards have weight 0, and `critical_steps`
looks twelve levels of agents down instead of four. No row changes.
"""

from __future__ import annotations

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: an upgrade makes the declared views anew at its end."""
