"""The tree of typed errors that every layer raises.

Each error says what happened, why, and what to do about it. The tree knows nothing of HTTP or of
exit codes: `server/errors.py` maps classes to statuses and `server/cli.py` to exit codes.
"""

from __future__ import annotations


class OrtolanError(Exception):
    """Root of the tree.

    what: one sentence, what happened. why: the cause, if known. remedy: what the user can do.
    param: the request field, flag or file that is at fault, if there is one.
    """

    def __init__(self, what: str, *, why: str = "", remedy: str = "", param: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.remedy = remedy
        self.param = param

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.why, self.remedy) if part)


class InvalidRequest(OrtolanError):
    """A request or an argument is wrong; `param` names the field."""


class UnsupportedParameter(InvalidRequest):
    """A request asks for something that this server does not do."""


class ContextLengthExceeded(InvalidRequest):
    """A prompt, or a prompt and its max_tokens, is longer than the model's context."""


class UnknownModel(InvalidRequest):
    """The model named in a request is not served here."""


class ConfigError(OrtolanError):
    """A flag, a key of the configuration file or an environment variable is wrong."""


class MissingExtra(OrtolanError):
    """An optional dependency is not installed; the remedy names the extra."""


class MissingLibrary(OrtolanError):
    """The operators' shared library is not installed, or cannot be loaded here."""


class KernelError(OrtolanError):
    """A GPU kernel cannot be compiled ahead of time."""


class CheckpointError(OrtolanError):
    """A checkpoint cannot be read: a file is missing, truncated or corrupt."""


class UnsupportedModel(CheckpointError):
    """A checkpoint is sound, but its family or a feature of it is not supported."""


class BundleError(OrtolanError):
    """Root of what can be wrong with a bundle."""


class NotABundle(BundleError):
    """The path holds no bundle at all."""


class BundleDamaged(BundleError):
    """A file of the bundle is missing, has the wrong size or the wrong hash, or leaves the bundle."""


class BundleTooNew(BundleError):
    """The bundle's format is newer than this version of Ortolan reads."""


class WrongTarget(BundleError):
    """The bundle holds nothing for the asked precision or for this machine."""


class VerificationFailed(BundleError):
    """The bundle's golden logits are not reproduced here."""


class ResourceError(OrtolanError):
    """Root of what this machine cannot give: memory, cache, disk."""


class CacheTooSmall(ResourceError):
    """The KV cache cannot hold even this one sequence."""


class OutOfDisk(ResourceError):
    """A file could not be written for lack of space."""


class Overloaded(ResourceError):
    """The queue is full; `retry_after` is in seconds."""

    def __init__(self, what: str, *, retry_after: float = 1.0, why: str = "", remedy: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.retry_after = retry_after


class DeadlineUnreachable(Overloaded):
    """The request would not meet its deadline, so it is not taken; `retry_after` is in seconds."""


class DeadlineExceeded(ResourceError):
    """The request waited or ran longer than it asked for."""


class EngineError(OrtolanError):
    """The engine failed while it worked on a request."""


class EngineDied(EngineError):
    """The engine process ended while requests were in flight."""


class OutOfDeviceMemory(EngineError):
    """The GPU has no memory left for what a step needs."""


class EngineUnavailable(EngineError):
    """The engine is not up, starting again, or draining; `retry_after` is in seconds."""

    def __init__(self, what: str, *, retry_after: float = 1.0, why: str = "", remedy: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.retry_after = retry_after
