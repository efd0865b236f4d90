"""Patterns that read data against the dense oracle: the Triton form, whose kernels walk lists, in the interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.fit import fits
from attncc.check.sizes import Case
from tests.modules import build

PATTERNS = {
    "documents": "input doc[B, m]: int ascending; pattern = causal & doc[i] == doc[j]",
    "labels": "input label[B, m]: int; pattern = causal & label[i] == label[j]",
    "labels of heads": "input label[B, H, m]: int; pattern = causal & label[i] == label[j]",
    "bounds": "input lo[B, n]: int, hi[B, n]: int; pattern = lo[i] <= j < hi[i]",
    "bounds of heads": "input lo[B, H, n]: int, hi[B, H, n]: int; pattern = lo[i] <= j < hi[i]",
    "marks": "input mark[B, m]: bool; pattern = window(9, 9) | mark[i] | mark[j]",
    "marks of heads": "input mark[B, H, m]: bool; pattern = window(9) | mark[j]",
    "labels or near": "input label[B, m]: int; pattern = causal & (label[i] == label[j] | i - j < 5)",
    "labels of heads or near": "input label[B, H, m]: int; pattern = causal & (label[i] == label[j] | i - j < 5)",
    "padding": "input pad[B, m]: bool; pattern = causal & !pad[j]",
    "reals": "input time[B, H, m]: real; pattern = abs(time[i] - time[j]) < 0.5",
    "blocks": "input t[B, H, ceil(n / 16), ceil(m / 16)]: bool; pattern = t[h, i // 16, j // 16]; align = start",
    "a table of kinds": "input kind[B, m]: int, may[4, 4]: bool; pattern = may[kind[i], kind[j]] & causal",
    "by head": "input doc[B, m]: int; pattern = by_head [causal & doc[i] == doc[j], window(5, 5)]",
}
LISTS = {
    "lists of blocks and keys": "input sel[B, H, n, 3]: int, doc[B, m]: int; "
    "pattern = causal & j // 64 in sel & doc[i] == doc[j] | window(3, 3) & !(j in sel)",
    "blocks and keys that are chosen": "let first = top(2); branch near { pattern = window(9) }; branch far { "
    "let best = top(1, by = shares(near), blocks = 16, heads = grouped); pattern = causal & (best | first) }; "
    "combine = far",
}
WEIGHTS = {
    "softmax": "",
    "squares": "weight = relu(score) ^ 2; normalize = count",
    "channels": "param w[H, d] = 0.2; score = dot(w[h], tanh(q + k))",
    "biases": "param bias[H, 32]; score = scale * dot(q, k) + bias[h, clip(i - j, 0, 31)]",
    "a sink": "param sink[H] = 0.3; normalize = rows + exp(sink[h])",
    "products of features": "weight = dot(elu(q) + 1, elu(k) + 1); normalize = rows + 0.001",
    "numbers of tokens": "input g[B, H, m], u[B, H, n]; weight = exp(score) * sigmoid(g[j] + u[i]); normalize = count",
}
PLAIN = Case(batch=2, heads=4, kv_heads=2, n=70, m=70, d=8, e=24, dtype=torch.float32, name="square")


def spec_of(pattern: str, weight: str = "") -> str:
    lines = (line.strip() for part in (pattern, weight) for line in part.split("; "))
    return "attention listed {\n" + "".join(f"  {line}\n" for line in lines if line) + "}\n"


def check(text: str, folder: Path, *cases: Case) -> None:
    built = build(text, folder)
    for case in (each for each in cases if fits(built.spec, each)):
        verdict = compare(built.module, built.spec, case, "triton")
        assert verdict.ok, f"{text}\n{verdict.text}"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern: str, tmp_path: Path) -> None:
    check(
        spec_of(PATTERNS[pattern]),
        tmp_path,
        PLAIN,
        replace(PLAIN, n=33, m=75, kv_lengths=(50, 0), strided=True, garbage=True, name="hidden keys, strided"),
    )


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("pattern", ("labels or near",))
def test_weights(pattern: str, weight: str, tmp_path: Path) -> None:
    length = 34 if weight == "channels" else 66
    check(spec_of(PATTERNS[pattern], WEIGHTS[weight]), tmp_path, replace(PLAIN, batch=1, n=length, m=length))


@pytest.mark.parametrize("pattern", ("documents", "labels of heads", "bounds"))
def test_sizes(pattern: str, tmp_path: Path) -> None:
    check(
        spec_of(PATTERNS[pattern]),
        tmp_path,
        *(replace(PLAIN, batch=1, heads=2, n=n, m=n, name=f"{n} tokens") for n in (1, 7, 63, 130)),
        replace(PLAIN, batch=1, m=0, n=3, q_start=0, name="no keys"),
        replace(PLAIN, heads=2, n=9, m=40, q_start=(5, 30), k_start=3, name="positions of their own"),
        replace(PLAIN, heads=2, n=40, dtype=torch.bfloat16, name="16 bits"),
    )


@pytest.mark.parametrize("pattern", LISTS)
def test_lists_of_rows(pattern: str, tmp_path: Path) -> None:
    check(spec_of(LISTS[pattern]), tmp_path, replace(PLAIN, batch=1, heads=2, kv_heads=1, n=66, m=80, kv_lengths=75))
