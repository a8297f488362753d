"""Parameters in AllenNLP's names and layout, so that its checkpoints fit; the arithmetic is the core's."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

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
        # In a tuple, because an attribute would register the core's parameters, which are empty, as ours.
        self._core = (_Core(bilm),)
        self._converted: _Converted | None = None

    @property
    def core(self) -> BiLM:
        """The biLM without its weights: its shape, and what does not need them."""
        return self._core[0].bilm

    def run(self, method: str, *args: Any, **options: Any) -> Any:
        """A method of the core's biLM, with the parameters of this module."""
        tensors = {f"bilm.{name}": tensor for name, tensor in self._tensors().items()}
        return functional_call(self._core[0], tensors, (method, *args), options)

    def _tensors(self) -> dict[str, Tensor]:
        """The core's parameters. Frozen ones are converted once, and again when they have changed.

        A change is seen by place and version: load_state_dict, `.to`, optimizers and edits under
        `torch.no_grad` count, but not an edit in place through `.data`, which PyTorch does not count.
        """
        parameters = [self.get_parameter(entry.theirs) for entry in self._table]
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            return self._convert(parameters)
        version = [(parameter.data_ptr(), parameter._version) for parameter in parameters]
        if self._converted is None or self._converted.version != version:
            with torch.no_grad():
                tensors = self._convert(parameters)
            self._converted = _Converted(version, [parameter.detach() for parameter in parameters], tensors)
        return self._converted.tensors

    def _convert(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        pairs = (zip(entry.ours, entry.unpack(tensor)) for entry, tensor in zip(self._table, parameters))
        return dict(pair for of_entry in pairs for pair in of_entry)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_converted": None}  # copies and files need the parameters once


class _Converted(NamedTuple):
    version: list[tuple[int, int]]  # of the parameters, when they were converted
    sources: list[Tensor]  # keeps their memory, so that no other tensor can come to the same place
    tensors: dict[str, Tensor]


class _Core(nn.Module):
    """The methods of a biLM as a forward, which is what functional_call can call."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__()
        with torch.device("meta"):
            self.bilm = BiLM(bilm.config, bilm.vocabulary)

    def forward(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self.bilm, method)(*args, **options)


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
