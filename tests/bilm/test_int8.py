"""LSTMs in int8: near to float32, independent of the batch, and saved in a quarter of the size."""

import copy
import json
import logging
import pickle

import numpy as np
import pytest
import torch
from facts import mentions
from safetensors.torch import load_file, save_file

import torchelmo
from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.bilm.fast import encoder, int8
from torchelmo.bilm.fast.int8 import (
    Int8LSTM,
    Int8Product,
    Int8Weight,
    has_int8,
    int8_weights,
    mix,
    quantize,
    sigmoid_rows,
)
from torchelmo.bilm.fast.int8_layer import Int8Layer
from torchelmo.bilm.fast.products import Kernel, has_half
from torchelmo.bilm.fast.training import run_training
from torchelmo.bilm.lstm import ProjectedLSTM
from torchelmo.errors import ConfigError, InputError, WeightsError
from torchelmo.formats.convert import convert
from torchelmo.text.vocabulary import Vocabulary

needs_int8 = pytest.mark.skipif(not has_int8(), reason="this machine has no int8 kernels")
SENTENCES = [
    ["I", "took", "a", "bow", "."],
    ["a", "bow", "and", "an", "arrow", "of", "Robin", "Hood", "are", "here", "?"],
    ["yes"],
    ["They", "rose", "and", "cheered"],
] * 5
SHAPE = {"filters": ((1, 8), (2, 8)), "char_dim": 4, "max_characters": 12, "projection_dim": 16, "cell_dim": 40}


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(1)
    return BiLM(BiLMConfig(**SHAPE))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def cosines(ours: list[np.ndarray], theirs: list[np.ndarray]) -> np.ndarray:
    a, b = np.concatenate(ours, axis=1), np.concatenate(theirs, axis=1)
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


def test_a_weight_is_rounded_to_half_a_step_of_its_channel():
    weight = torch.randn(30, 20) * torch.logspace(-3, 3, 20)
    weight[:, 3] = 0
    rounded = quantize(weight)
    assert rounded.values.dtype == torch.int8
    assert ((rounded.dequantize() - weight).abs() <= 0.501 * rounded.scale).all()
    assert rounded.values.abs().amax(dim=1).tolist() == [0 if j == 3 else 127 for j in range(20)]


@needs_int8
@pytest.mark.parametrize("add", [None, "row", "rows"])
def test_the_product(add):
    x, weight = torch.randn(9, 64) * torch.logspace(-4, 4, 9)[:, None], torch.randn(64, 48)
    x[2] = 0
    more = {None: None, "row": torch.randn(48), "rows": torch.randn(9, 48)}[add]
    rounded = quantize(weight)
    product = Int8Product(rounded)(x, more)
    largest = x.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)
    expected = ((127 * x / largest).round() @ rounded.values.T.float()) * rounded.scale * largest / 127
    torch.testing.assert_close(product, expected + (0 if more is None else more), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("width", "parts"), [(40, 8), (12, 4), (6, 2), (5, 1), (8, 8)])
