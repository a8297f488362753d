"""The weights of a task model as safetensors: all that it learned, not what it was given and left as it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchelmo.errors import MissingFileError, WeightsError
from torchelmo.files import writing
from torchelmo.tasks.task import TaskModel

_BILM, _FIXED = "inputs.elmo.elmo.bilm.", "inputs.words.fixed"


def trained_parameters(model: TaskModel[Any, Any]) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def task_tensors(model: TaskModel[Any, Any]) -> dict[str, Tensor]:
    """The weights that belong to the task: a frozen biLM and fixed word vectors are saved once, beside them.

    So is the softmax of a biLM that is trained with the task, for the task has no use for it.
    """
    elmo, given = model.inputs.elmo, [_FIXED]
    if elmo is not None:
        given.append(f"{_BILM}softmax." if elmo.config.unfreeze else _BILM)
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if not name.startswith(tuple(given))}


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with writing(path) as temporary:
        save_file({name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}, temporary)


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise MissingFileError(f"{path}: expected {what}, found nothing. A run has them after its first epoch.")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: expected {what}, but the file is damaged ({error}). Copy it again, or train again."
        ) from error


def load_tensors(model: TaskModel[Any, Any], path: Path) -> None:
    """Put saved weights into a model of the same shape."""
    tensors, wanted = read_tensors(path, "the weights of a task model"), task_tensors(model)
    for name in sorted(tensors.keys() | wanted.keys()):
        expected, found = (tuple(side[name].shape) if name in side else "nothing" for side in (wanted, tensors))
        if expected != found:
            raise WeightsError(
                f"{path}: expected the weights of this task model, but at {name} {expected} was expected and {found} "
                "found. The files of the folder must be of one run."
            )
    model.load_state_dict(tensors, strict=False)
