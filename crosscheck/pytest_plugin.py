"""The pytest plugin: one test for each subject and relation, and the fixtures to write one's own.

    pytest --crosscheck-subject model.py:make --crosscheck-profile ci

collects `crosscheck::model.py:make::cache.partition` and so on, beside what else there is (`-k
crosscheck` leaves the rest out). Importing this imports neither torch nor jax.
"""

import atexit
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROFILES = {
    # seconds a subject, relations, dtypes
    "quick": (20.0, "core", ("float64",)),
    "ci": (60.0, "core", ("float64", "float32")),
    "deep": (600.0, "all", ("float64", "float32")),
}
LISTS = ("skips", "xfails")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add = parser.getgroup("crosscheck", "faults of KV caches").addoption
    add(
        "--crosscheck-subject",
        action="append",
        default=[],
        metavar="SUBJECT",
        help="a model to test, as for `crosscheck run`; may be repeated",
    )
    add("--crosscheck-profile", choices=tuple(PROFILES), default="ci", help="default ci")
    for name in LISTS:
        add(
            f"--crosscheck-{name}",
            metavar="FILE",
            help=f"ids of {name[:-1]}ped tests" if name == "skips" else "ids that must fail",
        )
    add(
        "--crosscheck-replay",
        action="append",
        default=[],
        metavar="FILE",
        help="a failure that `crosscheck run` saved; may be repeated",
    )


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"--crosscheck-{name}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is tested with which profile."""
    subjects = _option(config, "subject")
    if not subjects:
        return []
    profile = _option(config, "profile")
    seconds, relations, dtypes = PROFILES[profile]
    return [
        f"crosscheck: {', '.join(subjects)}; profile {profile}: relations {relations}, "
        f"{', '.join(dtypes)}, {seconds:g} s a subject"
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests, and mark those that the lists name.

    Raises:
        UsageError: A listed id is no test of this run.
    """
    from crosscheck.errors import CrosscheckError

    try:
        plans = [*_relation_plans(config), *_replay_plans(config)]
    except CrosscheckError as error:
        raise pytest.UsageError(f"crosscheck: {error}") from None
    added = [item for plan in plans for item in _collected(session, plan)]
    _mark(added, config)
    items += added


def pytest_collection_finish(session: pytest.Session) -> None:
    """Divide each subject's budget among the tests that are left of it."""
    for item in session.items:
        if isinstance(item, RelationItem):
            item.purse.waiting += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep pytest's exit code where a call of a subject never answered.

    Python's own end would cut its thread off inside a framework, which aborts the process.
    """
    worker = sys.modules.get("crosscheck.subjects.worker")
    if worker is not None and worker.has_left_calls_behind():
        # After all that pytest and its plugins still have to say.
        atexit.register(lambda: worker.leave(int(session.exitstatus)))


@dataclass
class Purse:
    """What is left of one subject's budget; what a test does not need goes to the others."""

    seconds: float
    waiting: int = 0

    def share(self) -> float:
        """Return what the next test may spend, at least a second."""
        return max(1.0, self.seconds / max(1, self.waiting))

    def pay(self, seconds: float) -> None:
        """Take what a test has spent."""
        self.seconds, self.waiting = self.seconds - seconds, self.waiting - 1


@dataclass(frozen=True)
class Plan:
    """Tests that stand together: the name of all, and of each its name, class and arguments."""

    name: str
    items: tuple[tuple[str, type["_Item"], dict[str, Any]], ...]


class _Group(pytest.Collector):
    plan: Plan

    def collect(self) -> list[pytest.Item]:
        """Return the tests of the plan."""
        return [
            kind.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}", **given)
            for name, kind, given in self.plan.items
        ]


def _collected(session: pytest.Session, plan: Plan) -> list[pytest.Item]:
    name = f"crosscheck::{plan.name}"
    group = _Group.from_parent(session, name=name, nodeid=name)
    group.plan = plan
    # By way of a report, which is what the terminal counts.
    report = group.ihook.pytest_make_collect_report(collector=group)
    group.ihook.pytest_collectreport(report=report)
    return list(report.result)


def _relation_plans(config: pytest.Config) -> list[Plan]:
    subjects = dict.fromkeys(_option(config, "subject"))
    if not subjects:
        return []
    from crosscheck.select import select

    seconds, relations, dtypes = PROFILES[_option(config, "profile")]
    names = [each.name for each in select(relations)]
    purses = {spec: Purse(seconds) for spec in subjects}
    return [
        Plan(
            spec,
            tuple(
                (name, RelationItem, {"spec": spec, "purse": purses[spec], "dtypes": dtypes})
                for name in names
            ),
        )
        for spec in subjects
    ]


