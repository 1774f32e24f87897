"""A parsed SELECT -> the columns of views that can matter in it, and the views with these columns alone.

    SELECT model, count(*) FROM calls GROUP BY model

reads `model` of `calls`. Of the view's own SELECT the other columns go, then the LEFT JOINs that only they
used, and what is left says which columns of which tables have to be copied: a few instead of sixty.

Names decide, not scopes: a name that stands anywhere in the statement counts for every view with such a
column. What gives columns without naming them (a star, a whole row, NATURAL, `#1`) counts for all of them. So
more may be copied than is read, never less; and a column that is not there would be an error, not a NULL.

Trees are what `json_serialize_sql` says of a statement, once `sql_guard.check` has passed it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tracestore.store.sql_guard import folded

Node = Mapping[str, Any]

_QUERIES = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE")
_UNNAMED = ("POSITIONAL_REFERENCE", "PIVOT")
_PRIMARY_KEY = frozenset({"project_id", "key"})
"""Of every table that views join by `key`."""


def mentioned(statement: Node, *, views: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of each view its columns that a statement can read, in the view's order.

    Args:
        views: the columns of each view that the statement names.
    """
    names: set[str] = set()
    aliases: dict[str, set[str]] = defaultdict(set)
    whole: set[str] = set()
    for node in objects(statement):
        if node.get("type") in _UNNAMED or node.get("ref_type") == "NATURAL":
            whole |= views.keys()
        elif node.get("type") == "SELECT_NODE":
            whole |= _under_a_star(node)
        elif node.get("type") == "JOIN":
            names.update(folded(name) for name in node["using_columns"])
        elif node.get("type") == "SUBQUERY" and node["alias"]:
            aliases[folded(node["alias"])] |= set()
        elif node.get("type") == "BASE_TABLE":
            aliases[_alias(node)].add(folded(node["table_name"]))
            if node["column_name_alias"]:
                whole.add(folded(node["table_name"]))
    for node in objects(statement):
        if node.get("class") == "COLUMN_REF":
            names.update(folded(name) for name in node["column_names"])
            # A table's name, where a column's could stand, is its whole row.
            whole |= aliases.get(folded(node["column_names"][-1]), set())
        elif node.get("class") == "STAR" and node["relation_name"]:
            whole |= aliases.get(folded(node["relation_name"]), views.keys())
    return {
        view: [name for name in columns if view in whole or name in names] for view, columns in views.items()
    }


def _under_a_star(select: Node) -> set[str]:
    """What stands in the FROM of a SELECT that has a star without a table's name."""
    own = list(objects(list(select.values()), but=_QUERIES))
    is_starred = any(node.get("class") == "STAR" and not node["relation_name"] for node in own)
    return {folded(node["table_name"]) for node in own if is_starred and node.get("type") == "BASE_TABLE"}


def columns_of(view: Node) -> list[str]:
    """The columns of a view, in order."""
    return [_name(item) for item in _first_select(_query(view))["select_list"]]


def narrowed(view: Node, columns: Collection[str]) -> Node:
    """A view with some of its columns, and the same rows. One of UNIONs, or DISTINCT, stays whole."""
    query = _query(view)
    if query["type"] != "SELECT_NODE" or query["modifiers"]:
        return view
    items = query["select_list"]
    query = {**query, "select_list": [item for item in items if _name(item) in columns] or items[:1]}
    (statement,) = view["statements"]
    return {**view, "statements": [{**statement, "node": _without_idle_joins(query)}]}


def tables_of(view: Node, *, tables: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """The columns that a view reads of each table that it reads.

    Args:
        tables: the columns of every table there is.
    """
    aliases: dict[str, set[str]] = defaultdict(set)
    for node in objects(view):
        if node.get("type") == "BASE_TABLE" and node["table_name"] in tables:
            aliases[node["alias"] or node["table_name"]].add(node["table_name"])
    found: dict[str, set[str]] = {table: set() for named in aliases.values() for table in named}
    for node in objects(view):
        assert node.get("class") != "STAR", "views name their columns"
        if node.get("class") == "COLUMN_REF":
            *qualifier, name = node["column_names"]
            for table in aliases.get(qualifier[0], ()) if qualifier else found:
                if name in tables[table]:
                    found[table].add(name)
    return found


def objects(tree: Any, *, but: Sequence[str] = ()) -> Iterator[Node]:
    """Every object of a tree, in no order, but not those in objects of some types."""
    stack = [tree]
    while stack:
        here = stack.pop()
        if isinstance(here, list):
            stack += here
        elif isinstance(here, dict) and here.get("type") not in but:
            yield here
            stack += here.values()


def _alias(table: Node) -> str:
    return folded(table["alias"] or table["table_name"])


def _query(statement: Node) -> Node:
    (only,) = statement["statements"]
    node: Node = only["node"]
    return node


def _first_select(query: Node) -> Node:
    return query if query["type"] == "SELECT_NODE" else _first_select(query["left"])


def _name(item: Node) -> str:
    name: str = item["alias"] or item["column_names"][-1]
    return name


def _without_idle_joins(select: Node) -> Node:
    """Without LEFT JOINs that find one row at most, of which nothing is read."""
    while True:
        kept = _less_joined(select["from_table"], _qualifiers(select))
        if kept is select["from_table"]:
            return select
        select = {**select, "from_table": kept}


def _less_joined(table: Node, used: Counter[str]) -> Node:
    if table["type"] != "JOIN":
        return table
    if _is_idle(table, used):
        left: Node = table["left"]
        return left
    left = _less_joined(table["left"], used)
    return table if left is table["left"] else {**table, "left": left}


def _is_idle(join: Node, used: Counter[str]) -> bool:
    right = join["right"]
    if join["join_type"] != "LEFT" or right["type"] != "BASE_TABLE":
        return False
    own = _qualifiers(join["condition"])[right["alias"]]
    return used[right["alias"]] == own and _by_primary_key(join["condition"], right["alias"])


def _by_primary_key(condition: Node, alias: str) -> bool:
    """Whether a condition fixes the key of a table, so that it finds one row at most."""
    fixed = set()
    for equality in condition["children"] if condition["type"] == "CONJUNCTION_AND" else [condition]:
        if equality["type"] == "COMPARE_EQUAL":
            for side, other in (("left", "right"), ("right", "left")):
                names = equality[side].get("column_names", ())
                if len(names) == 2 and names[0] == alias and not _qualifiers(equality[other])[alias]:
                    fixed.add(names[1])
    return fixed >= _PRIMARY_KEY


def _qualifiers(tree: Any) -> Counter[str]:
    """How often columns are named by each table's name."""
    return Counter(node["column_names"][0] for node in objects(tree) if node.get("class") == "COLUMN_REF")
