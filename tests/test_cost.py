"""The arithmetic of cost.py against the real thing: the model's parameters, torch's own counter, torch's memory."""

import re
from collections import Counter
from itertools import product

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dragoman.cost import Cost, Shape, table
from dragoman.model.attention import SCORES
from dragoman.model.layers import ACTIVATIONS, NORMALIZATIONS
from dragoman.model.position import POSITIONS, PositionConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.training.loss import projected_loss

WORDS = {"src_vocab_size": 70, "tgt_vocab_size": 90}
SHAPE = Shape(rows=5, src=13, tgt=11, tokens=48)
HOW = {"average": True, "width": 4, "chunk": 512}


def config_of(*, position: str = "sinusoidal", **settings) -> ModelConfig:
    """All sizes different, so that no two can be mistaken for each other."""
    sizes = {"d_model": 24, "d_ff": 40, "n_heads": 3, "n_encoder_layers": 2, "n_decoder_layers": 3}
    return ModelConfig(**{**sizes, "tie": "none", **settings}, position=PositionConfig(kind=position))


def part_of(name: str) -> str:
    """The row of the table that a parameter of this name belongs to."""
    for word, part in (("position", "positions"), ("norm", "norms"), ("embedding", "embeddings")):
        if word in name:
            return part
    stack, *_ = name.split(".")
    for word in ("self_attention", "cross_attention", "feed_forward"):
        if word in name:
            return f"{stack} {word.replace('_', '-')}"
    return stack


def ids(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """src, its padding and tgt_in of this shape; one source is a token shorter than the others."""
    src, tgt = (torch.randint(4, 60, (shape.rows, length)) for length in (shape.src, shape.tgt))
    padding = torch.zeros_like(src, dtype=torch.bool)
    padding[0, -1] = True
    return src, padding, tgt


def step(model: Transformer, shape: Shape) -> torch.Tensor:
    """The loss of a batch as training computes it."""
    src, padding, tgt = ids(shape)
    states = model.states(tgt, model.encode(src, padding), padding).flatten(0, 1)[: shape.tokens]
    loss, _ = projected_loss(states, model.projection.weight, tgt.flatten()[: shape.tokens])
    return loss


every_position_and_score = pytest.mark.parametrize(("position", "score"), list(product(POSITIONS, SCORES)))


@every_position_and_score
def test_every_part_has_the_parameters_of_the_real_model(position: str, score: str) -> None:
    rest = (("none", "tgt", "all"), ("pre", "post"), NORMALIZATIONS, ACTIVATIONS)
    for tie, norm, normalization, activation in product(*rest):
        config = config_of(
            position=position,
            score=score,
            tie=tie,
            norm=norm,
            normalization=normalization,
            activation=activation,
            n_encoder_layers=1,  # hundreds of models are built here
            n_decoder_layers=2,
        )
        words = {**WORDS, "src_vocab_size": 90} if tie == "all" else WORDS
        real = Counter()
        for name, parameter in Transformer(config, **words).named_parameters():
            real[part_of(name)] += parameter.numel()
        counted = Cost(config=config, **words).parameters()
        assert {part: n for part, n in counted.items() if n} == real


def assert_flops_agree(config: ModelConfig, *, training: bool) -> None:
    model = Transformer(config, **WORDS).train(training)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        if training:
            step(model, SHAPE).backward()
        else:
            with torch.no_grad():
                step(model, SHAPE)
    ours = Cost(config=config, **WORDS).flops(SHAPE, training=training)
    assert sum(ours.values()) == pytest.approx(counter.get_total_flops(), rel=0.02)


@every_position_and_score
@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
def test_flops_agree_with_those_that_torch_counts(position: str, score: str, training: bool) -> None:
    assert_flops_agree(config_of(position=position, score=score), training=training)


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "swiglu"},
        {"norm": "post", "activation": "gelu"},
        {"tie": "tgt", "normalization": "rms_norm"},
    ],
    ids=str,
)
def test_flops_agree_whatever_the_rest_of_the_model(settings: dict) -> None:
    assert_flops_agree(config_of(**settings), training=True)


