"""`python -m bench NAME [--json FILE] [--html FILE] [--quick] [options of its own]`."""

import argparse
import importlib
import sys

from bench.usage import Parser, check_places
from jaxkv.spec.errors import JaxkvError

BENCHES = (
    "all",
    "capacity",
    "decode",
    "families",
    "fragmentation",
    "gpu",
    "layouts",
    "memory",
    "prefill",
    "quality",
    "prefix",
    "reuse",
    "scores",
    "small",
    "speculative",
    "startup",
    "sweep",
    "writes",
)


def main(arguments: list[str]) -> int:
    """Return the exit code of one benchmark.

    A benchmark is a module with `main(options) -> int` and, if it has options of its own,
    `add_options(parser)`.
    """
    parser = Parser("python -m bench")
    parser.add_argument("name", choices=sorted(BENCHES))
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="NAME --help")
    chosen = parser.parse_args(arguments)
    bench = importlib.import_module(f"bench.{chosen.name}")
    own = Parser(f"python -m bench {chosen.name}", description=bench.__doc__)
    own.add_argument("--quick", action="store_true", help="fewer cases and repeats")
    own.add_argument("--json", metavar="FILE", help="also write JSON lines")
    own.add_argument("--html", metavar="FILE", help="also write one page of tables and plots")
    if hasattr(bench, "add_options"):
        bench.add_options(own)
    options = own.parse_args(chosen.rest)
    try:
        check_places(options)
        return bench.main(options)
    except JaxkvError as error:
        print(f"bench {chosen.name}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
