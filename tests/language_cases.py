"""Small specs as text that once were compiled wrongly, or not at all; the key says what each is about."""

from __future__ import annotations

CASES: dict[str, str] = {
    "a score of the query alone has gradients": """
  input g[B, H, n]
  param heat[H] = 0.5
  weight = exp(score) * sigmoid(g)
  score = tanh(g) * heat[h]
  normalize = 1""",
    "a score of the key alone": """
  param tau = 0.5
  score = largest(k) / 4
  normalize = rows + count * exp(tau)""",
    "a feature chosen by the head": """
  input u[B, H, n, 8]
  score = scale * dot(q, k) + u[i, h % 8]""",
    "features compared with features": """
  score = sum(q > k ? q : 0.5 * k) / 4""",
    "a number inside a sum over channels": """
  input s[B, H, m]
  score = sum(tanh(s * q + k)) / d""",
    "a learned number inside a sum over channels": """
  param heat[H] = 0.5
  score = sum(tanh(q * k + heat[h])) / d""",
    "d, where no vector is so wide": """
  input p[B, n, d], u[B, H, n, 8], w[B, H, m, 8]
  score = (sum(p) / d - dot(u, w)) / d
  value = w""",
    "e, where values have another width": """
  let q = unit(q)
  let k = unit(k)
  score = 3 * dot(q, k) * e / d
  value = k""",
    "scale, d and e without q, k and v": """
  input u[B, H, n, 8], w[B, H, m, 8]
  score = scale * dot(u, w)
  value = w
  normalize = rows + d + e""",
    "vectors of queries without heads": """
  input p[B, n, d], w[B, H, m, 8]
  param a[H, d], heat[H] = 0.5
  score = heat[h] * log(1 + abs(i - j)) + dot(p, a[h]) / d
  value = w""",
    "a square matrix": """
  param M[d, d]
  score = scale * dot(q @ M, k)""",
    "tables with names that launches use": """
  param grid[5, 4], entry[H, 3], exponent_kept[7]
  score = scale * dot(q, k) + grid[i % 5, j % 4] + entry[h, (i + j) % 3] + exponent_kept[(2 * i + j) % 7]""",
    "a table indexed by the score": """
  param t[5]
  weight = exp(score) * t[clip(floor(score), 0, 4)]""",
    "words that take a table and numbers of tokens": """
  param t[8]
  input s[B, m]: int, g[B, m]
  function near(table, x) = table[x] + 0.5 * table[(x + 1) % 8]
  function change(x) = x[i] - x[j]
  score = scale * dot(q, k) + near(t, s) + tanh(change(g))""",
    "whole vectors": """
  input near[B, H, n, 4]: int
  score = dot(q, k) / 8 + near[i, j % 4]""",
    "a slope that is the exponent itself": """
  param rate[H] = -3
  pattern = causal
  weight = dot(elu(q) + 1, elu(k) + 1) * exp(-exp(rate[h]) * (i - j))
  normalize = rows + 1e-3""",
    "powers of 0 and below, and roots of squares": """
  pattern = causal
  weight = exp(score) * ((-0.5)^(i - j) + ((h - 2) / 8)^(i - j)) + (score^2)^1.5
  normalize = count""",
    "sums of gates, in which differences keep their digits": """
  input g[B, H, m]
  let G = cumsum(min(g, 0))
  pattern = causal
  weight = exp(G[i] - G[j]) * scale * dot(q, k)
  normalize = none""",
    "sums of gates for each feature": """
  input g[B, H, m, d]
  let G = cumsum(min(g, 0))
  pattern = causal
  weight = sum(q * k * exp(G[i] - G[j]))
  normalize = none""",
    "sums of gates in a score": """
  input g[B, H, m]
  let G = cumsum(log(sigmoid(g)))
  pattern = causal
  score = scale * dot(q, k) + G[i] - G[j]""",
    "sums of gates that differ between heads of one key head": """
  input g[B, H, m]
  let G = cumsum(min(g, 0) * (h + 1))
  pattern = causal
  weight = exp(0.1 * (G[i] - G[j])) * dot(q, k)
  normalize = none""",
    "softmax over keys": """
  let q = softmax_of(q)
  let k = softmax_over_keys(k)
  weight = dot(q, k)
  normalize = none""",
    "the largest and the mean of all keys": """
  let u = k - stop_gradient(largest(largest_over_keys(k)))
  let centre = mean_over_keys(v)
  weight = dot(exp(q - largest(q)), exp(u))
  normalize = rows + 1e-3
  value = v - centre""",
    "each channel by its own sum": """
  input g[B, H, m]
  let G = cumsum(min(g, 0))
  pattern = causal
  weight = exp(G[i] - G[j]) * dot(softmax_of(q), exp(k))
  normalize = channels""",
    "channels of a branch, of which some have no weight": """
  branch one { pattern = window(2); weight = dot(q, relu(k)); normalize = channels }
  branch two { pattern = causal }
  combine = one + two""",
    "keys read where queries stand": """
  input s[B, m], kind[B, m]: int
  param t[8]
  score = scale * dot(q + k[i], k) + s[i] * s[j] + t[kind[i] % 8]
  normalize = rows + exp(s[i])""",
    "a weight of the query's position alone": """
  pattern = causal
  weight = dot(q[i], k[i])
  normalize = count""",
    "a number of each head that only the divisor reads, once keys are counted": """
  score = scale * dot(q, k) / count
  weight = exp(score) - 0.5
  normalize = count * (h + 2)""",
    "a position that only the divisor reads, once keys are counted": """
  score = scale * dot(q, k) / count
  weight = exp(score) - 0.5
  normalize = count * (i + 2)""",
    "a norm inside a choice by feature": """
  let q = unit(q)
  score = sum(q > k ? q : 0.5 * k)""",
}


def text_of(name: str) -> str:
    """The spec of a case."""
    return f"attention found {{{CASES[name]}\n}}\n"
