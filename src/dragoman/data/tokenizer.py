"""Text to ids and back, by sentencepiece.

- Text is not normalised (`identity`): `clean_text` returns NFC. sentencepiece's default, NFKC, would convert Chinese
  punctuation to ASCII. With data.script=hans or hant the model file itself converts characters, so that a model
  trained on one script reads the other, in every export.
- Rare characters are encoded as UTF-8 bytes: no <unk> appears, and every clean sentence survives encode and decode
  unchanged.
- Special ids are control symbols, which no text can produce: `<s>` in a text stays three characters. So are the tags of
  a model for both directions: `<2en>` before a source requests English (Johnson et al. 2017).
- Digits are pieces of their own, so that numbers are copied digit by digit.
- A space is added before a sentence, so that a word is the same piece at the beginning and in the middle.
  Vocabularies of unspaced languages alone have no such space.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path

import sentencepiece

from dragoman.config import TokenizerConfig
from dragoman.data.text import MAX_CHARS
from dragoman.errors import UserError
from dragoman.languages import is_unspaced
from dragoman.special import BOS, EOS, PAD, UNK

# sentencepiece's algorithms; the first two can sample tokenisations, for subword regularisation.
KINDS = ["bpe", "unigram", "char", "word"]
_SPECIAL_IDS = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}


def suitable_size(sentences: Iterable[str], n_pairs: int, config: TokenizerConfig) -> int:
    """Return a vocabulary size: characters, and 25 * sqrt(pairs) merges up to 16,000.

    With more, whole sentences of a small corpus become single pieces, which new sentences lack (Gowda & May 2020).
    """
    counts = Counter(chain.from_iterable(sentences))
    limit = config.character_coverage * counts.total()
    n_characters = 1 + sum(covered < limit for covered in accumulate(n for _, n in counts.most_common()))
    return 260 + n_characters + min(16_000, round(25 * n_pairs**0.5))


class Tokenizer:
    """A trained sentencepiece model."""

    def __init__(self, path: Path) -> None:
        self.path, self._model = Path(path), sentencepiece.SentencePieceProcessor()
        try:
            model = self.path.read_bytes()
            self._model.LoadFromSerializedProto(model)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or "damaged, or another kind of file"
            raise UserError(f"{path}: cannot be read as a sentencepiece model ({reason})") from error
        self.sha256 = hashlib.sha256(model).hexdigest()

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        config: TokenizerConfig,
        path: Path,
        languages: Sequence[str],
        tags: Sequence[str] = (),
        conversion: Mapping[str, str] | None = None,
    ) -> "Tokenizer":
        """Train a model on clean `sentences` of `languages` and write it to `path`.

        `tags` are target languages; each is one piece. `conversion` maps characters to those that replace them in
        every text. The vocabulary is smaller than vocab_size if the sentences have too few pieces.
        """
        model, normalisation = io.BytesIO(), {"normalization_rule_name": "identity"}
        if conversion:
            normalisation = {"normalization_rule_tsv": str(path.with_suffix(".tsv"))}
            rules = (f"{ord(old):X}\t{ord(new):X}\n" for old, new in conversion.items())
            path.with_suffix(".tsv").write_text("".join(rules))
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                hard_vocab_limit=False,
                character_coverage=config.character_coverage,
                byte_fallback=True,
                split_digits=True,
                **normalisation,
                # `clean_text` has removed extra spaces in the corpus; a space in a user's text stays.
                remove_extra_whitespaces=False,
                add_dummy_prefix=not all(map(is_unspaced, languages)),
                # In bytes. By default long sentences are skipped silently.
                max_sentence_length=4 * MAX_CHARS + 1,
                **_SPECIAL_IDS,
                control_symbols=[_tag_piece(language) for language in tags],
                minloglevel=2,
                # num_threads keeps its default, 16: unigram's EM sums depend on it, and the same corpus must
                # give the same vocabulary on every machine.
            )
        except RuntimeError as error:
            # After the place in the source code, the message names the settings to change.
            raise UserError(f"data.tokenizer: {str(error).rpartition('] ')[2]}") from error
        if conversion:
            from sentencepiece import sentencepiece_model_pb2

            # The model holds the rules. The path of their file would differ from machine to machine.
            proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
            proto.normalizer_spec.ClearField("normalization_rule_tsv")
            model = io.BytesIO(proto.SerializeToString())
        path.write_bytes(model.getvalue())
        return cls(path)

    def encode(self, text: str) -> list[int]:
        """Return the ids of one clean sentence, without special ids."""
        return self._model.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, encoded by a thread for each core."""
        return self._model.encode(list(texts), num_threads=-1)

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """Return the ids of a random tokenisation, which depends on the seed alone.

        alpha is the dropout of merges for bpe (Provilkov et al. 2020). For unigram (Kudo 2018) it smooths the
        distribution over tokenisations: smaller is more varied.
        """
        # sentencepiece seeds a generator per thread at its first use. A batch call, hence the empty second text, starts
        # a new thread each time.
        sentencepiece.set_random_generator_seed(seed % 2**32)
        ids = self._model.encode([text, ""], num_threads=1, enable_sampling=True, nbest_size=-1, alpha=alpha)[0]
        return ids or self.encode(text)  # char and word cannot sample: sentencepiece returns nothing

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special ids and tags are dropped."""
        text = self._model.decode([i for i in ids if i not in _SPECIAL_IDS.values()])
        # Kind `word` encodes an unknown word in bytes, its leading space as ▁, which clean text never has.
        return text.replace("▁", " ").removeprefix(" ") if "▁" in text else text

    def tag(self, language: str) -> list[int]:
        """Return the id that requests `language`; empty in a vocabulary without tags."""
        tag = self._model.piece_to_id(_tag_piece(language))
        return [tag] if self._model.is_control(tag) else []

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the pieces as in the vocabulary: ▁ for a space, <0xE4> for a byte."""
        return [self._model.id_to_piece(int(i)) for i in ids]

    def __len__(self) -> int:
        return self._model.get_piece_size()


def _tag_piece(language: str) -> str:
    """Return the piece of a tag; its digit keeps it from being learnt from text."""
    return f"<2{language}>"
