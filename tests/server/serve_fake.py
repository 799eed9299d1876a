"""Run the server as `ortolan serve` does, but with a fake engine: `python serve_fake.py FACTORY BUNDLE FLAGS`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> int:
    from rtcore.process.child import EngineChild
    from server.config_sources import add_flags, load_config
    from server.listener import listen
    from tests.rtcore.process import fakes

    parser = argparse.ArgumentParser()
    add_flags(parser)
    config = load_config(vars(parser.parse_args(sys.argv[2:])))
    with listen(config.host, config.port) as listener:
        child = EngineChild.launch(Path(config.bundle), config.engine(), factory=fakes.factory(sys.argv[1]))
        from server.runner import run_server

        return run_server(config, listener, child)


if __name__ == "__main__":
    sys.exit(main())
