"""What crosses between the server and the engine process: msgpack structs, tagged both ways, sizes bounded."""

from __future__ import annotations

import msgspec

from ops.errors import InvalidRequest
from rtcore.config import EngineConfig
from rtcore.request import EngineFailure, EngineRequest, TokenDelta
from rtcore.stats import EngineStats

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Both sockets refuse larger messages. A prompt of a million tokens takes about 5 MB."""

IPC = "ipc://"
"""What the address of the socket begins with; the rest is its path, in a folder of its own."""

LOAD_ENGINE = "rtcore.loading:load_engine"


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message, on the child's standard input, which then stays open until the parent ends.

    address: the ipc socket to connect to. heartbeat: seconds between signs of life. factory: `module:function`
    or `/path/to/file.py:function`, called with the bundle's path and the config, that returns an Engine.
    """

    bundle: str
    config: EngineConfig
    address: str
    heartbeat: float
    factory: str = LOAD_ENGINE


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: EngineRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    id: str


class AskStats(msgspec.Struct, frozen=True, tag="ask-stats"):
    token: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End now; what is in flight is dropped."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The bundle is loaded; `load_seconds` counts from the start of the child's main."""

    context_length: int
    vocab_size: int
    load_seconds: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not start, or cannot go on; the process ends after this message.

    deliberate: the cause was recognised (a damaged bundle, too little memory), not an unforeseen exception.
    """

    failure: EngineFailure
    deliberate: bool
    detail: str = ""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """Requests that the engine has queued, those with a grammar once it is compiled. A refused one gets a delta
    with finish_reason error instead."""

    ids: list[str]


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    """What one step produced."""

    deltas: list[TokenDelta]


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """The answer to AskStats with the same token."""

    token: int
    stats: EngineStats


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Sent when nothing else was for a heartbeat, from the loop that runs the steps."""


ToEngine = Submit | Cancel | AskStats | Shutdown
FromEngine = Ready | Failed | Accepted | Deltas | Stats | Alive

_encoder = msgspec.msgpack.Encoder()
decode_start = msgspec.msgpack.Decoder(Start).decode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def encode(message: Start | ToEngine | FromEngine) -> bytes:
    """Encode a message; raises InvalidRequest when it is too large for the sockets or holds what cannot cross."""
    try:
        frame = _encoder.encode(message)
    except (OverflowError, RecursionError) as error:
        # The options of hooks are the client's own: integers of any length, nested as deep as they could be read.
        raise InvalidRequest(
            "The request cannot be passed to the engine process.",
            why=f"{error}.",
            remedy="Give hooks flatter options and integers of 64 bits.",
        ) from error
    if len(frame) > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"The request takes {len(frame)} bytes.",
            why=f"The engine process takes at most {MAX_MESSAGE_BYTES} bytes at once.",
            remedy="Shorten the prompt.",
        )
    return frame
