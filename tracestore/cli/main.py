"""argv -> one verb -> exit code: 0 done, 1 found a problem or failed, 2 asked for wrongly."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tracestore import __version__
from tracestore.cli import (
    convert,
    credit,
    db,
    demo,
    diff,
    export,
    forks,
    import_,
    keys,
    replay,
    rescore,
    serve,
    show,
    spool,
    sql,
    train,
    train_links,
    verify,
)
from tracestore.cli.common import UsageError, Verb
from tracestore.errors import TracestoreError

VERBS: tuple[tuple[str, Verb], ...] = (
    ("serve", serve),
    ("keys", keys),
    ("demo", demo),
    ("import", import_),
    ("show", show),
    ("diff", diff),
    ("forks", forks),
    ("sql", sql),
    ("export", export),
    ("convert", convert),
    ("credit", credit),
    ("rescore", rescore),
    ("train", train),
    ("train-links", train_links),
    ("replay", replay),
    ("verify", verify),
    ("db", db),
    ("spool", spool),
)
"""In the order of a first session."""

INTERRUPTED = 130
"""128 + SIGINT."""
READER_GONE = 141
"""128 + SIGPIPE: the program that read our output closed it."""


class _Parser(argparse.ArgumentParser):
    """With `--json` among the words, what was asked for wrongly is told as any other error is."""

    _as_json = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._as_json = "--json" in (sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if self._as_json:
            report(UsageError(hint=message), as_json=True)
            self.exit(UsageError.exit_code)
        super().error(message)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser: argparse.ArgumentParser = _Parser(
        prog="tracestore",
        description="Records every model call of an agent harness and cuts the traces into training samples.",
        epilog="example:\n  tracestore serve --db sqlite:///tracestore.db",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tracestore {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for _, verb in VERBS:
        verb.add_parser(subparsers)
    return parser


def report(error: Exception, *, as_json: bool) -> None:
    """One line on stderr, or with `--json` one JSON object there."""
    if not as_json:
        sys.stderr.write(f"tracestore: {' '.join(str(error).splitlines())}\n")
        return
    facts: dict[str, object] = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, TracestoreError):
        facts |= {"hint": error.hint, "values": {name: repr(value) for name, value in error.values.items()}}
    sys.stderr.write(json.dumps(facts) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `argv` (default: this process's arguments) and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        code = dict(VERBS)[args.verb].run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit; nobody is there to read it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:
        if not _is_of_the_outside(error):
            raise
        report(error, as_json=args.json)
        return error.exit_code if isinstance(error, TracestoreError) else 1
    return code


def _is_of_the_outside(error: Exception) -> bool:
    """Whether an error is about the request, the machine or the database; any other is a fault of ours."""
    if isinstance(error, (TracestoreError, OSError)):
        return True
    # Looked up, not imported: help and the verbs without a store do not load SQLAlchemy.
    loaded = sys.modules.get("sqlalchemy.exc")
    return loaded is not None and isinstance(error, loaded.DBAPIError)


if __name__ == "__main__":
    sys.exit(main())
