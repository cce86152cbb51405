"""Costs against torch on architectures drawn at random from transformers, tiny, one forward and backward pass each.

    python benchmarks/architectures.py [--seed N] [--count N] [--dtype D] [--samples] [NAME ...]

draws model types that are not in the catalog (a seed is chosen and printed where none is given) and prints a line for
each: operator calls, contraction FLOPs next to those of torch's FlopCounterMode, the share of calls whose bytes are
those of the real tensors, and the operators without a formula. Named model types are run as they are. A type that
cannot be built or fed with the sizes here says why and another one is drawn.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from opanatomy.capture.silence import quiet_libraries  # noqa: E402
from opanatomy.cost.registry import cost  # noqa: E402
from tests.support.observer import Call, Observer, Tally, compare  # noqa: E402
from tests.support.torch_counter import MENDED  # noqa: E402

#: A size by what its name says; the first that matches decides.
SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size|.*_vocab_size|num_embeddings", 160),
    (r"(num_|n_)?(hidden_|encoder_|decoder_|encoder_hidden_)?layers?|depth|.*_num_layers|num_.*_layers|.*_layers", 2),
    (r"num_local_experts|num_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok.*|moe_topk|top_k|moe_k", 2),
    (r"n_group|topk_group|n_shared_experts|num_key_value_heads|num_kv_heads|multi_query_groups?", 1),
    (r".*head_dim|.*head_size|d_kv|qk_nope_head_dim|v_head_dim|dim_head", 16),
    (r"(num_|n_)?(attention_)?heads?|.*_heads", 2),
    (r"q_lora_rank|kv_lora_rank|.*lora_rank|.*rank", 8),
    (r"(.*_)?(intermediate_(size|dim)|ffn_dim|d_ff|ffn_hidden_size|mlp_dim|hidden_dim|n_inner|inner_dim)", 64),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|projection_dim|hidden_channels|dim|width)", 32),
    (r"(.*_)?image_size|(.*_)?input_size", 32),
    (r"(.*_)?patch_size|tubelet_size", 8),
    (r"(.*_)?(max_position_embeddings|max_source_positions|max_target_positions|n_positions|n_ctx|max_length)", 64),
    (r"(.*_)?state_size|d_state|mamba_d_state", 4),
    (r"num_mel_bins|(.*_)?mel_bins", 16),
    (r"num_frames", 4),
    (r"num_queries|num_query_tokens|num_latents", 6),
    (r"sliding_window|attention_window|chunk_size|block_size|local_attention", 8),
    (r"num_labels|num_classes", 10),
)  # fmt: skip
#: Values that must stay what they are although their name looks like a size.
KEPT = re.compile(
    r".*_token_id|.*_index|num_channels|.*dropout.*|num_.*_groups|expand|.*_ratio.*|.*_kernel.*|num_feat_extract_layers"
)
SEQUENCE, BATCH, LONGEST_WAVE = 16, 2, 4_000
MOST_PARAMETERS = 5_000_000
SECONDS = 40
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: Model types of the catalog, and wrappers without an architecture of their own.
IN_CATALOG = {
    "bert", "roberta", "deberta-v2", "distilbert", "gpt2", "llama", "qwen3", "mistral", "mixtral", "qwen3_moe", "mamba",
    "t5", "bart", "vit", "resnet", "wav2vec2", "whisper", "clip", "clip_text_model", "clip_vision_model",
}  # fmt: skip
WRAPPERS = {"encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder", "timm_wrapper", "timm_backbone"}


class Result(Struct, frozen=True, kw_only=True):
    """One architecture: contraction FLOPs, ours and those of torch's counter with its faults mended; its calls."""

    name: str
    calls: int
    ours: int
    theirs: int
    tally: Tally


class Unfit(Exception):
    """A model type that cannot be run with these sizes."""


# --------------------------------------------------------------------------------------------------------- building


