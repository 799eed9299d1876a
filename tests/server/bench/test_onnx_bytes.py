"""The hand-written model bytes load in ONNX Runtime and multiply."""

from __future__ import annotations

import numpy as np
import onnxruntime

from server.bench.onnx_bytes import product_model


def test_float_product() -> None:
    generator = np.random.default_rng(1)
    weight = generator.standard_normal((300, 7), np.float32)
    x = generator.standard_normal((5, 300), np.float32)
    session = onnxruntime.InferenceSession(product_model("MatMul", 5, weight, "float32", "float32"))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weight, rtol=1e-4, atol=1e-4)


def test_integer_product() -> None:
    generator = np.random.default_rng(2)
    weight = generator.integers(-127, 127, (64, 9), np.int8)
    x = generator.integers(0, 127, (3, 64), np.uint8)
    session = onnxruntime.InferenceSession(product_model("MatMulInteger", 3, weight, "uint8", "int32"))
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.astype(np.int32) @ weight.astype(np.int32))
