"""Train a small model of characters whose layers alternate two hybrid specs, then write text with it step by step.

The text is what Python's own `help()` knows about topics. Odd layers are gated units of squared relu within chunks and
dot products with all chunks before (`specs/layers/flash_causal.attn`), even ones see a window and every l-th character
before it (`examples/striding_block.attn`). After a few minutes on two cores the model predicts held-out characters
better than a table of pairs of characters; its curve is written to `character_model.svg`, or the file that you name.

    python examples/character_model.py [CURVE.svg]
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional

import attncc

ROOT = Path(__file__).parents[1]
PIECE = 2048  # characters of a piece of the text; one piece in twenty is held out


@dataclass(frozen=True)
class Plan:
    """How large the model is, and how long it is trained."""

    dim: int = 96
    chunk: int = 32
    stride: int = 16
    pairs: int = 2  # of layers: one of each kind
    length: int = 256
    batch: int = 12
    steps: int = 400
    rate: float = 3e-3
    every: int = 25  # steps between two points of the curve


class Text:
    """The characters of a text as whole numbers, one piece in twenty held out."""

    def __init__(self, text: str) -> None:
        self.letters = sorted(set(text))
        numbers = {letter: at for at, letter in enumerate(self.letters)}
        pieces = torch.tensor([numbers[each] for each in text]).split(PIECE)
        self.seen = torch.cat([each for at, each in enumerate(pieces) if at % 20 != 10])
        self.held_out = torch.cat(pieces[10::20])

    def read(self, numbers: Tensor) -> str:
        """The text of some numbers."""
        return "".join(self.letters[each] for each in numbers.tolist())

    def bigram_loss(self) -> float:
        """Nats per held-out character of a model that knows one character before: counts of pairs, each one more."""
        size = len(self.letters)
        counts = torch.ones(size, size)
        counts.index_put_((self.seen[:-1], self.seen[1:]), torch.tensor(1.0), accumulate=True)
        logs = (counts / counts.sum(1, keepdim=True)).log()
        return -float(logs[self.held_out[:-1], self.held_out[1:]].mean())


class CharacterModel(nn.Module):
    """Characters [batch, n] to the logarithms of what comes next, [batch, n, letters]."""

    def __init__(self, letters: int, plan: Plan) -> None:
        super().__init__()
        mixed = attncc.load(ROOT / "specs/layers/flash_causal.attn", chunk=plan.chunk)
        striding = attncc.load(ROOT / "examples/striding_block.attn", l=plan.stride)
        self.letters = nn.Embedding(letters, plan.dim)
        nn.init.normal_(self.letters.weight, std=plan.dim**-0.5)
        self.layers = nn.ModuleList()
        for _ in range(plan.pairs):
            self.layers += [mixed.FlashCausal(plan.dim, s=32), striding.StridingBlock(plan.dim)]
        self.norm = nn.RMSNorm(plan.dim)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letters(letters)
        for layer in self.layers:
            x = layer(x)
        return self._logits(x)

    def step(self, letters: Tensor, caches: list | None = None) -> tuple[Tensor, list]:
        """The same for characters after those of the caches, which hold what each layer may still ask for."""
        x = self.letters(letters)
        caches = [None] * len(self.layers) if caches is None else caches
        for at, layer in enumerate(self.layers):
            x, caches[at] = layer.step(x, caches[at])
        return self._logits(x), caches

    def _logits(self, x: Tensor) -> Tensor:
        return self.norm(x) @ self.letters.weight.T


def batches(numbers: Tensor, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the text at random places, and the characters that follow each of theirs."""
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(numbers) - plan.length, (plan.batch,), generator=generator)
        pieces = numbers[starts[:, None] + torch.arange(plan.length + 1)]
        yield pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def held_out_loss(model: CharacterModel, text: Text, plan: Plan, most: int = 96) -> float:
    """Nats per held-out character, each piece read from its own beginning."""
    pieces = text.held_out[: len(text.held_out) - (len(text.held_out) - 1) % plan.length]
    known, following = pieces[:-1].view(-1, plan.length)[:most], pieces[1:].view(-1, plan.length)[:most]
    losses = [
        functional.cross_entropy(model(a).flatten(0, 1), b.flatten())
        for a, b in zip(known.split(plan.batch), following.split(plan.batch), strict=True)
    ]
    return float(torch.stack(losses).mean())


