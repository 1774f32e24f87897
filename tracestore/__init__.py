"""tracestore: the database between agent harness and trainer, exact to the byte and to the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracestore.analysis.database import Database

__version__ = "0.1.0"


def open(url: str, *, project: str = "default") -> Database:  # noqa: A001
    """One project of a store, to read in Python: frames of the views, SQL, episodes as graphs and pictures.

    Args:
        url: a file, `sqlite:///FILE` or `postgresql://...`.

    Raises:
        BadUrl, NoStore, WrongRevision, UnknownProject: there is nothing there to read.

    Example: `tracestore.open("tracestore.db").episodes(status="ok").pandas()`
    """
    # Late: a harness that imports the client loads no database.
    from tracestore.analysis.database import Database

    return Database(url, project=project)
