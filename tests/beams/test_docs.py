"""The programs of docs/generation.md on beams and samples print what the page says."""

import re

from tests.children import ROOT, output_of

PAGE = (ROOT / "docs" / "generation.md").read_text()


def test_the_programs_on_beams_and_samples_print_what_the_page_says():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    text = "".join(each for each in sections if each.startswith(("Beams", "Samples")))
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    programs = [block for language, block in blocks if language == "python"]
    printed = [block for language, block in blocks if not language]

    assert len(programs) == len(printed) == 2
    assert output_of("-c", "".join(programs)) == "".join(printed)
