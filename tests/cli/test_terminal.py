"""Text that grows: split characters wait for their bytes, and nothing is printed twice."""

import pytest

from jaxkv.spec.terminal import pieces, show_stream


def decode(ids):
    return bytes(ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_pieces_join_to_the_text_and_never_show_half_a_character(size):
    ids = list("naïve 😀 ß".encode())
    parts = [[ids[at : at + size]] for at in range(0, len(ids), size)]

    shown = [text for _, text in pieces(parts, decode)]

    assert "".join(shown) == "naïve 😀 ß"
    assert not any("\ufffd" in text for text in shown)


def test_bytes_that_stay_incomplete_are_shown_at_the_end():
    assert [text for _, text in pieces([[[97]], [[0xF0]]], decode)] == ["a", "", "\ufffd"]


def test_without_a_terminal_no_bar_is_printed_and_the_text_follows_the_prompt(capsys):
    def start(progress):
        for at, token in enumerate(b"xyz", 1):
            progress(at, 3)
            yield [[token]]

    shown = show_stream(start, "prompt: ", decode)

    printed = capsys.readouterr()
    assert printed.out == "prompt: xyz\n"
    assert printed.err == ""
    assert shown.ids == list(b"xyz")
    assert shown.first_seconds > 0
