"""The benchmark counts what it says, through the real fit, and names missing peers; fast and plain train alike."""

import os
import sys
from pathlib import Path

import pytest
import torch

from dragoman.config import check
from dragoman.data.tokenizer import Tokenizer, TokenizerConfig
from dragoman.errors import UserError
from dragoman.masks import key_padding_mask
from dragoman.model.transformer import Transformer
from dragoman.special import EOS, PAD
from tiny import SENTENCES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import bench_train  # noqa: E402
import measured_fit  # noqa: E402
import same_training  # noqa: E402
from measured_fit import Counts, Enough, Measured, Meter  # noqa: E402
from peers import Program, peers_here  # noqa: E402

ENGLISH = SENTENCES[5:]
TINY = check(["model=tiny"]).model


@pytest.fixture(scope="session")
def peers_data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder as the peers' prepare_data.py leaves it."""
    folder = tmp_path_factory.mktemp("data")
    for name, times in (("train", 8), ("val", 1)):
        numbered = [f"{text} {n} {name}" for n in range(times) for text in ENGLISH]
        for side in ("en", "de"):
            (folder / f"{name}.{side}").write_text("\n".join(numbered) + "\n", encoding="utf-8")
    Tokenizer.train(ENGLISH, TokenizerConfig(vocab_size=320), folder / "spm.model", ("en", "de"))
    return str(folder)


def tiny(data: str | None, **changes: object) -> Measured:
    few = {"size": "tiny", "precision": "32", "max_tokens": 300, "threads": 1}
    return Measured(**{**few, "data": data, **changes})  # type: ignore[arg-type]


def test_a_real_run_is_measured_in_the_peers_own_pieces_and_leaves_nothing(
    peers_data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = measured_fit.measure(tiny(peers_data, warm_up=0, window=0.05, windows=2, max_windows=2))
    assert len(found["tgt_tok_s_windows"]) == 2
    assert min(found["tgt_tok_s_windows"]) > 0
    assert 0 < found["tgt_fill"] <= 1
    assert found["tgt_cells_per_step"] <= 300
    assert found["train_pairs"] == 8 * len(ENGLISH)  # all of them, though source and target are equal
    size = len(Tokenizer.load(Path(peers_data) / "spm.model"))
    model = Transformer(TINY, src_vocab_size=size, tgt_vocab_size=size)
    assert found["params"] == sum(p.numel() for p in model.parameters())
    assert not list(tmp_path.iterdir())


def test_the_profile_tells_operators_and_what_products_reach(
    peers_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_fit, "PRODUCT_SECONDS", 0.0)
    monkeypatch.setattr(measured_fit, "product_shapes", lambda *sizes: [(8, 8, 8)])
    found = measured_fit.measure(tiny(peers_data, profile=True))
    shares = {operator["name"]: operator["share"] for operator in found["operators"]}
    assert 0 < shares["aten::mm"] < 1
    assert sum(shares.values()) < 1.01
    assert next(o["gflops"] for o in found["operators"] if o["name"] == "aten::mm") > 0
    text = bench_train.profile_page({"program": "Dragoman", **found})
    assert "`aten::mm`" in text
    assert "8 x 8 x 8" in text


def test_settings_are_those_of_the_peers(tmp_path: Path) -> None:
    for everywhere in (False, True):
        config = measured_fit.configure(Measured(everywhere=everywhere, data="x"), tmp_path)
        assert (config.training.label_smoothing, config.training.weight_decay) == (0.1, 0)
        dropouts = {config.model.attention_dropout, config.model.activation_dropout}
        assert config.model.dropout == 0.1
        assert dropouts == ({0.1} if everywhere else {0.0})
        assert (config.data.src, config.data.tgt, config.data.max_tokens) == ("en", "de", 4096)


def test_peers_data_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"spm\.model"):
        measured_fit.measure(tiny(str(tmp_path)))


def window(*, seconds: float, own: float, others: float) -> Counts:
    return Counts(seconds, own + others, own, 0.0, 1000, 1100, 2)


def test_noisy_windows_are_not_counted_unless_there_are_no_others() -> None:
    cores = os.cpu_count() or 1
    quiet = window(seconds=10, own=9, others=0.01 * 10 * cores)
    noisy = window(seconds=20, own=9, others=0.5 * 20 * cores)
    for windows, last, speeds, told in (
        ([quiet, noisy], quiet, [100, 100], False),
        ([noisy, noisy], quiet, [100, 50, 50], True),
    ):
        meter = Meter(Measured(windows=2, max_windows=3))
        for one in windows:
            meter._window(one)
        with pytest.raises(Enough):
            meter._window(last)
        meter.first_step, meter.parameters, meter.train_pairs = 1.0, 1, 1
        found = meter.result()
        assert found["tgt_tok_s_windows"] == speeds
        assert found["noisy"] == told