def shrunken(kind: Any, **fixed: Any) -> Any:
    """A configuration of `kind` with small sizes."""
    parts = getattr(kind, "sub_configs", None) or {}
    default = kind()
    values: dict[str, Any] = {}
    for name, value in default.to_dict().items():
        if name in parts:
            part = getattr(default, name, None)
            if part is not None:
                values[name] = shrunken(type(part)).to_dict()
        elif (small := _small(name, value)) is not None:
            values[name] = small
    return kind(**{**values, **fixed})


def _small(name: str, value: Any) -> Any:
    if re.fullmatch(r".*_token_id|padding_idx", name) and type(value) is int and value >= SIZES[0][1]:
        return 1
    if KEPT.fullmatch(name) or isinstance(value, bool):
        return None
    if isinstance(value, int):
        size = next((size for expression, size in SIZES if re.fullmatch(expression, name)), None)
        return None if size is None else min(size, value) if value > 0 else None
    if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
        if re.fullmatch(r"depths|num_blocks|layers|(.*_)?depths?", name):
            return [1] * len(value)
        if re.fullmatch(r"(.*_)?(hidden_sizes|embed_dims?|dims|encoder_hidden_size|conv_dim|channels)", name):
            return [max(16, item // (min(value) // 16 or 1)) for item in value]
    return None


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Unfit(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def built(name: str, dtype: str) -> torch.nn.Module:
    """The tiny model of a model type, with random weights, in training mode."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

    kind = type(AutoConfig.for_model(name))
    config = shrunken(kind)
    config.use_cache = False
    heads = (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoModel)
    auto = next((auto for auto in heads if kind in auto._model_mapping), None)
    if auto is None:
        raise Unfit("no model of this type")
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in auto.from_config(config).parameters())
    if parameters > MOST_PARAMETERS:
        raise Unfit(f"{parameters:,} parameters")
    torch.manual_seed(0)
    model: torch.nn.Module = auto.from_config(config)
    return model.to(DTYPES[dtype]).train()


# ---------------------------------------------------------------------------------------------------------- feeding


def inputs_of(model: Any) -> dict[str, Any]:
    """Made-up inputs by the names of what the forward takes."""
    config, taken = model.config, inspect.signature(model.forward).parameters
    tokens = torch.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % 90 + 5
    text = getattr(config, "text_config", None)
    seen = getattr(config, "vision_config", None) or config
    inputs: dict[str, Any] = {}
    if "input_ids" in taken:
        inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    needed = "pixel_values" in taken and taken["pixel_values"].default is inspect.Parameter.empty
    if needed or ("pixel_values" in taken and (text is None or "CLIP" in type(model).__name__)):
        inputs["pixel_values"] = _image(seen)
    if "pixel_values_videos" in taken and "input_ids" not in taken:
        inputs["pixel_values_videos"] = _image(seen)[:, None].repeat(1, getattr(seen, "num_frames", 4), 1, 1, 1)
    if "input_values" in taken:
        inputs["input_values"] = torch.randn(BATCH, LONGEST_WAVE)
    if "input_features" in taken:
        heard = getattr(config, "audio_config", None) or getattr(config, "encoder_config", None) or config
        bins = getattr(heard, "num_mel_bins", None) or getattr(heard, "input_feat_per_channel", None) or 16
        inputs["input_features"] = torch.randn(BATCH, 2 * SEQUENCE * 4, bins)
    if "decoder_input_ids" in taken:
        inputs["decoder_input_ids"] = tokens
    if "labels" in taken and "input_ids" in inputs:
        inputs["labels"] = tokens
    if "return_loss" in taken:
        inputs["return_loss"] = True
    inputs = {name: value for name, value in inputs.items() if name in taken}
    if not inputs:
        raise Unfit(f"inputs {', '.join(taken)[:80]}")
    return inputs


def _image(config: Any) -> torch.Tensor:
    size = getattr(config, "image_size", 32)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(BATCH, getattr(config, "num_channels", 3), height, width)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a model's output."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def loss_of(output: Any) -> torch.Tensor:
    """The model's loss, else the mean of everything that has a gradient."""
    loss = output.get("loss") if isinstance(output, dict) else None
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return loss
    parts = [t.float().mean() for t in tensors_of(output) if t.is_floating_point() and t.requires_grad]
    if not parts:
        raise Unfit("nothing in the output has a gradient")
    return torch.stack(parts).sum()


# --------------------------------------------------------------------------------------------------------- checking


def observed(model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[list[Call], Counter[str]]:
    """The operator calls of a step, and torch's FLOPs by operator."""
    with FlopCounterMode(display=False, custom_mapping=MENDED) as counter, Observer() as observer:
        loss_of(model(**inputs)).backward()
    counts = counter.get_flop_counts().get("Global", {})
    return observer.calls, Counter({f"aten::{str(op).split('.')[-1]}": flops for op, flops in counts.items()})


def check(name: str, dtype: str = "float32") -> Result:
    """One architecture; raises `Unfit` where it cannot be run."""
    try:
        with warnings.catch_warnings(), quiet_libraries(), time_limit(SECONDS):
            warnings.simplefilter("ignore")
            model = built(name, dtype)
            inputs = inputs_of(model)
            for key, value in inputs.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    inputs[key] = value.to(DTYPES[dtype])
            model(**inputs)
            calls, theirs = observed(model, inputs)
    except Unfit:
        raise
    except Exception as error:
        # whatever a model of a stranger raises at sizes that it was not made for
        raise Unfit(f"{type(error).__name__}: {' '.join(str(error).split())[:90]}") from error
    costs = [cost(call.operator, call.signature, "cpu") for call in calls if call.operator in theirs]
    ours = sum(each.flops for each in costs if each is not None)
    return Result(
        name=name,
        calls=len(calls),
        ours=ours,
        theirs=theirs.total(),
        tally=compare(calls, lambda operator, signature: cost(operator, signature, "cpu")),
    )


def drawn(seed: int) -> Iterator[str]:
    """Model types that are not in the catalog, in an order that the seed decides."""
    from transformers import CONFIG_MAPPING

    names = sorted(set(CONFIG_MAPPING.keys()) - IN_CATALOG - WRAPPERS)
    Random(seed).shuffle(names)
    yield from names


def run(names: Iterator[str], count: int, say: Callable[[str], None] = print, dtype: str = "float32") -> list[Result]:
    """The first `count` of `names` that can be run, a line each."""
    results: list[Result] = []
    for name in names:
        if len(results) == count:
            break
        try:
            result = check(name, dtype)
        except Unfit as why:
            say(f"{name:<28} not run: {why}")
            continue
        say(line(result))
        results.append(result)
    return results


def line(result: Result) -> str:
    """One row of the table."""
    tally = result.tally
    named = ", ".join(f"{name} x{count}" for name, count in tally.without.most_common())
    other = ", ".join(f"{name} x{count}" for name, count in tally.other.most_common())
    same = "equal" if result.ours == result.theirs else f"{result.ours:,} against {result.theirs:,}"
    return (
        f"{result.name:<28} {result.calls:>6} calls  FLOPs {result.theirs:>12,} {same}"
        + f"  bytes {100 * tally.share:6.2f} %"
        + (f"  other bytes: {other}" if other else "")
        + (f"  no cost: {named}" if named else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="model types, in place of drawn ones")
    parser.add_argument("--seed", type=int, help="of the draw (default: another one each time)")
    parser.add_argument("--count", type=int, default=10, help="architectures to run (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights and inputs")
    parser.add_argument("--samples", action="store_true", help="print a call of each operator that differs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seed = Random().randrange(10**6) if arguments.seed is None else arguments.seed
    if not arguments.names:
        print(f"seed {seed}")
    names = iter(arguments.names) if arguments.names else drawn(seed)
    results = run(names, len(arguments.names) or arguments.count, dtype=arguments.dtype)
    whole = Tally()
    for result in results:
        whole += result.tally
    equal = sum(result.ours == result.theirs for result in results)
    print(
        f"{len(results)} architectures: FLOPs equal in {equal}, "
        f"bytes equal in {whole.equal:,} of {whole.calls:,} calls ({100 * whole.share:.3f} %)"
    )
    if arguments.samples:
        for text in whole.samples.values():
            print("  " + text[:400])


if __name__ == "__main__":
    main()
