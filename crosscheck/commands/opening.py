"""Make the subjects that a command names, and say in a line why one cannot be made."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from crosscheck.budget import Clock
from crosscheck.errors import CrosscheckError, SubjectRaised

GRACE_SECONDS = 3.0


def open_subject(text: str) -> Any:
    """Return the subject of a spec.

    Raises:
        CrosscheckError: The spec names nothing that can be loaded.
        SubjectRaised: What it names raised.
    """
    from crosscheck.subjects.sources import load_subject

    try:
        return load_subject(text)
    except CrosscheckError:
        raise
    except Exception as error:
        raise SubjectRaised(f"{text}: {sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    first = next((line for line in str(error).splitlines() if line.strip()), "without a message")
    return f"raised {type(error).__name__}: {first.strip()[:300]}"


def seconds_left(budget: float, *, began: float) -> float:
    """Return what is left of a budget that began with the command, at least a second.

    A few seconds of loading are not counted.

    Args:
        budget: In all.
        began: As `budget.now` gives it.
    """
    return max(1.0, budget - max(0.0, Clock(budget, began).spent - GRACE_SECONDS))


def check_places(options: Any) -> None:
    """Refuse files that can't be written, before the work whose result they are to hold.

    Args:
        options: Of any command; `json`, `html` and `save` may be among them.

    Raises:
        CrosscheckError: A folder is not there, or is no place to write.
    """
    for name in ("json", "html"):
        file = getattr(options, name, None)
        if file is None or (file == "-" and name == "json"):
            continue
        if wrong := why_not_written(file):
            raise CrosscheckError(f"--{name} {file}: {wrong}")
    if getattr(options, "save", ""):
        _check_folder(options.save)


def why_not_written(file: str) -> str:
    """Return why a file can't be written there, with the next step; '' where it can."""
    path, folder = Path(file), Path(file).absolute().parent
    if not folder.is_dir():
        return f"no folder {folder}. Make it first."
    if path.is_dir() or file.endswith(os.sep):
        return "a folder, expected the name of a file."
    if not os.access(path if path.exists() else folder, os.W_OK):
        return "Permission denied. Give another place."
    return ""


def _check_folder(save: str) -> None:
    """Refuse a folder that can't be made or written; it is made when there is something to save."""
    folder = Path(save).absolute()
    while not (folder.exists() or folder.is_symlink()):
        folder = folder.parent
    if not folder.is_dir():
        raise CrosscheckError(f"--save {save}: {folder} is no folder. Give another place.")
    if not os.access(folder, os.W_OK):
        raise CrosscheckError(f"--save {save}: {folder}: Permission denied. Give another place.")


def write_json(data: Any, file: str | None) -> None:
    """Write data to a file, or to stdout for '-'; do nothing without a file.

    Raises:
        CrosscheckError: The file cannot be written.
    """
    if file is None:
        return
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise CrosscheckError(f"--json {file}: {error.strerror}.") from None


def write_page(data: Any, file: str | None) -> None:
    """Write data as a page; do nothing without a file.

    Raises:
        CrosscheckError: The file cannot be written, or matplotlib is not installed.
    """
    if file is not None:
        from crosscheck.page import write_html

        write_html(data, file)
