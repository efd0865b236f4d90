"""Random specs against the dense oracle: forward, log-sum-exp and gradients of the torch form.

A draw is its number: what fails is run again by `pytest -k 'draw-17'`. ATTNCC_DRAWS=2000 makes so many in place of the
usual few.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.oracle import dense
from attncc.check.properties import causality, empty_rows
from attncc.check.report import Verdict
from attncc.check.sizes import G_LSE, G_OUT, Case, arguments, make_inputs
from attncc.diagnostics import AttnError
from tests.modules import Built, build, cut_small
from tests.random_specs import Pick, random_case, random_spec
from tests.random_specs import draws as how_many

LENGTHS = ((37, 37), (20, 61), (61, 20), (1, 9), (70, 70))
REFUSED = {"E301", "E213"}  # what a random text may deserve: no pair is related, or it is too long


def draws(usual: int) -> list[int]:
    """The numbers of the draws."""
    return list(range(how_many(usual)))


def picker(number: int) -> Pick:
    """The choices of a draw."""
    random = Random(number)
    return lambda options: random.choice(list(options))


def drawn(
    pick: Pick, folder: Path, make: Callable[[Pick], str] = random_spec, *, in_c: bool = False
) -> tuple[str, Built]:
    """The first spec that is not refused for good reason, and its module."""
    while True:
        text = make(pick)
        try:
            return text, build(text, folder, in_c=in_c)
        except AttnError as error:
            codes = {each.code for each in error.diagnostics}
            assert codes <= REFUSED, f"{text}\n{error}"


def right(verdict: Verdict) -> bool:
    """Within the limits, doubled in bfloat16: rounding depends on where a weight lies between two powers of two."""
    slack = 2.5 if verdict.case.dtype == torch.bfloat16 else 1.0
    return not verdict.fault and all(not each.fault and each.used <= slack for each in verdict.comparisons)


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(20), ids=lambda number: f"draw-{number}")
def test_torch(number: int, tmp_path: Path) -> None:
    pick = picker(number)
    text, built = drawn(pick, tmp_path)
    if pick((True, False)):
        cut_small(built.module)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        case = random_case(pick, dtype, LENGTHS)
        verdict = compare(built.module, built.spec, case, "torch")
        assert right(verdict), f"{text}\n{verdict.text}"
    for probe in (causality, empty_rows):
        found = probe(built.module, built.spec, "torch")
        assert found is None or found.ok, f"{text}\n{found.text}"


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(10), ids=lambda number: f"draw-{number}")
def test_plain_operations(number: int, tmp_path: Path) -> None:
    """What compilers and second derivatives take equals the slabs, and `weights` equals the oracle's."""
    pick = picker(number)
    text, built = drawn(pick, tmp_path)
    case = random_case(pick, torch.float64, (*LENGTHS, (150, 170)))
    compare_plain(built, case, text)


def compare_plain(built: Built, case: Case, text: str) -> None:
    module, inputs = built.module, make_inputs(case)
    leaves = [inputs[name].detach().requires_grad_() for name in "qkv"]
    options = {name: value for name, value in arguments(case, inputs).items() if name != "scale"}
    has_lse = "return_lse" in module.attention.__kwdefaults__
    eager = module.attention(*leaves, **options, **({"return_lse": True} if has_lse else {}))
    eager = eager if has_lse else (eager,)
    scale = (None,) if built.spec.reads_scale else ()
    prepared = module._prepared(*leaves, *scale, options["kv_lengths"], options["q_start"], options["k_start"])
    if hasattr(module, "_operands"):  # where weights are not made of all that the spec reads
        prepared = (*module._operands(*prepared), *prepared[3:])
    plain = module._batched(*prepared)
    if has_lse:  # among the row numbers it is the one that equals the eager one
        plain = (plain[0], next(each for each in plain[1:] if torch.allclose(each, eager[1], equal_nan=True)))
    upstream = [inputs[G_OUT], inputs[G_LSE]]
    results = []
    for outs in (eager, plain[: len(eager)]):
        reached = [(out, seed) for out, seed in zip(outs, upstream, strict=False) if out.requires_grad]
        ends, seeds = zip(*reached, strict=True)
        results.append((*outs, *torch.autograd.grad(ends, leaves, seeds, materialize_grads=True)))
    results.append((dense(built.spec, *leaves, **options).weights,))
    read = [
        leaf for name, leaf in zip("qkv", leaves, strict=True) if name in inspect.signature(module.weights).parameters
    ]
    results.append((module.weights(*read, **options),))
    for one, other in ((results[1], results[0]), (results[3], results[2])):
        for found, expected in zip(one, other, strict=True):
            size = expected.detach().nan_to_num(0, 0, 0).abs().max().clamp(min=1e-3) if expected.numel() else 1.0
            assert torch.allclose(found / size, expected / size, rtol=1e-9, atol=1e-9), f"{text}\n{case.name}"
