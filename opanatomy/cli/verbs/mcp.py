"""Run `opanatomy mcp`: serve tools for agents over stdin and stdout until these are closed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.options import MCP

DESCRIPTION: Final = (
    "Serve nine Model Context Protocol (MCP) tools over stdin and stdout: they open a trace and answer what costs most,"
    " what to try, what ran in an interval and what a term means, or return any table. Only files in FOLDER are read;"
    " models are run only with --allow-run."
)
OPTIONS: Final = MCP
EXAMPLES: Final = (
    ("for the traces in this folder", "opanatomy mcp"),
    ("for the traces and reports in two folders", "opanatomy mcp traces reports"),
    ("to let agents run models too", "opanatomy mcp --allow-run"),
)


def run(arguments: argparse.Namespace) -> None:
    """Serve; raise if a folder is none, or the SDK is not installed."""
    folders = [Path(name) for name in arguments.folder or ["."]]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"mcp {folder}: not a folder - pass the folders whose files may be read")
    try:
        from opanatomy.mcp import serve
    except ModuleNotFoundError as error:
        if error.name not in ("mcp", "mcp_types"):
            raise
        raise OpanatomyError("mcp needs its SDK, which is not installed - pip install 'opanatomy[mcp]'") from error
    serve(folders, allow_run=arguments.allow_run)
