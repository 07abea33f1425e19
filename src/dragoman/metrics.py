"""BLEU, chrF and TER by sacrebleu, each with its full signature.

sacrebleu requires the same number of references for every sentence, so `reference_streams` repeats references.
Repeats change neither BLEU nor chrF, which use the best match, but change TER, which uses the mean length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.errors import UserError
from dragoman.languages import is_chinese, is_unspaced, primary

References = Sequence[Sequence[str]]  # of each sentence


@dataclass(frozen=True, kw_only=True)
class Score:
    """One measurement in percent: higher is better for BLEU and chrF, lower for TER."""

    name: str
    score: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}  {self.signature}"


def _metric(name: str, tgt: str, **options: Any) -> Any:
    from sacrebleu import metrics

    try:
        return getattr(metrics, name)(**options)
    except (RuntimeError, ImportError) as error:
        raise UserError(f"{name} for '{tgt}' needs a tokenizer: pip install 'sacrebleu[{primary(tgt)}]'") from error


# Name -> constructor of sacrebleu's metric for a target language; sacrebleu is imported on the first call.
METRICS: dict[str, Callable[[str], Any]] = {
    "bleu": lambda tgt: _metric("BLEU", tgt, trg_lang="zh" if is_chinese(tgt) else primary(tgt)),
    "chrf": lambda tgt: _metric("CHRF", tgt),
    "ter": lambda tgt: _metric("TER", tgt, normalized=is_unspaced(tgt), asian_support=is_unspaced(tgt)),
}
LOWER_IS_BETTER = {"ter"}


def evaluate(
    *, hypotheses: Sequence[str], references: References, tgt: str, metrics: Sequence[str] = ("bleu", "chrf", "ter")
) -> dict[str, Score]:
    """Score a corpus by the named metrics; `references[i]` are of `hypotheses[i]`."""
    streams, scores = reference_streams(references), {}
    for name in metrics:
        metric = METRICS[name](tgt)
        score = metric.corpus_score(list(hypotheses), streams)
        scores[name] = Score(name=score.name, score=score.score, signature=str(metric.get_signature()))
    return scores


def reference_streams(references: References) -> list[list[str]]:
    """Transpose references by sentence to k lists over sentences, for sacrebleu."""
    return [[texts[k % len(texts)] for texts in references] for k in range(max(map(len, references)))]
