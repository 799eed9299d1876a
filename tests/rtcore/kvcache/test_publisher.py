"""Publisher: blocks of running sequences are found as if they had been cached when they became full."""

from __future__ import annotations

import pytest

from rtcore.kvcache.policy import CachePolicy
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from tests.rtcore.kvcache.memory import Memory

PROMPT = [1, 2, 3, 4, 5, 6]
ANSWER = [7, 8, 9, 10, 11, 12, 13]


def running(memory: Memory, prompt: list[int] = PROMPT, answer: list[int] = ANSWER) -> SequenceBlocks:
    """A sequence that has computed its prompt at once and decoded its answer token by token."""
    blocks = memory.open(prompt[:-1])
    rest = prompt[len(memory.tokens[blocks]) :]
    memory.write(blocks, rest)
    memory.manager.note(blocks, blocks.computed, tail=True)
    for token in answer:
        memory.write(blocks, [token], decoded=True)
        memory.check()
    return blocks


def nodes(memory: Memory) -> int:
    return len(memory.manager.cache.index)


def test_another_finds_what_a_running_one_decoded() -> None:
    memory = Memory([16], 4)
    first = running(memory)
    assert nodes(memory) == 1
    second = memory.open([*PROMPT, *ANSWER])
    assert memory.tokens[second] == [*PROMPT, *ANSWER]
    table = memory.manager.tables[0]
    assert table[first.row, :3].tolist() == table[second.row, :3].tolist()
    assert memory.manager.pools[0].references[int(table[first.row, 2])] == 2
    memory.check()
    memory.write(first, [14, 15, 16], decoded=True)
    assert len(memory.tokens[memory.open([*PROMPT, *ANSWER, 14, 15, 16])]) == 16
    memory.check()


def test_the_beginning_of_a_prompts_last_block_is_found_while_its_sequence_decodes() -> None:
    memory = Memory([16], 4)
    running(memory, answer=[7])
    assert nodes(memory) == 1
    assert len(memory.tokens[memory.open([*PROMPT, 20])]) == 6
    memory.check()


def test_what_differs_within_a_decoded_block_is_found_up_to_there() -> None:
    memory = Memory([16], 4)
    running(memory)
    assert len(memory.tokens[memory.open([*PROMPT, 7, 8, 9, 99, 99, 99])]) == 9
    memory.check()


def test_nothing_is_cached_for_searches_that_go_elsewhere() -> None:
    memory = Memory([16], 4)
    running(memory)
    assert len(memory.tokens[memory.open([*PROMPT[:4], 50, 51, 52, 53, 54])]) == 4
    assert nodes(memory) == 1


def test_the_rest_is_cached_when_a_sequence_ends() -> None:
    memory = Memory([16], 4)
    memory.close(running(memory))
    assert memory.manager.cached_blocks == [4]
    assert memory.run([*PROMPT, *ANSWER]) == 12


def test_equal_answers_share_their_blocks_while_both_run() -> None:
    memory = Memory([16], 4)
    first, second = running(memory), running(memory)
    table = memory.manager.tables[0]
    assert table[first.row, :3].tolist() == table[second.row, :3].tolist()
    assert memory.manager.pools[0].free == 16 - 3 - 2


def test_nodes_that_another_made_of_equal_tokens_do_not_hide_what_follows() -> None:
    """One waits behind the prompt while a node of its next block comes to be there."""
    memory = Memory([16], 4)
    running(memory)
    other = memory.open(PROMPT[:4])
    memory.write(other, [5, 6, 7, 8])
    assert memory.tokens[memory.open([*PROMPT, *ANSWER])] == [*PROMPT, *ANSWER]
    memory.check()


@pytest.mark.parametrize("length", range(4, 14))
def test_blocks_are_cached_before_they_leave_a_window(length: int) -> None:
    memory = Memory([16, 16], 2, windows=[0, 4])
    first = running(memory, answer=[*ANSWER, 14, 15])
    assert first.starts[1] > 4
    memory.close(first)
    assert memory.run([*PROMPT, *ANSWER][:length]) == length - 1


def test_a_window_never_moves_on_from_the_node_that_others_follow() -> None:
    """All groups have windows, so a node whose blocks are all gone is forgotten."""
    memory = Memory([30], 2, windows=[3])
    first = running(memory)
    for token in range(20, 26):
        memory.run([token] * 8)
        memory.write(first, [token], decoded=True)
        memory.check()
    assert memory.manager.counters.evictions["capacity"] > 0
    assert memory.tokens[memory.open(memory.tokens[first])] == memory.tokens[first][:18]


def test_what_waits_keeps_the_node_that_it_follows() -> None:
    """The window has just moved on from the prompt, and all that nobody uses is evicted."""
    memory = Memory([12], 2, windows=[8])
    first = running(memory)
    assert first.starts == [3]
    memory.run([50] * 16)
    memory.check()
    memory.close(first)
    memory.check()


def test_what_may_be_wrong_is_never_found() -> None:
    memory = Memory([16], 4)
    first = running(memory)
    memory.manager.distrust(first)
    memory.write(first, [14, 15, 16], decoded=True)
    assert len(memory.tokens[memory.open([*PROMPT, *ANSWER])]) == 4
    memory.check()
    memory.close(first)
    assert memory.run([*PROMPT, *ANSWER]) == 4


@pytest.mark.parametrize("constant", [False, True])
def test_collisions_give_nobody_strange_blocks(constant: bool) -> None:
    """Of blocks with equal digests the first to be asked for is cached."""
    memory = Memory([24], 4, policy=CachePolicy(digest=lambda data: 0 if constant else data[1][0] % 3))
    first, second = running(memory), running(memory, answer=[40, *ANSWER])
    for tokens in ([*PROMPT, *ANSWER], [*PROMPT, 40, *ANSWER]):
        third = memory.open(tokens)
        assert memory.tokens[third] == tokens[: len(memory.tokens[third])]
        memory.check()
    assert memory.manager.counters.collisions > 0
    memory.close(first)
    memory.close(second)
    memory.check()


def test_quotas_hold_where_blocks_are_cached_late() -> None:
    memory = Memory([16], 4, policy=CachePolicy(tenant_share=0.125))
    memory.close(running(memory))
    assert memory.manager.cached_blocks == [2]
    assert memory.manager.counters.evictions["quota"] == 2
    assert memory.run([*PROMPT, *ANSWER]) == 8
