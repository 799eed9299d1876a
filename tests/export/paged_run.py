"""Runs a lowered step graph in ONNX Runtime over a paged cache, as an executor does, without a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from export.lowering import LoweredModel
from ops.library import register

BLOCK = 4
BLOCKS = 64
Work = Sequence[tuple[str, Sequence[int]]]


def save(lowered: LoweredModel, path: Path) -> Path:
    """Write the step graph with its weights beside it."""
    model = lowered.step.clone()
    for name, stored in lowered.tensors.items():
        value = model.graph.initializers[name]
        content = b"".join(chunk.tobytes() for chunk in stored.chunks())
        array = np.frombuffer(content, stored.dtype).reshape([int(dim) for dim in value.shape or ()])
        value.const_value = ir.tensor(array, name=name)
    ir.save(model, path)
    return path


class PagedRun:
    """One session and its caches; sequences are named and get blocks, in an order that is not theirs, as they
    grow."""

    def __init__(self, lowered: LoweredModel, path: Path, activations: str = "int8") -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        register(options, activations=activations)
        self.session = onnxruntime.InferenceSession(
            save(lowered, path), options, providers=["CPUExecutionProvider"]
        )
        self.lowered = lowered
        self.caches = {
            cache.name: onnxruntime.OrtValue.ortvalue_from_numpy(
                np.full((BLOCKS, BLOCK, *cache.shape), np.nan, cache.dtype)
            )
            for cache in lowered.cache_tensors
        }
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        self.free = list(np.random.default_rng(5).permutation(BLOCKS))

    def step(self, work: Work) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Run tokens of sequences as one step; logits of every row."""
        ids, positions, slots, starts = [], [], [], [0]
        for name, tokens in work:
            table, start = self.tables.setdefault(name, []), self.lengths.get(name, 0)
            self.lengths[name] = start + len(tokens)
            while len(table) * BLOCK < self.lengths[name]:
                table.append(int(self.free.pop()))
            for position, token in enumerate(tokens, start):
                ids.append(token)
                positions.append(position)
                slots.append(table[position // BLOCK] * BLOCK + position % BLOCK)
            starts.append(len(ids))
        lengths = [self.lengths[name] for name, _ in work]
        tables = np.zeros((len(work), max(len(self.tables[name]) for name, _ in work)), np.int32)
        for row, (name, _) in enumerate(work):
            tables[row, : len(self.tables[name])] = self.tables[name]
        decodes = sum(len(tokens) == 1 for _, tokens in work)
        longest = max(len(tokens) for _, tokens in work)
        feeds = {
            "input_ids": np.array(ids, np.int64),
            "positions": np.array(positions, np.int64),
            "query_start": np.array(starts, np.int32),
            "seq_lens": np.array(lengths, np.int32),
            "logit_rows": np.arange(len(ids), dtype=np.int64),
            "plan": np.array([decodes, len(work) - decodes, longest, max(lengths), len(ids), len(work)], np.int32),
        }
        for group in range(len(self.lowered.cache_groups)):
            feeds[f"block_tables.{group}"] = tables
            feeds[f"slot_mapping.{group}"] = np.array(slots, np.int32)
        return self._run(feeds)

    def _run(
        self, feeds: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        binding = self.session.io_binding()
        declared = {entry.name for entry in self.session.get_inputs()}
        assert declared == feeds.keys() | self.caches.keys()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for cache in self.lowered.cache_tensors:
            binding.bind_ortvalue_input(cache.name, self.caches[cache.name])
            binding.bind_ortvalue_output(cache.output, self.caches[cache.name])
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)
        names = [entry.name for entry in self.session.get_outputs()]
        bound = [cache.output for cache in self.lowered.cache_tensors] + ["logits"]
        assert sorted(names) == sorted(bound)
        return binding.get_outputs()[len(bound) - 1].numpy()


def two_sequences(run: PagedRun, first: Sequence[int], second: Sequence[int]) -> dict[str, np.ndarray]:
    """Teacher-forced logits of two sequences: prefill in chunks of unequal sizes beside each other, one
    sequence decoding while the other prefills, then both decoding packed. By name "first", "second"."""
    rest = {"first": list(first), "second": list(second)}
    pieces: dict[str, list[np.ndarray]] = {"first": [], "second": []}
    plan = [(("first", 7),), (("first", 5), ("second", 3)), (("first", 1), ("second", 6)), (("second", 1),)]
    while plan or any(rest.values()):
        chosen = plan.pop(0) if plan else (("first", 1), ("second", 1))
        work = [(name, rest[name][:count]) for name, count in chosen if rest[name]]
        work.sort(key=lambda item: len(item[1]) > 1)
        logits = run.step(work)
        row = 0
        for name, tokens in work:
            pieces[name].append(logits[row : row + len(tokens)])
            rest[name] = rest[name][len(tokens) :]
            row += len(tokens)
    return {name: np.concatenate(parts) for name, parts in pieces.items()}
