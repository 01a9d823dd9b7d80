"""`python -m crosscheck`."""

from crosscheck.cli import command

if __name__ == "__main__":
    command()
