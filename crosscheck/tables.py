"""Relations, faults and sources of models as rows of words: for `list` and for the documents."""

ADAPTERS = (
    ("file.py:factory", "a function in a file: it returns a model of any kind below, or a Subject"),
    ("pkg.mod:factory", "the same, in a module that can be imported"),
    ("hf:DIR", "a transformers causal LM in a directory"),
    ("hf-tiny:FAMILY", "a random tiny transformers causal LM, attention peaked; no download"),
    ("onnx:FILE", "a decoder exported with past inputs, run by ONNX Runtime on the CPU"),
    ("jaxkv.subject:FAMILY?layout=paged", "one of the twins of this project (torchkv.subject too)"),
    ("(kind) transformers causal LM", "any cache class: dynamic, static, sliding, quantized"),
    ("(kind) litgpt, x-transformers, torchtune", "driven as its package generates"),
    ("(kind) keras-hub CausalLM", "on keras's JAX and torch backends"),
    ("(kind) mlx-lm model", "on the CPU too; float32"),
    ("(kind) ONNX Runtime session", "with past key and value inputs"),
    ("(kind) torch.nn.Module", "with or without a cache"),
    ("(kind) flax NNX or Linen module", "with or without a cache"),
    ("(kind) plain functions", "crosscheck.subjects.functions.from_functions(full, init, step)"),
)


def relation_rows() -> list[dict[str, str]]:
    """Return name, what holds, level, needs and faults caught of every relation."""
    from crosscheck.select import select

    return [
        {
            "relation": each.name,
            "holds": _line(each.about),
            "level": each.level.level,
            "needs": ", ".join(sorted(each.needs)),
            "catches": ", ".join(sorted(each.catches)),
        }
        for each in select("all")
    ]


def fault_rows() -> list[dict[str, str]]:
    """Return name, what is wrong, what shows first, needs and advice of every fault."""
    from crosscheck.faults import FAULTS

    return [
        {
            "fault": each.name,
            "wrong": _line(each.about),
            "shows": each.shows,
            "kinds": ", ".join(sorted(each.kinds)),
            "needs": ", ".join(sorted(each.needs)),
            "advice": _line(each.advice),
        }
        for each in FAULTS.values()
    ]


def adapter_rows() -> list[dict[str, str]]:
    """Return what a SUBJECT may be."""
    return [{"subject": name, "is": words} for name, words in ADAPTERS]


def markdown(rows: list[dict[str, str]]) -> str:
    """Return rows as a table in Markdown."""
    heads = list(rows[0]) if rows else []
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [
        f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row.values())} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())
