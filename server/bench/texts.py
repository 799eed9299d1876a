"""The prompts of `ortolan bench speculation`: some whose answers repeat the prompt, and some that do not."""

from __future__ import annotations

_LIGHTHOUSE = """\
The lighthouse on the northern cape was built in 1872 by a company of masons from the mainland. Its lamp could be
seen for eighteen miles, and for ninety years the keepers wrote down every ship that passed. When the light was
automated in
1962, the last keeper left his books to the museum of the harbour."""
_SOIL = """\
To prepare the soil, remove all stones and roots, and turn it over to a depth of thirty centimetres. Mix in two
buckets
of compost for each square metre. Water the bed well, and wait for a week before you plant anything, so that the
soil
can settle."""
_LETTER = """\
Dear Mrs Harper, thank you for your letter of the third of May. We are sorry to hear that the kettle arrived with a
broken handle. A new handle will be sent to you this week, and you need not return the old one. Please accept our
apologies for the trouble."""
_COMMITTEE = """\
The committee met on Tuesday and agreed on three points. First, the library will stay open until eight in the
evening.
Second, the reading room will be painted during the summer. Third, members may borrow six books at a time instead of
four."""
_CODE = """\
def average(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def largest(values):
    best = values[0]
    for value in values:
        if value > best:
            best = value
    return best"""
_TASKS = (
    "Repeat the following text exactly, word for word, and write nothing else:",
    "Correct any spelling mistakes in the following text and return the whole text:",
)

_PASSAGES = (*(text.replace("\n", " ") for text in (_LIGHTHOUSE, _SOIL, _LETTER, _COMMITTEE)), _CODE)

REPEATING = tuple(f"{task}\n\n{passage}" for passage in _PASSAGES for task in _TASKS)
"""Editing: the answer is the text again, or nearly."""

FREE = (
    "Write a short story about a fox who wants to learn to swim.",
    "Explain to a child why the sky is blue.",
    "What are the advantages of living in a small town?",
    "Describe an imaginary animal that lives in the clouds.",
    "Give me advice on how to prepare for a long journey by train.",
    "Write a poem about autumn.",
)
"""Text that begins from nothing and has no reason to repeat itself."""
