"""Benchmarks: equal computations, plausible measurements, and their tables."""

import itertools
import json
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

import broken  # noqa: E402
import choices  # noqa: E402
import decoding  # noqa: E402
import inside  # noqa: E402
import measure_decoding  # noqa: E402
import measure_training  # noqa: E402
import positions  # noqa: E402
import programs  # noqa: E402
import same_training  # noqa: E402
import scale  # noqa: E402
import tables  # noqa: E402
import training  # noqa: E402
import weights  # noqa: E402

from dragoman.bundle import load  # noqa: E402
from dragoman.config import ModelConfig, SearchConfig  # noqa: E402
from dragoman.errors import UserError  # noqa: E402
from dragoman.model.attention import Attention  # noqa: E402
from dragoman.model.transformer import Transformer  # noqa: E402
from dragoman.special import EOS, PAD  # noqa: E402
from dragoman.translation.engine import line_vectors, translate_ids  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "bundle"
LINES = ["a cat sits on the mat", "two dogs run", "the man reads a long book about cats", "ﬁve cats of １２"]
ARCH = {"d_model": 16, "ffn": 32, "heads": 2, "enc": 2, "dec": 2}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of the other programs; their vocabulary normalises text."""
    folder = tmp_path_factory.mktemp("peers")
    for name in ("test.en", *training.FILES):
        words = LINES[2 if name.startswith("val") else 0].split()
        lines = [" ".join(each) for each in itertools.islice(itertools.permutations(words), 40)]
        (folder / name).write_text("\n".join([*lines, *LINES[3:]]) + "\n", encoding="utf-8")
    SentencePieceTrainer.train(
        sentence_iterator=iter([*LINES, "five 12"] * 8), model_prefix=str(folder / "spm"), vocab_size=60,
        model_type="bpe", hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=2, eos_id=3, character_coverage=1.0,
        normalization_rule_name="nmt_nfkc", minloglevel=2,
    )  # fmt: skip
    return folder


def test_shared_weights_compute_the_same_in_dragoman(peers: Path, tmp_path: Path) -> None:
    programs.copy_data(peers, tmp_path, [])
    size = SentencePieceProcessor(model_file=str(tmp_path / "spm.model")).get_piece_size()
    config = ModelConfig(d_model=16, d_ff=32, n_heads=2, n_encoder_layers=2, n_decoder_layers=2)
    model = Transformer(config, src_vocab_size=size, tgt_vocab_size=size).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # biases as well, which otherwise are zeros
    model.projection.bias.zero_()
    plain = same_training.PlainTransformer(model).eval()
    torch.save({"model": plain.state_dict(), "arch": ARCH}, tmp_path / "small.pt")
    weights.write_bundle(tmp_path / "small.pt", tmp_path / "spm.model", tmp_path / "bundle")
    src, tgt = torch.randint(EOS + 1, size, (3, 7)), torch.randint(EOS + 1, size, (3, 5))
    src[1, 4:] = PAD
    expected = model(src, tgt, src == PAD)
    copy = load(tmp_path / "bundle").model
    torch.testing.assert_close(copy(src, tgt, src == PAD), expected)
    torch.testing.assert_close(plain(src, tgt, src == PAD), expected, rtol=1e-4, atol=1e-5)


def test_rewritten_text_gives_the_same_pieces(peers: Path, tmp_path: Path) -> None:
    programs.copy_data(peers, tmp_path, ["test.en"])
    folders = peers, tmp_path
    before, after = ((folder / "test.en").read_text("utf-8").splitlines() for folder in folders)
    rewriting, plain = (SentencePieceProcessor(model_file=str(folder / "spm.model")) for folder in folders)
    assert after != before
    assert rewriting.encode(before) == plain.encode(after)


@pytest.mark.parametrize("case", decoding.CASES)
def test_timed_translations_are_those_of_the_engine(case: str, tmp_path: Path) -> None:
    _, beam, batch, _ = decoding.CASES[case]
    lines = ["你好。", "我们回家。", "今天很冷。"]
    (tmp_path / "text").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = measure_decoding.Settings(
        bundle=str(GOLDEN), source=str(tmp_path / "text"), reference=str(tmp_path / "text"), beam=beam, batch=batch,
        threads=1,
    )  # fmt: skip
    record = measure_decoding.measure(settings)
    bundle = load(GOLDEN)
    kind = "beam" if beam > 1 else "greedy"
    search = SearchConfig(kind=kind, beam_size=beam, max_length_a=0, max_length_b=measure_decoding.LONGEST)
    results = translate_ids(bundle.model, bundle.src_tokenizer.encode_batch(lines), search)
    assert record["texts"] == [bundle.tgt_tokenizer.decode(each[0].ids) for each in results]
    assert record["sentences"] == 3


def test_training_is_counted_in_windows(
    peers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH_START", str(time.time()))
    programs.copy_data(peers, tmp_path, training.FILES)
    settings = {
        "size": "tiny", "precision": "32", "data": str(tmp_path), "threads": 1, "warm_up": 0,
        "window": 0, "windows": 2, "overrides": ["trainer.loggers=[]", "data.max_tokens=300"],
    }  # fmt: skip
    assert measure_training.main([json.dumps(settings)]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(record["tgt_tok_s_windows"]) == 2
    assert "| Dragoman 32 |" in training.page([record | {"program": "Dragoman 32", "is_peer": False}])


def test_programs_take_turns_and_failing_peers_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = {"broken": UserError("no figures"), "absent": FileNotFoundError("python")}
    measured = []

    def run(program: programs.Program, patience: float) -> tables.Record:
        measured.append((program.name, program.case))
        if program.name in errors:
            raise errors[program.name]
        return {"x": 1}

    monkeypatch.setattr(programs, "FOLDER", tmp_path)
    monkeypatch.setattr(programs, "run", run)
    turns = [
        programs.Program(name=name, command=[], case=case, is_peer=name in errors)
        for case in ("a", "b")
        for name in ("ours", "broken", "absent")
    ]
    programs.compare("page", turns, 2, 9, lambda runs: f"{len(runs)} runs, {runs[-1]['x']}")
    assert measured[:3] == [("ours", "a"), ("broken", "a"), ("absent", "a")]
    assert measured[3:] == [("ours", "b"), ("ours", "a"), ("ours", "b")]
    out = capsys.readouterr().out
    assert "without broken from here on: no figures" in out
    assert "without absent from here on: python" in out
    assert out.endswith("4 runs, 1")
    assert (tmp_path / "page.md").read_text() == "4 runs, 1"


def test_positions_are_trained_and_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "LENGTHS", (3,))
    monkeypatch.setattr(positions, "N_TESTS", 4)
    scores = positions.measure("rope-1", n_steps=2)
    assert set(scores) == {"exact_3", "symbols_3"}


def test_only_missing_trials_are_measured(tmp_path: Path) -> None:
    measure = {"a": {"x": 1}, "b": {"x": 2}}.pop
    assert tables.measure_missing(tmp_path, ["a"], measure) == {"a": {"x": 1}}
    assert tables.measure_missing(tmp_path, ["a", "b"], measure) == {"a": {"x": 1}, "b": {"x": 2}}


def test_choices_are_compared_with_the_baseline() -> None:
    bleus = {"baseline": (7.0, 7.2, 7.4), "norm_post": (3.0, 3.1, 3.2), "score_dot": (7.1, 7.2, 7.6)}
    bleus |= {"recipe": (30.0, 30.2, 30.4), "recipe_ema": (28.0, 28.1, 28.2)}
    scores = {f"{row}-{n}": {"score": x, "signature": "s"} for row, v in bleus.items() for n, x in enumerate(v, 1)}
    assert "| `model.norm=post` | 3.10 ± 0.10 | -4.10 | worse | 3 |" in choices.table(scores)
    assert "| `model.score=dot` | 7.30 ± 0.26 | +0.10 | noise | 3 |" in choices.table(scores)
    assert "| `training.ema=0` | 28.10 ± 0.10 | -2.10 | worse | 3 |" in choices.table(scores)


def test_costs_of_a_corpus_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SECONDS", 0.0)
    lines = [f"第{n}个人在家。\tPerson {n} is at home.\n" for n in range(200)]
    (tmp_path / "train.tsv").write_text("zh\ten\n" + "".join(lines), encoding="utf-8")
    record = scale.prepare(str(tmp_path / "train.tsv"), chunks=1)
    assert record["pairs"] > 100
    assert record["cache, MB"] > 0


def test_a_patch_removes_one_idea() -> None:
    layer, x = Attention(ModelConfig(d_model=8, n_heads=2)), torch.randn(1, 4, 8)
    unmasked = layer.weights(x, x)
    with mock.patch.object(*broken.PATCHES["mask_after_softmax"]):
        torch.testing.assert_close(layer.weights(x, x, causal=True), unmasked.tril())
    forward = broken.PATCHES["no_causal_mask"][2]
    torch.testing.assert_close(forward(layer, x, x, causal=True), layer(x, x))
    assert not broken.self_attention_only(layer, x, x.clone()).any()
    assert broken.self_attention_only(layer, x, x).any()
    assert {*broken.PATCHES, *broken.SETTINGS} < set(broken.VARIANTS)
    assert all(hasattr(kind, name) for kind, name, _ in broken.PATCHES.values())


def test_a_page_shows_each_training_with_its_words() -> None:
    record = {"losses": [3.0] * (broken.N_STEPS // broken.WINDOW), "right": 50.0, "shown": ["<b>", "b", "c"]}
    page = broken.page(dict.fromkeys(("whole", "no_shift"), record)).decode()
    assert page.count("<section>") == page.count("&lt;b&gt;") == 2
    template = (ROOT / "scripts" / "bench" / "broken.html").read_text(encoding="utf-8")
    assert all(f'"{name}": ["' in template for name in broken.VARIANTS)
    assert '""' not in template
    assert broken.table({"whole": record}).splitlines()[2].startswith("| whole | 3.00 | 50 | <b> |")


def test_measurements_inside_a_model() -> None:
    near, equal = torch.eye(4), torch.full((4, 4), 0.25)
    assert (inside.distance(near), inside.distance(equal)) == (0, 1.25)
    assert inside.entropy(near) == 0
    assert inside.entropy(equal).item() == pytest.approx(1.3863, abs=1e-4)
    bundle, pairs = load(GOLDEN), [{"zh": "好久不见", "en": "Long time no see"}, {"zh": "我很好", "en": "I'm fine"}]
    assert len(inside.retrieval(bundle, pairs)) == bundle.model_config.n_encoder_layers + 2
    maps = inside.heads(bundle, pairs)
    assert (maps["cross, entropy"] <= 1).all()
    ids = [[7, 8, 9], [5]]
    states = inside.layers_of(bundle.model, ids)[-1]
    torch.testing.assert_close(states, line_vectors(bundle.model, [[i] for i in ids], "mean"), atol=1e-5, rtol=1e-5)


def test_each_mutant_changes_one_place_and_names_its_tests() -> None:
    lines = (ROOT / "scripts" / "bench" / "mutants.tsv").read_text(encoding="utf-8").splitlines()[1:]
    for name, path, old, new, tests in (line.split("\t") for line in lines):
        code = ROOT / ("" if path.startswith("scripts/") else "src/dragoman") / path
        assert code.read_text(encoding="utf-8").count(old) == 1, name
        assert old != new, name
        for test in tests.split():
            file, _, function = test.partition("::")
            assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), name
    assert len({line.split("\t")[0] for line in lines}) == len(lines)
    assert f"{len(lines)} mutants" in (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
