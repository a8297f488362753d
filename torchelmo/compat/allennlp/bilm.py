"""AllenNLP's `_ElmoBiLm`, its character encoder and its stateful LSTM, with AllenNLP's names and results."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import torchelmo
from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.lstm import FORGET_BIAS
from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.compat.allennlp.parameters import ParameterAdapter, ParameterMapping, renamed
from torchelmo.errors import ConfigError, InputError, MissingFileError
from torchelmo.formats.registry import model_home
from torchelmo.text.batching import windows
from torchelmo.text.characters import CharacterEncoder

log = logging.getLogger(__name__)
File = str | Path
_CHUNK_WORDS = 1024


class ElmoCharacterEncoder(ParameterAdapter):
    """The character encoder: ids (batch, tokens, 50) -> {"token_embedding", "mask"}.

    The token embedding is (batch, tokens + 2, projection_dim), with sentence marks.
    """

    def __init__(self, bilm: BiLM, *, requires_grad: bool = False) -> None:
        super().__init__(bilm, list(_encoder_table(bilm.config)), trainable=requires_grad)
        self.output_dim = bilm.config.projection_dim

    def get_output_dim(self) -> int:
        """Return the width of a token vector."""
        return self.output_dim

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Encode ids (batch, tokens, 50), and add the sentence marks."""
        mask = self.core.token_mask(inputs)
        begin, end = self.core.boundary_ids(inputs.device)
        ids, mask = add_marks(inputs, mask, begin, end)
        return {"mask": mask, "token_embedding": self.encode(ids, mask)}

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Encode ids (batch, tokens, 50) -> (batch, tokens, projection_dim), 0 at padded positions."""
        vectors: Tensor = self.run("encode_tokens", ids, mask)
        return vectors

    def encode_marks(self) -> tuple[Tensor, Tensor]:
        """Return the vectors of `<S>` and `</S>`."""
        marks = torch.stack(self.core.boundary_ids(next(self.parameters()).device)).unsqueeze(0)
        begin, end = self.encode(marks, torch.ones_like(marks[..., 0], dtype=torch.bool))[0]
        return begin, end


def add_marks(rows: Tensor, mask: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Add sentence marks to ids or vectors: (batch, tokens, dim) -> (batch, tokens + 2, dim), and the new mask.

    As in AllenNLP, a row of padding only gets its two marks, too, and they run through the LSTMs.
    """
    batch, tokens = mask.shape
    lengths = mask.sum(dim=1)
    marked = rows.new_zeros(batch, tokens + 2, rows.shape[-1])
    marked[:, 1:-1] = rows
    marked[:, 0] = begin
    marked[torch.arange(batch, device=rows.device), lengths + 1] = end
    return marked, torch.arange(tokens + 2, device=rows.device) < (lengths + 2).unsqueeze(1)


def _encoder_table(config: BiLMConfig) -> Iterator[ParameterMapping]:
    yield renamed("_char_embedding_weights", "encoder.embedding")
    for i in range(len(config.filters)):
        for part in ("weight", "bias"):
            yield renamed(f"char_conv_{i}.{part}", f"encoder.convolutions.{i}.{part}")
    for i in range(config.n_highway):
        for part in ("weight", "bias"):
            ours = (f"encoder.highways.{i}.transform.{part}", f"encoder.highways.{i}.carry.{part}")
            yield ParameterMapping(f"_highways._layers.{i}.{part}", ours, _highway_to_ours, _highway_to_theirs)
    if config.char_projection:
        for part in ("weight", "bias"):
            yield renamed(f"_projection.{part}", f"encoder.projection.{part}")


def _highway_to_theirs(transform: Tensor, carry: Tensor) -> Tensor:
    """Join both into one matrix. AllenNLP's gate weights the input, ours the transformation: 1 − σ(x) = σ(−x)."""
    return torch.cat([transform, -carry])


