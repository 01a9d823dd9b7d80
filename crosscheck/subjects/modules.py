"""Import what a user names: a dotted module, or a file with its siblings beside it."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from crosscheck.errors import CrosscheckError, SubjectRaised


@contextmanager
def importable(where: str) -> Iterator[ModuleType]:
    """Give the module of a file or of a dotted name; a file's siblings can be imported too."""
    path = Path(where)
    is_file = path.suffix == ".py"
    folder = str(path.resolve().parent if is_file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield _module_of_file(path) if is_file else _module_of_name(where)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        wrong = "is no file" if path.exists() else "does not exist"
        raise CrosscheckError(
            f"load_subject: {path} {wrong}, seen from {Path.cwd()}. Give the path of a Python file."
        )
    name = f"crosscheck_source_{path.stem.replace('-', '_')}_{abs(hash(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SubjectRaised(
            f"{path}: raised {type(error).__name__} on import: {one_line(error)}"
        ) from error
    return module


def _module_of_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CrosscheckError(
            f"load_subject: module {name!r} can't be imported: {one_line(error)}."
        ) from error
    except Exception as error:
        raise SubjectRaised(
            f"{name}: raised {type(error).__name__} on import: {one_line(error)}"
        ) from error


def one_line(error: BaseException) -> str:
    """Return an error's text in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
