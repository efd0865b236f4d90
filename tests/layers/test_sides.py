"""What layers read of attentions beside their output, tokens that they choose, and values that are computed once."""

from __future__ import annotations

import pytest
import torch

from attncc.check.layers.compare import compare
from attncc.check.layers.sizes import LayerCase
from attncc.check.load import load_module
from attncc.diagnostics import AttnError
from tests.layers.shared import checked, compiled, layer_of

SUMS = "a = attend full_core(x, x, x); c = column_sums(a, own = 0)"
CHOSEN = f"{SUMS}; out = gather(x, top(c, 5, always = 1))"


def test_sums_of_weights_are_taken_in_slabs_of_rows() -> None:
    found = compiled(layer_of(f"{SUMS}; out = transposed(transposed(a) * c)"))
    module = load_module(found.text, "written")
    rows: list[int] = []
    whole = module._full_core_weights

    def seen(*values: torch.Tensor, **options: slice) -> torch.Tensor:
        found: torch.Tensor = whole(*values, **options)
        rows.append(found.shape[2])
        return found

    module._full_core_weights = seen
    x = torch.randn(1, 300, 4, requires_grad=True)
    out = module.Written(dim=4)(x)
    out.sum().backward()
    assert sorted(rows) == [44, 44, 256, 256]  # once in each direction
    assert x.grad is not None and x.grad.isfinite().all()
    weights = whole(x[:, None], x[:, None]).squeeze(1)
    sums = weights.sum(1) - weights.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(out, weights @ x * sums[..., None])


def test_of_equal_tokens_the_first_are_chosen_and_padding_is_last() -> None:
    found = compiled(layer_of("out = gather(x, top(sum(x, over = features), 3))"))
    made = load_module(found.text, "written").Written(dim=1)
    x = torch.tensor([[1.0, 5, 5, 5, 5, 2], [9.0, 1, 2, 7, 9, 9]])[..., None]
    assert made(x, torch.tensor([6, 3])).squeeze(-1).tolist() == [[5, 5, 5], [9, 1, 2]]
    assert made(x[:, :2]).shape == (2, 2, 1)
    assert "min(n, 3)" in found.text


def test_a_chosen_sequence_has_the_lengths_of_what_was_chosen() -> None:
    found = compiled(layer_of("y = gather(x, top(sum(x, over = features), 3)); out = attend full_core(y, y, y)"))
    made = load_module(found.text, "written").Written(dim=2).double()
    x = torch.randn(1, 7, 2, dtype=torch.float64)
    torch.testing.assert_close(made(x, torch.tensor([2]))[:, :2], made(x[:, :2]))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("found.masked_fill((places >= lengths[:, None])[:, None, :, None], 0)", "found"),
        ("own=False,", "own=True,"),
        ("places[start : start + found.shape[2], None] == places", "places[: found.shape[2], None] + 1 == places"),
        ("descending=True, stable=True", "descending=False, stable=True"),
        ("chosen.sort(-1).values", "chosen"),
        ('x.masked_fill(places < always, float("inf"))', "x"),
    ],
)
def test_a_wrong_module_is_found(right: str, wrong: str) -> None:
    found = compiled(layer_of(f"{SUMS}; y = transposed(transposed(x) * c); out = gather(y, top(c, 5, always = 1))"))
    text = " ".join(found.text.split(" "))
    assert right in text
    module = load_module(text.replace(right, wrong), "written")
    case = LayerCase("n = 19, padded", 4, (("n", 19),), (("n", (19, 9, 1, 0)),), torch.float64)
    assert compare(load_module(found.text, "written"), found.spec, case).ok
    assert not compare(module, found.spec, case).ok


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("out = x * column_sums(x)", "`column_sums` is about a call of an attention"),
        ("a = attend full_core(x, x, x) + x; out = x * log_sums(a)", "`log_sums` is about a call of an attention"),
        ("out = gather(x, x)", "`x` says no places"),
        ("out = gather(x, top(x, 3))", "`top` compares one number for each token"),
        ("out = x ? x : x", "`x` is no truth value of each token"),
        (f"{SUMS}; y = gather(x, top(c, 4)); out = attend causal_core(y, y, y)", "comes before the causal core"),
    ],
)
def test_what_does_not_fit(body: str, message: str) -> None:
    with pytest.raises(AttnError) as caught:
        compiled(layer_of(body))
    assert message in caught.value.diagnostics[0].message


def test_a_core_without_a_sum_has_no_logarithm_and_branches_no_weights() -> None:
    plain = "attention plain { similarity = relu2 }\n"
    two = "attention two { branch a {}; branch b { pattern = causal }; combine = a - b }\n"
    for core, side in ((f"{plain}", "log_sums"), (two, "log_sums"), (two, "column_sums")):
        name = core.split()[1]
        body = f"input x[n, dim]; a = attend {name}(x, x, x); out = x * sum({side}(a), over = n)"
        with pytest.raises(AttnError, match=f"`{name}` has no"):
            compiled(f"{core}layer written(dim) {{ {body} }}")


def test_layers_with_sides_have_no_step() -> None:
    found = compiled(layer_of("a = attend causal_core(x, x, x); out = transposed(transposed(a) * log_sums(a))"))
    assert found.plan.decoding == "`log_sums` is not part of a step"
    assert found.plan.is_causal
    sums = SUMS.replace("full", "causal")
    assert not compiled(layer_of(f"{sums}; out = transposed(transposed(x) * c)")).plan.is_causal


def test_fixed_tensors_are_buffers_that_are_saved() -> None:
    found = compiled(layer_of("param R[dim, 3] = fixed(normal(1)); out = x @ R"))
    module = load_module(found.text, "written").Written(dim=4)
    assert not list(module.parameters())
    assert list(module.state_dict()) == ["R"]
    assert float(module.R.std()) > 0.3


def test_an_argument_of_a_word_is_computed_once() -> None:
    word = "function gated(y, by = y * 2) = y * sigmoid(by + y)\n"
    text = word + layer_of("gated_y = x * 2; out = gated(attend causal_core(x, gated_y, x)) + gated(x)")
    found = compiled(text)
    assert "causal_core_2" not in found.text
    assert "gated_y_2 = causal_core(" in found.text
    assert checked(text).ok
