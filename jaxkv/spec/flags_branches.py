"""The flags of several continuations of one prompt: beams, and samples."""

import argparse
from typing import Any

from jaxkv.spec import flags_logprobs
from jaxkv.spec.errors import RequestError
from jaxkv.spec.flag_group import Decode, FlagGroup, given

_SEARCH = {"length_penalty": 1.0, "early_stopping": "no", "n_best": 1}
_STOPPING: dict[str, bool | str] = {"no": False, "yes": True, "never": "never"}
# What both leave out of `generate`, and its value where it was not asked for.
_PLAIN = {"no_cache": False, "save_cache": None, "load_cache": None}
_DRAWN = {"temperature": 0.0, "top_k": None, "top_p": 1.0, "min_p": 0.0, "seed": 0}


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--beams", type=int, metavar="N", help="search for the likeliest text with N beams")
    add(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="of beams: above 0 for long texts, below 0 for short ones (default 1)",
    )
    add(
        "--early-stopping",
        nargs="?",
        const="yes",
        default="no",
        choices=tuple(_STOPPING),
        help="of beams: stop at N ended texts ('yes', also without a word), when none can become "
        "better as long as it is ('no', default), or at any length ('never')",
    )
    add("--n-best", type=int, default=1, metavar="N", help="of beams: texts to print (default 1)")
    add("--samples", type=int, metavar="N", help="draw N texts with the seeds S, S + 1, ...")


def _check(options: argparse.Namespace) -> None:
    if options.beams is not None and options.samples is not None:
        raise RequestError(
            f"generate: --beams is {options.beams} and --samples {options.samples}, expected one "
            "of them: beams draw nothing. Leave out the other."
        )
    if options.beams is None:
        _refuse(
            options, _SEARCH, "which belongs to a beam search", "Give --beams too, or leave it out."
        )
    else:
        _refuse(options, _DRAWN, "but --beams draws nothing", "Leave out one of them.")
    if options.beams is not None or options.samples is not None:
        which = "--beams" if options.beams is not None else "--samples"
        _refuse(
            options, _PLAIN, f"but {which} keeps one cache of its own", "Leave out one of them."
        )
    if options.samples is not None and options.temperature == 0:
        raise RequestError(
            f"generate: --samples is {options.samples} at --temperature 0, which gives one text as "
            "often. Give a --temperature above 0, or leave out --samples."
        )


def _refuse(options: argparse.Namespace, defaults: dict[str, Any], why: str, advice: str) -> None:
    for name, value in given(options, defaults).items():
        flag = f"--{name.replace('_', '-')}"
        shown = flag if value is True else f"{flag} {value}"
        raise RequestError(f"generate: {shown} is given, {why}. {advice}")


def _read(options: argparse.Namespace) -> dict[str, Any]:
    if options.samples is not None:
        # `sample_many` draws at 1 unless told; a command is greedy unless told.
        return {"samples": options.samples, "temperature": options.temperature}
    if options.beams is None:
        return {}
    return {
        "beams": options.beams,
        "length_penalty": options.length_penalty,
        "early_stopping": _STOPPING[options.early_stopping],
        "n_best": options.n_best,
    }


def _entry(options: argparse.Namespace) -> str | None:
    if options.beams is not None:
        return "beam_search"
    return None if options.samples is None else "sample_many"


def _tell(options: argparse.Namespace, outcome: Any, decode: Decode) -> dict[str, Any]:
    if options.beams is not None:
        scores = outcome.score_BM[0].tolist()
        written = outcome.best_texts
        return {"beams": _branches(outcome, outcome.best[0], written, "score", scores, decode)}
    if options.samples is not None:
        seeds = outcome.seed_BM[0].tolist()
        written = outcome.sample_texts
        return {"samples": _branches(outcome, outcome.samples[0], written, "seed", seeds, decode)}
    return {}


def _branches(
    outcome: Any,
    texts: list[list[int]],
    cut: list[list[str]] | None,
    mark: str,
    marks: list[Any],
    decode: Decode,
) -> list[dict[str, Any]]:
    # With stop strings a text may be longer than that of its ids, by a part of a token.
    written = [decode(ids) for ids in texts] if cut is None else cut[0]
    each = zip(texts, written, marks, strict=True)
    found = [{"ids": ids, "text": text, mark: value} for ids, text, value in each]
    if outcome.logprobs is not None:
        told = [getattr(outcome, name) for name in flags_logprobs.NAMES]
        for i, branch in enumerate(found):
            own = [x and x[0][i] for x in told]
            branch["logprobs"] = flags_logprobs.entries(texts[i], own, decode)
    return found


def _rest(options: argparse.Namespace, outcome: Any, decode: Decode) -> list[str]:
    for name, mark in (("beams", "score"), ("samples", "seed")):
        told = _tell(options, outcome, decode).get(name, ())
        if len(told) > 1:
            first, *others = ({**each, mark: _short(each[mark])} for each in told)
            rest = [f"[{mark} {each[mark]}] {each['text']}" for each in others]
            return [f"[{mark} {first[mark]}] the text above", *rest]
    return []


def _short(mark: float) -> str:
    return f"{mark:.4f}" if isinstance(mark, float) else str(mark)


GROUP = FlagGroup(_add, _read, _check, _entry, _tell, _rest)
