"""CpuExecutor: ONNX Runtime's CPU provider with Ortolan's kernels, inputs and cache bound in place."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import numpy as np

from ops.errors import BundleDamaged, EngineDied, EngineError, MissingExtra
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor.base import Executor, Float32, Int32, Int64, Payload, StepInputs
from rtcore.executor.cache_memory import CacheMemory, choose_blocks
from rtcore.executor.cpu_sample import CpuSampler, SampleBinding
from rtcore.executor.joined_graph import joined
from rtcore.executor.sample_arrays import INPUTS, OUTPUTS, SampleInputs, SampleOutputs, no_rows
from rtcore.machine import available_cores
from rtcore.manifest import Variant

_LOGITS = "logits"
_FATAL_ONLY = 4


def load(bundle: Bundle, variant: Variant, config: EngineConfig) -> CpuExecutor:
    """The executor of a variant for the target cpu; see rtcore.executor.registry for the errors."""
    blocks = choose_blocks(bundle.manifest, variant, config)
    sampler = load_sampler(bundle, variant, config)
    sample = bundle.read_graph(variant, _sample_name(bundle, variant))
    graph = joined(bundle.read_graph(variant), sample, _LOGITS)
    session = _session(bundle, graph, variant.step, config)
    vocab_size = bundle.manifest.dimensions.vocab_size
    return CpuExecutor(session, sampler, variant, blocks, config.block_size, vocab_size)


def load_sampler(bundle: Bundle, variant: Variant, config: EngineConfig) -> CpuSampler:
    """The sampler of a variant, over logits in host memory. Raises BundleDamaged where the bundle has none."""
    name = _sample_name(bundle, variant)
    return CpuSampler(_session(bundle, bundle.read_graph(variant, name), name, config), name)


def _sample_name(bundle: Bundle, variant: Variant) -> str:
    if variant.sample is None:
        raise BundleDamaged(
            f"The bundle {bundle.path.name} has no graph that chooses tokens.",
            why="It was made by a version of Ortolan that had none.",
            remedy="Export the model anew.",
        )
    return variant.sample


class CpuExecutor(Executor):
    """One session of the step graph, joined with the sample graph, and the cache that it updates in place.

    What a step chooses its tokens with is mostly known before it runs, and then the step chooses them too: a second
    run of a session takes many times as long as the choice. Otherwise the step chooses none, and `sample` does.

    Each cache tensor is one OrtValue over mapped memory, bound to its graph input and to its graph output, so
    that the kernels write where they read and nothing is copied. The step's arrays are bound where they lie;
    logits are written into a buffer that is reserved once and grows to the most rows seen.
    """

    def __init__(
        self, session: Any, sampler: CpuSampler, variant: Variant, blocks: int, block_size: int, vocab_size: int
    ) -> None:
        """session: an onnxruntime.InferenceSession of both graphs joined; sampler: over the sample graph alone."""
        self.block_size = block_size
        self.num_blocks = [blocks] * len(variant.cache_groups)
        self.windows = [group.window for group in variant.cache_groups]
        self.vocab_size = vocab_size
        self._session = session
        self._inputs = {value.name for value in session.get_inputs()}
        self._check_names({value.name for value in session.get_outputs()}, variant)
        self._memory = CacheMemory(variant.cache_tensors, blocks, block_size)
        self._names = [
            [tensor.name for tensor in variant.cache_tensors if tensor.group == group]
            for group in range(len(variant.cache_groups))
        ]
        self._groups = [[self._memory.arrays[name] for name in names] for names in self._names]
        self.block_bytes = [sum(array[0].nbytes for array in arrays) for arrays in self._groups]
        self._binding = session.io_binding()
        self._bind_cache(variant)
        self._logits = np.empty((0, vocab_size), np.float32)
        self._rows = 0
        self._sampler = sampler
        self._choice = SampleBinding(self._binding)
        self._nothing = no_rows(vocab_size)
        self._step: StepInputs | None = None
        self._foreseen: SampleInputs | None = None
        self._chosen: tuple[SampleInputs, SampleOutputs] | None = None
        groups = range(len(variant.cache_groups))
        self._tables = [f"block_tables.{group}" for group in groups]
        self._slots = [f"slot_mapping.{group}" for group in groups]
        self._bound: dict[str, np.ndarray[Any, Any]] = {}
        self._bound_rows = -1

    def _check_names(self, outputs: set[str], variant: Variant) -> None:
        """Raise BundleDamaged unless the graph has the inputs and outputs that a step binds."""
        groups = range(len(variant.cache_groups))
        known = {"input_ids", "positions", "query_start", "seq_lens", "logit_rows", "plan"}
        known |= {f"block_tables.{group}" for group in groups} | {f"slot_mapping.{group}" for group in groups}
        known |= set(INPUTS)
        caches = {tensor.name for tensor in variant.cache_tensors}
        results = {tensor.output for tensor in variant.cache_tensors} | {_LOGITS, *OUTPUTS}
        wrong = (self._inputs - known - caches) | (caches - self._inputs) | (outputs ^ results)
        if wrong:
            raise BundleDamaged(
                f"The graph {variant.step} and the manifest disagree about {', '.join(sorted(wrong)[:4])}.",
                remedy="Export the model anew.",
                param=variant.step,
            )

    def _bind_cache(self, variant: Variant) -> None:
        from onnxruntime import OrtValue

        for tensor in variant.cache_tensors:
            value = OrtValue.ortvalue_from_numpy(self._memory.arrays[tensor.name])
            self._binding.bind_ortvalue_input(tensor.name, value)
            self._binding.bind_ortvalue_output(tensor.output, value)

    def foresee(self, inputs: SampleInputs) -> None:
        self._foreseen = inputs

    def run(self, inputs: StepInputs) -> None:
        if self._session is None:
            raise EngineDied("The executor was closed.")
        foreseen, self._foreseen, self._chosen = self._foreseen, None, None
        rows = len(inputs.logit_rows)
        if inputs is not self._step:
            self._bind_inputs(inputs)
            self._step = inputs
        if rows != self._bound_rows:
            self._bind_logits(rows)
        outputs = self._choice.bind(self._nothing if foreseen is None else foreseen)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            # ONNX Runtime raises a class of its own for each status, without a common root but Exception.
            raise EngineError("A step failed in ONNX Runtime.", why=str(error)) from error
        self._rows = rows
        if foreseen is not None:
            self._chosen = foreseen, outputs

    def logits(self) -> Float32:
        return self._logits[: self._rows]

    def put_logits(self, rows: Int64, logits: Float32) -> None:
        self._logits[rows] = logits
        self._chosen = None

    def sample(self, inputs: SampleInputs) -> SampleOutputs:
        if self._chosen is not None and self._chosen[0] is inputs:
            return self._chosen[1]
        return self._sampler.run(self._logits, inputs)

    def _bind_inputs(self, inputs: StepInputs) -> None:
        """Bind the arrays of a step, but those that are the very arrays of the step before."""
        bound = self._bound
        for name, array in self._named(inputs):
            if bound.get(name) is not array and name in self._inputs:
                self._binding.bind_cpu_input(name, array)
                bound[name] = array

    def _bind_logits(self, rows: int) -> None:
        """Let the graph write its logits to the first rows of the buffer, which grows to the most rows seen."""
        if rows > len(self._logits):
            self._logits = np.empty((rows, self.vocab_size), np.float32)
        self._binding.bind_output(_LOGITS, "cpu", 0, np.float32, (rows, self.vocab_size), self._logits.ctypes.data)
        self._bound_rows = rows

    def _named(self, inputs: StepInputs) -> list[tuple[str, np.ndarray[Any, Any]]]:
        """The arrays of a step with their graph input names."""
        named: list[tuple[str, np.ndarray[Any, Any]]] = [
            ("input_ids", inputs.input_ids),
            ("positions", inputs.positions),
            ("query_start", inputs.query_start),
            ("seq_lens", inputs.seq_lens),
            ("logit_rows", inputs.logit_rows),
            ("plan", inputs.plan),
        ]
        named += zip(self._tables, inputs.block_tables, strict=True)
        named += zip(self._slots, inputs.slot_mapping, strict=True)
        return named

    def copy_blocks(self, group: int, source: Int32, destination: Int32) -> None:
        for origin, target in zip(source.tolist(), destination.tolist(), strict=True):
            for array in self._groups[group]:
                array[target] = array[origin]

    def save_blocks(self, group: int, blocks: Int32) -> Payload:
        return [array[blocks] for array in self._groups[group]]

    def load_blocks(self, group: int, blocks: Int32, payload: Payload) -> None:
        for array, saved in zip(self._groups[group], payload, strict=True):
            array[blocks] = saved

    def release_blocks(self, group: int, blocks: Int32) -> None:
        for name in self._names[group]:
            self._memory.release_blocks(name, blocks)

    def close(self) -> None:
        self._session = None
        self._binding = self._step = None
        self._choice.close()
        self._sampler.close()
        self._memory.release()


def _session(bundle: Bundle, graph: bytes, name: str, config: EngineConfig) -> Any:
    """An InferenceSession of a graph, called `name` in errors, its weights mapped from the bundle's files."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(
            "onnxruntime is not installed.",
            why=str(error),
            remedy="Install the extra for this machine: pip install 'ortolan[cpu]' or 'ortolan[gpu]'.",
        ) from error
    from ops.library import register

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.intra_op_num_threads = config.threads or available_cores()
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # A memory pattern is kept for every set of shapes ever seen, and the shapes of steps keep changing.
    options.enable_mem_pattern = False
    # Threads spin while a step runs and sleep between steps, when the server's process needs the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.path))
    if config.profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = f"{config.profile}-{PurePath(name).stem}"
    register(options, config.kernels, config.activations)
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # As above: ONNX Runtime's errors share no root of their own.
        raise BundleDamaged(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {name}.",
            why=str(error),
            remedy="Check the bundle with `ortolan verify`; if it is whole, export the model with this version.",
            param=name,
        ) from error
