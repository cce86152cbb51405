"""`--set` and `--layers`: a configuration with other values, and what they changed."""

from __future__ import annotations

import json
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from opanatomy.errors import UsageError

#: The keys that count layers; `depths` has one count per stage.
LAYER_KEYS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "depths",
)  # fmt: skip
#: Layers that are skipped at random make one step differ from the next.
LAYER_DROP_KEYS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


#: Keys that an option of its own sets.
_OPTIONS = {
    "dtype": "--dtype", "torch_dtype": "--dtype", "attn_implementation": "--attention",
    "_attn_implementation": "--attention", "architectures": "--task",
}  # fmt: skip


def parse_value(text: str) -> Any:
    """The value of `--set key=text`: JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def apply_settings(
    content: dict[str, Any], config: Any, layers: int | None, settings: tuple[tuple[str, str], ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The content of a `config.json` with the settings and the number of layers applied, and what that changed.

    `config` is the configuration object of `content`: it knows the keys that `content` leaves at their default.
    """
    content = deepcopy(content)
    changes = _keep_layers(content, config, layers) if layers is not None else []
    for key, text in settings:
        changes += _set(content, config, key, parse_value(text))
    asked = {key.rpartition(".")[2] for key, _ in settings}
    for key in LAYER_DROP_KEYS:
        if key not in asked and getattr(config, key, None):
            changes += _set(content, config, key, 0.0)
    return content, tuple(changes)


def check_fit(config: Any) -> None:
    """Refuse sizes that only the forward pass of a model would trip over."""
    for part in (config, *(getattr(config, name) for name in _parts(config))):
        heads, shared = getattr(part, "num_attention_heads", None), getattr(part, "num_key_value_heads", None)
        if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
            raise UsageError(
                f"num_key_value_heads {shared}: {heads} attention heads of {part.model_type} cannot share them - "
                "set a divisor of the heads"
            )
        used = getattr(part, "num_experts_per_tok", None)
        experts = getattr(part, "num_local_experts", None) or getattr(part, "num_experts", None)
        if isinstance(used, int) and isinstance(experts, int) and not 0 < used <= experts:
            raise UsageError(
                f"num_experts_per_tok {used}: {part.model_type} has {experts} experts - set 1 to {experts}"
            )


def _set(content: dict[str, Any], config: Any, path: str, value: Any) -> list[str]:
    *parents, key = path.split(".")
    for parent in parents:
        below = getattr(config, parent, None)
        if not hasattr(below, "to_dict"):
            names = _parts(config)
            instead = f"its parts are {', '.join(names)}" if names else "it has no parts, leave the dots out"
            raise UsageError(f"--set {path}={_text(value)}: {config.model_type} has no part {parent!r} - {instead}")
        if not isinstance(content.get(parent), dict):
            content[parent] = _plain(below)
        content, config = content[parent], below
    if key in _OPTIONS:
        raise UsageError(f"--set {path}={_text(value)}: not a setting here - use {_OPTIONS[key]}")
    if key == "model_type":
        raise UsageError(
            f"--set {path}={_text(value)}: {config.model_type} has no 'model_type' to set - name another MODEL"
        )
    key = _canonical(config, key)
    known = _known_keys(content, config)
    if key not in known:
        near = get_close_matches(key, sorted(known), n=3, cutoff=0.5) or sorted(known)[:3]
        raise UsageError(
            f"--set {path}={_text(value)}: {config.model_type} has no {key!r} - did you mean {', '.join(near)}?"
        )
    if isinstance(getattr(config, key, None), int) and isinstance(value, str):
        raise UsageError(f"--set {path}={value}: {value!r} is not a number - {key} is {getattr(config, key)}")
    before = content.get(key, getattr(config, key, None))
    _write(content, config, key, value)
    return [f"{path} {_text(before)} -> {_text(value)}"] if before != value else []


def _known_keys(content: dict[str, Any], config: Any) -> set[str]:
    known = set(content) | set(config.to_dict()) | {"num_labels"}
    if "num_channels" in known:  # a convolutional network takes any image: `image_size` is ours
        known.add("image_size")
    return known - {"model_type", "architectures", "transformers_version", "auto_map", "dtype", "torch_dtype"}


def _canonical(config: Any, key: str) -> str:
    return str(getattr(config, "attribute_map", {}).get(key, key))


def _write(content: dict[str, Any], config: Any, key: str, value: Any) -> None:
    """Set `key`, which is canonical, and drop what would say otherwise: its other names, labels of another number."""
    for alias, target in getattr(config, "attribute_map", {}).items():
        if target == key:
            content.pop(alias, None)
    if key == "num_labels":
        content.pop("id2label", None)
        content.pop("label2id", None)
    content[key] = value


def _parts(config: Any) -> list[str]:
    """The names of the sub-configurations, such as `text_config`."""
    return [name for name in config.to_dict() if hasattr(getattr(config, name, None), "to_dict")]


def _plain(config: Any) -> dict[str, Any]:
    content: dict[str, Any] = config.to_dict()
    return content


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ------------------------------------------------------------------------------------------------------------- layers


def _keep_layers(content: dict[str, Any], config: Any, layers: int) -> list[str]:
    if layers < 1:
        raise UsageError(f"--layers {layers}: a model needs at least one layer - give 1 or more")
    counts = list(_layer_counts(content, config, ""))
    if not counts:
        raise UsageError(f"--layers {layers}: no layer count in the configuration of {config.model_type} - use --set")
    maximum = max(max(count) if isinstance(count, list) else count for _, _, _, count in counts)
    if layers > maximum:
        raise UsageError(f"--layers {layers}: {config.model_type} has {maximum} here - give 1 to {maximum}")
    changes = {}
    for where, values, part, before in counts:
        key = where.rpartition(".")[2]
        after = [min(count, layers) for count in before] if isinstance(before, list) else min(before, layers)
        _write(values, part, key, after)
        if isinstance(before, int):
            _cut_lists(values, part, before, after)
        if before != after:
            changes[where] = f"{_text(before)} -> {_text(after)}"
    if len(set(changes.values())) == 1:
        return [f"layers {change}" for change in set(changes.values())]
    return [f"{where} {change}" for where, change in changes.items()]


def _layer_counts(content: dict[str, Any], config: Any, prefix: str) -> list[tuple[str, dict[str, Any], Any, Any]]:
    """Each layer count as (dotted key, the dictionary to write it to, its configuration, count), parts included."""
    plain = _plain(config)
    counts: list[tuple[str, dict[str, Any], Any, Any]] = []
    staged = isinstance(content.get("depths", plain.get("depths")), list)
    keys = ("depths",) if staged else dict.fromkeys(_canonical(config, key) for key in LAYER_KEYS)
    for key in keys:
        count = content.get(key, plain.get(key))
        if isinstance(count, int) or staged:
            counts.append((prefix + key, content, config, count))
    for name in _parts(config):
        if not isinstance(content.get(name), dict):
            content[name] = _plain(getattr(config, name))
        counts += _layer_counts(content[name], getattr(config, name), f"{prefix}{name}.")
    return counts


def _cut_lists(content: dict[str, Any], config: Any, before: int, after: Any) -> None:
    """Shorten the lists with one entry per layer (`layer_types`, `no_rope_layers`, ...)."""
    if hasattr(config, "attention_types"):  # GPT-Neo: [[kinds, times], ...]
        content["attention_types"] = [[list(config.attention_layers)[:after], 1]]
    for key, value in content.items():
        if isinstance(value, list) and len(value) == before and "layer" in key:
            content[key] = value[:after]
