"""Small specs, each with a turn of the language that the catalogue lacks, against dense attention in float64."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from attncc.check.oracle import dense
from tests.modules import build

BODIES = {
    "a normaliser that falls with the sum": "normalize = -rows",
    "a sum that is left out": "normalize = 3 - rows + rows",
    "a sum times a length": "normalize = rows * n",
    "a sum times a number of visible keys": "normalize = rows * valid",
    "words on words on words": (
        "param gain[d] = 1, b[H, d]; let q = rotated(q, i); let k = rotated(k, j); let q = rms_norm(q) * gain; "
        "let k = rms_norm(k) * gain + b[h]; score = 3 * dot(unit(q), unit(k))"
    ),
    "features that are rounded down": "score = dot(q // 0.5, k % 0.3) + sum(q) // 2 * dot(q, k)",
    "a feature of the query": "score = q[i, 2] * dot(q, k)",
    "a feature whose place depends on the distance": "score = q[i, (i - j) % 4]",
    "a sum times whole constants of heads": "normalize = rows * scale * [1, 2, 3, 4][h]",
}


@pytest.mark.parametrize("name", BODIES)
def test_results_and_gradients(name: str, tmp_path: Path) -> None:
    built = build(f"attention turn {{ {BODIES[name]} }}", tmp_path)
    generator = torch.Generator().manual_seed(3)
    sizes = {"q": (2, 4, 9, 6), "k": (2, 2, 12, 6), "v": (2, 2, 12, 6)}
    shapes = [sizes.get(each.name) or _sizes(each.axes) for each in built.spec.data]
    own = [torch.randn(each, generator=generator, dtype=torch.float64, requires_grad=True) for each in shapes]
    other = [each.detach().clone().requires_grad_() for each in own]
    lengths = torch.tensor([12, 7])
    out = built.module.attention(*own, kv_lengths=lengths)
    expected = dense(built.spec, *other, kv_lengths=lengths).out
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-11)
    for found, wanted in zip(_slopes(out, own), _slopes(expected, other), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def _sizes(axes: tuple[object, ...]) -> list[int]:
    known = {"B": 2, "H": 4, "n": 9, "m": 12, "d": 6, "e": 6}
    return [axis if isinstance(axis, int) else known[axis.value] for axis in axes]  # type: ignore[attr-defined]


def _slopes(out: torch.Tensor, data: list[torch.Tensor]) -> list[torch.Tensor]:
    found = torch.autograd.grad(out.sin().sum(), data, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(data, found, strict=True)]


REFUSED = {
    "a matrix whose columns are fewer than k's": (
        "param W[H, d, 5]; score = dot(q @ W[h], k)",
        "k is [2, 4, 9, 6], expected a width of 5, to fit W",
    ),
    "a product with the values": (
        "score = dot(q, v)",
        "q is [2, 4, 9, 6], expected a width of 3, to fit v",
    ),
    "values in place of keys": (
        "param W[H, d, 4]; value = v @ W[h]",
        "v is [2, 4, 9, 3], expected a width of 6, to fit W",
    ),
    "a feature that q lacks": ("score = q[i, 6]", "q is [2, 4, 9, 6], expected feature 6, which the spec reads"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_widths_that_do_not_meet_are_refused(name: str, tmp_path: Path) -> None:
    body, message = REFUSED[name]
    built = build(f"attention turn {{ {body} }}", tmp_path)
    given = {"q": torch.randn(2, 4, 9, 6), "k": torch.randn(2, 4, 9, 6), "v": torch.randn(2, 4, 9, 3)}
    data = [given[each.name] if each.name in given else torch.randn(_sizes(each.axes)) for each in built.spec.data]
    with pytest.raises(ValueError, match=re.escape(f"turn: {message}")):
        built.module.attention(*data)


def test_an_odd_width_is_not_turned(tmp_path: Path) -> None:
    built = build("attention turn { score = dot(rotate_half(q), k) }", tmp_path)
    x = torch.randn(1, 2, 4, 5)
    with pytest.raises(ValueError, match="expected an even width, of which the spec turns pairs"):
        built.module.attention(x, x, x)


def test_the_sizes_of_parameters_are_checked_and_shown(tmp_path: Path) -> None:
    built = build("attention turn { param W[H, d, 5]; score = dot(q @ W[h], k @ W[h]) }", tmp_path)
    assert repr(built.module.Attention(heads=4, d=8)) == "Attention(heads=4, d=8, form=None)"
    for wrong in (-1, 0, 2.5, "4", None, True):
        with pytest.raises(ValueError, match=r"turn: heads is .*, expected a whole number of 32 bits, 1 or more"):
            built.module.Attention(heads=wrong, d=8)


def test_a_type_that_does_not_fit_is_told_with_those_that_do(tmp_path: Path) -> None:
    built = build("attention turn { param a[H]; score = a[h] * dot(q, k) }", tmp_path)
    x = torch.randn(1, 2, 4, 6)
    with pytest.raises(ValueError, match=r"turn: a is torch.float64, expected torch.float32$"):
        built.module.attention(x, x, x, torch.ones(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"turn: a is torch.float16, expected torch.float32 or torch.bfloat16, as q$"):
        built.module.attention(*[x.bfloat16()] * 3, torch.ones(2, dtype=torch.float16))


def test_lengths_may_be_a_tensor_and_the_message_says_so(tmp_path: Path) -> None:
    built = build("attention turn { }", tmp_path)
    x = torch.randn(2, 2, 4, 6)
    with pytest.raises(
        ValueError, match=r"kv_lengths is .3, 4., expected a whole number .* or a tensor of one for each"
    ):
        built.module.attention(x, x, x, kv_lengths=[3, 4])


LISTS = {
    "score = [1, 2, 3][h * 2 - 1] * dot(q, k)": "one with which h * 2 - 1 lies within 0 … 2 for each head h",
    "pattern = i - j < [4, 8][H - h]": "one with which H - h lies within 0 … 1 for each head h",
    "branch a { }; branch b { weight = 1 }; combine = [1, 2][h] * a + b": "at most 2, the length",
}


@pytest.mark.parametrize("body", LISTS)
def test_heads_without_an_entry_in_a_list_are_refused(body: str, tmp_path: Path) -> None:
    built = build(f"attention turn {{ {body} }}", tmp_path)
    x = torch.randn(1, 3, 4, 6)
    with pytest.raises(ValueError, match=re.escape(f"the number of heads is 3, expected {LISTS[body]}")):
        built.module.attention(*[x] * len(built.spec.data))


def test_heads_with_an_entry_each_are_taken(tmp_path: Path) -> None:
    built = build("attention turn { score = ([1, 2, 3][H - 1 - h] + [1, 2][h // 2]) * dot(q, k) }", tmp_path)
    x = torch.randn(1, 3, 4, 6)
    assert built.module.attention(x, x, x).isfinite().all()


def test_indices_of_pairs_are_refused_where_a_related_pair_reads_outside(tmp_path: Path) -> None:
    text = """
attention cells(side = 3) {
  param t[H, 2 * side - 1], kinds[4]
  input own[B, n]: int, other[B, m]: int
  pattern = i < side * side & j < side * side
  align = start
  score = dot(q, k) + t[h, i // side - j // side + side - 1] + kinds[own + other]
}"""
    attention = build(text, tmp_path).module.attention
    q, k, v = (torch.randn(2, 1, 12, 4) for _ in range(3))
    t, kinds = torch.randn(1, 5), torch.randn(4)
    own, other = torch.zeros(2, 12, dtype=torch.int), torch.ones(2, 12, dtype=torch.int)
    other[:, 9:] = 7  # beyond the pattern
    attention(q, k, v, t, kinds, own, other)
    with pytest.raises(ValueError, match="index `own \\+ other` of kinds is 0 … 7, expected 0 … 3"):
        attention(q[:, :, :9], k, v, t, kinds, own[:, :9], other.flip(1))
    with pytest.raises(ValueError, match="index `i // 3 - j // 3 \\+ 3 - 1` of t is -4 … 4"):
        attention(q, k, v, t, kinds, own, other, q_start=torch.tensor([-12, 0]))
