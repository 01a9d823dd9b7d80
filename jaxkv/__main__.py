"""`python -m jaxkv`."""

from jaxkv.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
