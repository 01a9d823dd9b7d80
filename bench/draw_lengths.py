"""Writes the request lengths in `bench/lengths`: `python -m bench.draw_lengths`.

`synthetic.json`: prompts from 1 to 512 and new tokens from 1 to 256, both log-uniform.

`agent-steps.json`: drawn from the published quartile, median, 90th and 99th percentile of one model
call of a coding agent: the tokens appended to the conversation (as prompt; what stood before them
is what a prefix store would share) and the tokens put out. Between two published points a draw is
log-linear; below the first it reaches down to 1, above the last it stays there. The two are drawn
independently, which the source does not say they are. No text of the source is used, only these
eight numbers.

Source: SyFI TraceLab, University of Washington, "token length distribution", table 1, row Claude:
https://tracelab.cs.washington.edu/exp/llm_generation/token_length_distribution/
"""

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "lengths"
SHARES = (0.0, 0.25, 0.5, 0.9, 0.99, 1.0)
APPENDED = (1, 384, 857, 5_342, 32_206, 32_206)
PUT_OUT = (1, 132, 252, 1_671, 6_571, 6_571)
REQUESTS = 200


def main() -> None:
    """Write both files, the same ones every time."""
    rng = np.random.default_rng(2026)
    uniform = [np.exp(rng.uniform(0, np.log(most), REQUESTS)) for most in (512, 256)]
    _write("synthetic.json", *uniform)
    drawn = [
        np.exp(np.interp(rng.uniform(size=REQUESTS), SHARES, np.log(points)))
        for points in (APPENDED, PUT_OUT)
    ]
    _write("agent-steps.json", *drawn)


def _write(name: str, prompts: np.ndarray, new: np.ndarray) -> None:
    pairs = np.stack([prompts, new], axis=1).round().astype(int).tolist()
    FOLDER.mkdir(exist_ok=True)
    lines = [json.dumps(pairs[at : at + 10])[1:-1] for at in range(0, len(pairs), 10)]
    (FOLDER / name).write_text("[" + ",\n".join(lines) + "]\n")


if __name__ == "__main__":
    main()
