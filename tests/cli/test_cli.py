"""The command line as a process: stdout, stderr and exit code apart."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from opanatomy.__main__ import main
from tests.support.command import Fork, left_in, run, started
from tests.support.made_trace import training_step
from tests.support.paths import ROOT

TINY = (
    "--set", "hidden_size=32", "--set", "num_attention_heads=2", "--set", "intermediate_size=64",
    "--set", "vocab_size=200", "--layers", "2", "--batch", "2", "--seq", "16",
)  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_step().write(tmp_path_factory.mktemp("trace") / "step.json.gz")


def test_help_and_analysis_import_no_torch(trace: Path) -> None:
    code = (
        "import sys; from opanatomy.__main__ import main\n"
        "try: main(sys.argv[2:])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.argv[1].split() if name in sys.modules], file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    slow = "torch transformers rich numpy"
    for heavy, words in (
        (slow, ["--help"]),
        (slow, ["--version"]),
        (slow, ["profile", "--help"]),
        ("torch", ["analyze", str(trace)]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, heavy, *words], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr.strip() == "[]", words
        assert "opanatomy" in done.stdout or "anatomy" in done.stdout


def test_profile_from_end_to_end(tmp_path: Path) -> None:
    words = (*TINY, "--device", "cpu", "--optimizer", "adamw", "--suggest", "0")
    done = run("profile", "bert-base-uncased", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert left_in(tmp_path) == ["bert-base-uncased.trace.json.gz"]
    for words in ("contraction", "normalization", "bert-base-uncased", "ledger"):
        assert words in done.stdout.lower().replace("_", " "), words
    # A run that is quoted in a command is one word.
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("  --run")) <= 80
    assert "running on the CPU" in done.stderr
    assert "opanatomy analyze bert-base-uncased.trace.json.gz" in done.stderr
    # The trace gives the same report, always the same one, and names no host and no folder.
    assert started("analyze", "bert-base-uncased.trace.json.gz", cwd=tmp_path).stdout == done.stdout
    first, second = (run("analyze", "bert-base-uncased.trace.json.gz", "-f", "json", cwd=tmp_path) for _ in range(2))
    assert first.stdout == second.stdout
    report = json.loads(first.stdout)
    assert (report["schema"], report["environment"]["device_kind"]) == (3, "cpu")
    assert report["workload"]["optimizer"] == "adamw"
    assert {*report["work"]["phase"]["values"]} >= {"forward", "backward", "optimizer"}
    text = gzip.decompress((tmp_path / "bert-base-uncased.trace.json.gz").read_bytes())
    assert "host_name" not in json.loads(text)
    assert str(ROOT).encode() not in text


def test_a_report_file_and_overwriting(trace: Path, tmp_path: Path) -> None:
    first = run("analyze", str(trace), "-o", "report.json", cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, "")
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == 3
    again = run("analyze", str(trace), "-o", "report.json", cwd=tmp_path)
    assert again.returncode == 1
    assert "it already exists - add --force" in again.stderr
    assert run("analyze", str(trace), "-o", "report.json", "--force", cwd=tmp_path).returncode == 0
    assert run("analyze", str(trace), "-o", "-", "-f", "csv", cwd=tmp_path).stdout.startswith("operator,")
    assert left_in(tmp_path) == ["report.json"]


def test_a_closed_pipe_is_quiet(trace: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m opanatomy analyze {trace} -f json | head -c 10"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert len(done.stdout) == 10


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


def test_a_limit_of_memory(trace: Path, tmp_path: Path) -> None:
    for kind, size, code, said in (
        (resource.RLIMIT_AS, 10**8, 1, "opanatomy: not enough memory: ulimit -v allows 100 MB"),
        (resource.RLIMIT_DATA, 10**8, 1, "opanatomy: not enough memory: ulimit -d allows 100 MB"),
        (resource.RLIMIT_DATA, 180 << 20, 0, ""),
    ):
        limit = partial(resource.setrlimit, kind, (size, size))
        done = started("analyze", str(trace), cwd=tmp_path, preexec_fn=limit)
        assert (done.returncode, done.stderr.startswith(said), done.stderr.count("\n")) == (code, True, code)


BERT = ("profile", "bert-base-uncased", "--device", "cpu")
WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("profle", "gpt2"), 2, "did you mean 'profile'?"),
    (("gpt2",), 2, "did you mean 'profile gpt2'?"),
    (("step.json.gz",), 2, "did you mean 'analyze step.json.gz'?"),
    (("analyze", ""), 2, "the name of a trace is empty"),
    (("profile", "gpt2", "--bacth", "4"), 2, "unknown --bacth 4 - did you mean --batch?"),
    (("techniques", "gpt2", "--memory"), 2, "unknown --memory - it is an option of profile, run (see "),
    (
        ("analyze", "x.json", "--amp=bf16"),
        2,
        "it is an option of profile, techniques, estimate (see ",
    ),
    (("analyze", "x.json", "--format=json", "--outptu=y"), 2, "unknown --outptu=y - did you mean --output?"),
    (("profile", "--checkpointing", "gpt2"), 2, "put MODEL before the option: opanatomy profile gpt2 --checkpointing"),
    (("profile",), 2, "the following arguments are required: MODEL"),
    (("--full", "analyze", "x.json"), 2, "unknown --full - put it after analyze (see "),
    (("--force", "catalog"), 2, "unknown --force - it is an option of profile, run, analyze, "),
    (
        ("profile", "gpt2", "--for", "-3GB"),
        2,
        "no value after --for - write --for=VALUE if the value begins with a dash",
    ),
    (("profile", "gpt2", "--freeze", "layer:3"), 2, "did you mean layers:3?"),
    (("techniques", "gpt2", "--resume", "--folder", "gone"), 2, "--resume: there is no folder gone to continue"),
    (("techniques", "gpt2", "--folder", "/dev/null"), 2, "--folder /dev/null: it exists already - choose another name"),
    (("analyze", "x.json", "--tables", "/dev/null/t"), 1, "--tables /dev/null/t: cannot write in /dev/null"),
    (("profile", "gpt2", "--trace", "x.txt"), 2, "must end in .json or .json.gz"),
    (("profile", "--model", "gpt2"), 2, "write MODEL without --model"),
    (("profile", "gpt2", "--opt", "adamw"), 2, "did you mean --optimizer?"),
    (("profile", ""), 1, "MODEL is empty"),
    (("profile", "gpt2", "--chart", "pie", "-o", "x.svg"), 2, "--chart pie: profile has no such chart"),
    (("techniques", "gpt2", "--chart", "step", "-o", "x.svg"), 2, "techniques has no such chart"),
    (("run", "--chart", "difference", "-o", "x.svg", __file__), 2, "run has no such chart"),
    (("run", "python", "train.py"), 2, "no script python - leave out python"),
    (("profile", "gpt2", "--for", "80GB", "--memory"), 2, "--for 80GB runs nothing - leave out --memory"),
    (("profile", "gpt2", "--for", "80GB", "--steps", "3"), 2, "leave out --steps 3"),
    (("techniques", "gpt2", "--only", "amp", "--combine", "amp+amp"), 2, "needs two or more techniques"),
    (("estimate", "gpt2", "--on", "H100", "--sweep", "batch=1,2", "--batch", "4"), 2, "leave out --batch 4"),
    (("estimate", "gpt2", "--on", "H100", "--warmup", "5"), 2, "unknown --warmup 5"),
    (("estimate", "gpt2", "--on", "H100", "--layers", "1", "--set", "n_layer=2"), 1, "are different numbers of layers"),
    (("peaks", "--dtype", ""), 2, "--dtype: the name is empty"),
    ((*BERT, "--set", "num_hidden_layers=-1"), 2, "a model needs at least one layer"),
    (("profile", "shown"), 1, "shown is an opanatomy report - to show it: opanatomy analyze shown"),
    (("profile", "gpt2", "-f", "xml"), 2, "unknown - use one of "),
    (("profile", "gpt2", "-o", "report.docx"), 2, "no report format has this file extension"),
    (("profile", "gpt2", "--inference", "--optimizer", "adamw"), 2, "--inference runs no backward"),
    ((*BERT, "--device", "tpu"), 2, "--device tpu: torch has no such device"),
    ((*BERT, "--device", "meta"), 2, "--device meta: steps cannot run on meta"),
    ((*BERT, "-o", ""), 2, "-o: the name is empty"),
    ((*BERT, "--trace", "x.json", "-o", "./x.json"), 2, "this is the trace - choose another name for the report"),
    ((*BERT, "--set", "hidden"), 2, "--set hidden: must have the form key=value"),
    ((*BERT, "--set", "model_type=gpt2"), 2, "choose another MODEL"),
    ((*BERT, "--set", "dtype=float16"), 2, "use --dtype"),
    ((*BERT, "--set", "_attn_implementation=eager"), 2, "use --attention"),
    ((*BERT, "--set", "hiden_size=64"), 2, "did you mean hidden_size"),
    ((*BERT, "--set", "num_attention_heads=7", "--layers", "1"), 1, "num_attention_heads"),
    ((*BERT, "--seq", "4096"), 2, "512"),
    ((*BERT, "--layers", "40"), 2, "12"),
    ((*BERT, "--task", "poetry"), 2, "poetry"),
    (("profile", "bert-large-uncasd", "--device", "cpu"), 1, "bert-large-uncased"),
    (("profile", "nobody/nothing-at-all", "--device", "cpu"), 1, "nobody/nothing-at-all"),
    (("profile", "malformed", "--device", "cpu"), 1, "config.json"),
    (("profile", "untyped", "--device", "cpu"), 1, "model_type"),
    (("profile", "remote", "--device", "cpu"), 1, "--trust-remote-code"),
    (("profile", "os.path:nothing", "--device", "cpu"), 1, "nothing"),
    (("profile", "meta-llama/Llama-3.1-8B", "--dtype", "float64", "--device", "cpu"), 1, "--layers"),
    (("profile", "gpt2", "--trace", "missing/t.json.gz"), 1, "does not exist"),
    (("profile", "gpt2", "--trace", "/proc/t.json.gz"), 1, "cannot write /proc/t.json.gz"),
]
CONFIGURATIONS: Final = {
    "malformed": '{"model_type": "bert", ',
    "untyped": "{}",
    "shown": '{"kind": "anatomy", "schema": 3, "provenance": {}}',
    "remote": '{"model_type": "mine", "auto_map": {"AutoConfig": "c.Mine"}, "architectures": ["Mine"]}',
}


@pytest.mark.parametrize(("words", "code", "said"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_what_cannot_be_done_is_one_line(
    words: tuple[str, ...], code: int, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in CONFIGURATIONS.items():
        if name in words:
            (here / name).mkdir()
            (here / name / "config.json").write_text(text)
    try:
        ended = main(words)
    except SystemExit as error:
        ended = int(str(error.code))
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "running on the CPU" not in line]
    assert (ended, out, len(lines)) == (code, "", 1), err
    assert said in lines[0]
    assert "building" not in lines[0]
    assert [name for name in left_in(here) if name not in CONFIGURATIONS] == []


@pytest.mark.parametrize("verb", ["profile", "techniques", "estimate", "peaks"])
def test_without_torch_a_verb_says_what_to_install(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    words = {"peaks": (), "estimate": ("gpt2", "--on", "H100")}.get(verb, ("gpt2",))
    assert main([verb, *words]) == 1
    out, err = capsys.readouterr()
    said = f"opanatomy: {verb} needs torch, which is not installed - pip install 'opanatomy[capture]' ("
    assert (out, err.startswith(said), err.count("\n")) == ("", True, 1)


@pytest.mark.parametrize("file", ["torch.py", "torch/__init__.py"])
def test_a_torch_that_cannot_be_imported_is_named(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    code = "import sys; from opanatomy.__main__ import main; sys.exit(main(['profile', 'gpt2']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "opanatomy: torch cannot be imported: OSError: libcudart.so.12: cannot open shared object file"
        " - check it with python -c 'import torch'\n",
    )


@pytest.mark.parametrize("words", [("techniques", "gpt2"), ("estimate", "gpt2", "--on", "H100")])
def test_a_torch_that_a_worker_cannot_import_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('broken')")
    code = f"import sys; from opanatomy.__main__ import main; sys.exit(main({list(words)}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = "opanatomy: torch cannot be imported: RuntimeError: broken - check it with python -c 'import torch'\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_an_estimate_in_a_script_runs_the_script_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    sizes = "n_layer=1, n_embd=32, n_head=2, vocab_size=64"
    settings = [tuple(pair.split("=")) for pair in sizes.split(", ")]
    made = f"opanatomy.estimate('gpt2', on='H100', batch=1, seq=16, settings={settings!r})"
    script.write_text(f"import opanatomy\nprint('once')\nprint({made})\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    first, second = done.stdout.splitlines()
    assert (first, second.startswith("<Anatomy of openai-community/gpt2"), done.stderr) == ("once", True, "")


def test_without_torch_techniques_are_listed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers')); from opanatomy.__main__ import main;"
        "sys.exit(main(['techniques', '--list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "--checkpointing" in done.stdout) == (0, True), done.stderr
