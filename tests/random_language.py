"""Random specs that use the whole language: declared data, lets, vectors, own words, lambdas, derived values.

Every list begins with what is plainest. `pick` is the only source of randomness, as in `random_specs`. Names that the
texts of an ingredient read are declared because they are read, see `DECLARED`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.random_specs import Pick, random_pattern, random_weight

DECLARED: dict[str, str] = {
    "tau": "param tau = 0.5",
    "heat": "param heat[H] = 0.5",
    "near": "param near[H, 17] = 0",
    "shared": "param shared[17]",
    "bias": "param bias[H, 8] = 0",
    "grid": "param grid[5, 4]",
    "cells": "param cells[H, 5, 4]",
    "ring": "param ring[11]",
    "long": "param long[H, 50]",
    "blocks": "param blocks[H, 7]",
    "kinds": "param kinds[4, 4]",
    "a": "param a[H, d]",
    "b": "param b[H, d] = 0.25",
    "c": "param c[H, 6]",
    "gain": "param gain[d] = 1",
    "gain_v": "param gain_v[e] = 1",
    "A": "param A[H, d, 6]",
    "B1": "param B1[H, d, 6]",
    "M": "param M[d, d]",
    "O": "param O[H, e, 12]",
    "places": "param places[40, d]",
    "g": "input g[B, H, n]",
    "r": "input r[B, n]",
    "s": "input s[B, H, m]",
    "t": "input t[B, m]",
    "u": "input u[B, H, n, 8]",
    "w": "input w[B, H, m, 8]",
    "p": "input p[B, n, d]",
    "z": "input z[B, H, m, d]",
    "own": "input own[B, n]: int",
    "other": "input other[B, m]: int",
}

OF_HEAD = (
    "heat[h]",
    "tau",
    "sigmoid(heat[h])",
    "[0.5, 0.01, 0.1, 1, 0.3, 0.25][h]",
    "by_head [0.3, heat[h], 0.1]",
    "dot(a[h], b[h]) / d",
    "alibi_slope(h, H)",
    "exp(0.5 * heat[h])",
)

OF_ROW = (
    "g",
    "r[i]",
    "long[h, clip(i, 0, 49)]",
    "dot(a[h], q) / 4",
    "sum(q) / d",
    "largest(q) / 4",
    "norm(q) / d",
    "mean(q^2)",
    "u[i, 3]",
    "u[i, h % 8]",
    "tanh(g) * heat[h]",
    "shared[i % 17]",
    "dot(p, a[h]) / d",
    "(own > 2 ? 0.5 : -0.25)",
    "sin(0.3 * i) * g",
)

OF_KEY = (
    "s",
    "t[j]",
    "long[h, clip(j, 0, 49)]",
    "dot(b[h], k) / 4",
    "sum(k) / d",
    "largest(k) / 4",
    "norm(k) / d",
    "mean(abs(k))",
    "w[j, 3]",
    "w[j, (h + 1) % 8]",
    "tanh(s) * heat[h]",
    "shared[j % 17]",
    "dot(k, z) / d",
    "(other in [1, 3] ? 0.5 : -0.25)",
)

OF_DISTANCE = (
    "near[h, clip(j - i, -8, 8) + 8]",
    "shared[clip(i - j, 0, 16)]",
    "bias[h, bucket_before(j - i, 8, 32)]",
    "bias[h, bucket_around(j - i, 8, 32)]",
    "heat[h] * log(1 + abs(i - j))",
    "sin(0.1 * (i - j)) * tau",
    "exp(-abs(i - j) * exp(heat[h])) * tau",
    "near[(h + 1) % H, (i - j) % 17]",
    "-abs(heat[h]) * abs(i - j) * 0.1",
)

OF_PAIR = (
    "grid[i % 5, j % 4]",
    "cells[h, i % 5, j % 4]",
    "ring[(2 * i + j) % 11]",
    "u[i, j % 8]",
    "w[j, i % 8]",
    "u[i, j % 8] * w[j, i % 8]",
    "u[i, j // 4 % 8]",
    "kinds[clip(own, 0, 3), clip(other, 0, 3)]",
    "kinds[clip(own, 0, 3), j % 4]",
    "blocks[h, clip(i // 4 - j // 4, -3, 3) + 3]",
    "blocks[h, clip(own - other, -3, 3) + 3]",
    "bias[h, clip(i - j, 0, [3, 7, 5, 1, 2, 4][h])]",
    "near[h, clip(i - 2 * j, -8, 8) + 8]",
    "near[h, clip(i // 8 - j // 8, -2, 2) + 3 * clip(i % 8 - j % 8, -2, 2) + 8]",
    "sqrt(1 + abs(g - s))",
    "tanh(g * s)",
    "max(g, s)",
    "g * (i - j) * 0.05",
    "(i - j) % 3 * s * 0.2",
    "(g > s ? 0.3 : tau)",
)

PRODUCTS = (
    "scale * dot(q, k)",
    "dot(q, k) / sqrt(d)",
    "2 * dot(unit(q), unit(k))",
    "dot(rms_norm(q), rms_norm(k)) / d",
    "scale * dot(q @ A[h], k @ B1[h])",
    "dot(q @ M, k) / d",
    "scale * dot(q * gain, k)",
    "scale * dot(q * a[h], k)",
    "scale * dot(q + a[h], k)",
    "scale * dot(q + a[h], k - b[h])",
    "dot(u, w) / 3",
    "dot(p, k) / d",
    "scale * dot(q, z)",
    "scale * dot(q, k + z)",
    "scale * dot(rotated(q, i), rotated(k, j))",
    "scale * dot(rotated_pairs(q, i, 100), rotated_pairs(k, j, 100))",
    "scale * dot(q, k + places[clip(j, 0, 39)])",
    "scale * dot(q + places[clip(i, 0, 39)], k)",
    "dot(softmax_of(q), softmax_of(k))",
    "scale * dot(relu(q), relu(k))",
    "scale * dot(q, k) * tanh(dot(q, k))",
    "scale * dot(q, k) * dot(relu(q), k) / d",
    "tanh(dot(a[h], q) + dot(b[h], k))",
    "dot(a[h], q + k) / 3",
    "sum(q * k * gain) / d",
    "scale * dot(q, q * k) / 2",
    "scale * dot([channel < 4] * q, k)",
    "scale * dot(q, cos(0.2 * channel) * k)",
    "dot(tanh(q) * g, k) * scale",
    "dot(q - k, z) / d",
    "dot(c[h] * (q @ A[h]), k @ A[h]) / 6",
    "dot(q / norm(q), k) - dot(a[h], k) / d",
)

CHANNELS = (
    "dot(a[h], tanh(q + k)) / 2",
    "-sum(abs(q - k)) / d",
    "-sum((q - k)^2) / d",
    "sum(max(q, k)) / d",
    "sum(relu(q * a[h] + k)) / d",
    "dot(a[h], gelu(q + k + b[h])) / 2",
    "-sqrt(0.1 + sum((q - k)^2))",
    "sum([channel < 4] * abs(q - k)) / 4",
    "dot(q, sigmoid(q + k)) / d",
    "dot(c[h], tanh(q @ A[h] + k @ B1[h])) / 2",
    "sum(q > k ? q : 0.5 * k) / d",
    "sum(exp(-(q - k)^2)) / d",
    "sum(cos(0.3 * (i - j)) * q * k) / d",
    "sum(tanh(q * k + heat[h])) / d",
    "sum(abs(u - w)) / 8",
    "sum(tanh(s * q + k)) / d",
    "-dot(softplus(a[h]), (q - k)^2) / d",
    "sum(min(q, k, gain)) / d",
    "sum(sin(channel + q + k)) / d",
    "tanh(sum(erf(q - k)) / d) * dot(q, k) * scale",
)

LETS = (
    "q = unit(q)",
    "k = unit(k)",
    "q = rms_norm(q) * gain",
    "k = rms_norm(k) * gain + b[h]",
    "q = q * a[h] + b[h]",
    "q = rotated(q, i)",
    "k = rotated(k, j, 100)",
    "k = k @ M",
    "q = tanh(q)",
    "k = k + z",
    "k = softmax_of(k)",
    "v = relu(v)",
    "v = v * gain_v",
    "v = rms_norm(v)",
    "v = v * sigmoid(s)",
    "k = k * (1 + tanh(s))",
)

VALUES = (
    "v * gain_v",
    "unit(v)",
    "rotated(v, j)",
    "v @ O[h]",
    "sigmoid(v) * s",
    "k",
    "w",
    "v + [channel == 0] * t",
    "rms_norm(k) * gain",
    "v * heat[h]",
    "softmax_of(v)",
    "k * z",
)

# weight, whether it can be negative
WEIGHTS = (
    ("exp(score) * sigmoid(g)", False),
    ("exp(score) * s^2", False),
    ("exp(score) * exp(0.5 * s)", False),
    ("exp(score + s)", False),
    ("exp(score - g)", False),
    ("relu(score)^2 * (1 + heat[h]^2)", False),
    ("exp(score) * exp(-abs(heat[h]) * abs(i - j))", False),
    ("sigmoid(score + s)", False),
    ("sigmoid(score) * (heat[h] - 2)", True),
    ("exp(heat[h] * score)", False),
    ("exp(score + near[h, clip(j - i, -8, 8) + 8])", False),
    ("gaussian_cdf(score, tau, 0.5)", False),
    ("exp(score) * (grid[i % 5, j % 4] > 0 ? 1 : 0.5)", False),
    ("exp(score) * grid[i % 5, j % 4]", True),
    ("dot(elu(q) + 1, elu(k) + 1) / d", False),
    ("exp(score) + dot(relu(q), relu(k)) / d", False),
    ("relu(dot(a[h], q) + dot(b[h], k))", False),
    ("exp(dot(a[h], tanh(q + k)) / 2)", False),
    ("twice(tanh, score)", True),
    ("twice(x -> 0.5 * x + 0.1, score)^2", False),
    ("exp(min(score, heat[h]))", False),
    ("exp(score) * 2 ^ (heat[h] + s)", False),
    ("(score > tau ? exp(score) : 0.1)", False),
    ("s^2 + 0.1", False),
    ("exp(t)", False),
    ("exp(grid[i % 5, j % 4])", False),
    ("1 / (1 + sum((q - k)^2) / d)", False),
)

SIMILARITIES = (
    "softmax",
    "softmax(damp(score))",
    "features(x -> elu(x) + 1)",
    "additive(a[h], tanh)",
    "additive(a[h], x -> relu(x) - 0.1 * x)",
    "mine(f = x -> relu(x)^2)",
    "mine(score, sigmoid)",
    "laplace",
    "relu2(score + s)",
    "softmax_one(heat[h] * score)",
)

# normaliser, whether it is fit for signed weights
NORMALIZERS = (
    ("rows + exp(heat[h])", True),
    ("rows + softplus(tau)", True),
    ("max(rows, exp(heat[h]))", True),
    ("max(abs(rows), 0.5 + heat[h]^2)", True),
    ("rows + exp(g)", True),
    ("rows + exp(dot(a[h], q) / 4)", True),
    ("rows * (1 + sigmoid(g))", True),
    ("rows + count * exp(tau)", True),
    ("rows(exp(0.5 * score)) + heat[h]^2 + 0.5", True),
    ("rows + rows(exp(0.5 * s)) + 0.1", False),
    ("rows(s^2) + 1", True),
    ("sqrt(count) + abs(tau)", True),
    ("1 + norm(q)", True),
    ("exp(heat[h])", True),
    ("abs(heat[h]) + 1", True),
    ("count * (1 + long[h, clip(i, 0, 49)]^2)", True),
    ("rows(abs(dot(q, k))) + 1", True),
    ("rows + rows(exp(near[h, clip(j - i, -8, 8) + 8]))", False),
    ("rows + exp(2 * largest(q))", True),
)

PATTERNS = (
    "by_head [window(5), causal, stride(2)]",
    "(exists x in 0..2 : i - j == 4 * x)",
    "causal & (exists x in [1, 3, 7] : (i - j) % 8 == x)",
    "i - j in [0, 1, 5, 9]",
    "i - j in 0..12",
    "j in 2..30 & causal",
    "close",
    "h in [0, 2] ? causal : window(3, 3)",
    "h != 1 & causal",
    "by_head [false, causal]",
    "[4, 8, 2, 40, 16, 1][h] >= abs(i - j)",
    "causal & (i - j) % [1, 2, 3, 4, 5, 6][h] == 0",
    "i // [4, 8, 4, 2, 16, 3][h] == j // [4, 8, 4, 2, 16, 3][h]",
)

WORDS = {
    "close": "pattern close = -30 <= i - j < 9",
    "damp": "function damp(x, c = 2) = c * tanh(x / c)",
    "twice": "function twice(f, x) = f(f(x))",
    "mine": "similarity mine(s = score, f) { weight = f(s); normalize = rows + 1 }",
}

_ADDED = (OF_DISTANCE, OF_PAIR, OF_ROW, OF_KEY, OF_HEAD)
_WRAPPED = ("{}", "{}", "{}", "damp({})", "softcap({}, 2.5)", "({}) * {factor}", "max({}, {factor})", "silu({})")


def _score(pick: Pick) -> str:
    core = pick((PRODUCTS, PRODUCTS, CHANNELS, OF_PAIR, OF_DISTANCE, (*OF_KEY, *OF_ROW)))
    score = str(pick(core))
    for _ in range(pick((0, 1, 1, 2, 3))):
        score = f"{score} {pick('+-')} {pick(pick(_ADDED))}"
    shape = str(pick(_WRAPPED))
    return shape.replace("{factor}", pick((*OF_HEAD, *OF_ROW))).format(score)


def _weighted(pick: Pick) -> list[str]:
    """The lines for weights and normaliser."""
    form = pick(("default", "weight", "weight", "old", "similarity"))
    if form == "default":
        return pick(([], ["normalize = rows + exp(heat[h])"]))
    if form == "similarity":
        return [f"similarity = {pick(SIMILARITIES)}"]
    if form == "old":
        weight, signed, normalizer = random_weight(pick)
    else:
        (weight, signed), normalizer = pick(WEIGHTS), "rows"
    if form == "weight" or pick((True, False)):
        normalizer = pick([text for text, fits in (("rows", True), *NORMALIZERS) if fits or not signed])
    return [f"weight = {weight}", f"normalize = {normalizer}"]


def random_language_spec(pick: Pick) -> str:
    """The text of a spec that may use anything."""
    lets = [f"let {pick(LETS)}" for _ in range(pick((0, 0, 1, 2)))]
    pattern = pick(("old", "new", "both"))
    related = random_pattern(pick, pick((0, 1))) if pattern != "new" else ""
    if pattern != "old":
        related = f"({related}) | {pick(PATTERNS)}" if related else pick(PATTERNS)
    fields = [f"pattern = {related}", f"score = {_score(pick)}", *_weighted(pick)]
    if pick((False, True)):
        fields.append(f"value = {pick(VALUES)}")
    if pick((False, False, False, True)):
        fields.append("align = start")
    return whole_spec([*lets, *fields])


def has_ties(text: str) -> bool:
    """Whether features often meet in 16 bits where a function has no derivative, and rounding decides the side."""
    return bool(re.search(r"(max|min)\(q|q > k", text))


def whole_spec(statements: Sequence[str]) -> str:
    """The statements with the declarations and words that they read."""
    read = set(re.findall(r"\w+", " ".join(statements)))
    words = [text for name, text in WORDS.items() if name in read]
    declared = [text for name, text in DECLARED.items() if name in read]
    return "attention random {\n" + "".join(f"  {line}\n" for line in (*declared, *words, *statements)) + "}\n"
