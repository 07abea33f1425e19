"""Text to ids and back, by sentencepiece.

Knows: how a vocabulary is learnt and how sentences are cut into its pieces, with or without chance.
Refuses to know: files of sentences, batches, which language it reads (but for the question of the leading
space).

The choices made here, once:
- The text is taken as it is (normalisation `identity`): `corpus.clean_text` has already put it in NFC, and
  anything stronger, such as sentencepiece's default NFKC, would turn Chinese punctuation into ASCII.
- Rare characters are spelt in UTF-8 bytes, so that no <unk> ever appears and every clean sentence survives
  the way there and back unchanged.
- The special ids are control symbols, which no text can produce: a user's `<s>` stays three characters.
- So are the tags of a model for several directions, `<2en>`: into English (Johnson et al. 2017). They are pieces
  of the vocabulary where they were asked for, and only `tag` knows what they are called.
- Digits are pieces of their own: a number is copied digit by digit rather than remembered.
- A leading space is assumed before a sentence where words are separated by spaces, so that a word is the same
  piece at the beginning and in the middle. A vocabulary that serves only languages written without spaces
  does without it: there the space would be a piece of its own in front of every sentence. Measured on
  tatoeba, a joint vocabulary of 8,000 pays 4 % more Chinese pieces for it, and keeps one form of each English
  word in return.
"""

import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import sentencepiece

from dragoman.data.corpus import MAX_CHARS
from dragoman.data.vocabulary import MOST_BYTES, checked
from dragoman.errors import UserError, suggest
from dragoman.languages import is_unspaced
from dragoman.special import BOS, EOS, PAD, UNK

KINDS = ("bpe", "unigram", "char", "word")
VOCABULARIES = ("joint", "separate")


@dataclass(kw_only=True)
class TokenizerConfig:
    """How text becomes pieces."""

    kind: str = "bpe"  # bpe, unigram (ten times slower to train), char, word
    vocab_size: int = 8000  # per vocabulary; the 256 bytes and 4 special ids are part of it
    vocabulary: str = "joint"  # one for both languages, or one each
    character_coverage: float = 0.9995  # share of characters that get a piece; the others are spelt in bytes
    sampling: float = 0.0  # subword regularisation: BPE-dropout's p, or unigram's alpha; 0 = off

    def __post_init__(self) -> None:
        for key, value, choices in (
            ("kind", self.kind, KINDS),
            ("vocabulary", self.vocabulary, VOCABULARIES),
        ):
            if value not in choices:
                raise UserError(
                    f"data.tokenizer.{key} is '{value}'{suggest(value, choices)}; choose from {', '.join(choices)}"
                )
        if self.vocab_size < 300:
            raise UserError(
                f"data.tokenizer.vocab_size is {self.vocab_size}; 256 bytes and 4 special ids are always part of it, "
                "so it must be at least 300"
            )
        if not 0.9 <= self.character_coverage <= 1:
            raise UserError(
                f"data.tokenizer.character_coverage is {self.character_coverage}; it must be between 0.9 and 1"
            )
        if not 0 <= self.sampling < 1:
            raise UserError(f"data.tokenizer.sampling is {self.sampling}; it must be at least 0 and below 1")
        if self.sampling and self.kind in ("char", "word"):
            raise UserError(
                f"data.tokenizer.sampling needs kind unigram or bpe: {self.kind} has nothing to sample"
            )


