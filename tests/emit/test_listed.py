"""Patterns that read data at their edges: skewed buckets, empty documents, nothing or everything marked, strides."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from attncc.check.calls import inputs_of
from attncc.check.oracle import dense
from attncc.check.sizes import Case
from attncc.spec.expr import Entry, Token, walk
from tests.modules import SMALL, Built, build, build_file

LENGTHS = (1, 7, 521)
TEXTS = {
    "buckets": "input b[B, H, m]: int\npattern = causal & b[i] == b[j]",
    "buckets by products": "input b[B, H, m]: int\npattern = causal & b[i] == b[j]\n"
    "weight = dot(q, k)\nnormalize = none",
    "rounds": "input a[B, H, m]: int, b[B, H, m]: int\npattern = a[i] == a[j] | b[i] == b[j] | i - j in [0, 1]",
    "rounds that are counted": "input a[B, H, m]: int, b[B, H, m]: int\n"
    "pattern = causal & (a[i] == a[j] | b[i] == b[j])\nweight = (i == j & count > 1 ? 0 : 1) * exp(score)",
    "times to come": "input t[B, m]: real ascending\npattern = causal & t[i] <= max(t[j], 1) + 3",
    "marks": "input mark[B, m]: bool\npattern = window(5, 5) | mark[i] | mark[j]",
    "kinds that are seen": "input kind[B, m]: int, t[H, 4]: bool\npattern = t[h, kind[j]] | i == j",
    "blocks and marks": "input t[B, H, ceil(m / 16), ceil(m / 16)]: bool, mark[B, m]: bool\n"
    "pattern = t[h, i // 16, j // 16] | mark[j]",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Modules, each built once, of texts above or of the catalogue."""
    folder = tmp_path_factory.mktemp("listed")

    @cache
    def get(name: str) -> Built:
        if name in TEXTS:
            return build(f"attention listed {{\n{TEXTS[name]}\n}}", folder)
        return build_file(name, folder, **SMALL[name])

    return get


def operands(n: int, m: int | None = None, heads: int = 4, kv_heads: int = 2, d: int = 8) -> list[Tensor]:
    """q, k, v for two batch entries."""
    generator = torch.Generator().manual_seed(n)
    shapes = ((2, heads, n, d), (2, kv_heads, m or n, d), (2, kv_heads, m or n, d + 3))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def agrees(one: Built, vectors: list[Tensor], *data: Tensor, **options: object) -> None:
    """Outputs and gradients are those of the dense meaning, without NaN, and have the same bits when computed again."""
    options = {name: torch.tensor(value) if isinstance(value, tuple) else value for name, value in options.items()}
    seed = torch.randn(*vectors[0].shape[:3], vectors[2].shape[-1], dtype=torch.float64)
    leaves = [*vectors, *(each for each in data if each.requires_grad)]
    results = []
    for out in (
        one.module.attention(*vectors, *data, form="torch", **options),
        one.module.attention(*vectors, *data, form="torch", **options),
        dense(one.spec, *vectors, *data, **options).out,  # type: ignore[arg-type]
    ):
        results.append([out, *torch.autograd.grad(out, leaves, seed, materialize_grads=True)])
    first, again, exact = results
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for found, expected in zip(first, exact, strict=True):
        assert found.isfinite().all()
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9 * float(expected.detach().abs().max().clamp(min=1)))


