"""The torch engine: ids -> ids, log-probabilities and sentence vectors, in batches sorted by length.

The precision is the caller's: all computations follow torch.autocast where it is on.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dragoman.config import SearchConfig
from dragoman.data.batching import length_batches
from dragoman.data.collate import collate
from dragoman.errors import UserError, choose
from dragoman.masks import key_padding_mask
from dragoman.model.pooling import POOLINGS
from dragoman.model.transformer import Transformer
from dragoman.search.search import SEARCHES, Hypothesis, Sentence, search
from dragoman.special import EOS, PAD

_MOST_WORKERS = 4  # more would wait for each other's Python
Line = Sequence[Sequence[int]]  # the ids of each of its sentences without <EOS>; perhaps no sentence


def translate_ids(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    *,
    batch_tokens: int = 4096,
    lines: Sequence[int] | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[list[Hypothesis]]:
    """Source ids without <EOS> -> the n_best hypotheses of each, best first.

    `batch_tokens` bounds (rows of the search) x (longest source) of a batch. `lines` are the sentences' numbers in
    the whole input (default: 0, 1, 2 ...), which seed sampling. `progress` is called with the number of sentences
    finished since the last call. Raises UserError for a source longer than the model's positions.
    """
    lines = range(len(sources)) if lines is None else lines
    lengths = [len(source) + 1 for source in sources]  # with <EOS>
    max_lengths = [config.max_length(length - 1) for length in lengths]
    if (limit := model.max_positions) is not None:
        max_lengths = [min(max_length, limit - 1) for max_length in max_lengths]
        if max(lengths, default=0) > limit:
            raise UserError(
                f"a sentence of {max(lengths) - 1} pieces is too long for this model, which was trained with "
                f"model.position.length={limit}. Split the sentence."
            )
    width = choose("search.kind", config.kind, SEARCHES).width(config)
    results: list[list[Hypothesis]] = [[] for _ in sources]

    def translate(batch: list[int]) -> None:
        src, padding = _padded([sources[i] for i in batch], _device(model))
        sentences = [Sentence(lines[i], max_lengths[i]) for i in batch]
        batch_results = search(model.step, model.begin(src, padding), sentences, config)
        for i, hypotheses in zip(batch, batch_results, strict=True):
            results[i] = hypotheses

    batches = length_batches(lengths, batch_tokens, rows_per=width)
    with _evaluation(model):
        for batch, _ in zip(batches, _in_threads(translate, batches, _device(model)), strict=True):
            if progress:
                progress(len(batch))
    return results


@torch.no_grad()
def score_ids(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 4096,
) -> list[float]:
    """log P(target | source) of each pair in nats, <EOS> included."""
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    scores = [0.0] * len(lengths)
    with _evaluation(model):
        for indices in length_batches(lengths, batch_tokens):
            batch = collate([sources[i] for i in indices], [targets[i] for i in indices]).to(_device(model))
            log_probs = model(batch.src, batch.tgt_in, batch.src_key_padding_mask).float().log_softmax(-1)
            token_log_probs = log_probs.gather(-1, batch.tgt_out[..., None]).squeeze(-1)  # (B, T)
            totals = token_log_probs.masked_fill(key_padding_mask(batch.tgt_out), 0.0).sum(1)
            for i, total in zip(indices, totals.tolist(), strict=True):
                scores[i] = total
    return scores


@torch.no_grad()
def line_vectors(
    model: Transformer, lines: Sequence[Line], pooling: str, *, batch_tokens: int = 4096
) -> Tensor:
    """One vector for each line, (n, D) float32 on the CPU; a line without sentences gives zeros.

    The vector of a line is the mean of its sentences' vectors, each weighted by its tokens: with pooling=mean it is
    the mean over all tokens of the line.
    """
    pool = choose("pooling", pooling, POOLINGS)
    sentences = [ids for line in lines for ids in line]
    owners = torch.tensor([n for n, line in enumerate(lines) for _ in line], dtype=torch.long)
    lengths = [len(ids) + 1 for ids in sentences]
    vectors = torch.zeros(len(sentences), model.config.d_model)
    with _evaluation(model):
        for batch in length_batches(lengths, batch_tokens):
            src, padding = _padded([sentences[i] for i in batch], _device(model))
            memory = model.encode(src, padding)
            mask = src.new_zeros(src.shape, dtype=torch.bool) if padding is None else padding
            vectors[batch] = pool(memory, mask).float().cpu()
    weights = torch.tensor(lengths, dtype=torch.float32)
    sums = torch.zeros(len(lines), model.config.d_model).index_add_(0, owners, vectors * weights[:, None])
    counts = torch.zeros(len(lines)).index_add_(0, owners, weights)
    return sums / counts.clamp(min=1)[:, None]


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is a GPU where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"device '{name}': not available here. Choose auto, cpu, cuda, cuda:N or mps."
        ) from error
    return device


def _in_threads(
    translate: Callable[[list[int]], None], batches: list[list[int]], device: torch.device
) -> Iterator[None]:
    """Translate the batches, in order, each in one thread of a CPU.

    Threads that share the small products of one batch wait for each other more than they compute.
    """
    n_threads = torch.get_num_threads()
    n_workers = min(n_threads, len(batches), _MOST_WORKERS) if device.type == "cpu" else 1
    autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

    def work(batch: list[int]) -> None:
        # Unlike inference_mode, no_grad lets autocast cast each weight once.
        with torch.no_grad(), torch.autocast(device.type, autocast[1], enabled=autocast[0]):
            translate(batch)

    if n_workers < 2:
        yield from map(work, batches)
        return
    torch.set_num_threads(n_threads // n_workers)
    try:
        with ThreadPoolExecutor(n_workers) as pool:
            yield from pool.map(work, batches)
    finally:
        torch.set_num_threads(n_threads)


def _device(model: Transformer) -> torch.device:
    return model.projection.weight.device


def _padded(sources: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """(B, S) ids, each with <EOS>, and their key padding mask; None: there is no padding."""
    longest = max(map(len, sources))
    src = torch.tensor([[*source, EOS] + [PAD] * (longest - len(source)) for source in sources])
    padding = key_padding_mask(src)
    return src.to(device), padding.to(device) if bool(padding.any()) else None


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and the model's own mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
