"""Packing is another way to write the same batch: the same loss, the same gradients, whatever the model."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.config import Config
from dragoman.data.collate import Batch, collate, pack
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError
from dragoman.masks import segment_attn_mask
from dragoman.model import varlen
from dragoman.model.attention import SCORES
from dragoman.model.position import POSITIONS, PositionConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.training import packing
from dragoman.training.fit import TrainerConfig, fit, resolved
from dragoman.training.module import TrainingConfig, TranslationModule
from dragoman.training.packing import packing_for

PHRASES = Path(__file__).parents[2] / "data" / "phrasebook" / "handwritten" / "people.tsv"
VOCABULARY = 60
LAYOUTS = {"rows": np.array([0, 0, 0, 1, 1, 2, 2, 2]), "flat": np.zeros(8, np.int64)}


def batch_of() -> Batch:
    """Eight pairs, no two alike, long sources with short targets among them."""
    src = [[4 + (7 * i + 3 * j) % 56 for j in range(1 + 5 * i % 9)] for i in range(8)]
    tgt = [[4 + (5 * i + j) % 56 for j in range(7 * i % 11)] for i in range(8)]
    return collate(src, tgt)


def module_of(**model: object) -> TranslationModule:
    torch.manual_seed(1)
    small = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 2}
    config = ModelConfig(**{**small, "dropout": 0.0, **model})
    network = Transformer(config, src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY)
    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)  # what starts at zero would hide that it is there
    return TranslationModule(network, TrainingConfig(), max_steps=10)


def taught(module: TranslationModule, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss per token, and the gradients."""
    module.zero_grad()
    loss, _ = module._loss(batch, module._states(batch), module.model, 0.1)
    (loss / batch.n_tokens).backward()
    named = module.model.named_parameters()
    return (loss / batch.n_tokens).detach(), {n: p.grad.clone() for n, p in named if p.grad is not None}


def assert_same(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=1e-5)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kind", "score"), list(itertools.product(POSITIONS, SCORES)))
def test_packed_or_padded_the_loss_and_every_gradient_are_the_same(
    kind: str, score: str, layout: str
) -> None:
    module = module_of(
        position=PositionConfig(kind=kind, length=16, n_buckets=8, max_distance=16), score=score
    )
    batch = batch_of()
    assert_same(taught(module, pack(batch, LAYOUTS[layout])), taught(module, batch))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_pair_learns_nothing_of_its_neighbours(norm: str) -> None:
    """With other neighbours in its row, a pair's states are the same to the last digit that is worth it."""
    module = module_of(norm=norm)
    batch = batch_of()
    states = [module._states(pack(batch, rows)) for rows in LAYOUTS.values()]
    torch.testing.assert_close(states[0], states[1], atol=1e-5, rtol=1e-5)


def loops(q: Tensor, k: Tensor, v: Tensor, paired: varlen.Paired, *, causal: bool, scale: float) -> Tensor:
    """What variable-length attention does, sentence by sentence."""
    found = []
    ends = (torch.as_tensor(runs.starts).tolist() for runs in paired)
    for (a, b), (c, d) in zip(*map(itertools.pairwise, ends), strict=True):
        assert b - a <= paired.q.longest
        assert d - c <= paired.k.longest
        part = F.scaled_dot_product_attention(
            q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], is_causal=causal, scale=scale
        )
        found.append(part)
    return torch.cat(found, dim=2)


@pytest.mark.parametrize("kind", [kind for kind in POSITIONS if kind not in varlen.BIASED])
def test_runs_say_the_same_as_masks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(position=PositionConfig(kind=kind, length=16))
    batch = batch_of()
    masked = taught(module, pack(batch, LAYOUTS["flat"]))
    calls = []

    def segments(packed: Batch) -> tuple[varlen.Runs, varlen.Runs]:
        assert packed.src_starts is not None
        assert packed.tgt_starts is not None
        return varlen.Runs(packed.src_starts, packed.longest), varlen.Runs(packed.tgt_starts, packed.longest)

    monkeypatch.setattr("dragoman.training.module.segments_of", segments)
    monkeypatch.setattr(
        "dragoman.model.attention.attend_runs", lambda *a, **k: calls.append(k["causal"]) or loops(*a, **k)
    )
    assert_same(taught(module, pack(batch, LAYOUTS["flat"])), masked)
    assert calls == 2 * [False] + 2 * [True, False]  # encoder; decoder and its look at the source


