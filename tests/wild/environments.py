"""Environments of packages that the project does not have: `python -m tests.wild.environments`.

Each lies under .wild/, which git ignores, with the pins of environments.txt; behind them it sees
the packages of the environment that made it, so that torch is not installed again.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".wild"


def pins() -> dict[str, list[str]]:
    """Return name -> requirements."""
    lines = (Path(__file__).parent / "environments.txt").read_text("utf-8").splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {name: wanted.split() for name, _, wanted in pairs}


def python(name: str) -> Path:
    """Return the interpreter of an environment."""
    return HOME / name / "bin" / "python"


def build(name: str, wanted: list[str]) -> bool:
    """Make an environment, unless it is there with these pins; return whether it was made."""
    home, told = HOME / name, HOME / name / "pins.txt"
    if told.is_file() and told.read_text("utf-8").split() == wanted:
        return False
    venv.create(home, clear=True, with_pip=True)
    paths = sysconfig.get_paths(vars={"base": str(home)}, scheme="venv")
    behind = Path(paths["purelib"]) / "zz_project.pth"
    behind.write_text(sysconfig.get_paths()["purelib"] + "\n", "utf-8")
    install = [str(python(name)), "-m", "pip", "install", "--quiet", "--no-warn-conflicts"]
    subprocess.run([*install, *wanted], check=True)
    told.write_text(" ".join(wanted), "utf-8")
    return True


if __name__ == "__main__":
    for each, requirements in pins().items():
        if len(sys.argv) == 1 or each in sys.argv[1:]:
            print(f"{each}: {'made' if build(each, requirements) else 'there'}", flush=True)
