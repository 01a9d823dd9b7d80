"""Which faults are worth a replay on a trial: those whose occasion occurred."""

from crosscheck.diagnosis.trial import Trial
from crosscheck.faults import FAULTS, Fault

# What a fault's group needs to have happened, by the first word of its name.
SPECIAL = ("page", "prefix", "spec", "quant", "mla", "gqa", "layout", "jit", "cross")


def suspects(trial: Trial) -> list[Fault]:
    """Return the faults that could have shown on this trial, in the order of the dictionary."""
    return [fault for fault in FAULTS.values() if _possible(trial, fault.name.split("."))]


def _possible(trial: Trial, words: list[str]) -> bool:
    group = words[0]
    verbs = {event.verb for event in trial.events}
    if group in SPECIAL:
        return trial.relation.name.startswith(group)
    if group == "rollback":
        return "rollback" in verbs
    if group == "gather":
        return "gather" in verbs
    if group == "fork":
        return "fork" in verbs
    if group == "window" or words[:2] in (["length", "from_ring"], ["capacity", "shrinks_window"]):
        return any(trial.info.windows) or not trial.info.windows
    if group == "pad" or words[1] in ("pad_shift", "empty_row_nan"):
        return any(event.padded for event in trial.events)
    if words[1] == "shared_length":
        return any(len({len(text) for text in event.texts}) > 1 for event in trial.events)
    return True
