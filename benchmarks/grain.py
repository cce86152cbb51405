"""The grain of the code: lines in ruff's own layout, functions, fragments that one place calls, imports a file.

    python benchmarks/grain.py [CHECKOUT ...]

Run before and after a change of structure. Code lines are without docstrings, comments and blanks, and as ruff lays
them out without `fmt: skip`. A fragment is a private function that one place of its file names.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean, median

SKIP = re.compile(r"[ \t]*# fmt: skip\n")


def main(checkout: Path) -> None:
    """Print the figures of a checkout."""
    print(checkout)
    for folder in ("opanatomy", "tests", "benchmarks"):
        files = [file for file in sorted((checkout / folder).rglob("*.py")) if "__pycache__" not in file.parts]
        texts = [file.read_text() for file in files]
        skips = sum(len(SKIP.findall(text)) for text in texts)
        trees = [ast.parse(text) for text in laid_out(texts)]
        lines = [code_lines(tree) for tree in trees]
        functions = [each for tree in trees for each in functions_of(tree)]
        bodies = [len(code_lines(function)) for function in functions]
        private = [(tree, each.name) for tree in trees for each in functions_of(tree) if is_private(each.name)]
        places = {id(tree): Counter(named(tree)) for tree in trees}
        once = sum(places[id(tree)][name] <= 1 for tree, name in private)
        imports = [sum(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)) for tree in trees]
        raw = sum(text.count("\n") for text in texts)
        count = len(functions)
        print(f"  {folder}: {len(files)} files, {raw} lines, {sum(map(len, lines))} of code, {skips} fmt: skip")
        print(
            f"    {count} functions of {mean(bodies):.1f} lines (median {median(bodies):.0f}, most {max(bodies)}),"
            f" {100 * len(private) / count:.0f} % private, {100 * once / count:.0f} % with one caller;"
            f" {mean(imports):.1f} imports a file"
        )


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return all functions and methods."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_private(name: str) -> bool:
    """Return whether a name begins with an underscore and is no special one."""
    return name.startswith("_") and not name.endswith("__")


def laid_out(texts: list[str]) -> list[str]:
    """Return the files as ruff lays them out."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{index}.py") for index in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(SKIP.sub("\n", text))
        command = [sys.executable, "-m", "ruff", "format", "--quiet", "--isolated", "--line-length=120", folder]
        subprocess.run(command, check=True)
        return [path.read_text() for path in paths]


def code_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines with code."""
    lines: set[int] = set()
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (isinstance(node, ast.Expr) and id(node.value) in docstrings) or id(node) in docstrings:
            continue
        if hasattr(node, "lineno") and not isinstance(node, ast.Module):
            lines.add(node.lineno)
            if not isinstance(node, ast.stmt) or not hasattr(node, "body"):
                lines.add(node.end_lineno or node.lineno)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def named(tree: ast.AST) -> list[str]:
    """Return the names that code refers to, one for each place."""
    return [
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    ]


if __name__ == "__main__":
    for argument in sys.argv[1:] or ["."]:
        main(Path(argument))