def test_a_packed_mask_is_block_diagonal_and_leaves_no_row_empty() -> None:
    q, k = torch.tensor([[1, 1, 2, 0]]), torch.tensor([[1, 2, 2]])
    mask = segment_attn_mask(q, k)[0, 0].tolist()
    assert mask == [[True, False, False], [True, False, False], [False, True, True], [True, True, True]]


def config_of(tmp_path: Path, packing: str, max_steps: int = 4, name: str = "run") -> Config:
    return Config(
        run_dir=str(tmp_path / name),
        data=DataConfig(
            corpora=[CorpusConfig(path=str(PHRASES))],
            tokenizer=TokenizerConfig(kind="char", vocab_size=900),
            cache=str(tmp_path / "cache"),
            max_tokens=300,
            max_length=60,
            validation_size=10,
            test_size=0,
            packing=packing,
        ),
        model=ModelConfig(d_model=16, d_ff=32, n_heads=2, n_encoder_layers=1, n_decoder_layers=1),
        training=TrainingConfig(warmup_steps=2),
        trainer=TrainerConfig(
            accelerator="cpu",
            precision="32",
            max_steps=max_steps,
            validate_every=4,
            validation_pairs=1,
            samples=0,
        ),
    )


def test_auto_is_off_where_no_gpu_is_and_a_run_older_than_the_setting_goes_on(tmp_path: Path) -> None:
    assert resolved(config_of(tmp_path, "auto")).data.packing == "off"
    fit(config_of(tmp_path, "auto", 2))
    saved = tmp_path / "run" / "config.yaml"
    lines = saved.read_text(encoding="utf-8").splitlines()
    saved.write_text("\n".join(line for line in lines if "packing: " not in line) + "\n", encoding="utf-8")
    fit(config_of(tmp_path, "auto", 2))  # is finished, and no other than it was
    with pytest.raises(UserError, match=r"data\.packing \(was off, now rows\)"):
        fit(config_of(tmp_path, "rows", 6))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"position": PositionConfig(kind="t5")}, "model.position.kind=t5"),
        ({"position": PositionConfig(kind="alibi")}, "model.position.kind=alibi"),
        ({"position": PositionConfig(kind="transformer_xl")}, "model.position.kind=transformer_xl"),
        ({"score": "additive"}, "model.score=additive"),
        ({"attention_dropout": 0.1}, "model.attention_dropout=0.1"),
        ({"d_model": 48, "n_heads": 4}, "heads of 12"),
    ],
)
def test_what_no_row_without_padding_can_train_is_refused_by_name_and_auto_does_without(
    changes: dict, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "works", lambda dtype, d_head: None)
    config = config_of(tmp_path, "flat")
    assert packing_for(config, "gpu", "bf16") == "flat"
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, **changes))
    with pytest.raises(UserError, match=named):
        packing_for(other, "gpu", "bf16")
    auto = dataclasses.replace(other, data=dataclasses.replace(other.data, packing="auto"))
    assert packing_for(auto, "gpu", "bf16") == "off"


@pytest.mark.parametrize(("accelerator", "precision"), [("cpu", "bf16"), ("gpu", "32")])
def test_hardware_and_precision_are_named_too(accelerator: str, precision: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer\.(accelerator=cpu|precision=32)"):
        packing_for(config_of(tmp_path, "flat"), accelerator, precision)


def test_where_torchs_function_fails_auto_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "works", lambda dtype, d_head: "torch has it not for this GPU")
    assert packing_for(config_of(tmp_path, "auto"), "gpu", "bf16") == "off"
    with pytest.raises(UserError, match="not for this GPU"):
        packing_for(config_of(tmp_path, "flat"), "gpu", "bf16")


def test_segments_of_a_single_row_are_masks_where_no_gpu_is() -> None:
    packed = pack(batch_of(), LAYOUTS["flat"])
    assert packing.segments_of(packed) == (packed.src_segments, packed.tgt_segments)
