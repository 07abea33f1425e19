"""A joint tokenizer and random models over it."""

from collections.abc import Callable

import pytest
import torch

from dragoman.config import ModelConfig, TokenizerConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.model.transformer import Transformer

SENTENCES = ["我爱你。", "你打我，我打你。", "今天天气很好。", "I love you.", "You hit me.", "Fine weather today."]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "joint.model"
    return Tokenizer.train(SENTENCES, TokenizerConfig(vocab_size=320), path, ("zh", "en"))


@pytest.fixture
def make_model(tokenizer: Tokenizer) -> Callable[..., Transformer]:
    def make(**settings) -> Transformer:
        torch.manual_seed(3)
        sizes = {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 3}
        config = ModelConfig(**{**sizes, **settings})
        return Transformer(config, src_vocab_size=len(tokenizer), tgt_vocab_size=len(tokenizer))

    return make
