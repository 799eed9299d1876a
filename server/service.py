"""Service: what every handler works with: configuration, engine, text side, and the name of the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from ops.errors import UnknownModel
from rtcore.config import MOST
from rtcore.decoding.params import SamplingParams
from rtcore.manifest import Manifest
from rtcore.process.client import EngineProcess
from rtcore.process.messages import Ready
from rtcore.request import ServiceTerms
from server.config import ServerConfig
from server.protocol.common import ModelCard
from server.tenants import salted

if TYPE_CHECKING:
    from rtcore.text.frontend import TextFrontend

LARGE_TEXT = 8192
"""Characters above which text work leaves the event loop; below it takes a few milliseconds."""
TEXT_THREADS = 2

Result = TypeVar("Result")


class Service:
    """One served model."""

    def __init__(
        self, config: ServerConfig, manifest: Manifest, engine: EngineProcess, frontend: TextFrontend
    ) -> None:
        self.config = config
        self.manifest = manifest
        self.engine = engine
        self.model = config.model_name or manifest.name
        self._frontend = frontend
        self._fitted: Ready | None = None
        self._created = int(time.time())
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")

    @property
    def context_length(self) -> int:
        """Tokens that a request may have, as far as is known: the cache may hold less than the model."""
        model = self.manifest.dimensions.context_length
        return model if self.engine.engine is None else min(model, self.engine.engine.context_length)

    @property
    def text(self) -> TextFrontend:
        """The text side, told how long a sequence the cache of the engine that runs now can hold."""
        ready = self.engine.engine
        if ready is not None and ready is not self._fitted:
            self._frontend.fit(ready.context_length)
            self._fitted = ready
        return self._frontend

    def params(self, given: dict[str, Any], max_tokens: int | None) -> SamplingParams:
        """SamplingParams with the model's own defaults for what is None; max_tokens None is what there is room for.

        Raises InvalidRequest naming the field that is out of range.
        """
        params = self._frontend.default_params(**given, max_tokens=MOST if max_tokens is None else max_tokens)
        return params if max_tokens is not None else msgspec.structs.replace(params, max_tokens=None)

    def terms(self, asked: ServiceTerms, tenant: str) -> ServiceTerms:
        """What a request of a tenant is served on: the server's timeouts are the most that it can ask for.

        Tenants share no cached blocks, unless the configuration lets them.
        """
        config = self.config
        return msgspec.structs.replace(
            asked,
            tenant=tenant,
            cache_salt=salted(tenant, asked.cache_salt) if config.isolate_tenants else asked.cache_salt,
            queue_timeout=_least(asked.queue_timeout, config.queue_timeout),
            timeout=_least(asked.timeout, config.request_timeout),
        )

    def card(self) -> ModelCard:
        return ModelCard(
            id=self.model, created=self._created, max_model_len=self.context_length, root=self.manifest.name
        )

    def admit(self, model: str | None) -> None:
        """Raise UnknownModel for another model's name, EngineUnavailable when nothing new is taken."""
        if self.engine.draining:
            raise self.engine.unavailable()
        if model is not None:
            self.check_model(model)

    def check_model(self, model: str) -> None:
        """Raise UnknownModel for another model's name."""
        if model != self.model:
            raise UnknownModel(
                f"There is no model {model!r} here.", remedy=f"The model is called {self.model!r}.", param="model"
            )

    async def text_work(self, size: int, work: Callable[[], Result]) -> Result:
        """Do work on `size` characters of text, in a thread when it would hold up the event loop."""
        if size <= LARGE_TEXT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """End the threads, without waiting for work that nobody waits for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _least(asked: float | None, most: float | None) -> float | None:
    """The tighter of two timeouts; one that is no number stays, to be refused by its name."""
    if asked is None or most is None:
        return most if asked is None else asked
    return most if asked > most else asked


SERVICE: web.AppKey[Service] = web.AppKey("service")
