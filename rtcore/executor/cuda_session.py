"""The ONNX Runtime session of the executor cuda, and how its inputs and outputs are bound to device memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.cuda import CudaDevice
from ops.errors import BundleDamaged, EngineError, MissingExtra, OutOfDeviceMemory, WrongTarget
from rtcore.bundle import Bundle
from rtcore.manifest import Variant

PROVIDER = "CUDAExecutionProvider"
_FATAL_ONLY = 4
#: ONNX's numbers of element types (onnx.proto, TensorProto.DataType).
ELEMENT_TYPES = {"float32": 1, "int8": 3, "int32": 6, "int64": 7, "float16": 10, "bfloat16": 16}
_EAGER = -1
LOGITS = "logits"
"""The output that is no cache."""
Place = tuple[int, tuple[int, ...], str]
"""Address, shape and type of an array on the GPU."""


def import_runtime() -> Any:
    """onnxruntime with CUDA's libraries loaded. Raises MissingExtra or WrongTarget."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(
            "onnxruntime is not installed.",
            why=str(error),
            remedy="Install the extra for a GPU: pip install 'ortolan[gpu]'.",
        ) from error
    if PROVIDER not in onnxruntime.get_available_providers():
        raise WrongTarget(
            "The installed onnxruntime has no CUDA provider.",
            why="It is the package for the CPU.",
            remedy="Install the extra for a GPU instead: pip uninstall onnxruntime; pip install 'ortolan[gpu]'.",
            param="target",
        )
    onnxruntime.preload_dlls(cuda=True, cudnn=False, msvc=False)
    return onnxruntime


class CudaSession:
    """One graph on a GPU, run on the device's stream, eagerly or as a captured CUDA graph."""

    def __init__(
        self, runtime: Any, bundle: Bundle, variant: Variant, device: CudaDevice, activations: str
    ) -> None:
        from ops.library import register_cuda

        self._runtime = runtime
        options = runtime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.path))
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        register_cuda(options, device.number, activations)
        settings = {
            "device_id": "0",
            "user_compute_stream": str(device.stream),
            "enable_cuda_graph": "1",
            "arena_extend_strategy": "kSameAsRequested",
            "use_tf32": "0",
        }
        graph = bundle.read_graph(variant)
        try:
            self._session = runtime.InferenceSession(graph, options, providers=[(PROVIDER, settings)])
        except Exception as error:
            # ONNX Runtime raises a class of its own for each status, without a common root but Exception.
            if _out_of_memory(error):
                raise OutOfDeviceMemory(
                    "The GPU's memory does not hold the model.",
                    why=str(error),
                    remedy="Choose a precision with fewer bits, or a GPU with more memory.",
                ) from error
            raise BundleDamaged(
                f"ONNX Runtime {runtime.__version__} cannot load {variant.step}.",
                why=str(error),
                remedy="Check the bundle with `ortolan verify`; if it is whole, export the model anew.",
                param=variant.step,
            ) from error
        if self._session.get_providers()[0] != PROVIDER:
            raise WrongTarget(
                "ONNX Runtime cannot use the GPU.",
                why="Its CUDA provider could not be loaded; its log says why.",
                remedy="Install CUDA's libraries: pip install 'ortolan[gpu]'.",
                param="target",
            )
        self.inputs = {value.name for value in self._session.get_inputs()}
        self.outputs = {value.name for value in self._session.get_outputs()}

    def check_names(self, variant: Variant, groups: int) -> None:
        """Raise BundleDamaged unless the graph has the inputs and outputs that a step with `groups` groups of the
        cache binds."""
        known = {"input_ids", "positions", "query_start", "seq_lens", "logit_rows", "plan"}
        known |= {f"{name}.{group}" for group in range(groups) for name in ("block_tables", "slot_mapping")}
        caches = {tensor.name for tensor in variant.cache_tensors}
        results = {tensor.output for tensor in variant.cache_tensors} | {LOGITS}
        wrong = (self.inputs - known - caches) | (caches - self.inputs) | (self.outputs ^ results)
        if wrong:
            raise BundleDamaged(
                f"The graph {variant.step} and the manifest disagree about {', '.join(sorted(wrong)[:4])}.",
                remedy="Export the model anew.",
                param=variant.step,
            )

    def binding(self) -> Any:
        """A binding of nothing yet.

        A captured graph replays with the addresses that it was captured with: its binding is made once and kept.
        """
        return self._session.io_binding()

    def bind(self, bound: Any, addresses: Mapping[str, Place], plan: Any = None) -> None:
        """Bind inputs and outputs by their names, in place of what they were bound to; `plan` is in host memory."""
        for name, (address, shape, kind) in addresses.items():
            place = ("cuda", 0, ELEMENT_TYPES[kind], shape, address)
            if name in self.inputs:
                bound.bind_input(name, *place)
            elif name in self.outputs:
                bound.bind_output(name, *place)
        if plan is not None and "plan" in self.inputs:
            bound.bind_cpu_input("plan", plan)

    def run(self, binding: Any, graph: int = _EAGER) -> None:
        """Queue a run. graph: the number under which it is captured and replayed, negative runs eagerly."""
        options = self._runtime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph))
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception as error:
            if _out_of_memory(error):
                raise OutOfDeviceMemory(
                    "The GPU has no memory left for a step.",
                    why=str(error),
                    remedy="Give the cache less (cache_bytes), or run fewer tokens a step (max_step_tokens).",
                ) from error
            raise EngineError("A step failed in ONNX Runtime.", why=str(error)) from error


def _out_of_memory(error: Exception) -> bool:
    """Whether a text of ONNX Runtime's allocator or of the driver says so."""
    text = str(error).lower()
    return "out of memory" in text or "failed to allocate memory" in text
