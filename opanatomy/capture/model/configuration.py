"""Find the configuration of a model by its id, and check its `config.json`."""

from __future__ import annotations

import json
import socket
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from msgspec import Struct

from opanatomy.capture.model.catalog import catalog_names, find_name, near_names, read_configuration
from opanatomy.capture.silence import one_line, quiet_libraries
from opanatomy.errors import ModelError, UsageError

# The Hub: the folder of a model id's `config.json`, or one line that says why not, within seconds.


TIMEOUT_SECONDS = 4.0


def download_configuration(name: str) -> Path:
    """Return the path of the Hub model's `config.json`, from the cache unless the Hub has changed it."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    offline = constants.HF_HUB_OFFLINE
    reachable = hub_answers()
    try:
        with quiet_libraries():
            path = hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_SECONDS, local_files_only=not reachable)
            return Path(path)
    except HFValidationError as error:
        raise ModelError(f"no model {name!r}: not a catalog name, file or Hub id - {_instead(name)}") from error
    except GatedRepoError as error:
        raise ModelError(
            f"cannot read {name}: its license must be accepted on the Hub - accept it there, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"no model {name!r} in the catalog or on the Hub (unless private) - {_instead(name)}"
        ) from error
    except LocalEntryNotFoundError as error:
        why = "the Hub is disabled (HF_HUB_OFFLINE)" if offline else f"{constants.ENDPOINT} does not answer"
        raise ModelError(f"no model {name!r} in the catalog or the cache, and {why} - {_instead(name)}") from error
    except EntryNotFoundError as error:
        raise ModelError(f"cannot read {name}: it has no config.json on the Hub - use a transformers model") from error
    except OSError as error:
        raise ModelError(f"cannot read {name} from the Hub: {one_line(error)} - try again; {_instead(name)}") from error


def _instead(name: str) -> str:
    if name in catalog_names():
        return "leave out --hub: the catalog has it"
    if Path(name).is_dir():
        return f"the folder {name} has no config.json"
    near = near_names(name)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return "use a local folder or a catalog model such as google-bert/bert-large-uncased"


def hub_answers() -> bool:
    """Return within seconds whether the Hub is enabled and its host, or the proxy, accepts a connection.

    huggingface_hub tries five more times with growing waits, 23 seconds in all, if a name cannot be resolved.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    parts = urlsplit(constants.ENDPOINT)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or (80 if parts.scheme == "http" else 443)
    connected: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=TIMEOUT_SECONDS).close()
        except OSError:
            return
        connected.append(True)

    # Name resolution has no timeout: an abandoned thread does not delay the user.
    probe = Thread(target=connect, daemon=True)
    probe.start()
    probe.join(TIMEOUT_SECONDS)
    return bool(connected)


class Configuration(Struct, frozen=True, kw_only=True):
    """The content of a `config.json`; `location` is the Hub id or the folder that has the weights."""

    name: str
    source: str
    location: str
    content: dict[str, Any]

    @property
    def model_type(self) -> str:
        """Return the key by which transformers finds the model's classes."""
        return str(self.content["model_type"])


def find_configuration(model: str, *, hub: bool = False, trust_remote_code: bool = False) -> Configuration:
    """Return the configuration of `model`: a local folder or `config.json`, a catalog name, or a Hub id, in this order.

    `hub` skips the catalog. A local path or a catalog name needs no network.
    """
    if not model.strip():
        raise ModelError("MODEL is empty - pass a catalog name, a Hub id, a folder or file.py:function")
    path = _local_path(model)
    name = find_name(model)
    if path is not None:
        configuration = Configuration(
            name=model, source="folder", location=str(path.parent.absolute()), content=_read(path)
        )
    elif name is not None and not hub:
        configuration = Configuration(name=name, source="catalog", location=name, content=read_configuration(name))
    else:
        from transformers import CONFIG_MAPPING

        identity = name or model
        content = _read(download_configuration(identity))
        # Old configurations name no type: it is the longest in the Hub id; transformers does the same.
        in_name = max((known for known in CONFIG_MAPPING if known in identity.lower()), key=len, default=None)
        content.setdefault("model_type", in_name)
        configuration = Configuration(name=identity, source="hub", location=identity, content=content)
    _check_type(configuration, trust_remote_code)
    return configuration


