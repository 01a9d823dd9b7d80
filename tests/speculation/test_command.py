"""`--draft`, `--k` and `--prompt-lookup` of both command lines."""

import importlib
import json
from types import SimpleNamespace

import pytest

from jaxkv.spec import flags_drafts
from jaxkv.spec.errors import RequestError
from tests.tiny import TWINS

ASKED = ("generate", "reference", "--prompt", "3 1 4 3 1", "--max-new-tokens", "12")
twins = pytest.mark.parametrize("twin", TWINS)


@pytest.fixture
def run(capsys):
    """Return a function: twin, flags -> exit code, what was printed, and the errors."""

    def call(twin: str, *flags: str):
        code = importlib.import_module(f"{twin}.cli").main([*ASKED, *flags])
        return code, *capsys.readouterr()

    return call


@twins
@pytest.mark.parametrize(
    "flags", [("--prompt-lookup", "4"), ("--draft", "reference", "--k", "3")], ids=" ".join
)
def test_drafts_change_no_id_and_their_counts_are_printed(twin, run, flags):
    plain = json.loads(run(twin, "--json")[1])
    code, out, _ = run(twin, *flags, "--json")

    report = json.loads(out)
    assert code == 0
    assert report["ids"] == plain["ids"]
    assert report["forwarded_positions"] == plain["forwarded_positions"] + report["rolled_back"]
    assert report["drafted"] - report["accepted"] == report["rolled_back"]
    assert report["drafted"] > 0
    if "--draft" in flags:
        # 11 tokens after the first in rounds of 4.
        assert (report["drafted"], report["accepted"]) == (8, 8)
    assert "drafted" not in plain


@twins
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ("--draft", "reference", "--prompt-lookup", "4"),
            "generate: --draft and --prompt-lookup are given, expected one of them. Leave out one.",
        ),
        (
            ("--k", "4"),
            "generate: --k is 4 without --draft. Add --draft MODEL, or use --prompt-lookup K.",
        ),
        (
            ("--prompt-lookup", "4", "--no-cache"),
            "generate: --no-cache leaves nothing to verify drafts in. Leave it out.",
        ),
        (
            ("--prompt-lookup", "0"),
            "generate: --prompt-lookup is 0, expected a whole number of at least 1.",
        ),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_a_slip_is_one_line(twin, run, flags, told):
    code, _, errors = run(twin, *flags)

    assert code == 2
    assert errors == f"{twin}: {told}\n"


def _checkpoint(names):
    """Return a model of as many tokens with those words for ids."""
    return SimpleNamespace(vocab_size=len(names), decode=lambda ids: names[ids[0]])


def test_a_draft_with_another_tokenizer_is_refused_by_its_first_other_token(monkeypatch):
    words = {"own": ["a", "b", "c"], "other": ["a", "c", "b"], "small": ["a", "b"]}
    monkeypatch.setattr(flags_drafts, "open_source", lambda name: name)
    monkeypatch.setattr(flags_drafts, "open_tokenizer", lambda name: _checkpoint(words[name]))

    with pytest.raises(RequestError) as small:
        flags_drafts.open_draft(SimpleNamespace(draft="small"), "own")
    with pytest.raises(RequestError) as other:
        flags_drafts.open_draft(SimpleNamespace(draft="other"), "own")

    assert flags_drafts.open_draft(SimpleNamespace(draft="own"), "own") == "own"
    assert str(small.value) == (
        "generate: the tokenizer of --draft small has 2 tokens, the model's 3. Take a draft with "
        "the model's own tokenizer."
    )
    assert str(other.value) == (
        "generate: token 1 is 'c' to the tokenizer of --draft other, 'b' to the model's. Take a "
        "draft with the model's own tokenizer."
    )
