"""ELMo from its equations, in plain NumPy and float64: what the package is held to.

It shares no code with the package and reads its parameters from arrays in the official names and shapes. One
sentence at a time, one token at a time, one character at a time: slow, and plain to see through.
"""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class State(NamedTuple):
    hidden: Array  # (n_layers, projection_dim)
    cell: Array  # (n_layers, cell_dim)


class Oracle:
    """`direction` may leave one of the two directions out; `vocabulary` is for models that read words.

    The layers of a `joint` model read both directions of the layer below, from the second layer on.
    """

    def __init__(
        self,
        options: dict[str, Any],
        arrays: dict[str, Array],
        *,
        direction: str = "both",
        vocabulary: list[str] | None = None,
        joint: bool = False,
    ) -> None:
        self.options, self.joint = options, joint
        self.arrays = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
        self.directions = {"both": (0, 1), "forward": (0,), "backward": (1,)}[direction]
        self.vocabulary = vocabulary
        self._vectors: dict[str, Array] = {}
        self.cell_clips = self.projection_clips = 0  # how often a value was beyond its limit

    def layers(
        self, tokens: list[str], states: dict[int, State] | None = None, *, hidden: tuple[int, ...] = ()
    ) -> tuple[Array, dict[int, State]]:
        """The layers (n_layers + 1, n_tokens + 2, dim) of one sentence, and the state of each direction after it.

        The tokens `hidden`, counted from 0 without the marks, are read as the mask vector.
        """
        lstm = self.options["lstm"]
        x = np.stack([self.token_vector(token) for token in ["<S>", *tokens, "</S>"]])
        for k in hidden:
            x[k + 1] = self.arrays["mask_vector"]
        below = dict.fromkeys(self.directions, x)
        layers = [np.concatenate([x] * len(below), axis=-1)]
        after: dict[int, State] = {}
        for d in self.directions:
            start = (states or {}).get(d)
            zero = State(
                np.zeros((lstm["n_layers"], lstm["projection_dim"])), np.zeros((lstm["n_layers"], lstm["dim"]))
            )
            after[d] = zero if start is None else State(start.hidden.copy(), start.cell.copy())
        for j in range(lstm["n_layers"]):
            above = {}
            for d in self.directions:
                state, outputs = after[d], np.zeros_like(below[d])
                order = range(len(x)) if d == 0 else reversed(range(len(x)))
                for t in order:
                    read = layers[j][t] if self.joint and j > 0 else below[d][t]
                    state.hidden[j], state.cell[j] = self.lstm_step(d, j, read, state.hidden[j], state.cell[j])
                    outputs[t] = state.hidden[j]
                    if lstm.get("use_skip_connections") and j > 0:
                        outputs[t] = outputs[t] + below[d][t]
                above[d] = outputs
            below = above
            layers.append(np.concatenate(list(below.values()), axis=-1))
        return np.stack(layers), after

    def lstm_step(self, d: int, j: int, x: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
        lstm = self.options["lstm"]
        where = f"RNN_{d}/RNN/MultiRNNCell/Cell{j}/LSTMCell"
        gates = np.concatenate([x, hidden]) @ self.arrays[f"{where}/W_0"] + self.arrays[f"{where}/B"]
        n = lstm["dim"]
        i, g, f, o = gates[:n], gates[n : 2 * n], gates[2 * n : 3 * n], gates[3 * n :]
        cell = sigmoid(f + 1.0) * cell + sigmoid(i) * np.tanh(g)
        if lstm.get("cell_clip"):
            self.cell_clips += int((np.abs(cell) > lstm["cell_clip"]).sum())
            cell = np.minimum(np.maximum(cell, -lstm["cell_clip"]), lstm["cell_clip"])
        hidden = (sigmoid(o) * np.tanh(cell)) @ self.arrays[f"{where}/W_P_0"]
        if lstm.get("proj_clip"):
            self.projection_clips += int((np.abs(hidden) > lstm["proj_clip"]).sum())
            hidden = np.minimum(np.maximum(hidden, -lstm["proj_clip"]), lstm["proj_clip"])
        return hidden, cell

    def token_vector(self, token: str) -> Array:
        """The context-free vector of a token; worked out once, for the tests have little time."""
        if token not in self._vectors:
            self._vectors[token] = self._token_vector(token)
        return self._vectors[token]

    def _token_vector(self, token: str) -> Array:
        if self.vocabulary is not None:
            place = self.vocabulary.index(token if token in self.vocabulary else "<UNK>")
            return self.arrays["embedding"][place]
        cnn = self.options["char_cnn"]
        ids = character_ids(token, cnn.get("max_characters_per_token", 50))
        embedded = np.stack([self.arrays["char_embed"][i] for i in ids])
        values: list[float] = []
        for i, (width, count) in enumerate(cnn["filters"]):
            weights, bias = self.arrays[f"CNN/W_cnn_{i}"][0], self.arrays[f"CNN/b_cnn_{i}"]
            positions = [
                (embedded[p : p + width, :, None] * weights).sum(axis=(0, 1)) + bias
                for p in range(len(ids) - width + 1)
            ]
            best = np.max(positions, axis=0)
            assert best.shape == (count,)
            values.extend(np.maximum(best, 0.0) if cnn.get("activation", "relu") == "relu" else np.tanh(best))
        y = np.array(values)
        for i in range(cnn.get("n_highway") or 0):
            part = {name: self.arrays[f"CNN_high_{i}/{name}"] for name in ("W_carry", "b_carry")}
            carry = sigmoid(y @ part["W_carry"] + part["b_carry"])
            changed = y @ self.arrays[f"CNN_high_{i}/W_transform"] + self.arrays[f"CNN_high_{i}/b_transform"]
            y = carry * np.maximum(changed, 0.0) + (1.0 - carry) * y
        if "CNN_proj/W_proj" in self.arrays:
            y = y @ self.arrays["CNN_proj/W_proj"] + self.arrays["CNN_proj/b_proj"]
        return y


def character_ids(token: str, max_length: int) -> list[int]:
    """The ids before the shift by one: bytes, 258 and 259 around the word, 260 after it."""
    if token in ("<S>", "</S>"):
        middle = [256 if token == "<S>" else 257]
    else:
        middle = list(token.encode("utf-8"))[: max_length - 2]
    ids = [258, *middle, 259]
    while len(ids) < max_length:
        ids.append(260)
    return ids


def mix(layers: list[Array], scalars: list[float], gamma: float, norm: bool = False) -> list[Array]:
    """γ Σ_j softmax(w)_j h_j of a batch of sentences, each (n_layers, n_tokens, dim) without padding.

    The layer norm takes one mean and one variance for each layer, over the values of all tokens of the batch.
    """
    powers = [np.exp(w - max(scalars)) for w in scalars]
    shares = [power / sum(powers) for power in powers]
    result = [np.zeros(sentence.shape[1:]) for sentence in layers]
    for j, share in enumerate(shares):
        values = np.concatenate([sentence[j].ravel() for sentence in layers])
        mean, deviation = (values.mean(), values.std()) if norm else (0.0, 1.0)
        for k, sentence in enumerate(layers):
            result[k] += gamma * share * (sentence[j] - mean) / deviation
    return result


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))
