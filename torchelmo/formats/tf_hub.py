"""Load TF-Hub modules of ELMo: variables/variables.index + variables/variables.data-00000-of-00001.

A module is a graph for inference, with the names of bilm-tf. It has no options.json: the shapes of the variables tell
everything except the clips, the activation and the skip connections, which are those of all published models.
"""

from pathlib import Path

from torchelmo.bilm.folder import MixWeights
from torchelmo.bilm.model import BiLM
from torchelmo.formats.layout import options_from_shapes
from torchelmo.formats.official import Source, build_official, read_options
from torchelmo.formats.tf_bundle import FLOAT32, Checkpoint, read_checkpoint
from torchelmo.formats.tf_checkpoint import find_variables

PREFIX = Path("variables") / "variables"
_MIX = "aggregation/elmo_output_ELMo_W", "aggregation/elmo_output_ELMo_gamma"  # of the modules of DeepPavlov


def load_tf_hub(folder: str | Path) -> BiLM:
    """Load a TF-Hub module.

    Args:
        folder: The folder of the module, with the folder `variables` in it.

    Returns:
        The biLM, in float32 on the CPU. `BiLM.mixes` has the weights of its mix, if they are known.

    Raises:
        MissingFileError: A file is missing.
        WeightsError: The variables are damaged, or have other names. The message lists them.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint(folder / PREFIX)
    source = _without_padding(find_variables(checkpoint).source())
    options = folder / "options.json"
    raw = read_options(options) if options.is_file() else options_from_shapes(source.datasets, str(source.path))
    bilm = build_official(raw, source, options if options.is_file() else source.path)
    bilm.mixes = _read_mix(checkpoint, bilm.config.n_layers + 1)
    bilm.origin = f"TF-Hub module {folder.name}"
    return bilm


def _without_padding(source: Source) -> Source:
    """Leave out the first of 262 characters, which is for padded positions; official files do not have it."""
    shape, dtype = source.datasets.get("char_embed", ((), None))
    if dtype is None or shape[:1] != (262,):
        return source
    datasets = source.datasets | {"char_embed": ((261, *shape[1:]), dtype)}
    return Source(
        source.path, datasets, lambda name: source.read(name)[1:] if name == "char_embed" else source.read(name)
    )


def _read_mix(checkpoint: Checkpoint, n_layers: int) -> list[MixWeights]:
    """Return γ softmax(W + 1/3), if the module has it. A number that is added to all of W does not change it."""
    shapes = [(entry.dtype, entry.shape) for name in _MIX if (entry := checkpoint.entries.get(name)) is not None]
    if shapes != [(FLOAT32, (n_layers,)), (FLOAT32, (1,))]:
        return []
    scalars, gamma = (checkpoint.read(name).tolist() for name in _MIX)
    return [MixWeights(tuple(scalars), gamma[0])]
