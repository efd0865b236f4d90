"""Random specs as text, and random calls of them; `pick` is the only source of randomness."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attncc.check.sizes import Case

Pick = Callable[[Sequence[Any]], Any]


def draws(usual: int) -> int:
    """How many specs to draw: ATTNCC_DRAWS=n asks for more than the usual few."""
    return int(os.environ.get("ATTNCC_DRAWS", usual))


_ATOMS = (
    "causal",
    "window({a}, {b})",
    "window({a})",
    "chunk({c})",
    "around({c}, 1, {s})",
    "earlier_chunks({c})",
    "dilated({a}, {b}, {s})",
    "stride({s})",
    "prefix({a})",
    "leading({s})",
    "global({s})",
    "summary({c}, {s})",
    "i - j < {s} * (h + 1)",
    "j <= i + [0, 7, 2, 30, 1, 4][h]",
    "i - j < [3, 19][h % 2]",
    "j % {c} == h % {c}",
    "(i + j) % {s} == 0",
    "i // {s} == j // {c}",
    "-({c}) <= i - j // {s} < {a}",
    "(i - j) // {c} == -1",
    "(j - i) % {c} < {s}",
    "j < m - {a}",
    "j >= n - {a}",
    "2 * j <= i",
    "2 * j - i <= {a}",
    "i >= {c}",
    "j > {a}",
    "i - j != {s}",
    "h < H // 2",
    "h % 2 == 0",
    "[{s}, 3, 25, 9, 0, 14][h] > i - j",
)

_SCORES = (
    "scale * dot(q, k)",
    "softcap(scale * dot(q, k), 2.5)",
    "scale * dot(q, k) - alibi_slope(h, H) * abs(i - j)",
    "scale * dot(q, k) - [0.5, 0.01, 0.1, 1, 0, 0.25][h] * abs(i - j)",
    "dot(q, k) / m",
    "dot(q, k) / sqrt(d) + log(1 + abs(i - j))",
    "dot(q, k) / count",
    "(i == j ? -5 : scale * dot(q, k))",
    "(i - j) % 3 * 0.25 + scale * dot(q, k)",
    "scale * dot(q, k) - 0.1 * ((i - j) // 4)",
    "clip(scale * dot(q, k), -1, 1.5)",
    "scale * dot(q, k) / valid - log(m)",
    "scale * dot(q, k) * (h + 1) / H",
    "(h % 2 == 0 ? scale * dot(q, k) : tanh(dot(q, k)))",
    "max(scale * dot(q, k), 0.1 * (j - i))",
)

# weight, whether it can be negative
_WEIGHTS = (
    ("exp(score)", False),
    ("relu(score)^2", False),
    ("sigmoid(score)", False),
    ("gaussian_cdf(score, 0.7, 0.3)", False),
    ("silu(score)", True),
    ("gelu(score)", True),
    ("exp(score) * cos(0.3 * (i - j))", True),
    ("exp(score) + exp(-score)", False),
    ("exp(score) + 0.5 * exp(0.25 * score) + 1", False),
    ("exp(score) - 0.5", True),
    ("exp(score) * (1 + relu(score))", False),
    ("exp(score) / count", False),
    ("score", True),
    ("score^2", False),
    ("score^3 / (1 + score^2)", True),
    ("exp(-0.1 * abs(i - j))", False),
    ("exp(-abs(i - j))", False),
    ("1", False),
    ("(j % 3 == 0 ? 1 : 0.25)", False),
    ("0.9 ^ abs(i - j) * dot(q, k)", True),
    ("max(score, 0.1)", False),
    ("exp(min(score, 1))", False),
    ("exp(score) / (1 + exp(score))", False),
    ("(i - j < 4 ? exp(score) : exp(0.5 * score))", False),
    ("(i - j < 4 ? exp(score) : 2)", False),
    ("exp(score)^2", False),
    ("exp(-score^2)", False),
    ("exp(score) * sigmoid(dot(q, k))", False),
    ("exp(score) * [h % 2 == 0] + sigmoid(score) * [h % 2 == 1]", False),
    ("softplus(score)", False),
    ("elu(score) + 1", False),
    ("abs(score)", False),
    ("sqrt(1 + score^2)", False),
    ("2 ^ score", False),
    ("exp2(score) * 0.5 ^ h", False),
    ("erf(score)", True),
    ("log(1 + exp(score))", False),
    ("exp(score + 0.05 * (i - j))", False),
    ("exp(score) * dot(q, k)", True),
)

# normaliser, whether it is fit for signed weights
_NORMALIZERS = (
    ("rows", True),
    ("none", True),
    ("count", True),
    ("n", True),
    ("m", True),
    ("valid", True),
    ("i + 200", True),
    ("h + 1", True),
    ("count * (h + 2)", True),
    ("2 * rows", True),
    ("rows + 1e-6", True),
    ("rows + exp(0.5)", True),
    ("rows + 1", True),
    ("rows + count", True),
    ("rows + [0.5, 1, 2, 4, 8, 16][h]", True),
    ("max(rows, 0.1)", True),
    ("max(abs(rows), 1)", True),
    ("rows(exp(0.5 * score))", True),
    ("rows + rows(exp(0.5 * score))", False),
    ("rows(1) + rows", False),
    ("sqrt(rows)", False),
    ("sqrt(1 + rows^2)", True),
    ("rows(abs(score)) + 0.1", True),
    ("rows^2 + 1", True),
    ("rows / count + 0.5", False),
    ("log(2 + rows)", False),
    ("count + rows * (i + 300) / 300", False),
    ("rows + exp(3 * sin(h))", True),
)


def random_pattern(pick: Pick, depth: int) -> str:
    """A predicate, with at most so many operators inside each other."""
    form = pick(("atom", "and", "or", "not", "choice")) if depth else "atom"
    if form == "atom":
        return pick(_ATOMS).format(a=pick((5, 0, 1, 17, 40)), b=pick((0, 3, 21)), c=pick((4, 7, 16)), s=pick((2, 1, 3)))
    left = random_pattern(pick, depth - 1)
    if form == "not":
        return f"!({left})"
    right = random_pattern(pick, depth - 1)
    if form == "choice":
        return f"({pick(('h % 2 == 0', 'i >= 20', 'h == 0', 'n == m'))} ? {left} : {right})"
    return f"({left}) {'&' if form == 'and' else '|'} ({right})"


def random_weight(pick: Pick) -> tuple[str, bool, str]:
    """A weight, whether it can be negative, and a normaliser that fits it."""
    weight, signed = pick(_WEIGHTS)
    return weight, signed, pick([text for text, fits in _NORMALIZERS if fits or not signed])


def random_spec(pick: Pick) -> str:
    """The text of a spec; the first choices of `pick` give the plainest one."""
    weight, _, normalizer = random_weight(pick)
    lines = [f"pattern = {random_pattern(pick, pick((0, 1, 2)))}"]
    lines += [f"score = {pick(_SCORES)}", f"weight = {weight}", f"normalize = {normalizer}"]
    if pick((False, False, False, True)):
        lines.append("align = start")
    return "attention random {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def random_case(pick: Pick, dtype: torch.dtype, lengths: Sequence[tuple[int, int]]) -> Case:
    """One call: lengths (n, m), shared heads, positions that may be negative, hidden keys, layouts."""
    n, m = pick(lengths)
    batch, (heads, kv_heads) = pick((2, 1)), pick(((2, 2), (4, 2), (6, 1)))
    starts = tuple(pick((0, m - n, m - n - 7, 12)) for _ in range(batch))
    hidden = tuple(pick((m, 0, m - m // 4)) for _ in range(batch))
    d, e = pick((8, 16, 40)), pick((8, 16, 24))
    q_start, k_start = pick((None, 0, m - n + 5, starts)), pick((0, 3))
    kv_lengths, strided, garbage = pick((None, (m + 1) // 2, hidden)), pick((False, True)), pick((False, True))
    sizes = f"{dtype} batch={batch} heads={heads}/{kv_heads} n={n} m={m} d={d} e={e}"
    name = f"{sizes} {q_start} {k_start} {kv_lengths} {strided} {garbage}"
    return Case(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        n=n,
        m=m,
        d=d,
        e=e,
        dtype=dtype,
        q_start=q_start,
        k_start=k_start,
        kv_lengths=kv_lengths,
        strided=strided,
        garbage=garbage,
        name=name,
    )
