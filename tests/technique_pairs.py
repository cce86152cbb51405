"""One technique on one tiny model: its step followed, then run, in a process that begins with torch alone.

The techniques of a model take turns in one process: an experiment begins one for each, as in `test_techniques.py`.
"""

from __future__ import annotations

from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError
from opanatomy.options import RunOptions
from opanatomy.predict import workers
from opanatomy.predict.techniques import BASELINE, Situation, Variant, variants_of
from opanatomy.records.experiment import Sameness, SimulatedStep, StepFigures
from opanatomy.records.memory import Memory

MODELS = {
    "bert": "google-bert/bert-base-uncased", "gpt2": "openai-community/gpt2", "t5": "google-t5/t5-base",
    "vit": "google/vit-base-patch16-224",
}  # fmt: skip
LAYERS = 2
#: Large enough that no single small buffer is 2 % of the peak.
_OF_LIKE = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256, "num_hidden_layers": LAYERS}
SETTINGS: dict[str, dict[str, int]] = {
    "bert": {**_OF_LIKE, "vocab_size": 300, "max_position_embeddings": 64},
    "gpt2": {
        "n_layer": LAYERS, "n_embd": 64, "n_head": 2, "vocab_size": 300, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "t5": {"num_layers": LAYERS, "d_model": 64, "d_kv": 32, "d_ff": 256, "num_heads": 2, "vocab_size": 300},
    "vit": {**_OF_LIKE, "image_size": 32, "patch_size": 8, "num_labels": 10},
}  # fmt: skip
BATCH, LENGTH = 4, 16


class Pair(Struct, frozen=True, kw_only=True):
    """A technique on a model: the step that was followed, or why it cannot be, and the one that was run, or why not."""

    followed: SimulatedStep | None = None
    not_followed: str | None = None
    failed: str | None = None
    measured: StepFigures | None = None
    memory: Memory | None = None
    #: None where the training need not be the same.
    sameness: Sameness | None = None


def options_of(model: str) -> RunOptions:
    """The baseline of a model: AdamW, float32."""
    settings = tuple((key, str(value)) for key, value in SETTINGS[model].items())
    length = None if model == "vit" else LENGTH
    return RunOptions(
        model=MODELS[model], settings=settings, batch=BATCH, seq=length, device="cpu", optimizer="adamw", memory=True,
        check=False, steps=1, warmup=1,
    )  # fmt: skip


@cache
def variants(model: str) -> dict[str, Variant]:
    """The baseline and every technique on a model, by name."""
    situation = Situation(
        options=options_of(model), batch=BATCH, layers=LAYERS, attention="sdpa", on_cpu=True,
    )  # fmt: skip
    return {variant.name: variant for variant in variants_of(situation)}


def pair_of(model: str, technique: str, kept: Path | None) -> Pair:
    """A technique on a model, its result held against that of the baseline in `kept` where it must be the same."""
    variant = variants(model)[technique]
    assert variant.impossible is None, variant.impossible
    compared = kept if variant.keeps_result and technique != BASELINE else None
    process = _process(model)
    process.send((variant.options, compared, kept if technique == BASELINE else None))
    answer = process.recv()
    assert isinstance(answer, Pair), answer
    return answer


@cache
def _process(model: str) -> Connection:
    """The process of a model; it ends with this one."""
    context = workers._context()
    ours, theirs = context.Pipe()
    context.Process(target=_serve, args=(theirs,), daemon=True).start()
    theirs.close()
    return ours


def _serve(connection: Connection) -> None:
    """Answer each run that is asked for with its pair, or with what went wrong."""
    while True:
        asked = connection.recv()
        try:
            answer: Pair | str = _run(*asked)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        connection.send(answer)


def _run(options: RunOptions, compared: Path | None, keep: Path | None) -> Pair:
    from opanatomy.capture.run import export, step_runner, unprofiled

    # Nothing is asked of times, nor that torch sums them up.
    step_runner._TIMED_STEPS = 1  # type: ignore[misc]
    export.profiler_times_ns = lambda profiler, *, on_device: {}
    pair = _measured(options, _followed(options))
    if keep is not None:
        loss = unprofiled.keep_outcome(options, keep)
        keep.with_suffix(".loss").write_text(str(loss))
    if compared is not None and pair.failed is None:
        loss = float(compared.with_suffix(".loss").read_text())
        pair = replace(pair, sameness=unprofiled.compare_outcome(options, compared, loss))
    return pair


def _followed(options: RunOptions) -> Pair:
    from opanatomy.predict.fake import simulate

    try:
        return Pair(followed=simulate(options))
    except OpanatomyError as error:
        return Pair(not_followed=str(error))


def _measured(options: RunOptions, pair: Pair) -> Pair:
    from opanatomy.capture.run.profile import capture_model
    from opanatomy.capture.run.progress import NullProgress
    from opanatomy.pipeline import analyze_traces
    from opanatomy.predict.experiment import measured_figures

    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        try:
            capture_model(options, path, NullProgress(), lambda _: None)
        except OpanatomyError as error:
            return replace(pair, failed=str(error))
        anatomy = analyze_traces([path])
    return replace(pair, measured=measured_figures(anatomy), memory=anatomy.memory)
