"""`papers data list | fetch | verify`: what data sets there are, downloads, checksums."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common import exits
from common.data import locate, registry
from common.errors import UserError


def main(argv: Sequence[str], name: str = "papers data") -> int:
    """Run the command; 0, or 2 where something is missing or damaged."""
    parser = argparse.ArgumentParser(prog=name, description="List, fetch and verify data sets.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every data set, its licence, and whether it is here")
    commands.add_parser("fetch", help="download into the cache").add_argument("names", nargs="+")
    commands.add_parser("verify", help="check what is here against its checksums").add_argument("names", nargs="*")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "list":
            print(locate.listing(), end="")
        elif arguments.command == "fetch":
            from common.data.download import fetch

            for name in arguments.names:
                print(fetch(registry.entry(name)))
        else:
            return verify(arguments.names)
    except (UserError, OSError, KeyboardInterrupt) as error:
        return exits.explain(error)
    return 0


def verify(names: Sequence[str]) -> int:
    """Print a line per data set. Asked for by name, a missing set is an error; a damaged one always is."""
    worst = 0
    for name in names or registry.entries():
        state, where = locate.status(name)
        print(f"{name}: {state}: {where}")
        if state == "damaged" or (names and state == "missing"):
            worst = 2
    return worst
