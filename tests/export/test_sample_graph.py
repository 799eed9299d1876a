"""The sample graph: what the CPU executor runs of it, and that bundles hold it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
import onnxruntime

from export.capture.schemas import register_schemas
from export.sample_graph import sample_graph
from ops.library import register
from ops.reference.sample import Sampled
from rtcore.bundle import Bundle
from rtcore.executor.cpu_sample import CpuSampler
from rtcore.executor.sample_arrays import SampleInputs
from tests.ops.sample_case import Row, check, inputs_of


@pytest.mark.parametrize("vocabulary", [1, 32, 100])
def test_the_graph_samples(vocabulary: int) -> None:
    content = sample_graph(vocabulary)
    register_schemas()
    onnx.checker.check_model(content, full_check=True)
    options = onnxruntime.SessionOptions()
    register(options)
    sampler = CpuSampler(onnxruntime.InferenceSession(content, options), "sample.onnx")
    for count in (3, 1, 3):
        logits = np.random.default_rng(count).standard_normal((4, vocabulary)).astype(np.float32)
        rows = [Row(temperature=1.0, position=n, logprobs=n, allowed=[0, vocabulary - 1]) for n in range(count)]
        inputs = inputs_of(logits, rows)
        inputs.pop("logits")
        outputs = sampler.run(logits, SampleInputs(**inputs))
        found = Sampled(*(getattr(outputs, name) for name in Sampled._fields))
        assert check(logits, rows, found) == count


@pytest.mark.export
def test_a_bundle_names_it_for_every_precision(tiny_bundle: Path) -> None:
    with Bundle.open(tiny_bundle, check="sizes") as bundle:
        vocabulary = bundle.manifest.dimensions.vocab_size
        for variant in bundle.manifest.variants:
            assert variant.sample is not None
            assert bundle.read_graph(variant, variant.sample) == sample_graph(vocabulary)
