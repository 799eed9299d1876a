"""DraftLength: how many drafts a request is worth at the moment."""

from __future__ import annotations

from dataclasses import dataclass

_FORGETTING = 0.95
_FIRST_ACCEPTED = 1.0
_FIRST_TRIED = 2.0
_WORTH = 1.03
_PROBED = 2
_FIRST_PAUSE = 16
_LONGEST_PAUSE = 512


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of the step that the drafts would be verified in.

    base: of the step, shared by `rows` sequences. per_token: for each token more. proposing: for each draft before.
    """

    base: float
    per_token: float
    rows: int
    proposing: float = 0.0


class DraftLength:
    """Learns how often a request's drafts hold, and weighs that against what verifying them costs.

    If each draft holds with probability a, k of them give (1 - a^(k+1)) / (1 - a) tokens a step (Leviathan et al.,
    "Fast Inference from Transformers via Speculative Decoding", 2023, arXiv 2211.17192, equation 1). The k is
    chosen that gives most tokens a second. When even the best is hardly better than none, there are no drafts for a
    while, and then some to see whether the text has changed; the while grows each time that it has not.
    """

    __slots__ = ("_accepted", "_most", "_pause", "_paused", "_tried", "accepted", "drafted")

    def __init__(self, most: int) -> None:
        """most: drafts at a time. Attributes: drafted, accepted: counts so far."""
        self._most = most
        self._accepted = _FIRST_ACCEPTED
        self._tried = _FIRST_TRIED
        self._pause = _FIRST_PAUSE
        self._paused = 0
        self.drafted = self.accepted = 0

    @property
    def rate(self) -> float:
        """The probability that a draft holds, given that those before it did."""
        return self._accepted / self._tried

    def choose(self, cost: StepCost) -> int:
        """How many drafts to ask for in the next step; to be called once a step."""
        if self._paused > 0:
            self._paused -= 1
            return 0 if self._paused else self._probe()
        best = self._best(cost)
        if not best:
            self._paused = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return best

    def _probe(self) -> int:
        """A few drafts in spite of the rate, whose outcome weighs more than what came before."""
        keep = min(1.0, _FIRST_TRIED / self._tried)
        self._accepted *= keep
        self._tried *= keep
        return min(_PROBED, self._most)

    def _best(self, cost: StepCost) -> int:
        share = cost.base / max(1, cost.rows) + cost.per_token
        best, value = 0, _WORTH / share
        tokens, power = 1.0, 1.0
        for count in range(1, self._most + 1):
            power *= self.rate
            tokens += power
            each = tokens / (share + count * (cost.per_token + cost.proposing))
            if each > value:
                best, value = count, each
        return best

    def observe(self, drafted: int, accepted: int) -> None:
        """Of `drafted` drafts the first `accepted` held; the one after them, if any, did not."""
        if not drafted:
            return
        self.drafted += drafted
        self.accepted += accepted
        tried = accepted + (accepted < drafted)
        keep = _FORGETTING**tried
        self._accepted = self._accepted * keep + accepted
        self._tried = self._tried * keep + tried
        if accepted:
            self._pause = _FIRST_PAUSE
