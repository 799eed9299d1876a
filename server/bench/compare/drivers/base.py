"""Runs one engine on given token ids and prints what it took as one line of JSON on standard output.

Run as ``PYTHON base.py DRIVER.py`` with a request as JSON on standard input. PYTHON is the engine's own: this file
and the drivers beside it need the standard library and the engine's package alone, and are written for Python 3.9
and newer. A driver defines

- PACKAGE: the name of the package to import; where it cannot be imported the answer says that it is missing,
- Driver: ``Driver(package, request)`` loads the model; ``version`` is what the engine calls its version;
  ``generate(prompts, new_tokens)`` answers greedily, whatever token ends a text, and returns the new ids of each
  prompt, the seconds from the call until each prompt had its first, the seconds until all were there, and how
  many came between the two.

Request: model; threads; options, a table for the driver; cache_tokens, tokens that the cache holds over all
sequences; sequences, at most this many at once; warm_up, prefill: lists of token ids; decode: name of a figure to
a list of prompts; new_tokens: name of the same figure to tokens of each answer.
Answer: missing, or error, or version, load_seconds, prefill_seconds, decode_tokens_s by figure, ids by figure and
peak_bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from typing import Any

SHOWN_LINES = 12


def measure(driver: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Drive the loaded engine and return the answer's figures."""
    driver.generate([request["warm_up"]], 4)
    _, prefill, _, _ = driver.generate([request["prefill"]], 1)
    rates, first_ids = {}, {}
    for name, prompts in request["decode"].items():
        count = request["new_tokens"][name]
        ids, first, last, tokens = driver.generate(prompts, count)
        if any(len(answered) != count for answered in ids):
            raise RuntimeError(f"asked for {count} tokens each, got {[len(answered) for answered in ids]}")
        rates[name] = tokens / (last - first)
        first_ids[name] = ids[0]
    return {"prefill_seconds": prefill, "decode_tokens_s": rates, "ids": first_ids}


def peak_bytes() -> int:
    """The largest resident set of this process so far (proc(5), VmHWM)."""
    with open("/proc/self/status") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def answer(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """What the driver at `path` makes of the request; errors of the engine become part of the answer."""
    spec = importlib.util.spec_from_file_location("driver", path)
    if spec is None or spec.loader is None:
        return {"error": f"there is no driver {path}"}
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        package = importlib.import_module(module.PACKAGE)
    except ImportError as error:
        return {"missing": f"{module.PACKAGE}: {error}"}
    # Whatever an engine raises is its answer: this process exists to report it.
    try:
        began = time.perf_counter()
        driver = module.Driver(package, request)
        found: dict[str, Any] = {"load_seconds": time.perf_counter() - began}
        found.update(measure(driver, request))
        found.update(version=str(driver.version), peak_bytes=peak_bytes())
        return found
    except Exception:
        return {"error": "".join(traceback.format_exc().splitlines(keepends=True)[-SHOWN_LINES:])}


def main() -> None:
    """Answer the request on standard input. What engines print goes to standard error."""
    request = json.load(sys.stdin)
    output = os.dup(1)
    os.dup2(2, 1)
    # The names of drivers are those of engines: this folder must not stand in the way of their packages.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    found = answer(sys.argv[1], request)
    os.write(output, json.dumps(found).encode() + b"\n")
    # Engines that keep threads or handles must not turn a finished measurement into a failed process.
    os._exit(0)


if __name__ == "__main__":
    main()
