"""The bidirectional language model: characters → token vectors → layers, with state in and out.

h_0 = [x ; x]        h_j = [→h_j ; ←h_j]        →h_j = LSTM_j(→h_{j−1}) (+ →h_{j−1} if j > 1)

A joint model reads both directions from the second layer on: →h_j = LSTM_j(h_{j−1}) + →h_{j−1}.
"""

import hashlib
import json
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.encoder import CharCNN, build_encoder, normal_
from torchelmo.bilm.fast.encoder import unique_rows
from torchelmo.bilm.fast.inference import FastInference
from torchelmo.bilm.fast.int8 import HalfLinear, Int8LSTM, quantize_module, replace_module, to_half
from torchelmo.bilm.folder import HubMethods, MixWeights, ModelCard, write_folder
from torchelmo.bilm.lstm import LSTMState, ProjectedLSTM
from torchelmo.config import config_to_dict
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.characters import Symbols
from torchelmo.text.vocabulary import BEGIN, END, Vocabulary

ExecutionPath = Literal["auto", "reference", "fast"]


class BiLMState(NamedTuple):
    """The state of all LSTMs; the directions are in the order of `BiLMConfig.directions`."""

    hidden: Tensor  # (n_directions, n_layers, batch, projection_dim)
    cell: Tensor  # (n_directions, n_layers, batch, cell_dim)


class BiLMOutput(NamedTuple):
    """What `BiLM` returns."""

    layers: Tensor  # (n_layers + 1, batch, tokens, dim), 0 at padded positions
    mask: Tensor  # (batch, tokens), true at real tokens and sentence marks
    state: BiLMState  # after the last token of each row, in each direction


