"""ServerConfig: how a server runs, as one frozen struct."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ops.errors import ConfigError
from rtcore.config import Activations, EngineConfig, Kernels

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]
Weight = Annotated[float, Meta(gt=0, le=1e6)]
HeaderName = Annotated[str, Meta(pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
Bytes = Annotated[int, Meta(ge=1, extra={"size": True})]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How `ortolan serve` runs. Each field is a flag, a variable and a key of the file, described by its Meta."""

    bundle: Annotated[str, Meta(description="the bundle's directory")]
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")] = 8000
    insecure: Annotated[bool, Meta(description="allow a host that other machines can reach")] = False
    model_name: Annotated[str | None, Meta(description="name that clients call the model by")] = None
    precision: Annotated[str | None, Meta(description="precision to run, by default the bundle's")] = None
    target: Annotated[Literal["cpu", "cuda"], Meta(description="what to run on: cpu or cuda")] = "cpu"
    threads: Annotated[Positive | None, Meta(description="threads of the engine, by default one a core")] = None
    cache_bytes: Annotated[Bytes | None, Meta(description="memory for the KV cache, such as 2GiB")] = None
    block_size: Annotated[Positive, Meta(description="tokens in a cache block")] = 16
    max_step_tokens: Annotated[Positive, Meta(description="tokens in one step at most")] = 512
    max_prefill_chunk: Annotated[Positive | None, Meta(description="tokens of a prompt in a step at most")] = None
    max_sequences: Annotated[Positive, Meta(description="sequences in one step at most")] = 64
    max_queue: Annotated[Positive, Meta(description="waiting requests at most; more get status 503")] = 1024
    max_queue_tokens: Annotated[Positive | None, Meta(description="tokens of waiting requests at most")] = None
    max_wait: Annotated[Seconds, Meta(description="estimated wait from which low priorities get status 503")] = 30.0
    max_batch_delay_ms: Annotated[
        float, Meta(ge=0, le=1e6, description="how long an idle engine waits for more requests to fill a step")
    ] = 0.0
    target_step_ms: Annotated[
        float, Meta(gt=0, le=1e6, description="time of a step that decodes; prompts are cut into chunks to keep it")
    ] = 100.0
    long_tokens: Annotated[Positive, Meta(description="tokens from which a request counts as a long one")] = 4096
    long_share: Annotated[
        float, Meta(gt=0, lt=1, description="of time, places and cache, for long requests when all want more")
    ] = 0.25
    ageing: Annotated[Seconds, Meta(description="seconds of waiting that are worth one priority")] = 10.0
    tenant_header: Annotated[
        HeaderName | None, Meta(description="request header in which a proxy names the tenant it serves")
    ] = None
    tenant_weights: Annotated[
        dict[str, Weight],
        Meta(description="shares of tenants that do not have the weight 1, such as alice=2,bob=0.5"),
    ] = {}
    isolate_tenants: Annotated[bool, Meta(description="share no cache blocks among tenants")] = True
    queue_timeout: Annotated[
        Seconds | None, Meta(description="seconds in which a request must start; it may ask for less")
    ] = None
    request_timeout: Annotated[
        Seconds | None, Meta(description="seconds in which a request must end; it may ask for less")
    ] = None
    prefix_cache: Annotated[bool, Meta(description="keep cache blocks for requests that begin alike")] = True
    cache_ttl: Annotated[Seconds, Meta(description="seconds that an unused cache block stays")] = 3600.0
    cache_tenant_share: Annotated[
        float, Meta(gt=0, le=1, description="of all blocks, for the unused ones of one cache salt")
    ] = 1.0
    swap_bytes: Annotated[
        int, Meta(ge=0, extra={"size": True}, description="host memory for the cache of preempted requests")
    ] = 256 * 2**20
    speculation: Annotated[
        str, Meta(description="who makes drafts that the model verifies: none, ngram, draft, or an installed one")
    ] = "none"
    max_drafts: Annotated[Positive, Meta(description="drafts of one sequence in a step at most")] = 8
    draft_bundle: Annotated[str | None, Meta(description="bundle of a smaller model that makes drafts")] = None
    check: Annotated[
        Literal["full", "sizes"], Meta(description="full hashes the bundle before the start, sizes compares sizes")
    ] = "full"
    kernels: Annotated[Kernels, Meta(description="code path of the CPU kernels")] = "auto"
    activations: Annotated[
        Activations,
        Meta(description="input of quantised products; float32 is exact and slow"),
    ] = "int8"
    max_body_bytes: Annotated[Bytes, Meta(description="size of a request's body at most")] = 8 * 2**20
    body_timeout: Annotated[Seconds, Meta(description="seconds in which a request's body must arrive")] = 30.0
    write_timeout: Annotated[Seconds, Meta(description="seconds until a reader that stalls is cut off")] = 60.0
    drain_timeout: Annotated[Seconds, Meta(description="seconds for what runs to finish on SIGTERM")] = 30.0
    hang_timeout: Annotated[Seconds, Meta(description="silence after which the engine counts as stuck")] = 300.0
    load_timeout: Annotated[Seconds, Meta(description="seconds in which the engine must load")] = 1800.0
    json_logs: Annotated[bool, Meta(description="log JSON lines")] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least level")] = "info"
    log_prompts: Annotated[bool, Meta(description="log prompts too, which are private otherwise")] = False

    def __post_init__(self) -> None:
        if not self.bundle:
            raise ConfigError("No bundle is given.", remedy="Name its directory.", param="bundle")
        if not (self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"{self.host} can be reached from other machines.",
                why="This server has no keys yet, so whoever reaches it may use it.",
                remedy="Listen on 127.0.0.1 behind a proxy that checks who comes, or say --insecure.",
                param="host",
            )

    def engine(self) -> EngineConfig:
        """The engine's share. Raises ConfigError where values do not go together."""
        names = [field for field in EngineConfig.__struct_fields__ if field in self.__struct_fields__]
        return EngineConfig(**{name: getattr(self, name) for name in names})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