def test_mixing_twice_multiplies_by_the_number_of_parts(width, parts):
    x, y = torch.randn(3, width, dtype=torch.float64), torch.randn(4, width, dtype=torch.float64)
    torch.testing.assert_close(mix(mix(x)), parts * x)
    torch.testing.assert_close(mix(x) @ mix(y).T, parts * (x @ y.T))
    outlier = torch.zeros(1, width)
    outlier[0, width // 2] = 3
    assert sorted(set(mix(outlier).abs().flatten().tolist())) in ([3.0], [0.0, 3.0])
    assert int((mix(outlier) != 0).sum()) == parts


@needs_int8
def test_an_outlier_does_not_make_the_other_outputs_of_cells_inexact():
    torch.manual_seed(0)
    lstm = ProjectedLSTM(16, 1024, 16)
    cells = 0.03 * torch.randn(50, 1024)
    cells[:, ::200] = 0.4
    exact = cells @ lstm.projection.detach()
    mixed = Int8Product(int8_weights(lstm)["mixed_projection"])(mix(cells))
    plain = Int8Product(quantize(lstm.projection))(cells)
    assert (mixed - exact).norm() < 0.75 * (plain - exact).norm()


@needs_int8
@pytest.mark.parametrize("shape", [(512, 2080), (2080, 512), (128, 512), (40, 24)])  # with and without packing
def test_a_row_has_the_same_bits_with_every_kernel(shape, threads):
    x, product = (
        torch.randn(33, shape[0]) * torch.logspace(-9, 9, 33)[:, None],
        Int8Product(quantize(torch.randn(shape))),
    )
    together = product(x)
    for n in (1, 2, 3):
        threads(n)
        for rows in (1, 2, 7, 32):
            assert torch.equal(product(x[:rows]), together[:rows])
            assert torch.equal(product(x[-rows:]), together[-rows:])


def run_plainly(lstm, x, sizes, hidden, cell):
    """One direction, step after step, in which the state after the last step of a sentence is kept."""
    input_weight, state_weight, projection = (Int8Product(weight) for weight in int8_weights(lstm).values())
    bias = lstm.bias.detach().clone()
    bias[2 * lstm.cell_dim : 3 * lstm.cell_dim] += 1.0
    outputs = []
    for part in x.split(sizes):
        rows = len(part)
        i, j, f, o = (input_weight(part) + bias + state_weight(hidden[:rows])).chunk(4, dim=1)
        cell[:rows] = (f.sigmoid() * cell[:rows] + i.sigmoid() * j.tanh()).clamp(-lstm.cell_clip, lstm.cell_clip)
        output = projection(mix(o.sigmoid() * cell[:rows].tanh()))
        hidden[:rows] = output.clamp(-lstm.projection_clip, lstm.projection_clip)
        outputs.append(hidden[:rows].clone())
    return torch.cat(outputs)


@needs_int8
@pytest.mark.parametrize("kernel", [Kernel("int8"), Kernel("int8 together"), Kernel("int8", in_threads=True)], ids=str)
@pytest.mark.parametrize(("dim", "cell_dim", "chunk"), [(16, 40, 1), (16, 40, 2000), (512, 1024, 1 << 15)])
def test_a_layer_computes_the_steps_of_every_direction(dim, cell_dim, chunk, kernel):
    torch.manual_seed(0)
    lstms = [ProjectedLSTM(dim, cell_dim, dim, cell_clip=0.3, projection_clip=0.2, backward=d > 0) for d in range(2)]
    sizes = [5, 5, 4, 2, 1, 1]
    x, hidden, cell = torch.randn(2, sum(sizes), dim), torch.rand(2, 6, dim) / 5, torch.rand(2, 6, cell_dim) / 5
    states = [(hidden[d].clone(), cell[d].clone()) for d in range(2)]
    expected = [run_plainly(lstm, values, sizes, *state) for lstm, values, state in zip(lstms, x, states)]
    layer = Int8Layer(lstms, chunk)
    found = layer.run(x, sizes, hidden, cell, kernel)
    # Rounding differs, so a few values that are rounded to int8 differ by one step.
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=5e-3)
    torch.testing.assert_close(hidden, torch.stack([state[0] for state in states]), rtol=0, atol=5e-3)
    torch.testing.assert_close(cell, torch.stack([state[1] for state in states]), rtol=0, atol=5e-3)
    assert (found - torch.stack(expected)).abs().mean() < 1e-4


@needs_int8
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("cell_dim", [40, 1536])  # an odd width, and one whose sigmoids are split over threads
def test_a_sentence_has_the_same_bits_in_every_batch(n, cell_dim, threads):
    torch.manual_seed(0)
    bilm = BiLM(BiLMConfig(**{**SHAPE, "cell_dim": cell_dim}))
    together = Elmo(bilm).embed(SENTENCES, precision="int8")
    threads(n)
    alone = [Elmo(bilm).embed([sentence], precision="int8")[0] for sentence in SENTENCES[:4]]
    for one, other in zip([*alone, *Elmo(bilm).embed(SENTENCES[::-1], precision="int8")[-4:][::-1]], together[:4] * 2):
        np.testing.assert_array_equal(one, other)


