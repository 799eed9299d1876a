"""Sample, the choice: minimal probability, top-k, top-p and the draw, without sorting a row.

Probabilities are whole numbers of 2^-44 of the most likely token's, so their sums do not depend on any order. What
is less likely than one of these (31 temperatures below) is never drawn, and so may be left out by top-k and top-p.

Levels cut a row at scores falling by a third of their distance to the best each. The lowest level that surely holds
what top-k and top-p keep is gathered into a short list, in the order of ids; in it the cut is found digit by digit
of the scores' bits, from the top (radix selection). Where the list is too short, the row itself is searched.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ops.triton.sample import (
    FORCED,
    MIN_P,
    NOWHERE,
    NUMBERS,
    POSITION,
    SEED,
    SETTINGS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

#: Below it a temperature cannot be divided by in float32; as cold as this, the best token always wins.
COLDEST = tl.constexpr(1e-30)
UNITS = tl.constexpr(float(2**44))
#: Levels sum in coarser units, rounded down, beside a count in the lowest bits.
COARSE_UNIT = tl.constexpr(2**16)
COUNTS = tl.constexpr(2**16)
LEVELS = tl.constexpr(16)
#: log2 of how much further away from the best the next level reaches; the last one holds all.
LEVEL_STEP = tl.constexpr(0.35)
FARTHEST = tl.constexpr(31.0)
DIGITS = tl.constexpr(16)


@triton.jit
def lowest_score(settings, row, peak):
    """The least score that min_p keeps, -inf for all."""
    share = tl.load(settings + row * SETTINGS + MIN_P)
    temperature = tl.maximum(tl.load(settings + row * SETTINGS + TEMPERATURE), COLDEST)
    fraction = tl.log(tl.where(share > 0, share, 1.0).to(tl.float64))
    bound = peak.to(tl.float64) + temperature.to(tl.float64) * fraction
    near = bound.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    above = tl.where(near == 0.0, 1, bits + tl.where(near > 0.0, 1, -1)).to(tl.float32, bitcast=True)
    return tl.where(share > 0, tl.where(near.to(tl.float64) < bound, above, near), float("-inf"))


@triton.jit
def weigh(score, peak, coldness, lowest):
    """How far scores are below the best, in temperatures, and their weights int64 in UNITS, 0 for what is out."""
    distance = (peak - score) * coldness
    weight = (tl.exp(-distance) * UNITS).to(tl.int64)
    return distance, tl.where((score > float("-inf")) & (score >= lowest), weight, 0)


@triton.jit
def weight_of(score, peak, coldness, lowest):
    """The weights alone."""
    return weigh(score, peak, coldness, lowest)[1]


@triton.jit
def reach_of(level):
    """The distance up to which a level holds tokens."""
    steps = level + tl.full([], 1 - LEVELS, tl.int32)
    return FARTHEST * tl.exp2(steps.to(tl.float32) * LEVEL_STEP)


@triton.jit
def draws(settings, numbers, row, peak, raw_peak):
    """Whether a row's token is drawn: it has a temperature, is not forced, and its scores are usable."""
    warm = tl.load(settings + row * SETTINGS + TEMPERATURE) > 0
    free = tl.load(numbers + row * NUMBERS + FORCED) < 0
    return warm & free & (tl.abs(peak) < float("inf")) & (tl.abs(raw_peak) < float("inf"))


@triton.jit
def best_of(peaks, row, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(peaks + row * parts + part, mask=part < parts, other=float("-inf")), axis=0)


