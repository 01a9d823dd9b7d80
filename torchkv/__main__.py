"""`python -m torchkv`."""

from torchkv.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
