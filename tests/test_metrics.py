import json
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import metrics
from dragoman.errors import UserError

ENGLISH = [
    "Long time no see.",
    "I love you more than anything in the world.",
    "What time does the next train to the airport leave?",
]
CLOSE = [
    "Long time not seen you.",
    "I love you more than anything.",
    "At what time does the next train leave for the airport?",
]
BOTH = list(zip(ENGLISH, CLOSE, strict=True))
CHINESE = ["好久不见，你最近怎么样？", "我爱你胜过世界上的一切。", "下一班去机场的火车几点开？"]
CHINESE_CLOSE = ["好久不见，最近怎么样？", "我爱你胜过一切。", "去机场的下一班火车什么时候开？"]


def command_line(folder: Path, hypotheses: list[str], streams: list[list[str]], tgt: str) -> dict[str, float]:
    """What the sacrebleu command gives for the same lines in files."""
    (folder / "hyp").write_text("".join(line + "\n" for line in hypotheses), encoding="utf-8")
    for k, stream in enumerate(streams):
        (folder / f"ref{k}").write_text("".join(line + "\n" for line in stream), encoding="utf-8")
    references = [str(folder / f"ref{k}") for k in range(len(streams))]
    options = ["-m", "bleu", "chrf", "ter", "-w", "6", *metrics.command_line_options(tgt)]
    command = [sys.executable, "-m", "sacrebleu", *references, "-i", str(folder / "hyp"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {entry["name"].lower().partition("2")[0]: entry["score"] for entry in json.loads(done.stdout)}


@pytest.mark.parametrize(("text", "tgt"), [(ENGLISH, "en"), (CHINESE, "zh")])
def test_a_text_scored_against_itself_is_perfect(text: list[str], tgt: str) -> None:
    scores = metrics.evaluate(hypotheses=text, references=text, tgt=tgt)
    assert scores["bleu"].score == pytest.approx(100)
    assert scores["chrf"].score == pytest.approx(100)
    assert scores["ter"].score == 0


@pytest.mark.parametrize(
    ("tgt", "tokenizer"),
    [("zh", "zh"), ("zh-Hant", "zh"), ("zh_CN", "zh"), ("cmn", "zh"), ("ja", "ja-mecab"), ("ko", "ko-mecab"),
     ("en", "13a"), ("de", "13a"), ("EN-gb", "13a")],
)  # fmt: skip
def test_the_tokenizer_follows_the_target_language(tgt: str, tokenizer: str) -> None:
    assert metrics.tokenizer_for(tgt) == tokenizer


def test_the_signature_names_the_tokenizer_and_the_number_of_references() -> None:
    chinese = metrics.bleu(hypotheses=CHINESE, references=CHINESE, tgt="zh")
    assert "tok:zh" in chinese.signature
    assert "nrefs:1" in chinese.signature
    english = metrics.bleu(hypotheses=ENGLISH, references=BOTH, tgt="en")
    assert "tok:13a" in english.signature
    assert "nrefs:2" in english.signature


def test_swapping_hypotheses_and_references_changes_bleu_and_so_must_be_spelled_out() -> None:
    there = metrics.bleu(hypotheses=CLOSE, references=ENGLISH, tgt="en").score
    back = metrics.bleu(hypotheses=ENGLISH, references=CLOSE, tgt="en").score
    assert abs(there - back) > 0.1
    with pytest.raises(TypeError):
        metrics.bleu(CLOSE, ENGLISH, "en")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("hypotheses", "references", "tgt"),
    [
        (CLOSE, [[line] for line in ENGLISH], "en"),
        (CLOSE, [[ENGLISH[0], "It's been ages."], [ENGLISH[1]], [ENGLISH[2], CLOSE[2], "When is it?"]], "en"),
        (CHINESE_CLOSE, [[CHINESE[0], "好久没见了。"], [CHINESE[1]], [CHINESE[2]]], "zh"),
    ],
)
def test_the_numbers_are_those_of_the_sacrebleu_command(
    hypotheses: list[str], references: list[list[str]], tgt: str, tmp_path: Path
) -> None:
    ours = metrics.evaluate(hypotheses=hypotheses, references=references, tgt=tgt)
    theirs = command_line(tmp_path, hypotheses, metrics.reference_streams(references), tgt)
    assert theirs.keys() == ours.keys()
    for name, score in ours.items():
        assert theirs[name] == pytest.approx(score.score, abs=1e-5)


def test_a_second_reference_never_lowers_bleu_and_repeating_one_leaves_it_alone() -> None:
    once = metrics.bleu(hypotheses=CLOSE, references=ENGLISH, tgt="en").score
    twice = metrics.bleu(hypotheses=CLOSE, references=[[line, line] for line in ENGLISH], tgt="en").score
    exact = metrics.bleu(hypotheses=CLOSE, references=BOTH, tgt="en")
    assert twice == pytest.approx(once)
    assert exact.score == pytest.approx(100)


def test_ragged_references_score_as_with_sacrebleus_own_placeholders() -> None:
    from sacrebleu.metrics import BLEU, CHRF

    references = [[ENGLISH[0], "It's been ages."], [ENGLISH[1]], [ENGLISH[2]]]
    padded = [[ENGLISH[0], ENGLISH[1], ENGLISH[2]], ["It's been ages.", None, None]]
    ours = metrics.evaluate(hypotheses=CLOSE, references=references, tgt="en")
    assert ours["bleu"].score == pytest.approx(BLEU().corpus_score(CLOSE, padded).score)
    assert ours["chrf"].score == pytest.approx(CHRF().corpus_score(CLOSE, padded).score)


def test_ter_of_chinese_counts_characters() -> None:
    one_of_twelve = [CHINESE[0].replace("久", "长")]
    assert 0 < metrics.ter(hypotheses=one_of_twelve, references=CHINESE[:1], tgt="zh").score < 20


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (ENGLISH[:2], ENGLISH, "2 hypotheses but 3 references"),
        ([], [], "nothing to score"),
        (ENGLISH, [ENGLISH[:1], [], ENGLISH[:1]], "sentence 2 has no reference"),
    ],
)
def test_what_cannot_be_scored_is_refused(hypotheses: list[str], references: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        metrics.evaluate(hypotheses=hypotheses, references=references, tgt="en")


def test_an_unknown_metric_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match="bleu, chrf, ter"):
        metrics.evaluate(hypotheses=ENGLISH, references=ENGLISH, tgt="en", metrics=("rouge",))


def test_a_missing_tokenizer_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu.metrics

    def missing(**_: object) -> None:
        raise RuntimeError("Japanese tokenization requires extra dependencies")

    monkeypatch.setattr(sacrebleu.metrics, "BLEU", missing)
    with pytest.raises(UserError, match=r"sacrebleu\[ja\]"):
        metrics.bleu(hypotheses=["はい"], references=["はい"], tgt="ja")
