"""`ortolan serve`: the OpenAI-compatible endpoint over a bundle."""

from __future__ import annotations

import argparse

from rtcore.command import Command

DESCRIPTION = """\
Serve a bundle over HTTP as OpenAI's clients know it: /v1/chat/completions, /v1/completions, /v1/models, also
/health and /ready. Listens on 127.0.0.1 only: other addresses need --insecure, as there are no keys yet.
Every setting is a flag, an ORTOLAN_* variable (ORTOLAN_PORT=8001) or a key of the --config file (port = 8001);
a flag beats a variable, and a variable beats the file. SIGTERM finishes what runs and then ends.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    from server.config_sources import add_flags

    add_flags(parser)


def _run(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from rtcore.machine import allow_open_files
    from rtcore.process.child import EngineChild
    from server.config_sources import load_config
    from server.listener import listen

    config = load_config(vars(arguments))
    engine_config = config.engine()
    allow_open_files()
    with listen(config.host, config.port) as listener:
        # The engine loads in its own process while this one imports what serving needs.
        child = EngineChild.launch(Path(config.bundle), engine_config)
        try:
            from server.runner import run_server

            return run_server(config, listener, child)
        finally:
            child.dispose()


SERVE = Command(
    name="serve",
    help="serve a bundle over HTTP with OpenAI's API",
    description=DESCRIPTION,
    configure=_configure,
    run=_run,
)
