"""The command line: every verb, option and default, as a parser that imports nothing slow."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from typing import Any, NoReturn

from opanatomy.commands.stdout import write_out
from opanatomy.report.formats import format_names
from opanatomy.version import __version__

EXAMPLES = """examples:
  opanatomy profile google-bert/bert-large-uncased --batch 4
  opanatomy profile gpt2 --amp bf16 --optimizer adamw -o gpt2.json
  opanatomy profile meta-llama/Llama-3.1-8B --layers 2 --checkpointing
  opanatomy analyze trace.json.gz --trace annotated.json.gz
  opanatomy analyze ranks/ -f json

exit codes: 0 done, 1 failed, 2 wrong usage, 3 a gate was not met, 130 interrupted"""

VERBS = ("profile", "analyze", "explain", "ceilings")
#: What `--checkpointing` takes.
KINDS = ("non-reentrant", "reentrant")


class ParserExit(SystemExit):
    """The parser is done: help or the version is printed, or the complaint."""

    code: int


class Parser(argparse.ArgumentParser):
    """`argparse` whose complaint is one line that names the nearest right word; options are written in full."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Complain of what is not known where the options of the verb are."""
        found, others = super().parse_known_args(args, namespace)
        if others:
            self.error(f"unknown {' '.join(others)}{self._near_option(others)}")
        return found, others

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help and version; unlike argparse's own, a stdout that takes nothing is not kept quiet."""
        if file is sys.stdout:
            write_out(message, machine_readable=False)
        else:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Leave, with `message` on stderr."""
        if message:
            self._print_message(message, sys.stderr)
        raise ParserExit(status)

    def error(self, message: str) -> NoReturn:
        """Exit 2 with `message` on stderr."""
        match = re.search(r"argument (\S+): invalid choice: '([^']*)'", message)
        if match and match[1] == "VERB":
            message = f"no command {match[2]!r}{_near_verb(match[2])}"
        elif match and match[1] == "--checkpointing":
            message = (
                f"--checkpointing {match[2]}: no such kind, one of {', '.join(KINDS)} - MODEL goes before it:"
                f" {self.prog} {match[2]} --checkpointing"
            )
        from opanatomy.redaction.texts import spoken

        line = "".join(character if character.isprintable() else " " for character in spoken(message))
        self.exit(2, f"{self.prog}: {line} (see {self.prog} --help)\n")

    def _near_option(self, others: list[str]) -> str:
        wrong = next((word.partition("=")[0] for word in others if word.startswith("-")), None)
        if wrong is None:
            return ""
        near = difflib.get_close_matches(wrong, self._option_string_actions, n=1, cutoff=0.6)
        return f" - did you mean {near[0]}?" if near else ""


def _near_verb(word: str) -> str:
    near = difflib.get_close_matches(word, VERBS, n=1, cutoff=0.5)
    if near:
        return f" - did you mean '{near[0]}'?"
    if word.endswith((".json", ".json.gz", ".zip")) and not word.endswith("config.json"):
        return f" - did you mean 'analyze {word}'?"
    if word[:1].isalpha() or word[:1] in "./~":
        return f" - did you mean 'profile {word}'?"
    return f" - the first word is one of {', '.join(VERBS)}"


def make_parser() -> argparse.ArgumentParser:
    """The parser of `opanatomy`."""
    parser = Parser(
        prog="opanatomy",
        description="See where a training step's time, arithmetic, data movement and memory go.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"opanatomy {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    _add_profile(verbs)
    _add_analyze(verbs)
    _add_explain(verbs)
    _add_ceilings(verbs)
    return parser


def _add_profile(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "profile",
        help="run one forward and backward pass of a model and report",
        description="Run one forward and backward pass under torch.profiler and report its anatomy.",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="catalog name, Hub id, local folder, config.json, or package.module:function"
    )
    _add_batch(parser.add_argument_group("the batch"))
    _add_model(parser.add_argument_group("the model"))
    _add_step(parser.add_argument_group("the step"))
    _add_output(parser.add_argument_group("the report"))
    _add_limits(parser.add_argument_group("the device's ceilings"))
    trace = parser.add_argument_group("the trace")
    trace.add_argument(
        "--trace",
        metavar="FILE",
        help="file or folder for the Chrome trace (default: MODEL.trace.json.gz, counting up)",
    )
    trace.add_argument("--no-trace", action="store_true", help="keep no trace, only the report")


def _add_batch(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--batch", type=int, metavar="N", help="samples in the batch (default: 8)")
    group.add_argument("--seq", type=int, metavar="N", help="sequence length (default: 512, or the model's own)")
    group.add_argument("--task", metavar="TASK", help="task head, instead of the configuration's architecture")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and batch (default: 0)")


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--layers", type=int, metavar="N", help="keep N layers")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a configuration field (repeatable)",
    )
    group.add_argument("--dtype", default="float32", metavar="TYPE", help="float32, bfloat16, float16, float64")
    group.add_argument("--attention", metavar="NAME", help="eager, sdpa, flash_attention_2, ...")
    group.add_argument("--weights", choices=("random", "pretrained"), default="random", help="(default: random)")
    group.add_argument("--hub", action="store_true", help="ask the Hub even for a name in the catalog")
    group.add_argument("--trust-remote-code", action="store_true", help="run code that the model's repository brings")


def _add_step(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda, cuda:N (default: auto)")
    group.add_argument("--amp", choices=("bf16", "fp16", "bfloat16", "float16"), help="automatic mixed precision")
    group.add_argument(
        "--checkpointing", nargs="?", const="non-reentrant", choices=KINDS, metavar="KIND",
        help="recompute activations in backward; KIND is non-reentrant (the default) or reentrant",
    )  # fmt: skip
    group.add_argument("--compile", action="store_true", help="torch.compile the model")
    group.add_argument("--optimizer", metavar="NAME", help="also step an optimizer: adamw, adam, sgd, adafactor, ...")
    group.add_argument("--inference", action="store_true", help="forward only, in eval mode without gradients")
    group.add_argument("--memory", action="store_true", help="follow the memory of one more step, block by block")
    group.add_argument("--check", action="store_true", help="exit 3 where a second count does not agree")
    group.add_argument("--steps", type=int, default=1, metavar="N", help="profiled steps (default: 1)")
    group.add_argument("--warmup", type=int, metavar="N", help="steps before (default: 1 on the CPU, 3 on a GPU)")


def _add_analyze(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "analyze",
        help="report on torch.profiler traces",
        description="Report the anatomy of the steps in a torch.profiler trace (.json or .json.gz), or of the ranks of"
        " one run in several traces, a folder or a zip.",
    )
    parser.add_argument(
        "trace", metavar="TRACE", nargs="+", help="a trace, - for stdin; several, a folder or a zip: one for each rank"
    )
    parser.add_argument(
        "--phase", action="append", default=[], metavar="PHASE=REGEX",
        help="what runs in the trace's own ranges whose name fits is of this phase (forward, backward, recompute,"
        " optimizer, other), innermost first; repeatable",
    )  # fmt: skip
    _add_output(parser.add_argument_group("the report"))
    _add_limits(parser.add_argument_group("the device's ceilings"))
    parser.add_argument("--check", action="store_true", help="exit 3 where a second source does not agree")
    trace = parser.add_argument_group("the annotated trace")
    trace.add_argument(
        "--trace",
        dest="annotated",
        metavar="FILE",
        help="file or folder to write the trace back to, with classes, phases and rates in it",
    )


def _add_explain(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "explain",
        help="say how an operator or kernel is classed and counted",
        description="Print the class of an operator or kernel name, the rule that decided, and its formula.",
    )
    parser.add_argument(
        "name", metavar="OPERATOR-OR-KERNEL", nargs="*", help="such as aten::addmm or ampere_sgemm_128x64_nn"
    )
    parser.add_argument("--report", metavar="REPORT", help="a JSON report, to work the formula on its shapes")
    parser.add_argument("--unknown", metavar="REPORT", help="list what a JSON report could not class or count")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _or(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-o", "--output", metavar="FILE", help="report file, format by its ending; or a folder; - is stdout"
    )
    group.add_argument("-f", "--format", metavar="FORMAT", help=_or(format_names()))
    group.add_argument(
        "--redact",
        action="store_true",
        help="leave paths, call stacks, argument strings, hosts and users out of the report and the trace",
    )
    group.add_argument("--force", action="store_true", help="overwrite existing files")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--peak", metavar="RATE", help="peak FLOP/s, instead of the known: 312T, or bf16=312T,fp32=19.5T"
    )
    group.add_argument("--bandwidth", metavar="RATE", help="bandwidth in bytes/s, instead of the known: 2.04T, 900G")


def _add_ceilings(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "ceilings",
        help="measure this device's peak matrix rates and bandwidth",
        description="Measure the dense peak FLOP/s of each data type and the bandwidth of the device at hand, keep them"
        " in the user's cache folder, and print them beside the data sheet.",
    )
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda, cuda:N (default: auto)")
    parser.add_argument("--dtype", metavar="TYPES", help="only these data types, such as float32,bf16")
    parser.add_argument("--peak", metavar="RATE", help="take this for the peak: 312T, or bf16=312T,fp32=19.5T")
    parser.add_argument("--bandwidth", metavar="RATE", help="take this for the bandwidth: 2.04T, 900G")
    parser.add_argument("-f", "--format", default="terminal", metavar="FORMAT", help="terminal or json")
    parser.add_argument("--refresh", action="store_true", help="measure again what is kept")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
