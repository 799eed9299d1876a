"""What the columns of the operator Sample's per-row inputs mean, and the states of its rows."""

from __future__ import annotations

from enum import IntEnum


class Setting(IntEnum):
    """Columns of `settings`, float32."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5


class Number(IntEnum):
    """Columns of `numbers`, int64."""

    SEED = 0
    POSITION = 1
    TOP_K = 2
    LOGPROBS = 3
    FORCED = 4
    MASK = 5


class RowStatus(IntEnum):
    """What became of a row."""

    SOUND = 0
    NOT_FINITE = 1
    NOTHING_ALLOWED = 2


NEUTRAL_SETTINGS = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
"""Settings that choose the most likely token and change nothing else."""

NO_LOGPROBS = -1
NOT_FORCED = -1
NO_MASK = -1