def train(model: CharacterModel, text: Text, plan: Plan) -> list[tuple[int, float]]:
    """Train the model; the points of its curve are steps and mean losses since the one before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(plan.steps // 20, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * step / plan.steps)),
    )
    curve: list[tuple[int, float]] = []
    recent: list[float] = []
    words = TextColumn("step {task.completed}/{task.total}, loss {task.fields[loss]:.3f}")
    with Progress(BarColumn(), words, TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=plan.steps, loss=math.log(len(text.letters)))
        for step, (known, following) in zip(range(1, plan.steps + 1), batches(text.seen, plan), strict=False):
            loss = functional.cross_entropy(model(known).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            recent.append(float(loss.detach()))
            progress.update(task, advance=1, loss=recent[-1])
            if step % plan.every == 0 or step == plan.steps:
                curve.append((step, sum(recent) / len(recent)))
                recent.clear()
    return curve


@torch.no_grad()
def written(model: CharacterModel, prompt: Tensor, count: int, *, whole: bool = False, seed: int = 0) -> Tensor:
    """So many characters drawn one after the other, by steps or by a forward pass over all that is there."""
    generator = torch.Generator().manual_seed(seed)
    letters, caches, new = prompt, None, prompt
    for _ in range(count):
        if whole:
            logits = model(letters[None])[0, -1]
        else:
            found, caches = model.step(new[None], caches)
            logits = found[0, -1]
        chances = (logits.double() / 0.7).softmax(-1).cumsum(-1)
        drawn = torch.rand((), generator=generator, dtype=torch.float64)
        new = (chances < drawn * chances[-1]).sum().view(1)
        letters = torch.cat((letters, new))
    return letters[len(prompt) :]


def picture(curve: Sequence[tuple[int, float]], bigram: float, held_out: float) -> str:
    """The curve as an SVG: loss over steps, and the bigram model's as a line."""
    wide, high, left, low = 640, 320, 48, 36
    top = max(loss for _, loss in curve) * 1.05
    last = curve[-1][0]

    def place(step: float, loss: float) -> tuple[float, float]:
        return left + (wide - left - 12) * step / last, (high - low) - (high - low - 12) * loss / top

    lines = []
    for each in range(math.floor(top) + 1):
        x, y = place(0, each)
        lines.append(f'<path d="M{x:.1f} {y:.1f}H{wide - 12}" stroke="#8884"/>')
        lines.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{each}</text>')
    for each in (0, last // 2, last):
        lines.append(f'<text x="{place(each, 0)[0]:.1f}" y="{high - 18}" text-anchor="middle">{each}</text>')
    for name, loss, style in (("bigram model", bigram, "#c60"), ("held out", held_out, "#080")):
        x, y = place(last, loss)
        lines.append(f'<path d="M{left} {y:.1f}H{x:.1f}" stroke="{style}" stroke-dasharray="5 4"/>')
        lines.append(f'<text x="{x:.1f}" y="{y - 5:.1f}" text-anchor="end" fill="{style}">{name} {loss:.2f}</text>')
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*each) for each in curve))
    lines.append(f'<polyline points="{points}" fill="none" stroke="#06c" stroke-width="2"/>')
    lines.append(f'<text x="{wide // 2}" y="{high - 4}" text-anchor="middle">steps</text>')
    lines.append(f'<text x="{left + 4}" y="14">nats per character</text>')
    style = 'font-family="sans-serif" font-size="12" fill="#777"'
    body = "\n".join(lines)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" {style}>\n{body}\n</svg>\n'


@dataclass(frozen=True)
class Result:
    """What a run found."""

    bigram: float
    held_out: float
    curve: tuple[tuple[int, float], ...]
    by_steps: str
    by_forward: str


def main(plan: Plan | None = None, svg: Path = Path("character_model.svg"), count: int = 240) -> Result:
    """Train, compare, draw the curve, and write a piece of text in two ways."""
    plan = plan or Plan()
    torch.manual_seed(0)
    text = Text("\n".join(topics.values()))
    model = CharacterModel(len(text.letters), plan)
    size = sum(each.numel() for each in model.parameters())
    print(f"{len(text.seen):,} characters of {len(text.letters)} kinds, {size:,} parameters")
    started = time.perf_counter()
    curve = train(model, text, plan)
    bigram, held_out = text.bigram_loss(), held_out_loss(model, text, plan)
    print(f"trained for {time.perf_counter() - started:.0f} s")
    print(f"held-out loss {held_out:.3f} nats per character; of a bigram model {bigram:.3f}")
    svg.write_text(picture(curve, bigram, held_out), encoding="utf-8")
    model.double()  # so that rounding decides no draw
    prompt = text.held_out[:64]
    started = time.perf_counter()
    by_steps = text.read(written(model, prompt, count))
    between = time.perf_counter()
    by_forward = text.read(written(model, prompt, count, whole=True))
    took = between - started, time.perf_counter() - between
    print(f"\n{text.read(prompt)}|{by_steps}\n")
    print(f"{count} characters by steps in {took[0]:.1f} s, by whole forward passes in {took[1]:.1f} s, ", end="")
    print("the same" if by_steps == by_forward else "which differ")
    return Result(bigram, held_out, tuple(curve), by_steps, by_forward)


if __name__ == "__main__":
    main(svg=Path(sys.argv[1]) if len(sys.argv) > 1 else Path("character_model.svg"))
