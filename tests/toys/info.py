"""What the toy declares, by flavor, and why it does not declare the rest."""

from typing import TYPE_CHECKING

from crosscheck.subjects.protocol import CAPABILITIES, SubjectInfo

if TYPE_CHECKING:
    from tests.toys.subject import Toy

VARIANTS = {
    "gqa": ("gqa_as_mha",),
    "mla": ("mla_naive",),
    "layouts": ("layout_heads_first", "layout_paged"),
    "jit": ("jit", "eager"),
    "quant": ("exact",),
}


def make_info(toy: "Toy") -> SubjectInfo:
    """Return the toy's info."""
    absent = _absent(toy) | {name: "left out by the test" for name in toy.without}
    declared = frozenset(CAPABILITIES) - absent.keys()
    return SubjectInfo(
        name=f"toy/{toy.config.kind}/{toy.layout}",
        framework="numpy",
        dtype=toy.dtype,
        vocab_size=toy.config.vocab,
        num_layers=len(toy.config.windows),
        capabilities=declared,
        kv_heads=toy.kv_shape[0],
        windows=toy.config.windows,
        max_positions=toy.config.max_positions,
        absent=absent,
        variants=tuple(v for key, names in VARIANTS.items() if key in declared for v in names),
    )


def _absent(toy: "Toy") -> dict[str, str]:
    c, absent = toy.config, {"quant_invariant": "full is exact"}
    if c.learned:
        absent["rope"] = "positions are learned, a shift is another function"
    if c.kind == "mla":
        absent["gqa"] = "latent attention has one head of keys and values"
    else:
        absent["mla"] = "no latent attention"
    if not c.cross:
        absent["cross"] = "a decoder alone"
    if toy.layout == "quantized":
        absent["layouts"] = "its layout is what it tests"
    else:
        absent["quant"] = "its cache is exact"
    if toy.layout != "paged":
        absent["paged"] = "slots lie one after the other"
    if toy.layout == "quantized" or any(c.windows) or c.cross:
        absent["prefix"] = "its pages can't be shared"
    return absent
