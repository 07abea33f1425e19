"""Text to text: the only room where sentences go in and sentences come out.

It knows how a line becomes sentences, pieces and ids and how the answers become a line again. It refuses to
know about files, terminals and formats: those are the doors' business.

N lines in, N lines out, in order, always, and nothing in a line is dropped:
  - every line is split at its sentence ends (data/sentences.py), because models are trained on single
    sentences and forget the second one; a sentence longer than the training sentences is cut further;
  - the answers are joined with the white space that stood between the sentences, or with what the target
    language puts there: a space in English where Chinese had none, none in Chinese where English had one;
  - blank lines stay blank, and a sentence without letters or digits (emoji, a row of dashes) is copied.
A model of both directions takes the one that is named, or else the one whose source is in the script of the lines:
of all that `score` is given, of the first window elsewhere, so that one call never mixes directions.
The n-th best translation of a line is made of the n-th best of its sentences, and their scores add up.

Lines are worked on in windows, so that memory depends neither on the length of a file nor, beyond its own
size, on that of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from dragoman.data.corpus import clean_text
from dragoman.data.sentences import split
from dragoman.description import Shell, load_shell, settled
from dragoman.engine import Engine, choose, choose_device
from dragoman.errors import UserError
from dragoman.languages import Direction, chosen, is_unspaced, named
from dragoman.search.hypothesis import Hypothesis, SearchConfig
from dragoman.special import EOS

if TYPE_CHECKING:
    import torch

    from dragoman.attended import Attended
    from dragoman.bundle import Bundle

_WINDOW_LINES = 2_000
_WINDOW_CHARS = 200_000
_CHARS_PER_PIECE = 4  # more than any vocabulary's average: only bounds what is encoded in one go
_LONGEST_SCORED = 4_096  # pieces; attention over more would need gigabytes


@dataclass(frozen=True)
class Candidate:
    """One translation. `tokens` are its pieces and, where it was reached, the end mark; a score for each.

    token_scores are log-probabilities; `score` is their sum over length^length_penalty.
    """

    text: str
    score: float
    tokens: list[str]
    token_scores: list[float]


@dataclass(frozen=True)
class Translation:
    """Of one line: the best text, and all hypotheses asked for, best first."""

    text: str
    hypotheses: list[Candidate]


class _Piece(NamedTuple):
    text: str
    ids: list[int]  # empty: copied, not translated
    space: str  # the white space that follows it in the line


_EMPTY = Candidate("", 0.0, [], [])


class Translator:
    """A bundle, ready to translate. All but translating is done by torch, whose model is read when it is needed."""

    def __init__(self, bundle: Shell, engine: Engine | None = None) -> None:
        """`bundle` holds a model, unless there is an `engine`."""
        self.bundle = bundle
        self.engine = engine or Engine(lambda: cast("Bundle", bundle).model)
        # pieces of one sentence, its end mark included and, in a model of two directions, its tag
        self.longest = min(_LONGEST_SCORED, bundle.model_config.position.limit or _LONGEST_SCORED)
        self.max_length = min(bundle.max_length, max(1, self.longest - len(bundle.directions)))

    @classmethod
    def load(
        cls, folder: Path | str, device: str = "auto", *, engine: str = "auto", task: str | None = None
    ) -> Translator:
        """The translator of a bundle or run folder on 'cpu', 'cuda', 'cuda:1', 'mps' or the best one.

        For `engine` and `task` see engine.choose: without an export beside it, the bundle's weights are read at once.
        """

        def read() -> Bundle:
            from dragoman import bundle
            from dragoman.torch_engine import laid_out

            found = bundle.load(folder, choose_device(device))
            laid_out(found.model)
            return found

        def fast(found: Path) -> Translator | None:
            if not found.is_dir():
                return None  # which reading it will say
            shell = load_shell(found)
            export = choose(engine, found, shell, device, task=task)
            return cls(shell, Engine(lambda: read().model, export)) if export else None

        return settled(Path(folder), fast) or cls(read())

    def direction(self, name: str | None, text: str) -> Direction:
        """The direction called `name`; for None, the one that suits the script of `text`.

        Raises UserError for a direction the model has not learnt, and where the script does not tell.
        """
        known = self.bundle.directions
        return named(name, known, where="in this model ") if name else chosen(known, text)

    def translate(
        self,
        lines: Sequence[str],
        search: SearchConfig | None = None,
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
        scored: bool = True,
    ) -> list[Translation]:
        """One translation per line; `search` defaults to the bundle's own, `direction` is written zh_en.

        Without `scored`, only the texts and tokens are to be relied on: scores may be missing, and time is saved.
        """
        return list(self.stream(lines, search, batch_tokens=batch_tokens, direction=direction, scored=scored))

    def stream(
        self,
        lines: Iterable[str],
        search: SearchConfig | None = None,
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
        scored: bool = True,
        progress: Callable[[float], None] | None = None,
    ) -> Iterator[Translation]:
        """`translate` for input of any length: translations follow one by one, in order.

        `batch_tokens` bounds sentences x beams x longest sentence computed at once; `progress` is told the
        number of lines done so far, fractions included.
        """
        search = search or self.bundle.search
        before, counted = 0, 0  # lines done; sentences met, whose numbers seed sampling
        tgt = ""
        for window in _windows(lines):
            tgt = tgt or self.direction(direction, "\n".join(window)).tgt
            tag = self.bundle.src_tokenizer.tag(tgt)
            plans = [self._pieces(line) for line in window]
            sources = [[*tag, *piece.ids] for plan in plans for piece in plan if piece.ids]
            answered = 0

            def tell(n: int, before: int = before, lines: int = len(window), of: int = len(sources)) -> None:
                nonlocal answered
                answered += n
                if progress:
                    progress(before + lines * answered / of)

            found = iter(
                self.engine.translate(
                    sources,
                    search,
                    longest=self.max_length + len(tag),
                    batch_tokens=batch_tokens,
                    lines=range(counted, counted + len(sources)),
                    scored=scored,
                    progress=tell,
                )
            )
            for plan in plans:
                yield self._join(plan, found, search.n_best, tgt)
            before, counted = before + len(window), counted + len(sources)
            if progress:
                progress(before)

    def score(
        self,
        src_lines: Sequence[str],
        tgt_lines: Sequence[str],
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
    ) -> list[float]:
        """log P(tgt | src) of each pair of lines in nats, the end mark included. Lines are taken whole."""
        if len(src_lines) != len(tgt_lines):
            raise UserError(
                f"{len(src_lines)} source lines but {len(tgt_lines)} target lines: they are pairs"
            )
        tag = self._tag(direction, "\n".join(src_lines))
        encoded = self.bundle.src_tokenizer.encode_batch([clean_text(line) for line in src_lines])
        src = [[*tag, *ids] for ids in encoded]
        tgt = self.bundle.tgt_tokenizer.encode_batch([clean_text(line) for line in tgt_lines])
        widths = [max(map(len, pair)) + 1 for pair in zip(src, tgt, strict=True)]
        for number, width in enumerate(widths, 1):
            if width > self.longest:
                raise UserError(
                    f"line {number} has {width} pieces; no more than {self.longest} can be scored"
                )
        from dragoman.torch_engine import score_ids

        return score_ids(self.engine.model, src, tgt, batch_tokens=batch_tokens)

    def attend(self, line: str, translation: str, *, direction: str | None = None) -> Attended:
        """Where the model looks in `line` while it writes `translation`; both taken as one sentence."""
        from dragoman.attended import attended

        src = [*self._tag(direction, line), *self.bundle.src_tokenizer.encode(clean_text(line))]
        tgt = self.bundle.tgt_tokenizer.encode(clean_text(translation))
        if max(len(src), len(tgt)) >= self.longest:
            raise UserError(f"the attention over more than {self.longest} pieces cannot be shown")
        return attended(self.engine.model, (self.bundle.src_tokenizer, self.bundle.tgt_tokenizer), src, tgt)

    def embed(
        self,
        lines: Iterable[str],
        pooling: str = "mean",
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> torch.Tensor:
        """One vector per line, (N, D) float32 on the CPU, in order: "mean", "first" or "attention" pooling.

        Of the encoder's output over what `translate` would translate: a line of several sentences gets their
        mean, weighted by tokens; a line with nothing to translate (blank, or only marks) gets zeros. The other
        lines change no vector. See model/pooling.py for the poolings; `direction`, `progress` as in `stream`.
        """
        import torch

        from dragoman.sentence_vectors import line_vectors

        vectors = [
            line_vectors(self.engine.model, [], pooling)
        ]  # refuses an unknown one before anything is read
        n_done = 0
        tag: list[int] | None = None
        for window in _windows(lines):
            tag = self._tag(direction, "\n".join(window)) if tag is None else tag
            ids = [[[*tag, *piece.ids] for piece in self._pieces(line) if piece.ids] for line in window]
            vectors.append(line_vectors(self.engine.model, ids, pooling, batch_tokens=batch_tokens))
            n_done += len(window)
            if progress:
                progress(n_done)
        return torch.cat(vectors)

    def _tag(self, direction: str | None, text: str) -> list[int]:
        """What goes before the ids of each source."""
        return self.bundle.src_tokenizer.tag(self.direction(direction, text).tgt)

    def _pieces(self, line: str) -> list[_Piece]:
        return [
            piece
            for sentence, space in split(line.strip(), _CHARS_PER_PIECE * self.max_length)
            for piece in self._fitting(sentence, space)
        ]

    def _fitting(self, sentence: str, space: str) -> Iterator[_Piece]:
        """The sentence, halved until each part has no more pieces than the training sentences had."""
        text = clean_text(sentence)
        if not any(character.isalnum() for character in text):
            yield _Piece(text, [], space)
            return
        ids = self.bundle.src_tokenizer.encode(text)
        if len(ids) <= self.max_length or len(sentence) == 1:
            yield _Piece(text, ids, space)
            return
        parts = split(sentence, (len(sentence) + 1) // 2)
        for part, inner in parts[:-1]:
            yield from self._fitting(part, inner)
        yield from self._fitting(parts[-1][0], parts[-1][1] + space)

    def _join(
        self, plan: list[_Piece], found: Iterator[list[Hypothesis]], n_best: int, tgt: str
    ) -> Translation:
        """A line's translation into `tgt` from those of its pieces, taken from `found` in turn."""
        answers = [
            [self._candidate(hypothesis) for hypothesis in next(found)]
            if piece.ids
            else [Candidate(piece.text, 0.0, [], [])]
            for piece in plan
        ]
        wanted = min(n_best, max(map(len, answers), default=1))
        hypotheses = []
        for n in range(wanted):
            parts = [answer[min(n, len(answer) - 1)] for answer in answers]
            hypotheses.append(_concatenated(plan, parts, tgt) if parts else _EMPTY)
        return Translation(hypotheses[0].text, hypotheses)

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        tokenizer = self.bundle.tgt_tokenizer
        ended = [EOS] if len(hypothesis.token_scores) > len(hypothesis.ids) else []
        # Byte pieces can spell anything, line breaks too: what the model writes is cleaned like what it read.
        text = clean_text(tokenizer.decode(hypothesis.ids))
        return Candidate(
            text, hypothesis.score, tokenizer.pieces([*hypothesis.ids, *ended]), list(hypothesis.token_scores)
        )


def _concatenated(plan: list[_Piece], parts: list[Candidate], tgt: str) -> Candidate:
    """The candidates of a line's pieces as one, put together as `tgt` is written."""
    text = ""
    for candidate, before in zip(parts, [None, *plan], strict=False):
        if candidate.text and text and before is not None:
            text += _between(before.space, tgt)
        text += candidate.text
    return Candidate(
        text,
        sum(candidate.score for candidate in parts),
        [token for candidate in parts for token in candidate.tokens],
        [score for candidate in parts for score in candidate.token_scores],
    )


def _between(space: str, tgt: str) -> str:
    """What stands between two sentences translated into `tgt` when `space` stood between their sources."""
    if "\n" in space:  # paragraphs stay paragraphs
        return space
    if is_unspaced(tgt):
        return ""
    return space if space and not space.strip(" \t") else " "  # an ideographic space is Chinese too


def _windows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lists of successive lines, bounded in number and in characters; a huge line stands alone."""
    window: list[str] = []
    n_chars = 0
    for line in lines:
        if window and (len(window) == _WINDOW_LINES or n_chars + len(line) > _WINDOW_CHARS):
            yield window
            window, n_chars = [], 0
        window.append(line)
        n_chars += len(line)
    if window:
        yield window