@needs_int8
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_word_has_the_same_bits_without_float16_kernels(activation, monkeypatch):
    monkeypatch.setattr(encoder, "has_half", lambda: False)
    torch.manual_seed(0)
    bilm = BiLM(BiLMConfig(**SHAPE, activation=activation))
    exact = Elmo(bilm).embed(SENTENCES)
    together = Elmo(bilm).embed(SENTENCES, precision="int8")
    for sentence, one, other in zip(SENTENCES, exact, together):
        np.testing.assert_allclose(one[0], other[0], atol=1e-5)
        np.testing.assert_array_equal(Elmo(bilm).embed([sentence], precision="int8")[0], other)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_sigmoids_round_every_row_in_the_same_way(n, threads):
    threads(n)
    for width in (12, 96, 16384):
        row = 5 * torch.randn(width)
        expected = sigmoid_rows(row.unsqueeze(0), out=torch.empty(1, width))
        for rows in (2, 5, 33):
            assert (sigmoid_rows(row.repeat(rows, 1), out=torch.empty(rows, width)) == expected).all()


@needs_int8
def test_the_english_model_is_near_to_float32():
    elmo = Elmo(torchelmo.load())
    found = cosines(elmo.embed(SENTENCES, precision="int8"), elmo.embed(SENTENCES))
    assert found.mean() >= 0.9995
    assert found.min() >= 0.995
    assert (found[0] >= 0.9999999 - 1e-6).all()  # the weights of the token layer are float16


@needs_int8
def test_a_carried_state_and_the_reference_path_agree(bilm):
    bilm.quantize()
    ids = Elmo(bilm).encode(SENTENCES[:4])
    exact = bilm(ids, path="reference")
    fast = bilm(ids, path="fast")
    torch.testing.assert_close(fast.layers, exact.layers, rtol=0, atol=0.02)
    torch.testing.assert_close(
        bilm(ids, fast.state).layers, bilm(ids, exact.state, path="reference").layers, rtol=0, atol=0.03
    )


def test_a_folder_gives_the_same_bits(bilm, tmp_path):
    bilm.save(tmp_path / "float")
    bilm.save(tmp_path / "int8", dtype=torch.int8)
    back = torchelmo.load(tmp_path / "int8")
    assert back.is_int8
    assert not bilm.is_int8
    assert json.loads((tmp_path / "int8" / "config.json").read_text())["int8"] is True
    if has_int8():
        for one, other in zip(Elmo(back).embed(SENTENCES), Elmo(bilm).embed(SENTENCES, precision="int8")):
            np.testing.assert_array_equal(one, other)
    back.save(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "int8" / "model.safetensors"
    ).read_bytes()
    assert back.fingerprint() == torchelmo.load(tmp_path / "again").fingerprint() != bilm.fingerprint()


