"""The configuration of a model: where its id is looked up, and what its `config.json` must have."""

from __future__ import annotations

import json
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from opanatomy.capture.model.catalog import find_name, read_configuration
from opanatomy.capture.model.hub import download_configuration
from opanatomy.capture.model.quiet import one_line, quiet_libraries
from opanatomy.errors import ModelError


class Configuration(Struct, frozen=True, kw_only=True):
    """The content of a `config.json`; `location` is the Hub id or the folder that has the weights."""

    name: str
    source: str
    location: str
    content: dict[str, Any]

    @property
    def model_type(self) -> str:
        """The key that transformers finds the model's classes by."""
        return str(self.content["model_type"])


def find_configuration(model: str, *, hub: bool = False, trust_remote_code: bool = False) -> Configuration:
    """The configuration of `model`: a local folder or `config.json`, a catalog name, or a Hub id, in this order.

    `hub` passes over the catalog. The network is not touched for a local path or a catalog name.
    """
    path = _local_path(model)
    name = find_name(model)
    if path is not None:
        configuration = Configuration(
            name=model, source="folder", location=str(path.parent.absolute()), content=_read(path)
        )
    elif name is not None and not hub:
        configuration = Configuration(name=name, source="catalog", location=name, content=read_configuration(name))
    else:
        identity = name or model
        content = _read(download_configuration(identity))
        content.setdefault("model_type", _type_in_name(identity))
        configuration = Configuration(name=identity, source="hub", location=identity, content=content)
    _check_type(configuration, trust_remote_code)
    return configuration


def _local_path(model: str) -> Path | None:
    """The `config.json` that `model` means as a path, `None` where it reads as an id."""
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if (path / "config.json").is_file():
        return path / "config.json"
    if model.endswith((".json", "/", "\\")) or model.startswith((".", "/", "~")):
        wrong = "no config.json in it" if path.is_dir() else "no such file or folder"
        raise ModelError(f"cannot read {model}: {wrong} - name the folder of a saved transformers model")
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error} - check the path") from error
    except ValueError as error:
        raise ModelError(f"cannot read {path}: not JSON ({one_line(error)}) - name a model's config.json") from error
    except RecursionError as error:
        raise ModelError(f"cannot read {path}: it is nested too deeply - name a model's config.json") from error
    if not isinstance(content, dict):
        raise ModelError(f"cannot read {path}: not a JSON object but a {type(content).__name__} - name a config.json")
    return content


def _type_in_name(name: str) -> str | None:
    """The longest model type in a Hub id, for old configurations that do not say theirs; transformers does the same."""
    from transformers import CONFIG_MAPPING

    return max((known for known in CONFIG_MAPPING if known in name.lower()), key=len, default=None)


def _check_type(configuration: Configuration, trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING, __version__

    name, known = configuration.name, configuration.content.get("model_type")
    heads = configuration.content.get("architectures")
    if heads is not None and not (isinstance(heads, list) and all(isinstance(head, str) for head in heads)):
        raise ModelError(
            f'{name}: architectures in its configuration is no list of names - write it as ["BertForMaskedLM"]'
        )
    if not isinstance(known, str) or not known:
        raise ModelError(f'{name} has no model_type in its configuration - add one, such as "model_type": "bert"')
    if known in CONFIG_MAPPING:
        return
    if configuration.content.get("auto_map"):
        if trust_remote_code:
            return
        raise ModelError(
            f"{name} runs code of its own (auto_map of model_type {known!r}), which is refused - "
            "read that code, then give --trust-remote-code"
        )
    near = get_close_matches(known, list(CONFIG_MAPPING), n=3)
    instead = f"did you mean {', '.join(near)}?" if near else "a newer transformers may know it"
    raise ModelError(f"{name}: transformers {__version__} knows no model_type {known!r} - {instead}")


def make_config(configuration: Configuration, content: dict[str, Any], *, trust_remote_code: bool = False) -> Any:
    """The configuration object of transformers with `content`, which may differ from what was read."""
    from transformers import CONFIG_MAPPING, AutoConfig

    content = deepcopy(content)
    if content.get("architectures") is None:
        content.pop("architectures", None)
    with quiet_libraries():
        if trust_remote_code and content.get("auto_map"):
            kind = type(AutoConfig.from_pretrained(configuration.location, trust_remote_code=True))
        else:
            # Code of its own stays out of sight where transformers has the model itself.
            content.pop("auto_map", None)
            kind = CONFIG_MAPPING[configuration.model_type]
        config = kind.from_dict(content)
    config.name_or_path = configuration.location
    if trust_remote_code and "auto_map" in content:
        config.auto_map = content["auto_map"]
    if config.architectures is None:  # an auto class with two candidates loops over them
        config.architectures = []
    return config
