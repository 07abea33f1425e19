"""t5, rope and alibi, compared with transformers on random weights."""

import pytest
import torch
from torch import Tensor
from transformers import T5Config, T5Model
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding

from dragoman.model.attention import causal_attn_mask
from dragoman.model.transformer import Transformer
from dragoman.special import PAD


def test_our_rope_is_that_of_roformer(scheme):
    d_head = 64
    q, k = torch.randn(2, 3, 40, d_head), torch.randn(2, 3, 40, d_head)
    angles = RoFormerSinusoidalPositionalEmbedding(64, d_head)
    angles.weight.data.copy_(angles.create_weight())
    expected = RoFormerSelfAttention.apply_rotary_position_embeddings(angles(q.shape[::2])[None, None], q, k)
    ours, places = scheme("rope", d_model=3 * d_head, n_heads=3), torch.arange(40)
    for rotated, theirs in zip((ours.rotate(q, places), ours.rotate(k, places)), expected, strict=True):
        torch.testing.assert_close(rotated, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n_heads", [6, 8])
def test_our_alibi_is_that_of_bloom(n_heads, scheme):
    """BLOOM's bias rises with the key position; the causal softmax is the same."""
    scores, may = torch.randn(1, n_heads, 30, 30), causal_attn_mask(30, 30)
    places = torch.arange(30)
    ours = scheme("alibi", causal=True, n_heads=n_heads, d_model=n_heads).bias(scores, scores, places, places)
    theirs = build_alibi_tensor(torch.ones(1, 30), n_heads, torch.float32)[None]
    weights, expected = ((scores + b).masked_fill(~may, float("-inf")).softmax(-1) for b in (ours, theirs))
    torch.testing.assert_close(weights, expected)


def t5_with_the_weights_of(ours: Transformer) -> T5Model:
    """T5 with the weights of `ours`; zeroes the biases of `ours`, which T5 lacks."""
    config = T5Config(
        vocab_size=40, d_model=16, d_kv=8, num_heads=2, d_ff=24, num_layers=1, num_decoder_layers=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, layer_norm_epsilon=1e-5,
    )  # fmt: skip
    theirs = T5Model(config).eval()
    for name, parameter in ours.named_parameters():
        if name.endswith(".bias"):
            parameter.data.zero_()

    def copy(linear: torch.nn.Linear, weight: Tensor) -> None:
        linear.weight.data.copy_(weight)

    copy(theirs.shared, ours.src_embedding.table.weight * ours.src_embedding.scale)
    stacks = [(theirs.encoder, ours.encoder, ours.encoder_norm, ours.encoder_position)]
    stacks += [(theirs.decoder, ours.decoder, ours.decoder_norm, ours.decoder_position)]
    for stack, layers, norm, position in stacks:
        copy(stack.final_layer_norm, norm.weight)
        copy(stack.block[0].layer[0].SelfAttention.relative_attention_bias, position.table)
        for block, layer in zip(stack.block, layers, strict=True):
            attentions = [(block.layer[0].SelfAttention, layer.self_attention)]
            if len(block.layer) == 3:
                attentions.append((block.layer[1].EncDecAttention, layer.cross_attention))
            for attention, own in attentions:
                k, v = own.kv.weight.chunk(2)
                for linear, weight in zip("qkvo", (own.q.weight, k, v, own.out.weight), strict=True):
                    copy(getattr(attention, linear), weight)
            copy(block.layer[-1].DenseReluDense.wi, layer.feed_forward.up.weight)
            copy(block.layer[-1].DenseReluDense.wo, layer.feed_forward.down.weight)
            for sublayer, residual in zip(block.layer, layer.residuals, strict=True):
                copy(sublayer.layer_norm, residual.norm.weight)
    return theirs


@torch.no_grad()
def test_our_transformer_can_be_t5(model, ids):
    ours = model(position="t5", score="dot", normalization="rms_norm", norm="pre", dropout=0.0).eval()
    theirs = t5_with_the_weights_of(ours)
    src, tgt = ids(3, 30), ids(3, 25)
    src[1, 20:] = PAD
    padding = src == PAD
    expected = theirs(input_ids=src, attention_mask=(~padding).long(), decoder_input_ids=tgt)
    memory = ours.encode(src, padding)
    real = ~padding
    torch.testing.assert_close(memory[real], expected.encoder_last_hidden_state[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.decode(tgt, memory, padding), expected.last_hidden_state, atol=1e-5, rtol=1e-5)
