"""Check that two checkouts say the same of the same traces: the oracle of a refactoring that keeps every figure.

    python benchmarks/oracle.py --old DIR [--new DIR] [--traces DIR ...] [--captures DIR] [--fresh] [--renamed FILE]

`--new` is the changed checkout, by default the one of this file. Nothing of opanatomy is imported here: each side is a
process that runs `python -m opanatomy ...` as forks of itself, both at the same time. Compared are

- the traces in `tests/traces` of the old checkout and below each folder of `--traces`, one by one, the ranks of a run
  together as well, and the pairs in `PAIRS`: as JSON key by key, and as text in each of `FORMATS`;
- with `--captures` the same of what the old checkout captured into that folder: traces, reports, an experiment. An
  empty folder is filled first, `--make-captures` makes all anew;
- with `--fresh` the JSON reports of small models that both checkouts capture now, but for times (`TIMES`, `VARYING`).

What differs on purpose stands in `RENAMED` or in the JSON list of `--renamed`: [old key, new key, reason] for a renamed
key, [key, null, reason] for one that is dropped or new, [/regex, null, reason] for lines that no text is compared by.
`[]` stands for all elements of a list, and a row holds for all below its key. Texts are `equal`, or `words` differ and
all numbers stand in the same order with their units, or `NUMBERS` differ; the count is of changed lines. The text of a
command that fails is its exit code and its line on stderr. `--out` keeps all outputs and diffs. The exit code is 1
where JSON differs outside of the table, or numbers in a text do.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from measure import ROOT, print_table

#: Old key, new key, reason.
Row = tuple[str, str | None, str]
#: A key of the JSON, what the old report has there and what the new one has.
Change = tuple[str, Any, Any]

#: What may differ; `--renamed` adds to it.
RENAMED: list[Row] = [
    ("provenance.opanatomy", None, "the version of the checkout"),
    ("/^- opanatomy: ", None, "the same in the digest"),
    ("created", None, "when the report of an experiment was written"),
    ("guides", None, "what the guides claim is text in docs/techniques.md"),
    ("schema", None, "3: the work stands once"),
    ("comparison_schema", None, "the same"),
    *(
        (key, None, "kept five times, or once as work; the pages and the CSV have the tables")
        for key in (
            "kind",
            "work",
            "theory",
            "step_kinds",
            "classes",
            "ratios",
            "operators",
            "kernels",
            "modules",
            "breakdown",
        )
    ),
    ("checks", None, "three checks that found nothing in damaged traces went"),
    *(
        (f"{step}.{phase}_ns", f"{step}.phase_ns.{phase}", "a phase is a key")
        for step in ("step", "step.steps[]", "breakdown.kinds[].steps[]")
        for phase in ("forward", "backward", "optimizer", "prefill", "decoding")
    ),
]
#: What differs from one capture to the next besides `TIMES`, by its new key.
VARYING: list[Row] = [
    ("provenance.created", None, "when it was captured"),
    ("provenance.trace_sha256", None, "the trace has times in it"),
    ("ranks[].trace_sha256", None, "the same"),
    ("ratios[].time", None, "a ratio of times"),
    ("step.unprofiled_count", None, "steps with a pause in them are left out"),
    ("spread[].max_rank", None, "which rank is slowest"),
    ("spread[].max_trace", None, "the same"),
    ("waiting.straggler", None, "the same"),
    ("waiting.no_straggler", None, "the same"),
    ("waiting.clocks", None, "how far clocks seem to be apart"),
    ("breakdown.kinds[].rows", None, "places of names that are in the order of their times"),
    ("memory.process_peak_bytes", None, "of the process, not of torch's allocator"),
    ("memory.peak_bytes", None, "the same without --memory; else it is memory.allocator_peak_bytes"),
    ("memory.timeline", None, "a curve whose points are chosen by their times"),
    ("suggestions", None, "chosen by predicted times; the experiment of the captures has the predictions"),
]
#: Keys, on any level, of what is a time or made of times: durations, dates, rates, shares of time.
TIMES = re.compile(r"_(ns|s|per_second|rate|ratio|share)$|^rss_bytes$|busy|utilization|^(headroom|mfu|hfu|achieved)")
#: A number in a text, with the unit behind it and what says that it is a bound.
FIGURE = re.compile(
    r"(?:(?<!\w)[-+])?(?:[≥<>~] ?)?\d+(?:[,.]\d+)*(?:e[-+]?\d+)?"
    r"(?: ?(?:%|pp|ns|us|ms|s|min|h|[kMGTPE]?i?(?:B|FLOP)(?:/s|/B)?|[kMGTPE])(?!\w))?"
)
ABSENT = "(absent)"
#: How many differing keys, and lines of a diff, are printed.
SHOWN = 12

FORMATS = {
    "json": "-f json",
    "page": "",
    "brief": "--brief",
    "markdown": "-f markdown",
    "csv": "-f csv",
    "digest": "-f digest",
}
#: Sides to compare, by the ends of their paths.
PAIRS = (
    ("/bert_cpu.json.gz", "/bert_checkpointing_amp_cpu.json.gz"),
    ("/gpu_v100_dlrm_rank0of8.json.gz", "/gpu_v100_dlrm_rank1of8.json.gz"),
    ("/gpu_mi300_compiled.json.gz", "/gpu_mi300_compiled.json.gz"),
    ("gpt_rank0of8_before.json.gz", "gpt_rank0of8_after.json.gz"),
    ("_a2a_plain", "_a2a_quantized"),
    ("/launches_no_kernels_a.json.gz", "/launches_no_kernels_b.json.gz"),
    ("/infer_h100_qwen1.5_0.5b.json.gz", "/infer_mi300_qwen1.5_0.5b.json.gz"),
    ("_resnet50_schema2021.json.gz", "_resnet50_schema2021_bare_array.json.gz"),
    ("/bert-ddp.report.json", "/bert-fsdp2.report.json"),
    *((f"/{model}-{one}.report.json", f"/{model}-{other}.{kind}.json{packed}")
      for model in ("bert", "gpt2", "llama")
      for one, other, kind, packed in (("eager", "sdpa", "report", ""), ("sdpa", "checkpointing", "trace", ".gz"),
                                       ("sdpa", "amp", "report", ""), ("accumulation", "memory", "report", ""))),
)  # fmt: skip

ENCODER = "num_hidden_layers=2 hidden_size=32 num_attention_heads=2 intermediate_size=64 vocab_size=160"
#: Small models: name, and what is set of its configuration.
MODELS = {
    "bert": ("google-bert/bert-base-uncased", f"{ENCODER} max_position_embeddings=64"),
    "gpt2": (
        "openai-community/gpt2",
        "n_layer=2 n_embd=32 n_head=2 n_positions=64 vocab_size=160 bos_token_id=1 eos_token_id=1",
    ),
    "llama": ("meta-llama/Llama-3.1-8B", f"{ENCODER} num_key_value_heads=1 head_dim=16 bos_token_id=1 eos_token_id=2"),
}
#: The options of each run of them, and of the runs of BERT on two ranks.
RUNS = {
    "eager": "--attention eager",
    "sdpa": "--attention sdpa --optimizer adamw",
    "checkpointing": "--checkpointing",
    "amp": "--amp bf16",
    "accumulation": "--batch 4 --accumulate 2 --optimizer sgd",
    "memory": "--memory --optimizer adamw --suggest 60",
    "steps": "--optimizer sgd --steps 3",
}
ON_RANKS = {"ddp": "--optimizer adamw", "ddp-memory": "--optimizer adamw --memory", "fsdp2": "--parallel fsdp2"}
#: Runs that differ from one capture to the next; so does the experiment.
NOT_FRESH = {
    "steps": "one with a pause in it is set aside",
    "ddp-memory": "what threads of gloo free is seen or not",
}
EXPERIMENT = "--batch 2 --only sdpa,amp,checkpointing --repetitions 2 --loss-steps 2 --folder techniques"


class Job(NamedTuple):
    """What `python -m MODULE WORDS` prints, run in the folder of the file that it goes to."""

    words: Sequence[str]
    output: str
    module: str = "opanatomy"


class Case(NamedTuple):
    """A command that is run once in each format; `copied` is a folder that it changes."""

    name: str
    words: Sequence[str]
    formats: Sequence[str] = tuple(FORMATS)
    copied: Path | None = None


# ------------------------------------------------------------------------------------------------- running a checkout


def run_jobs(checkouts: Sequence[Path], jobs: Sequence[Sequence[Job]], scratch: Path, *modules: str) -> None:
    """Run the jobs of each checkout one after the other, the checkouts side by side; `modules` are imported before."""
    processes = []
    for side, (checkout, own) in enumerate(zip(checkouts, jobs, strict=True)):
        orders = scratch / f"jobs{side}.json"
        orders.write_text(json.dumps(own))
        environment = {
            "PYTHONPATH": str(checkout),
            "COLUMNS": "100",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(scratch / f"cache{side}"),
        }
        command = [sys.executable, __file__, "--serve", str(orders), str(checkout), *modules]
        processes.append(subprocess.Popen(command, env=os.environ | environment))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("a checkout could not be run")


def serve(orders: str, checkout: str, *modules: str) -> None:
    """Run each job as a fork, and import what it has imported of opanatomy for the next ones."""
    sys.path.pop(0)  # this folder, where files are called as modules of others are
    for name in ("opanatomy", *modules):
        import_module(name)
    if not Path(str(sys.modules["opanatomy"].__file__)).resolve().is_relative_to(checkout):
        raise SystemExit(f"{sys.modules['opanatomy'].__file__} is imported, which is not in {checkout}")
    for job in json.loads(Path(orders).read_bytes()):
        output = Path(job[1])
        said, imported = output.with_name(f"{output.name}.said"), output.with_name(f"{output.name}.imported")
        child = os.fork()
        if not child:
            become(Job(*job), said, imported)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            output.write_text(f"{output.read_text()}exit code {code}: {said.read_text()}")
        for name in imported.read_text().split() if imported.exists() else ():
            with suppress(ImportError):
                import_module(name)
        imported.unlink(missing_ok=True)


def become(job: Job, said: Path, imported: Path) -> None:
    """Run the job in this process and end it; write down what it imported of opanatomy."""
    os.chdir(Path(job.output).parent)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, file in ((1, job.output), (2, said)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    sys.argv = [job.module, *job.words]
    try:
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
    finally:
        imported.write_text("\n".join(name for name in list(sys.modules) if re.match(r"opanatomy\.(?!__main__)", name)))
    sys.exit()


# ------------------------------------------------------------------------------------------------- captures and cases


def make_captures(checkouts: Sequence[Path], folders: Sequence[Path], scratch: Path, *, fresh: bool = False) -> None:
    """Capture the small models with each checkout into its folder, with `fresh` those that come out the same again."""
    jobs: list[list[Job]] = [[] for _ in checkouts]
    for folder, own in zip(folders, jobs, strict=True):
        folder.mkdir(parents=True)
        for name, (model, settings) in MODELS.items():
            small = [model, "--seq=16", *(f"--set={setting}" for setting in settings.split())]
            for run, options in (RUNS | (ON_RANKS if name == "bert" else {})).items():
                if fresh and run in NOT_FRESH:
                    continue
                stem = f"{name}-{run}"
                words = ["profile", *small, "--batch=2", "--suggest=0", *options.split()]
                words += ["--trace", f"{stem}.trace.json.gz", "-o", f"{stem}.report.json"]
                job = Job(words, str(folder / f"{stem}.log"))
                if run in ON_RANKS:
                    words[:0] = ["--standalone", "--nproc-per-node=2", "-m", "opanatomy"]
                    job = job._replace(module="torch.distributed.run")
                own.append(job)
            if name == "bert" and not fresh:
                words = ["techniques", *small, *EXPERIMENT.split()]
                own.append(Job([*words, "-o", "techniques.json"], str(folder / "techniques.log")))
                (folder / "techniques.words").write_text("\n".join([*words, "--resume"]))
    run_jobs(checkouts, jobs, scratch, "torch", "transformers")
    for job in (job for own in jobs for job in own):
        if "exit code" in (log := Path(job.output).read_text()):
            raise SystemExit(f"{job.output}: {log}")


def cases_below(folder: Path) -> Iterator[Case]:
    """List each trace and report below a folder, the ranks of each run together, and the experiment in it."""
    files = [file for file in sorted(folder.rglob("*")) if file.name.endswith((".json.gz", ".report.json"))]
    runs = defaultdict(list)
    for file in files:
        yield Case("/".join(file.parts[-3:]), ("analyze", str(file)))
        runs[file.with_name(re.sub(r"rank-?\d+", "RANKS", file.name))].append(str(file))
    for name, ranks in runs.items():
        if len(ranks) > 1:
            whole = len(ranks) == len(list(name.parent.iterdir()))
            yield Case("/".join(name.parts[-3:]), ("analyze", str(name.parent)) if whole else ("analyze", *ranks))
    if (words := folder / "techniques.words").exists():
        yield Case("techniques --resume", words.read_text().split("\n"), ("json", "page"), folder / "techniques")


def pairs_among(cases: Sequence[Case]) -> Iterator[Case]:
    """List the comparisons in `PAIRS` whose sides are among the cases."""
    paths = [case.words[1] for case in cases if len(case.words) == 2]
    for pair in PAIRS:
        sides = [next((path for path in paths if path.endswith(end)), "") for end in pair]
        if all(sides):
            name = " : ".join(Path(side).name.removesuffix(".gz").removesuffix(".json") for side in sides)
            yield Case(name, ("compare", *sides), [name for name in FORMATS if name != "brief"])


def outputs_of(checkouts: Sequence[Path], cases: Sequence[Case], scratch: Path) -> dict[tuple[str, str], list[str]]:
    """Run all cases with each checkout; give what each printed by case and format."""
    jobs: list[list[Job]] = [[] for _ in checkouts]
    for side, own in enumerate(jobs):
        for case in cases:
            folder = scratch / f"side{side}" / re.sub(r"[/ :]+", "_", case.name)
            folder.mkdir(parents=True)
            if case.copied:
                shutil.copytree(case.copied, folder / case.copied.name)
            own += [Job([*case.words, *FORMATS[name].split()], str(folder / name)) for name in case.formats]
    run_jobs(checkouts, jobs, scratch)
    keys = [(case.name, name) for case in cases for name in case.formats]
    return {key: [Path(job.output).read_text() for job in both] for key, *both in zip(keys, *jobs, strict=True)}


# ------------------------------------------------------------------------------------------------------------ comparing


def changes_in_json(texts: Sequence[str], table: Sequence[Row], *, fresh: bool = False) -> list[Change]:
    """Find where two JSON reports differ outside of the table; with `fresh` the rows that only one of them has."""
    try:
        old, new = (dict(leaves(json.loads(text))) for text in texts)
    except ValueError:
        return [] if texts[0] == texts[1] else [("(no JSON)", texts[0], texts[1])]
    old, new = renamed(old, table), renamed(new, [row for row in table if row[1] is None])
    if fresh:
        return changed_rows(*(rows_of(values) for values in (old, new)))
    both = ((path, old.get(path, ABSENT), new.get(path, ABSENT)) for path in old | new)
    return [(path, one, other) for path, one, other in both if json.dumps(one) != json.dumps(other)]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give each value that holds no others with its path: `operators[3].time_ns`."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
    elif isinstance(value, list):
        parts = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    if not parts:
        yield path, value
    for part, item in parts:
        yield from leaves(item, part)


def renamed(values: Mapping[str, Any], table: Sequence[Row]) -> dict[str, Any]:
    """Give the values their new paths, and leave out those that the table leaves out."""
    for key, name, _ in table:
        pattern = re.compile(re.escape(key).replace(r"\[\]", r"\[(\d+)\]") + r"(?=[.\[]|$)")
        matches = {path: match for path in values if (match := pattern.match(path))}
        if name is None:
            values = {path: value for path, value in values.items() if path not in matches}
        else:
            form = name.replace("[]", "[{}]")
            paths = {path: form.format(*match.groups()) + path[match.end() :] for path, match in matches.items()}
            values = {paths.get(path, path): value for path, value in values.items()}
    return dict(values)


def rows_of(values: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    """Count each row of each table without its times; the order of rows may be one by times."""
    rows: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for path, value in values.items():
        if not any(map(TIMES.search, re.split(r"[.\[\]]+", path))):
            match = re.fullmatch(r"(.*\])(\..*|\[\d+\])", path)
            row, column = match.groups() if match else (path, "")
            rows[row][column] = value
    return Counter((re.sub(r"\[\d+\]", "[]", row), json.dumps(cells, sort_keys=True)) for row, cells in rows.items())


def changed_rows(old: Counter[tuple[str, str]], new: Counter[tuple[str, str]]) -> list[Change]:
    """Put the rows that only one side has next to those that only the other has."""
    changes: list[Change] = []
    for table in sorted({table for table, _ in (old - new) + (new - old)}):
        sides = ([row for name, row in sorted(side.elements()) if name == table] for side in (old - new, new - old))
        changes += [(table, one, other) for one, other in zip_longest(*sides, fillvalue=ABSENT)]
    return changes


def verdict_on(texts: Sequence[str], table: Sequence[Row]) -> tuple[str, list[str]]:
    """Give `equal`, or `words` or `NUMBERS` with the count of differing lines, and the unified diff."""
    left_out = [re.compile(key[1:]) for key, _, _ in table if key.startswith("/")]
    old, new = ([line for line in text.splitlines() if not any(out.search(line) for out in left_out)] for text in texts)
    diff = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    if not diff:
        return "equal", []
    same = FIGURE.findall("\n".join(old)) == FIGURE.findall("\n".join(new))
    return f"{'words' if same else 'NUMBERS'} {sum(line[0] in '+-' for line in diff)}", diff


# ------------------------------------------------------------------------------------------------------------- printing


def compare(checkouts: Sequence[Path], cases: Sequence[Case], table: Sequence[Row], scratch: Path) -> bool:
    """Print where the checkouts differ; return whether all figures are equal."""
    outputs = outputs_of(checkouts, cases, scratch)
    rows, changes = [], []
    first: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for case in cases:
        cells = dict.fromkeys(FORMATS, "-")
        for name in case.formats:
            texts = outputs[case.name, name]
            if name == "json":
                own = changes_in_json(texts, table)
                changes += [(case.name, *change) for change in own]
                cells[name] = f"{len(own)} keys" if own else "equal"
                continue
            cells[name], diff = verdict_on(texts, table)
            if diff:
                (scratch / "side1" / re.sub(r"[/ :]+", "_", case.name) / f"{name}.diff").write_text("\n".join(diff))
                first.setdefault((name, cells[name].split()[0]), (case.name, diff))
        rows.append((case.name, *cells.values()))
    print_table(("", *FORMATS), rows)
    print_changes(changes)
    for (name, verdict), (case_name, diff) in first.items():
        print(f"{name}: the first where {verdict} differ is {case_name}", *diff[:SHOWN], sep="\n  ")
    return not changes and not any(verdict == "NUMBERS" for _, verdict in first)


def compare_fresh(checkouts: Sequence[Path], table: Sequence[Row], scratch: Path) -> bool:
    """Do the same with the reports of captures that both make now."""
    folders = [scratch / f"fresh{side}" for side in range(2)]
    make_captures(checkouts, folders, scratch, fresh=True)
    rows, changes = [], []
    for name in sorted({file.name for folder in folders for file in folder.glob("*.report.json")}):
        texts = [file.read_text() if (file := folder / name).exists() else ABSENT for folder in folders]
        own = changes_in_json(texts, [*table, *VARYING], fresh=True)
        changes += [(name, *change) for change in own]
        rows.append((f"fresh {name}", f"{len(own)} rows" if own else "equal"))
    print_table(("", "json"), rows)
    print_changes(changes)
    return not changes


def print_changes(changes: Sequence[tuple[str, str, Any, Any]]) -> None:
    """Print each key that differs: how often, in how many reports, and the first with both values."""
    by_key = defaultdict(list)
    for change in changes:
        by_key[re.sub(r"\[\d+\]", "[]", change[1])].append(change)
    for key, own in list(by_key.items())[:SHOWN]:
        case_name, path, old, new = own[0]
        print(f"{key}: {len(own)} in {len({change[0] for change in own})} reports, the first {case_name} {path}:")
        print(f"  {json.dumps(old)[:300]} -> {json.dumps(new)[:300]}")
    if len(by_key) > SHOWN:
        print("and", ", ".join(f"{key}: {len(own)}" for key, own in list(by_key.items())[SHOWN:]))


def main() -> int:
    """Run the comparison; return the exit code."""
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="the checkout to keep to")
    parser.add_argument("--new", type=Path, default=ROOT, help="the changed checkout (default: this one)")
    parser.add_argument("--traces", type=Path, nargs="+", action="extend", default=[], help="folders of traces")
    parser.add_argument("--captures", type=Path, help="the folder of the old checkout's captures")
    parser.add_argument("--make-captures", action="store_true", help="make these anew")
    parser.add_argument("--fresh", action="store_true", help="compare captures that both checkouts make now, too")
    parser.add_argument("--renamed", type=Path, help="a JSON list of [old key, new key or null, reason]")
    parser.add_argument("--out", type=Path, help="a new folder to keep outputs and diffs in")
    arguments = parser.parse_args()
    table = [*RENAMED, *(json.loads(arguments.renamed.read_bytes()) if arguments.renamed else ())]
    checkouts = [arguments.old.resolve(), arguments.new.resolve()]
    folders = [checkouts[0] / "tests" / "traces", *(folder.resolve() for folder in arguments.traces)]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = (arguments.out or Path(temporary)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        if arguments.captures:
            captures = arguments.captures.resolve()
            folders.append(captures)
            if arguments.make_captures or not captures.exists() or not any(captures.iterdir()):
                make_captures(checkouts[:1], [scratch / "captures"], scratch)
                shutil.copytree(scratch / "captures", captures, dirs_exist_ok=True)
                print(f"captures made after {time.monotonic() - begin:.0f} s\n")
        cases = [case for folder in folders for case in cases_below(folder)]
        equal = compare(checkouts, [*cases, *pairs_among(cases)], table, scratch)
        print(f"{len(cases)} traces, runs and reports compared after {time.monotonic() - begin:.0f} s\n")
        if arguments.fresh:
            equal &= compare_fresh(checkouts, table, scratch)
            print(f"all compared after {time.monotonic() - begin:.0f} s")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
