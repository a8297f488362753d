"""The model in the package gives the vectors, perplexities and surprisals that it gave before the restructuring.

`python tests/pinned/make_pins.py vectors` writes the pinned files anew.
"""

import json

import numpy as np
import pytest
from pinned.make_pins import (
    MEASURES,
    MODEL,
    SENTENCES,
    VECTORS,
    measure_perplexity,
    measure_surprisal,
    reduce,
    reference_vectors,
)

import torchelmo

# The pins were computed in float64. A float32 path differs from them by its own rounding only: at most 2.6e-6, measured
# with AVX-512 and with SSE kernels, one thread and two. The order of the sums depends on the CPU and its BLAS, so no
# two machines need agree to the last bit. 2e-5 leaves a factor of 8 for them. Changes of the model are far above it: no
# cell clip moves some vectors by 7e-2, no projection clip by 0.1, no sentence marks by 1, LSTM biases + 0.001 by 2e-3.
ATOL = 2e-5
# A perplexity is the exponential of a mean over 74 targets, so that rounding errors of single tokens mostly cancel:
# float32 and float64 differ by 2.3e-6.
PERPLEXITY_RTOL = 1e-5
BITS_ATOL = 2e-4  # the table has four decimals: half a unit of the last one, and rounding as above


@pytest.fixture(scope="module")
def bilm():
    return torchelmo.load(MODEL)


@pytest.fixture(scope="module")
def pins():
    with np.load(VECTORS) as file:
        return [file[f"arr_{i}"] for i in range(len(file.files))]


@pytest.fixture(scope="module")
def measures():
    return json.loads(MEASURES.read_text(encoding="utf-8"))


def assert_pinned(found, pins):
    assert len(found) == len(pins) == len(SENTENCES)
    for sentence, vectors, pin in zip(SENTENCES, found, pins):
        assert pin.shape[1] == len(sentence)
        np.testing.assert_allclose(reduce(vectors), pin, rtol=0, atol=ATOL, err_msg=" ".join(sentence))


def test_the_pins_are_small_and_cover_ten_sentences(pins):
    assert VECTORS.stat().st_size < 100_000
    assert len(pins) == 10
    assert {pin.dtype for pin in pins} == {np.dtype(np.float32)}


def test_the_reference_path_gives_the_pinned_vectors(bilm, pins):
    assert_pinned(list(reference_vectors(bilm)), pins)


def test_embed_gives_the_pinned_vectors(bilm, pins):
    assert_pinned(torchelmo.Elmo(bilm).embed(SENTENCES), pins)


def test_embed_gives_the_pinned_vectors_in_small_batches(bilm, pins):
    assert_pinned(torchelmo.Elmo(bilm).embed(SENTENCES, batch_tokens=16), pins)


def test_the_check_fails_if_the_sentences_are_exchanged(bilm, pins):
    found = torchelmo.Elmo(bilm).embed(SENTENCES)
    found[2], found[3] = found[3], found[2]  # both have one token
    with pytest.raises(AssertionError, match="Yes"):
        assert_pinned(found, pins)


def test_perplexity_prints_the_pinned_numbers(measures, tmp_path):
    assert measure_perplexity(tmp_path) == pytest.approx(measures["perplexity"], rel=PERPLEXITY_RTOL)


def test_surprisal_prints_the_pinned_bits(measures, tmp_path):
    found, expected = measure_surprisal(tmp_path), measures["surprisal"]
    assert [row["token"] for row in found] == [row["token"] for row in expected]
    for row, pin in zip(found, expected):
        bits = {name: pytest.approx(pin[name], rel=0, abs=BITS_ATOL) for name in ("forward", "backward")}
        assert {name: row[name] for name in pin} == pin | bits  # columns may be added
