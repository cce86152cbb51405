"""Whether the tests notice: random small faults in the analysis, one at a time, each against the tests that run it.

    python benchmarks/mutants.py [--count 150] [--seed N] [--processes 2] [--only PACKAGE] [--timeout SECONDS]

A fault is one operator, comparison, condition or number of the source made another one. Messages (what is raised,
warned or put together as text), annotations and docstrings are left alone. First the tests of the packages run once
as they are, and which lines each of them runs is kept. Then each fault runs in a copy of the checkout against the tests
of its package that run its statement, the quickest first (`forked_tests`); of one in what is computed at import against
all of them, and of any against those that start a process. The ones that no test notices are printed as a diff.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import difflib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import count, islice, product
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from forked_tests import ANY_LINE, FileReach, end_with_parent, first_failure, preload, reach_of
from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
#: Package -> its test files by folder, the quickest first; those after the bar run against what the others left alive.
TESTS = {
    "attribution": "rules/attribution rules/phases traces/golden_traces rules/timeline rules/graph_annotations "
    "traces/writer cost/contraction_oracle | rules/phases_of_captures rules/ownership ranks/ranks ranks/communication "
    "traces/trace_devices models/texts loops/lines_of_code rules/longest_events",
    "classification": "rules/classification rules/roofline traces/golden_traces rules/attribution | rules/causality "
    "traces/trace_devices rules/timeline",
    "cost": "cost/cost_worked cost/formulas cost/cost_registry cost/cost_flops cost/cost_bytes cost/cost_sparse "
    "traces/golden_traces | cost/cost_models cost/mfu_formulas cost/contraction_theory",
    "memory": "memory/memory_theory memory/memory_allocator pages/formats traces/golden_traces "
    "memory/simulated_allocator memory/snapshots | memory/memory_trace memory/memory_live memory/out_of_memory "
    "rules/advice",
    "analysis": "rules/timeline rules/roofline cost/contraction_theory traces/golden_traces ranks/ranks "
    "rules/waiting compare/comparison ranks/communication rules/advice rules/replay rules/verdict "
    "rules/longest_events rules/step_over_time | pages/formats models/generation rules/attribution "
    "compare/several_runs pages/first_screen loops/whole_run loops/run_trends memory/out_of_memory memory/snapshots",
    "checks": "rules/causality rules/second_count_causes cost/second_sources cli/gates rules/attribution "
    "traces/golden_traces | models/generation cost/cost_models ranks/communication",
    "records": "python/tables python/work_table cost/formulas rules/roofline traces/golden_traces ranks/ranks "
    "compare/comparison pages/formats | pages/explain python/python_surface models/generation predict/techniques",
    "io": "cli/outputs pages/redaction pages/secrets cli/pipes pages/hostile_names | cli/hostile cli/given_reports",
    "trace": "traces/reading traces/golden_traces traces/writer traces/foreign rules/attribution rules/phases "
    "pages/redaction memory/snapshots | traces/trace_devices traces/reference_figures cli/hostile cli/pipes "
    "pages/secrets",
}  # fmt: skip
ROUNDS = 2
#: Of these operators each becomes the other.
SWAPPED: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+", ast.BitAnd: "|",
    ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or",
    ast.Or: "and",
}  # fmt: skip
#: What the first tests import; what else they do is learned from them.
FIRST_IMPORTED = ("numpy", "torch", "transformers", "hypothesis", "msgspec", "orjson", "isal", "rich")
#: Calls whose arguments are words for people.
_SPEAKS = ("warn", "say", "format", "fail")


#: Keyword arguments that only guard against faults.
_CHANGES_NOTHING = ("strict", "frozen", "kw_only", "maxsize", "copy")


_LARGE = 1e3


class Mutant(Struct, frozen=True, kw_only=True):
    """A piece of a file, by its places in the text, and what takes its place; the lines of its statement."""

    package: str
    file: str
    line: int
    first: int
    last: int
    at_import: bool
    begin: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The source with the fault."""
        return source[: self.begin] + self.text + source[self.end :]


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a mutant; `by` is the test that noticed, `tests` how many were chosen for it."""

    mutant: Mutant
    by: str | None
    tests: int
    seconds: float


# -------------------------------------------------------------------------------------------------------- the mutants


def mutants_of(package: str, file: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = file.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.expr) -> tuple[int, int]:
        return place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)

    tree = ast.parse(source)
    statements, in_functions = _statements(tree), _in_functions(tree)
    for node in _computing(tree):
        first, last = statements[node.lineno]
        for begin, end, text in _changes(node, source, span):
            yield Mutant(
                package=package,
                file=str(file.relative_to(ROOT)),
                line=node.lineno,
                first=first,
                last=last,
                at_import=node.lineno not in in_functions,
                begin=begin,
                end=end,
                text=text,
            )


def _statements(tree: ast.AST) -> list[tuple[int, int]]:
    """For each line, from 1, the lines of the innermost statement on it: of one that holds others its head."""
    last = max((getattr(node, "end_lineno", None) or 0 for node in ast.iter_child_nodes(tree)), default=0)
    lines = [(line, line) for line in range(last + 1)]
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            body = getattr(statement, "body", None)
            end = max(statement.lineno, body[0].lineno - 1 if body else statement.end_lineno or 0)
            for line in range(statement.lineno, end + 1):
                lines[line] = statement.lineno, end
    return lines


def _in_functions(tree: ast.AST) -> set[int]:
    """The lines in the bodies of functions; the others are computed when their module is imported."""
    functions = (child for child in ast.walk(tree) if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))
    return {line for each in functions for line in range(each.body[0].lineno, (each.end_lineno or 0) + 1)}


def _computing(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that compute: not messages, annotations or literals of text."""
    for name, value in ast.iter_fields(tree):
        children = value if isinstance(value, list) else [value]
        for child in children:
            if not isinstance(child, ast.AST) or name in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr) or _speaks(child) or _chooses_words(child):
                continue
            if isinstance(child, ast.keyword) and child.arg in _CHANGES_NOTHING:
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from _computing(child)