def test_peers_are_found_by_their_environments_and_what_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "venvs" / "hf" / "bin" / "python"
    program = tmp_path / "scripts" / "bench_train_hf.py"
    for path in (python, program):
        path.parent.mkdir(parents=True)
        path.touch()
    there = {"BENCH_HOME": str(tmp_path), "BENCH_SCRIPTS": str(tmp_path / "scripts")}
    (found,) = peers_here(["hf", "eole"], there)
    assert found.command == [str(python), str(program)]
    assert "without eole" in capsys.readouterr().out
    assert peers_here(None, {"BENCH_HOME": str(tmp_path)}) == []
    assert "BENCH_SCRIPTS" in capsys.readouterr().out
    assert peers_here([], there) == []


def test_a_program_is_told_the_settings_and_its_last_json_is_taken() -> None:
    args = bench_train.arguments(["--size", "base", "--threads", "1"])
    tell = "print('BENCH', json.dumps({'size': os.environ['BENCH_SIZE']}))"
    code = f"import json, os; print('{{1}}'); print('{{}}'); {tell}; print(); print('bye')"
    assert bench_train.measure(Program(name="x", command=[sys.executable, "-c", code]), args) == {
        "size": "base"
    }
    broken = Program(name="x", command=[sys.executable, "-c", "raise ValueError('no such corpus')"])
    with pytest.raises(UserError, match="no such corpus"):
        bench_train.measure(broken, args)


def test_a_peer_that_fails_is_left_out_from_there_on_and_the_others_take_turns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = bench_train.arguments(["--rounds", "2"])
    good = Program(name="good", command=[sys.executable, "-c", "print('{}')"])
    bad = Program(name="bad", command=[sys.executable, "-c", "print('no'); exit(1)"])
    report: dict[str, list] = {"runs": []}
    bench_train.take_turns([bad, good], args, report)
    assert [(run["program"], run["round"]) for run in report["runs"]] == [("good", 1), ("good", 2)]
    assert capsys.readouterr().out.count("without bad") == 1
    ours = Program(name="Dragoman", command=bad.command, is_peer=False)
    with pytest.raises(UserError, match="Dragoman"):
        bench_train.take_turns([ours], args, report)


def found(program: str, *speeds: float, noisy: bool = False) -> dict[str, object]:
    return {
        "program": program, "is_peer": not program.startswith("Dragoman"), "tgt_tok_s_windows": list(speeds),
        "noisy": noisy, "precision": "32", "step_ms": 1.0, "tgt_cells_per_step": 4000, "tgt_fill": 0.9,
        "sys_share": 0.1, "peak_rss_mb": 1, "first_step_s": 1.0,
    }  # fmt: skip


def test_the_table_compares_medians_with_the_fastest_peer() -> None:
    runs = [
        found("slow", 100, 110),
        found("Dragoman 32", 380, 390, 420),
        found("fast", 200),
        found("fast", 210, 190),
    ]
    rows = [line.split(" | ") for line in bench_train.table(runs).splitlines()[2:]]
    assert [row[0].strip("| ") for row in rows] == ["Dragoman 32", "fast", "slow"]
    assert [float(row[2]) for row in rows] == [390 / 200, 1.0, pytest.approx(105 / 200, abs=0.01)]
    assert rows[0][1] == "390 (380-420)"
    alone = bench_train.table([found("Dragoman 32", 1, noisy=True)])
    assert "noisy" in alone


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--peers", "opennmt"], "opennmtpy"),
        (["--size", "huge"], "small"),
        (["--window", "-1"], "--window"),
        (["--windo", "1"], "--windo"),
    ],
)
def test_wrong_arguments_are_named(words: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        bench_train.arguments(words)


def test_the_plain_model_computes_what_dragoman_computes() -> None:
    torch.manual_seed(1)
    model = Transformer(TINY, src_vocab_size=40, tgt_vocab_size=40).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # biases too, which begin as zeros
    src, tgt = torch.randint(EOS + 1, 40, (3, 7)), torch.randint(EOS + 1, 40, (3, 5))
    src[1, 4:] = PAD
    plain = same_training.Plain(model).eval()
    expected = model(src, tgt, key_padding_mask(src))
    torch.testing.assert_close(plain(src, tgt), expected, atol=1e-4, rtol=1e-4)


def test_without_dropout_fit_and_the_plain_loop_have_the_same_losses(peers_data: str, tmp_path: Path) -> None:
    with measured_fit.vocabulary(peers_data):
        config = same_training.settled(measured_fit.configure(tiny(peers_data), tmp_path))
        exact = same_training.without_dropout(config)
        ours, theirs = same_training.fast(exact, 12), same_training.plain(exact, 12)
        dropped, otherwise = (same_training.plain(config, 2, masks=masks) for masks in (1, 2))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert theirs[-1] < theirs[0]
    assert dropped[0] != otherwise[0]  # the masks do fall otherwise


def test_the_page_of_the_comparison_tells_the_distances() -> None:
    names = (same_training.OURS, same_training.PLAIN, same_training.OTHERWISE, same_training.OTHER)
    curves = {name: [9.0 - 0.1 * step + 0.01 * n for step in range(20)] for n, name in enumerate(names)}
    text = same_training.page("small", "32", [[9.0, 8.0], [9.0, 8.5]], curves)
    assert "5.0e-01 at most" in text
    assert "0.0100 apart" in text
    assert "0.0300" in text
    assert same_training.picture(curves).startswith(b"\x89PNG")
