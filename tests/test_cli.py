"""The command line as a process: stdout, stderr and exit code apart."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import ROOT, Fork, run, started
from tests.handmade import training_step

TINY = (
    "--set", "hidden_size=32", "--set", "num_attention_heads=2", "--set", "intermediate_size=64",
    "--set", "vocab_size=200", "--layers", "2", "--batch", "2", "--seq", "16",
)  # fmt: skip


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_step().write(tmp_path_factory.mktemp("trace") / "step.json.gz")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("profiled")
    words = (*TINY, "--device", "cpu", "--optimizer", "adamw", "--suggest", "0")
    done = run("profile", "bert-base-uncased", *words, cwd=folder)
    return folder, done


def test_help_and_version_import_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from opanatomy.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "slow = [name for name in ('torch', 'transformers', 'rich', 'numpy') if name in sys.modules]\n"
        "print(slow, file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in (["--help"], ["--version"], ["profile", "--help"], ["analyze", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr.strip() == "[]", words
        assert "opanatomy" in done.stdout


def test_analysis_imports_no_torch(trace: Path) -> None:
    code = "import sys, opanatomy; opanatomy.analyze(sys.argv[1]); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code, str(trace)], env=environment, check=False).returncode == 0


def test_profile_from_end_to_end(profiled: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = profiled
    assert done.returncode == 0, done.stderr
    assert left_in(folder) == ["bert-base-uncased.trace.json.gz"]
    for words in ("contraction", "normalization", "bert-base-uncased", "ledger"):
        assert words in done.stdout.lower().replace("_", " "), words
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "the CPU is the device" in done.stderr
    assert "opanatomy analyze bert-base-uncased.trace.json.gz" in done.stderr


def test_the_trace_gives_the_same_report(profiled: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = profiled
    again = started("analyze", "bert-base-uncased.trace.json.gz", cwd=folder)
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_json_of_the_trace_is_schema_2_and_repeatable(
    profiled: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = profiled
    first, second = (run("analyze", "bert-base-uncased.trace.json.gz", "-f", "json", cwd=folder) for _ in range(2))
    assert first.stdout == second.stdout
    report = json.loads(first.stdout)
    assert report["schema"] == 2
    assert report["environment"]["device_kind"] == "cpu"
    assert report["workload"]["optimizer"] == "adamw"
    assert {row["phase"] for row in report["classes"]} >= {"forward", "backward", "optimizer"}


def test_the_trace_carries_no_host_name(profiled: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    import gzip

    folder, _ = profiled
    text = gzip.decompress((folder / "bert-base-uncased.trace.json.gz").read_bytes())
    document = json.loads(text)
    assert "host_name" not in document
    assert document["opanatomy"]["workload"]["architecture"] == "BertForMaskedLM"
    assert str(ROOT).encode() not in text


def test_a_report_file_and_overwriting(trace: Path, tmp_path: Path) -> None:
    first = run("analyze", str(trace), "-o", "report.json", cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, "")
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == 2
    again = run("analyze", str(trace), "-o", "report.json", cwd=tmp_path)
    assert again.returncode == 1
    assert "exists already - add --force" in again.stderr
    assert run("analyze", str(trace), "-o", "report.json", "--force", cwd=tmp_path).returncode == 0
    assert left_in(tmp_path) == ["report.json"]


def test_dash_is_stdout(trace: Path, tmp_path: Path) -> None:
    done = run("analyze", str(trace), "-o", "-", "-f", "csv", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("operator,")
    assert left_in(tmp_path) == []


def test_a_closed_pipe_is_quiet(trace: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m opanatomy analyze {trace} -f json | head -c 10"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert len(done.stdout) == 10


WRONG_USAGE: list[tuple[list[str], str]] = [
    (["profle", "gpt2"], "did you mean 'profile'?"),
    (["gpt2"], "did you mean 'profile gpt2'?"),
    (["step.json.gz"], "did you mean 'analyze step.json.gz'?"),
    (["profile", "gpt2", "--bacth", "4"], "unknown --bacth 4 - did you mean --batch?"),
    (["techniques", "gpt2", "--memory"], "unknown --memory - it is an option of profile (see "),
    (["analyze", "x.json", "--amp=bf16"], "unknown --amp=bf16 - it is an option of profile and of techniques (see "),
    (["profile", "gpt2", "--bat", "4"], "unknown --bat 4 - did you mean --batch?"),
    (["analyze", "x.json", "--format=json", "--outptu=y"], "unknown --outptu=y - did you mean --output?"),
    (["profile", "--checkpointing", "gpt2"], "MODEL goes before it: opanatomy profile gpt2 --checkpointing"),
    (["profile"], "the following arguments are required: MODEL"),
    (["profile", "gpt2", "--batch", "0"], "--batch 0: must be at least 1"),
    (["profile", "gpt2", "--batch", "many"], "--batch many: must be a whole number"),
    (["profile", "gpt2", "--seq", "-3"], "--seq -3: must be at least 1"),
    (["profile", "gpt2", "--set", "hidden"], "--set hidden: not of the form key=value"),
    (["profile", "gpt2", "--trace", "x.txt"], "must end in .json or .json.gz"),
    (["profile", "gpt2", "-f", "xml"], "not known - "),
    (["profile", "gpt2", "-o", "report.docx"], "no report format has this ending"),
    (["profile", "gpt2", "--inference", "--optimizer", "adamw"], "--inference has no backward"),
]


def test_a_limit_that_no_analysis_fits(trace: Path, tmp_path: Path) -> None:
    for kind, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        done = started(
            "analyze", str(trace), cwd=tmp_path, preexec_fn=lambda kind=kind: resource.setrlimit(kind, (10**8, 10**8))
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"opanatomy: not enough memory: the process may take 100 MB (ulimit {option})")
        assert done.stderr.count("\n") == 1


def test_a_low_limit_is_enough(trace: Path, tmp_path: Path) -> None:
    done = started(
        "analyze",
        str(trace),
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (180 << 20,) * 2),
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "words"), WRONG_USAGE, ids=[" ".join(row[0]) for row in WRONG_USAGE])
def test_wrong_usage_exits_2_with_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert left_in(tmp_path) == []


def configuration(text: str) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        path = folder / "model"
        path.mkdir()
        (path / "config.json").write_text(text)
        return str(path)

    return write


REMOTE = '{"model_type": "mine", "auto_map": {"AutoConfig": "c.Mine"}, "architectures": ["Mine"]}'
BAD_MODELS: list[tuple[str, Callable[[Path], str], list[str], str]] = [
    ("near name", lambda _: "bert-large-uncasd", [], "bert-large-uncased"),
    ("unknown", lambda _: "nobody/nothing-at-all", [], "nobody/nothing-at-all"),
    ("malformed", configuration('{"model_type": "bert", '), [], "config.json"),
    ("no type", configuration("{}"), [], "model_type"),
    ("remote code", configuration(REMOTE), [], "--trust-remote-code"),
    ("too long", lambda _: "bert-base-uncased", ["--seq", "4096"], "512"),
    (
        "odd heads",
        lambda _: "bert-base-uncased",
        ["--set", "num_attention_heads=7", "--layers", "1"],
        "num_attention_heads",
    ),
    ("unknown field", lambda _: "bert-base-uncased", ["--set", "hiden_size=64"], "hidden_size"),
    ("too many layers", lambda _: "bert-base-uncased", ["--layers", "40"], "12"),
    ("no such task", lambda _: "bert-base-uncased", ["--task", "poetry"], "poetry"),
    ("no such type", lambda _: "bert-base-uncased", ["--dtype", "float3"], "float3"),
    ("no such function", lambda _: "os.path:nothing", [], "nothing"),
    ("too large", lambda _: "meta-llama/Llama-3.1-8B", ["--dtype", "float64"], "--layers"),
]


@pytest.mark.parametrize(
    ("make", "options", "words"), [row[1:] for row in BAD_MODELS], ids=[row[0] for row in BAD_MODELS]
)
def test_a_model_that_cannot_run_gets_one_line(
    make: Callable[[Path], str], options: list[str], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    done = run("profile", make(tmp_path), *options, "--device", "cpu", cwd=folder)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    lines = [line for line in done.stderr.splitlines() if "the CPU is the device" not in line]
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    assert left_in(folder) == []


def test_a_folder_that_cannot_be_written_is_found_before_the_run(tmp_path: Path) -> None:
    done = run("profile", "gpt2", "--trace", "missing/t.json.gz", cwd=tmp_path)
    assert done.returncode == 1
    assert "does not exist" in done.stderr
    assert "building" not in done.stderr
    done = run("profile", "gpt2", "--trace", "/proc/t.json.gz", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot write /proc/t.json.gz" in done.stderr
    assert "building" not in done.stderr
    assert left_in(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    process = Fork("profile", "bert-base-uncased", "--device", "cpu", "--layers", "2", cwd=tmp_path)
    while "building" not in process.stderr.read_text():
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    done = process.wait()
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr.strip().splitlines()[-1] == "opanatomy: interrupted; nothing was written"
    assert left_in(tmp_path) == []