def test_the_linear_layers_of_the_encoder_are_float16(bilm, tmp_path):
    bilm.save(tmp_path, dtype=torch.int8)
    tensors = load_file(tmp_path / "model.safetensors")
    half = {name for name, tensor in tensors.items() if tensor.dtype == torch.float16}
    layers = ("highways.0.carry", "highways.0.transform", "highways.1.carry", "highways.1.transform", "projection")
    assert half == {f"encoder.{name}.weight" for name in layers}
    expected = Elmo(torchelmo.load(tmp_path)).embed(SENTENCES)
    # Folders with float32 weights, and weights beyond the range of float16.
    save_file(
        {name: tensor.float() if name in half else tensor for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
    )
    for one, other in zip(Elmo(torchelmo.load(tmp_path)).embed(SENTENCES), expected):
        np.testing.assert_array_equal(one, other)
    with torch.no_grad():
        bilm.encoder.projection.weight[0, 0] = 1e6
    bilm.save(tmp_path, dtype=torch.int8)
    assert torchelmo.load(tmp_path).encoder.projection.weight[0, 0] == 65504


@needs_int8
@pytest.mark.skipif(not has_half(), reason="this machine has no float16 kernels")
def test_weights_of_the_encoder_are_in_memory_once_and_stay_readable(bilm, tmp_path):
    bilm.quantize()
    layer, before = bilm.encoder.projection, {name: tensor.clone() for name, tensor in bilm.own_tensors().items()}
    expected = Elmo(bilm).embed(SENTENCES)

    def uses() -> dict[str, torch.Tensor]:
        """The weights that are plain tensors, after embedding the sentences."""
        for one, other in zip(Elmo(bilm).embed(SENTENCES), expected):
            np.testing.assert_array_equal(one, other)
        return {name: buffer for name, buffer in bilm.encoder.named_buffers() if buffer.dtype == torch.float16}

    assert uses() == {}
    assert torch.equal(layer.weight, before["encoder.projection.weight"])
    assert len(uses()) == 0
    assert bilm.own_tensors().keys() == before.keys()
    assert uses() == {}
    for copied in (copy.deepcopy(bilm), pickle.loads(pickle.dumps(bilm))):  # noqa: S301
        assert all(torch.equal(tensor, before[name]) for name, tensor in copied.own_tensors().items())
    assert uses() == {}
    assert layer(torch.ones(2, 16)).shape == (2, 16)
    assert uses() == {}
    assert bilm.double().encoder.projection.weight.dtype == torch.float64


@needs_int8
def test_weights_that_are_loaded_into_an_int8_model_are_used(bilm):
    bilm.quantize()
    elmo = Elmo(bilm)
    before = elmo.embed(SENTENCES)
    other = BiLM(BiLMConfig(**SHAPE))
    other.quantize()
    for assign in (False, True):
        bilm.load_state_dict(other.state_dict(), assign=assign)
        for one, same, old in zip(elmo.embed(SENTENCES), Elmo(other).embed(SENTENCES), before):
            np.testing.assert_array_equal(one, same)
            assert not np.array_equal(one, old)


def test_the_softmax_of_a_folder_is_float16(tmp_path):
    bilm = BiLM(BiLMConfig(**SHAPE, softmax_words=7), vocabulary=Vocabulary(["<S>", "</S>", "<UNK>", *"abcd"]))
    bilm.save(tmp_path / "int8", dtype=torch.int8)
    assert load_file(tmp_path / "int8" / "model.safetensors")["softmax.weight"].dtype == torch.float16
    back = torchelmo.load(tmp_path / "int8")
    assert torch.equal(back.softmax.weight, bilm.softmax.weight.half().float())
    back.save(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "int8" / "model.safetensors"
    ).read_bytes()


def test_the_reference_encoder_of_an_int8_model_is_near_to_float32(bilm):
    ids = bilm.token_ids(SENTENCES[:4])
    exact = bilm.encoder(ids)
    bilm.quantize()
    torch.testing.assert_close(bilm.encoder(ids), exact, rtol=0, atol=2e-3)


def test_int8_weights_can_be_turned_into_float32(bilm, tmp_path):
    quantized = copy.deepcopy(bilm)
    quantized.quantize()
    back = quantized.dequantized()
    assert not back.is_int8
    assert back.own_tensors().keys() == bilm.own_tensors().keys()
    for name, tensor in back.own_tensors().items():
        near = 5e-3 if "lstms" in name and name.endswith("projection") else 2e-3  # the sum of 8 rounded weights
        torch.testing.assert_close(tensor, bilm.own_tensors()[name], rtol=0, atol=near)
        assert (tensor - bilm.own_tensors()[name]).square().mean().sqrt() <= 1.5e-3
    assert bilm.dequantized() is bilm
    quantized.save(tmp_path / "float", dtype=torch.float32)
    assert not torchelmo.load(tmp_path / "float").is_int8
    torchelmo.save_official(quantized, tmp_path / "official" / "options.json", tmp_path / "official" / "weights.hdf5")
    for name, tensor in torchelmo.load(tmp_path / "official").own_tensors().items():
        torch.testing.assert_close(tensor, back.own_tensors()[name])


@pytest.mark.parametrize("form", ["folder", "official"])
def test_int8_folders_are_converted_to_float32(bilm, tmp_path, form):
    bilm.save(tmp_path / "int8", dtype=torch.int8)
    done = convert(tmp_path / "int8", tmp_path / "float", to=form)
    assert done.difference <= 1e-5
    assert not torchelmo.load(tmp_path / "float").is_int8


def test_int8_models_are_not_trained(bilm):
    bilm.quantize()
    ids = bilm.token_ids(SENTENCES[:2])
    with pytest.raises(InputError, match=mentions("int8", "dequantized")):
        bilm(ids)
    with pytest.raises(InputError, match=mentions("int8", "dequantized")):
        run_training(bilm, ids[:, :, 0], ids[:, :, 0], None, characters=ids[0])


@pytest.mark.parametrize(
    ("name", "change", "facts"),
    [
        ("forward_lstms.0.mixed_projection", lambda tensor: tensor.float(), ["I8", "F32", "mixed_projection"]),
        ("forward_lstms.0.mixed_projection", lambda tensor: tensor[:-1].clone(), ["mixed", "(16, 40)", "(15, 40)"]),
        ("forward_lstms.1.state_weight_scale", lambda tensor: tensor * torch.nan, ["state_weight_scale", "NaN"]),
        ("backward_lstms.0.input_weight_scale", lambda tensor: None, ["input_weight_scale", "missing"]),
    ],
)
def test_damaged_folders_are_refused(bilm, tmp_path, name, change, facts):
    bilm.save(tmp_path, dtype=torch.int8)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = change(tensors[name])
    save_file({key: value for key, value in tensors.items() if value is not None}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=mentions(*facts)):
        torchelmo.load(tmp_path)


def test_a_wrong_mark_in_the_configuration_is_refused(bilm, tmp_path):
    bilm.save(tmp_path)
    card = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**card, "int8": "yes"}))
    with pytest.raises(ConfigError, match=mentions("int8", "'yes'")):
        torchelmo.load(tmp_path)