def _local_path(model: str) -> Path | None:
    """Return the `config.json` that `model` means as a path, `None` if it reads as an id."""
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if (path / "config.json").is_file():
        return path / "config.json"
    if model.endswith((".json", "/", "\\")) or model.startswith((".", "/", "~")):
        wrong = "no config.json in it" if path.is_dir() else "no such file or folder"
        raise ModelError(f"cannot read {model}: {wrong} - use the folder of a saved transformers model")
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error} - check the path") from error
    except ValueError as error:
        instead = f"for a trace: opanatomy analyze {path}" if path.suffix == ".gz" else "use a model's config.json"
        raise ModelError(f"cannot read {path}: not JSON ({one_line(error)}) - {instead}") from error
    except RecursionError as error:
        raise ModelError(f"cannot read {path}: it is too deeply nested - use a model's config.json") from error
    if not isinstance(content, dict):
        raise ModelError(
            f"cannot read {path}: a JSON {type(content).__name__}, not an object - use a model's config.json"
        )
    return content


def _check_type(configuration: Configuration, trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING, __version__

    name, known = configuration.name, configuration.content.get("model_type")
    heads = configuration.content.get("architectures")
    if heads is not None and not (isinstance(heads, list) and all(isinstance(head, str) for head in heads)):
        raise ModelError(
            f'{name}: "architectures" in its configuration is not a list of names - write it like ["BertForMaskedLM"]'
        )
    if {"schema", "provenance"} <= configuration.content.keys():
        raise ModelError(f"{name} is an opanatomy report - to show it: opanatomy analyze {name}")
    if not isinstance(known, str) or not known:
        raise ModelError(f'{name}: its configuration has no model_type - add one, such as "model_type": "bert"')
    if known in CONFIG_MAPPING:
        return
    if configuration.content.get("auto_map"):
        if trust_remote_code:
            return
        raise ModelError(
            f"{name} runs its own code (auto_map for model_type {known!r}), which is not allowed by default -"
            " read that code, then use --trust-remote-code"
        )
    near = get_close_matches(known, list(CONFIG_MAPPING), n=3)
    instead = f"did you mean {', '.join(near)}?" if near else "a newer transformers may support it"
    raise ModelError(f"{name}: transformers {__version__} does not know model_type {known!r} - {instead}")


def make_config(configuration: Configuration, content: dict[str, Any], *, trust_remote_code: bool = False) -> Any:
    """Return the configuration object of transformers with `content`, which may differ from the file."""
    from transformers import CONFIG_MAPPING, AutoConfig

    content = deepcopy(content)
    if content.get("architectures") is None:
        content.pop("architectures", None)
    with quiet_libraries():
        if trust_remote_code and content.get("auto_map"):
            kind = type(AutoConfig.from_pretrained(configuration.location, trust_remote_code=True))
        else:
            # Hide the configuration's own code if transformers has the model.
            content.pop("auto_map", None)
            kind = CONFIG_MAPPING[configuration.model_type]
        config = kind.from_dict(content)
    config.name_or_path = configuration.location
    if trust_remote_code and "auto_map" in content:
        config.auto_map = content["auto_map"]
    if config.architectures is None:  # an auto class with two candidates loops over them
        config.architectures = []
    return config


# `--set` and `--layers`: a configuration with other values, and the resulting changes.


#: The keys that count layers; `depths` has one count per stage.
LAYER_KEYS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "depths",
)  # fmt: skip
#: Random layer dropping, which makes steps differ.
LAYER_DROP_KEYS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


#: Keys that have an option of their own.
_OPTIONS = {
    "dtype": "--dtype",
    "torch_dtype": "--dtype",
    "attn_implementation": "--attention",
    "_attn_implementation": "--attention",
    "architectures": "--task",
}


