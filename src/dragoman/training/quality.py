"""How good the model is by now: validation loss, BLEU and chrF of real translations, and what to look at.

It decodes the validation sources with the weights that would be shipped, keeps the history of all validations, says
which was the best and why, and gives TensorBoard a table of sample translations and pictures of attention. A model
of both directions is judged by the mean of their scores; each direction's own are beside it, as bleu_zh_en.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.tensorboard import SummaryWriter

from dragoman import metrics
from dragoman.attended import attended
from dragoman.data.corpus import Pair, clean_text
from dragoman.data.datamodule import TranslationData
from dragoman.model.transformer import Transformer
from dragoman.picture import attention_figure, curve_figure, pixels
from dragoman.search.search import SearchConfig
from dragoman.torch_engine import translate_ids
from dragoman.training.module import TranslationModule

log = logging.getLogger(__name__)

SCORES = ("bleu", "chrf", "exact")


class Quality(Callback):
    """Validates at the end of every validation epoch; `history` holds one record each, oldest first."""

    def __init__(
        self,
        data: TranslationData,
        *,
        monitor: str,
        n_pairs: int,
        n_samples: int,
        say: Callable[[str], None],
        average: dict[str, Any] | None = None,
    ) -> None:
        self.data, self.n_samples, self.say = data, n_samples, say
        n = min(n_pairs, len(data.validation))
        chosen = np.random.default_rng(0).choice(
            len(data.validation), n, replace=False
        )  # of every corpus its share
        self.directions = data.directions
        picked = [data.validation[i] for i in sorted(chosen.tolist())]
        # Directions take turns, so that a few samples show each: those of self.directions[n] are pairs[n::how many].
        self.pairs = [p for pair in picked for p in (pair, pair.swapped())[: len(self.directions)]]
        self.search = SearchConfig(kind="greedy")  # often, so fast
        self.monitor = monitor if self.pairs else "loss"  # nothing is translated, so nothing else can be had
        encoded = data.src_tokenizer.encode_batch([pair.src for pair in self.pairs])
        tags = [data.src_tokenizer.tag(direction.tgt) for direction in self.directions]
        self.sources = [[*tags[i % len(tags)], *ids] for i, ids in enumerate(encoded)]
        self.history: list[dict[str, Any]] = []
        self.before: list[str] = []  # the samples' translations at the last validation
        self.average = average  # the record of averaged snapshots, which belong to no step
        self.is_best = False

    def state(self) -> dict[str, Any]:
        return {"history": list(self.history), "before": self.before}

    def restore(self, state: dict[str, Any]) -> None:
        self.history, self.before = list(state["history"]), state["before"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The record of the best validation so far."""
        records = [*self.history, self.average] if self.average else self.history
        return max(records, key=self._merit) if records else None

    def _merit(self, record: dict[str, Any]) -> tuple[float, float]:
        """Larger is better; where the scores are equal, as in the beginning, the loss decides."""
        value = -math.inf if self.monitor == "loss" else record.get(self.monitor, -math.inf)
        return value, -record["loss"] if math.isfinite(record["loss"]) else -math.inf

    def curve(self) -> bytes:
        """The scores of all validations by step, as a PNG."""
        steps = [record["step"] for record in self.history]
        names = [name for name in self._names(SCORES[:2]) if all(name in record for record in self.history)]
        names = names or ["loss"]
        series = {name: (steps, [record[name] for record in self.history]) for name in names}
        return curve_figure(series, "step", "validation", "")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A table of positions may end before the longest validation sentence does, which is not among the pairs of
        the validation loss but is translated."""
        assert isinstance(pl_module, TranslationModule)
        limit = pl_module.model.max_positions
        too_long = 0 if limit is None else sum(len(ids) >= limit for ids in self.sources)
        if limit is not None and too_long:
            self.sources = [ids[: limit - 1] for ids in self.sources]
            self.say(f"{too_long} validation sources are cut to model.position.length={limit} positions")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        hypotheses = self._translate(trainer, pl_module.best_model)
        record: dict[str, Any] = {"step": trainer.global_step, "loss": pl_module.validation_loss()}
        if self.pairs:
            record |= self._scores(hypotheses)
        best = self.best
        self.is_best = best is None or self._merit(record) > self._merit(best)
        self.history.append(record)
        pl_module.log(self.monitor, record[self.monitor], logger=False)  # for early stopping
        if not trainer.is_global_zero:
            return
        self.say(self._in_words(record, best))
        if trainer.logger is not None:
            self._show(trainer.logger.experiment, record, hypotheses, pl_module.best_model)  # type: ignore[attr-defined]
        self.before = hypotheses[: self.n_samples]

    def _scores(self, hypotheses: list[str]) -> dict[str, Any]:
        """Of one direction its scores; of both their means, and each direction's own under its name."""
        n = len(self.directions)
        each = [
            _scores_of(hypotheses[i::n], self.pairs[i::n], direction.tgt)
            for i, direction in enumerate(self.directions)
        ]
        if n == 1:
            return each[0]
        means = {name: round(sum(scores[name] for scores in each) / n, 3) for name in SCORES}
        return means | {
            f"{name}_{direction}": value
            for direction, scores in zip(self.directions, each, strict=True)
            for name, value in scores.items()
        }

    def _names(self, scores: Sequence[str]) -> list[str]:
        """Under which names a record holds these scores."""
        several = self.directions if len(self.directions) > 1 else []
        return [*scores, *(f"{name}_{direction}" for name in scores for direction in several)]

    def _translate(self, trainer: Trainer, model: Transformer) -> list[str]:
        """Greedily, every process its share; all get all."""
        rank, world = trainer.global_rank, trainer.world_size
        with torch.autocast(model.projection.weight.device.type, enabled=False):
            found = translate_ids(model, self.sources[rank::world], self.search)
        mine = [clean_text(self.data.tgt_tokenizer.decode(hypotheses[0].ids)) for hypotheses in found]
        if world == 1:
            return mine
        shares: list[list[str]] = [[] for _ in range(world)]
        torch.distributed.all_gather_object(shares, mine)
        return [shares[i % world][i // world] for i in range(len(self.sources))]

    def _in_words(self, record: dict[str, Any], best: dict[str, Any] | None) -> str:
        scores = "  ".join(f"{k} {record[k]:.2f}{self._apart(record, k)}" for k in SCORES if k in record)
        line = f"step {record['step']}: validation loss {record['loss']:.3f}  {scores}"
        if best is None:
            return f"{line}  (first: kept)"
        if self.is_best:
            return f"{line}  (best so far by {self.monitor}: kept)"
        return f"{line}  (not kept: {self.monitor} was {best[self.monitor]:.2f} at step {best['step']})"

    def _apart(self, record: dict[str, Any], score: str) -> str:
        """The score of each direction, where there are several."""
        own = [f"{d} {record[f'{score}_{d}']:.2f}" for d in self.directions if f"{score}_{d}" in record]
        return f" ({', '.join(own)})" if own else ""

    def _show(
        self, board: SummaryWriter, record: dict[str, Any], hypotheses: list[str], model: Transformer
    ) -> None:
        step = record["step"]
        board.add_scalar("validation/loss", record["loss"], step)
        board.add_scalar("validation/perplexity", math.exp(min(50.0, record["loss"])), step)
        for name in self._names(SCORES):
            if name in record:
                board.add_scalar(f"validation/{name}", record[name], step)
        rows = ["| source | reference | hypothesis now | before |", "|---|---|---|---|"]
        for i in range(min(self.n_samples, len(self.pairs))):
            before = self.before[i] if i < len(self.before) else ""
            cells = (self.pairs[i].src, self.pairs[i].tgt, hypotheses[i], before)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        board.add_text("samples", "\n".join(rows), step)
        for i in range(min(2, self.n_samples, len(self.pairs))):
            self._show_attention(board, model, i, hypotheses[i], step)
        board.flush()

    def _show_attention(
        self, board: SummaryWriter, model: Transformer, i: int, hypothesis: str, step: int
    ) -> None:
        """Cross-attention of the last layer: which source pieces each target piece was made from."""
        tokenizers = self.data.src_tokenizer, self.data.tgt_tokenizer
        seen = attended(model, tokenizers, self.sources[i], self.data.tgt_tokenizer.encode(hypothesis))
        weights, rows, columns = seen.maps["cross"][-1], seen.pieces["tgt_out"], seen.pieces["src"]
        picture = attention_figure(weights, rows, columns, title=f"step {step}")
        board.add_image(f"attention/{i + 1}", pixels(picture), step, dataformats="HWC")


def _scores_of(hypotheses: list[str], pairs: list[Pair], tgt: str) -> dict[str, Any]:
    """BLEU, chrF, and how many percent equal a reference, with BLEU's signature."""
    references = [pair.references or (pair.tgt,) for pair in pairs]
    scores = metrics.evaluate(hypotheses=hypotheses, references=references, tgt=tgt, metrics=("bleu", "chrf"))
    record: dict[str, Any] = {name: round(score.score, 3) for name, score in scores.items()}
    same = sum(h in known for h, known in zip(hypotheses, references, strict=True))
    return record | {"exact": round(100 * same / len(pairs), 2), "signature": scores["bleu"].signature}
