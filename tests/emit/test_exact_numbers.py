"""Truth values and whole numbers of tokens in scores, weights, normalisers and values: exact, in every form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attncc.check.oracle import dense
from tests.modules import build

DECLARED = "input b[B, H, m]: int, t[B, m]: bool, r[B, H, n]: bool; "
BODIES = {
    "a choice by the key": "score = t ? 0.5 * scale * dot(q, k) : scale * dot(q, k)",
    "a choice by the row": "score = scale * dot(q, k) * (r ? 0.5 : 1)",
    "a choice by the query's own key": "pattern = causal; score = (t[i] ? 0.5 : 1) * scale * dot(q, k)",
    "a choice between tokens": "score = t & r ? 0.5 : scale * dot(q, k)",
    "not": "score = !t & !r ? 0.5 : scale * dot(q, k)",
    "an indicator": "weight = exp(score) * (1 + [t] + [r])",
    "equal numbers": "weight = exp(score) * (1 + [b[i] == b[j]])",
    "numbers apart": "score = scale * dot(q, k) + [b[i] - b[j] == 1] - [abs(b[i] - b[j]) > 3]",
    "a remainder": "weight = exp(score) * (1 + [(b[i] + b[j]) % 3 == 0])",
    "a number and a position": "score = scale * dot(q, k) + [b[j] < i] + [b[i] + j > 4]",
    "in a window": "pattern = window(3, 2); weight = exp(score) * (1 + [b[i] == b[j]])",
    "in a normaliser": "normalize = rows + [r] + [t[i]]",
    "in values": "value = t ? v : 2 * v",
    "in values by number": "value = b == 2 ? v : 0 * v",
    "in a let": "let s = t ? 1 : 0.5; let q = r ? q : 2 * q; score = s * dot(q, k)",
    "in a let read at the query": "let s = t ? 1 : 0.5; score = s[i] * dot(q, k)",
    "by feature": "score = dot(q, t ? k : channel < 3 ? k : -k)",
    "of features of pairs": "score = sum(t & r ? tanh(q + k) : q + k)",
    "a table": "input allowed[9, 9]: bool; score = allowed[clip(b[i], 0, 8), clip(b[j], 0, 8)] ? dot(q, k) : 0.5",
    "separable": "pattern = causal; weight = (t ? dot(q, k) : 2 * dot(q, k)) * (r ? 1 : 3); normalize = none",
    "in a pattern too": "pattern = b[i] == b[j] | t | i == j; score = i == j ? -30 : dot(q, k) + [b[i] == b[j]]",
    "in two passes": "pattern = b[i] == b[j] | causal & t; weight = exp(score) * ([b[i] == b[j]] + [causal & t])",
}
CALLS: dict[str, dict[str, object]] = {
    "plain": {},
    "lengths": {"kv_lengths": torch.tensor([12, 7])},
    "offsets": {"q_start": 4, "k_start": 2},
}
FAR = (1 << 40) + 1  # numbers that float32 and int32 cannot tell apart


def data_of(names: list[str], far: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    numbers = torch.randint(0, 5, (2, 2, 12), generator=generator)
    every = {
        "q": real(2, 4, 9, 6),
        "k": real(2, 2, 12, 6),
        "v": real(2, 2, 12, 5),
        "b": numbers + FAR * far,
        "t": torch.rand((2, 12), generator=generator) < 0.5,
        "r": torch.rand((2, 4, 9), generator=generator) < 0.5,
        "allowed": torch.rand((9, 9), generator=generator) < 0.5,
    }
    return {name: every[name] for name in names}


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("name", BODIES)
def test_forms_equal_the_oracle(name: str, far: bool, tmp_path: Path) -> None:
    built = build(f"attention exact {{ {DECLARED}{BODIES[name]} }}", tmp_path)
    given = data_of([each.name for each in built.spec.data], far)
    for number, call in enumerate(CALLS.values()):
        data = {x: y.clone().requires_grad_(y.is_floating_point()) for x, y in given.items()}
        leaves = [each for each in data.values() if each.requires_grad]
        exact = {x: (y.double() if y.is_floating_point() else y).detach() for x, y in given.items()}
        exact = {x: y.requires_grad_(y.is_floating_point()) for x, y in exact.items()}
        wanted = dense(built.spec, *exact.values(), **call).out  # type: ignore[arg-type]
        seed = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(number)).double()
        wanted_grads = torch.autograd.grad(
            wanted, [each for each in exact.values() if each.requires_grad], seed, materialize_grads=True
        )
        outs = {"eager": built.module.attention(*data.values(), **call)}
        prepared = built.module._prepared(*data.values(), *_scale(built.module), *_places(call))
        prepared = *built.module._operands(*prepared), *prepared[len(data) :]
        outs["plain operations"] = built.module._batched(*prepared)[0]
        for form, out in outs.items():
            torch.testing.assert_close(out.double(), wanted, rtol=2e-5, atol=2e-5, msg=form)
            found = torch.autograd.grad(out, leaves, seed.float(), materialize_grads=True)
            for one, other in zip(found, wanted_grads, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4, msg=form)


def _scale(module: object) -> tuple[None, ...]:
    return (None,) if "scale" in module.attention.__kwdefaults__ else ()  # type: ignore[attr-defined]


def _places(call: dict[str, object]) -> tuple[object, ...]:
    return call.get("kv_lengths"), call.get("q_start"), call.get("k_start", 0)


def test_steps_decode(tmp_path: Path) -> None:
    body = "pattern = causal; weight = exp(score) * (1 + [b[i] == b[j]] + [t[i]])"
    built = build(f"attention exact {{ {DECLARED.replace(', r[B, H, n]: bool', '')}{body} }}", tmp_path)
    data = {**data_of(["q", "k", "v", "b", "t"], far=True), "q": torch.randn(2, 4, 12, 6)}
    whole = built.module.attention(*data.values())
    cut = {name: each.narrow(1 if name == "t" else 2, 0, 8) for name, each in data.items()}
    out, cache = built.module.prefill(*cut.values())
    outs = [out]
    for at in range(8, 12):
        one = {name: each.narrow(1 if name == "t" else 2, at, 1) for name, each in data.items()}
        out, cache = built.module.step(*one.values(), cache)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), whole, rtol=1e-5, atol=1e-5)
