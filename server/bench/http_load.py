"""Requests to a server that speaks OpenAI's protocol, and when what of their answers came."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

import aiohttp
import msgspec

from ops.errors import ConfigError

_KEPT = 8192
"""Bytes of the end of an answer that are kept: the event that counts its tokens is there."""
_UNFINISHED = "not answered when the load was ended"


class Load(msgspec.Struct, frozen=True):
    """What is asked of a server: `requests` prompts of `prompt` random tokens, of which the first `prefix` are the
    same in all, and `answer` tokens for each.

    rate: requests that come in a second, at exponential distances (a Poisson process); 0: all are there at once.
    concurrency: requests that are open at once at most; 0: as many as came. vocabulary: tokens are below it.
    """

    requests: int
    prompt: int
    prefix: int
    answer: int
    rate: float
    concurrency: int
    vocabulary: int
    seed: int


@dataclass(slots=True)
class Answer:
    """One request: seconds, since the load began, at which it was due and at which each piece of its answer came.

    With a bound on open requests one is due when its place is free. A piece is what arrived at a time, an event or
    several.
    """

    due: float
    pieces: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    answer_tokens: int = 0
    failure: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Event(msgspec.Struct):
    usage: _Usage | None = None
    error: dict[str, object] | str | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class HttpLoad:
    """Sends a load to a server and gathers its answers."""

    def __init__(self, url: str, load: Load, model: str | None = None, key: str | None = None) -> None:
        """url: the server's, with or without /v1. model: the first that the server names if not given. key: sent as
        the bearer's."""
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._load = load
        self._model = model
        self.answers: list[Answer] = []
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def run(self) -> list[Answer]:
        """All answers, in the order in which they were due. Raises ConfigError when there is no such server.

        Whoever cancels this finds what there is by then in `answers`.
        """
        load = self._load
        draw = random.Random(load.seed)
        prefix = [draw.randrange(load.vocabulary) for _ in range(load.prefix)]
        prompts = [
            prefix + [draw.randrange(load.vocabulary) for _ in range(load.prompt - load.prefix)]
            for _ in range(load.requests)
        ]
        due = 0.0
        for _ in prompts:
            self.answers.append(Answer(due, failure=_UNFINISHED))
            due += draw.expovariate(load.rate) if load.rate else 0.0
        places = asyncio.Semaphore(load.concurrency or load.requests)
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as session:
            model = self._model or await self._first_model(session)
            bodies = [self._body(model, prompt) for prompt in prompts]
            began = time.perf_counter()

            async def ask(answer: Answer, body: bytes) -> None:
                await asyncio.sleep(answer.due - (time.perf_counter() - began))
                async with places:
                    if load.concurrency:
                        answer.due = time.perf_counter() - began
                    await self._ask(session, answer, body, began)

            await asyncio.gather(*(ask(answer, body) for answer, body in zip(self.answers, bodies, strict=True)))
        return self.answers

    def _body(self, model: str, prompt: list[int]) -> bytes:
        return msgspec.json.encode(
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": self._load.answer,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    async def _first_model(self, session: aiohttp.ClientSession) -> str:
        try:
            async with session.get(f"{self._url}/models") as response:
                response.raise_for_status()
                models = msgspec.json.decode(await response.read(), type=_Models).data
        except (aiohttp.ClientError, ValueError) as error:
            raise ConfigError(
                f"There is no server of OpenAI's protocol at {self._url}.",
                why=str(error),
                remedy="Start one with `ortolan serve BUNDLE`, or give the address of another.",
                param="URL",
            ) from error
        if not models:
            raise ConfigError(f"The server at {self._url} names no model.", remedy="Give --model.", param="--model")
        return models[0].id

    async def _ask(self, session: aiohttp.ClientSession, answer: Answer, body: bytes, began: float) -> None:
        """Send one request, and note each piece of what comes back."""
        headers = {"Content-Type": "application/json"}
        end = b""
        try:
            async with session.post(f"{self._url}/completions", data=body, headers=headers) as response:
                if response.status != 200:
                    answer.failure = f"status {response.status}: {(await response.text(errors='replace'))[:300]}"
                    return
                async for piece in response.content.iter_any():
                    answer.pieces.append(time.perf_counter() - began)
                    end = (end + piece)[-_KEPT:]
        except aiohttp.ClientError as error:
            answer.failure = f"{type(error).__name__}: {error}"
            return
        self._count(answer, end)

    def _count(self, answer: Answer, end: bytes) -> None:
        """Read from the end of an answer how many tokens it had, or why it broke off."""
        for line in reversed(end.split(b"\n")):
            name, _, data = line.partition(b":")
            if name != b"data" or not data.lstrip().startswith(b"{"):
                continue
            try:
                event = msgspec.json.decode(data, type=_Event)
            except msgspec.DecodeError as error:
                answer.failure = f"An event of another form: {error}"
                return
            if event.error is not None:
                told = event.error if isinstance(event.error, str) else event.error.get("message", event.error)
                answer.failure = f"error: {told}"
                return
            if event.usage is not None:
                answer.prompt_tokens = event.usage.prompt_tokens
                answer.answer_tokens = event.usage.completion_tokens
                answer.failure = ""
                return
        answer.failure = "The answer ended without its usage."
