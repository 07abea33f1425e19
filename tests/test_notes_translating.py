"""What the study notes say about words, sentences and translating, fact by fact, on their example 好久不见.

Attention is in test_notes.py, positions in test_notes_positions.py. Which note teaches what stands in the README, under
"From the notes to the code"; where a note is loose, the test holds what is true and says so.
"""

import pytest
import torch
from torch import Tensor, nn

from dragoman import torch_engine
from dragoman.data.collate import collate
from dragoman.masks import key_padding_mask
from dragoman.model.cache import DecoderCache
from dragoman.model.embedding import Embedding, Projection
from dragoman.model.pooling import AttentionPooling, first_token, masked_mean
from dragoman.model.step import Step
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.search.search import SearchConfig
from dragoman.special import BOS, EOS
from dragoman.torch_engine import translate_ids
from dragoman.training.loss import projected_loss

好, 久, 不, 见 = range(4, 8)
LONG, TIME, NO, SEE = range(8, 12)
SRC, TGT = [好, 久, 不, 见], [LONG, TIME, NO, SEE]
LEARNT = [(SRC, TGT), (SRC[::-1], TGT[::-1]), ([好], [NO, SEE]), ([久, 久, 久], [LONG])]
GREEDY = SearchConfig(kind="greedy")


def translator() -> Transformer:
    """A small one that knows nothing yet."""
    torch.manual_seed(1)
    small = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
    return Transformer(ModelConfig(**small, dropout=0.0), src_vocab_size=12, tgt_vocab_size=12).eval()


@pytest.fixture(scope="module")
def learnt() -> Transformer:
    """One that has learnt four sentences by heart."""
    model, batch = translator(), collate(*zip(*LEARNT, strict=True))
    words = ~batch.tgt_key_padding_mask
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        memory = model.encode(batch.src, batch.src_key_padding_mask)
        states = model.states(batch.tgt_in, memory, batch.src_key_padding_mask)
        loss, _ = projected_loss(states[words], model.projection.weight, batch.tgt_out[words])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


# Words as vectors


def test_a_one_hot_vector_times_the_embedding_matrix_is_a_lookup():
    """And words put together, 苹果和香蕉 = 011, give the sum of their vectors."""
    words = Embedding(12, 8).requires_grad_(False)
    ids = torch.tensor([[4, 9, 4]])
    one_hot = nn.functional.one_hot(ids, 12).float()
    torch.testing.assert_close(one_hot @ words.table.weight * words.scale, words(ids))
    both = torch.zeros(12)
    both[[4, 9]] = 1
    torch.testing.assert_close(both @ words.table.weight * words.scale, words(ids)[0, :2].sum(0))


def test_one_hot_words_are_all_equally_strange_to_each_other_and_embedded_ones_are_not():
    one_hot = torch.eye(12)
    assert torch.equal(one_hot @ one_hot.T, torch.eye(12))  # orthogonal, of length 1
    torch.manual_seed(1)
    table = Embedding(12, 8).table.weight[4:]
    alike = nn.functional.cosine_similarity(table[:, None], table[None], dim=-1)[
        ~torch.eye(8, dtype=torch.bool)
    ]
    assert alike.max() > 0.3
    assert alike.min() < -0.3


def test_a_linear_map_turns_states_into_a_probability_for_every_word():
    projection, states = Projection(12, 8), torch.randn(2, 3, 8)
    logits = projection(states)
    assert logits.shape == (2, 3, 12)
    torch.testing.assert_close(logits, states @ projection.weight.T)
    torch.testing.assert_close(logits.softmax(-1).sum(-1), torch.ones(2, 3))


# Sentences as vectors


def test_the_masked_mean_counts_words_only():
    torch.manual_seed(1)
    output = torch.randn(2, 5, 128)
    padding = torch.tensor([[False, False, False, True, True], [False, False, True, True, True]])
    expected = torch.stack((output[0, :3].mean(0), output[1, :2].mean(0)))
    torch.testing.assert_close(masked_mean(output, padding), expected)
    assert not torch.allclose(output.mean(1), expected, atol=0.1)


def test_the_first_token_can_stand_for_the_sentence():
    output = torch.randn(2, 5, 128)
    padding = torch.tensor([[False, False, False, True, True], [False, False, True, True, True]])
    assert torch.equal(first_token(output, padding), output[:, 0])


