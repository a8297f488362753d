"""Read and write safetensors files. A file is checked against the expected tensors before anything is allocated."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torchelmo.errors import WeightsError, shorten
from torchelmo.files import atomic_write, require_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Shape = tuple[int, ...]
FLOATS = ("F16", "BF16", "F32", "F64")  # as safetensors names them


def read_tensors(
    path: str | Path,
    expected: Mapping[str, Shape],
    *,
    what: str,
    optional: Collection[str] = (),
    dtypes: Collection[str] = FLOATS,
    int8: Collection[str] = (),
    float16: Collection[str] = (),
    dtype: "torch.dtype | None" = None,
    advice: str = "Copy the file again.",
) -> dict[str, "Tensor"]:
    """Return copies of the tensors of a safetensors file.

    Names, shapes and dtypes are checked first. The tensors do not stay mapped to the file, so that a later change of
    the file changes nothing in memory.

    Args:
        path: The file.
        expected: The shape of every tensor that the file must contain.
        what: What the file should be, for error messages: "the weights of a biLM".
        optional: Names in `expected` that may be missing.
        dtypes: The safetensors dtypes that are accepted.
        int8: Names of tensors that must be int8. Their copies are int8, too.
        float16: Names of tensors whose copies are float16.
        dtype: The dtype of the other copies; default float32.
        advice: What to do about a damaged file, for error messages.

    Raises:
        MissingFileError: There is no such file.
        WeightsError: The file is damaged, or a name, shape, dtype or value is not as expected.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    path = require_file(path, what, regular=True)

    def fail(problem: str) -> NoReturn:
        raise WeightsError(f"{path}: {problem} {advice}")

    try:
        with safe_open(path, framework="pt") as file:
            found = set(file.keys())
            for name in sorted(expected.keys() - found - set(optional)):
                fail(f"expected {what}, but the tensor {name!r} is missing.")
            for name in sorted(found - expected.keys()):
                fail(f"expected {what}, found the unknown tensor {name!r}.")
            names = [name for name in expected if name in found]
            for name in names:
                piece = file.get_slice(name)
                shape, kind = tuple(piece.get_shape()), piece.get_dtype()
                if shape != tuple(expected[name]):
                    fail(f"{name}: expected shape {tuple(expected[name])} for {what}, found {shape}.")
                accepted = ("I8",) if name in int8 else dtypes
                if kind not in accepted:
                    fail(f"{name}: expected the dtype {' or '.join(accepted)}, found {kind}.")
            kinds = dict.fromkeys(names, dtype or torch.float32)
            kinds |= dict.fromkeys(int8, torch.int8) | dict.fromkeys(float16, torch.float16)
            tensors = {name: file.get_tensor(name).to(kinds[name], copy=True) for name in names}
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: expected {what}, but the file is damaged or cut short ({shorten(str(error), 200)}). {advice}"
        ) from error
    for name, tensor in tensors.items():
        check_finite(tensor, f"{path}: {name}")
    return tensors


def write_tensors(path: str | Path, tensors: Mapping[str, "Tensor"], *, dtype: "torch.dtype | None" = None) -> None:
    """Write a safetensors file, all or nothing; `dtype` converts the tensors."""
    with atomic_write(path) as temporary:
        save_tensors(temporary, tensors, dtype=dtype)


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], *, dtype: "torch.dtype | None" = None) -> None:
    """Write a safetensors file directly to `path`, for callers that rename it themselves."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in plain.items():  # safetensors refuses tensors that share memory
        if tensor.data_ptr() in seen and tensor.numel():
            plain[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    save_file(plain, path, metadata={"format": "pt"})


def check_finite(tensor: "Tensor", where: str) -> None:
    """Raise a WeightsError if a tensor holds NaN or Inf, which would silently make every result NaN."""
    import torch

    # One pass without a copy: the smallest and the largest number are finite if all are.
    if tensor.numel() and not all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor)):
        raise WeightsError(f"{where}: expected finite numbers, found NaN or Inf. The file comes from a failed run.")
