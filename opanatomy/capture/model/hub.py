"""The Hub: the folder of a model id's `config.json`, or one line that says why not, within seconds."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from opanatomy.capture.model.catalog import catalog_names, near_names
from opanatomy.capture.model.quiet import one_line, quiet_libraries
from opanatomy.errors import ModelError

TIMEOUT_SECONDS = 4.0


def download_configuration(name: str) -> Path:
    """The path of the `config.json` of the Hub model `name`, from the cache where the Hub has not changed it."""
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
            f"cannot read {name}: its licence must be accepted on the Hub - accept it there, then `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"no model {name!r} in the catalog or on the Hub (unless private) - {_instead(name)}"
        ) from error
    except LocalEntryNotFoundError as error:
        why = "the Hub is switched off (HF_HUB_OFFLINE)" if offline else f"{constants.ENDPOINT} does not answer"
        raise ModelError(f"no model {name!r} in the catalog or the cache, and {why} - {_instead(name)}") from error
    except EntryNotFoundError as error:
        raise ModelError(
            f"cannot read {name}: the Hub has no config.json for it - name a transformers model"
        ) from error
    except OSError as error:
        raise ModelError(
            f"cannot read {name} from the Hub: {one_line(error)} - try again or {_instead(name)}"
        ) from error


def _instead(name: str) -> str:
    if name in catalog_names():
        return "leave --hub out, the catalog has it"
    near = near_names(name)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return "name a local folder, or a model of the catalog such as google-bert/bert-large-uncased"


def hub_answers() -> bool:
    """Whether the Hub is switched on and its host, or the proxy before it, takes a connection; known within seconds.

    huggingface_hub tries five more times with growing waits, 23 seconds in all, where a name cannot be resolved.
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

    # Name resolution knows no timeout: a thread that is left behind does not hold the user.
    probe = Thread(target=connect, daemon=True)
    probe.start()
    probe.join(TIMEOUT_SECONDS)
    return bool(connected)
