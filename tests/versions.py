"""Environments with the oldest and the newest releases that pyproject.toml allows.

`python -m tests.versions` builds them under .versions/, which git ignores, and prints what each
holds; `make test-versions` then runs the quick suite in both. The oldest is that of jax, flax and
torch; everything else is as new as pip takes it.
"""

import subprocess
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".versions"
OLDEST = ("jax", "flax", "torch")
SHOWN = "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in %r), sep=', ')"


def ranges() -> dict[str, str]:
    """Return name -> range, as pyproject.toml declares them: jax -> ">=0.10,<0.13"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {}
    for line in project["dependencies"]:
        name, sign, bounds = line.partition(">=")
        found[name] = sign + bounds
    return found


def pins() -> dict[str, list[str]]:
    """Return environment -> what pip is held to: each lower bound itself, or nothing."""
    least = {name: ranges()[name].partition(",")[0].removeprefix(">=") for name in OLDEST}
    return {"oldest": [f"{name}=={bound}" for name, bound in least.items()], "newest": []}


def python(name: str) -> Path:
    """Return the interpreter of an environment."""
    return HOME / name / "bin" / "python"


def build(name: str, wanted: list[str]) -> None:
    """Make an environment, unless it is there for this pyproject.toml."""
    told = HOME / name / "made-for.toml"
    declared = (ROOT / "pyproject.toml").read_text("utf-8")
    if told.is_file() and told.read_text("utf-8") == declared:
        return
    venv.create(HOME / name, clear=True, with_pip=True)
    install = [str(python(name)), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *wanted, "-e", f"{ROOT}[dev]"], check=True)
    told.write_text(declared, "utf-8")


if __name__ == "__main__":
    for each, held in pins().items():
        build(each, held)
        shown = subprocess.run(
            [str(python(each)), "-c", SHOWN % (OLDEST,)], check=True, capture_output=True, text=True
        )
        print(f"{each}: {shown.stdout.strip()}", flush=True)
