"""Text to ids and back, by sentencepiece.

The choices:
- The text is taken as it is (normalisation `identity`). `clean_text` has put it in NFC; sentencepiece's default,
  NFKC, would turn Chinese punctuation into ASCII.
- Rare characters are spelt in UTF-8 bytes: no <unk> appears, and every clean sentence survives encode and decode
  unchanged.
- Special ids are control symbols, which no text can produce: a user's `<s>` stays three characters.
- The tags of a model for both directions are control symbols too: `<2en>` before a source requests English
  (Johnson et al. 2017).
- Digits are pieces of their own, so that numbers are copied digit by digit.
- A space is assumed before a sentence where words are separated by spaces, so that a word is the same piece at
  the beginning and in the middle. Vocabularies of unspaced languages alone do without it.
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

from dragoman.config import TokenizerConfig
from dragoman.data.text import MAX_CHARS
from dragoman.errors import UserError, choose
from dragoman.languages import is_unspaced
from dragoman.special import BOS, EOS, PAD, UNK

# sentencepiece's algorithms, and whether they can tokenise a text in several ways, for subword regularisation.
# Unigram takes ten times longer to train than bpe.
KINDS = {"bpe": True, "unigram": True, "char": False, "word": False}


def check_config(config: TokenizerConfig) -> None:
    """Raise UserError for an unknown kind or one that cannot sample."""
    if not choose("data.tokenizer.kind", config.kind, KINDS) and config.sampling:
        raise UserError(
            f"data.tokenizer.sampling={config.sampling}: kind={config.kind} has one way to tokenise a text. "
            f"Set it to 0, or choose kind {', '.join(name for name in KINDS if KINDS[name])}"
        )


class Tokenizer:
    """A trained sentencepiece model.

    decode(encode(text)) == text for every text that `clean_text` leaves as it is, in each kind, sampled or not.
    No special id and no tag is among the ids of a text.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._model = Path(path), sentencepiece.SentencePieceProcessor()
        try:
            model = self.path.read_bytes()
            self._model.LoadFromSerializedProto(model)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        except RuntimeError as error:
            raise UserError(f"{path}: not a sentencepiece model, or a damaged one") from error
        self.sha256 = hashlib.sha256(model).hexdigest()

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a model file."""
        return cls(path)

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        config: TokenizerConfig,
        path: Path,
        languages: Sequence[str],
        tags: Sequence[str] = (),
    ) -> "Tokenizer":
        """Train a model on clean `sentences` of `languages` and write it to `path`.

        `tags` are target languages; each takes one piece. The vocabulary becomes smaller than vocab_size where
        the sentences do not hold that many pieces.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                # The vocabulary may become smaller where the corpus is small.
                hard_vocab_limit=False,
                character_coverage=config.character_coverage,
                byte_fallback=True,
                split_digits=True,
                normalization_rule_name="identity",
                # `clean_text` has removed extra spaces in the corpus; a space in a user's text stays.
                remove_extra_whitespaces=False,
                add_dummy_prefix=not all(map(is_unspaced, languages)),
                # In bytes. By default long sentences are skipped silently.
                max_sentence_length=4 * MAX_CHARS + 1,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                control_symbols=[_tag_piece(language) for language in tags],
                minloglevel=2,
                # num_threads keeps its default, 16: unigram's EM sums depend on it, and the same corpus must
                # give the same vocabulary on every machine.
            )
        except RuntimeError as error:
            raise UserError(_explain(str(error), config)) from error
        path.write_bytes(model.getvalue())
        return cls(path)

    def encode(self, text: str) -> list[int]:
        """Return the ids of one clean sentence, without special ids."""
        return self._model.encode(text)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Return the ids of each sentence."""
        return self._model.encode(list(texts), num_threads=threads)

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """Return the ids of a random tokenisation; equal seeds give equal ids, whatever was sampled before.

        alpha is the dropout of merges for bpe (Provilkov et al. 2020) and the smoothing of the distribution over
        tokenisations for unigram (Kudo 2018): smaller is more varied.
        """
        # sentencepiece seeds one generator per thread at its first use. A batch call with one thread starts a new
        # thread each time; a call for a single sentence uses the caller's thread. Hence the empty second text.
        sentencepiece.set_random_generator_seed(seed % 2**32)
        return self._model.encode(
            [text, ""], num_threads=1, enable_sampling=True, nbest_size=-1, alpha=alpha
        )[0]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special ids and tags are dropped."""
        text = self._model.decode([i for i in ids if i not in (PAD, UNK, BOS, EOS)])
        # Kind `word` spells an unknown word in bytes, its leading space as ▁, which clean text never has.
        return text.replace("▁", " ").removeprefix(" ") if "▁" in text else text

    def tag(self, language: str) -> list[int]:
        """Return the id that, before a source, requests `language`; empty in a vocabulary without tags."""
        tag = self._model.piece_to_id(_tag_piece(language))
        return [tag] if self._model.is_control(tag) else []

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the pieces as the vocabulary writes them: ▁ for a space, <0xE4> for a byte."""
        return [self._model.id_to_piece(int(i)) for i in ids]

    def __len__(self) -> int:
        """The size of the vocabulary, special ids included."""
        return self._model.get_piece_size()

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        # A worker process reads the file again.
        return Tokenizer, (self.path,)


def _tag_piece(language: str) -> str:
    """The tag's piece. It holds a digit and so cannot be learnt from text: digits are pieces of their own."""
    return f"<2{language}>"


def _explain(message: str, config: TokenizerConfig) -> str:
    """Translate an error of sentencepiece's trainer into settings."""
    if "required_chars" not in message:
        return f"data.tokenizer: sentencepiece failed: {message.strip().splitlines()[-1]}"
    needed = message.split(" vs ")[-1].split(".")[0]
    return (
        f"data.tokenizer.vocab_size={config.vocab_size}: the corpus has more characters than that. Raise it to "
        f"{needed} or more, or lower data.tokenizer.character_coverage={config.character_coverage}"
    )