def _chooses_words(node: ast.AST) -> bool:
    """Whether a conditional expression is a sentence or a part of one."""
    if not isinstance(node, ast.IfExp):
        return False
    return any(
        isinstance(branch, ast.JoinedStr)
        or (isinstance(branch, ast.Constant) and isinstance(branch.value, str) and " " in branch.value)
        for branch in (node.body, node.orelse)
    )


def _speaks(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in ("TypeVar", "TypeAlias", "cast") or any(word in name.lower() for word in _SPEAKS)


def _changes(node: ast.expr, source: str, span: object) -> Iterator[tuple[int, int, str]]:
    assert callable(span)
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        changed = not node.value if isinstance(node.value, bool) else node.value + 1
        # Of a factor such as 1e9 one more is no fault that figures of six digits could show.
        changed = 2 * node.value if isinstance(node.value, float) and abs(node.value) >= _LARGE else changed
        yield (*span(node), repr(changed))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield (*span(node), f"({source[slice(*span(node.operand))]})")
    elif isinstance(node, ast.IfExp):
        yield (*span(node.test), f"(not ({source[slice(*span(node.test))]}))")
    else:
        for left, right, operator in _operators(node):
            between = span(left)[1], span(right)[0]
            if type(operator) in SWAPPED and "#" not in source[slice(*between)]:
                brackets = "".join(character if character in "()\n" else " " for character in source[slice(*between)])
                before, after = brackets.count(")"), brackets.count("(")
                yield (*between, ")" * before + f" {SWAPPED[type(operator)]} " + "(" * after)


def _operators(node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, ast.AST]]:
    if isinstance(node, ast.BinOp):
        yield node.left, node.right, node.op
    elif isinstance(node, ast.Compare):
        yield from zip([node.left, *node.comparators], node.comparators, node.ops, strict=False)
    elif isinstance(node, ast.BoolOp):
        yield node.values[0], node.values[1], node.op


def is_whole(mutant: Mutant) -> bool:
    """Whether what the mutant makes is Python, and other than what was there."""
    source = (ROOT / mutant.file).read_text()
    try:
        return ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


# ------------------------------------------------------------------------------------------------ the tests that notice


def files_of(package: str, number: int) -> list[str]:
    """The test files of a package in the first or the second round."""
    names = (name.rpartition("/") for name in TESTS[package].split("|")[number].split())
    return [f"tests/{folder}/test_{name}.py" for folder, _, name in names]


def lines_wanted(mutants: Sequence[Mutant]) -> dict[str, list[int]]:
    """The lines of each file that the tests are watched for."""
    lines: dict[str, set[int]] = {}
    for mutant in mutants:
        wanted = lines.setdefault(mutant.file, set())
        wanted.update(range(mutant.first, mutant.last + 1))
        if mutant.at_import:
            wanted.add(ANY_LINE)
    return {file: sorted(wanted) for file, wanted in lines.items()}


