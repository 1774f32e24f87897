"""What the declared tables promise a PostgreSQL that keeps each project on one node."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Table, UniqueConstraint

from tracestore.store.tables import metadata

_LOOKED_UP_WITHOUT_A_PROJECT = {
    "uq_project_name": "its name is how a project is found",
    "uq_api_key_hash": "a key alone says which project it opens",
    "uq_session_hash": "so does a cookie",
}
"""What is unique in the whole database. `project`, `api_key` and `session` are small: nodes have copies."""


def test_every_primary_key_leads_with_the_project() -> None:
    assert {table.name: next(iter(table.primary_key.columns)).name for table in metadata.tables.values()} == (
        dict.fromkeys(metadata.tables, "project_id")
    )


def test_what_is_unique_is_unique_in_its_project() -> None:
    exceptions = {
        str(name)
        for table in metadata.tables.values()
        for name, columns in _unique(table)
        if columns[0] != "project_id"
    }
    assert exceptions == _LOOKED_UP_WITHOUT_A_PROJECT.keys()


def test_every_reference_stays_in_its_project() -> None:
    for table in metadata.tables.values():
        for constraint in table.foreign_key_constraints:
            first = constraint.elements[0]
            assert (first.parent.name, first.column.name) == ("project_id", "project_id"), constraint.name


def test_every_index_leads_with_the_project() -> None:
    for table in metadata.tables.values():
        for index in table.indexes:
            assert index.columns[0].name == "project_id", index.name


def _unique(table: Table) -> Iterator[tuple[str | None, list[str]]]:
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield str(constraint.name), [column.name for column in constraint.columns]
    for index in table.indexes:
        if index.unique:
            yield index.name, [column.name for column in index.columns]