@triton.jit
def sample_weigh_kernel(
    scores,
    settings,
    numbers,
    raw_peaks,
    peaks,
    masses,
    levels,
    columns,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """A part's weight, masses int64 [rows, parts], and what each level holds of it, levels int64
    [rows, parts, LEVELS]. Grid (rows, parts)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak = best_of(peaks, row, parts, PARTS)
    if not draws(settings, numbers, row, peak, best_of(raw_peaks, row, parts, PARTS)):
        return
    coldness = tl.div_rn(1.0, tl.maximum(tl.load(settings + row * SETTINGS + TEMPERATURE), COLDEST))
    at = part * PART + tl.arange(0, PART)
    score = tl.load(scores + row * columns + at, mask=at < columns, other=float("-inf"))
    distance, weight = weigh(score, peak, coldness, lowest_score(settings, row, peak))
    tl.store(masses + row * parts + part, tl.sum(weight, axis=0))
    packed = tl.where(weight > 0, weight // COARSE_UNIT * COUNTS + 1, 0)
    for level in range(LEVELS):
        held = tl.where((distance <= reach_of(level)) | (level == LEVELS - 1), packed, 0)
        tl.store(levels + (row * parts + part) * LEVELS + level, tl.sum(held, axis=0))


@triton.jit
def goal_of(share, mass):
    """The least whole number that is no less than share * mass."""
    exact = share.to(tl.float64) * mass.to(tl.float64)
    whole = exact.to(tl.int64)
    return whole + (whole.to(tl.float64) < exact).to(tl.int64)


@triton.jit
def sample_gather_kernel(
    scores,
    settings,
    numbers,
    raw_peaks,
    peaks,
    masses,
    levels,
    found,
    found_scores,
    found_ids,
    columns,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    ROOM: tl.constexpr,
):
    """The tokens of the level that holds all that top-k and top-p keep: found int32 [rows], how many, -1 where
    there is no room for them; found_scores, found_ids [rows, ROOM]. Grid (rows, parts)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak = best_of(peaks, row, parts, PARTS)
    if not draws(settings, numbers, row, peak, best_of(raw_peaks, row, parts, PARTS)):
        return
    top_k = tl.load(numbers + row * NUMBERS + TOP_K)
    share = tl.load(settings + row * SETTINGS + TOP_P)
    counted = (top_k > 0) & (top_k < columns)
    if (not counted) & (share >= 1.0):
        return
    every = tl.arange(0, PARTS)
    level = tl.arange(0, LEVELS)
    packed = tl.load(
        levels + (row * parts + every[:, None]) * LEVELS + level[None, :], mask=(every < parts)[:, None], other=0
    )
    counts = packed % COUNTS
    held = tl.sum(counts, axis=0)
    if counted:
        enough = held >= top_k
    else:
        mass = tl.sum(tl.load(masses + row * parts + every, mask=every < parts, other=0), axis=0)
        enough = tl.sum(packed // COUNTS, axis=0) * COARSE_UNIT >= goal_of(share, mass)
    chosen = tl.min(tl.where(enough, level, LEVELS - 1), axis=0)
    total = tl.sum(tl.where(level == chosen, held, 0), axis=0)
    if part == 0:
        tl.store(found + row, tl.where(total > ROOM, -1, total).to(tl.int32))
    if total > ROOM:
        return
    earlier = (every < part)[:, None] & (level == chosen)[None, :]
    place = tl.sum(tl.sum(tl.where(earlier, counts, 0), axis=1), axis=0)
    coldness = tl.div_rn(1.0, tl.maximum(tl.load(settings + row * SETTINGS + TEMPERATURE), COLDEST))
    at = part * PART + tl.arange(0, PART)
    score = tl.load(scores + row * columns + at, mask=at < columns, other=float("-inf"))
    distance, weight = weigh(score, peak, coldness, lowest_score(settings, row, peak))
    taken = (weight > 0) & ((distance <= reach_of(chosen)) | (chosen == LEVELS - 1))
    target = row * ROOM + place + tl.cumsum(taken.to(tl.int32), axis=0) - 1
    tl.store(found_scores + target, score, mask=taken)
    tl.store(found_ids + target, at, mask=taken)


@triton.jit
def ordered(score):
    """Whole numbers int64 in [0, 2^32) in the order of float32 scores; both zeros are one."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def cut_at(tokens, count, peak, coldness, lowest, goal, WEIGHTS: tl.constexpr, TILE: tl.constexpr):
    """The largest key at and above which tokens number, or with WEIGHTS weigh, at least `goal`, and what is above
    it; key 0 where all together do not reach it. tokens: the address of `count` scores."""
    digit = tl.arange(0, DIGITS)
    prefix = tl.full([], 0, tl.int64)
    above = tl.full([], 0, tl.int64)
    for step in range(8):
        shift = 28 - 4 * step
        sums = tl.zeros([DIGITS], tl.int64)
        for start in range(0, count, TILE):
            at = start + tl.arange(0, TILE)
            score = tl.load(tokens + at, mask=at < count, other=float("-inf"))
            weight = weight_of(score, peak, coldness, lowest)
            value = weight if WEIGHTS else (weight > 0).to(tl.int64)
            key = ordered(score) >> shift
            here = key[None, :] == (prefix * DIGITS + digit)[:, None]
            sums += tl.sum(tl.where(here, value[None, :], 0), axis=1)
        # From the largest digit down: what is at and above each.
        at_least = above + tl.sum(tl.where(digit[None, :] >= digit[:, None], sums[None, :], 0), axis=1)
        chosen = tl.max(tl.where(at_least >= goal, digit, 0), axis=0)
        above += tl.sum(tl.where(digit > chosen, sums, 0), axis=0)
        prefix = prefix * DIGITS + chosen
    return prefix, above


@triton.jit
def sample_choose_kernel(
    scores,
    settings,
    numbers,
    raw_peaks,
    peaks,
    firsts,
    masses,
    found,
    found_scores,
    found_ids,
    ids,
    status,
    columns,
    parts,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
):
    """ids int64 [rows] and status int32 [rows] (ops.sample_columns.RowStatus). Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    raw_peak = best_of(raw_peaks, row, parts, PARTS)
    peak = best_of(peaks, row, parts, PARTS)
    forced = tl.load(numbers + row * NUMBERS + FORCED)
    temperature = tl.load(settings + row * SETTINGS + TEMPERATURE)
    every = tl.arange(0, PARTS)
    usable = tl.abs(raw_peak) < float("inf")
    decided = (forced >= 0) | (temperature <= 0) | (tl.abs(peak) == float("inf")) | (not usable)
    if decided:
        best = tl.load(peaks + row * parts + every, mask=every < parts, other=float("-inf"))
        first = tl.load(firsts + row * parts + every, mask=every < parts, other=NOWHERE)
        greedy = tl.min(tl.where(best == peak, first, NOWHERE), axis=0).to(tl.int64)
        wrong = tl.where(peak == float("inf"), 1, tl.where(peak == float("-inf"), 2, 0))
        wrong = tl.where(usable, tl.where(forced >= 0, 0, wrong), 1)
        tl.store(ids + row, tl.where(wrong != 0, 0, tl.where(forced >= 0, forced, greedy)))
        tl.store(status + row, wrong)
        return
    tl.store(status + row, 0)
    coldness = tl.div_rn(1.0, tl.maximum(temperature, COLDEST))
    lowest = lowest_score(settings, row, peak)
    position = tl.load(numbers + row * NUMBERS + POSITION).to(tl.uint64)
    low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
    seed = tl.load(numbers + row * NUMBERS + SEED).to(tl.uint64)
    zero = low * 0
    words = tl.philox(seed, low, high, zero, zero)
    mantissa = ((words[0].to(tl.uint64) << 32) | words[1].to(tl.uint64)) >> 11
    number = mantissa.to(tl.float64) * (1.0 / 9007199254740992.0)
    top_k = tl.load(numbers + row * NUMBERS + TOP_K)
    share = tl.load(settings + row * SETTINGS + TOP_P)
    counted = (top_k > 0) & (top_k < columns)
    if (not counted) & (share >= 1.0):
        mass = tl.load(masses + row * parts + every, mask=every < parts, other=0)
        total = tl.sum(mass, axis=0)
        target = tl.minimum((number * total.to(tl.float64)).to(tl.int64), total - 1)
        reached = tl.cumsum(mass, axis=0)
        part = tl.min(tl.where(reached > target, every, PARTS - 1), axis=0)
        before = tl.sum(tl.where(every < part, mass, 0), axis=0)
        at = part * PART + tl.arange(0, PART)
        score = tl.load(scores + row * columns + at, mask=at < columns, other=float("-inf"))
        weight = weight_of(score, peak, coldness, lowest)
        drawn = tl.min(tl.where(before + tl.cumsum(weight, axis=0) > target, at, NOWHERE), axis=0)
        tl.store(ids + row, drawn.to(tl.int64))
        return
    listed = tl.load(found + row)
    tokens = scores + row * columns
    count = columns
    if listed >= 0:
        tokens = found_scores + row * ROOM
        count = listed
    least = tl.full([], 0, tl.int64)
    above = tl.full([], 0, tl.int64)
    if counted:
        least, above = cut_at(tokens, count, peak, coldness, lowest, top_k, False, TILE)
    total = tl.full([], 0, tl.int64)
    for start in range(0, count, TILE):
        at = start + tl.arange(0, TILE)
        score = tl.load(tokens + at, mask=at < count, other=float("-inf"))
        weight = weight_of(score, peak, coldness, lowest)
        total += tl.sum(tl.where(ordered(score) >= least, weight, 0), axis=0)
    equals = tl.full([], 9223372036854775807, tl.int64)
    if share < 1.0:
        if not counted:
            # Top-p's share is of the whole row, of which the list may hold less.
            total = tl.sum(tl.load(masses + row * parts + every, mask=every < parts, other=0), axis=0)
        goal = goal_of(share, total)
        least, above = cut_at(tokens, count, peak, coldness, lowest, goal, True, TILE)
        best = tl.full([], 0, tl.int64)
        for start in range(0, count, TILE):
            at = start + tl.arange(0, TILE)
            score = tl.load(tokens + at, mask=at < count, other=float("-inf"))
            weight = weight_of(score, peak, coldness, lowest)
            best = tl.maximum(best, tl.max(tl.where(ordered(score) == least, weight, 0), axis=0))
        # Equally likely tokens are taken in the order of ids until the mass before one reaches the goal.
        equals = tl.maximum((goal - above + best - 1) // tl.maximum(best, 1), 1)
        total = above + equals * best
    target = tl.minimum((number * total.to(tl.float64)).to(tl.int64), total - 1)
    drawn = tl.full([], NOWHERE, tl.int32)
    reached = tl.full([], 0, tl.int64)
    passed = tl.full([], 0, tl.int64)
    for start in range(0, count, TILE):
        at = start + tl.arange(0, TILE)
        score = tl.load(tokens + at, mask=at < count, other=float("-inf"))
        weight = weight_of(score, peak, coldness, lowest)
        key = ordered(score)
        equal = (key == least) & (weight > 0)
        rank = passed + tl.cumsum(equal.to(tl.int64), axis=0)
        kept = (key > least) | (equal & (rank <= equals))
        running = reached + tl.cumsum(tl.where(kept, weight, 0), axis=0)
        drawn = tl.minimum(drawn, tl.min(tl.where(running > target, at, NOWHERE), axis=0))
        reached += tl.sum(tl.where(kept, weight, 0), axis=0)
        passed += tl.sum(equal.to(tl.int64), axis=0)
    named = tl.load(found_ids + row * ROOM + drawn, mask=listed >= 0, other=0)
    tl.store(ids + row, tl.where(listed >= 0, named, drawn).to(tl.int64))
