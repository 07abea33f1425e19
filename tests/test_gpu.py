"""What runs on a GPU is what runs on a CPU: the same numbers to rounding, the same batches after a stop.

Everything here skips itself where torch finds no CUDA device.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.config import Config
from dragoman.data.collate import Batch, collate, pack
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.model import varlen
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.search.search import SearchConfig
from dragoman.torch_engine import translate_ids
from dragoman.training.fit import TrainerConfig, fit
from dragoman.training.module import TrainingConfig, TranslationModule
from dragoman.training.preflight import preflight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]
DEVICE = "cuda"
PHRASES = Path(__file__).parents[1] / "data" / "phrasebook" / "handwritten" / "people.tsv"
VOCABULARY = 200
NORMS = ["pre", "post"]


def batch_of(n: int = 24) -> Batch:
    """Sentences of 1 to n pieces, so that there is padding on both sides."""
    rows = [[4 + (7 * i + j) % (VOCABULARY - 4) for j in range(1 + i)] for i in range(n)]
    return collate(rows, rows[::-1])


def module_of(device: str, *, norm: str = "pre", compile: bool = False) -> TranslationModule:
    """The same weights wherever it is, nothing left to chance."""
    torch.manual_seed(1)
    shape = ModelConfig(
        d_model=64,
        d_ff=128,
        n_heads=4,
        n_encoder_layers=2,
        n_decoder_layers=2,
        norm=norm,
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = Transformer(shape, src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY)
    return TranslationModule(model, TrainingConfig(), max_steps=10, compile=compile).to(device)


def taught(
    module: TranslationModule, device: str, batch: Batch | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss per token of one batch, and the gradients, on the CPU."""
    batch = (batch or batch_of()).to(device)
    loss, _ = module._loss(batch, module._states(batch), module.model, 0.1)
    (loss / batch.n_tokens).backward()
    named = module.model.named_parameters()
    return (loss / batch.n_tokens).detach().cpu(), {n: p.grad.cpu() for n, p in named if p.grad is not None}


