"""Whether the tests notice: random small faults in the analysis, one at a time, each against the tests of its package.

    python benchmarks/mutants.py [--count 150] [--seed N] [--processes 2] [--only PACKAGE] [--timeout SECONDS]

A fault is one operator, comparison, condition or number of the source made another one. Messages (what is raised,
warned or put together as text), annotations and docstrings are left alone. Each runs in a copy of the checkout; the
ones that no test notices are printed as a diff.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from random import Random

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
#: Package -> its test files, the quickest first.
TESTS = {
    "attribution": "attribution phases steps made_ids device_events golden_traces made_trace phases_foreign "
    "made_damage",
    "calls": "ownership device_parts golden_traces made_trace checks trace_devices writer cost_traces",
    "cost": "formulas cost_registry cost_flops cost_bytes cost_libraries cost_sparse cost_schemas golden_traces "
    "cost_sweep cost_models",
    "memory": "memory_theory memory_device report_memory golden_traces memory_replaced memory_trace memory_live",
    "anatomy": "timeline roofline ratios theory faster report golden_traces causes made_roofline unlike ranks "
    "report_terminal device_parts",
    "trace": "trace golden_traces trace_devices writer made_ids made_damage hostile pipes fuzz",
}  # fmt: skip
#: Of these operators each becomes the other.
SWAPPED: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+", ast.BitAnd: "|",
    ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or",
    ast.Or: "and",
}  # fmt: skip
#: Calls whose arguments are words for people.
_SPEAKS = ("warn", "say", "format", "fail")


#: Keyword arguments that only guard against faults.
_CHANGES_NOTHING = ("strict", "frozen", "kw_only", "maxsize", "copy")


class Mutant(Struct, frozen=True, kw_only=True):
    """A piece of a file, by its places in the text, and what takes its place."""

    package: str
    file: str
    line: int
    begin: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The source with the fault."""
        return source[: self.begin] + self.text + source[self.end :]


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a mutant; `by` is the test that noticed."""

    mutant: Mutant
    by: str | None


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

    for node in _computing(ast.parse(source)):
        for begin, end, text in _changes(node, source, span):
            yield Mutant(
                package=package, file=str(file.relative_to(ROOT)), line=node.lineno, begin=begin, end=end, text=text
            )


def _computing(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that compute: not messages, annotations or literals of text."""
    for name, value in ast.iter_fields(tree):
        children = value if isinstance(value, list) else [value]
        for child in children:
            if not isinstance(child, ast.AST) or name in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr) or _speaks(child):
                continue
            if isinstance(child, ast.keyword) and child.arg in _CHANGES_NOTHING:
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from _computing(child)


def _speaks(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in ("TypeVar", "TypeAlias", "cast") or any(word in name.lower() for word in _SPEAKS)


def _changes(node: ast.expr, source: str, span: object) -> Iterator[tuple[int, int, str]]:
    assert callable(span)
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        changed = not node.value if isinstance(node.value, bool) else node.value + 1
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


# ----------------------------------------------------------------------------------------------------------- the runs


def tried(mutant: Mutant, checkout: Path, timeout: float) -> Outcome:
    """What the tests of its package say of a mutant, in a copy of the checkout."""
    target = checkout / mutant.file
    source = target.read_text()
    target.write_text(mutant.applied(source))
    try:
        return Outcome(mutant=mutant, by=noticed(mutant.package, checkout, timeout))
    finally:
        target.write_text(source)


def noticed(package: str, checkout: Path, timeout: float) -> str | None:
    """The first test of a package that fails in a copy of the checkout; `None` where all pass."""
    files = [f"tests/test_{name}.py" for name in TESTS[package].split()]
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-rfE",
        *(file for file in files if (checkout / file).exists()),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return "the time limit"
    if done.returncode == 0:
        return None
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0].partition(" ")[2][:90] if failures else f"exit code {done.returncode}"


def copied(folder: Path) -> Path:
    """A copy of the checkout, with what lies beside it."""
    checkout = folder / ROOT.name
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "build")
    shutil.copytree(ROOT, checkout, ignore=left_out)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return checkout


def run(mutants: list[Mutant], processes: int, timeout: float) -> list[Outcome]:
    """The outcome of each mutant, as many at once as there are copies of the checkout."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(processes) as pool:
        checkouts: SimpleQueue[Path] = SimpleQueue()
        for number in range(processes):
            checkouts.put(copied(Path(name, str(number))))

        checkout = checkouts.get()
        for package in sorted({mutant.package for mutant in mutants}):
            if (failure := noticed(package, checkout, 4 * timeout)) is not None:
                raise SystemExit(f"without any fault the tests of {package} fail: {failure}")
        checkouts.put(checkout)

        def one(mutant: Mutant) -> Outcome:
            checkout = checkouts.get()
            try:
                outcome = tried(mutant, checkout, timeout)
            finally:
                checkouts.put(checkout)
            said = "survived" if outcome.by is None else f"killed by {outcome.by}"
            print(f"{mutant.file}:{mutant.line} {said}", flush=True)
            return outcome

        return list(pool.map(one, mutants))


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
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one mutant (default: %(default)s)")
    parser.add_argument("--only", choices=TESTS, help="mutants of one package")
    arguments = parser.parse_args()
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
    outcomes = run(drawn, arguments.processes, arguments.timeout)
    survivors = [outcome.mutant for outcome in outcomes if outcome.by is None]
    for mutant in survivors:
        print(f"\n{difference(mutant)}")
    killed = len(outcomes) - len(survivors)
    print(f"\n{killed} of {len(outcomes)} killed ({100 * killed / max(len(outcomes), 1):.1f} %)")


if __name__ == "__main__":
    main()