def _replay_plans(config: pytest.Config) -> list[Plan]:
    files = _option(config, "replay")
    items = tuple((Path(each).name, ReplayItem, {"file": each}) for each in files)
    return [Plan("replay", items)] if items else []


def _mark(items: list[pytest.Item], config: pytest.Config) -> None:
    by_id = {item.nodeid: item for item in items}
    for name in LISTS:
        file = _option(config, name)
        for nodeid, reason in _listed(file) if file else ():
            item = by_id.get(nodeid)
            if item is None:
                raise pytest.UsageError(
                    f"--crosscheck-{name} {file}: {nodeid} is no test of this run. Take it out, "
                    "or ask for its subject and profile."
                )
            if name == "skips":
                item.add_marker(pytest.mark.skip(reason=reason))
            else:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def _listed(file: str) -> list[tuple[str, str]]:
    """Return the ids of a list, each with the comment behind it."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError as error:
        raise pytest.UsageError(f"crosscheck: {file}: {error.strerror}.") from None
    parts = [line.partition(" #") for line in lines if not line.lstrip().startswith("#")]
    return [(nodeid.strip(), reason.strip()) for nodeid, _, reason in parts if nodeid.strip()]


class CrosscheckFailed(AssertionError):
    """A relation that does not pass; the message is its report."""


class _Item(pytest.Item):
    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the test stands: nowhere in a file, so a line that is none."""
        group = "" if self.parent is None else self.parent.name.removeprefix("crosscheck::")
        return self.path, 0, f"{self.name} of {group}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report alone; a traceback through the tester says nothing."""
        from crosscheck.errors import CrosscheckError

        if isinstance(excinfo.value, CrosscheckFailed | CrosscheckError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class RelationItem(_Item):
    """One relation on one subject."""

    def __init__(self, *, spec: str, purse: Purse, dtypes: tuple[str, ...], **rest: Any):
        super().__init__(**rest)
        self.spec, self.purse, self.dtypes = spec, purse, dtypes

    def runtest(self) -> None:
        """Run it; blind and inconclusive fail too, and unsupported is a skip with its reason."""
        from crosscheck.check import check

        report = check(
            _subject(self.config, self.spec),
            relations=self.name,
            budget_seconds=self.purse.share(),
            dtypes=self.dtypes,
            stretch=True,
        )
        self.purse.pay(report.seconds)
        if report.verdict == "unsupported":
            pytest.skip("; ".join(dict.fromkeys(row.reason for row in report.rows)))
        _require_pass(report)


class ReplayItem(_Item):
    """One saved failure, which must have been mended."""

    def __init__(self, *, file: str, **rest: Any):
        super().__init__(**rest)
        self.file = file

    def runtest(self) -> None:
        """Run the saved case again."""
        from crosscheck.commands.replay import replay
        from crosscheck.failure import load
        from crosscheck.text import divergence_lines

        row = replay(load(self.file))
        if row.verdict != "pass":
            words = row.reason or f"verdict {row.verdict}"
            lines = divergence_lines(row, self.file) if row.verdict == "fail" else [words]
            raise CrosscheckFailed("\n".join(lines))


_SUBJECTS = pytest.StashKey[dict[str, Any]]()


def _subject(config: pytest.Config, spec: str) -> Any:
    made = config.stash.setdefault(_SUBJECTS, {})
    if spec not in made:
        from crosscheck.subjects.sources import load_subject

        made[spec] = load_subject(spec)
    return made[spec]


def _require_pass(report: Any) -> None:
    from crosscheck.text import report_lines

    if report.verdict != "pass":
        raise CrosscheckFailed("\n".join(report_lines(report, report.verdict)))


@pytest.fixture
def crosscheck(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function: a model or Subject (and a reference) -> its report, which must pass.

    It takes the keywords of `crosscheck.check.check`; the profile gives their defaults.
    """

    def run(candidate: Any, reference: Any = None, **options: Any) -> Any:
        from crosscheck.adapters import adapt
        from crosscheck.check import check

        seconds, relations, dtypes = PROFILES[_option(request.config, "profile")]
        given = {"relations": relations, "budget_seconds": seconds, "dtypes": dtypes} | options
        given.setdefault("stretch", "budget_seconds" not in options)
        other = None if reference is None else adapt(reference)
        report = check(adapt(candidate), other, **given)
        _require_pass(report)
        return report

    return run


@pytest.fixture
def oracle() -> Callable[[Any], Any]:
    """Return a function: a model or Subject -> the same function in float64."""

    def cast(model: Any) -> Any:
        from crosscheck.adapters import adapt

        subject = adapt(model)
        return subject if subject.info.dtype == "float64" else subject.cast("float64")

    return cast
