"""Layers of experts for the tests of Experts, and how far a kernel may be off."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ops.layout import QuantForm
from ops.reference.experts import route
from ops.reference.gated_activation import Activation, activate
from ops.reference.quant_matmul import UNIT, dequantise, float32_activation_bound, int8_activation_bound
from tests.ops.quant_case import random_weights
from tests.ops.runner import Array, run


@dataclass(frozen=True)
class Weight:
    """One weight of all experts, [experts, rows, columns]; form None is float32."""

    form: QuantForm | None
    experts: int
    rows: int
    columns: int

    @cached_property
    def stored(self) -> Array:
        """As the operator takes it."""
        if self.form is not None:
            return random_weights(self.form, self.experts * self.rows, self.columns)
        rng = np.random.default_rng(self.rows + self.columns)
        values = rng.standard_normal((self.experts * self.rows, self.columns)) / self.columns**0.5
        return values.astype(np.float32)

    @cached_property
    def values(self) -> Array:
        """Exactly what is stored, in float64."""
        flat = self.stored.astype(np.float64)
        if self.form is not None:
            flat = dequantise(self.stored, self.form, self.experts * self.rows, self.columns)
        return flat.reshape(self.experts, self.rows, self.columns)

    def attributes(self, prefix: str) -> dict[str, int | str]:
        given: dict[str, int | str] = {"rows": self.experts * self.rows, "columns": self.columns}
        if self.form is not None:
            given |= {"bits": self.form.bits, "group": self.form.group, "minima": int(self.form.minima)}
            given |= {"scales": self.form.scales}
        return {f"{prefix}_{name}": value for name, value in given.items()}

    def bound(self, x: Array, expert: int, exact: bool) -> Array:
        """The largest error of x . W^T of one expert."""
        if self.form is None:
            bound: Array = (self.columns + 8) * UNIT * (np.abs(x) @ np.abs(self.values[expert]).T)
            return bound
        tiles = self.rows // 16
        own = self.stored[expert * tiles : (expert + 1) * tiles]
        of_form = float32_activation_bound if exact else int8_activation_bound
        return of_form(x, own, self.form, self.rows)


@dataclass(frozen=True)
class ExpertCase:
    """experts of hidden -> inner -> hidden, of which each row takes top_k."""

    experts: int
    top_k: int
    hidden: int
    inner: int
    gate_up_form: QuantForm | None = None
    down_form: QuantForm | None = None
    normalise: bool = False
    scale: float = 1.0
    activation: Activation = "silu"

    @cached_property
    def gate_up(self) -> Weight:
        return Weight(self.gate_up_form, self.experts, 2 * self.inner, self.hidden)

    @cached_property
    def down(self) -> Weight:
        return Weight(self.down_form, self.experts, self.hidden, self.inner)

    @property
    def attributes(self) -> dict[str, int | float | str]:
        return {
            "experts": self.experts, "top_k": self.top_k, "normalise": int(self.normalise), "scale": self.scale,
            "activation": self.activation, **self.gate_up.attributes("gate_up"), **self.down.attributes("down"),
        }  # fmt: skip

    def logits(self, count: int) -> Array:
        """Of the router; the first row prefers all experts alike, and the last expert is nobody's."""
        logits = np.random.default_rng(count).standard_normal((count, self.experts)).astype(np.float32)
        logits[:1] = 0.5
        logits[1:, -1] = -20.0
        return logits

    def run(
        self, x: Array, logits: Array, kernels: str = "auto", threads: int = 2, activations: str = "int8"
    ) -> Array:
        """What the operator gives."""
        inputs = {
            "x": x, "logits": logits, "gate_up_weights": self.gate_up.stored, "down_weights": self.down.stored,
        }  # fmt: skip
        return run("Experts", inputs, self.attributes, kernels=kernels, threads=threads, activations=activations)[
            "y"
        ]

    def bound(self, x: Array, logits: Array, exact: bool = False) -> Array:
        """The largest error [T, hidden].

        Of gate and up as QuantMatMul's; the activation passes the gate's on with a slope of at most 1.13; what
        that adds up to goes through down, beside down's own error on the largest numbers it may see. The weights
        of experts and the sum round some units more.
        """
        chosen, weights = route(logits, self.top_k, normalise=self.normalise, scale=self.scale)
        bound = np.zeros((len(x), self.hidden))
        for expert in np.unique(chosen):
            rows, ranks = np.nonzero(chosen == expert)
            gate, up = np.split(x[rows].astype(np.float64) @ self.gate_up.values[expert].T, 2, axis=1)
            of_gate, of_up = np.split(self.gate_up.bound(x[rows], int(expert), exact), 2, axis=1)
            active = activate(gate, self.activation)
            error = 1.13 * of_gate * (np.abs(up) + of_up) + (np.abs(active) + 1e-5) * of_up
            error += 1e-5 * (np.abs(active * up) + 1e-2)
            largest = np.abs(active * up) + error
            down = np.abs(self.down.values[expert])
            of_down = self.down.bound(largest, int(expert), exact) + error @ down.T
            reach = 8 * (self.top_k + 8) * UNIT * (largest @ down.T + of_down)
            bound[rows] += np.abs(weights[rows, ranks])[:, None] * (of_down + reach)
        return bound
