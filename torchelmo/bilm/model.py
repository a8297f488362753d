"""The bidirectional language model: characters → token vectors → layers, with state in and out.

h_0 = [x ; x]        h_j = [→h_j ; ←h_j]        →h_j = LSTM_j(→h_{j−1}) (+ →h_{j−1} where j > 1)
"""

import hashlib
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.encoder import CharCNN, WordEmbedding
from torchelmo.bilm.fast.cache import Watch, WeightsKey
from torchelmo.bilm.fast.encoder import FastEncoder, unique_rows
from torchelmo.bilm.fast.inference import PackedBiLM
from torchelmo.bilm.fast.products import Precision
from torchelmo.bilm.folder import ModelCard, write_folder
from torchelmo.bilm.lstm import LSTMState, ProjectedLSTM
from torchelmo.bilm.softmax import Softmax
from torchelmo.config import config_to_dict
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.characters import CharacterEncoder
from torchelmo.text.vocabulary import BEGIN, END, Vocabulary

T = TypeVar("T")
ExecutionPath = Literal["auto", "plain", "packed"]


class BiLMState(NamedTuple):
    """What the LSTMs remember; directions come in the order of `config.directions`."""

    hidden: Tensor  # (n_directions, n_layers, batch, projection_dim)
    cell: Tensor  # (n_directions, n_layers, batch, cell_dim)


class BiLMOutput(NamedTuple):
    layers: Tensor  # (n_layers + 1, batch, tokens, dim), 0 at padded positions
    mask: Tensor  # (batch, tokens), true at real tokens and sentence marks
    state: BiLMState  # after the last token of each row, in each direction


