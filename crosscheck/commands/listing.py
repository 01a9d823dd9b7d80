"""The command `list`: the relations, the faults, and what a model may come from."""

import argparse
from collections.abc import Iterator
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.opening import write_json
from crosscheck.screen import show
from crosscheck.tables import adapter_rows, fault_rows, markdown, relation_rows

ROWS = {"relations": relation_rows, "faults": fault_rows, "adapters": adapter_rows}


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(commands, "list", run, help="list relations, faults or adapters")
    parser.add_argument("what", choices=tuple(ROWS))
    parser.add_argument("--markdown", action="store_true", help="print one table in Markdown")
    shared.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print one block or one row of a table for each name, and return 0."""
    rows = ROWS[options.what]()
    if options.markdown:
        print(markdown(rows), end="")
    elif options.json != "-":
        show(_lines(rows))
    write_json(rows, options.json)
    return 0


def _lines(rows: list[dict[str, str]]) -> Iterator[str]:
    for row in rows:
        name, *facts = row.values()
        yield f"{name}  {facts[0]}"
        for key, value in list(row.items())[2:]:
            yield f"    {key:<8}{value or '-'}"
