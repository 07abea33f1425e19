"""Torch engine: ids -> ids, log-probs and vectors, in batches by length.

The caller chooses the precision, by torch.autocast. Functions that compute with the model put it into evaluation mode.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import SearchConfig
from dragoman.data.collate import collate, length_batches
from dragoman.errors import UserError, choose
from dragoman.model.cache import DecoderCache
from dragoman.model.pooling import POOLINGS
from dragoman.model.transformer import Transformer
from dragoman.search import Hypothesis, Sentence
from dragoman.search.search import SEARCHES, search

_MAX_WORKERS = 4  # more would wait for Python's global lock
Ids = Sequence[Sequence[int]]  # of sentences, without <EOS>


def translate_ids(
    model: Transformer,
    sources: Ids,
    config: SearchConfig,
    *,
    batch_tokens: int = 4096,
    numbers: Sequence[int] | None = None,
    progress: Callable[[int], object] = lambda n_sentences: None,
) -> list[list[Hypothesis]]:
    """Source ids without <EOS> -> the n_best hypotheses of each, best first.

    `batch_tokens` bounds (rows of the search) x (longest source) of a batch. `numbers` are those of the sentences
    in the whole input (default: 0, 1, 2 ...); they seed sampling. `progress` is called with the number of sentences
    done so far.
    """
    numbers = range(len(sources)) if numbers is None else numbers
    device = model.eval().projection.weight.device
    width = choose("search.kind", config.kind, SEARCHES).width(config)
    batches = length_batches([len(source) + 1 for source in sources], batch_tokens, beam=width)  # with <EOS>
    # Threads that share the small products of one batch wait for each other more than they compute.
    n_threads = torch.get_num_threads()
    n_workers = max(1, min(n_threads, len(batches), _MAX_WORKERS)) if device.type == "cpu" else 1
    autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    # `weight` has only the rows of possible pieces. It is a Parameter, because autocast keeps its casts of parameters
    # only; in fp32 it is stored by columns, because a CPU then multiplies a few rows in less time.
    ids = model.possible
    kept, bias = (x[ids] for x in model.projection.parameters())
    weight = nn.Parameter(kept if autocast[0] else kept.T.contiguous().T)

    def step(tokens: Tensor, cache: DecoderCache) -> Tensor:
        states = model.decode(ids[tokens], cache.memory, cache.memory_key_padding_mask, cache=cache)
        return F.linear(states[:, -1], weight, bias)

    def translate(batch: list[int]) -> list[list[Hypothesis]]:
        inputs = collate([sources[i] for i in batch], [[]] * len(batch))
        padding = inputs.src_key_padding_mask
        sentences = [Sentence(numbers[i], config.max_length(len(sources[i]), model.max_positions)) for i in batch]
        # Autocast and grad mode are set per thread. Unlike inference_mode, no_grad lets autocast cast each weight once.
        with torch.no_grad(), torch.autocast(device.type, autocast[1], enabled=autocast[0]):
            cache = model.begin(inputs.src.to(device), padding.to(device) if padding.any() else None)
            found = search(step, cache, sentences, config)
        return [[each._replace(ids=ids[each.ids].tolist()) for each in hypotheses] for hypotheses in found]

    results: dict[int, list[Hypothesis]] = {}
    torch.set_num_threads(n_threads // n_workers)
    try:
        with ThreadPoolExecutor(n_workers) as pool:
            # On a GPU `map`: CUDA's current device is set per thread.
            for batch, rows in zip(batches, (pool.map if n_workers > 1 else map)(translate, batches), strict=True):
                results.update(zip(batch, rows, strict=True))
                progress(len(results))
    finally:
        torch.set_num_threads(n_threads)
    return [results[i] for i in range(len(sources))]


@torch.no_grad()
def log_probs(model: Transformer, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Return log P of each piece of `target` and of <EOS>, in nats, (T,) float32."""
    batch = collate([source], [target]).to(model.projection.weight.device)
    logits = model.eval()(batch.src, batch.tgt_in, None)[0].float()  # (T, V)
    return logits.log_softmax(-1)[range(len(logits)), batch.tgt_out[0]]


@torch.no_grad()
def line_vectors(
    model: Transformer,
    lines: Sequence[Ids],
    pooling: str,
    *,
    batch_tokens: int = 4096,
    progress: Callable[[int], object] = lambda n_lines: None,
) -> Tensor:
    """One vector per line, (n, D) float32 on the CPU; zeros without sentences.

    A line holds the ids of its sentences. Its vector is the mean of theirs, weighted by tokens.
    """
    pool = choose("pooling", pooling, POOLINGS)
    sentences = [ids for line in lines for ids in line]
    owners = torch.tensor([n for n, line in enumerate(lines) for _ in line], dtype=torch.long)
    lengths = [len(ids) + 1 for ids in sentences]
    weights = torch.tensor(lengths, dtype=torch.float32)[:, None]
    sums = torch.zeros(len(lines), model.config.d_model)
    n_done = 0
    model.eval()
    for batch in length_batches(lengths, batch_tokens):
        inputs = collate([sentences[i] for i in batch], [[]] * len(batch)).to(model.projection.weight.device)
        memory = model.encode(inputs.src, inputs.src_key_padding_mask)
        vectors = pool(memory, inputs.src_key_padding_mask).float().cpu()
        sums.index_add_(0, owners[batch], vectors * weights[batch])
        n_done += len(batch)
        progress(len(lines) * n_done // len(sentences))
    return sums / torch.zeros(len(lines), 1).index_add_(0, owners, weights).clamp(min=1)


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is a GPU where there is one."""
    if name == "auto":
        name = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"device '{name}': not available here. Choose auto, cpu, cuda, cuda:N or mps") from None
