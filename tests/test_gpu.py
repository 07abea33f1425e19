"""Computations on a GPU, compared with those on a CPU."""

import json

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer

from dragoman.compose import compose
from dragoman.config import Config, ModelConfig, SearchConfig, TrainingConfig
from dragoman.data.collate import collate
from dragoman.model.transformer import Transformer
from dragoman.training.fit import fit, preflight
from dragoman.training.module import TranslationModule, projected_loss
from dragoman.translation.engine import translate_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]
VOCABULARY = 200


def batch_of(n=24):
    """Sentences of 1 to n pieces, so that there is padding on both sides."""
    rows = [[4 + (7 * i + j) % (VOCABULARY - 4) for j in range(1 + i)] for i in range(n)]
    return collate(rows, rows[::-1])


def model_of(device):
    torch.manual_seed(1)
    sizes = {"d_model": 64, "d_ff": 128, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2}
    config = ModelConfig(dropout=0.0, **sizes)
    return Transformer(config, src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY).to(device)


def test_a_batch_is_copied_to_the_gpu_through_pinned_memory():
    batch = collate([[5, 6], [8]], [[9], [4, 5]])
    moved = batch.to("cuda")
    assert moved.src.is_cuda
    assert torch.equal(moved.src.cpu(), batch.src)


def loss_and_gradients(device):
    """Loss per token of one batch, and the gradients, on the CPU."""
    model, batch = model_of(device), batch_of().to(device)
    memory = model.encode(batch.src, batch.src_key_padding_mask)
    states = model.decode(batch.tgt_in, memory, batch.src_key_padding_mask).flatten(0, 1)[batch.tgt_indices]
    targets = batch.tgt_out.flatten()[batch.tgt_indices]
    loss = projected_loss(states, model.projection.weight, targets, label_smoothing=0.1)[0] / batch.n_tokens
    loss.backward()
    return loss.detach().cpu(), torch.cat([p.grad.flatten().cpu() for p in model.parameters()])


def test_fp32_equals_the_cpu():
    for ours, cpus in zip(loss_and_gradients("cuda"), loss_and_gradients("cpu"), strict=True):
        torch.testing.assert_close(ours, cpus, atol=1e-5, rtol=1e-3)


def test_bf16_agrees_to_three_digits():
    loss, gradients = loss_and_gradients("cpu")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        bf16_loss, bf16_gradients = loss_and_gradients("cuda")
    torch.testing.assert_close(bf16_loss, loss, atol=0.0, rtol=1e-2)
    assert torch.cosine_similarity(gradients, bf16_gradients, dim=0) > 0.99


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_translations_score_as_on_the_cpu(kind):
    sources = [[4 + (5 * i + j) % 150 for j in range(3 + i)] for i in range(6)]
    search = SearchConfig(kind=kind, max_length_a=0.0, max_length_b=12)
    cpu, gpu = (translate_ids(model_of(device).eval(), sources, search) for device in ("cpu", "cuda"))
    for (one, *_), (other, *_) in zip(cpu, gpu, strict=True):
        assert other.score == pytest.approx(one.score, abs=1e-3)


class Batches(LightningDataModule):
    consumed = 0

    def train_dataloader(self):
        return iter([batch_of()] * 4)


class NoSync(Callback):
    """Callback that makes waiting for the GPU an error, from the second step on."""

    def on_train_batch_end(self, *_):
        torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, *_):
        torch.cuda.set_sync_debug_mode("default")

    def on_exception(self, *_):
        torch.cuda.set_sync_debug_mode("default")


def test_a_training_step_never_waits_for_the_gpu():
    module = TranslationModule(model_of("cpu"), TrainingConfig(ema=0.9))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="gpu", devices=1, precision="bf16-mixed", max_steps=4, callbacks=[NoSync()],
        limit_val_batches=0, enable_checkpointing=False, **quiet,
    )  # fmt: skip
    trainer.fit(module, datamodule=Batches())
    assert module.measured["loss"] > 0


def config_of(folder, name, max_steps, precision="auto") -> Config:
    corpus = folder / "corpus.tsv"
    corpus.write_text("\n".join(f"这是第{n}个句子。\tThis is sentence {n}." for n in range(300)))
    return compose(
        [
            f"name={name}", f"run_dir={folder / name}", f"data.corpora=[{{path: {corpus}}}]", "model=tiny",
            "recipe=none", "data.tokenizer.vocab_size=330", f"data.cache={folder / 'cache'}", "data.max_tokens=300",
            "data.max_ratio=0", "training.warmup_steps=5", "training.ema=0.9", "trainer.accelerator=gpu",
            f"trainer.precision='{precision}'", f"trainer.max_steps={max_steps}", "trainer.validate_every=5",
            "trainer.validation_pairs=4",
        ]
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_resumed_run_has_nearly_the_same_loss(tmp_path, precision):
    def losses(name, *stops):
        for stop in stops:
            fit(config_of(tmp_path, name, stop, precision))
        metrics = json.loads((tmp_path / name / "metrics.json").read_text(encoding="utf-8"))
        return [record["loss"] for record in metrics["validations"] if record["step"] in (5, 10, 12)]

    straight, broken = losses("straight", 12), losses("broken", 3, 12)
    assert broken == pytest.approx(straight, rel=1e-2)
    assert straight[-1] < straight[0]


def test_preflight_reports_the_memory_of_the_gpu(tmp_path, capsys):
    preflight(config_of(tmp_path, "run", 1000))
    assert "peak memory" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