def test_attention_pooling_weighs_words_by_a_softmax_and_gives_padding_nothing():
    """e = w . tanh(W h + b), as in the notes' formula; their code leaves out W and tanh."""
    torch.manual_seed(1)
    output = torch.randn(2, 5, 128)
    padding = torch.tensor([[False, False, True, True, True], [False, False, False, True, True]])
    pool = AttentionPooling(128).requires_grad_(False)
    weights = pool.weights(output, padding)
    assert weights.shape == (2, 5)
    assert (weights[padding] == 0).all()
    for row, n in enumerate((2, 3)):
        h = output[row, :n]
        alpha = (torch.tanh(h @ pool.hidden.weight.T + pool.hidden.bias) @ pool.score.weight[0]).softmax(0)
        torch.testing.assert_close(weights[row, :n], alpha)
        torch.testing.assert_close(pool(output, padding)[row], alpha @ h)


# Training on 好久不见


def test_the_decoder_is_fed_the_target_shifted_right_by_one_and_asked_for_it():
    """Note 003 calls the shift left, and stops before <EOS>: what follows `see` is asked for here as well."""
    batch = collate([SRC], [TGT])
    assert batch.tgt_in.tolist() == [[BOS, LONG, TIME, NO, SEE]]
    assert batch.tgt_out.tolist() == [[LONG, TIME, NO, SEE, EOS]]
    assert batch.tgt_in[0, :4].tolist() == [BOS, LONG, TIME, NO]  # the notes' own two rows
    assert batch.tgt_out[0, :4].tolist() == TGT


def test_training_asks_for_all_words_at_once_and_gets_what_one_by_one_would_give():
    model, batch = translator(), collate([SRC], [TGT])
    with torch.no_grad():
        at_once = model(batch.src, batch.tgt_in, batch.src_key_padding_mask)
        for t in range(5):
            by_itself = model(batch.src, batch.tgt_in[:, : t + 1], batch.src_key_padding_mask)
            torch.testing.assert_close(at_once[:, t], by_itself[:, -1], atol=1e-5, rtol=1e-5)


def test_the_encoder_sees_words_to_come_and_the_decoder_does_not():
    model, batch = translator(), collate([SRC], [TGT])
    other_src, other_tgt = batch.src.clone(), batch.tgt_in.clone()
    other_src[0, 3], other_tgt[0, 4] = 好, 好
    with torch.no_grad():
        memory, changed = (model.encode(src, key_padding_mask(src)) for src in (batch.src, other_src))
        logits, later = (
            model.decode(tgt, memory, batch.src_key_padding_mask) for tgt in (batch.tgt_in, other_tgt)
        )
    assert ((memory - changed).abs().amax(-1) > 1e-3).all()
    assert torch.equal(logits[:, :4], later[:, :4])
    assert not torch.allclose(logits[:, 4], later[:, 4], atol=1e-3)


# Translating 好久不见


def test_hao_jiu_bu_jian_is_learnt_and_comes_out_as_long_time_no_see(learnt: Transformer):
    """The same words backwards, which only positions tell apart, come out backwards."""
    (straight,), (backwards,) = translate_ids(learnt, [SRC, SRC[::-1]], GREEDY)
    assert straight.ids == TGT
    assert backwards.ids == TGT[::-1]


def test_inference_feeds_back_its_own_output_from_bos_until_eos_and_encodes_once(
    learnt: Transformer, monkeypatch: pytest.MonkeyPatch
):
    encoded, fed, answered = [], [], []
    encode = learnt.encode

    def counting(src: Tensor, *rest: Tensor) -> Tensor:
        encoded.append(src[0].tolist())
        return encode(src, *rest)

    class Recording(Step):
        def __call__(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
            logits = super().__call__(tokens, cache)
            fed.extend(tokens[0].tolist())
            answered.append(int(logits[0].argmax()))
            return logits

    monkeypatch.setattr(learnt, "encode", counting)
    monkeypatch.setattr(torch_engine, "Step", Recording)
    ((found,),) = translate_ids(learnt, [SRC], GREEDY)
    assert encoded == [[*SRC, EOS]]
    assert fed == [BOS, LONG, TIME, NO, SEE]  # one at a time: a cache keeps the words before
    assert answered == [LONG, TIME, NO, SEE, EOS]
    assert answered[:-1] == fed[1:] == found.ids


def test_a_translation_may_be_longer_or_shorter_than_its_source(learnt: Transformer):
    """It takes as many steps as it takes to reach <EOS>; a matrix alone would give as many words as it is given."""
    (longer,), (shorter,) = translate_ids(learnt, [src for src, _ in LEARNT[2:]], GREEDY)
    assert [longer.ids, shorter.ids] == [tgt for _, tgt in LEARNT[2:]]
