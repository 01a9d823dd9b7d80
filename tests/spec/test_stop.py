"""Stop strings: where a text ends, however its tokens come, and what is held back until then."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from jaxkv.spec.errors import RequestError
from jaxkv.spec.stop import Stops, check_stops

# Tokens with several letters, one letter, and bytes that are no character alone.
TOKENS = [b"a", b"b", b"ab", b"ba", b"aab", "é".encode()[:1], "é".encode()[1:], "aé".encode()]
TOKENS += ["😀".encode()[:2], "😀".encode()[2:], b"\n"]


def decode(ids):
    return b"".join(TOKENS[i] for i in ids).decode("utf-8", errors="replace")


def read(stops, ids, sizes):
    """Return the certain texts and counts as tokens come in pieces of these sizes, until a stop."""
    seen, at = [], 0
    for size in sizes:
        at = min(at + size, len(ids))
        seen.append(stops.look(ids[:at], is_last=at == len(ids)))
        if seen[-1].stop is not None or at == len(ids):
            break
    return seen


def cut(text, strings):
    """Return the text before the string that is complete first, letter by letter, and which."""
    for end in range(len(text) + 1):
        done = [s for s in strings if text[:end].endswith(s)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    ids=st.lists(st.integers(0, len(TOKENS) - 1), max_size=12),
    strings=st.lists(
        st.text("abé😀\n", min_size=1, max_size=4), min_size=1, max_size=3, unique=True
    ),
    sizes=st.lists(st.integers(1, 4), min_size=12, max_size=12),
)
def test_a_text_ends_where_letter_by_letter_search_says_however_its_tokens_come(
    ids, strings, sizes
):
    """With the longest beginning of the ids whose text is a beginning of it; nothing comes back."""
    stops = Stops(tuple(strings), decode)
    text, stop = cut(decode(ids), strings)

    seen = read(stops, ids, sizes)

    assert (seen[-1].text, seen[-1].stop) == (text, stop)
    wanted = [n for n in range(len(ids) + 1) if text.startswith(decode(ids[:n]))]
    assert seen[-1].count == wanted[-1]
    for before, after in pairwise(seen):
        assert after.text.startswith(before.text)
        assert after.count >= before.count
    for each in seen:
        assert text.startswith(each.text)


CASES = {
    "inside one token": ([4], "a", ("", 0)),
    "at the end of a token": ([0, 4], "ab", ("aa", 1)),
    "across three tokens": ([0, 1, 10, 0], "b\na", ("a", 1)),
    "across pieces of a character": ([0, 5, 6, 0], "é", ("a", 1)),
    "from the last piece on": ([8, 9, 1], "😀b", ("", 0)),
    "never": ([0, 1, 0], "bb", ("aba", 3)),
    "only its beginning, at the end": ([1, 0], "ab", ("ba", 2)),
    "the last token": ([1, 0, 1], "ab", ("b", 1)),
    "with a piece of a character left over": ([0, 5], "b", ("a\ufffd", 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_result_ends_before_the_stop_string(case):
    ids, string, (text, count) = CASES[case]

    found = Stops((string,), decode).look(ids, is_last=True)

    assert (found.text, found.count) == (text, count)


def test_of_several_the_one_that_is_complete_first_counts_then_the_longest():
    assert cut("xabc", ["abc", "b"]) == ("xa", "b")
    found = Stops(("abé", "b", "ab"), decode).look([1, 0, 1, 7], is_last=True)

    assert (found.text, found.stop) == ("", "b")
    found = Stops(("aé", "bb", "é"), decode).look([0, 7, 1], is_last=True)
    assert (found.text, found.stop) == ("a", "aé")


@pytest.mark.parametrize(
    ("ids", "certain"),
    [([1, 0], ("b", 1)), ([0, 1], ("", 0)), ([1, 1], ("bb", 2)), ([0, 2], ("a", 1))],
    ids=str,
)
def test_what_could_become_a_stop_string_is_held_back(ids, certain):
    found = Stops(("aba", "aé"), decode).look(ids, is_last=False)

    assert (found.text, found.count) == certain


def test_a_character_waits_for_all_of_its_bytes():
    assert Stops(("b",), decode).look([0, 8], is_last=False).text == "a"


def test_stop_strings_that_are_none_are_refused():
    with pytest.raises(RequestError) as error:
        check_stops("generate", ["a", ""], decode)
    assert str(error.value) == (
        "generate: stop holds '', expected strings of at least 1 character. Leave it out."
    )
    with pytest.raises(RequestError) as error:
        check_stops("stream", "a", None)
    assert str(error.value) == (
        "stream: stop is 'a', and decode is None, expected what makes text of ids. Give "
        "decode=tokenizer.decode."
    )
    assert check_stops("stream", (), None) is None


def test_a_stop_string_that_begins_later_counts_if_it_is_complete_earlier():
    found = Stops(("aba", "b"), lambda ids: "".join("ab"[each] for each in ids)).look(
        [0, 1, 0], is_last=True
    )

    assert (found.text, found.stop) == ("a", "b")
