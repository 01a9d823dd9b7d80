"""What must never be said of a technique is said nowhere without its condition."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.tree import ROOT

TEXTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "jaxkv",
    "torchkv",
    "crosscheck",
    "bench",
)
# Fixed savings and gains, and what a window is not; each from a page that somebody wrote.
NEVER = {
    "a fixed utilisation": r"\b9\d(?:\.\d+)? ?% (?:utili[sz]ation|of the memory)",
    "a fixed concurrency": r"\b\d+(?:\.\d+)?x (?:the )?concurrency",
    "a fixed speed of sharing": r"\b5-10x",
    "a saving without a baseline": r"\b93(?:\.\d)? ?% (?:saving|less|smaller)",
    "a serving switch": r"switch (?:on )?(?:MQA|GQA)|(?:MQA|GQA) (?:is )?a serving switch",
    "quality from perplexity": r"perplexity (?:shows|proves|is unchanged)",
    "a gain for sure": r"guaranteed (?:gain|speed-?up)|always (?:faster|speeds)",
    "memory without an end": r"(?:unlimited|infinite) (?:recall|context|memory)",
    "sinks as full attention": r"sinks? (?:equal|is|are) full attention",
    "sinks as a trained window": r"sinks? (?:equal|is|are) (?:a|the same as a) (?:trained )?window",
}


def promises(root: Path) -> Iterator[str]:
    """Yield each line that says what must not be said, and where it stands."""
    for path in (root / name for name in TEXTS):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix not in (".md", ".py") or not file.is_file():
                continue
            # A sentence may go over two lines.
            text = re.sub(r"\s+", " ", file.read_text("utf-8"))
            for what, pattern in NEVER.items():
                for found in re.finditer(pattern, text, re.IGNORECASE):
                    yield f"{file.relative_to(root)}: {what}: {found[0]}"


def test_no_text_promises_what_nobody_can_keep():
    assert list(promises(ROOT)) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Paging reaches 96 % utilisation.", "a fixed utilisation"),
        ("It gives 4x concurrency.", "a fixed concurrency"),
        ("Sharing is 5-10x faster.", "a fixed speed of sharing"),
        ("MLA is a 93 % saving.", "a saving without a baseline"),
        ("Just switch on GQA.", "a serving switch"),
        ("The perplexity shows that quality stays.", "quality from perplexity"),
        ("A guaranteed\\ngain.", "a gain for sure"),
        ("Unlimited recall with sinks.", "memory without an end"),
        ("Sinks are full attention.", "sinks as full attention"),
        ("Sinks are a trained window.", "sinks as a trained window"),
    ],
)
def test_a_planted_promise_is_found(tmp_path, text, what):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(text.replace("\\n", "\n"))

    found = list(promises(tmp_path))

    assert len(found) == 1
    assert f": {what}: " in found[0]