def _highway_to_ours(joined: Tensor) -> tuple[Tensor, ...]:
    transform, carry = joined.chunk(2)
    return transform, -carry


class ElmoLstm(ParameterAdapter):
    """All LSTMs: (batch, tokens, projection_dim) -> (n_layers, batch, tokens, 2 · projection_dim).

    With `stateful`, row i of a call starts from the state in which row i of the call before ended. Rows that a smaller
    batch does not use keep their state; rows that a larger batch adds start from zero. The state is detached between
    calls.
    """

    def __init__(self, bilm: BiLM, *, requires_grad: bool = False, stateful: bool = True) -> None:
        super().__init__(bilm, list(_lstm_table(bilm.config)), trainable=requires_grad)
        self.num_layers = bilm.config.n_layers
        self.stateful = stateful
        # Hidden (n_layers, rows, 2 · projection_dim) and cell (n_layers, rows, 2 · cell_dim), forward first.
        self._states: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return the LSTM layers (n_layers, batch, tokens, 2 · projection_dim)."""
        return self.all_layers(inputs, mask)[1:]

    def all_layers(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return (n_layers + 1, batch, tokens, 2 · projection_dim); the token layer, doubled, comes first."""
        out = self.run("run_layers", inputs, mask, self._initial_state(inputs))
        if self.stateful:
            self._remember(out.state)
        layers: Tensor = out.layers
        return layers

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Reset the state to zero: of all rows, or of those at which `mask` (rows,) is true."""
        if mask is None or self._states is None:
            self._states = None
            return
        hidden, cell = self._states
        if mask.shape != (hidden.shape[1],):
            raise InputError(
                f"reset_states: expected a mask of shape ({hidden.shape[1]},), one value for each row, "
                f"got {tuple(mask.shape)}. Leave it out to reset all."
            )
        reset = mask.to(hidden.device, torch.bool).view(1, -1, 1)
        self._states = hidden.masked_fill(reset, 0.0), cell.masked_fill(reset, 0.0)

    def _remember(self, state: BiLMState) -> None:
        """Keep the state after this call; rows beyond its batch do not change."""
        hidden, cell = (torch.cat(tuple(part.detach()), dim=-1) for part in state)
        if self._states is not None:
            n_rows = hidden.shape[1]
            rest = [old[:, n_rows:].to(hidden) for old in self._states]
            hidden, cell = torch.cat([hidden, rest[0]], dim=1), torch.cat([cell, rest[1]], dim=1)
        self._states = hidden, cell

    def _initial_state(self, inputs: Tensor) -> BiLMState:
        """Return the state from which the rows of this call start."""
        config, batch = self.core.config, len(inputs)
        if self._states is None or not self.stateful:
            shape = (2, config.n_layers, batch)
            return BiLMState(inputs.new_zeros(*shape, config.projection_dim), inputs.new_zeros(*shape, config.cell_dim))
        hidden, cell = (_with_rows(part, batch).to(inputs) for part in self._states)
        return BiLMState(torch.stack(hidden.chunk(2, dim=-1)), torch.stack(cell.chunk(2, dim=-1)))


def _with_rows(state: Tensor, n_rows: int) -> Tensor:
    """Cut or zero-pad rows: (n_layers, rows, dim) -> (n_layers, n_rows, dim)."""
    missing = max(0, n_rows - state.shape[1])
    return torch.nn.functional.pad(state, (0, 0, 0, missing))[:, :n_rows]


def _lstm_table(config: BiLMConfig) -> Iterator[ParameterMapping]:
    for j in range(config.n_layers):
        for direction in config.directions:
            theirs, ours = f"{direction}_layer_{j}", f"{direction}_lstms.{j}"
            for part in ("input", "state"):
                yield ParameterMapping(
                    f"{theirs}.{part}_linearity.weight",
                    (f"{ours}.{part}_weight",),
                    _weight_to_ours,
                    _weight_to_theirs,
                )
            yield ParameterMapping(f"{theirs}.state_linearity.bias", (f"{ours}.bias",), _bias_to_ours, _bias_to_theirs)
            yield ParameterMapping(
                f"{theirs}.state_projection.weight", (f"{ours}.projection",), _transposed_to_ours, _transposed
            )


def swap_gates(gates: Tensor, dim: int = 0) -> Tensor:
    """Convert gates from i, j, f, o (ours) to i, f, j, o (AllenNLP's), or back.

    >>> swap_gates(torch.tensor([1, 2, 3, 4])).tolist()
    [1, 3, 2, 4]
    """
    i, second, third, o = gates.chunk(4, dim)
    return torch.cat([i, third, second, o], dim)


def _weight_to_theirs(weight: Tensor) -> Tensor:
    return swap_gates(weight.T)


def _weight_to_ours(weight: Tensor) -> tuple[Tensor, ...]:
    return (swap_gates(weight.T, dim=1),)


def _bias_to_theirs(bias: Tensor) -> Tensor:
    """AllenNLP includes the forget bias in the parameter; `BiLM` adds it at run time, as TensorFlow does."""
    return swap_gates(bias + _forget_bias(bias))


def _bias_to_ours(bias: Tensor) -> tuple[Tensor, ...]:
    ours = swap_gates(bias)
    return (ours - _forget_bias(ours),)


def _forget_bias(bias: Tensor) -> Tensor:
    return bias.new_tensor([0.0, 0.0, FORGET_BIAS, 0.0]).repeat_interleave(len(bias) // 4)


def _transposed(weight: Tensor) -> Tensor:
    return weight.T.contiguous()


def _transposed_to_ours(weight: Tensor) -> tuple[Tensor, ...]:
    return (_transposed(weight),)


class ElmoBiLm(nn.Module):
    """The biLM: ids (batch, tokens, 50) -> {"activations", "mask"}.

    The activations are n_layers + 1 tensors (batch, tokens + 2, dim), with sentence marks.

    Args:
        options_file: options.json; None, together with `weight_file`, for the model in the package.
        weight_file: weights.hdf5.
        requires_grad: Train the parameters.
        vocab_to_cache: Words whose token vectors are computed once.
        stateful: Start a call from the state at the end of the call before, as AllenNLP does.
    """

    def __init__(
        self,
        options_file: File | None,
        weight_file: File | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        bilm = load_files(options_file, weight_file)
        self._requires_grad = requires_grad
        self._token_embedder = ElmoCharacterEncoder(bilm, requires_grad=requires_grad)
        self._word_embedding: nn.Embedding | None = None
        if vocab_to_cache:
            if requires_grad:
                log.warning("The vectors of cached words and the character encoder are trained separately.")
            self.create_cached_cnn_embeddings(vocab_to_cache)
        self._elmo_lstm = ElmoLstm(bilm, requires_grad=requires_grad, stateful=stateful)
        self.num_layers = bilm.config.n_layers + 1

    def get_output_dim(self) -> int:
        """Return the width of a layer."""
        return 2 * self._token_embedder.get_output_dim()

    def reset_states(self) -> None:
        """Reset the state to zero."""
        self._elmo_lstm.reset_states()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Tensor | list[Tensor]]:
        """Run all layers.

        Args:
            inputs: Character ids (batch, tokens, 50).
            word_inputs: Positions (batch, tokens) in `vocab_to_cache`, 0 at padded positions.

        Returns:
            The activations of all layers, and the mask.

        Raises:
            InputError: The ids do not fit the model.
        """
        if self._word_embedding is not None and word_inputs is not None:
            vectors, mask = self._look_up(self._word_embedding, inputs, word_inputs)
        else:
            encoded = self._token_embedder(inputs)
            vectors, mask = encoded["token_embedding"], encoded["mask"]
        return {"activations": list(self._elmo_lstm.all_layers(vectors, mask)), "mask": mask}

    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Encode words once; `forward` then looks up their vectors by their position in the list.

        Position 0 is padding, as in AllenNLP's vocabularies, and its vector is 0.
        """
        encoder, device = CharacterEncoder(), next(self.parameters()).device
        parts = []
        with torch.no_grad():
            for words in windows(tokens, _CHUNK_WORDS):
                ids = torch.from_numpy(encoder.encode(words)).to(device).unsqueeze(0)
                parts.append(self._token_embedder.encode(ids, torch.ones_like(ids[..., 0], dtype=torch.bool))[0])
        vectors = torch.cat(parts)
        vectors[0] = 0.0
        self._word_embedding = nn.Embedding(len(vectors), vectors.shape[1], padding_idx=0, _weight=vectors)
        self._word_embedding.requires_grad_(self._requires_grad)

    def _look_up(self, cached: nn.Embedding, inputs: Tensor, word_inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return token vectors with marks, and their mask; words outside the cache are encoded by their characters."""
        known = (word_inputs >= 0) & (word_inputs < cached.num_embeddings)
        mask = word_inputs > 0
        vectors = cached(word_inputs.masked_fill(~known, 0))
        if not bool(known.all()):
            if inputs.shape[:-1] != word_inputs.shape:
                raise InputError(
                    "word_inputs: words outside vocab_to_cache are encoded by their characters: expected inputs of "
                    f"shape {(*word_inputs.shape, 50)}, got {tuple(inputs.shape)}."
                )
            mask = torch.where(known, mask, self._token_embedder.core.token_mask(inputs))
            encoded = self._token_embedder.encode(inputs, mask & ~known)
            vectors = torch.where(known.unsqueeze(-1), vectors, encoded)
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise InputError("word_inputs: padding (id 0) must come after the tokens of a row, not between them.")
        vectors = vectors.masked_fill(~mask.unsqueeze(-1), 0.0)
        return add_marks(vectors, mask, *self._token_embedder.encode_marks())


def load_files(options_file: File | None, weight_file: File | None) -> BiLM:
    """Load official files from two local paths, or the model in the package if both are None.

    Files that are named by their published addresses must be in the folder TORCHELMO_HOME, or in a folder there.
    """
    if options_file is None and weight_file is None:
        bilm = torchelmo.load()
    elif options_file is None or weight_file is None:
        missing = "options_file" if options_file is None else "weight_file"
        raise ConfigError(
            f"{missing}: expected a path, got None. Give both files, or neither for the model in the package."
        )
    else:
        bilm = torchelmo.load_official(*_find_files(options_file, weight_file))
    if bilm.config.input != "characters" or bilm.config.direction != "both":
        raise ConfigError(
            "AllenNLP's ELMo reads characters in both directions, but this model has input = "
            f"{bilm.config.input!r} and direction = {bilm.config.direction!r}. Use torchelmo.Elmo for it."
        )
    return bilm


def _find_files(options_file: File, weight_file: File) -> tuple[File, File]:
    """Return the paths of two files; those that are given as addresses are looked up by their names."""
    files = {"options_file": options_file, "weight_file": weight_file}
    names = {argument: str(file).rsplit("/", 1)[-1] for argument, file in files.items() if "://" in str(file)}
    if not names:
        return options_file, weight_file
    home = model_home()
    for folder in (home, *sorted(home.glob("*/"))):
        found = {argument: folder / name for argument, name in names.items()}
        if all(path.is_file() for path in found.values()):  # in one folder: options have the same name for many models
            return found.get("options_file", options_file), found.get("weight_file", weight_file)
    given = " and ".join(f"{argument} = {files[argument]}" for argument in names)
    raise MissingFileError(
        f"Expected the paths of local files, got {given}. Nothing is downloaded: put {' and '.join(names.values())} "
        f"into {home} or a folder in it (TORCHELMO_HOME chooses another folder), or give local paths."
    )
