"""Family: what is particular to a model family, as data and a few checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ops.errors import CheckpointError, UnsupportedModel

Config = Mapping[str, Any]

#: Rotary scalings whose angles depend on the position alone, and those that look at the sequence's length.
FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
LENGTH_ROPE = frozenset({"dynamic", "longrope", "su"})
#: Tokens; positions are 32-bit integers.
LONGEST_CONTEXT = 2**31 - 1
#: transformers makes lists of a layer or a label each, so absurd numbers would take all memory.
MOST_LAYERS = 10_000
#: Fields of config.json that no language model needs.
NOT_READ = frozenset({"quantization_config", "num_labels", "id2label", "label2id"})
#: What transformers raises for a configuration that makes no sense.
UNSOUND = (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RuntimeError, IndexError)


@dataclass(frozen=True)
class Family:
    """A family of decoder-only models. Subclasses add checks where a configuration may ask for more than the
    operators do.

    name: as people say it. model_types: values of config.json's model_type. stop_tokens: texts of special
    tokens that end a turn besides the configuration's own end of sequence. tool_format, reasoning_format: how
    the chat models of the family write tool calls and reasoning, None where they write none.
    """

    name: str
    model_types: tuple[str, ...]
    stop_tokens: tuple[str, ...] = ()
    tool_format: str | None = None
    reasoning_format: str | None = None

    def check(self, config: Config) -> None:
        """Raise UnsupportedModel, naming what is missing, when the content of config.json asks for it."""
        check_rope(self.name, config)

    def parse(self, config: Config) -> Any:
        """The transformers configuration. Raises CheckpointError when config.json does not fit its type."""
        from transformers import CONFIG_MAPPING

        layers = config.get("num_hidden_layers", config.get("n_layer"))
        if isinstance(layers, int) and layers > MOST_LAYERS:
            raise malformed(config, ValueError(f"It has {layers} layers"))
        content = {key: value for key, value in config.items() if key not in NOT_READ}
        try:
            return CONFIG_MAPPING[config["model_type"]].from_dict(content)
        except UNSOUND as error:
            raise malformed(config, error) from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "huggingface_hub":
                raise
            raise malformed(config, error) from error

    def context_length(self, parsed: Any) -> int:
        """Tokens of prompt and answer that the model was made for. Raises CheckpointError when it says none."""
        length = getattr(parsed, "max_position_embeddings", None)
        if not isinstance(length, int) or not 1 <= length <= LONGEST_CONTEXT:
            raise CheckpointError(
                "config.json does not say how long a context may be.",
                why=f"max_position_embeddings is {length!r}." if length else "max_position_embeddings is missing.",
                remedy="Write it into config.json.",
                param="max_position_embeddings",
            )
        return length


def rope_kinds(config: Config) -> set[str]:
    """The kinds of rotary scaling that a configuration asks for, in its old and its new spelling."""
    found: set[str] = set()
    for field in ("rope_scaling", "rope_parameters"):
        value = config.get(field)
        if isinstance(value, Mapping):
            nested = [part for part in value.values() if isinstance(part, Mapping)]
            for part in nested or [value]:
                kind = part.get("rope_type") or part.get("type") or "default"
                found.add(str(kind))
    return found


def check_rope(family: str, config: Config) -> None:
    """Refuse rotary scalings whose angles depend on the longest sequence of a batch, and unknown ones."""
    for kind in sorted(rope_kinds(config) - FIXED_ROPE):
        if kind not in LENGTH_ROPE:
            raise UnsupportedModel(
                f"This {family} checkpoint uses the rotary scaling {kind!r}, which Ortolan does not know.",
                remedy=f"Use a checkpoint with one of {', '.join(sorted(FIXED_ROPE))}.",
                param="rope_scaling",
            )
        raise UnsupportedModel(
            f"This {family} checkpoint uses the rotary scaling {kind!r}.",
            why="It chooses its angles by the length of the whole sequence, so keys that are in the cache already "
            "would have to be turned anew when a sequence grows.",
            remedy="Use a checkpoint without it (linear, llama3 and yarn scaling work).",
            param="rope_scaling",
        )


def refuse(family: str, feature: str, param: str) -> UnsupportedModel:
    """The error for one feature of a family that Ortolan lacks."""
    return UnsupportedModel(
        f"This {family} checkpoint needs {feature}, which Ortolan does not have.",
        remedy="Use a checkpoint of the family without it.",
        param=param,
    )


def malformed(config: Config, error: Exception) -> CheckpointError:
    """The error for a configuration that transformers cannot use."""
    return CheckpointError(
        f"config.json is not a sound configuration of type {config.get('model_type')!r}.",
        why=str(error).strip().splitlines()[-1][:300] if str(error).strip() else type(error).__name__,
        remedy="Fetch the file again, or correct the field it names.",
        param="config.json",
    )
