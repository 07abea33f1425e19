"""Strings in, numbers out: BLEU, chrF and TER, each with sacrebleu's full signature.

This file knows how a language must be tokenized before it is scored, and that a number without its
signature is not a measurement: Chinese scored with the European tokenizer 13a loses twenty points and
means nothing. It refuses to know about models, corpora and files.

Two mistakes are made impossible. Hypotheses and references are keyword-only, so that nobody swaps them
(BLEU is not symmetric). And the numbers are exactly those of the `sacrebleu` command on files: sentences
may have different numbers of references, which files cannot express, so `reference_streams` repeats a
sentence's own references in turn until all have equally many. A repeated reference changes neither BLEU
nor chrF (both look for the best match); in TER it weighs the mean reference length a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.errors import UserError
from dragoman.languages import CHINESE, primary

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# language -> sacrebleu's tokenizer; every other language is scored with 13a, as at WMT
_TOKENIZERS = {
    **dict.fromkeys(CHINESE, "zh"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
}
METRICS = ("bleu", "chrf", "ter")

References = Sequence[str | Sequence[str]]  # per sentence: one reference, or several


@dataclass(frozen=True, kw_only=True)
class Score:
    """One measurement. `score` is in percent: higher is better for BLEU and chrF, lower for TER."""

    name: str
    score: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}  {self.signature}"


def tokenizer_for(tgt: str) -> str:
    """The name of sacrebleu's BLEU tokenizer for a target language such as 'zh', 'zh-Hant', 'en_GB'."""
    return _TOKENIZERS.get(primary(tgt), "13a")


def bleu(*, hypotheses: Sequence[str], references: References, tgt: str) -> Score:
    """Corpus BLEU (Papineni et al. 2002) as sacrebleu (Post 2018) computes it."""
    return evaluate(hypotheses=hypotheses, references=references, tgt=tgt, metrics=("bleu",))["bleu"]


def chrf(*, hypotheses: Sequence[str], references: References, tgt: str) -> Score:
    """Corpus chrF (Popovic 2015): character n-grams to order 6, recall weighed twice."""
    return evaluate(hypotheses=hypotheses, references=references, tgt=tgt, metrics=("chrf",))["chrf"]


def ter(*, hypotheses: Sequence[str], references: References, tgt: str) -> Score:
    """Corpus TER (Snover et al. 2006): edits per reference word; per character where words are not spaced."""
    return evaluate(hypotheses=hypotheses, references=references, tgt=tgt, metrics=("ter",))["ter"]


def evaluate(
    *, hypotheses: Sequence[str], references: References, tgt: str, metrics: Sequence[str] = METRICS
) -> dict[str, Score]:
    """The named metrics over a corpus, as {name: Score}.

    `references[i]` belongs to `hypotheses[i]`: a string, or a sequence of several (not equally many
    everywhere). Raises UserError when the two sides differ in length or are empty, when a sentence has no
    reference, or when the target language needs a tokenizer that is not installed.
    """
    streams = reference_streams(references)
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses but {len(references)} references: there must be one line for each"
        )
    scores = {}
    for name in metrics:
        metric = _metric(name, tgt)
        score = metric.corpus_score(list(hypotheses), streams)
        scores[name] = Score(name=score.name, score=score.score, signature=str(metric.get_signature()))
    return scores


def reference_streams(references: References) -> list[list[str]]:
    """Ragged references per sentence -> k full streams, one for each file sacrebleu would be given."""
    each = [[entry] if isinstance(entry, str) else list(entry) for entry in references]
    if not each:
        raise UserError("there is nothing to score: no references")
    for i, entry in enumerate(each):
        if not entry:
            raise UserError(f"sentence {i + 1} has no reference")
    return [[entry[k % len(entry)] for entry in each] for k in range(max(map(len, each)))]


def command_line_options(tgt: str) -> list[str]:
    """The options with which `sacrebleu REF... -i HYP -m bleu chrf ter` gives the numbers of `evaluate`."""
    options = ["--tokenize", tokenizer_for(tgt)]
    return [*options, "--ter-asian-support", "--ter-normalized"] if _unspaced(tgt) else options


def _metric(name: str, tgt: str) -> Metric:
    # not at the top of the file: half a second that --help need not wait for
    from sacrebleu.metrics import BLEU, CHRF, TER

    if name == "bleu":
        tokenizer = tokenizer_for(tgt)
        try:
            return BLEU(tokenize=tokenizer)
        except (RuntimeError, ImportError) as error:
            extra = tokenizer.partition("-")[0]
            raise UserError(
                f"BLEU for '{tgt}' needs the tokenizer {tokenizer}, which is not installed: "
                f"pip install 'sacrebleu[{extra}]'"
            ) from error
    if name == "chrf":
        return CHRF()
    if name == "ter":
        return TER(normalized=_unspaced(tgt), asian_support=_unspaced(tgt))
    raise UserError(f"no metric called '{name}'; choose from {', '.join(METRICS)}")


def _unspaced(tgt: str) -> bool:
    """Whether the language is written without spaces, so that TER has to count characters."""
    return tokenizer_for(tgt) in ("zh", "ja-mecab")