class BiLM(nn.Module):
    """ids (batch, tokens, max_characters) -> all layers (n_layers + 1, batch, tokens + 2, dim)."""

    def __init__(self, config: BiLMConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.origin = "random weights"  # where the weights came from, for people
        self.official_options: dict[str, Any] | None = None  # options.json as it was read, to be written back
        self.lang: str | None = None  # language of the training text, whose rules split it into tokens
        self.pretokenized = False  # the training text was already split into tokens
        self.encoder: CharCNN | WordEmbedding = (
            CharCNN(config) if config.input == "characters" else WordEmbedding(config)
        )
        for direction in config.directions:
            lstms = nn.ModuleList(_build_lstm(config, direction) for _ in range(config.n_layers))
            self.add_module(f"{direction}_lstms", lstms)
        self.softmax: Softmax | None = None
        if config.softmax_words:
            tied = self.encoder.embedding if config.tied_softmax else None
            self.softmax = Softmax(config.softmax_words, config.projection_dim, tied)
        self._fast: dict[str, tuple[WeightsKey, Any]] = {}  # what the fast paths made of the weights
        self._watches = {"encoder": Watch(), "lstms": Watch()}
        self._check_vocabulary()

    def forward(
        self,
        ids: Tensor,
        state: BiLMState | None = None,
        *,
        boundaries: bool = True,
        path: ExecutionPath = "auto",
    ) -> BiLMOutput:
        """Run all layers. `<S>` and `</S>` are added around every row that has a token.

        `boundaries=False` takes the ids as they are (a running text that holds its own marks). `path` chooses
        how the same numbers are computed: "plain" is the reference, "packed" the fast one for inference.
        """
        mask = self.mask_of(ids)
        if boundaries:
            ids, mask = self.add_boundaries(ids, mask)
        return self.run_layers(self.encode_tokens(ids, mask, path=path), mask, state, path=path)

    def mask_of(self, ids: Tensor) -> Tensor:
        """(batch, tokens): true at real tokens. Checks the shape and that padding stands at the end."""
        config = self.config
        characters = config.input == "characters"
        expected = f"(batch, tokens, {config.max_characters})" if characters else "(batch, tokens)"
        if not isinstance(ids, Tensor):
            raise InputError(f"BiLM: expected a tensor of shape {expected}, got {type(ids).__name__}.")
        if ids.dim() != (3 if characters else 2) or (characters and ids.shape[-1] != config.max_characters):
            raise InputError(f"BiLM: expected ids of shape {expected}, got {tuple(ids.shape)}.")
        if ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"BiLM: expected int64 ids, got {ids.dtype}. Use Elmo.encode to make them.")
        limit = config.n_characters if characters else config.n_words + 1
        if ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) < limit):
            raise InputError(f"BiLM: expected ids from 0 to {limit - 1}, got {int(ids.min())} to {int(ids.max())}.")
        mask = (ids > 0).any(dim=-1) if characters else ids > 0
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise InputError("BiLM: padding (id 0) must stand after the tokens of a row, not before or between them.")
        return mask

    def add_boundaries(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Put `<S>` before and `</S>` after the tokens of every row; rows of padding only stay as they are."""
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
        """The ids of `<S>` and `</S>`: rows of characters, or two word ids."""
        if self.config.input == "characters":
            encoder = CharacterEncoder(self.config.max_characters)
            marks = [torch.from_numpy(encoder.mark(name)) for name in (BEGIN, END)]
        else:
            # Files without a vocabulary have the marks first, as all official ones do.
            places = self.vocabulary.ids([BEGIN, END]) if self.vocabulary else (0, 1)
            marks = [torch.tensor(int(place) + 1) for place in places]
        return marks[0].to(device), marks[1].to(device)

    def encode_tokens(self, ids: Tensor, mask: Tensor, *, path: ExecutionPath = "auto") -> Tensor:
        """(batch, tokens, projection_dim): every distinct word of the batch is encoded once."""
        encode = self.encoder if self._choose(path, self.encoder.parameters()) == "plain" else self.encode_words
        places = mask.flatten().nonzero().squeeze(1)
        real = ids.flatten(0, 1)[places]
        if self.config.input == "words":
            vectors = encode(real)
        else:
            words, place = unique_rows(real)
            vectors = encode(words)[place]
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
        """Token vectors (batch, tokens, projection_dim) -> all layers."""
        self.check_state(state, len(x))
        if self._choose(path, [x, *(state or ()), *self._lstm_parameters()]) == "plain":
            return self._run_plain(x, mask, state)
        places = mask.flatten().nonzero().squeeze(1)
        flat, after = self.run_flat(x.flatten(0, 1)[places], mask.sum(dim=1).tolist(), state)
        layers = flat.new_zeros(len(flat), mask.numel(), flat.shape[-1]).index_copy_(1, places, flat)
        return BiLMOutput(layers.view(len(flat), *mask.shape, flat.shape[-1]), mask, after)

    def run_flat(
        self,
        x: Tensor,
        lengths: Sequence[int],
        state: BiLMState | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Tensor, BiLMState]:
        """The packed path itself, without padding and without gradients.

        (n_tokens, projection_dim), sentence after sentence -> (n_layers + 1, n_tokens, dim) in the same order.
        """
        before = self.zero_state(len(lengths)) if state is None else state
        with torch.autocast(x.device.type, enabled=False):  # the fast paths choose their precision themselves
            layers, hidden, cell = self._packed_lstms(precision).run(x.detach(), lengths, *before)
        return layers, BiLMState(hidden, cell)

    def encode_words(self, ids: Tensor, *, precision: Precision = "float32") -> Tensor:
        """(n, max_characters) or (n,) ids of distinct words -> (n, projection_dim), fast and without gradients."""
        if isinstance(self.encoder, WordEmbedding):
            vectors: Tensor = self.encoder(ids)
            return vectors.detach()
        with torch.autocast(ids.device.type, enabled=False):
            return self._fast_encoder(precision)(ids)

    def _fast_encoder(self, precision: Precision) -> FastEncoder:
        encoder = self.encoder
        assert isinstance(encoder, CharCNN)
        return self._prepared(f"encoder {precision}", self.encoder_key(), lambda: FastEncoder(encoder, precision))

    def _packed_lstms(self, precision: Precision) -> PackedBiLM:
        lstms = [self.direction_lstms(direction) for direction in self.config.directions]
        return self._prepared(
            f"lstms {precision}",
            self._watches["lstms"](self._lstm_parameters()),
            lambda: PackedBiLM(lstms, residual=self.config.residual, precision=precision),
        )

    def encoder_key(self) -> WeightsKey:
        """Changes with the weights of the encoder: word vectors that were kept belong to one key."""
        return self._watches["encoder"](self.encoder.parameters())

    def _prepared(self, name: str, key: WeightsKey, prepare: Callable[[], T]) -> T:
        """What a fast path made of the weights; made anew when a parameter was replaced or written to."""
        kept = self._fast.get(name)
        if kept is None or kept[0] != key:
            self._fast.pop(name, None)  # before the new one is made: never three copies in memory
            kept = self._fast[name] = (key, prepare())
        made: T = kept[1]
        return made

    def _lstm_parameters(self) -> Iterator[nn.Parameter]:
        for direction in self.config.directions:
            for lstm in self.direction_lstms(direction):
                yield from lstm.parameters()

    def _choose(self, path: ExecutionPath, tensors: Iterable[Tensor]) -> ExecutionPath:
        """ "auto" is the packed path, unless gradients are to flow to one of the tensors."""
        known = typing.get_args(ExecutionPath)
        if path not in known:
            raise ConfigError(f"path: expected one of {', '.join(map(repr, known))}, got {path!r}.")
        if path != "auto":
            return path
        return "plain" if torch.is_grad_enabled() and any(t.requires_grad for t in tensors) else "packed"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fast": {}}  # a copy prepares its own

    def _run_plain(self, x: Tensor, mask: Tensor, state: BiLMState | None) -> BiLMOutput:
        tracks: list[list[Tensor]] = []  # for each direction, its layers
        states: list[list[LSTMState]] = []
        for d, direction in enumerate(self.config.directions):
            track, ends = [x], []
            for j, lstm in enumerate(self.direction_lstms(direction)):
                start = None if state is None else LSTMState(state.hidden[d, j], state.cell[d, j])
                hidden, end = lstm(track[-1], mask, start)
                track.append(hidden + track[-1] if self.config.residual and j > 0 else hidden)
                ends.append(end)
            tracks.append(track)
            states.append(ends)
        layers = torch.stack([torch.cat(parts, dim=-1) for parts in zip(*tracks)])
        return BiLMOutput(
            layers,
            mask,
            BiLMState(
                torch.stack([torch.stack([end.hidden for end in ends]) for ends in states]),
                torch.stack([torch.stack([end.cell for end in ends]) for ends in states]),
            ),
        )

    def direction_lstms(self, direction: str) -> list[ProjectedLSTM]:
        """The LSTMs of one direction, first layer first."""
        return list(getattr(self, f"{direction}_lstms"))

    def zero_state(self, batch: int) -> BiLMState:
        """What every sentence starts from, unless a state is given."""
        shape = (len(self.config.directions), self.config.n_layers, batch)
        like = next(self.parameters())
        return BiLMState(
            like.new_zeros(*shape, self.config.projection_dim), like.new_zeros(*shape, self.config.cell_dim)
        )

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write a model folder: config.json + model.safetensors (+ vocab.txt). `dtype` may be float16."""
        card = ModelCard(self.config, self.vocabulary, self.origin, self.official_options, self.lang, self.pretokenized)
        write_folder(folder, card, self.own_tensors(), dtype=dtype)

    def own_tensors(self) -> dict[str, Tensor]:
        """Return all parameters by name; a tied softmax appears only once."""
        tied = {"softmax.weight"} if self.config.tied_softmax else set()
        return {name: tensor for name, tensor in self.state_dict().items() if name not in tied}

    def assign_parameters(self, tensors: Mapping[str, Tensor]) -> None:
        """Give a model that was built on the meta device its parameters, without another copy."""
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
        digest = hashlib.sha256(json.dumps(config_to_dict(self.config), sort_keys=True).encode())
        for name, tensor in sorted(self.own_tensors().items()):
            if not name.startswith("softmax."):
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().data.cast("B"))
        if self.vocabulary is not None and self.config.input == "words":
            digest.update("\n".join(self.vocabulary).encode())
        return digest.hexdigest()

    def check_state(self, state: BiLMState | None, batch: int) -> None:
        """A state that is given must be of this model and for this batch."""
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

    def _check_vocabulary(self) -> None:
        size = self.config.softmax_words or self.config.n_words
        if self.vocabulary is not None and size and len(self.vocabulary) != size:
            raise InputError(
                f"{self.vocabulary.where}: expected the {size} words of the model, found {len(self.vocabulary)}. "
                "Is it the vocabulary of another model?"
            )


def _build_lstm(config: BiLMConfig, direction: str) -> ProjectedLSTM:
    return ProjectedLSTM(
        config.projection_dim,
        config.cell_dim,
        config.projection_dim,
        cell_clip=config.cell_clip,
        projection_clip=config.projection_clip,
        backward=direction == "backward",
    )
