"""The hunt: families x cache classes x relations, a line each: `python -m tests.wild.hunt`.

It adds to docs/findings.tsv what is not there yet, so that it can be stopped and gone on with. No
faults are planted: a cell says whether the sides agree, not whether a fault would have been seen.
"""

import argparse
import math
import time
from importlib.metadata import version
from pathlib import Path

from crosscheck.check import check
from crosscheck.results import RelationResult
from crosscheck.subjects.sources import load_subject
from tests.wild import families

TABLE = Path(__file__).parents[2] / "docs" / "findings.tsv"
RELATIONS = (
    *("cache.full", "cache.partition", "cache.causal", "batch.rows", "cache.rollback"),
    *("cache.fork_gather", "cache.capacity", "pad.left", "pad.right", "ragged.continue"),
    *("window.ring", "pos.explicit"),
)
GROUPS = "quantized&cache.q_group_size=8&cache.residual_length=64&cache.axis_key={0}"
GROUPS += "&cache.axis_value={0}&cache.nbits={1}&cache.backend={2}"
# A cache class of transformers, and what it is given.
CACHES = {
    "dynamic": "dynamic",
    "static": "static",
    "fp8": "quantized&cache.backend=fp8",
    "quanto": GROUPS.format(0, 4, "quanto"),
    "hqq": GROUPS.format(1, 8, "hqq"),
}
# Families of transformers that have been seen right, then those that have not.
FAMILIES = """
    llama gpt2 mistral gemma2 gemma3_text qwen2 qwen3 gpt_neox gpt_neo opt falcon phi phi3 mixtral
    cohere cohere2 olmo2 starcoder2 stablelm granite glm bamba bloom roberta bert moshi dory gpt_oss
    llama4_text deepseek_v3 gemma gemma3n_text exaone4 smollm3 lfm2 jetmoe qwen2_moe qwen3_moe
    minimax_m2 afmoe apertus arcee aria_text biogpt bitnet codegen ctrl cwm deepseek_v2 diffllama
    doge ernie4_5 ernie4_5_moe exaone flex_olmo glm4 glm4_moe gpt_bigcode gptj granitemoe
    granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe internlm3 jais2 megatron-bert
    mimo_v2_flash minicpm3 ministral ministral3 modernbert-decoder mpt nanochat nemotron olmo olmo3
    olmoe persimmon phimoe rembert seed_oss solar_open vaultgemma youtu electra ernie big_bird
    bert-generation camembert xlm-roberta xglm zamba2 jamba nemotron_h falcon_h1 mamba mamba2
    recurrent_gemma qwen3_next granitemoehybrid minimax dbrx
"""


def main() -> None:
    """Run what is asked for and is not in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", default="", help="comma-separated; all that are known")
    parser.add_argument("--caches", default="dynamic,static", help=", ".join(CACHES))
    parser.add_argument("--package", choices=families.FAMILIES, help="instead of transformers")
    parser.add_argument("--backend", default="", help="of keras, where it is not torch: jax")
    parser.add_argument("--subjects", default="", help="instead: PACKAGE=SUBJECT, comma-separated")
    parser.add_argument("--dtype", default="float64", help="whose rows are told")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds a line")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the lines go")
    options = parser.parse_args()
    there = {tuple(line.split("\t")[:4]) for line in _read(options.table)[1:]}
    for package, text, family, cache in asked(options):
        key = (f"{package} {version(package)}", family, cache, options.dtype)
        if key not in there:
            began = time.monotonic()
            cells = hunted(text, options.budget, options.dtype)
            _write(options.table, "\t".join((*key, cells)))
            print(f"{time.monotonic() - began:5.1f} s  {' '.join(key)}: {cells}", flush=True)


def asked(options: argparse.Namespace) -> list[tuple[str, str, str, str]]:
    """Return package, subject, family and cache of each line that is asked for."""
    if options.subjects:
        pairs = [pair.partition("=")[::2] for pair in options.subjects.split(",")]
        return [(package, text, text.partition(":")[2], "own") for package, text in pairs]
    wanted = [name for name in options.families.split(",") if name]
    if options.package:
        home = f"tests.wild.families:{options.package.replace('-', '_')}"
        behind = f"&backend={options.backend}" if options.backend else ""
        cache = f"own, {options.backend}" if options.backend else "own"
        names = wanted or families.FAMILIES[options.package]
        return [(options.package, f"{home}?of={name}{behind}", name, cache) for name in names]
    return [
        ("transformers", f"hf-tiny:{family}?cache={CACHES[cache]}", family, cache)
        for cache in options.caches.split(",")
        for family in wanted or FAMILIES.split()
    ]


def hunted(text: str, budget_seconds: float, dtype: str) -> str:
    """Return one line's cells: relation=what it showed, for all that could be asked."""
    try:
        subject = load_subject(text)
        report = check(
            subject,
            relations=RELATIONS,
            budget_seconds=budget_seconds,
            dtypes=tuple(dict.fromkeys(("float64", dtype))),
            faults="none",
        )
    except Exception as error:
        # A family that can't be made tiny, or does not run here, is a line too.
        said = "".join(each for each in str(error) if each.isprintable() or each.isspace())
        return f"not run: {type(error).__name__}: {' '.join(said.split())[:120]}"
    rows = [row for row in report.rows if row.dtype == dtype and row.verdict != "unsupported"]
    cells = " ".join(f"{row.name}={shown(row)}" for row in rows)
    return cells or "not run: it declares nothing that could be asked"


def shown(row: RelationResult) -> str:
    """Return what one relation showed: agrees, fail with its size and name, or why it can't tell.

    A difference that the package documents, as that a cache rounds, is told as that.

    Without planted faults every agreement is blind, which in this table is said once, above it.
    """
    if row.verdict == "fail":
        worst = math.nan if row.worst is None else row.worst
        if row.documented is not None:
            return f"documented({worst:.0e})"
        named = row.diagnosis[0].fault if row.diagnosis else "unnamed"
        return f"fail({worst:.0e},{named})"
    agreed = row.verdict in ("pass", "blind") or (row.verdict == "inconclusive" and row.cases)
    return "agrees" if agreed else str(row.verdict)


def _read(table: Path) -> list[str]:
    return table.read_text("utf-8").splitlines() if table.is_file() else []


def _write(table: Path, line: str) -> None:
    head = [] if table.is_file() else ["release\tfamily\tcache\tdtype\twhat each relation showed"]
    with table.open("a", encoding="utf-8") as file:
        file.write("\n".join([*head, line]) + "\n")


if __name__ == "__main__":
    main()
