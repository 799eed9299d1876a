"""Rewrites of a captured graph, one small class a file, and the order in which they run."""

from __future__ import annotations

from export.capture.captured import CapturedModel
from export.passes.add_rms_norm import FuseAddRMSNorm
from export.passes.base import Pass
from export.passes.drop_batch import DropBatch
from export.passes.experts import FuseExperts
from export.passes.gated_activation import FuseGatedActivation
from export.passes.head_rows import SelectHeadRows
from export.passes.merge_linears import MergeLinears
from export.passes.paged_attention import FusePagedAttention
from export.passes.split_slices import SplitSlices
from export.passes.tidy import Tidy
from export.passes.unpack_heads import UnpackHeads

PASSES: tuple[type[Pass], ...] = (
    Tidy,
    SelectHeadRows,
    SplitSlices,
    UnpackHeads,
    MergeLinears,
    Tidy,
    FusePagedAttention,
    FuseGatedActivation,
    Tidy,
    DropBatch,
    Tidy,
    FuseExperts,
    FuseAddRMSNorm,
    Tidy,
)


def run_passes(captured: CapturedModel) -> None:
    """Bring a captured graph into its final semantic form."""
    for kind in PASSES:
        kind().run(captured)
