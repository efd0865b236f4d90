"""What a spec chooses by comparing: buckets, orders and best keys, as values that callers ask for and pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attncc.check.calls import inputs_of
from attncc.check.choices import faults, with_choices
from attncc.check.compare import compare
from attncc.check.oracle import dense
from attncc.check.sizes import Case
from tests.modules import Built, build, build_file

BODIES = {
    "buckets": "input R[d, 4]; let b = hash(k, R); pattern = causal & b[i] == b[j]",
    "buckets of each head": "input R[H, 2, d, 4]; let b = hash(k, R[h, 1]); pattern = b[i] == b[j] | i == j",
    "buckets of rows": "input R[H, d, 4]; let a = hash(q, R[h]); let b = hash(k, R[h]); pattern = a == b | i == j",
    "buckets in weights": "input R[d, 4]; let b = hash(k, R); weight = exp(score) * (1 + [b[i] == b[j]])",
    "a code of two": "input R[2, d, 2]; let a = hash(k, R[0]); let b = hash(k, R[1]); let c = 4 * a + b; "
    "pattern = c[i] == c[j]",
    "sorted chunks": "input R[d, 4]; let b = hash(k, R); let s = rank(b); pattern = 0 <= s[i] // 4 - s[j] // 4 <= 1",
    "the best": "pattern = top(3)",
    "the best of a window": "let best = top(3, by = dot(q, k) - abs(i - j), among = window(6)); pattern = best",
    "the best beside a window": "let best = top(2, by = score, among = causal); pattern = window(2) | best",
    "the best that are marked": "input t[B, m]: bool; pattern = top(3, among = t) | i == j",
    "the best of a bucket": "input R[d, 2]; let b = hash(k, R); pattern = top(2, among = b[i] == b[j])",
    "branches": "input R[d, 4]; let b = hash(k, R); branch near { pattern = b[i] == b[j] }; "
    "branch far { let best = top(2); pattern = best }; combine = near + far",
    "keys that got most in a window, for heads together": "input t[B, m]: bool; "
    "branch near { pattern = window(3, 3) & !t[j]; weight = relu(score)^2 }; branch far { "
    "let best = top(3, by = shares(near), among = i != j, heads = grouped); pattern = best & !t[j] }; "
    "combine = near + far",
    "blocks that got most by means that overlap": "branch means { "
    "let k = pool(k, 2, 1) at j; let v = pool(v, 2, 1) at j; score = scale * dot(q, k) - 0.1 * abs(i - j) }; "
    "branch fine { let best = top(2, by = shares(means), blocks = 2); pattern = best | i == j }; "
    "combine = merge(means, fine)",
    "blocks by their means": "branch means { let k = pool(k, 2) at 2 * j + 1; let v = pool(v, 2) at 2 * j + 1; "
    "pattern = causal; weight = score; normalize = none }; branch fine { "
    "let best = top(2, by = shares(means), among = j // 2 < i // 2, blocks = 2); "
    "pattern = causal & (best | i - j < 2) }; combine = fine",
    "the best for heads together": "let best = top(3, among = causal, heads = grouped); pattern = best",
}
CALLS: dict[str, dict[str, object]] = {
    "plain": {},
    "lengths": {"kv_lengths": torch.tensor([12, 10])},
    "offsets": {"q_start": 4, "k_start": 2},
}


def data_of(built: Built, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = {"B": 2, "n": 9, "m": 12, "d": 6, "e": 5}

    def shape(name: str) -> list[int]:
        each = next(x for x in built.spec.data if x.name == name)
        heads = 2 if each.is_column else 4
        return [
            axis if isinstance(axis, int) else heads if axis.value == "H" else sizes[axis.value] for axis in each.axes
        ]  # type: ignore[union-attr]

    made = {each.name: torch.randn(shape(each.name), generator=generator, dtype=dtype) for each in built.spec.data}
    return {each.name: made[each.name] > 0 if each.truth else made[each.name] for each in built.spec.data}


@pytest.fixture(scope="module", params=BODIES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(f"attention chosen {{ {BODIES[request.param]} }}", tmp_path_factory.mktemp("modules"))


def grads(out: Tensor, data: dict[str, Tensor]) -> tuple[Tensor, ...]:
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out.dtype)
    return torch.autograd.grad(out, [x for x in data.values() if x.requires_grad], seed, materialize_grads=True)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_results_equal_the_oracle(built: Built, call: dict[str, object]) -> None:
    data = {name: x.requires_grad_(x.is_floating_point()) for name, x in data_of(built).items()}
    wanted = dense(built.spec, *data.values(), **call).out  # type: ignore[arg-type]
    out = built.module.attention(*data.values(), **call)
    torch.testing.assert_close(out, wanted)
    for one, other in zip(grads(out, data), grads(wanted, data), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_choices_are_returned_and_taken(built: Built, call: dict[str, object]) -> None:
    data = {name: x.requires_grad_(x.is_floating_point()) for name, x in data_of(built).items()}
    out, choices = built.module.attention(*data.values(), return_choices=True, **call)
    again = built.module.attention(*data.values(), choices=choices, **call)
    assert torch.equal(again, out)
    assert all(torch.equal(one, other) for one, other in zip(grads(again, data), grads(out, data), strict=True))
    others = {name: x.flip(0) for name, x in choices.items()}
    found, same = built.module.attention(*data.values(), choices=others, return_choices=True, **call)
    assert all(torch.equal(same[name], x) for name, x in others.items())
    wanted = dense(built.spec, *data.values(), choices=others, **call).out  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted)
    for one, other in zip(grads(found, data), grads(wanted, data), strict=True):
        torch.testing.assert_close(one, other)


def test_single_precision_is_right_under_its_own_choices(built: Built) -> None:
    case = Case(batch=2, heads=4, kv_heads=2, n=70, m=70, d=8, e=8, dtype=torch.float32, name="case")
    verdict = compare(built.module, built.spec, case, "torch")
    assert verdict.ok, verdict.text


def test_a_wrong_choice_is_found(built: Built) -> None:
    case = Case(batch=2, heads=4, kv_heads=2, n=40, m=40, d=8, e=8, dtype=torch.float32, name="case")
    inputs = with_choices(built.module, None, built.spec, case, inputs_of(built.spec, case))
    assert faults(built.spec, case, inputs) == []
    for name in [each for each in inputs if each.startswith("choice ")]:
        moved = inputs[name].roll(1, 2)
        assert faults(built.spec, case, inputs | {name: moved}), name


def test_what_is_not_a_choice_is_refused(built: Built) -> None:
    data = data_of(built)
    _, choices = built.module.attention(*data.values(), return_choices=True)
    name, one = next(iter(choices.items()))

    def refused(given: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            built.module.attention(*data.values(), choices=given)

    refused({"other": one}, "other")
    refused({name: one[:1]}, "expected")
    refused({name: one.double()}, "whole numbers")
    refused({name: one.tolist()}, "a tensor")
    if name != "c":  # arithmetic of choices may have any number
        refused({name: one + 100}, "100|1[0-9][0-9]")


@pytest.mark.parametrize("name", ["the best beside a window"])
def test_compilers_and_transformations(name: str, tmp_path: Path) -> None:
    built = build(f"attention chosen {{ {BODIES[name]} }}", tmp_path)
    data = data_of(built, torch.float32)
    wanted = built.module.attention(*data.values())
    torch.testing.assert_close(torch.compile(built.module.attention, backend="eager")(*data.values()), wanted)

    def own(q: Tensor) -> Tensor:
        return built.module.attention(**{**data, "q": q})  # type: ignore[no-any-return]

    qs = torch.stack([data["q"], -data["q"]])
    torch.testing.assert_close(torch.func.vmap(own)(qs), torch.stack([own(each) for each in qs]))
    exact = data_of(built)

    def of_values(v: Tensor) -> Tensor:
        return built.module.attention(**{**exact, "v": v, "q": exact["q"]})  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(of_values, exact["v"].requires_grad_())


# --- meanings ---------------------------------------------------------------------------------------------------------


def chosen(body: str, folder: Path, *data: Tensor, **call: object) -> dict[str, Tensor]:
    found: dict[str, Tensor] = build(f"attention chosen {{ {body} }}", folder).module.attention(
        *data, return_choices=True, **call
    )[-1]
    return found


def plain(m: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, m, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v


def test_the_first_of_equal_features_is_the_largest(tmp_path: Path) -> None:
    q, _, v = plain()
    k = torch.tensor([[1, 3, 3, 2], [0, 0, 0, 0], [5, 1, 5, 5], [-1, -2, -1, -3], [1, 2, 3, 4], [4, 3, 2, 1]])
    found = chosen("let a = argmax(k); pattern = a[i] == a[j]", tmp_path, q, k[None, None].double(), v)
    assert found["a"].tolist() == [[[1, 0, 0, 0, 3, 0]]]


def test_features_are_joined_in_order(tmp_path: Path) -> None:
    q, k, v = plain()
    found = chosen("let a = argmax(join(k, -2 * k)); pattern = a[i] == a[j]", tmp_path, q, k, v)
    assert torch.equal(found["a"], torch.cat((k, -2 * k), -1).argmax(-1))


def test_ranks_are_places_in_a_stable_order_and_hidden_keys_stand_last(tmp_path: Path) -> None:
    q, k, v = plain()
    b = torch.tensor([[[3, -1, 3, 0, 99, -7]]])
    body = "input b[B, H, m]: int; let s = rank(b); pattern = s[i] >= s[j]"
    built = build(f"attention ranked {{ {body} }}", tmp_path)
    seen = built.module.weights(q, k, b, kv_lengths=4) > 0
    assert seen[0, 0].sum(-1).tolist() == [3, 1, 4, 2, 4, 4]
    assert torch.equal(dense(built.spec, q, k, v, b, kv_lengths=4).weights > 0, seen)


def test_of_equal_numbers_the_first_keys_are_chosen(tmp_path: Path) -> None:
    q, k, v = plain()
    body = "input w[B, m]; let best = top(3, by = w[j], among = j != 1 & j < 5); pattern = best"
    w = torch.tensor([[1.0, 9, 2, 1, 1, 9]], dtype=torch.float64)
    assert chosen(body, tmp_path, q, k, v, w)["best"][0, 0].tolist() == [[0, 2, 3]] * 6
    few = chosen(body, tmp_path, q, k, v, w, kv_lengths=3)["best"][0, 0].tolist()
    assert few == [[0, 2, -1]] * 6


def test_steps_decode_buckets(tmp_path: Path) -> None:
    body = "input R[H, d, 2]; let b = hash(k, R[h]); pattern = causal & b[i] == b[j]"
    module = build(f"attention chosen {{ {body} }}", tmp_path).module
    q, k, v = (torch.randn(2, 4, 12, 6, generator=torch.Generator().manual_seed(at)) for at in range(3))
    R = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(9))
    whole = module.attention(q, k, v, R)
    out, cache = module.prefill(q[:, :, :7], k[:, :, :7], v[:, :, :7], R)
    outs = [out]
    for at in range(7, 12):
        out, cache = module.step(*(x[:, :, at : at + 1] for x in (q, k, v)), R, cache)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), whole, rtol=1e-5, atol=1e-5)


def test_memory_of_the_best_keys_grows_with_the_slab(tmp_path: Path) -> None:
    """Numbers of all pairs would be 1 GiB; a slab has 2^22."""
    module = build("attention chosen { pattern = top(4, among = causal) }", tmp_path).module
    assert module._BEST == 1 << 22
    seen: list[int] = []
    inner = module._numbers_for_top

    def watched(*data: Tensor, **call: object) -> Callable[[slice], Tensor]:
        of_rows: Callable[[slice], Tensor] = inner(*data, **call)

        def noted(rows: slice) -> Tensor:
            seen.append(rows.stop - rows.start)
            return of_rows(rows)

        return noted

    module._numbers_for_top = watched
    q, k, v = (torch.randn(1, 1, 4096, 4) for _ in range(3))
    module.attention(q, k, v)
    assert max(seen) * 4096 <= 1 << 22
    assert sum(seen) == 4096


def native_sparse_selection(q: Tensor, k: Tensor, *, width: int, stride: int, block: int, selected: int) -> Tensor:
    """The published formula (arXiv 2502.11089, equations 8 to 11), with its loops: which blocks [B, Hk, n] select."""
    batch, kv_heads, m, d = k.shape
    group = q.shape[1] // kv_heads
    blocks = [k[:, :, at : at + width].mean(2) for at in range(0, m - width + 1, stride)]
    score = q.unflatten(1, (kv_heads, group)) @ torch.stack(blocks, 2)[:, :, None].mT / d**0.5
    last = torch.arange(len(blocks)) * stride + width - 1
    hidden = last > torch.arange(m)[:, None]
    share = score.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num()
    units, parts = block // stride, width // stride
    chosen = torch.zeros(batch, kv_heads, m, -(-m // block), dtype=torch.bool)
    own = torch.arange(m) // block
    for i in range(m):
        importance = torch.zeros(batch, kv_heads, -(-m // block), dtype=q.dtype)
        for at in range(importance.shape[-1]):
            for a in range(units):
                for b in range(parts):
                    unit = units * (at + 1) - 1 - a - b
                    if 0 <= unit < len(blocks):
                        importance[..., at] += share[:, :, :, i, unit].sum(2)
        importance[..., int(own[i]) + 1 :] = -torch.inf  # not there yet
        for forced in (0, own[i] - 1, own[i]):
            if forced >= 0:
                importance[..., int(forced)] = torch.inf
        best = importance.topk(min(selected, importance.shape[-1]), -1)
        chosen[:, :, i].scatter_(-1, best.indices, best.values > -torch.inf)
    return chosen


def test_native_sparse_attention_selects_as_published(tmp_path: Path) -> None:
    sizes = {"width": 8, "stride": 4, "block": 16, "selected": 5}
    built = build_file("nsa", tmp_path, **sizes, w=9)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, heads, 128, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    none = torch.zeros(1, 4, 128, dtype=torch.float64)
    gates = none, none + 1, none
    out, choices = built.module.attention(q, k, v, k, v, k, v, *gates, return_choices=True)
    blocks = native_sparse_selection(q, k, **sizes).repeat_interleave(2, 1)
    related = blocks.repeat_interleave(16, -1) & torch.ones(128, 128).tril().bool()
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    wanted = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=related)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)
    assert choices["blocks"].shape == (1, 2, 128, 2)


@pytest.mark.parametrize(("by", "alone"), [("score", True), ("-j", False)])
def test_rows_stand_alone_where_neighbours_choose_other_keys(by: str, alone: bool, tmp_path: Path) -> None:
    """Then a call meets no other pairs than those that were chosen."""
    body = f"let best = top(16, by = {by}, among = causal); pattern = best"
    module = build(f"attention chosen {{ {body} }}", tmp_path).module
    q, k, v = (torch.randn(1, 1, 1024, 4, generator=torch.Generator().manual_seed(at)) for at in range(3))
    _, choices = module.attention(q, k, v, return_choices=True)
    ((lists, _),) = module._passes(q, k, v, choices["best"], 0, 0, None, None)
    met = len(lists.met) * lists.rows.shape[2] * lists.keys.shape[2]
    assert (met == (choices["best"] >= 0).sum()) == alone


def test_lists_that_stand_beside_a_window_have_tiles_of_their_own(tmp_path: Path) -> None:
    body = "input sel[B, H, n, 2]: int; pattern = j // 16 in sel & j <= i | window(100)"
    built = build(f"attention chosen {{ {body} }}", tmp_path)
    case = Case(batch=1, heads=2, kv_heads=1, n=300, m=300, d=4, e=4, dtype=torch.float64)
    verdict = compare(built.module, built.spec, case, "torch")
    assert verdict.ok, verdict.text
    assert [alone for _, _, alone in built.module._PASSES] == [None, (1, 16)]


CHOSEN = ["the best beside a window", "the best of a bucket", "blocks by their means", "a code of two"]


@pytest.mark.parametrize("name", CHOSEN)
def test_compilers_take_new_lengths_and_data_as_they_come(name: str, tmp_path: Path) -> None:
    """After a second length nothing is compiled again, and nothing is compiled for some data alone."""
    built = build(f"attention lengths {{ {BODIES[name]} }}", tmp_path)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(built.module.attention, backend="aot_eager", fullgraph=True)
    graphs = []
    for n in (24, 40, 64, 96):
        for seed in (0, 1):
            case = Case(batch=2, heads=4, kv_heads=2, n=n, m=n, d=6, e=6, dtype=torch.float32, name=str(seed))
            data = {key: x for key, x in inputs_of(built.spec, case).items() if not key.startswith("g_")}
            data = {each.name: data[each.name].requires_grad_(each.is_real) for each in built.spec.data}
            found, chosen = compiled(**data, return_choices=True)
            wanted = built.module.attention(**data, choices=chosen)
            torch.testing.assert_close(found, wanted)
            found.sum().backward()
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1:] == [graphs[1]] * 3


def test_no_rows_and_no_batch(built: Built) -> None:
    data = {each.name: data_of(built)[each.name] for each in built.spec.data}
    for axis, name in ((0, "B"), (2, "n")):
        axes = {each.name: [getattr(one, "value", one) for one in each.axes] for each in built.spec.data}
        none = {key: x.narrow(axes[key].index(name), 0, 0) if name in axes[key] else x for key, x in data.items()}
        out, choices = built.module.attention(*none.values(), return_choices=True)
        assert out.shape[axis] == 0
        assert choices


def test_numbers_that_are_none_are_not_chosen(tmp_path: Path) -> None:
    """A key whose number is NaN counts as the last of all, and is not taken."""
    built = build("attention chosen { let best = top(3, among = causal); pattern = best }", tmp_path)
    q, k, v = (x.clone() for x in list(data_of(built).values())[:3])
    q = q[:, :, :1].expand(-1, -1, 12, -1)
    _, wanted = built.module.attention(q, k[:, :, [0, 1, 2, 3, 5, 6]], v[:, :, :6], return_choices=True, q_start=9)
    k[:, :, 4] = torch.nan
    out, choices = built.module.attention(q, k[:, :, :7], v[:, :, :7], return_choices=True, q_start=9)
    assert out.isfinite().all()
    expected = wanted["best"][:, :, :1]
    assert torch.equal(choices["best"][:, :, :1], expected + (expected >= 4))
