"""Words and translating in the study notes, fact by fact, on their example 好久不见.

Attention is in test_notes.py, positions are in test_notes_positions.py, sentence vectors in model/test_pooling.py.
src/dragoman/README.md, "From the notes to the code", says which note teaches what. Where a note is wrong, the test
holds what is true, and its docstring says so.
"""

import numpy as np
import pytest
import torch
from gensim.models import Word2Vec
from torch import Tensor, nn

from dragoman.bundle import Bundle, load
from dragoman.config import ModelConfig, SearchConfig
from dragoman.data.collate import collate
from dragoman.explain import notes
from dragoman.files import included
from dragoman.model.cache import DecoderCache
from dragoman.model.transformer import Embedding, Transformer
from dragoman.search import Sentence
from dragoman.search.search import search
from dragoman.special import BOS, EOS
from dragoman.translation.engine import translate_ids

好, 久, 不, 见 = range(4, 8)
LONG, TIME, NO, SEE = range(8, 12)
SRC, TGT = [好, 久, 不, 见], [LONG, TIME, NO, SEE]
GREEDY = SearchConfig(kind="greedy")


def translator() -> Transformer:
    """A small, untrained model."""
    torch.manual_seed(1)
    small = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
    return Transformer(ModelConfig(**small, dropout=0.0), src_vocab_size=12, tgt_vocab_size=12).eval()


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """The pretrained model."""
    return load(included("data/pretrained/zh_en"))


def greedy(bundle: Bundle, text: str) -> tuple[list[int], list[int]]:
    """The ids of a text and of its translation."""
    src = bundle.src_tokenizer.encode(text)
    return src, translate_ids(bundle.model, [src], GREEDY)[0][0].ids


# Words as vectors


def test_one_hot_times_the_embedding_matrix_is_a_lookup():
    """Two words together, 苹果和香蕉 = 011, give the sum of their vectors."""
    words = Embedding(12, 8).requires_grad_(False)
    ids = torch.tensor([[4, 9, 4]])
    one_hot = nn.functional.one_hot(ids, 12).float()
    torch.testing.assert_close(one_hot @ words.table.weight * words.scale, words(ids))
    both = torch.zeros(12)
    both[[4, 9]] = 1
    torch.testing.assert_close(both @ words.table.weight * words.scale, words(ids)[0, :2].sum(0))


def test_embedded_words_differ_in_likeness_one_hot_ones_do_not(bundle: Bundle):
    """The identity matrix gives one-hot vectors, whose cosines are all equal."""
    words = Embedding(12, 12).requires_grad_(False)
    words.table.weight.copy_(torch.eye(12) / words.scale)
    for embedding, first, spread in ((words, 4, 0.0), (bundle.model.src_embedding, 1000, 0.3)):
        vectors = embedding(torch.arange(first, first + 8))
        cosines = nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
        others = cosines[~torch.eye(8, dtype=torch.bool)]
        assert (others.max() - others.min() > spread) == (spread > 0)


def test_the_number_of_a_token_means_nothing():
    """Renumbered words keep their probabilities: ids are no quantities (note 003)."""
    model, batch, other = translator().requires_grad_(False), collate([SRC], [TGT]), torch.randperm(8) + 4
    new = torch.cat((torch.arange(4), other))  # the special ids keep theirs
    before = model(batch.src, batch.tgt_in, None)
    model.projection.weight[new] = model.projection.weight.clone()  # one matrix with both embeddings
    torch.testing.assert_close(model(new[batch.src], new[batch.tgt_in], None)[..., new], before)


def test_the_second_matrix_of_word2vec_is_no_pseudo_inverse():
    """Note 003 calls it a pseudo-inverse; the D x D product would be the identity."""
    sentences = [[str(k % 7), str(k % 5), str(k % 3)] for k in range(300)]
    model = Word2Vec(sentences, vector_size=4, min_count=1, window=2, epochs=20, workers=1, seed=1)
    product = model.syn1neg.T @ model.wv.vectors
    assert abs(product - np.eye(4)).max() > 0.5


