"""CostModel: how long a step takes, learned from the steps that ran."""

from __future__ import annotations

import math

_FORGETTING = 0.995
_LEARNING_STEPS = 16
_OUTLIER = 3.0
_FIRST_COVARIANCE = 1e4
_LARGEST_COVARIANCE = 1e6

TILE = 32
"""Queries of one sequence that share a pass over its context."""


class CostModel:
    """seconds = a + b * tokens + c * attended, where `attended` sums over the step's tokens how many tokens each
    attends to. base, per_token, per_attended: a, b and c as they are believed now, in seconds.

    Fitted by recursive least squares with exponential forgetting (Haykin, "Adaptive Filter Theory", chapter
    on RLS). The residual is taken relative to the prediction, so that long and short steps weigh alike, and
    after the first steps one outlier moves the fit no more than a step three times too long would.
    """

    def __init__(self, base: float = 5e-3, per_token: float = 1e-4, per_attended: float = 1e-7) -> None:
        """What to believe before anything was observed, in seconds."""
        self._scale = (base, per_token, per_attended)
        self._weights = (1.0, 1.0, 1.0)
        self._covariance = (_FIRST_COVARIANCE, 0.0, 0.0, _FIRST_COVARIANCE, 0.0, _FIRST_COVARIANCE)
        """The upper triangle of the symmetric matrix, row by row."""
        self.observed = 0
        self.base, self.per_token, self.per_attended = base, per_token, per_attended

    def predict(self, tokens: float, attended: float) -> float:
        """Seconds of a step."""
        return self.base + self.per_token * tokens + self.per_attended * attended

    def prefill(self, tokens: int, begin: int = 0) -> float:
        """Seconds that computing `tokens` tokens after `begin` others adds to steps that run anyway."""
        return self.per_token * tokens + self.per_attended * attended(begin, tokens)

    def chunk(self, seconds: float, begin: int) -> int:
        """The most tokens after `begin` others that add no more than `seconds` to a step; 0 if none do.

        Solves b n + c attended(begin, n) = seconds for n, which is quadratic beyond one tile.
        """
        if seconds <= 0:
            return 0
        each = self.per_attended / TILE
        linear = self.per_token + each * (begin + 0.5)
        tokens = 2 * seconds / (linear + math.sqrt(linear * linear + 2 * each * seconds))
        if tokens < TILE:
            tokens = (seconds - self.per_attended * (begin + 0.5)) / (self.per_token + self.per_attended / 2)
        return max(0, int(tokens))

    def observe(self, tokens: int, attended: float, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        expected = max(self.predict(tokens, attended), 1e-9)
        if self.observed >= _LEARNING_STEPS:
            seconds = min(seconds, _OUTLIER * expected)
        self.observed += 1
        weight = 1.0 / max(expected, seconds)
        x = self._scale[0] * weight
        y = self._scale[1] * weight * tokens
        z = self._scale[2] * weight * attended
        xx, xy, xz, yy, yz, zz = self._covariance
        u = xx * x + xy * y + xz * z
        v = xy * x + yy * y + yz * z
        w = xz * x + yz * y + zz * z
        gain = 1 / (_FORGETTING + x * u + y * v + z * w)
        a, b, c = self._weights
        step = gain * (seconds * weight - a * x - b * y - c * z)
        self._weights = a, b, c = (a + u * step, b + v * step, c + w * step)
        self.base = max(0.0, a) * self._scale[0]
        self.per_token = max(1e-3, b) * self._scale[1]
        self.per_attended = max(0.0, c) * self._scale[2]
        # Directions that no step excites would grow for ever under forgetting, and the next one to do so would
        # then throw the fit far off.
        grow = 1 / _FORGETTING if max(xx, yy, zz) < _LARGEST_COVARIANCE else 1.0
        self._covariance = (
            (xx - gain * u * u) * grow,
            (xy - gain * u * v) * grow,
            (xz - gain * u * w) * grow,
            (yy - gain * v * v) * grow,
            (yz - gain * v * w) * grow,
            (zz - gain * w * w) * grow,
        )


def attended(begin: int, tokens: int) -> float:
    """Tokens attended to by `tokens` queries after `begin` others, each attending to itself too.

    The queries of a chunk are taken in tiles that read the context together, so a tile counts as one query.
    """
    return (tokens * begin + tokens * (tokens + 1) / 2) / max(1, min(tokens, TILE))
