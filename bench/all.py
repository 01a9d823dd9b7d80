"""Run the benchmarks one after the other, each in a process of its own, and write their one page.

The page is Markdown: the tables of this run, the command beside each, and what failed or ran out of
time, told as such. The results stay in `--folder`, one file of JSON lines each; `--render` writes
the page from those that are there. With `--quick` and an idle machine of two cores it takes about
half an hour.
"""

import argparse
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.book import Chapter, book
from bench.runners import add_peers

ROOT = Path(__file__).parent.parent
LENGTHS = "bench/lengths/synthetic.json"
# What is run, in the order of the page, with what it needs to be told: of decode and prefill more
# cases than `--quick` takes by itself, those of capacity excepted, which has a chapter.
RUNS: dict[str, tuple[str, ...]] = {
    "decode": ("--cases", "b1-p16", "b1-p2048", "b8-p16", "b8-p1024", "b8-ragged"),
    "prefill": ("--cases", "b1-p512", "b1-p2048", "b1-p2048-chunked"),
    "sweep": (),
    "capacity": (),
    "layouts": (),
    "speculative": (),
    "small": (),
    "startup": (),
    "memory": (),
    "writes": (),
    "fragmentation": ("--lengths", LENGTHS),
    "scores": (),
}
# Those that compare with other programs take the options that say with which.
WITH_PEERS = ("decode", "prefill", "sweep")


@dataclass(frozen=True)
class Outcome:
    """How one benchmark ended.

    Attributes:
        command: What was run, as one types it.
        seconds: How long it took.
        fault: What went wrong; '' for nothing.
    """

    command: str
    seconds: float
    fault: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this command alone takes."""
    parser.add_argument("--page", metavar="FILE", default="docs/benchmarks.md", help="the page")
    parser.add_argument("--folder", metavar="DIR", default="build/bench", help="of the results")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="of each")
    parser.add_argument("--render", action="store_true", help="run nothing, write the page")
    add_peers(parser)


def main(options: argparse.Namespace) -> int:
    """Write the page.

    Returns:
        0; 1 if a benchmark failed or ran out of time: its chapter says how.
    """
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in () if options.render else options.only:
        outcome = run(name, arguments(name, options), folder, limit=options.limit)
        failed |= bool(outcome.fault)
        print(f"{name}: {outcome.seconds:.0f} s {outcome.fault}", flush=True)
    chapters = [found for name in RUNS if (found := Chapter.read(name, folder)) is not None]
    Path(options.page).write_text(book(chapters))
    return int(failed)


def arguments(name: str, options: argparse.Namespace) -> list[str]:
    """Return what follows `python -m bench` for one benchmark."""
    found = [name, *RUNS[name], *["--quick"] * options.quick]
    if name not in WITH_PEERS:
        return found
    for revision in options.against:
        found += ["--against", revision]
    if options.caches:
        found += ["--caches", *options.caches]
    found += ["--compile"] * options.compile + ["--no-torchkv"] * options.no_torchkv
    for flag, value in (("--keras-hub", options.keras_hub), ("--llama-cpp", options.llama_cpp)):
        found += [flag, value] if value else []
    return found


def run(name: str, asked: list[str], folder: Path, *, limit: float) -> Outcome:
    """Run one benchmark in a process of its own and keep its results and how it ended.

    Args:
        name: Of the benchmark.
        asked: From `arguments`.
        folder: Where results go; older ones of this benchmark are replaced.
        limit: Seconds that it may take.
    """
    results = (folder / f"{name}.jsonl").resolve()
    results.unlink(missing_ok=True)
    begun, fault = time.monotonic(), ""
    command = [sys.executable, "-m", "bench", *asked, "--json", str(results)]
    with (folder / f"{name}.log").open("w") as log:
        try:
            done = subprocess.run(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
                cwd=ROOT,
            )
        except subprocess.TimeoutExpired:
            fault = f"stopped after {limit:.0f} s"
        else:
            if done.returncode:
                fault = f"ended with {done.returncode}: {_last_words(folder / f'{name}.log')}"
    typed = shlex.join(["python", "-m", "bench", *_plain(asked)])
    outcome = Outcome(typed, time.monotonic() - begun, fault)
    Chapter.keep(name, folder, outcome)
    return outcome


def _plain(asked: list[str]) -> list[str]:
    """Return the arguments without this machine's folders: the page is for others too."""
    return [Path(each).name if Path(each).is_absolute() else each for each in asked]


def _last_words(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no words"])[-1][:160]
