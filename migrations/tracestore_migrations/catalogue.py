"""What a database itself says of its schema, as text to compare: columns, constraints, indexes, views."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlalchemy import Connection, text

Catalogue = dict[str, frozenset[str]]
"""Name of a table or view -> one line for each thing that it is made of."""

_VERSION_TABLE = "alembic_version"


def read_catalogue(connection: Connection) -> Catalogue:
    """The schema of a SQLite file, or of the schema that PostgreSQL creates tables in."""
    lines = _sqlite(connection) if connection.dialect.name == "sqlite" else _postgresql(connection)
    found: dict[str, set[str]] = {}
    for name, line in lines:
        if name != _VERSION_TABLE:
            found.setdefault(name, set()).add(re.sub(r"\s+", " ", line).strip())
    return {name: frozenset(parts) for name, parts in sorted(found.items())}


def differences(found: Catalogue, declared: Catalogue) -> list[str]:
    """How the first differs from the second, in words."""
    problems = []
    for name in sorted(found.keys() | declared.keys()):
        if name not in found:
            problems.append(f"{name}: is missing")
        elif name not in declared:
            problems.append(f"{name}: is not declared")
        else:
            problems += [f"{name}: lacks {line}" for line in sorted(declared[name] - found[name])]
            problems += [f"{name}: has undeclared {line}" for line in sorted(found[name] - declared[name])]
    return problems


def _sqlite(connection: Connection) -> Iterator[tuple[str, str]]:
    rows = connection.execute(
        text(
            "SELECT type, tbl_name, sql FROM sqlite_master"
            " WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY name"
        )
    )
    for kind, name, sql in rows:
        if kind == "table":
            opening, closing = sql.index("("), sql.rindex(")")
            for clause in _split(sql[opening + 1 : closing]):
                yield name, clause
            yield name, f"table {sql[closing + 1 :]}"
        else:
            yield name, sql


def _split(body: str) -> Iterator[str]:
    """The parts of a CREATE TABLE between its outer commas."""
    depth, start = 0, 0
    in_text = False
    for position, character in enumerate(body):
        if character == "'":
            in_text = not in_text
        elif not in_text:
            depth += (character == "(") - (character == ")")
            if character == "," and depth == 0:
                yield body[start:position]
                start = position + 1
    yield body[start:]


_POSTGRESQL = """
SELECT c.relname, 'column ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
       || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'v')
   AND NOT c.relispartition
   AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT c.relname, 'constraint ' || k.conname || ' ' || pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
 WHERE c.relnamespace = current_schema()::regnamespace AND k.contype <> 'n'
   AND NOT c.relispartition AND k.conparentid = 0
UNION ALL
SELECT c.relname, pg_get_indexdef(i.indexrelid)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind <> 't' AND NOT c.relispartition
UNION ALL
SELECT c.relname, 'partition by ' || pg_get_partkeydef(c.oid)
  FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'p'
UNION ALL
SELECT w.relname, 'partition ' || c.relname || ' ' || pg_get_expr(c.relpartbound, c.oid)
  FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_class w ON w.oid = h.inhparent
 WHERE w.relnamespace = current_schema()::regnamespace AND w.relkind = 'p'
UNION ALL
SELECT viewname, definition FROM pg_views WHERE schemaname = current_schema()
"""


def _postgresql(connection: Connection) -> Iterator[tuple[str, str]]:
    here = connection.execute(text("SELECT current_schema()")).scalar()
    for name, line in connection.execute(text(_POSTGRESQL)):
        yield name, line.replace(f"{here}.", "")
