"""Decoding: `step` on one token after the other gives what `attention` gives for the whole sequence."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from attncc.check.calls import inputs_of
from attncc.check.fit import head_counts
from attncc.check.sizes import Case
from attncc.diagnostics import AttnError
from attncc.spec.data import Data, Size
from attncc.spec.model import Spec
from tests.emit.test_states_against_oracle import BY_CHANNEL, DECAY, ELU, GATED, WEIGHTS
from tests.modules import ROOT, SMALL, Built, build, build_file

CASE = Case(batch=2, heads=4, kv_heads=2, n=77, m=77, d=6, e=6, dtype=torch.float64)
PATTERNS = {
    "causal": "causal",
    "window": "window(13)",
    "window and first keys": "causal & (window(13) | global(4))",
    "earlier chunks": "earlier_chunks(8)",
    "chunk": "causal & chunk(16)",
    "stride": "causal & (window(7) | stride(5))",
    "dilated": "dilated(20, 0, 3)",
    "of some heads": "by_head [causal, window(17), window(3), earlier_chunks(8)]",
    "window by head": "causal & i - j < 9 * (h + 1)",
    "strictly before": "j < i",
    "rows on strips": "causal & (i - j < 5 | i % 6 == 5)",
    "rows of some heads": "causal & (i - j < 5 | h < 2 & i % 4 == 1 | (i - j) % 7 == 0)",
}
SOFTMAX = "weight = exp(score)"
KINDS = {"softmax": SOFTMAX, "elu": ELU, "decay": DECAY, "gated": GATED, "gated by channel": BY_CHANNEL}


# To plan every spec, only to know how many tests there are, would take seconds.
CAUSAL = sorted(
    path.stem for path in (ROOT / "generated").glob("*.py") if "\ndef step(" in path.read_text(encoding="utf-8")
)
BRANCHES = {
    "merged": "branch a { pattern = window(9) }; branch b { pattern = causal; score = dot(q, k) }; "
    "combine = merge(a, b)",
    "gated": "input g[B, H, n]; branch a { pattern = window(9) }; branch b { pattern = causal; weight = dot(q, k); "
    "normalize = none }; combine = sigmoid(g) * a - b",
    "by position": "branch a { pattern = window(9) }; branch b { pattern = causal }; combine = sin(i) * a + b",
    "of blocks that overlap": "branch a { let k = pool(unit(k), 6, 4) at 4 * j + 5; "
    "let v = pool(v, 6, 4) at 4 * j + 5; pattern = causal }; branch b { "
    "let best = top(2, by = shares(a), among = j // 8 < i // 8, blocks = 8); "
    "pattern = causal & (best | i // 8 == j // 8) }; combine = a + b",
    "of blocks with numbers": "input g[B, H, m]; branch a { let k = pool(k, 5) at 5 * j + 4; "
    "let v = pool(v, 5) at 5 * j + 4; let u = pool(tanh(g), 5) at 5 * j + 4; "
    "pattern = i - j >= 3; score = dot(q, k) + u }; "
    "branch b { pattern = window(9) }; combine = merge(a, b)",
    "of some length": "branch a { pattern = causal; weight = sigmoid(score - log(n)); normalize = none }; "
    "branch b { pattern = earlier_chunks(8); weight = dot(q, k) / m; normalize = none }; combine = a + b",
}


def tokens(data: Data, x: Tensor, low: int, high: int) -> Tensor:
    """What belongs to some tokens; tables belong to all."""
    for size in (Size.QUERIES, Size.KEYS):
        if size in data.axes:
            x = x.narrow(data.axes.index(size), low, high - low)
    return x


def some(spec: Spec, inputs: Mapping[str, Tensor], low: int, high: int) -> list[Tensor]:
    return [tokens(each, inputs[each.name], low, high) for each in spec.data]


def case_of(spec: Spec, case: Case) -> Case:
    heads = head_counts(spec)
    return case if (case.heads, case.kv_heads) in heads else replace(case, heads=heads[-1][0], kv_heads=heads[-1][1])


def new_cache(module: ModuleType, length: int) -> object:
    fields = module.Cache.__dataclass_fields__
    return module.Cache(length) if "length" in fields else module.Cache()


def decoded(built: Built, inputs: Mapping[str, Tensor], steps: list[int], first: int = 0) -> tuple[Tensor, object]:
    """The rows that steps of some tokens each give, after a prefill of the first ones."""
    module, spec = built.module, built.spec
    outs = []
    length = first + sum(steps)
    cache = new_cache(module, length)
    if first:
        own = {"length": length} if "length" in module.Cache.__dataclass_fields__ else {}
        out, cache = module.prefill(*some(spec, inputs, 0, first), **own)
        outs.append(out)
    at = first
    for count in steps:
        out, cache = module.step(*some(spec, inputs, at, at + count), cache)
        outs.append(out)
        at += count
    return torch.cat(outs, 2), cache


def check(built: Built, case: Case = CASE) -> None:
    case = case_of(built.spec, case)
    inputs = inputs_of(built.spec, case)
    whole = built.module.attention(*(inputs[each.name] for each in built.spec.data))
    for steps, first in (([1] * case.n, 0), ([1] * (case.n - 41), 41), ([3, 1, 17, 9, 1, 1], case.n - 32)):
        found, _ = decoded(built, inputs, steps, first)
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_specs(name: str, tmp_path: Path) -> None:
    check(build_file(name, tmp_path, **SMALL.get(name, {})))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", KINDS)
def test_patterns(pattern: str, kind: str, tmp_path: Path) -> None:
    check(build(f"attention x {{ pattern = {PATTERNS[pattern]}; {KINDS[kind]} }}", tmp_path))


ATOMS = (
    "window(9)",
    "chunk(12)",
    "earlier_chunks(8)",
    "stride(5)",
    "global(3)",
    "dilated(18, 0, 4)",
    "i - j > 6",
    "j < 20",
)


@pytest.mark.parametrize("seed", range(16))
def test_patterns_that_are_drawn(seed: int, tmp_path: Path) -> None:
    """Whatever the pattern and the weight, rows of steps are those of the whole sequence."""
    drawn = random.Random(seed)
    pattern = "causal & (" + drawn.choice(ATOMS)
    for _ in range(drawn.randint(0, 2)):
        pattern += f" {drawn.choice('&|')} {drawn.choice(ATOMS)}"
    weight = drawn.choice([*KINDS.values(), *WEIGHTS.values()])
    try:
        built = build(f"attention x {{ pattern = {pattern}); {weight} }}", tmp_path)
    except AttnError as error:
        assert "E301" in str(error)  # no pair is related
        return
    check(built)


@pytest.mark.parametrize("name", BRANCHES)
def test_branches(name: str, tmp_path: Path) -> None:
    check(build(f"attention x {{ {BRANCHES[name]} }}", tmp_path))


def test_tables(tmp_path: Path) -> None:
    """Tables that are looked up by a query, by a key or by their distance go along; by both together they do not."""
    check(build("attention x { input t[80, 80]; pattern = causal; score = dot(q, k) + t[i, j] }", tmp_path))
    check(build("attention x { input t[99]; pattern = causal; score = dot(q, k) + t[i - j] }", tmp_path))
    text = "attention x { input t[40]; pattern = causal; score = dot(q, k) + t[(i + j) % 40] }"
    assert not hasattr(build(text, tmp_path).module, "step")


def test_a_branch_that_looks_ahead_has_no_step(tmp_path: Path) -> None:
    built = build("attention x { branch a { pattern = causal }; branch b { }; combine = a + b }", tmp_path)
    assert not hasattr(built.module, "step") and not hasattr(built.module.Attention, "step")


@pytest.mark.parametrize("weight", WEIGHTS)
def test_weights_that_come_apart(weight: str, tmp_path: Path) -> None:
    check(build(f"attention x {{ pattern = causal; {WEIGHTS[weight]} }}", tmp_path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype, tmp_path: Path) -> None:
    case = replace(CASE, dtype=dtype)
    for text in (ELU, SOFTMAX, GATED):
        built = build(f"attention x {{ pattern = causal; {text} }}", tmp_path)
        inputs = inputs_of(built.spec, case)
        whole = built.module.attention(*(inputs[each.name] for each in built.spec.data))
        found, cache = decoded(built, inputs, [1] * case.n)
        assert found.dtype == dtype
        assert all(x.dtype == torch.float32 for x in getattr(cache, "sums", ()))
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, whole, rtol=tolerance, atol=tolerance * float(whole.abs().max()))


@pytest.mark.parametrize(
    ("pattern", "weight", "most"),
    [("causal", ELU, 64), ("window(13)", SOFTMAX, 64), ("causal & (window(13) | global(4))", SOFTMAX, 64)],
)
def test_what_is_kept_does_not_grow(pattern: str, weight: str, most: int, tmp_path: Path) -> None:
    built = build(f"attention x {{ pattern = {pattern}; {weight} }}", tmp_path)
    inputs = inputs_of(built.spec, replace(CASE, n=300, m=300))
    for first in (0, 211):
        _, cache = decoded(built, inputs, [1] * (300 - first), first)
        assert all(x.shape[2] <= most for x in cache.keys)  # type: ignore[attr-defined]


def test_a_cache_is_saved_and_moved(tmp_path: Path) -> None:
    built = build(f"attention x {{ pattern = causal; {GATED} }}", tmp_path)
    inputs = inputs_of(built.spec, CASE)
    whole, _ = decoded(built, inputs, [1] * 50)
    _, cache = decoded(built, inputs, [1] * 49)
    file = io.BytesIO()
    torch.save(vars(cache), file)
    file.seek(0)
    again = built.module.Cache(**torch.load(file)).to("cpu")
    out, again = built.module.step(*some(built.spec, inputs, 49, 50), again)
    torch.testing.assert_close(out, whole[:, :, 49:])


def test_refusals(tmp_path: Path) -> None:
    built = build("attention x { pattern = causal }", tmp_path)
    q = torch.zeros(1, 2, 4, 8)
    _, cache = built.module.step(q, q, q, built.module.Cache())
    with pytest.raises(ValueError, match="the number of keys is 4, expected one for each of 1 rows"):
        built.module.step(q[:, :, :1], q, q, cache)
    with pytest.raises(ValueError, match="what is new"):
        built.module.step(q.double(), q.double(), q.double(), cache)
    with pytest.raises(ValueError, match="what is new"):
        built.module.step(q[:, :1], q[:, :1], q[:, :1], cache)
    assert cache.position == 4
    with pytest.raises(ValueError, match="cache is NoneType, expected a Cache"):
        built.module.step(q, q, q, None)
    assert not hasattr(build("attention x { }", tmp_path).module, "step")


NO_TOKEN = (f"pattern = causal; {GATED}", f"pattern = window(9); {BY_CHANNEL}", "pattern = window(9)")


@pytest.mark.parametrize("text", NO_TOKEN)
def test_a_step_of_no_token(text: str, tmp_path: Path) -> None:
    built = build(f"attention x {{ {text} }}", tmp_path)
    inputs = inputs_of(built.spec, CASE)
    whole = built.module.attention(*(inputs[each.name] for each in built.spec.data))
    out, cache = built.module.prefill(*some(built.spec, inputs, 0, 0))
    assert out.shape[2] == 0
    found, at = [], 0
    for count in (0, 20, 0, 1, 0, 1):
        out, cache = built.module.step(*some(built.spec, inputs, at, at + count), cache)
        assert out.shape == (*whole.shape[:2], count, whole.shape[3])
        found.append(out)
        at += count
    torch.testing.assert_close(torch.cat(found, 2), whole[:, :, :at], rtol=1e-9, atol=1e-9)


REFUSED = {
    "a gate": f"pattern = causal; {GATED}",
    "a gate by channel": f"pattern = causal; {BY_CHANNEL}",
    "a window": "pattern = window(9)",
    "blocks": "input g[B, H, n]; branch a { let k = pool(k, 4) at 4 * j + 3; let v = pool(v, 4) at 4 * j + 3; "
    "pattern = causal }; branch b { pattern = window(9) }; combine = a + g * b",
    "branches": "input g[B, H, m]; let G = cumsum(min(g, 0)); branch a { pattern = window(9) }; "
    "branch b { pattern = causal; weight = exp(G[i] - G[j]) * score; normalize = none }; combine = a + b",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_step_leaves_the_cache_as_it_was(name: str, tmp_path: Path) -> None:
    built = build(f"attention x {{ {REFUSED[name]} }}", tmp_path)
    spec, inputs = built.spec, inputs_of(built.spec, CASE)
    whole = built.module.attention(*(inputs[each.name] for each in spec.data))
    _, cache = built.module.prefill(*some(spec, inputs, 0, 30))
    last = spec.data[-1].name
    new = some(spec, inputs, 30, 31)
    wrong = [[change(each) for each in new] for change in (lambda x: x[:1], lambda x: x.float())]
    wrong.append([each[:1] if data.name == last else each for data, each in zip(spec.data, new, strict=True)])
    for each in wrong:
        with pytest.raises(ValueError):
            built.module.step(*each, cache)
    for at in range(30, 40):
        out, cache = built.module.step(*some(spec, inputs, at, at + 1), cache)
        torch.testing.assert_close(out, whole[:, :, at : at + 1], rtol=1e-9, atol=1e-9)


def test_full_blocks_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step pools the keys of blocks that are not full, and lays out those tiles of keys alone that its row meets."""
    built = build_file("nsa", tmp_path, **SMALL["nsa"])
    case = replace(CASE, n=2000, m=2000)
    inputs = inputs_of(built.spec, case)
    module, lengths, sizes = built.module, [], []
    pooled, tiled = module._pooled, module._tiled

    def counted(x: Tensor, *others: object) -> Tensor:
        lengths.append(x.shape[2])
        return pooled(x, *others)  # type: ignore[no-any-return]

    def counted_tiles(*others: object) -> Tensor:
        sizes.append(tiled(*others).shape[1:3].numel())
        return tiled(*others)  # type: ignore[no-any-return]

    _, cache = module.prefill(*some(built.spec, inputs, 0, 1970))
    _, cache = module.step(*some(built.spec, inputs, 1970, 1971), cache)  # which fills the cache with blocks
    monkeypatch.setattr(module, "_pooled", counted)
    monkeypatch.setattr(module, "_tiled", counted_tiles)
    for at in range(1971, 2000):
        module.step(*some(built.spec, inputs, at, at + 1), cache)
    assert lengths
    assert max(lengths) <= 2 * 16  # of a block that is chosen, the longest
    assert max(sizes) <= 4 * 64
