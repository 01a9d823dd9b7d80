"""What a file that is no model looks like, told from its first bytes."""

_OTHER_FORMATS = {
    b"version https://git-lfs": "a Git LFS pointer. Run `git lfs pull` where it was cloned.",
    b"PK\x03\x04": "a zip archive. Unpack it and give the {suffix} file inside.",
}


def other_format(start: bytes, suffix: str) -> str | None:
    """Return what a file is and what to do about it; None if it looks like neither of those known.

    Args:
        start: The first bytes of the file, 32 of them if it has as many.
        suffix: Of the file that is wanted, for the advice.
    """
    for magic, name in _OTHER_FORMATS.items():
        if start.startswith(magic):
            return name.format(suffix=suffix)
    return None
