"""A tiny random Llama in Hugging Face's layout, with a tokenizer of its own and a ChatML template."""

from __future__ import annotations

import json
from pathlib import Path

CONTEXT = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog while the rain in Spain stays mainly in the plain.",
    "What is the capital of France? The capital of France is Paris, and that of Japan is Tokyo.",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(i, add(i, 1))",
    "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen.",
    "You are a helpful assistant. Please answer the question of the user as well as you can.",
)


def write_tokenizer(folder: Path) -> int:
    """Write tokenizer files into `folder` and return the vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "chat_template": TEMPLATE,
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    return tokenizer.get_vocab_size()


def write_tiny_llama(folder: Path, seed: int = 7) -> None:
    """Write config, safetensors, tokenizer and generation config of a Llama of two layers into `folder`.

    All dimensions of the linears are multiples of 32, so that every group size of quantisation fits; heads
    are grouped (4 query heads to 2 key heads).
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    vocabulary = write_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