class Tokenizer:
    """A trained sentencepiece model: text to ids, without <BOS> and <EOS>, and ids to text.

    The promise: decode(encode(text)) == text for every text that `clean_text` leaves as it is, of whatever script and
    however long, in every kind of vocabulary, cut by chance or not; and no special id and no tag is among the ids. Of
    other text nothing is promised: white space at the ends may go, and lone surrogates have no UTF-8 to be spelt in.
    """

    def __init__(self, model: bytes, path: Path) -> None:
        self.path = path
        self.sha256 = hashlib.sha256(model).hexdigest()
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=checked(model))
        except (ValueError, RuntimeError) as error:
            told = f": {error}" if isinstance(error, ValueError) else ""
            raise UserError(f"{path} is not a sentencepiece model of Dragoman's{told}") from error
        ids = (self._model.pad_id(), self._model.unk_id(), self._model.bos_id(), self._model.eos_id())
        if ids != (PAD, UNK, BOS, EOS):
            raise UserError(
                f"{path} numbers its special pieces (pad, unk, bos, eos) {ids}; Dragoman needs "
                f"{(PAD, UNK, BOS, EOS)}. Let Dragoman train the tokenizer itself"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a .model file."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                return cls(file.read(MOST_BYTES + 1), path)
        except OSError as error:
            raise UserError(f"no tokenizer at {path}: {error.strerror}") from error

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        config: TokenizerConfig,
        path: Path,
        languages: Sequence[str],
        tags: Sequence[str] = (),
    ) -> "Tokenizer":
        """Learn the pieces of clean `sentences` of `languages` and write the model to `path`.

        `tags` are the languages that `tag` shall know, each of which takes one of the pieces.
        The vocabulary comes out smaller than asked for where the sentences do not hold that many pieces.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                hard_vocab_limit=False,  # smaller where the corpus is small
                character_coverage=config.character_coverage,
                byte_fallback=True,
                split_digits=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,  # clean_text has; and so a space typed is a space kept
                add_dummy_prefix=not all(map(is_unspaced, languages)),
                max_sentence_length=4 * MAX_CHARS
                + 1,  # in bytes; the default skips long sentences without a word
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                control_symbols=[_tag_piece(language) for language in tags],
                minloglevel=2,
                # num_threads keeps its default, 16: the sums of unigram's EM depend on it, and the same
                # corpus is to give the same vocabulary on every machine.
            )
        except RuntimeError as error:
            raise _in_plain_words(str(error), config) from error
        path.write_bytes(model.getvalue())
        return cls(model.getvalue(), path)

    def encode(self, text: str) -> list[int]:
        """The ids of one clean sentence, no special ids among them."""
        return self._model.encode(text)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """The ids of many sentences."""
        return self._model.encode(list(texts), num_threads=threads)

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """The ids of one sentence cut by chance; equal `seed`s cut equally, whatever was cut before.

        alpha is the dropout of merges for bpe (Provilkov et al. 2020) and the smoothing of the pieces'
        distribution for unigram (Kudo 2018: the smaller, the wilder).
        """
        # sentencepiece seeds a generator per thread, when the thread first draws. A batch call with one thread
        # always starts a fresh one, so what was drawn before leaves no trace; but for a single sentence it
        # starts none and draws from the caller's: so there is an empty one after it.
        sentencepiece.set_random_generator_seed(seed % 2**32)
        return self._model.encode(
            [text, ""], num_threads=1, enable_sampling=True, nbest_size=-1, alpha=alpha
        )[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special ids and tags are dropped."""
        text = self._model.decode([i for i in ids if i not in (PAD, UNK, BOS, EOS)])
        # The space before a word that is spelt in bytes (kind word) was spelt as a mark, which clean text has not.
        return text.replace("▁", " ").removeprefix(" ") if "▁" in text else text

    def tag(self, language: str) -> list[int]:
        """The id that, put before a source, asks for `language`; none in a vocabulary without tags."""
        found = self._model.piece_to_id(_tag_piece(language))
        return [found] if self._model.is_control(found) else []

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as they are written in the vocabulary: ▁ for a space, <0xE4> for a byte."""
        return [self._model.id_to_piece(int(i)) for i in ids]

    @cached_property
    def _size(self) -> int:
        return self._model.get_piece_size()

    def __len__(self) -> int:
        """The size of the vocabulary, special ids included."""
        return self._size

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Tokenizer.load, (self.path,)  # a worker process reads the file instead of being sent the model


def _tag_piece(language: str) -> str:
    """Holding a digit, it cannot be learnt from text by chance: digits are pieces of their own."""
    return f"<2{language}>"


def _in_plain_words(message: str, config: TokenizerConfig) -> UserError:
    """What sentencepiece's complaint means for the one who wrote the configuration."""
    if "required_chars" in message:
        needed = message.split(" vs ")[-1].split(".")[0]
        return UserError(
            f"data.tokenizer.vocab_size is {config.vocab_size}, but the corpus has more characters than that: raise "
            f"it to {needed} or more, or lower data.tokenizer.character_coverage ({config.character_coverage})"
        )
    if "sentences_.empty" in message:
        return UserError(
            "there is nothing to train a tokenizer on: the training corpus is empty after cleaning"
        )
    return UserError(f"sentencepiece could not train the tokenizer: {message.strip().splitlines()[-1]}")
