"""These tests run kernels in Triton's interpreter, which must be chosen before triton is imported.

`python tests/run.py interpret`, or `TRITON_INTERPRET=1 pytest tests/interpret`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    import triton.language as tl
    from triton.runtime import interpreter

    prepared: set[str] = set()

    def call(function: Any, *arguments: Any, **named: Any) -> Any:
        """Call one function of kernels from another.

        The interpreter puts its own operations into `triton.language` at every such call, which takes a third to a
        half of the time. Those of the kernel that calls are there already; modules of triton need it once.
        """
        module = function.fn.__module__
        if module.startswith("triton.") and module not in prepared:
            prepared.add(module)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call
    # Whole numbers are computed once more in 64 bits for an assertion that is off: a quarter of the time for nothing.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)

    # What follows from a type alone is found once for each; the name of one says all of it.
    find_dtype, make_tensor, make_block = interpreter._get_np_dtype, tl.tensor.__init__, tl.block_type.__init__
    dtypes: dict[str, Any] = {}
    shapes: dict[str, dict[str, Any]] = {}
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}

    def numpy_dtype(type: tl.dtype) -> Any:
        if type.name not in dtypes:
            dtypes[type.name] = find_dtype(type)
        return dtypes[type.name]

    def tensor(self: tl.tensor, handle: Any, type: tl.dtype) -> None:
        if type.name not in shapes:
            make_tensor(self, handle, type)
            shapes[type.name] = {name: value for name, value in vars(self).items() if name != "handle"}
        vars(self).update(shapes[type.name], handle=handle)

    def block(self: tl.block_type, element: tl.dtype, shape: Any) -> None:
        key = (element.name, *shape)
        if key not in blocks:
            make_block(self, element, shape)
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key])

    interpreter._get_np_dtype = numpy_dtype
    tl.block_type.__init__ = block
    tl.tensor.__init__ = tensor