def test_linear_and_softmax_give_every_word_a_probability():
    model, batch = translator(), collate([SRC], [TGT])
    logits = model(batch.src, batch.tgt_in, None)
    states = model.decode(batch.tgt_in, model.encode(batch.src, None), None)
    torch.testing.assert_close(logits, states @ model.projection.weight.T)
    torch.testing.assert_close(logits.softmax(-1).sum(-1), torch.ones(1, 5))


# Training on 好久不见


def test_the_decoder_input_is_the_target_shifted_right():
    """Note 003 says shifted left, with labels up to `see`; here they end in <EOS>."""
    rows = notes.shift()
    assert rows["src"] == ["好", "久", "不", "见", "<EOS>"]
    assert rows["tgt_in"] == ["<BOS>", "long", "time", "no", "see"]
    assert rows["tgt_out"] == ["long", "time", "no", "see", "<EOS>"]


def test_training_predicts_all_words_at_once():
    """The logits equal those of decoding word by word."""
    model, batch = translator(), collate([SRC], [TGT])
    at_once = model(batch.src, batch.tgt_in, batch.src_key_padding_mask)
    for t in range(5):
        one = model(batch.src, batch.tgt_in[:, : t + 1], batch.src_key_padding_mask)
        torch.testing.assert_close(at_once[:, t], one[:, -1], atol=1e-5, rtol=1e-5)


def test_the_encoder_sees_later_words_the_decoder_does_not():
    model, batch = translator().requires_grad_(False), collate([SRC], [TGT])
    other_src, other_tgt = batch.src.clone(), batch.tgt_in.clone()
    other_src[0, 3], other_tgt[0, 4] = 好, 好
    memory, changed = (model.encode(src, batch.src_key_padding_mask) for src in (batch.src, other_src))
    states, later = (model.decode(tgt, memory, batch.src_key_padding_mask) for tgt in (batch.tgt_in, other_tgt))
    assert ((memory - changed).abs().amax(-1) > 1e-3).all()
    torch.testing.assert_close(states[:, :4], later[:, :4])
    assert not torch.allclose(states[:, 4], later[:, 4], atol=1e-3)


# Translating 好久不见


def test_hao_jiu_bu_jian_becomes_long_time_no_see(bundle: Bundle):
    """The same words in another order, 你爱我, are another sentence."""
    ids = [greedy(bundle, text)[1] for text in ("好久不见。", "我爱你。", "你爱我。")]
    assert list(map(bundle.tgt_tokenizer.decode, ids)) == ["Long time no see.", "I love you.", "You love me."]


def test_inference_feeds_back_its_output_from_bos_to_eos(bundle: Bundle):
    src, ids = greedy(bundle, "好久不见。")
    cache = bundle.model.begin(torch.tensor([[*src, EOS]]), None)  # the source is encoded once
    inputs, outputs = list[int](), list[int]()

    def recorded(tokens: Tensor, cache: DecoderCache) -> Tensor:
        logits = bundle.model.step(tokens, cache)
        inputs.extend(tokens[:, 0].tolist())
        outputs.extend(logits.argmax(-1).tolist())
        return logits

    ((hypothesis,),) = search(recorded, cache, [Sentence(0, 20)], GREEDY)
    assert inputs == [BOS, *ids]  # one at a time: the cache keeps the words before
    assert outputs == [*ids, EOS]
    assert hypothesis.ids == ids


def test_each_step_sees_the_whole_prefix(bundle: Bundle):
    """The notes' loop decodes the prefix at each step; a cache gives the same words."""
    words = bundle.tgt_tokenizer.pieces([BOS, *greedy(bundle, "好久不见")[1], EOS])
    steps = [step[:2] for step in notes.loop()["steps"]]
    assert steps == [(words[:n], words[n]) for n in range(1, len(words))]


def test_a_translation_may_be_longer_or_shorter(bundle: Bundle):
    """The loop ends at <EOS>; a matrix alone would give as many words as it is given."""
    (longer_src, longer), (shorter_src, shorter) = (greedy(bundle, text) for text in ("没关系。", "我明白了。"))
    assert len(longer_src) < len(longer) < 10
    assert len(shorter_src) > len(shorter)