class BiLM(HubMethods, nn.Module):
    """The bidirectional language model of the ELMo paper.

    A new model has random weights; `torchelmo.load` returns a trained one.

    Args:
        config: The shape of the model.
        vocabulary: The words of the softmax, or of a model that reads whole words.
        symbols: The characters and words that a model with input = "characters+words" knows.

    Raises:
        InputError: The vocabulary does not have as many words as the model, or the symbols do not match it.

    Example:
        >>> import torch
        >>> from torchelmo import BiLM, BiLMConfig
        >>> bilm = BiLM(BiLMConfig(filters=((1, 4), (2, 4)), projection_dim=8, cell_dim=16, n_highway=1))
        >>> ids = torch.randint(1, 261, (2, 5, 50))  # 2 sentences of 5 tokens
        >>> bilm(ids).layers.shape  # n_layers + 1, batch, tokens + 2, dim
        torch.Size([3, 2, 7, 16])
    """

    def __init__(
        self, config: BiLMConfig, vocabulary: Vocabulary | None = None, symbols: Symbols | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.symbols = symbols
        self.vocabulary = vocabulary
        self.origin = "random weights"  # how the weights were made; saved with the model
        self.source = "this model"  # the folder or file that the model was loaded from, for error messages
        self.official_options: dict[str, Any] | None = None  # options.json as it was read, to be written back
        self.lang: str | None = None  # language of the training text, whose rules split it into tokens
        self.pretokenized = False  # the training text was already split into tokens
        self.mixes: Sequence[MixWeights] = ()  # that were published with the model
        self.encoder = build_encoder(config, symbols)
        for direction in config.directions:
            lstms = nn.ModuleList(_build_lstm(config, direction, j) for j in range(config.n_layers))
            self.add_module(f"{direction}_lstms", lstms)
        self.softmax: Softmax | None = None
        masked = config.objective == "masked"
        if config.softmax_words:
            tied = self.encoder.embedding if config.tied_softmax else None
            self.softmax = Softmax(config.softmax_words, config.projection_dim, tied, joint=masked)
        # In place of the token vectors of hidden words. It belongs to no sequence of characters.
        self.mask_vector = nn.Parameter(torch.zeros(config.projection_dim)) if masked else None
        self._fast = FastInference(self.encoder, self._lstm_modules(), residual=config.residual)
        self._check_vocabulary()

    def forward(
        self,
        ids: Tensor,
        state: BiLMState | None = None,
        *,
        boundaries: bool = True,
        masked: Tensor | None = None,
        path: ExecutionPath = "auto",
    ) -> BiLMOutput:
        """Run all layers.

        Args:
            ids: Character ids (batch, tokens, max_characters), or word ids (batch, tokens); 0 is padding.
            state: The state of an earlier output, to continue from; default: zero.
            boundaries: Add `<S>` and `</S>` around every row that has a token. False takes the ids as they are, for
                running text that contains its own marks.
            masked: (batch, tokens), true at tokens to hide from a model with objective = "masked".
            path: "reference" follows the equations, "fast" computes the same without gradients, and "auto" is "fast"
                unless gradients are needed.

        Returns:
            Layers (n_layers + 1, batch, tokens + 2, dim), mask and state.

        Raises:
            InputError: The ids or the state do not fit the model.
        """
        mask = self.token_mask(ids)
        if boundaries:
            ids, mask = self.add_boundaries(ids, mask)
        x = self.encode_tokens(ids, mask, path=path)
        if masked is not None:
            x = self.mask_tokens(x, nn.functional.pad(masked, (1, 1)) if boundaries else masked)
        return self.run_layers(x, mask, state, path=path)

    def mask_tokens(self, x: Tensor, masked: Tensor) -> Tensor:
        """Replace token vectors (..., projection_dim) by the mask vector where `masked` (...) is true."""
        if self.mask_vector is None:
            raise InputError(f"{self.source}: expected a model with objective = 'masked' to hide tokens from.")
        if masked.shape != x.shape[:-1] or masked.dtype != torch.bool:
            found = f"{tuple(masked.shape)} of {masked.dtype}"
            raise InputError(f"BiLM: expected masked, {tuple(x.shape[:-1])} booleans, got {found}.")
        return torch.where(masked.unsqueeze(-1), self.mask_vector, x)

    def token_ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Return the ids that the model reads, on its device; 0 is padding.

        Args:
            sentences: Lists of tokens.

        Returns:
            Character ids (n_sentences, longest, max_characters), or word ids (n_sentences, longest): word i of the
            vocabulary is i + 1.

        Raises:
            InputError: The model reads whole words but has no vocabulary.
        """
        device = next(self.parameters()).device
        if isinstance(self.encoder, CharCNN):
            return torch.from_numpy(self.encoder.characters.batch(sentences)).to(device)
        if self.vocabulary is None:
            raise InputError(
                f"{self.source}: expected the vocabulary of a model that reads whole words, found none. "
                "Put its vocab.txt into the model folder, or give it to load_official."
            )
        ids = torch.zeros(len(sentences), max(map(len, sentences), default=0), dtype=torch.int64)
        for row, sentence in enumerate(sentences):
            ids[row, : len(sentence)] = torch.from_numpy(self.vocabulary.ids(sentence) + 1)
        return ids.to(device)

    def token_mask(self, ids: Tensor) -> Tensor:
        """Check ids, and return (batch, tokens), true at real tokens."""
        config = self.config
        characters = config.input != "words"
        expected = f"(batch, tokens{''.join(f', {n}' for n in config.id_shape)})"
        if not isinstance(ids, Tensor):
            raise InputError(f"BiLM: expected a tensor of shape {expected}, got {type(ids).__name__}.")
        if ids.dim() != (3 if characters else 2) or ids.shape[2:] != config.id_shape:
            raise InputError(f"BiLM: expected ids of shape {expected}, got {tuple(ids.shape)}.")
        if ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"BiLM: expected int64 ids, got {ids.dtype}. Use Elmo.encode to make them.")
        parts = [(ids, config.n_words + 1)]
        if characters:
            parts = [(ids[..., : config.max_characters], config.n_characters)]
        if config.input == "characters+words":
            parts += [(ids[..., -1], config.n_words + 1)]
        for part, limit in parts:
            if part.numel() and not (0 <= int(part.min()) and int(part.max()) < limit):
                raise InputError(
                    f"BiLM: expected ids from 0 to {limit - 1}, got {int(part.min())} to {int(part.max())}."
                )
        mask = (ids > 0).any(dim=-1) if characters else ids > 0
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise InputError("BiLM: padding (id 0) must come after the tokens of a row, not before or between them.")
        return mask

    def add_boundaries(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Add `<S>` before and `</S>` after the tokens of every row; rows of padding only stay as they are."""
        batch, tokens = mask.shape
        begin, end = self.boundary_ids(ids.device)
        lengths = mask.sum(dim=1)
        rows = torch.nonzero(lengths).squeeze(1)
        wrapped = ids.new_zeros(batch, tokens + 2, *ids.shape[2:])
        wrapped[:, 1:-1] = ids
        wrapped[rows, 0] = begin.to(ids.dtype)
        wrapped[rows, lengths[rows] + 1] = end.to(ids.dtype)
        total = torch.where(lengths > 0, lengths + 2, 0)
        return wrapped, torch.arange(tokens + 2, device=ids.device) < total.unsqueeze(1)

    def boundary_ids(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return the ids of `<S>` and `</S>`: rows of characters, or two word ids."""
        if isinstance(self.encoder, CharCNN):
            marks = [torch.from_numpy(self.encoder.characters.mark(name)) for name in (BEGIN, END)]
        else:
            # Without a vocabulary the marks are assumed to be the first words, as in all official files.
            places = self.vocabulary.ids([BEGIN, END]) if self.vocabulary else (0, 1)
            marks = [torch.tensor(int(place) + 1) for place in places]
        return marks[0].to(device), marks[1].to(device)

    def encode_tokens(self, ids: Tensor, mask: Tensor, *, path: ExecutionPath = "auto") -> Tensor:
        """Return token vectors (batch, tokens, projection_dim); every distinct word of the batch is encoded once."""
        fast = self._use_fast(path, self.encoder.parameters())
        encode = self.fast.encode if fast else self.encoder
        places = mask.flatten().nonzero().squeeze(1)
        real = ids.flatten(0, 1)[places]
        if self.config.input == "words":
            vectors = encode(real)
        else:
            words, position = unique_rows(real)
            vectors = encode(words)[position]
        x = vectors.new_zeros(mask.numel(), self.config.projection_dim)
        return x.index_copy(0, places, vectors).view(*mask.shape, self.config.projection_dim)

    def run_layers(
        self,
        x: Tensor,
        mask: Tensor,
        state: BiLMState | None = None,
        *,
        path: ExecutionPath = "auto",
    ) -> BiLMOutput:
        """Run the LSTMs on token vectors (batch, tokens, projection_dim), and return all layers."""
        self.check_state(state, len(x))
        weights = (weight for modules in self._lstm_modules() for weight in modules.parameters())
        if not self._use_fast(path, [x, *(state or ()), *weights]):
            return self._run_reference(x, mask, state)
        places = mask.flatten().nonzero().squeeze(1)
        flat, after = self.fast.run(x.flatten(0, 1)[places], mask.sum(dim=1).tolist(), state)
        layers = flat.new_zeros(len(flat), mask.numel(), flat.shape[-1]).index_copy_(1, places, flat)
        return BiLMOutput(layers.view(len(flat), *mask.shape, flat.shape[-1]), mask, BiLMState(*after))

    @property
    def fast(self) -> FastInference:
        """The fast implementation of this model for inference."""
        modules = self._lstm_modules()
        if self._fast.encoder is not self.encoder or any(a is not b for a, b in zip(self._fast.directions, modules)):
            # A module was replaced, or this is a replica that DataParallel made.
            self._fast = FastInference(self.encoder, modules, residual=self.config.residual, tuning=self._fast.tuning)
        return self._fast

    def _use_fast(self, path: ExecutionPath, tensors: Iterable[Tensor]) -> bool:
        """Return whether to take the fast path; "auto" takes it unless one of the tensors needs a gradient."""
        known = typing.get_args(ExecutionPath)
        if path not in known:
            raise ConfigError(f"path: expected one of {', '.join(map(repr, known))}, got {path!r}.")
        if path != "auto":
            return path == "fast"
        return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))

    def _run_reference(self, x: Tensor, mask: Tensor, state: BiLMState | None) -> BiLMOutput:
        config = self.config
        below = [x] * len(config.directions)  # the layer below, by direction
        layers = [torch.cat(below, dim=-1)]
        ends: list[list[LSTMState]] = []  # by layer and direction
        for j in range(config.n_layers):
            inputs = [layers[-1]] * len(below) if config.joint and j > 0 else below
            results = []
            for d, direction in enumerate(config.directions):
                start = None if state is None else LSTMState(state.hidden[d, j], state.cell[d, j])
                results.append(self.direction_lstms(direction)[j](inputs[d], mask, start))
            below = [out + under if config.residual and j > 0 else out for (out, _), under in zip(results, below)]
            layers.append(torch.cat(below, dim=-1))
            ends.append([end for _, end in results])
        after = (torch.stack([torch.stack([end[part] for end in each]) for each in ends], dim=1) for part in (0, 1))
        return BiLMOutput(torch.stack(layers), mask, BiLMState(*after))

    def direction_lstms(self, direction: str) -> list[ProjectedLSTM]:
        """Return the LSTMs of one direction, first layer first."""
        return list(getattr(self, f"{direction}_lstms"))

    def _lstm_modules(self) -> list[nn.ModuleList]:
        return [getattr(self, f"{direction}_lstms") for direction in self.config.directions]

    def zero_state(self, batch: int) -> BiLMState:
        """Return the state from which every sentence starts unless another one is given."""
        shape = (len(self.config.directions), self.config.n_layers, batch)
        like = next(self.parameters())
        return BiLMState(
            like.new_zeros(*shape, self.config.projection_dim), like.new_zeros(*shape, self.config.cell_dim)
        )

    def check_state(self, state: BiLMState | None, batch: int) -> None:
        """Raise an InputError if a state does not belong to this model and batch size."""
        if state is None:
            return
        if not isinstance(state, BiLMState):
            raise InputError(f"BiLM: expected the state of an earlier output, a BiLMState, got {type(state).__name__}.")
        config = self.config
        for name, dim in (("hidden", config.projection_dim), ("cell", config.cell_dim)):
            expected = (len(config.directions), config.n_layers, batch, dim)
            found = tuple(getattr(state, name).shape)
            if found != expected:
                raise InputError(f"BiLM: expected state.{name} of shape {expected}, got {found}.")

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write a model folder: config.json + model.safetensors (+ vocab.txt). `torchelmo.load` reads it.

        A model that is already in the folder is replaced. All files are written, or none.

        Args:
            folder: The folder; it is created if necessary.
            dtype: The type of the numbers in the file, such as torch.float16; default: that of the parameters.
                torch.int8 rounds the weights as `quantize` does, and those of the softmax to float16.

        Raises:
            OutputExistsError: The folder contains files, but no model. It is left as it is.
            OutputError: The folder cannot be written.
        """
        int8 = dtype == torch.int8 or (dtype is None and self.is_int8)
        about = self.config, self.vocabulary, self.origin, self.official_options, self.lang, self.pretokenized
        card = ModelCard(*about, self.symbols, int8, self.mixes)
        tensors = (self if int8 else self.dequantized()).own_tensors()
        for name, module in self._roundable_modules() if int8 and not self.is_int8 else []:
            tensors = replace_module(tensors, name, quantize_module(module))
        if int8 and "softmax.weight" in tensors:
            tensors["softmax.weight"] = to_half(tensors["softmax.weight"])
        write_folder(folder, card, tensors, dtype=None if int8 else dtype)

    @property
    def is_int8(self) -> bool:
        """Whether the weights of the LSTMs are int8."""
        return any(isinstance(module, Int8LSTM) for module in self.modules())

    def quantize(self) -> None:
        """Round the weights of the LSTMs to int8, in place, with one scale for each output channel.

        The weights of highway layers and of the character projection are rounded to float16. The model needs less than
        a third of the memory, and can no longer be trained. On CPUs with VNNI instructions it runs as with
        `precision="int8"`, and otherwise in float32 with the rounded weights.
        """
        for name, module in [] if self.is_int8 else self._roundable_modules():
            parent, _, child = name.rpartition(".")
            self.get_submodule(parent).add_module(child, quantize_module(module))

    def dequantized(self) -> "BiLM":
        """Return a copy with all weights in float32; the model itself if it is not in int8."""
        if not self.is_int8:
            return self
        tensors = self.own_tensors()
        for name, module in self.named_modules():
            if isinstance(module, (Int8LSTM, HalfLinear)):
                tensors = replace_module(tensors, name, module.dequantize())
        with torch.device("meta"):
            bilm = BiLM(self.config, self.vocabulary, self.symbols)
        bilm.assign_parameters(tensors)
        for attribute in ("origin", "source", "official_options", "lang", "pretokenized", "mixes"):
            setattr(bilm, attribute, getattr(self, attribute))
        return bilm

    def _roundable_modules(self) -> list[tuple[str, nn.Module]]:
        """Return the modules with large weights by name: LSTMs, and the linear layers of the encoder."""
        return [(name, one) for name, one in self.named_modules() if isinstance(one, (ProjectedLSTM, nn.Linear))]

    def own_tensors(self) -> dict[str, Tensor]:
        """Return all parameters by name; a tied softmax appears only once."""
        tied = {"softmax.weight"} if self.config.tied_softmax else set()
        return {name: tensor for name, tensor in self.state_dict().items() if name not in tied}

    def assign_parameters(self, tensors: Mapping[str, Tensor]) -> None:
        """Assign the parameters of a model that was built on the meta device, without copying them."""
        tensors = dict(tensors)
        if self.config.tied_softmax:
            tensors["softmax.weight"] = tensors["encoder.embedding"]
        self.load_state_dict(tensors, assign=True)
        for parameter in self.parameters():
            parameter.requires_grad_(True)
        if self.config.tied_softmax and isinstance(self.softmax, Softmax):
            self.softmax.weight = self.encoder.embedding

    def fingerprint(self) -> str:
        """Return the SHA-256 of the configuration and weights; equal for models that produce equal vectors."""
        config = config_to_dict(self.config)
        if self.config.objective == "bilm":  # as before there were other objectives
            del config["objective"], config["joint"]
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        for name, tensor in sorted(self.own_tensors().items()):
            if not name.startswith("softmax."):
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().data.cast("B"))
        if self.vocabulary is not None and self.config.input == "words":
            digest.update("\n".join(self.vocabulary).encode())
        if self.symbols is not None:
            digest.update(json.dumps(self.symbols).encode())
        return digest.hexdigest()

    def _check_vocabulary(self) -> None:
        size = self.config.softmax_words or self.config.n_words
        if self.vocabulary is not None and size and len(self.vocabulary) != size:
            raise InputError(
                f"{self.vocabulary.where}: expected the {size} words of the model, found {len(self.vocabulary)}. "
                "Is it the vocabulary of another model?"
            )


class Softmax(nn.Module):
    """p(w | h) = softmax(W h + b)_w, shared by both directions; words are ordered by decreasing frequency.

    A masked model predicts a word from both directions at its own position: h = P [→h ; ←h], at first →h + ←h.
    """

    def __init__(self, n_words: int, dim: int, weight: nn.Parameter | None = None, *, joint: bool = False) -> None:
        super().__init__()
        self.projection = nn.Parameter(torch.empty(2 * dim, dim)) if joint else None
        if self.projection is not None and not self.projection.is_meta:  # as for `normal_`
            self.projection.data.copy_(torch.eye(dim).repeat(2, 1))
        self.weight = nn.Parameter(torch.empty(n_words, dim)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(n_words))
        if weight is None:
            normal_(self.weight, 1.0 / math.sqrt(dim))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities: (..., projection_dim), or (..., dim) for a masked model -> (..., n_words)."""
        return torch.log_softmax(nn.functional.linear(self.project(hidden), self.weight, self.bias), dim=-1)

    def project(self, hidden: Tensor) -> Tensor:
        """Return the vectors (..., projection_dim) that are multiplied with the weights of the words."""
        return hidden if self.projection is None else hidden @ self.projection

    def start_from_counts(self, counts: Tensor) -> None:
        """Set the bias so that hidden states of 0 predict the words' frequencies; a count of 0 is taken as 1."""
        with torch.no_grad():
            shares = counts.double().clamp_min(1.0)
            self.bias.copy_((shares / shares.sum()).log())


def _build_lstm(config: BiLMConfig, direction: str, layer: int) -> ProjectedLSTM:
    return ProjectedLSTM(
        config.input_dim(layer),
        config.cell_dim,
        config.projection_dim,
        cell_clip=config.cell_clip,
        projection_clip=config.projection_clip,
        backward=direction == "backward",
    )
