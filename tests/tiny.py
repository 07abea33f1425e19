"""A bundle as small as they come, its model knowing nothing: for tests of what is done with models."""

from pathlib import Path

import torch

from dragoman.bundle import Bundle
from dragoman.data.tokenizer import Tokenizer, TokenizerConfig
from dragoman.languages import Direction
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.search.search import SearchConfig

SENTENCES = [
    "好久不见，你最近怎么样？",
    "我爱你。",
    "你打我，我打你。",
    "今天天气很好，我们去公园吧！",
    "下一班去机场的火车几点开？",
    "Long time no see, how are you?",
    "I love you.",
    "You hit me and I hit you.",
    "The weather is fine today, let's go to the park!",
    "What time does the next train to the airport leave?",
]


def make_bundle(
    folder: Path, *, joint: bool = True, seed: int = 1, src: str = "zh", tgt: str = "en", both: bool = False
) -> Bundle:
    """A random model of two small layers over tokenizers trained into `folder`; of `both` directions with tags."""
    torch.manual_seed(seed)
    config = TokenizerConfig(vocab_size=332 if both else 330)
    folder.mkdir(parents=True, exist_ok=True)
    if joint:
        src_tokenizer = tgt_tokenizer = Tokenizer.train(
            SENTENCES, config, folder / "joint.model", (src, tgt), (src, tgt) if both else ()
        )
    else:
        src_tokenizer = Tokenizer.train(SENTENCES[:5], config, folder / "src.model", (src,))
        tgt_tokenizer = Tokenizer.train(SENTENCES[5:], config, folder / "tgt.model", (tgt,))
    model_config = ModelConfig(
        d_model=32, d_ff=64, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, tie="all" if joint else "tgt"
    )
    model = Transformer(
        model_config, src_vocab_size=len(src_tokenizer), tgt_vocab_size=len(tgt_tokenizer)
    ).eval()
    return Bundle(
        model=model,
        model_config=model_config,
        src_tokenizer=src_tokenizer,
        tgt_tokenizer=tgt_tokenizer,
        src=src,
        tgt=tgt,
        directions=[Direction(src, tgt), Direction(tgt, src)][: 1 + both],
        meta={"name": "tiny", "max_length": 24},
        # a model that knows nothing never stops by itself: keep its answers short
        search=SearchConfig(beam_size=2, max_length_a=0.5, max_length_b=3),
    )