def skewed(n: int) -> Iterator[Tensor]:
    """Bucket numbers of two key heads: half of the tokens in one, all in one, each alone, a few that are far apart."""
    generator = torch.Generator().manual_seed(n)
    some = torch.randint(0, 40, (2, 2, n), generator=generator)
    yield some.masked_fill(torch.rand(2, 2, n, generator=generator) < 0.5, 3)
    yield torch.full((2, 2, n), -7)
    yield torch.arange(n).expand(2, 2, n)
    yield torch.randint(-(1 << 62), 1 << 62, (2, 2, 1 + n // 99), generator=generator).repeat(1, 1, 99)[..., :n]


@pytest.mark.parametrize("name", ["buckets", "buckets by products"])
@pytest.mark.parametrize("n", LENGTHS)
def test_skewed_buckets(name: str, n: int, built: Callable[[str], Built]) -> None:
    for buckets in skewed(n):
        agrees(built(name), operands(n), buckets)


@pytest.mark.parametrize("name", ["documents", "buckets"])
def test_the_largest_and_the_smallest_numbers(name: str, built: Callable[[str], Built]) -> None:
    """Hidden keys stand behind those that have the largest number there is."""
    ends = torch.tensor([-(1 << 63)] * 20 + [7] * 5 + [(1 << 63) - 1] * 45)
    data = ends.expand(2, 70) if name == "documents" else ends.expand(2, 2, 70).flip(-1)
    agrees(built(name), operands(70), data)
    agrees(built(name), operands(70), data, kv_lengths=(61, 22))


@pytest.mark.parametrize("name", ["rounds", "rounds that are counted"])
def test_several_rounds_of_buckets(name: str, built: Callable[[str], Built]) -> None:
    """In the second a query's own key counts where no other does."""
    for one, other in zip(skewed(130), reversed(list(skewed(130))), strict=True):
        agrees(built(name), operands(130), one, other)


@pytest.mark.parametrize("name", ["time_window", "times to come"])
def test_times_without_end(name: str, built: Callable[[str], Built]) -> None:
    times = torch.arange(70.0).expand(2, 70).clone()
    times[0, :9], times[:, 60:] = -torch.inf, torch.inf
    agrees(built(name), operands(70), times)
    times[1, 30] = torch.nan
    with pytest.raises(ValueError, match="NaN or falling"):
        built(name).module.attention(*operands(70), times, form="torch")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_numbers_of_several_types_and_strides(dtype: torch.dtype, built: Callable[[str], Built]) -> None:
    generator = torch.Generator().manual_seed(0)
    name = "marks" if dtype == torch.bool else "buckets"
    shape = (70, 2) if dtype == torch.bool else (70, 2, 2)
    strided = torch.randint(0, 2, shape, generator=generator).to(dtype).permute(*range(len(shape) - 1, -1, -1))
    agrees(built(name), operands(70), strided)
    agrees(built(name), operands(70), strided[:1].expand(2, *strided.shape[1:]))


LAYOUTS: dict[str, tuple[int, ...]] = {
    "heads behind tokens": (0, 2, 1, 3),
    "features before tokens": (0, 1, 3, 2),
    "batch last": (3, 1, 2, 0),
}


WHOLE_TILES = ("documents", "buckets", "marks", "explicit_topk", "nsa_selected", "buckets by products")


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", WHOLE_TILES)
def test_whole_tiles_of_vectors_that_lie_otherwise_in_memory(
    name: str, layout: tuple[int, ...], batch: int, built: Callable[[str], Built]
) -> None:
    """Tiles of keys may be views of what the caller passes; what is added up for them is not."""

    def laid(x: Tensor) -> Tensor:
        moved = x.detach()[:batch].permute(layout).contiguous().permute([layout.index(axis) for axis in range(4)])
        return moved.requires_grad_()

    generator = torch.Generator().manual_seed(0)
    data = {
        "documents": torch.randint(0, 5, (2, 128), generator=generator).sort().values,
        "marks": torch.rand(2, 128, generator=generator) < 0.1,
        "nsa_selected": torch.randint(-1, 16, (2, 4, 128, 3), generator=generator),
        "explicit_topk": None,
    }.get(name, torch.randint(0, 5, (2, 2, 128), generator=generator))
    agrees(built(name), [laid(x) for x in operands(128)], *([] if data is None else [data[:batch]]))


def test_a_table_says_which_kinds_are_seen(built: Callable[[str], Built]) -> None:
    generator = torch.Generator().manual_seed(0)
    kinds, seen = torch.randint(0, 4, (2, 70), generator=generator), torch.rand(4, 4, generator=generator) < 0.4
    agrees(built("kinds that are seen"), operands(70), kinds, seen)


def test_data_of_key_heads_serve_their_queries_heads(built: Callable[[str], Built]) -> None:
    buckets = torch.randint(0, 5, (2, 2, 70), generator=torch.Generator().manual_seed(1))
    agrees(built("buckets"), operands(70), buckets)
    agrees(built("buckets"), operands(70, kv_heads=1), buckets[:, :1])


@pytest.mark.parametrize("name", ["documents", "packed"])
@pytest.mark.parametrize("n", LENGTHS)
def test_documents_of_any_length(name: str, n: int, built: Callable[[str], Built]) -> None:
    """One that fills the row, and many with numbers left out, as where some are empty."""
    many = torch.randint(0, 2 * n, (n,), generator=torch.Generator().manual_seed(n)).sort().values
    agrees(built(name), operands(n), torch.stack((torch.zeros(n, dtype=torch.int64), many)))
    agrees(built(name), operands(n), torch.stack((torch.arange(n), many)), kv_lengths=(n, n // 3))


@pytest.mark.parametrize("n", LENGTHS)
def test_padding_anywhere(n: int, built: Callable[[str], Built]) -> None:
    at = torch.arange(n)
    rows = torch.rand(n, generator=torch.Generator().manual_seed(n)) < 0.4
    for first, second in ((at < n // 3, at >= n // 2), (rows, at >= 0), (at < 0, at == n // 2)):
        for name in ("padded", "padded_causal"):
            agrees(built(name), operands(n), torch.stack((first, second)))


def marks(n: int) -> Iterator[Tensor]:
    """A batch whose entries have none and all, few and many, the last and the first."""
    generator = torch.Generator().manual_seed(n)
    at = torch.arange(n)
    yield torch.stack((at < 0, at >= 0))
    yield torch.rand(2, n, generator=generator) < torch.tensor([[0.02], [0.7]])
    yield torch.stack((at == n - 1, at == 0))


@pytest.mark.parametrize("n", LENGTHS)
def test_any_number_of_marked_tokens(n: int, built: Callable[[str], Built]) -> None:
    for marked in marks(n):
        agrees(built("marks"), operands(n), marked)


def test_marked_tokens_with_vectors_of_their_own(built: Callable[[str], Built]) -> None:
    n = 130
    wide = [each.detach().flip(2).requires_grad_() for each in operands(n, kv_heads=2)]
    for marked in marks(n):
        padding = torch.arange(n) >= torch.tensor([[n - 9], [n]])
        agrees(built("longformer_marked"), operands(n), marked, padding, *wide)


def test_marked_keys_beside_blocks(built: Callable[[str], Built]) -> None:
    table = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.2
    for marked in marks(90):
        agrees(built("blocks and marks"), operands(90), table, marked)


@pytest.mark.parametrize("name", ["buckets", "marks"])
def test_rows_elsewhere_than_keys(name: str, built: Callable[[str], Built]) -> None:
    """Fewer rows than keys, positions of each batch entry, hidden keys."""
    data = next(skewed(70)) if name == "buckets" else list(marks(70))[1]
    agrees(built(name), operands(9, 70), data)
    agrees(built(name), operands(9, 70), data, q_start=(40, 3), kv_lengths=(61, 0))
    agrees(built(name), operands(9, 70), data, q_start=(45, 8), k_start=5)


def test_ranges_that_are_empty_or_everything(built: Callable[[str], Built]) -> None:
    n = 70
    at = torch.arange(n)
    low = torch.stack((torch.zeros(n, dtype=torch.int64), at - 3))
    agrees(built("ranges"), operands(n), low, torch.stack((at, at - 5)))
    agrees(built("ranges"), operands(n), low.int() - (1 << 30), torch.full((2, n), 1 << 30, dtype=torch.int32))


def test_new_data_and_lengths_build_nothing(built: Callable[[str], Built], monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is compiled, and nothing is kept, for a call with other data."""
    module = built("documents").module
    module.attention(*operands(5), torch.zeros(2, 5, dtype=torch.int64), form="torch")
    before = set(vars(module))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(builtins, "compile", refuse)
    monkeypatch.setattr(builtins, "exec", refuse)
    for n in (6, 70, 131):
        module.attention(*operands(n), torch.arange(n).expand(2, n) // 9, form="torch").sum().backward()
    assert set(vars(module)) == before


def scores(one: Built, n: int, *data: Tensor) -> float:
    """Scores computed for each row of a head, in all passes and branches."""
    counted = 0
    module = one.module
    kept = {name: value for name, value in vars(module).items() if name.endswith("_slabs")}

    def counting(slabs: Callable[..., Iterator[tuple[Tensor, tuple[Tensor, ...]]]]) -> Callable[..., object]:
        def run(*given: object, **named: object) -> Iterator[object]:
            nonlocal counted
            for slab, chunks in slabs(*given, **named):
                counted += sum(slab.shape[0] * slab.shape[1] * slab.shape[2] * each.count for each in chunks)  # type: ignore[attr-defined]
                yield slab, chunks

        return run

    vars(module).update({name: counting(value) for name, value in kept.items()})
    vectors = [torch.randn(1, 1, n, 8) for _ in range(3)]
    others = [torch.randn(1, 1, n, 8) for each in one.spec.data[3:] if each.is_vector]
    module.attention(*vectors, *data, *others, form="torch")
    vars(module).update(kept)
    return counted / n


@pytest.mark.parametrize(
    "name",
    ["documents", "buckets", "marks", "longformer_marked", "blocks and marks", "time_window", "times to come"],
)
def test_work_grows_as_the_length(name: str, built: Callable[[str], Built]) -> None:
    """Documents of 200 tokens, buckets of 100, 16 marked tokens wherever they stand, one block in a row."""
    found = []
    for n in (2048, 4096):
        at = torch.arange(n)[None]
        marked = torch.zeros(1, n, dtype=torch.bool)
        marked[0, torch.randperm(n, generator=torch.Generator().manual_seed(0))[:16]] = True
        table = torch.eye(-(-n // 16), dtype=torch.bool)[torch.randperm(-(-n // 16))][None, None]
        data = {
            "documents": (at // 200,),
            "buckets": (at[None] * 7919 % (n // 100),),
            "marks": (marked,),
            "longformer_marked": (marked, at > n - n // 5),
            "kinds that are seen": "input kind[B, m]: int, t[H, 4]: bool\npattern = t[h, kind[j]] | i == j",
            "blocks and marks": (table, marked),
            "time_window": (at.float() / 100,),
            "times to come": (at.float() / 50,),
        }
        found.append(scores(built(name), n, *data[name]))
    assert found[1] < 1.1 * found[0] < 1000, found


def test_the_catalogue_has_patterns_of_data() -> None:
    """What is made for others must not be taken for these."""
    from tests.peers.common import from_file

    read = {
        name
        for name in SMALL
        if any(isinstance(node, Token | Entry) for core in from_file(name).cores for node in walk(core.pattern))
    }
    assert read >= {
        *("bigbird", "bigbird_counted", "documents", "longformer_marked", "packed"),
        *("padded", "padded_causal", "ranges", "routing", "time_window"),
    }


@pytest.mark.parametrize("name", ["documents", "bigbird", "explicit_topk"])
@pytest.mark.parametrize("axis", [1, 3])
def test_gradients_of_tensors_that_lie_in_another_order(name: str, axis: int, built: Callable[[str], Built]) -> None:
    """Whole tiles in order are read where they lie; the room for their gradients is not laid out like them."""
    found = built(name)
    case = Case(batch=1, heads=2, kv_heads=2, n=128, m=128, d=16, e=16, dtype=torch.float64, name="order")
    inputs = inputs_of(found.spec, case)
    data = [inputs[each.name] for each in found.spec.data]

    def gradients(turned: bool) -> tuple[Tensor, ...]:
        own = [x.detach().clone() for x in data]
        vectors = (x.transpose(axis, 2).contiguous().transpose(axis, 2) if turned else x for x in own[:3])
        leaves = [x.requires_grad_() for x in vectors]
        return torch.autograd.grad(found.module.attention(*leaves, *own[3:]).square().sum(), leaves)

    for one, other in zip(gradients(turned=True), gradients(turned=False), strict=True):
        torch.testing.assert_close(one, other)