def tests_against(mutant: Mutant, reaches: Mapping[str, FileReach], number: int) -> dict[str, float]:
    """The tests that may notice a mutant, with their seconds: those that run its statement, the quickest first.

    After them come, in the second round, those that start a process, of which nothing is known; of what runs when its
    module is imported, all: those before that run anything of the file.
    """
    span = range(mutant.first, mutant.last + 1)
    rows = []
    for here in range(number + 1):
        for reach in (each for file in files_of(mutant.package, here) for each in reaches[file].tests):
            lines = reach.lines.get(mutant.file, ())
            rank = 0 if any(line in span for line in lines) else 1 if ANY_LINE in lines and mutant.at_import else 2
            chosen = here == number and (rank < 2 or mutant.at_import)
            if not reach.failed and (chosen or (rank == 2 and reach.starts_process and number == 1)):
                rows.append((rank, reach.seconds, reach.test))
    return {test: seconds for _, seconds, test in sorted(rows)}


# ----------------------------------------------------------------------------------------------------------- the runs

_checkout = ROOT
_tries = count()


def _take(checkouts: Any) -> None:
    """Give a worker its copy of the checkout."""
    global _checkout
    end_with_parent()
    _checkout = checkouts.get()
    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True


def _reach(asked: tuple[str, Mapping[str, Sequence[int]], float]) -> tuple[str, FileReach]:
    file, lines, timeout = asked
    return file, reach_of(file, lines, _checkout, timeout)


def _tried(asked: tuple[Mutant, Mapping[str, float]]) -> Outcome:
    """What these tests say of a mutant, in this worker's copy of the checkout."""
    mutant, tests = asked
    if not tests:
        return Outcome(mutant=mutant, by=None, tests=0, seconds=0.0)
    target = _checkout / mutant.file
    source, changed_ns = target.read_text(), target.stat().st_mtime_ns
    target.write_text(mutant.applied(source))
    # A time of its own: bytecode that a test wrote of the mutant before is not taken for this one's.
    os.utime(target, ns=(changed_ns, changed_ns + 10**10 * (2 + next(_tries))))
    start = time.monotonic()
    try:
        by = first_failure(tests, _checkout)
        return Outcome(mutant=mutant, by=by, tests=len(tests), seconds=time.monotonic() - start)
    finally:
        target.write_text(source)
        os.utime(target, ns=(changed_ns, changed_ns))


def beside(checkout: Path) -> Path:
    """The folder that the checkout lies in; of a worktree of git that of the repository itself."""
    mark = checkout / ".git"
    if not mark.is_file():
        return checkout.parent
    return Path(mark.read_text().partition("gitdir: ")[2].strip()).parents[3]


def copied(folder: Path, source: Path = ROOT) -> Path:
    """A copy of the checkout with its bytecode and that of the tests, and with what lies next to it."""
    checkout = folder / ROOT.name
    left_out = [".git", ".venv*", ".*_cache", "*.egg-info", "build", *(["__pycache__"] if source == ROOT else [])]
    shutil.copytree(source, checkout, ignore=shutil.ignore_patterns(*left_out))
    if (shared := beside(ROOT) / "shared").exists():
        (folder / "shared").symlink_to(shared.resolve())
    if source == ROOT:
        compileall.compile_dir(checkout / "opanatomy", quiet=1)
        names = {file for package, number in product(TESTS, range(ROUNDS)) for file in files_of(package, number)}
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *sorted(names)]
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, check=True)
    return checkout


@contextmanager
def workers(folder: Path, processes: int) -> Iterator[Pool]:
    """Processes that each have a copy of the checkout."""
    context = get_context("fork")
    checkouts = context.SimpleQueue()
    for number in range(processes):
        checkouts.put(folder / str(number) / ROOT.name)
    with context.Pool(processes, _take, (checkouts,)) as pool:
        yield pool


def run(mutants: Sequence[Mutant], processes: int, timeout: float, kept: Kept) -> list[Outcome]:
    """The outcome of each mutant, package by package: of those that live through the first round in the second."""
    outcomes: dict[Mutant, Outcome] = {}
    with tempfile.TemporaryDirectory() as name:
        first = copied(Path(name, "0"))
        for number in range(1, processes):
            copied(Path(name, str(number)), first)
        preload(FIRST_IMPORTED)
        reaches = kept.read()
        for number, package in product(range(ROUNDS), dict.fromkeys(mutant.package for mutant in mutants)):
            killed = {mutant for mutant, outcome in outcomes.items() if outcome.by is not None}
            alive = [each for each in mutants if each.package == package and each not in killed]
            if alive:
                files = [file for file in files_of(package, number) if file not in reaches]
                reaches |= reaches_of(files, lines_wanted(mutants), Path(name), processes, timeout)
                kept.write(reaches)
                preload(sorted({module for reach in reaches.values() for module in reach.imported}))
            gc.freeze()
            with workers(Path(name), processes) as pool:
                chosen = [(mutant, tests_against(mutant, reaches, number)) for mutant in alive]
                for outcome in pool.imap_unordered(_tried, chosen):
                    outcomes[outcome.mutant] = outcome
                    print(said(outcome), flush=True)
    return [outcomes[mutant] for mutant in mutants]


