"""Hold the parameters of a BiLM with AllenNLP's names and layout, and run the BiLM with them.

Checkpoints of AllenNLP can be loaded into them, and the results are those of `BiLM`.
"""

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.fast.products import WeightsKey, WeightsVersion
from torchelmo.bilm.model import BiLM


class ParameterMapping(NamedTuple):
    """A parameter of AllenNLP, and the parameters of `BiLM` that it contains."""

    theirs: str
    ours: tuple[str, ...]
    unpack: Callable[[Tensor], tuple[Tensor, ...]]  # theirs -> ours
    pack: Callable[..., Tensor]  # ours -> theirs


class ParameterAdapter(nn.Module):
    """A module with some parameters of a BiLM in AllenNLP's form, which runs the BiLM with them."""

    def __init__(self, bilm: BiLM, table: Sequence[ParameterMapping], *, trainable: bool) -> None:
        super().__init__()
        self._table = list(table)
        bilm = bilm.dequantized()
        ours = dict(bilm.named_parameters())
        for entry in self._table:
            tensor = entry.pack(*(ours[name].detach() for name in entry.ours))
            _register(self, entry.theirs, nn.Parameter(tensor, requires_grad=trainable))
        self._meta = _MetaBiLM.of(bilm)
        self._frozen: _Frozen | None = None
        self._weights_version = WeightsVersion()

    @property
    def core(self) -> BiLM:
        """The BiLM without weights, for its shape and for methods that need no weights."""
        return self._meta.bilm

    def run(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the BiLM with the parameters of this module."""
        parameters = [self.get_parameter(entry.theirs) for entry in self._table]
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            return self._meta.run(self._convert(parameters), method, *args, **options)
        frozen = self._freeze(parameters)
        return frozen.bilm.run(frozen.tensors, method, *args, **options)

    def _freeze(self, parameters: Sequence[Tensor]) -> "_Frozen":
        """Return the parameters of the BiLM, converted once, and again when one of them has changed.

        load_state_dict, `.to`, optimizers and edits under `torch.no_grad` are noticed. An in-place edit of a few values
        through `.data` may not be, because PyTorch does not count it.
        """
        key = self._weights_version(parameters)
        if self._frozen is None or self._frozen.key != key:
            self._frozen = None  # first, so that there are never three copies
            with torch.no_grad():
                tensors = self._convert(parameters)
            # A new BiLM: the old one has prepared the old weights for its fast path.
            self._frozen = _Frozen(key, tensors, _MetaBiLM.of(self.core))
        return self._frozen

    def _convert(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        pairs = (zip(entry.ours, entry.unpack(tensor)) for entry, tensor in zip(self._table, parameters))
        return dict(pair for of_entry in pairs for pair in of_entry)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_frozen": None}  # a copy or a file needs the parameters only once


class _Frozen(NamedTuple):
    """Converted parameters for inference."""

    key: WeightsKey  # version of the parameters that were converted
    tensors: dict[str, Tensor]
    bilm: "_MetaBiLM"


class _MetaBiLM(NamedTuple):
    """A BiLM on the meta device, wrapped in a tuple so that nn.Module does not register it as a submodule."""

    core: "_Methods"

    @classmethod
    def of(cls, bilm: BiLM) -> "_MetaBiLM":
        return cls(_Methods(copy.deepcopy(_meta_bilm(bilm.config))))

    @property
    def bilm(self) -> BiLM:
        return self.core.bilm

    def run(self, tensors: dict[str, Tensor], method: str, *args: Any, **options: Any) -> Any:
        named = {f"bilm.{name}": tensor for name, tensor in tensors.items()}
        return functional_call(self.core, named, (method, *args), options)


class _Methods(nn.Module):
    """The methods of a BiLM through `forward`, which is all that functional_call can call."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__()
        self.bilm = bilm

    def forward(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self.bilm, method)(*args, **options)


@lru_cache(maxsize=2)
def _meta_bilm(config: BiLMConfig) -> BiLM:
    """Build a BiLM without weights. It is copied for each use, because building it is slow on the meta device."""
    with torch.device("meta"):
        return BiLM(config)


def renamed(theirs: str, ours: str) -> ParameterMapping:
    """Map a parameter that differs only in its name."""
    return ParameterMapping(theirs, (ours,), _as_tuple, _unchanged)


# Functions, not lambdas, so that models can be copied and pickled.
def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _as_tuple(tensor: Tensor) -> tuple[Tensor, ...]:
    return (tensor,)


def _register(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter under a dotted name, with plain modules as its parents."""
    *path, leaf = name.split(".")
    for step in path:
        if step not in module._modules:
            module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    module.register_parameter(leaf, parameter)