@pytest.mark.parametrize("norm", NORMS)
def test_a_gpu_computes_in_fp32_what_a_cpu_computes(norm: str) -> None:
    loss, gradients = taught(module_of("cpu", norm=norm), "cpu")
    found, its_gradients = taught(module_of(DEVICE, norm=norm), DEVICE)
    torch.testing.assert_close(found, loss, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == its_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(its_gradients[name], gradient, atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize("norm", NORMS)
def test_bf16_costs_three_digits_and_no_more(norm: str) -> None:
    loss, gradients = taught(module_of("cpu", norm=norm), "cpu")
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        found, its_gradients = taught(module_of(DEVICE, norm=norm), DEVICE)
    torch.testing.assert_close(found, loss, atol=0.0, rtol=1e-2)
    whole = torch.cat([gradient.flatten() for gradient in gradients.values()])
    its_whole = torch.cat([its_gradients[name].flatten() for name in gradients])
    assert torch.cosine_similarity(whole, its_whole, dim=0) > 0.99


def test_a_compiled_model_has_the_same_loss_and_gradients() -> None:
    loss, gradients = taught(module_of(DEVICE), DEVICE)
    found, its_gradients = taught(module_of(DEVICE, compile=True), DEVICE)
    torch.testing.assert_close(found, loss, atol=1e-5, rtol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(its_gradients[name], gradient, atol=1e-5, rtol=1e-3, msg=name)


def test_rows_of_several_pairs_have_on_a_gpu_the_loss_of_a_row_for_each() -> None:
    loss, gradients = taught(module_of(DEVICE), DEVICE)
    rows = pack(batch_of(), np.arange(24) // 5)
    found, its_gradients = taught(module_of(DEVICE), DEVICE, rows)
    torch.testing.assert_close(found, loss, atol=1e-5, rtol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(its_gradients[name], gradient, atol=1e-5, rtol=1e-3, msg=name)


@pytest.fixture
def runs_work() -> None:
    why = varlen.works(torch.bfloat16, 16)
    if why is not None:
        pytest.skip(f"no attention of variable length: {why}")


@pytest.mark.usefixtures("runs_work")
@pytest.mark.parametrize("compile", [False, True])
def test_pairs_in_one_row_without_padding_have_the_loss_of_padded_ones(
    compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    attend = varlen.attend_runs
    if not compile:
        counted = lambda *a, **k: calls.append(1) or attend(*a, **k)  # noqa: E731
        monkeypatch.setattr("dragoman.model.attention.attend_runs", counted)
    flat = pack(batch_of(), np.zeros(24, np.int64))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss, gradients = taught(module_of(DEVICE), DEVICE)
        found, its_gradients = taught(module_of(DEVICE, compile=compile), DEVICE, flat)
    assert compile or len(calls) == 6  # two encoder layers, two decoder layers and their looks at the source
    torch.testing.assert_close(found, loss, atol=0.0, rtol=1e-2)
    whole = torch.cat([gradient.flatten().double() for gradient in gradients.values()])
    its_whole = torch.cat([its_gradients[name].flatten().double() for name in gradients])
    # bf16 alone turns it by 1e-4; a target that sees its neighbour's source by 3e-2
    assert torch.cosine_similarity(whole, its_whole, dim=0) > 0.999


class OneProcess:
    """As much of a Trainer as a step asks for."""

    world_size, global_step, precision = 1, 0, "bf16-mixed"

    class datamodule:  # noqa: N801
        consumed = 0


@pytest.mark.parametrize("layout", ["padded", "rows", "flat"])
def test_a_training_step_never_waits_for_the_gpu(layout: str) -> None:
    if layout == "flat" and (why := varlen.works(torch.bfloat16, 16)):
        pytest.skip(f"no attention of variable length: {why}")
    module = module_of(DEVICE)
    module._trainer = OneProcess()  # type: ignore[assignment]
    module._fabric = None
    optimizer = module.configure_optimizers()
    batch = batch_of()
    if layout != "padded":
        batch = pack(batch, np.arange(24) // 5 if layout == "rows" else np.zeros(24, np.int64))

    def step() -> None:
        here = module.transfer_batch_to_device(batch, torch.device(DEVICE), 0)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = module.training_step(here, 0)
        loss.backward()
        module.on_before_optimizer_step(optimizer)
        optimizer.step()
        optimizer.zero_grad()

    step()  # the first time there is much to set up
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert module.measured["loss"] > 0


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_a_gpu_finds_the_translations_that_a_cpu_finds(kind: str) -> None:
    sources = [[4 + (5 * i + j) % 150 for j in range(3 + i)] for i in range(6)]
    search = SearchConfig(kind=kind, max_length_a=0.0, max_length_b=12)
    here, there = (translate_ids(module_of(at).model.eval(), sources, search) for at in ("cpu", DEVICE))
    for (one, *_), (other, *_) in zip(here, there, strict=True):
        assert other.score == pytest.approx(one.score, abs=1e-3)


def config_of(folder: Path, name: str, max_steps: int, **trainer: Any) -> Config:
    return Config(
        name=name,
        run_dir=str(folder / name),
        data=DataConfig(
            corpora=[CorpusConfig(path=str(PHRASES))],
            tokenizer=TokenizerConfig(kind="char", vocab_size=900),
            cache=str(folder / "cache"),
            max_tokens=600,
            validation_size=20,
            test_size=4,
        ),
        model=ModelConfig(d_model=64, d_ff=128, n_heads=4, n_encoder_layers=1, n_decoder_layers=1),
        training=TrainingConfig(warmup_steps=5, ema=0.9),
        trainer=TrainerConfig(
            accelerator="gpu", max_steps=max_steps, validate_every=5, validation_pairs=4, samples=1, **trainer
        ),
    )


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_run_on_a_gpu_goes_on_with_the_same_batches_and_nearly_the_same_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    seen: list[Tensor] = []
    teach = TranslationModule.training_step

    def training_step(self: TranslationModule, batch: Batch, index: int) -> Tensor:
        assert batch.src.device.type == DEVICE
        seen.append(batch.src.cpu())
        return teach(self, batch, index)

    monkeypatch.setattr(TranslationModule, "training_step", training_step)

    def records(name: str, *stops: int) -> list[dict[str, Any]]:
        for stop in stops:
            fit(config_of(tmp_path, name, stop, precision=precision))
        metrics = json.loads((tmp_path / name / "metrics.json").read_text(encoding="utf-8"))
        return [record for record in metrics["validations"] if record["step"] in (5, 10, 12)]

    straight = records("straight", 12)
    batches, seen = seen, []
    broken = records("broken", 3, 12)
    assert len(seen) == len(batches)
    assert all(torch.equal(one, other) for one, other in zip(batches, seen, strict=True))
    assert [record["step"] for record in straight] == [record["step"] for record in broken]
    for one, other in zip(straight, broken, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-2)
    assert straight[-1]["loss"] < straight[0]["loss"]


def test_preflight_tells_the_memory_of_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preflight(config_of(tmp_path, "asked", 1000))
    out = capsys.readouterr().out
    assert "GB on the GPU" in out
    assert not (tmp_path / "asked").exists()
