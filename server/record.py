"""RequestRecord: what is known of one HTTP request, carried along with it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class RequestRecord:
    """id: the client's or a new one. began: seconds, of the monotonic clock. logged: more for its log line."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.perf_counter)
    logged: dict[str, Any] = field(default_factory=dict)

    @property
    def milliseconds(self) -> float:
        return round((time.perf_counter() - self.began) * 1000, 1)


RECORD: web.RequestKey[RequestRecord] = web.RequestKey("record", RequestRecord)
