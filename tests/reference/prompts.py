"""The prompts of the fp32 reference: chat and plain, 1 to 600 tokens, several languages, code and emoji."""

from __future__ import annotations

from dataclasses import dataclass

STORY = (
    "The lighthouse keeper climbed the stairs at dusk, as he had done for thirty years, and lit the lamp. "
    "Below him the sea was the colour of slate, and a small boat was making for the harbour against the wind. "
)
REPORT = (
    "Section {0}. In the year {1} the town counted {2} houses, {3} wells and one mill; the river rose twice, "
    "in March and in November, and the bridge had to be mended at a cost of {4} crowns. "
)


@dataclass(frozen=True)
class Prompt:
    """A plain text, or the messages of a chat as (role, content) pairs."""

    name: str
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()


def _report(sections: int) -> str:
    rows = ((k, 1700 + 7 * k, 120 + 13 * k, 5 + k, 40 + 11 * k) for k in range(1, sections + 1))
    return "".join(REPORT.format(*row) for row in rows)


PROMPTS: tuple[Prompt, ...] = (
    Prompt("one-token", "The"),
    Prompt("two-tokens", "Once upon"),
    Prompt("capital-chat", messages=(("user", "What is the capital of France?"),)),
    Prompt("gravity", "Gravity is"),
    Prompt("german", "Der Herbst ist die schönste Jahreszeit, weil"),
    Prompt("french", "Le chat noir dormait sur le rebord de la fenêtre, et"),
    Prompt("spanish", "Había una vez un pequeño pueblo junto al mar donde"),
    Prompt("italian-chat", messages=(("user", "Come si prepara un buon caffè?"),)),
    Prompt("polish", "Zażółć gęślą jaźń, powiedział nauczyciel, a potem"),
    Prompt("russian", "Москва - столица"),
    Prompt("greek", "Η Αθήνα είναι"),
    Prompt("chinese", "今天天气很好，我们"),
    Prompt("japanese", "吾輩は猫である。名前は"),
    Prompt("arabic", "كان يا ما كان في قديم الزمان"),
    Prompt("hindi", "भारत की राजधानी"),
    Prompt("emoji", "I love pizza 🍕🍕 and my dog 🐶 because"),
    Prompt("emoji-chat", messages=(("user", "Explain 👩‍🚀🚀 in one sentence 🙂"),)),
    Prompt("python", "def fibonacci(n):\n    if n < 2:\n        return n\n    return"),
    Prompt("c-code", "#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 10; i++)\n\t\tprintf("),
    Prompt("json", '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "works": ['),
    Prompt("digits", "Count:  1  2  3  5  8  13  21  34  55  89 144"),
    Prompt("arithmetic-chat", messages=(("user", "What is 12 + 30? Answer with a number only."),)),
    Prompt(
        "system-chat",
        messages=(("system", "You answer like a pirate."), ("user", "Where is the treasure hidden?")),
    ),
    Prompt(
        "turns-chat",
        messages=(
            ("user", "My name is Ada and I live in Vienna."),
            ("assistant", "Nice to meet you, Ada! How is Vienna today?"),
            ("user", "It rains. Write two sentences about me and my town."),
        ),
    ),
    Prompt("whitespace", "  \n\n\tlist of items:\n\n  1. apples\n  2.  pears\n   3."),
    Prompt("story", STORY * 3),
    Prompt("report", _report(6)),
    Prompt("report-chat", messages=(("user", "Summarise:\n\n" + _report(5) + "\nOne sentence, please."),)),
    Prompt("long", STORY * 5 + _report(7)),
)
