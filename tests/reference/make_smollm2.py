"""Make smollm2_fp32.json: what transformers generates greedily in fp32 from the weights of the GGUF file.

Run ``python -m tests.reference.make_smollm2`` with the export extra installed. For each prompt it records
the ids, the following 64 greedy ids (past any end of text) and the margin of each (largest minus second
logit). The noise is how far fp32 logits of transformers itself move when only the order of arithmetic
changes: step by step with a cache on two threads against one whole forward with another attention
implementation on one thread.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import assets
from tests.reference.prompts import PROMPTS, Prompt

STEPS = 64
OUTPUT = Path(__file__).with_name("smollm2_fp32.json")


def load(attention: str) -> Any:
    path = assets.smollm2_gguf()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation=attention
    )
    return model.eval()


def load_tokenizer() -> Any:
    """The tokenizer of the file. Its pre-tokenizer ("smollm") splits digits off one by one before the
    byte-level split; the conversion in transformers leaves that step out, so it is put back here."""
    path = assets.smollm2_gguf()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    if not prompt.messages:
        return tokenizer.encode(prompt.text, add_special_tokens=False)
    messages = [{"role": role, "content": content} for role, content in prompt.messages]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)


@torch.inference_mode()
def generate(model: Any, prompt_ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return STEPS greedy ids and the logits [STEPS, vocabulary] that chose them."""
    ids: list[int] = []
    rows = []
    cache = None
    given = prompt_ids
    for _ in range(STEPS):
        output = model(torch.tensor([given]), cache=cache, use_cache=True, logits_to_keep=1)
        cache = output.cache
        rows.append(output.logits[0, -1])
        ids.append(int(rows[-1].argmax()))
        given = ids[-1:]
    return ids, torch.stack(rows)


@torch.inference_mode()
def replay(model: Any, prompt_ids: list[int], ids: list[int]) -> torch.Tensor:
    """Return the logits [STEPS, vocabulary] of one forward over the prompt and the ids."""
    return model(torch.tensor([prompt_ids + ids[:-1]]), use_cache=False, logits_to_keep=len(ids)).logits[0]


def main() -> None:
    tokenizer = load_tokenizer()
    stepwise, whole = load("sdpa"), load("eager")
    entries = []
    noise = 0.0
    for prompt in PROMPTS:
        prompt_ids = encode(tokenizer, prompt)
        torch.set_num_threads(2)
        ids, logits = generate(stepwise, prompt_ids)
        torch.set_num_threads(1)
        moved = float((replay(whole, prompt_ids, ids) - logits).abs().max())
        noise = max(noise, moved)
        top = logits.topk(2).values
        margins = (top[:, 0] - top[:, 1]).tolist()
        print(f"{prompt.name}: {len(prompt_ids)} ids, noise {moved:.2e}, smallest margin {min(margins):.2e}")
        entry: dict[str, Any] = {"name": prompt.name}
        if prompt.messages:
            entry["messages"] = [{"role": role, "content": content} for role, content in prompt.messages]
        else:
            entry["text"] = prompt.text
        entry |= {"prompt_ids": prompt_ids, "ids": ids, "margins": [float(f"{m:.4g}") for m in margins]}
        entries.append(entry)
    head = {
        "model_sha256": assets.MODEL_SHA256,
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "steps": STEPS,
        "noise": float(f"{noise:.3g}"),
    }
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries)
    OUTPUT.write_text(json.dumps(head, indent=1)[:-2] + ',\n "prompts": [\n' + lines + "\n]}\n")
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes, noise {noise:.3e}")


if __name__ == "__main__":
    sys.exit(main())
