"""A parsed SELECT -> the ids that the rows of a view must have to matter in it, where it says so.

    SELECT ... FROM contexts x JOIN calls c ON c.call_id = x.call_id WHERE x.call_id = 'c1'

sees rows of `contexts` and of `calls` whose `call_id` is c1, and no others. Those few are found by the
database itself, by its indexes, where DuckDB would copy whole tables.

Only what certainly holds is used: an equality of such a column with a text, or of two of them, in the WHERE
or in the ON or USING of a join, joined to the rest by AND. (Such columns are texts: where DuckDB casts to
compare, two that equal a third may differ.) Everything else leaves a view as it is, which costs time and
changes no row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracestore.store.sql_columns import objects
from tracestore.store.sql_guard import folded

FOUND_BY = ("call_id", "episode_id")
"""Columns by which every view that has them finds its rows by an index; the first is the most selective."""

_MOST_IDS = 200
_JOINS = frozenset({"INNER", "LEFT"})
_JOINED_HOW = frozenset({"REGULAR", "CROSS", "DEPENDENT"})

Node = Mapping[str, Any]


class Ids(NamedTuple):
    """Rows of a view: those with one of these texts in this column."""

    column: str
    values: tuple[str, ...]


class _Column(NamedTuple):
    table: str
    """As the query calls it, in lower case."""
    name: str


class _Equality(NamedTuple):
    left: _Column
    right: _Column | frozenset[str]
    only_into: frozenset[str]
    """Tables that it limits: of a LEFT JOIN the right side alone, else all."""


def needed(statement: Node, *, columns: Mapping[str, Sequence[str]]) -> dict[str, Ids]:
    """The views of which a statement needs a few rows alone, which lie in the named column.

    Args:
        statement: what `json_serialize_sql` says of it, once `sql_guard.check` has passed it.
        columns: of each view those of `FOUND_BY` that it has.
    """
    limits: dict[int, dict[str, frozenset[str]]] = {}
    references: dict[str, list[int]] = defaultdict(list)
    for node in objects(statement):
        if node.get("type") == "SELECT_NODE":
            limits |= _of_select(node, columns)
        if node.get("type") == "BASE_TABLE" and _view(node) in columns:
            references[_view(node)].append(id(node))
    found = {}
    for view, nodes in references.items():
        ids = _of_all([limits.get(node, {}) for node in nodes])
        if ids is not None:
            found[view] = ids
    return found


def _of_all(limits: Sequence[Mapping[str, frozenset[str]]]) -> Ids | None:
    """What holds for some reference to a view, out of what holds for each of them."""
    for column in FOUND_BY:
        if all(column in limit for limit in limits):
            values = frozenset().union(*(limit[column] for limit in limits))
            if len(values) <= _MOST_IDS:
                return Ids(column, tuple(sorted(values)))
    return None


def _of_select(select: Node, columns: Mapping[str, Sequence[str]]) -> dict[int, dict[str, frozenset[str]]]:
    """For each view in a FROM what its columns must be, by the identity of its node."""
    nodes = list(_tables(select["from_table"]))
    if select["sample"] is not None or not all(map(_is_plain, nodes)):
        return {}
    tables = [node for node in nodes if node["type"] != "JOIN"]
    if len({_alias(node) for node in tables}) < len(tables):
        return {}
    views = {_alias(node): node for node in tables if _view(node) in columns}
    scope = _Scope(select["from_table"], {name: columns[_view(node)] for name, node in views.items()})
    known = _closure(scope.equalities(select["where_clause"]))
    limits: dict[int, dict[str, frozenset[str]]] = defaultdict(dict)
    for column, values in known.items():
        limits[id(views[column.table])][column.name] = values
    return limits


class _Scope:
    """The views of one FROM, and what names of columns mean there."""

    def __init__(self, from_table: Node, columns: Mapping[str, Sequence[str]]) -> None:
        self._from = from_table
        self._columns = columns

    def equalities(self, where: Node | None) -> Iterator[_Equality]:
        yield from self._of_condition(where, frozenset(self._columns))
        yield from self._of_join(self._from)

    def _of_join(self, node: Node) -> Iterator[_Equality]:
        if node["type"] != "JOIN":
            return
        into = frozenset(self._columns)
        if node["join_type"] == "LEFT":
            into = frozenset(_alias(table) for table in _tables(node["right"]) if table["type"] != "JOIN")
        yield from self._of_condition(node.get("condition"), into)
        for name in node["using_columns"]:
            left, right = (self._named(node[side], folded(name)) for side in ("left", "right"))
            if left is not None and right is not None:
                yield _Equality(left, right, into)
        yield from self._of_join(node["left"])
        # Inside the right of a LEFT JOIN a condition says nothing of the rows that it finds no match for.
        if node["join_type"] == "INNER":
            yield from self._of_join(node["right"])

    def _of_condition(self, node: Node | None, into: frozenset[str]) -> Iterator[_Equality]:
        if node is None:
            return
        if node["type"] == "CONJUNCTION_AND":
            for child in node["children"]:
                yield from self._of_condition(child, into)
        elif node["type"] == "COMPARE_EQUAL":
            left, right = self._column(node["left"]), self._column(node["right"])
            if left is not None and right is not None:
                yield _Equality(left, right, into)
            elif column := left or right:
                texts = _texts([node["right"] if left else node["left"]])
                if texts is not None:
                    yield _Equality(column, texts, into)
        elif node["type"] == "COMPARE_IN":
            column, texts = self._column(node["children"][0]), _texts(node["children"][1:])
            if column is not None and texts is not None:
                yield _Equality(column, texts, into)

    def _column(self, node: Node) -> _Column | None:
        """The column of a view here that finds its rows; None for everything else."""
        if node["class"] != "COLUMN_REF":
            return None
        names = [folded(name) for name in node["column_names"]]
        if len(names) == 1:
            return self._named(self._from, names[0])
        return self._found_by(*names) if len(names) == 2 else None

    def _named(self, node: Node, name: str) -> _Column | None:
        """What a name without a table means: the column of the only view, or the one that USING merged."""
        if node["type"] == "BASE_TABLE":
            return self._found_by(_alias(node), name)
        if node["type"] == "JOIN" and name in [folded(column) for column in node["using_columns"]]:
            return self._named(node["left"], name)
        return None

    def _found_by(self, table: str, name: str) -> _Column | None:
        return _Column(table, name) if name in self._columns.get(table, ()) else None


def _closure(equalities: Iterable[_Equality]) -> dict[_Column, frozenset[str]]:
    """What each column must be: what it is said to be, and what columns that it equals are said to be."""
    known: dict[_Column, frozenset[str]] = {}
    pairs: list[tuple[_Column, _Column]] = []
    for left, right, into in equalities:
        if isinstance(right, frozenset):
            if left.table in into:
                known[left] = known.get(left, right) & right
        else:
            pairs += [(a, b) for a, b in ((left, right), (right, left)) if b.table in into]
    grown = True
    while grown:
        grown = False
        for source, target in pairs:
            if source in known and target not in known:
                known[target] = known[source]
                grown = True
    return known


def _tables(node: Node) -> Iterator[Node]:
    """A FROM's joins, and what they join."""
    yield node
    if node["type"] == "JOIN":
        yield from _tables(node["left"])
        yield from _tables(node["right"])


def _is_plain(node: Node) -> bool:
    """Whether a row of a table is there or not by its own values, under its own names."""
    if node["type"] == "JOIN":
        return node["join_type"] in _JOINS and node["ref_type"] in _JOINED_HOW
    return node.get("sample") is None and not node.get("column_name_alias")


def _alias(node: Node) -> str:
    return folded(node["alias"] or node.get("table_name", ""))


def _view(node: Node) -> str:
    return folded(node["table_name"]) if node["type"] == "BASE_TABLE" else ""


def _texts(nodes: Iterable[Node]) -> frozenset[str] | None:
    """Constants, where all of them are texts."""
    found = set()
    for node in nodes:
        value = node.get("value") if node["class"] == "CONSTANT" else None
        if value is None or value["is_null"] or value["type"]["id"] != "VARCHAR":
            return None
        found.add(value["value"])
    return frozenset(found)