def test_what_the_counter_leaves_out_of_additive_scores_is_told_apart() -> None:
    additive, products = (Cost(config=config_of(score=score), **WORDS) for score in ("additive", "dot"))
    assert additive.flops(SHAPE) == products.flops(SHAPE)
    assert additive.sums_and_tanh(SHAPE) > 0 == products.sums_and_tanh(SHAPE)
    assert "tanh" in table(additive, [SHAPE], **HOW)
    assert "tanh" not in table(products, [SHAPE], **HOW)


def kept_bytes(model: Transformer, shape: Shape) -> int:
    """What autograd holds on to after a forward pass, weights not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that its address is not given out again
        return tensor

    src, padding, tgt = ids(shape)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.states(tgt, model.encode(src, padding), padding)
    assert states.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(
    "settings",
    [
        *({"position": position} for position in POSITIONS),
        *({"position": position, "score": "additive"} for position in POSITIONS),
        {"score": "dot", "norm": "post"},
        {"dropout": 0.0},
        {"attention_dropout": 0.1},
        {"attention_dropout": 0.1, "score": "additive", "norm": "post"},
        {"normalization": "rms_norm", "activation": "gelu"},
        {"activation": "gelu", "activation_dropout": 0.1},
        {"activation_dropout": 0.1},
        {"activation": "swiglu", "activation_dropout": 0.1},
        {"activation": "swiglu", "normalization": "rms_norm", "norm": "post"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_activations_are_what_torch_keeps_for_the_backward_pass(settings: dict) -> None:
    config = config_of(**{"d_model": 32, "d_ff": 96, "n_heads": 4, **settings})
    shape = Shape(rows=6, src=40, tgt=33, tokens=198)
    ours = Cost(config=config, **WORDS).activations(shape)
    assert ours == pytest.approx(kept_bytes(Transformer(config, **WORDS).train(), shape), rel=0.05)


def test_weights_gradients_and_moments_are_those_of_a_real_step() -> None:
    config = config_of()
    model = Transformer(config, **WORDS).train()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, SHAPE).backward()
    optimizer.step()
    memory = Cost(config=config, **WORDS).memory(SHAPE, **HOW)
    parameters = list(model.parameters())
    assert memory["weights"] == sum(p.nbytes for p in parameters)
    assert memory["gradients"] == sum(p.grad.nbytes for p in parameters)
    moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    assert memory["AdamW"] == sum(t.nbytes for t in moments)


def test_a_longer_batch_needs_more_memory_and_half_the_width_less() -> None:
    cost = Cost(config=config_of(), **WORDS)
    whole = cost.activations(SHAPE)
    assert cost.activations(SHAPE._replace(tgt=SHAPE.tgt + 1)) > whole
    assert whole / 2 < cost.activations(SHAPE, width=2) < whole


def test_the_table_says_everything_once_and_its_shares_add_up() -> None:
    cost = Cost(config=config_of(tie="tgt", position="learned"), **WORDS)
    lines = table(cost, [SHAPE, SHAPE._replace(rows=3, tokens=30)], **HOW).splitlines()
    assert len(lines) <= 13
    for part, n in cost.parameters().items():
        (line,) = (line for line in lines if line.startswith(part))
        assert f" {n:,} " in f"{line} " or (part == "projection" and "tied" in line)
    assert f"{sum(cost.parameters().values()):,}" in lines[-2]
    flops = [float(found[0]) for line in lines[1:-2] if (found := re.findall(r" (\d+\.\d+) ", line))]
    assert sum(flops) == pytest.approx(
        float(re.findall(r" (\d+\.\d+) ", lines[-2])[0]), abs=0.01 * len(flops)
    )


def test_flops_for_each_target_token_are_a_mean_over_all_batches_weighed_by_their_tokens() -> None:
    cost = Cost(config=config_of(), **WORDS)

    def told(*shapes: Shape) -> float:
        (line,) = (line for line in table(cost, shapes, **HOW).splitlines() if line.startswith("all"))
        return float(re.findall(r" (\d+\.\d+) ", line)[0])

    dense, padded = SHAPE, SHAPE._replace(tokens=SHAPE.tokens // 4)
    assert told(dense, dense) == told(dense) < told(dense, padded) < told(padded)
