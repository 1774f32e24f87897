"""Is this one SELECT over the views and nothing else? Decided on DuckDB's own parse of it.

DuckDB's settings are no wall: with external access off it still opens files through some functions. So
what may be named is listed, and everything else is refused before it runs.

A name that is no view must be a CTE where it stands: anywhere else DuckDB would look for a system table, a
file or a Python variable of that name. CTEs have plain names of their own for the same reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from tracestore.errors import TracestoreError


class SqlRefused(TracestoreError):
    """This SQL is not run"""

    exit_code = 2


_OPERATORS = (
    *("+", "-", "*", "/", "//", "%", "^", "**", "||", "&", "|", "<<", ">>", "~"),
    *(
        "~~",
        "!~~",
        "~~*",
        "!~~*",
        "~~~",
        "like_escape",
        "not_like_escape",
        "ilike_escape",
        "not_ilike_escape",
    ),
)
_AGGREGATES = (
    *(
        "count",
        "count_star",
        "count_if",
        "sum",
        "sum_no_overflow",
        "fsum",
        "avg",
        "mean",
        "min",
        "max",
        "product",
    ),
    *(
        "median",
        "mode",
        "quantile",
        "quantile_cont",
        "quantile_disc",
        "approx_count_distinct",
        "approx_quantile",
    ),
    *(
        "stddev",
        "stddev_samp",
        "stddev_pop",
        "variance",
        "var_samp",
        "var_pop",
        "corr",
        "covar_samp",
        "covar_pop",
    ),
    *("regr_slope", "regr_intercept", "regr_r2", "skewness", "kurtosis", "entropy", "histogram", "bool_and"),
    *("bool_or", "any_value", "first", "last", "arg_min", "arg_max", "min_by", "max_by", "string_agg"),
    *("group_concat", "listagg", "list", "array_agg", "bit_and", "bit_or"),
)
_WINDOWS = (
    *("row_number", "rank", "dense_rank", "rank_dense", "percent_rank", "cume_dist", "ntile", "lag", "lead"),
    *("first_value", "last_value", "nth_value"),
)
_SCALARS = (
    *(
        "abs",
        "sign",
        "round",
        "floor",
        "ceil",
        "ceiling",
        "trunc",
        "sqrt",
        "cbrt",
        "exp",
        "ln",
        "log",
        "log2",
    ),
    *("log10", "pow", "power", "mod", "fmod", "greatest", "least", "isnan", "isinf", "isfinite", "bit_count"),
    *("lower", "upper", "lcase", "ucase", "length", "len", "strlen", "substr", "substring", "left", "right"),
    *("trim", "ltrim", "rtrim", "replace", "contains", "prefix", "suffix", "starts_with", "ends_with"),
    *(
        "position",
        "strpos",
        "instr",
        "concat",
        "concat_ws",
        "repeat",
        "reverse",
        "lpad",
        "rpad",
        "split_part",
    ),
    *("string_split", "str_split", "regexp_matches", "regexp_full_match", "regexp_extract", "regexp_replace"),
    *("regexp_extract_all", "regexp_split_to_array", "chr", "ascii", "unicode", "levenshtein", "jaccard"),
    *("hash", "md5", "sha256", "format", "printf", "ifnull", "nullif", "if", "coalesce", "typeof", "error"),
    *(
        "date_trunc",
        "date_part",
        "datepart",
        "date_diff",
        "datediff",
        "extract",
        "epoch",
        "epoch_ms",
        "epoch_us",
    ),
    *(
        "epoch_ns",
        "to_timestamp",
        "make_timestamp",
        "make_timestamp_ns",
        "make_date",
        "strftime",
        "year",
        "month",
    ),
    *(
        "day",
        "hour",
        "minute",
        "second",
        "dayofweek",
        "week",
        "to_seconds",
        "to_minutes",
        "to_hours",
        "to_days",
    ),
    *(
        "list_value",
        "list_extract",
        "list_contains",
        "list_sort",
        "list_distinct",
        "list_aggregate",
        "list_slice",
    ),
    *(
        "array_extract",
        "array_slice",
        "array_length",
        "array_to_string",
        "list_position",
        "list_sum",
        "list_avg",
    ),
    *(
        "list_min",
        "list_max",
        "list_apply",
        "list_transform",
        "list_reverse",
        "list_filter",
        "struct_pack",
        "struct_extract",
        "row",
        "map",
    ),
    *("map_extract", "map_keys", "map_values", "cardinality", "unnest", "grouping", "message_text"),
    # Arguments of tools and bodies of messages are mostly JSON.
    *(
        "->>",
        "json_extract",
        "json_extract_string",
        "json_array_length",
        "json_keys",
        "json_type",
        "json_valid",
    ),
    *("json_contains", "json_exists"),
)
FUNCTIONS = frozenset((*_OPERATORS, *_AGGREGATES, *_WINDOWS, *_SCALARS))
"""Functions that read nothing but their arguments (and `message_text`, which reads one content)."""

_WITHOUT_BRACKETS = frozenset(
    (
        *("current_catalog", "current_database", "current_date", "current_localtime"),
        *("current_localtimestamp", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    )
)
"""Names that are columns to the parser, and functions where no column has that name."""

TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"})
_TABLE_NODES = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT"}
)
_EXPRESSIONS = frozenset(
    (
        *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT"),
        *("FUNCTION", "LAMBDA", "OPERATOR", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "WINDOW"),
    )
)
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)

Node = Mapping[str, Any]


def check(serialized: str, *, views: Collection[str]) -> frozenset[str]:
    """The views that a statement reads.

    Args:
        serialized: what `json_serialize_sql` says of it.

    Raises:
        SqlRefused: it is not one SELECT, or names something that is not listed.
    """
    try:
        parsed = json.loads(serialized)
    except RecursionError:
        raise SqlRefused(hint="the SQL is nested too deep") from None
    if parsed["error"]:
        kind = parsed.get("error_type", "")
        hint = "one SELECT is run here, nothing else" if kind == "not implemented" else None
        raise SqlRefused(error=parsed["error_message"], hint=hint)
    statements = parsed["statements"]
    if len(statements) != 1:
        raise SqlRefused(statements=len(statements), hint="send one SELECT")
    known = set(views)
    used = set()
    for node, visible in _scoped(statements[0]):
        for entry in _ctes(node):
            _check_cte_name(entry["key"], known=known)
        table = _check_node(node)
        if table is not None and table not in visible:
            if table not in known:
                raise SqlRefused(table=table, hint=f"the views are {', '.join(sorted(known))}")
            used.add(table)
    return frozenset(used)


def _scoped(statement: Node) -> Iterator[tuple[Node, frozenset[str]]]:
    """Every object of a statement, with the CTEs that a table's name can mean there, in lower case.

    A CTE can be named by those after it and by the query it belongs to; by itself only in the second half
    of a recursive one.
    """
    stack: list[tuple[Any, frozenset[str]]] = [(statement, frozenset())]
    while stack:
        here, visible = stack.pop()
        if isinstance(here, list):
            stack += [(item, visible) for item in here]
        elif isinstance(here, dict):
            yield here, visible
            for entry in _ctes(here):
                stack.append((entry["value"], visible))
                visible |= {folded(entry["key"])}
            for name, child in here.items():
                is_recursion = name == "right" and here.get("type") == "RECURSIVE_CTE_NODE"
                own = {folded(here["cte_name"])} if is_recursion else frozenset()
                if name != "cte_map":
                    stack.append((child, visible | own))


def _ctes(node: Node) -> list[Node]:
    found = node.get("cte_map")
    return found["map"] if isinstance(found, dict) else []


def _check_cte_name(name: str, *, known: Collection[str]) -> None:
    if folded(name) in known:
        raise SqlRefused(cte=name, hint="give the CTE another name than a view has")
    if _PLAIN_NAME.fullmatch(folded(name)) is None:
        raise SqlRefused(cte=name, hint="name CTEs with ASCII letters, digits and _")


def _check_node(node: Node) -> str | None:
    """Refuse what is not listed; the name of the table, for a table."""
    kind = node.get("type")
    if kind == "SHOW_REF":
        raise SqlRefused(
            hint="DESCRIBE, SHOW and SUMMARIZE are not run here: `tracestore sql` alone lists the views"
        )
    _check_is_listed(node)
    if "function_name" in node:
        _check_function(node)
    if kind == "COLUMN_REF":
        _check_column(node["column_names"])
    if kind == "TABLE_FUNCTION":
        name = folded(node["function"]["function_name"])
        if name not in TABLE_FUNCTIONS:
            raise SqlRefused(function=name, hint="tables come from the views, not from functions")
    if kind == "BASE_TABLE":
        if node["schema_name"] or node["catalog_name"]:
            raise SqlRefused(table=node["table_name"], hint="name views without a schema")
        if node["at_clause"] is not None:
            raise SqlRefused(table=node["table_name"], hint="views have no versions")
        return folded(node["table_name"])
    return None


def _check_is_listed(node: Node) -> None:
    """Refuse a kind of query, table or expression that was not thought of here."""
    kind = node.get("type")
    if "cte_map" in node:
        is_listed = kind in _QUERY_NODES or kind in _TABLE_NODES
    elif "table_name" in node or ("query_location" in node and "sample" in node):
        is_listed = kind in _TABLE_NODES
    elif "class" in node:
        kind = node["class"]
        is_listed = kind in _EXPRESSIONS
    else:
        return
    if not is_listed:
        raise SqlRefused(hint=f"{str(kind).lower().replace('_', ' ')} is not run here")


def _check_function(node: Node) -> None:
    name = folded(node["function_name"])
    is_listed = name in FUNCTIONS or name in TABLE_FUNCTIONS
    if not is_listed or node.get("schema") not in ("", "main", None) or node.get("catalog") not in ("", None):
        alike = get_close_matches(name, FUNCTIONS, n=3)
        hint = "only functions that read nothing but their arguments are run here"
        raise SqlRefused(function=name, hint=f"{hint}; {' or '.join(alike)}?" if alike else hint)
    if name == "list_aggregate":
        _check_aggregate(node["children"][1:2])


def _check_column(names: Sequence[str]) -> None:
    if len(names) == 1 and folded(names[0]) in _WITHOUT_BRACKETS:
        raise SqlRefused(function=names[0], hint="to mean a column, name its table too")


def _check_aggregate(named: Sequence[Node]) -> None:
    """Refuse an aggregate that is not listed, and one whose name is only known when it runs."""
    for node in named:
        name = node["value"].get("value") if node["class"] == "CONSTANT" else None
        if not isinstance(name, str) or folded(name) not in _AGGREGATES:
            raise SqlRefused(aggregate=name, hint="name one of the listed aggregates, as a text")


def folded(name: str) -> str:
    """A name in lower case, as DuckDB folds it: Python also makes a k of the Kelvin sign."""
    return name.lower() if name.isascii() else name
