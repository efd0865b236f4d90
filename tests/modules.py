"""Specs → imported modules, for tests."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from attncc.compiler import Compiled, compile_source, read_source
from attncc.diagnostics import Source
from attncc.emit.whole import emit
from attncc.plan.choose import plan
from attncc.spec.model import Spec

ROOT = Path(__file__).parents[1]
SPECS = ROOT / "specs"

# Parameters with which every bound of a pattern lies within a few dozen positions.
SMALL: dict[str, dict[str, object]] = {
    "additive": {},
    "aft_simple": {},
    "alibi": {},
    "axial": {"width": 9},
    "based": {},
    "bigbird": {"c": 16},
    "bigbird_counted": {"c": 16},
    "block_causal_linear": {"c": 16},
    "block_diagonal": {"c": 24},
    "causal": {},
    "compressed": {"width": 8, "stride": 4},
    "cosformer": {"longest": 160},
    "cosformer_causal": {"longest": 160},
    "cosine": {},
    "differential": {},
    "dilated_linear": {"w": 9, "step": 3},
    "dilated_window": {"taps": 7, "step": 3},
    "documents": {},
    "efficient": {},
    "efficient_causal": {},
    "explicit_topk": {"keys": 4},
    "factorized_dense": {"a": 8, "b": 5},
    "factorized_synthesizer": {"length": 140, "rank": 8},
    "full": {},
    "gated_linear": {},
    "gated_linear_vector": {},
    "gau": {},
    "gau_bias": {"buckets": 8, "farthest": 20},
    "gau_toeplitz": {"farthest": 20},
    "head_mixture": {"l": 9},
    "laplace": {},
    "laplace_bias": {"c": 24},
    "learned_sink": {},
    "linear_transformer": {},
    "linear_transformer_causal": {},
    "local_global": {"c": 16, "buckets": 8, "farthest": 20},
    "local_global_causal": {"c": 16, "buckets": 8, "farthest": 20},
    "longformer": {"w": 9, "g": 3},
    "longformer_marked": {"w": 9},
    "longnet": {"w": 16, "step": 2},
    "look_around": {"c": 16},
    "lsh_buckets": {"buckets": 8},
    "non_local_concat": {},
    "non_local_dot": {},
    "nsa": {"width": 8, "stride": 4, "block": 16, "selected": 5, "w": 9},
    "nsa_selected": {"block": 8, "selected": 3},
    "packed": {},
    "padded": {},
    "padded_causal": {},
    "performer": {"features": 12},
    "performer_causal": {"features": 12},
    "prefix_lm": {"p": 21},
    "random_synthesizer": {"length": 80},
    "reformer": {"c": 8, "buckets": 8},
    "reformer_library": {"c": 8, "buckets": 8},
    "ranges": {},
    "relative_toeplitz": {"farthest": 9},
    "retention": {},
    "rope": {},
    "routing": {},
    "sigmoid": {},
    "sliding_window": {"w": 19},
    "soft_cap": {"cap": 2.5},
    "softmax_one": {},
    "sparse_fixed": {"l": 16, "c": 3},
    "sparse_strided": {"l": 11},
    "streaming_sinks": {"s": 2, "w": 17},
    "symmetric_window": {"w": 13},
    "t5_bias": {"buckets": 8, "farthest": 20},
    "t5_bias_encoder": {"buckets": 8, "farthest": 20},
    "taylor": {},
    "time_window": {"span": 0.75},
    "windowed_linear": {"w": 19},
}


@dataclass(frozen=True)
class Built:
    """A spec and the module that was made of it."""

    spec: Spec
    module: ModuleType


def build_file(name: str, folder: Path, *, in_c: bool = False, **parameters: object) -> Built:
    """The module of a spec in `specs/`; without kernels in C, which take time to write, unless they are asked for."""
    given = {key: str(value) for key, value in parameters.items()}
    return _imported(compile_source(read_source(SPECS / f"{name}.attn"), given, in_c=in_c), folder)


def build(text: str, folder: Path, *, in_c: bool = False) -> Built:
    """The module of a spec given as text.

    Raises:
        AttnError: where the spec makes no sense.
    """
    return _imported(compile_source(Source("random.attn", text), in_c=in_c), folder)


def build_spec(spec: Spec, folder: Path) -> Built:
    """The module of a spec that was made of expressions."""
    planned = plan(spec)
    return _imported(Compiled(spec, planned, emit(planned, in_c=False)), folder)


def _imported(compiled: Compiled, folder: Path) -> Built:
    name = f"{compiled.spec.name}_{hashlib.sha256(compiled.text.encode()).hexdigest()[:12]}"
    path = folder / f"{name}.py"
    path.write_text(compiled.text, encoding="utf-8")
    return Built(compiled.spec, load_module(path))


def load_module(path: Path, name: str | None = None) -> ModuleType:
    """A generated file as a module."""
    name = name or path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def cut_small(module: ModuleType) -> None:
    """Make the eager torch form take several slabs and chunks where the defaults would take one of each."""
    sizes = [("_MOST_KEYS", 16), ("_SCORES", 2000), ("_LEAST_ROWS", 4)]
    if hasattr(module, "_Lists"):  # tiles are listed
        sizes = [("_ROWS", 16), ("_KEYS", 16), ("_SCORES", 2000)]
    if hasattr(module, "_BEST"):
        sizes.append(("_BEST", 2000))
    for name, value in sizes:
        assert hasattr(module, name), f"the slabs have no {name} any more: change cut_small"
        setattr(module, name, value)
