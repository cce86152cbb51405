"""What a model is trained for: a task from its `architectures`, and the class of transformers that has its loss."""

from __future__ import annotations

from typing import Any

from opanatomy.errors import ModelError, UsageError

#: Task -> (auto class, the table of its model classes). Where a model class is in several tables the first task has it.
TASKS: dict[str, tuple[tuple[str, str], ...]] = {
    "sequence-classification": (
        ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"),
        ("AutoModelForAudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES"),
    ),
    "token-classification": (("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"),),
    "causal-lm": (("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),),
    "speech": (
        ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
        ("AutoModelForCTC", "MODEL_FOR_CTC_MAPPING_NAMES"),
    ),
    "seq2seq-lm": (("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),),
    "masked-lm": (("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),),
    "image-classification": (("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"),),
    "contrastive": (
        ("AutoModelForZeroShotImageClassification", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES"),
    ),
    "base": (("AutoModel", "MODEL_MAPPING_NAMES"),),
}


def choose_task(config: Any, task: str | None) -> tuple[str, str]:
    """The task and the name of the auto class that builds its model: `task` where given, else what `config` says.

    A configuration that names no head (`BartModel`, or nothing) gets the task that such a model is usually tuned for.
    """
    names = list(getattr(config, "architectures", None) or ())
    possible = _possible(config)
    if task is not None:
        if task not in possible:
            raise UsageError(f"--task {task}: transformers has no {config.model_type} for it - {_choices(possible)}")
        return task, _auto_class(config, task, names)
    for candidate in possible:
        for auto_class, table in TASKS[candidate]:
            if candidate != "base" and _classes(table, config.model_type).intersection(names):
                return candidate, auto_class
    headless = not names or names[0].endswith(("Model", "Encoder", "ForPreTraining"))
    if not headless and not getattr(config, "auto_map", None):
        raise ModelError(f"no batch is known for {names[0]} - give --task; {_choices(possible)}")
    for candidate in _usual(config, names, possible):
        if candidate in possible:
            return candidate, _auto_class(config, candidate, names)
    raise ModelError(f"no task is known for {config.model_type} - hand over package.module:function with its inputs")


def _usual(config: Any, names: list[str], possible: list[str]) -> tuple[str, ...]:
    if remote := getattr(config, "auto_map", None):
        # The class that is named like the architecture (`ForCausalLM`) before the others that the code has.
        own = [(task, auto_class) for task in TASKS for auto_class, _ in TASKS[task] if auto_class in remote]
        own.sort(key=lambda entry: not any(name.endswith(entry[1].removeprefix("AutoModel")) for name in names))
        return tuple(task for task, _ in own)
    if getattr(config, "is_encoder_decoder", False):
        return "speech", "seq2seq-lm", "base"
    if names and names[0].endswith("ForPreTraining"):
        return "masked-lm", "contrastive", "base"
    if "causal-lm" in possible and "masked-lm" not in possible:
        return ("causal-lm",)
    if hasattr(config, "vision_config"):
        return ("contrastive",)
    return "sequence-classification", "image-classification", "speech", "base"


def _possible(config: Any) -> list[str]:
    """The tasks that transformers, or code of the configuration's own, has a model of this type for."""
    remote = getattr(config, "auto_map", None) or {}
    return [
        task
        for task, kinds in TASKS.items()
        if any(auto_class in remote or _classes(table, config.model_type) for auto_class, table in kinds)
    ]


def _auto_class(config: Any, task: str, names: list[str]) -> str:
    remote = getattr(config, "auto_map", None) or {}
    fitting = [
        (auto_class, _classes(table, config.model_type))
        for auto_class, table in TASKS[task]
        if auto_class in remote or _classes(table, config.model_type)
    ]
    return next((auto_class for auto_class, classes in fitting if classes.intersection(names)), fitting[0][0])


def _classes(table: str, model_type: str) -> set[str]:
    """The model classes of `model_type` in a table of transformers."""
    from transformers.models.auto import modeling_auto

    names = getattr(modeling_auto, table, {}).get(model_type, ())
    return {names} if isinstance(names, str) else set(names)


def _choices(possible: list[str]) -> str:
    return f"it has {', '.join(possible)}" if possible else "hand over package.module:function with its own inputs"
