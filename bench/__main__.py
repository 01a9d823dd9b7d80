"""`python -m bench NAME [--json FILE] [--quick]`."""

import argparse
import importlib

BENCHES = {"decode": "bench.decode"}


def main() -> int:
    """Return the exit code of one benchmark."""
    parser = argparse.ArgumentParser("python -m bench")
    parser.add_argument("name", choices=sorted(BENCHES))
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", metavar="FILE", help="also write JSON lines")
    options = parser.parse_args()
    return importlib.import_module(BENCHES[options.name]).main(options)


if __name__ == "__main__":
    raise SystemExit(main())