def reaches_of(
    files: Sequence[str], lines: Mapping[str, Sequence[int]], folder: Path, processes: int, timeout: float
) -> dict[str, FileReach]:
    """What each test of these files reaches of the lines, and which tests fail as they are."""
    start = time.monotonic()
    reaches = {}
    with workers(folder, processes) as pool:
        for file, reach in pool.imap_unordered(_reach, [(file, lines, timeout) for file in files]):
            if reach.failure is not None:
                raise SystemExit(f"without any fault the tests of {file} do not run: {reach.failure}")
            reaches[file] = reach
            print(f"{file}: {len(reach.tests)} tests, {time.monotonic() - start:.0f} s", flush=True)
            for test in reach.tests:
                if test.failed:
                    print(f"fails without any fault and is left out: {test.test}", flush=True)
    return reaches


class Kept(Struct, frozen=True, kw_only=True):
    """Where it is kept what the tests reach, and of which sources, tests and lines."""

    file: Path | None
    key: str

    def read(self) -> dict[str, FileReach]:
        """What was kept of the same sources, tests and lines."""
        if self.file is None or not self.file.exists():
            return {}
        key, reaches = msgspec.json.decode(self.file.read_bytes(), type=tuple[str, dict[str, FileReach]])
        return reaches if key == self.key else {}

    def write(self, reaches: Mapping[str, FileReach]) -> None:
        """Keep it."""
        if self.file is not None:
            self.file.write_bytes(msgspec.json.encode((self.key, reaches)))


def key_of(mutants: Sequence[Mutant]) -> str:
    """Names the sources, the tests and the mutants."""
    digest = sha256(repr(sorted(lines_wanted(mutants).items())).encode())
    for folder in ("opanatomy", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def said(outcome: Outcome) -> str:
    """One line of what became of a mutant."""
    mutant = outcome.mutant
    what = f"survived {outcome.tests} tests" if outcome.by is None else f"killed by {outcome.by[:90]}"
    return f"{mutant.file}:{mutant.line} {what}, {outcome.seconds:.1f} s"


def difference(mutant: Mutant) -> str:
    """The mutant as a diff."""
    source = (ROOT / mutant.file).read_text()
    lines = difflib.unified_diff(
        source.splitlines(), mutant.applied(source).splitlines(), mutant.file, mutant.file, lineterm="", n=2
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150, help="mutants to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="at once (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds for one file of tests (default: %(default)s)"
    )
    parser.add_argument("--only", choices=TESTS, help="mutants of one package")
    parser.add_argument("--keep", type=Path, help="a file that keeps which lines the tests run, for the next time")
    arguments = parser.parse_args()
    files = {file for package, number in product(TESTS, range(ROUNDS)) for file in files_of(package, number)}
    if missing := sorted(file for file in files if not (ROOT / file).exists()):
        parser.error(f"TESTS names files that are not there: {', '.join(missing)}")
    packages = [arguments.only] if arguments.only else list(TESTS)
    every = [
        mutant
        for package in packages
        for file in sorted((ROOT / "opanatomy" / package).rglob("*.py"))
        for mutant in mutants_of(package, file)
    ]
    Random(arguments.seed).shuffle(every)
    drawn = list(islice(filter(is_whole, every), arguments.count))
    print(f"{len(drawn)} of {len(every):,} mutants, seed {arguments.seed}", flush=True)
    kept = Kept(file=arguments.keep, key=key_of(drawn))
    outcomes = run(drawn, arguments.processes, arguments.timeout, kept)
    survivors = [outcome.mutant for outcome in outcomes if outcome.by is None]
    for mutant in survivors:
        print(f"\n{difference(mutant)}")
    killed = len(outcomes) - len(survivors)
    print(f"\n{killed} of {len(outcomes)} killed ({100 * killed / max(len(outcomes), 1):.1f} %)")


if __name__ == "__main__":
    main()