def test_without_kernels_float32_is_used_and_said_once(bilm, monkeypatch, caplog):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    has_int8.cache_clear()
    try:
        with caplog.at_level(logging.INFO):
            found = Elmo(bilm).embed(SENTENCES, precision="int8")
            Elmo(bilm).embed(SENTENCES, precision="int8")
        assert caplog.text.count("VNNI") == 1
        for one, other in zip(found, Elmo(bilm).embed(SENTENCES)):
            np.testing.assert_array_equal(one, other)
        bilm.quantize()
        for one, other in zip(Elmo(bilm).embed(SENTENCES), Elmo(bilm.dequantized()).embed(SENTENCES)):
            np.testing.assert_array_equal(one, other)
    finally:
        has_int8.cache_clear()


def test_kernels_that_would_crash_are_not_called(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True, raising=False)
    monkeypatch.setattr(int8, "why_onednn_crashes", lambda: "set ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr(int8, "Int8Product", None)
    assert int8._why_no_int8() == "set ONEDNN_MAX_CPU_ISA"


def test_a_wrong_operator_is_not_used(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True, raising=False)
    monkeypatch.setattr(int8, "why_onednn_crashes", lambda: "")
    monkeypatch.setattr(int8, "Int8Product", lambda weight: lambda x: x @ weight.values.float() + 1)
    assert "wrong" in int8._why_no_int8()

    def missing(weight: Int8Weight) -> None:
        raise NotImplementedError("no such operator\nwith details")

    monkeypatch.setattr(int8, "Int8Product", missing)
    assert int8._why_no_int8() == "no such operator"


def test_models_in_other_types_fall_back(bilm):
    double = copy.deepcopy(bilm).double()
    for one, other in zip(Elmo(double).embed(SENTENCES, precision="int8"), Elmo(double).embed(SENTENCES)):
        np.testing.assert_array_equal(one, other)
    assert isinstance(bilm.forward_lstms[0], torch.nn.Module)
    bilm.quantize()
    assert isinstance(bilm.forward_lstms[0], Int8LSTM)
    assert np.isfinite(Elmo(bilm.double()).embed(SENTENCES)[0]).all()
