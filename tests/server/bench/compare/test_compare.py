"""``ortolan bench compare`` with fake peers: what is asked of them, and what their answers come to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from ops.errors import ConfigError
from server.bench.compare import process
from server.bench.compare.entries import Entry, own_entries, read_peers
from server.bench.compare.process import Answer, Request, ask
from server.bench.compare.report import MEASURES, best_peers, results
from server.bench.compare.rounds import request_for, run_rounds
from server.bench.sizes import SEQUENCES, Sizes
from server.cli import main
from tests.server.bench.compare.fake_engine import write_fake_engine

REQUEST = request_for(Sizes.within(512), 300, 1)


def entry(name: str, **fields: object) -> Entry:
    return Entry(name=name, engine="llama_cpp", model=str(Path(__file__)), **fields)  # type: ignore[arg-type]


def answer(rate: float, seconds: float = 1.0, mebibytes: int = 100) -> Answer:
    rates = {str(count): rate for count in SEQUENCES}
    return Answer(
        version="1",
        load_seconds=seconds,
        prefill_seconds=seconds,
        decode_tokens_s=rates,
        peak_bytes=mebibytes * 2**20,
    )


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Every engine's driver is the fake one; the environment that its package is found in."""
    script = write_fake_engine(tmp_path)
    monkeypatch.setattr(process, "driver", lambda engine: script)
    return {"PYTHONPATH": str(tmp_path / "site")}


def test_a_peer_is_asked_for_what_the_request_says(fake: dict[str, str]) -> None:
    found = ask(entry("fake", environment=fake, options={"first": 0.25}), REQUEST, timeout=60)
    assert found.version == "9" and found.prefill_seconds == 0.25
    assert found.decode_tokens_s["16"] == 16 * (REQUEST.new_tokens["16"] - 1) / 2


def test_what_goes_wrong_with_a_peer_is_its_answer(fake: dict[str, str], tmp_path: Path) -> None:
    def told(**options: object) -> Answer:
        return ask(entry("fake", environment=fake, options=options), REQUEST, timeout=60)

    assert "no luck" in told(fails="no luck").error
    assert "ended with 3" in told(dies=True).error
    assert "within 1 s" in ask(entry("fake", environment=fake, options={"hangs": True}), REQUEST, timeout=1).error
    assert "there is no" in ask(entry("fake", python=str(tmp_path / "absent")), REQUEST, timeout=60).missing
    assert "there is no" in ask(Entry("fake", "llama_cpp", str(tmp_path / "absent")), REQUEST, timeout=60).missing
    assert "cannot be run" in ask(entry("fake", python=str(tmp_path)), REQUEST, timeout=60).missing
    assert "an_engine" in ask(entry("fake"), REQUEST, timeout=60).missing


def test_rounds_interleave_and_leave_out_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(item: Entry, request: Request, timeout: float) -> Answer:
        asked.append(item.name)
        return Answer(error="no") if item.name == "b" else answer(1.0)

    monkeypatch.setattr("server.bench.compare.rounds.ask", counted)
    told: list[str] = []
    answers = run_rounds([entry("a"), entry("b"), entry("c")], REQUEST, 3, 1.0, told.append)
    assert asked == ["a", "b", "c", "c", "a", "c", "a"]
    assert [len(given) for given in answers] == [3, 1, 3] and len(told) == len(asked)


def test_a_peer_takes_part_in_no_more_rounds_than_it_is_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.bench.compare.rounds.ask", lambda *_: answer(1.0))
    slow = msgspec.structs.replace(entry("b"), rounds=2)
    answers = run_rounds([entry("a"), slow, entry("c")], REQUEST, 4, 1.0, lambda text: None)
    assert [len(given) for given in answers] == [4, 2, 4]


def test_the_rounds_end_with_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(item: Entry, request: Request, timeout: float) -> Answer:
        if item.name == "b":
            raise KeyboardInterrupt
        return answer(1.0)

    monkeypatch.setattr("server.bench.compare.rounds.ask", interrupted)
    told: list[str] = []
    first, second = run_rounds([entry("a"), entry("b")], REQUEST, 3, 1.0, told.append)
    assert [len(first), len(second)] == [1, 1] and first[0].version and second[0].error
    assert told[-1] == "Interrupted."
    (late,) = run_rounds([entry("a")], REQUEST, 3, 1.0, told.append, until=0.0)
    assert late[0].error and told[-1] == "The time is up."


