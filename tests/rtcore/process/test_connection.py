"""The parent's side of the socket: what it does with messages that are there already."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq

from rtcore.process import messages
from rtcore.process.connection import MESSAGES_AT_ONCE, Connection
from rtcore.process.messages import Alive, FromEngine


async def test_an_error_in_the_taker_loses_no_later_message(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/socket"
    connection = Connection(SimpleNamespace(address=address), load_timeout=1, hang_timeout=1)  # type: ignore[arg-type]
    context = zmq.Context()
    engine = context.socket(zmq.PAIR)
    try:
        engine.connect(address)
        count = MESSAGES_AT_ONCE + 3
        for _ in range(count):
            engine.send(messages.encode(Alive()))
        taken: list[FromEngine] = []
        errors: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, report: errors.append(report))

        def take(message: FromEngine) -> None:
            taken.append(message)
            if len(taken) in (1, 5):
                raise RuntimeError("the taker failed")

        connection._on_message = take
        while not connection._socket.poll(0):
            await asyncio.sleep(0.01)
        loop.call_soon(connection._receive)  # once, as the socket would wake the loop
        while len(taken) < count:
            await asyncio.sleep(0.01)
        assert len(errors) == 2
    finally:
        engine.close(linger=0)
        context.term()
        connection._socket.close()
        connection._context.term()