def apply_settings(
    content: dict[str, Any], config: Any, layers: int | None, settings: tuple[tuple[str, str], ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the content of a `config.json` with the settings and the number of layers applied, and the changes.

    `config` is the configuration object of `content`: it knows the keys that `content` leaves at their default.
    """
    content = deepcopy(content)
    changes = _keep_layers(content, config, layers) if layers is not None else []
    for key, text in settings:
        if layers is not None and key in LAYER_KEYS and text != str(layers):
            raise UsageError(
                f"--layers {layers} and --set {key}={text} are different numbers of layers - leave one out"
            )
        try:
            value = json.loads(text)
        except ValueError:  # no JSON: the text itself
            value = text
        changes += _set(content, config, key, value)
    asked = {key.rpartition(".")[2] for key, _ in settings}
    for key in LAYER_DROP_KEYS:
        if key not in asked and getattr(config, key, None):
            changes += _set(content, config, key, 0.0)
    return content, tuple(changes)


def check_fit(config: Any) -> None:
    """Refuse sizes that would fail only in the forward pass of a model."""
    for part in (config, *(getattr(config, name) for name in _parts(config))):
        heads, shared = getattr(part, "num_attention_heads", None), getattr(part, "num_key_value_heads", None)
        if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
            raise UsageError(
                f"num_key_value_heads {shared}: it must divide the {heads} attention heads of {part.model_type} - use"
                f" a divisor of {heads}"
            )
        used = getattr(part, "num_experts_per_tok", None)
        experts = getattr(part, "num_local_experts", None) or getattr(part, "num_experts", None)
        if isinstance(used, int) and isinstance(experts, int) and not 0 < used <= experts:
            raise UsageError(
                f"num_experts_per_tok {used}: {part.model_type} has only {experts} experts - use 1 to {experts}"
            )


def _set(content: dict[str, Any], config: Any, path: str, value: Any) -> list[str]:
    *parents, key = path.split(".")
    for parent in parents:
        below: Any = getattr(config, parent, None)
        if not hasattr(below, "to_dict"):
            names = _parts(config)
            instead = f"its parts are {', '.join(names)}" if names else "it has no parts - leave out the dots"
            raise UsageError(f"--set {path}={_text(value)}: {config.model_type} has no part {parent!r} - {instead}")
        if not isinstance(content.get(parent), dict):
            content[parent] = below.to_dict()
        content, config = content[parent], below
    if key in _OPTIONS:
        raise UsageError(f"--set {path}={_text(value)}: cannot be set here - use {_OPTIONS[key]}")
    if key == "model_type":
        raise UsageError(
            f"--set {path}={_text(value)}: 'model_type' of {config.model_type} cannot be set - choose another MODEL"
        )
    key = getattr(config, "attribute_map", {}).get(key, key)
    known = set(content) | set(config.to_dict()) | {"num_labels"}
    if "num_channels" in known:  # a convolutional network takes any image: `image_size` is ours
        known.add("image_size")
    known -= {"model_type", "architectures", "transformers_version", "auto_map", "dtype", "torch_dtype"}
    if key not in known:
        near = get_close_matches(key, sorted(known), n=3, cutoff=0.5) or sorted(known)[:3]
        raise UsageError(
            f"--set {path}={_text(value)}: {config.model_type} has no {key!r} - did you mean {', '.join(near)}?"
        )
    if key in LAYER_KEYS and isinstance(value, int) and value < 1:
        raise UsageError(f"--set {path}={value}: a model needs at least one layer")
    if isinstance(getattr(config, key, None), int) and isinstance(value, str):
        raise UsageError(f"--set {path}={value}: {value!r} is not a number - {key} is {getattr(config, key)}")
    before = content.get(key, getattr(config, key, None))
    _write(content, config, key, value)
    return [f"{path} {_text(before)} -> {_text(value)}"] if before != value else []


def _write(content: dict[str, Any], config: Any, key: str, value: Any) -> None:
    """Set `key`, which is canonical, and drop contradictions: its other names, labels of another number."""
    for alias, target in getattr(config, "attribute_map", {}).items():
        if target == key:
            content.pop(alias, None)
    if key == "num_labels":
        content.pop("id2label", None)
        content.pop("label2id", None)
    content[key] = value


def _parts(config: Any) -> list[str]:
    """Return the names of the sub-configurations, such as `text_config`."""
    return [name for name in config.to_dict() if hasattr(getattr(config, name, None), "to_dict")]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ------------------------------------------------------------------------------------------------------------- layers


def _keep_layers(content: dict[str, Any], config: Any, layers: int) -> list[str]:
    if layers < 1:
        raise UsageError(f"--layers {layers}: a model needs at least one layer - use 1 or more")
    counts = list(_layer_counts(content, config, ""))
    if not counts:
        raise UsageError(
            f"--layers {layers}: the configuration of {config.model_type} has no layer count - use --set"
            " KEY=VALUE instead"
        )
    maximum = max(max(count) if isinstance(count, list) else count for _, _, _, count in counts)
    if layers > maximum:
        raise UsageError(
            f"--layers {layers}: this {config.model_type} configuration has {maximum} layers - use 1 to {maximum}"
        )
    changes = {}
    for where, values, part, before in counts:
        key = where.rpartition(".")[2]
        after: Any = [min(count, layers) for count in before] if isinstance(before, list) else min(before, layers)
        _write(values, part, key, after)
        if isinstance(before, int):
            # Shorten the lists with one entry per layer (`layer_types`, `no_rope_layers`, ...).
            if hasattr(part, "attention_types"):  # GPT-Neo: [[kinds, times], ...]
                values["attention_types"] = [[list(part.attention_layers)[:after], 1]]
            for name, value in values.items():
                if isinstance(value, list) and len(value) == before and "layer" in name:
                    values[name] = value[:after]
        if before != after:
            changes[where] = f"{_text(before)} -> {_text(after)}"
    if len(set(changes.values())) == 1:
        return [f"layers {change}" for change in set(changes.values())]
    return [f"{where} {change}" for where, change in changes.items()]


def _layer_counts(content: dict[str, Any], config: Any, prefix: str) -> list[tuple[str, dict[str, Any], Any, Any]]:
    """Return each layer count as (dotted key, its dictionary, configuration, count), sub-configurations included."""
    plain, aliases = config.to_dict(), getattr(config, "attribute_map", {})
    counts: list[tuple[str, dict[str, Any], Any, Any]] = []
    staged = isinstance(content.get("depths", plain.get("depths")), list)
    keys = ("depths",) if staged else dict.fromkeys(aliases.get(key, key) for key in LAYER_KEYS)
    for key in keys:
        count = content.get(key, plain.get(key))
        if isinstance(count, int) or staged:
            counts.append((prefix + key, content, config, count))
    for name in _parts(config):
        if not isinstance(content.get(name), dict):
            content[name] = getattr(config, name).to_dict()
        counts += _layer_counts(content[name], getattr(config, name), f"{prefix}{name}.")
    return counts


# The training task of a model from its `architectures`, and the class of transformers that has its loss.


#: Task -> (auto class, the table of its model classes). A model class in several tables belongs to the first task.
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
    """Return the task and the name of the auto class for its model: `task` if given, else by `config`.

    A configuration that names no head (`BartModel`, or nothing) gets the usual task for tuning its model.
    """
    names = list(getattr(config, "architectures", None) or ())
    # The tasks for which transformers, or the configuration's own code, has a model of this type.
    remote = getattr(config, "auto_map", None) or {}
    possible = [
        candidate
        for candidate, kinds in TASKS.items()
        if any(auto_class in remote or _classes(table, config.model_type) for auto_class, table in kinds)
    ]
    if task is not None:
        if task not in possible:
            raise UsageError(
                f"--task {task}: transformers has no {config.model_type} model for this task - {_choices(possible)}"
            )
        return task, _auto_class(config, task, names)
    for candidate in possible:
        for auto_class, table in TASKS[candidate]:
            if candidate != "base" and _classes(table, config.model_type).intersection(names):
                return candidate, auto_class
    headless = not names or names[0].endswith(("Model", "Encoder", "ForPreTraining"))
    if not headless and not remote:
        raise ModelError(f"cannot make a batch for {names[0]} - use --task; {_choices(possible)}")
    for candidate in _usual(config, names, possible):
        if candidate in possible:
            return candidate, _auto_class(config, candidate, names)
    raise ModelError(
        f"cannot tell the task of {config.model_type} - pass package.module:function that returns (module, inputs)"
    )


def _usual(config: Any, names: list[str], possible: list[str]) -> tuple[str, ...]:
    if remote := getattr(config, "auto_map", None):
        # The class named like the architecture (`ForCausalLM`) precedes the others in the code.
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


def _auto_class(config: Any, task: str, names: list[str]) -> str:
    remote = getattr(config, "auto_map", None) or {}
    fitting = [
        (auto_class, _classes(table, config.model_type))
        for auto_class, table in TASKS[task]
        if auto_class in remote or _classes(table, config.model_type)
    ]
    return next((auto_class for auto_class, classes in fitting if classes.intersection(names)), fitting[0][0])


def _classes(table: str, model_type: str) -> set[str]:
    """Return the model classes of `model_type` in a table of transformers."""
    from transformers.models.auto import modeling_auto

    names = getattr(modeling_auto, table, {}).get(model_type, ())
    return {names} if isinstance(names, str) else set(names)


def _choices(possible: list[str]) -> str:
    return (
        f"choose from {', '.join(possible)}"
        if possible
        else "pass package.module:function that returns (module, inputs)"
    )
