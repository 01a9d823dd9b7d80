"""`make crosscheck`: one table of framework x layout x chunking, which can say DISAGREE."""

import numpy as np
import pytest

from bench import agreement


def test_every_framework_layout_and_chunking_agrees_with_the_numpy_decoder(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(
        agreement, "LAYOUTS", {n: agreement.LAYOUTS[n] for n in ("paged 4", "window")}
    )
    monkeypatch.setattr(agreement, "CHUNKINGS", {"5 3 9 7": [5, 3, 9, 7]})

    assert agreement.main(["llama-mixed"]) == 0

    printed = capsys.readouterr().out
    assert "AGREE: 4 cells, float64" in printed
    assert "DISAGREE" not in printed


@pytest.mark.parametrize("fault", [1e-6, np.nan], ids=["off", "nan"])
def test_a_cell_that_differs_or_is_no_number_is_no_agreement(fault, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    cells = {("jaxkv", "contiguous"): {"whole": 1e-13, "ones": float(fault)}}
    monkeypatch.setattr(agreement, "measure", lambda model: cells)
    monkeypatch.setattr(agreement, "CHUNKINGS", {"whole": [24], "ones": [1] * 24})

    assert agreement.main(["llama"]) == 1

    assert capsys.readouterr().out.count("DISAGREE") == 2


def test_a_table_without_a_number_is_no_agreement(capsys, monkeypatch):
    monkeypatch.setattr(agreement, "measure", lambda model: {("jaxkv", "x"): {"whole": "refused"}})
    monkeypatch.setattr(agreement, "CHUNKINGS", {"whole": [24]})

    assert agreement.main(["llama"]) == 1

    assert "DISAGREE: 0 cells" in capsys.readouterr().out
