"""What --target names, and which precisions each target has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from export.pipeline import ExportOptions
from export.targets import CPU, targets_of
from ops.errors import ConfigError


def test_targets_and_their_architectures() -> None:
    cpu, cuda = targets_of("cpu, cuda:90,cuda:sm_80,cuda:90,cuda:gfx942")
    assert cpu == CPU
    assert [one.name for one in cuda.architectures] == ["sm_90", "sm_80", "gfx942"]
    (every,) = targets_of("cuda")
    assert [one.name for one in every.architectures] == ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]


@pytest.mark.parametrize("text", ["", "tpu", "cuda:", "cuda:75", "cpu:90", "cuda:90,"])
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        targets_of(text)


def test_a_precision_is_exported_for_the_targets_that_have_it(tmp_path: Path) -> None:
    options = ExportOptions(tmp_path, tmp_path / "out", ("fp32", "bf16", "int8"), targets_of("cpu,cuda:90"))
    found = [(recipe.precision, target.name, recipe.float_type) for recipe, target in options.recipes()]
    assert found == [
        ("fp32", "cpu", "float32"),
        ("bf16", "cuda", "bfloat16"),
        ("int8", "cpu", "float32"),
        ("int8", "cuda", "float16"),
    ]


def test_a_cache_of_int8_is_for_a_gpu(tmp_path: Path) -> None:
    options = ExportOptions(tmp_path, tmp_path / "out", ("int8", "bf16"), targets_of("cuda:90"), cache_dtype="int8")
    assert [recipe.cache_dtype for recipe, _ in options.recipes()] == ["int8", "int8"]
    options = replace(options, targets=targets_of("cpu,cuda:90"))
    with pytest.raises(ConfigError, match="CPU") as caught:
        options.recipes()
    assert "float16" in caught.value.remedy
    kept = replace(options, cache_dtype="float32").recipes()
    assert [recipe.cache_dtype for recipe, _ in kept] == ["float32", "float16", "bfloat16"]
    with pytest.raises(ConfigError, match="float32"):
        replace(options, targets=targets_of("cuda:90"), cache_dtype="float32").recipes()


def test_a_precision_that_no_target_has_is_refused(tmp_path: Path) -> None:
    options = ExportOptions(tmp_path, tmp_path / "out", ("bf16",))
    with pytest.raises(ConfigError, match="bf16"):
        options.recipes()
