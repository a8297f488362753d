"""Every way to take x · W gives x · W."""

import logging

import pytest
import torch

from torchelmo.bilm.fast import products
from torchelmo.bilm.fast.products import (
    HalfProduct,
    PackedForMany,
    PackedProduct,
    PlainProduct,
    Tuning,
    choose_product,
    prepare_product,
)


@pytest.mark.parametrize("rows", [1, 3, 4, 33])
@pytest.mark.parametrize("kind", [PlainProduct, PackedProduct, PackedForMany, HalfProduct])
@pytest.mark.parametrize("add", [False, True])
def test_products(kind, rows, add):
    weight, x, more = torch.randn(20, 24), torch.randn(rows, 20), torch.randn(rows, 24)
    if kind is HalfProduct:
        if not products.has_half():
            pytest.skip("this machine has no float16 products")
        weight = weight.half().float()
    product = kind(weight)(x, more) if add else kind(weight)(x)
    torch.testing.assert_close(product, x @ weight + (more if add else 0.0), rtol=1e-3, atol=1e-4)


def test_an_added_bias_is_left_as_it_was():
    for kind in (PlainProduct, PackedProduct, PackedForMany):
        bias = torch.ones(24)
        kind(torch.randn(20, 24))(torch.randn(8, 20), bias)
        assert torch.equal(bias, torch.ones(24))


def test_the_choice():
    small, large = torch.zeros(4, 4), torch.zeros(512, 2048)
    assert isinstance(choose_product(small, "float16", Tuning()), PlainProduct)
    assert isinstance(choose_product(large.double(), "float16", Tuning()), PlainProduct)
    packed, half = products.has_packed(), products.has_half()
    assert isinstance(choose_product(large, "float32", Tuning()), PackedProduct if packed else PlainProduct)
    assert isinstance(choose_product(large, "float16", Tuning()), HalfProduct if half else PlainProduct)
    assert isinstance(prepare_product(large, "packed", Tuning()), PackedForMany)
    assert isinstance(prepare_product(small, "packed", Tuning()), PlainProduct)
    assert isinstance(prepare_product(small, "half", Tuning()), PlainProduct)


def test_a_weight_is_packed_when_a_batch_needs_it():
    weight = torch.randn(20, 24)
    product = PackedForMany(weight)
    product(torch.randn(1, 20))
    assert product.packed is None
    x = torch.randn(8, 20)
    torch.testing.assert_close(product(x), x @ weight)
    assert product.packed is not None


def test_what_this_machine_lacks_is_told_and_replaced(caplog):
    class Missing:
        def __init__(self, weight: torch.Tensor) -> None:
            raise RuntimeError("no such operator\nwith details")

    with caplog.at_level(logging.INFO):
        assert not products.is_available(Missing, "not available (%s).")
    assert "not available (no such operator)." in caplog.text