def test_medians_and_ratios() -> None:
    ours = own_entries(Path("bundle"), ["native", "int8"])
    entries = [*ours, entry("fast", precision="int8"), entry("small", precision="int4"), entry("none")]
    given = [
        [answer(30, 1), answer(10, 1), answer(20, 1)],
        [answer(40, 1, 50)],
        [answer(10, 2)],
        [answer(5, 2, 25)],
        [Answer(missing="not there")],
    ]
    found = results(entries, given, prefill=100)
    assert [found[0].figures["decode 1"].median, found[0].figures["decode 1"].low] == [20, 10]
    assert found[2].ratios["decode 8"] == 2 and found[2].ratios["load"] == 2 and found[2].ratios["prefill"] == 2
    assert found[3].ratios["memory"] == 0.25
    assert found[4].missing == "not there" and found[4].figures == {} and found[4].rounds == 0
    best = {(item.ours, item.measure, item.among): (item.peer, item.ratio) for item in best_peers(found)}
    assert best["ortolan native", "decode 1", "all"] == ("fast", 2.0)
    assert best["ortolan int8", "memory", "all"] == ("small", 0.5)
    assert best["ortolan int8", "memory", "int8"] == ("fast", 2.0)
    assert ("ortolan native", "load", "native") not in best
    assert {measure for _, measure, _ in best} == set(MEASURES)


def test_prompts_are_the_same_for_all_and_known_to_all() -> None:
    one, two = request_for(Sizes.within(8192), 49152, 2), request_for(Sizes.within(8192), 49152, 2)
    assert one == two and len(one.prefill) == 512
    assert [len(one.decode[str(count)]) for count in SEQUENCES] == list(SEQUENCES)
    tokens = [token for prompts in one.decode.values() for prompt in prompts for token in prompt]
    assert min(tokens) >= 256 and max(tokens) < 49152 // 2
    assert max(REQUEST.prefill) < 300


PEERS = """
[[peer]]
name = "one"
engine = "llama_cpp"
model = "models/m.gguf"
python = "/usr/bin/python3"
precision = "int4"
options = { ubatch = 128 }
environment = { OMP_NUM_THREADS = "2" }
"""


def test_a_peers_file(tmp_path: Path) -> None:
    file = tmp_path / "peers.toml"
    file.write_text(PEERS)
    (found,) = read_peers(file)
    assert found.model == str(tmp_path / "models/m.gguf") and found.python == "/usr/bin/python3"
    assert found.options == {"ubatch": 128} and not found.ours


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[[peer]\n",
        "[[peer]]\nname = 'x'\n",
        PEERS + PEERS,
        PEERS.replace("llama_cpp", "lama_cpp"),
        PEERS + "x = 1\n",
        PEERS.replace("[[peer]]", "[[peer]]\nrounds = 0"),
    ],
)
def test_peers_files_that_are_wrong(tmp_path: Path, content: str) -> None:
    file = tmp_path / "peers.toml"
    if content:
        file.write_text(content)
    with pytest.raises(ConfigError):
        read_peers(file)


def test_the_command(tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ourselves in the real driver, beside a peer that is not there."""
    file = tmp_path / "peers.toml"
    file.write_text(PEERS)
    arguments = ["bench", "compare", str(tiny_bundle), "--peers", str(file), "--rounds", "1", "--threads", "1"]
    assert main([*arguments, "--precision", "fp32,int8", "--json"]) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert [item["name"] for item in report["entries"]] == ["ortolan fp32", "ortolan int8", "one"]
    for item in report["entries"][:2]:
        assert item["error"] == item["missing"] == "" and set(item["figures"]) == set(MEASURES)
        assert all(figure["low"] > 0 for figure in item["figures"].values())
    assert "models/m.gguf" in report["entries"][2]["missing"] and report["best"] == []
    assert "round 1 of 1: one" in shown.err
    assert main(arguments) == 0
    assert "one: missing: there is no" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--threads", "0"], ["--precision", "fp7"]])
def test_bad_arguments(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    file = tmp_path / "peers.toml"
    file.write_text(PEERS)
    assert main(["bench", "compare", str(tiny_bundle), "--peers", str(file), *arguments]) != 0
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err and "Traceback" not in shown.err


def test_our_entries_run_here() -> None:
    assert [item.python for item in own_entries(Path("b"), ["int8"])] == [sys.executable]
