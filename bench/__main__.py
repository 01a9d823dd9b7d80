"""`python -m bench NAME [--json FILE] [--quick] [--cases CASE ...]`."""

import argparse
import importlib

BENCHES = {name: f"bench.{name}" for name in ("decode", "prefill", "reuse", "writes")}


def main() -> int:
    """Return the exit code of one benchmark."""
    parser = argparse.ArgumentParser("python -m bench")
    parser.add_argument("name", choices=sorted(BENCHES))
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", metavar="FILE", help="also write JSON lines")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="of decode and prefill")
    options = parser.parse_args()
    return importlib.import_module(BENCHES[options.name]).main(options)


if __name__ == "__main__":
    raise SystemExit(main())
