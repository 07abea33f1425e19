"""Every decoder of the benchmark is given the same function, times what it says, and stands in one table."""

import json
import sys
from pathlib import Path

import pytest
import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from dragoman.bundle import load
from dragoman.config import check
from dragoman.errors import UserError
from dragoman.masks import key_padding_mask
from dragoman.model.transformer import Transformer
from dragoman.special import EOS, PAD
from dragoman.translator import Translator
from tiny import SENTENCES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import bench_decode  # noqa: E402
import measured_search  # noqa: E402
import plain_text  # noqa: E402
import same_weights  # noqa: E402
from measured_search import Asked  # noqa: E402
from peers import peers_here  # noqa: E402
from same_training import Plain  # noqa: E402

ENGLISH = SENTENCES[5:]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Transformer]:
    """What the peers' programs make, weights, a vocabulary that rewrites, a test set; and the network itself."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "test.en").write_text("\n".join([*ENGLISH, "ﬁve cats of １２"]) + "\n", encoding="utf-8")
    (folder / "test.de").write_text("\n".join([*ENGLISH, "five cats of 12"]) + "\n", encoding="utf-8")
    SentencePieceTrainer.train(
        sentence_iterator=iter([*ENGLISH, "five cats of 12"] * 8), model_prefix=str(folder / "spm"), vocab_size=60,
        model_type="bpe", hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=2, eos_id=3, character_coverage=1.0,
        normalization_rule_name="nmt_nfkc", minloglevel=2,
    )  # fmt: skip
    size = SentencePieceProcessor(model_file=str(folder / "spm.model")).get_piece_size()
    torch.manual_seed(1)
    model = Transformer(
        check(["model=tiny", "model.activation=relu"]).model, src_vocab_size=size, tgt_vocab_size=size
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # biases too, which begin as zeros
    plain, c = Plain(model), model.config
    arch = {
        "d_model": c.d_model, "ffn": c.d_ff, "heads": c.n_heads, "enc": c.n_encoder_layers, "dec": c.n_decoder_layers,
    }  # fmt: skip
    state = {"emb.weight": plain.words.detach(), **{f"net.{k}": v for k, v in plain.net.state_dict().items()}}
    torch.save({"model": state, "arch": arch, "norm_first": True}, folder / "torch-small.pt")
    return folder, model.eval()


def test_the_shared_weights_become_a_bundle_that_computes_the_same(
    theirs: tuple[Path, Transformer], tmp_path: Path
) -> None:
    folder, model = theirs
    found = same_weights.prepare(folder / "torch-small.pt", folder, tmp_path)
    assert "torch fp32" in found["engines"]
    assert {*found["engines"], *found["without"]} >= {"CTranslate2 float32", "CTranslate2 int8"}
    same = load(found["engines"]["torch fp32"]["bundle"]).model.eval()
    size = model.projection.weight.size(0)
    src, tgt = torch.randint(EOS + 1, size, (3, 7)), torch.randint(EOS + 1, size, (3, 5))
    src[1, 4:] = PAD
    expected = model(src, tgt, key_padding_mask(src))
    torch.testing.assert_close(same(src, tgt, key_padding_mask(src)), expected)


def test_a_text_is_cut_into_the_same_pieces_without_the_vocabularys_rewriting(
    theirs: tuple[Path, Transformer], tmp_path: Path
) -> None:
    folder, _ = theirs
    plain_text.plain_vocabulary(folder / "spm.model", tmp_path / "spm.model")
    plain_text.plain_text(
        folder / "test.en", folder / "spm.model", tmp_path / "spm.model", tmp_path / "plain"
    )
    before, after = (
        path.read_text(encoding="utf-8").splitlines() for path in (folder / "test.en", tmp_path / "plain")
    )
    assert after != before
    rewriting, plain = (
        SentencePieceProcessor(model_file=str(path))
        for path in (folder / "spm.model", tmp_path / "spm.model")
    )
    assert rewriting.encode(before) == plain.encode(after)
    assert rewriting.encode(before) != plain.encode(before)
    with pytest.raises(UserError, match=f"line {len(before)}"):  # the other way round it cannot be done
        plain_text.plain_text(
            folder / "test.en", tmp_path / "spm.model", folder / "spm.model", tmp_path / "plain"
        )


def test_weights_of_another_kind_and_missing_files_are_named(
    theirs: tuple[Path, Transformer], tmp_path: Path
) -> None:
    folder, _ = theirs
    with pytest.raises(UserError, match=r"nothing\.pt"):
        same_weights.make_bundle(tmp_path / "nothing.pt", folder / "spm.model", tmp_path / "bundle")
    box = torch.load(folder / "torch-small.pt", weights_only=True)
    torch.save(box | {"norm_first": False}, tmp_path / "post.pt")
    with pytest.raises(UserError, match="post-norm"):
        same_weights.make_bundle(tmp_path / "post.pt", folder / "spm.model", tmp_path / "bundle")
    with pytest.raises(UserError, match=r"prepare_data\.py"):
        same_weights.prepare(folder / "torch-small.pt", tmp_path, tmp_path)


@pytest.mark.parametrize(("beam", "batch"), bench_decode.CASES.values(), ids=bench_decode.CASES)
def test_what_is_timed_are_the_engines_translations(
    beam: int, batch: int, tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    asked = Asked(
        bundle=str(tiny_bundle_folder), source=str(tmp_path / "text"), reference=str(tmp_path / "text"), beam=beam,
        batch=batch, noise=1.0, threads=1,
    )  # fmt: skip
    found = measured_search.measure(asked)
    translator = Translator.load(tiny_bundle_folder, "cpu", engine="torch")
    search = measured_search.SearchConfig(
        kind="beam" if beam > 1 else "greedy",
        beam_size=beam,
        max_length_a=0,
        max_length_b=measured_search.LONGEST,
    )
    sources = translator.bundle.src_tokenizer.encode_batch(ENGLISH)
    expected = translator.engine.translate(
        sources, search, longest=measured_search.LONGEST, batch_tokens=10**6, scored=False
    )
    assert found["out_tokens"] == sum(len(best.ids) + 1 for best, *_ in expected)
    assert found["texts"] == [translator.bundle.tgt_tokenizer.decode(best.ids) for best, *_ in expected]
    assert found["sent_s"] == pytest.approx(len(ENGLISH) / found["seconds"])
    assert found["bleu"] >= 0
    short = measured_search.measure(Asked(**{**vars(asked), "seconds": 1e-9, "batch": 1, "sentences": 9}))
    assert short["sentences"] == min(8, len(ENGLISH))


def test_decoders_are_found_by_their_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("venvs/raw/bin/python", "scripts/bench_decode_ct2.py", "scripts/bench_train_torch.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    there = {"BENCH_HOME": str(tmp_path), "BENCH_SCRIPTS": str(tmp_path / "scripts")}
    (found,) = peers_here(["ct2-int8", "torch"], there, decoders=True)
    assert (found.name, found.environment["CT2_TYPE"]) == ("ct2-int8", "int8")
    assert "bench_decode_torch.py" in capsys.readouterr().out


def record(program: str, speed: float, *, peer: bool = False, **more: object) -> dict[str, object]:
    return {
        "program": program, "is_peer": peer, "round": 1, "case": "greedy64", "sent_s": speed, "tok_s": 10 * speed,
        "bleu": 30.0, "noise": 0.0, "sentences": 1000, "load_s": 0.1, "peak_rss_mb": 100, **more,
    }  # fmt: skip


def test_the_table_compares_with_the_fastest_peer_that_computes_with_torch() -> None:
    runs = [
        record("Dragoman torch fp32", 300, same=1.0), record("Dragoman torch fp32", 320, same=1.0),
        record("opennmtpy", 200, peer=True), record("hf", 100, peer=True, noise=0.5),
        record("ct2-int8", 900, peer=True),
    ]  # fmt: skip
    rows = [
        [cell.strip("| ") for cell in line.split(" | ")]
        for line in bench_decode.table(runs, 0.04).splitlines()[2:]
    ]
    assert [row[0] for row in rows] == ["ct2-int8", "Dragoman torch fp32", "opennmtpy", "hf"]
    assert [row[2] for row in rows] == ["4.50", "1.55", "1.00", "0.50"]
    assert "noisy" in rows[3][-1]
    assert "noisy" not in rows[1][-1]


def test_everybody_takes_turns_and_a_peer_that_fails_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = bench_decode.arguments(
        ["--rounds", "2", "--cases", "greedy1", "--results", str(tmp_path / "kept")]
    )
    says = json.dumps(record("x", 1.0) | {"texts": ["a", "b"]})
    good = bench_decode.Program(
        name="Dragoman", command=[sys.executable, "-c", f"print('{says}')", "{}"], is_peer=False
    )
    bad = bench_decode.Program(name="hf", command=[sys.executable, "-c", "print('no module'); exit(1)"])
    report: dict[str, object] = {
        "machine": bench_decode.machine(),
        "settings": bench_decode.settings(args),
        "runs": [],
    }
    bench_decode.take_turns([good, bad], tmp_path, tmp_path, args, report)
    assert [(run["program"], run["same"]) for run in report["runs"]] == [("Dragoman", 1.0)] * 2
    assert capsys.readouterr().out.count("without hf") == 1
    assert json.loads((tmp_path / "kept" / "small.json").read_text())["runs"] == report["runs"]
    assert "one sentence after the other" in (tmp_path / "kept" / "small.md").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--rounds", "0"], "--rounds"), (["--peers", "opennmt"], "opennmtpy"), (["--noise", "-1"], "--noise")],
)
def test_wrong_arguments_are_named(words: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        bench_decode.arguments(words)
