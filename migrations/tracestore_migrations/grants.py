"""Who may do what with tables and views of PostgreSQL: kept over an upgrade that makes them anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, inspect, text


class Grant(NamedTuple):
    """One privilege that was given to a role other than the owner."""

    relation: str
    privilege: str
    role: str
    """As SQL writes it."""
    option: str
    """How the statement ends."""


_READ = """
SELECT c.relname, a.privilege_type,
       CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END,
       CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
  FROM pg_class c
 CROSS JOIN aclexplode(c.relacl) a
  LEFT JOIN pg_roles r ON r.oid = a.grantee
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'v')
   AND NOT c.relispartition AND a.grantee <> c.relowner
 ORDER BY 1, 2, 3
"""


def grants(connection: Connection) -> list[Grant]:
    """Of every table and view, not of columns; none on SQLite."""
    if connection.dialect.name != "postgresql":
        return []
    return [Grant(*row) for row in connection.execute(text(_READ))]


def give(connection: Connection, given: Iterable[Grant]) -> None:
    """Give the same again, as far as there are tables and views of those names."""
    there = inspect(connection)
    names = {*there.get_table_names(), *there.get_view_names()}
    for grant in given:
        if grant.relation in names:
            connection.execute(
                text(f'GRANT {grant.privilege} ON "{grant.relation}" TO {grant.role}{grant.option}')
            )
