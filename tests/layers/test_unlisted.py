"""Layers that no paper of the catalogue describes, of the same words: they compile, are right, and learn."""

from __future__ import annotations

import pytest
import torch

from attncc.check.load import load_module
from tests.layers.shared import checked, compiled

HIERARCHY = """
attention near(w = 6) { pattern = window(w) }

attention ended(c = 4) {
  align = start
  pattern = c * j + c - 1 <= i
  normalize = rows + 1
}

# Near tokens one by one and far ones as means of blocks, gated by what a moving average has seen.
layer hierarchy(dim, h = 2, w = 6, c = 4, states = 3) {
  input x[n, dim]
  param Wq[dim, dim], Wk[dim, dim], Wv[dim, dim], Wo[dim, dim], gain[dim]
  param a[dim, states] = normal(1), e[dim, states] = normal(1), G[dim, dim], mix[dim] = 0.5
  y = rms_norm(x, gain)
  mixed = mix * y + (1 - mix) * shift(y)
  q = rope(heads(mixed @ Wq, h))
  k = rope(heads(mixed @ Wk, h))
  v = heads(y @ Wv, h)
  gate = sigmoid((ema(y, sigmoid(a), e) - running_mean(y)) @ G)
  around = merge(attend near(q, k, v, w = w))
  before = merge(attend ended(q, pool(k, c), pool(v, c), c = c))
  out = x + (gate * around + (1 - gate) * before) @ Wo
}
"""
DIFFUSION = """
# Landmarks pass what they hold to each other, again and again, and every token reads what came of it.
layer diffusion(dim, r = 4, times_round = 5) {
  input x[n, dim]
  param Wq[dim, dim], Wv[dim, dim], keep[1] = 0, gain[dim], bias[dim]
  marks = segments(layer_norm(x @ Wq, gain, bias), r)
  graph = softmax(marks @ transposed(marks) / sqrt(dim), over = features)
  held = segments(x @ Wv, r)
  spread = iterate(z -> sigmoid(keep) * held + (1 - sigmoid(keep)) * (graph @ z), held, times = times_round)
  out = x + softmax(x @ transposed(marks) / sqrt(dim), over = features) @ spread
}
"""
STREAM = """
# Gated features, a convolution that looks back, running statistics of the batch, and a running sum as context.
layer stream(dim, k = 4) {
  input x[n, dim]
  param U[dim, 2 * dim], C[k, dim], W[k, dim, dim], V[dim, dim]
  param gain[dim], bias[dim], average[dim], spread[dim]
  u = x @ U
  y = part(u, 0, 2) * sigmoid(part(u, 1, 2))
  z = silu(batch_norm(depthwise(y, C, before = k - 1), gain, bias, average, spread))
  out = x + z @ V + tanh(running_sum(convolve(z, W, before = k - 1)) / 10)
}
"""
STREAMED = STREAM.replace("batch_norm(depthwise(y, C, before = k - 1), gain, bias, average, spread)",
                          "layer_norm(depthwise(y, C, before = k - 1), gain, bias)")  # fmt: skip
STREAMED = STREAMED.replace(", average[dim], spread[dim]", "").replace("layer stream", "layer streamed")
TEXTS = {"hierarchy": HIERARCHY, "diffusion": DIFFUSION, "stream": STREAM, "streamed": STREAMED}


@pytest.mark.parametrize("name", TEXTS)
def test_it_equals_its_meaning(name: str) -> None:
    report = checked(TEXTS[name])
    assert report.ok, "\n".join(report.failures)


def test_what_is_known_of_them() -> None:
    plans = {name: compiled(text).plan for name, text in TEXTS.items()}
    assert {name for name, plan in plans.items() if plan.is_causal} == {"hierarchy", "streamed"}
    assert plans["streamed"].decoding == plans["hierarchy"].decoding == ""


def test_one_learns_to_add_up() -> None:
    """A real run: the sums of signs so far, of which a layer without a context knows nothing."""
    torch.manual_seed(0)
    made = load_module(compiled(STREAMED).text, "streamed").Streamed(dim=8)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        x = torch.randn(16, 20, 8)
        wanted = torch.tanh(x.sign()[..., 0].cumsum(-1) / 10)
        loss = (made(x)[..., 1] - x[..., 1] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4
