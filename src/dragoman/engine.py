"""ids -> ids by torch or by CTranslate2, each imported only when it is used.

It knows which of the two does a task, and says so in one line where that is not the one that was to be expected; it
refuses to know how either of them works. On a CPU a bundle's export is taken where there is one, and torch where
there is none, where it no longer fits its bundle, and for what CTranslate2 cannot do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.ctranslate2_engine import CTranslate2Engine, export_of, inexpressible, library
from dragoman.description import Shell
from dragoman.errors import UserError, suggest
from dragoman.search.hypothesis import Hypothesis, SearchConfig

if TYPE_CHECKING:
    import torch

    from dragoman.model.transformer import Transformer

ENGINES = ("auto", "torch", "ctranslate2")
log = logging.getLogger(__name__)


class Engine:
    """Of one model: `read` gives it for torch, when torch is first needed; `fast` is its export."""

    def __init__(self, read: Callable[[], Transformer], fast: CTranslate2Engine | None = None) -> None:
        self._read, self._fast = read, fast
        self._told: set[str] = set()

    @property
    def name(self) -> str:
        return "torch" if self._fast is None else "ctranslate2"

    @cached_property
    def model(self) -> Transformer:
        """The network in torch, for all that is not a search: log-probabilities, attention, vectors."""
        return self._read()

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        search: SearchConfig,
        *,
        longest: int,
        batch_tokens: int = 4096,
        lines: Sequence[int] | None = None,
        scored: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Hypothesis]]:
        """As torch_engine.translate_ids. No source has more than `longest` pieces, in this call or any like it.

        Without `scored`, scores may be NaN and token_scores missing: what nobody reads need not be computed.
        """
        if self._fast is not None:
            beyond = self._fast.refuses(search, longest)
            if beyond is None:
                return self._fast.translate(
                    sources, search, batch_tokens=batch_tokens, scored=scored, progress=progress
                )
            if beyond not in self._told:
                _tell(f"CTranslate2 does not do {beyond}")
                self._told.add(beyond)
        from dragoman.torch_engine import translate_ids

        return translate_ids(
            self.model, sources, search, batch_tokens=batch_tokens, lines=lines, progress=progress
        )


def choose(
    name: str, bundle: Path, shell: Shell, device: str = "auto", *, task: str | None = None
) -> CTranslate2Engine | None:
    """The export of the bundle where it is to be used; None: torch.

    `task` is something that will be asked for and only torch does, such as "--sample". Raises UserError for an
    unknown name, and for ctranslate2 where that is asked for and cannot be had at all.
    """
    if name not in ENGINES:
        raise UserError(
            f"there is no engine '{name}'{suggest(name, ENGINES)}; choose from {', '.join(ENGINES)}"
        )
    asked = name == "ctranslate2"
    if name == "torch" or not (asked or export_of(bundle).is_dir()):
        return None
    beyond = task or inexpressible(shell.model_config)
    if beyond:
        _tell(f"CTranslate2 does not do {beyond}")
        return None
    try:
        if asked and device not in ("auto", "cpu"):
            raise UserError(
                f"--engine ctranslate2 computes on the CPU here: it does not go with --device {device}"
            )
        if asked or (_installed() and _on_cpu(device)):
            return CTranslate2Engine.load(bundle, shell)
    except UserError as error:
        if asked:
            raise
        _tell(str(error))
    return None


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; 'auto' is a GPU where there is one."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"there is no device '{name}' here; choose auto, cpu, cuda, cuda:N or mps") from error
    return device


def _installed() -> bool:
    try:
        library()
    except UserError:
        return False
    return True


def _on_cpu(device: str) -> bool:
    """Torch is asked only where there is a GPU: a Mac's is slower to start than the CPU is to answer."""
    if device == "auto" and library().get_cuda_device_count():
        return choose_device().type == "cpu"
    return device in ("auto", "cpu")


def _tell(why: str) -> None:
    log.warning("note: %s; torch does it", why)
