"""tokenizer.json from a GGUF file's metadata.

Two kinds: byte-level BPE (tokenizer.ggml.model "gpt2", cut into words as tokenizer.ggml.pre says) and
sentencepiece-like BPE ("llama", whose merges follow from the scores). The rules by which text is cut are those of
the models' own tokenizers.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ops.errors import CheckpointError, UnsupportedModel

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
WORD = "▁"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES_ONLY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])


def _by_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), _BYTES_ONLY])


#: How text is cut into words, by tokenizer.ggml.pre.
WORDS: dict[str, pre_tokenizers.PreTokenizer] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "olmo", "mpt", "phi-2", "roberta-bpe"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe"), _by_pattern(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _by_pattern(_QWEN2)),
    "tekken": _by_pattern(_TEKKEN),
}
#: Whole words that are in the vocabulary are not built from merges.
IGNORE_MERGES = {"llama-bpe", "llama3", "llama-v3", "tekken"}
#: Begin with the bos token even where the file does not say so.
ADDS_BOS = {"llama-bpe", "llama3", "llama-v3", "tekken"}
COMPOSES = {"qwen2", "deepseek-r1-qwen", "stablelm2"}


def tokenizer_of(metadata: dict[str, Any], file: str) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer and its tokenizer_config.json. Raises CheckpointError when the metadata is incomplete and
    UnsupportedModel, by name, for a kind that is not built."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{file} holds no tokenizer.", remedy="Convert the model again with its tokenizer.")
    kinds = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not _numbers(kinds, len(tokens)):
        raise CheckpointError(f"{file} has no type for each token.", remedy="Convert the model again.")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens, file)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens, kinds, file)
    else:
        raise UnsupportedModel(
            f"{file} has a tokenizer of the kind {kind!r}, which is not read.",
            why='Read are "gpt2" and "llama".',
            remedy="Export the model's Hugging Face checkpoint.",
        )
    _add_special_tokens(tokenizer, tokens, kinds)
    settings = _settings(metadata, tokens)
    if settings["add_bos_token"]:
        bos = settings["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    return tokenizer, settings


def _byte_level(metadata: dict[str, Any], tokens: list[str], file: str) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in WORDS:
        raise UnsupportedModel(
            f"{file} cuts text by the rule {pre!r}, which is not known.",
            why=f"Known are {', '.join(sorted(WORDS))}.",
            remedy="Export the model's Hugging Face checkpoint.",
        )
    merges = metadata.get("tokenizer.ggml.merges")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges or ()]
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in IGNORE_MERGES)
    except Exception as error:  # tokenizers raises bare Exception for merges outside the vocabulary
        raise _bad_merges(file, error) from error
    tokenizer = Tokenizer(model)
    if pre in COMPOSES:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = WORDS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bad_merges(file: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"The tokenizer of {file} cannot be built.", why=f"{error}.", remedy="Convert the model again."
    )


def _sentencepiece(metadata: dict[str, Any], tokens: list[str], kinds: list[int], file: str) -> Tokenizer:
    scores: Any = metadata.get("tokenizer.ggml.scores")
    if not _numbers(scores, len(tokens)):
        raise CheckpointError(f"{file} has no score for each token.", remedy="Convert the model again.")
    # Runs of spaces are kept as they look; the model sees them after spaces have become WORD.
    vocabulary = {token.replace(" ", WORD): number for number, token in enumerate(tokens)}
    unknown = next((tokens[number] for number, kind in enumerate(kinds) if kind == UNKNOWN), None)
    merges = _merges(vocabulary, scores, kinds)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend(WORD)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", WORD)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(WORD, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float], kinds: list[int]) -> list[tuple[str, str]]:
    """All ways to join two tokens into a third: those of the user first, for sentencepiece finds them before it
    joins anything, then the best score, then the lowest ids."""
    found = []
    for token, number in vocabulary.items():
        if kinds[number] not in (NORMAL, USER_DEFINED):
            continue
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                rank = (kinds[number] != USER_DEFINED, -scores[number], number, left, right)
                found.append((rank, token[:cut], token[cut:]))
    found.sort()
    return [(left, right) for _, left, right in found]


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Tokens that are found in a text before it is cut. Runs of spaces are not among them: merges join them."""
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (UNKNOWN, CONTROL)]
    user = [
        token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED and token.strip(f" {WORD}")
    ]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in user])


def _numbers(values: Any, count: int) -> bool:
    """Whether values is a list of `count` numbers."""
    return (
        isinstance(values, list) and len(values) == count and all(isinstance(item, (int, float)) for item in values)
    )


def _settings(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens by role and whether text begins with bos."""
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            settings[f"{role}_token"] = tokens[number]
    pre = metadata.get("tokenizer.ggml.pre", "default")
    default = metadata.get("tokenizer.ggml.model") == "llama" or pre in ADDS_BOS
    settings["add_bos_token"] = (
        bool(metadata.get("tokenizer.ggml.add_bos_token", default)) and "bos_token" in settings
    )
    settings["add_eos_token"] = False
    return settings
