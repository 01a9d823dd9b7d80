"""The programs of docs/prefix.md print what the page says."""

import re

from tests.children import ROOT, output_of

BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "docs" / "prefix.md").read_text(), re.DOTALL)


def test_the_programs_of_the_page_print_what_it_says():
    programs = [text for language, text in BLOCKS if language == "python"]
    printed = [text for language, text in BLOCKS if not language]

    assert len(programs) == len(printed) == 2
    assert output_of("-c", "\n".join(programs)) == "".join(printed)
