"""Parameters in AllenNLP's names and layout, so that its checkpoints fit; the arithmetic is the core's."""

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.fast.cache import WeightsKey, WeightsVersion
from torchelmo.bilm.model import BiLM


class Renamed(NamedTuple):
    """One parameter of AllenNLP's, and the parameters of the core that it holds."""

    theirs: str
    ours: tuple[str, ...]
    unpack: Callable[[Tensor], tuple[Tensor, ...]]  # theirs -> ours
    pack: Callable[..., Tensor]  # ours -> theirs


class Borrowed(nn.Module):
    """A module that holds a part of a biLM's parameters as AllenNLP did, and runs the core with them."""

    def __init__(self, bilm: BiLM, table: Sequence[Renamed], *, trainable: bool) -> None:
        super().__init__()
        self._table = list(table)
        ours = dict(bilm.named_parameters())
        for entry in self._table:
            tensor = entry.pack(*(ours[name].detach() for name in entry.ours))
            _register(self, entry.theirs, nn.Parameter(tensor, requires_grad=trainable))
        self._bare = _Bare.of(bilm)
        self._frozen: _Frozen | None = None
        self._weights_version = WeightsVersion()

    @property
    def core(self) -> BiLM:
        """The biLM without its weights: its shape, and what does not need them."""
        return self._bare.bilm

    def run(self, method: str, *args: Any, **options: Any) -> Any:
        """A method of the core's biLM, with the parameters of this module."""
        parameters = [self.get_parameter(entry.theirs) for entry in self._table]
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            return self._bare.run(self._convert(parameters), method, *args, **options)
        frozen = self._freeze(parameters)
        return frozen.bare.run(frozen.tensors, method, *args, **options)

    def _freeze(self, parameters: Sequence[Tensor]) -> "_Frozen":
        """The core's parameters, converted once, and again when one of them has changed.

        load_state_dict, `.to`, optimizers and edits under `torch.no_grad` count as changes; an edit in place of
        a few values by way of `.data` may not, because PyTorch does not count it.
        """
        key = self._weights_version(parameters)
        if self._frozen is None or self._frozen.key != key:
            self._frozen = None  # first, so that there are never three copies
            with torch.no_grad():
                tensors = self._convert(parameters)
            # A core of its own: what the old one prepared for speed belongs to the old weights.
            bare = _Bare.of(self.core)
            self._frozen = _Frozen(key, tensors, bare)
        return self._frozen

    def _convert(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        pairs = (zip(entry.ours, entry.unpack(tensor)) for entry, tensor in zip(self._table, parameters))
        return dict(pair for of_entry in pairs for pair in of_entry)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_frozen": None}  # copies and files need the parameters once


class _Frozen(NamedTuple):
    key: WeightsKey  # of the parameters, when they were converted
    tensors: dict[str, Tensor]
    bare: "_Bare"


class _Bare(NamedTuple):
    """A biLM without weights. The tuple around it keeps nn.Module from taking it for a part of itself."""

    core: "_Methods"

    @classmethod
    def of(cls, bilm: BiLM) -> "_Bare":
        return cls(_Methods(copy.deepcopy(_bare_bilm(bilm.config))))

    @property
    def bilm(self) -> BiLM:
        return self.core.bilm

    def run(self, tensors: dict[str, Tensor], method: str, *args: Any, **options: Any) -> Any:
        named = {f"bilm.{name}": tensor for name, tensor in tensors.items()}
        return functional_call(self.core, named, (method, *args), options)


class _Methods(nn.Module):
    """The methods of a biLM as a forward, which is what functional_call can call."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__()
        self.bilm = bilm

    def forward(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self.bilm, method)(*args, **options)


@lru_cache(maxsize=2)
def _bare_bilm(config: BiLMConfig) -> BiLM:
    """Copied for each use, which is faster than to build it: PyTorch is slow to initialise what has no weights."""
    with torch.device("meta"):
        return BiLM(config)


def plain(theirs: str, ours: str) -> Renamed:
    """A parameter that differs in its name alone."""
    return Renamed(theirs, (ours,), _one, _same)


# Named functions, not lambdas: whole models can be copied and saved.
def _same(tensor: Tensor) -> Tensor:
    return tensor


def _one(tensor: Tensor) -> tuple[Tensor, ...]:
    return (tensor,)


def _register(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put a parameter under its dotted name, with plain modules as the steps between."""
    *path, leaf = name.split(".")
    for step in path:
        if step not in module._modules:
            module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    module.register_parameter(leaf, parameter)
