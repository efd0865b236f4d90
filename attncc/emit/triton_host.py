"""Tile program → the Triton part of a module: kernels, their tuning, and the functions that launch them."""

from __future__ import annotations

from attncc.emit.tile import Kernel, schedule
from attncc.emit.torch_form import print_numbers, tables_of
from attncc.emit.triton_kernel import KernelPrinter
from attncc.emit.triton_library import library
from attncc.emit.writer import WIDTH, Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis
from attncc.plan.model import Plan
from attncc.spec.expr import Const


class TritonForm:
    """Prints kernels and launchers of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        forward, backward = plan.gpu.forward, plan.gpu.backward
        columns = tuple(name for name in backward.outputs if Axis.COLUMN in backward[name].axes)
        self.forward = schedule("forward", forward, Axis.ROW, forward.outputs)
        self.columns = schedule("backward_columns", backward, Axis.COLUMN, columns)
        has_rows = "dq" in backward.outputs
        self.rows = schedule("backward_rows", backward, Axis.ROW, ("dq",)) if has_rows else None
        self.used: set[str] = set()
        self.host_used: set[str] = set()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in the order of the file."""
        return tuple(kernel for kernel in (self.forward, self.columns, self.rows) if kernel is not None)

    def uniform(self) -> tuple[Node, ...]:
        """Call-wide numbers of all kernels, each once; constants are printed where they are used."""
        nodes = {node.name: node for kernel in self.kernels for node in kernel.uniform}
        return tuple(node for node in nodes.values() if not isinstance(node.expr, Const))

    def _tables(self) -> dict[str, bool]:
        tables = tables_of(self.uniform())
        return {node.name: node.name in tables for node in self.uniform()}

    def kernel_text(self) -> str:
        """Helpers, tile bodies and kernels, to stand inside `if triton is not None:`."""
        writer = Writer(width=WIDTH - 4)
        tables = self._tables() | {
            node.name: False for kernel in self.kernels for node in kernel.uniform if isinstance(node.expr, Const)
        }
        for kernel in self.kernels:
            keeps = self.plan.reads_delta and kernel is self.forward
            printer = KernelPrinter(writer, kernel, self.plan.domain, tables, self.used, keeps_residual=keeps)
            for at in range(len(kernel.sweeps)):
                printer.print_body(at)
            printer.print_kernel()
        text = library(self.used) + "\n\n" + writer.text()
        return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))

    # --- launching --------------------------------------------------------------------------------------------

    def launchers(self) -> str:
        """Tuning, number tables and launch functions."""
        writer = Writer()
        self._print_tiles(writer)
        writer.lines(_HOST)
        numbers = print_numbers(self.uniform(), "_kernel_numbers", self.host_used)
        if numbers:
            writer.lines("\n\n" + numbers)
        writer.line()
        writer.line()
        self._print_forward(writer)
        writer.line()
        writer.line()
        self._print_backward(writer)
        return writer.text()

    def _print_tiles(self, writer: Writer) -> None:
        writer.comment(
            "What each kernel tries for elements of so many bytes and vectors up to a width: "
            "(BLOCK_M, BLOCK_N, num_warps, num_stages)."
        )
        names = {kernel.name for kernel in self.kernels}
        writer.line("_TILES = {")
        with writer.indented():
            for tiles in self.plan.tiles:
                if tiles.kernel in names:
                    tries = ", ".join(
                        f"({each.rows}, {each.columns}, {each.warps}, {each.stages})" for each in tiles.tries
                    )
                    writer.line(f'("{tiles.kernel}", {tiles.bytes}, {tiles.width}): [{tries}],')
        writer.line("}")

    def _scale(self) -> str:
        return "scale, " if self.plan.spec.reads_scale else ""

    def _print_numbers(self, writer: Writer) -> None:
        uniform = self.uniform()
        if not uniform:
            return
        scale = "scale" if self.plan.spec.reads_scale else "None"
        names = ", ".join(node.name for node in uniform)
        writer.line(f"{names}{',' * (len(uniform) == 1)} = _kernel_numbers(q, k, v, {scale}, kv_lengths)")
        for node in uniform:
            if self._tables()[node.name]:
                writer.line(f"{node.name} = {node.name}[..., 0, 0].expand(batch, heads).float().contiguous()")

    def _statistics(self) -> list[str]:
        return [name for name in self.plan.gpu.forward.outputs if name != "out"]

    def _residual(self) -> list[str]:
        """What rounding takes from `out`, which backward reads with it."""
        return ["residual"] if self.plan.reads_delta else []

    def _print_forward(self, writer: Writer) -> None:
        places = "q_start, k_start, q_starts, kv_lengths"
        keep = ", keep_residual" if self.plan.reads_delta else ""
        with writer.block(f"def _launch_forward(q, k, v, {self._scale()}{places}{keep}):"):
            writer.line('"""What `_forward` returns, by the Triton kernel."""')
            writer.line("q, k, v = _dense(q), _dense(k), _dense(v)")
            writer.line("batch, heads, n, _ = q.shape")
            writer.line("m = k.shape[2]")
            writer.line("out = q.new_empty(batch, heads, n, v.shape[-1])")
            for name in self._statistics():
                writer.line(f"{name} = q.new_empty(batch, heads, n, dtype=torch.float32)")
            if self.plan.reads_delta:
                writer.line("residual = q.new_empty(batch, heads, n, v.shape[-1] if keep_residual else 0)")
            self._print_numbers(writer)
            writer.line("starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)")
            with writer.block("if out.numel():"):
                self._print_launch(writer, self.forward)
            names = ["out", *self._statistics(), *self._residual()]
            writer.line(f"return ({', '.join(names)}{',' * (len(names) == 1)})")

    def _print_backward(self, writer: Writer) -> None:
        kept = "".join(f"{name}, " for name in (*self._statistics(), *self._residual()))
        d_lse = "d_lse, " if self.plan.has_lse else ""
        places = "q_start, k_start, q_starts, kv_lengths"
        arguments = f"q, k, v, out, {kept}d_out, {d_lse}{self._scale()}{places}"
        with writer.block(f"def _launch_backward({arguments}):"):
            writer.line('"""What `_backward` returns, by the Triton kernels."""')
            writer.line("q, k, v, d_out = _dense(q), _dense(k), _dense(v), _dense(d_out)")
            writer.line("batch, heads, n, d = q.shape")
            writer.line("kv_heads, m, e = v.shape[1:]")
            writer.line(
                "dq = q.new_zeros(batch, heads, n, d)" if self.rows is None else "dq = q.new_empty(batch, heads, n, d)"
            )
            has_dk = "dk" in self.plan.gpu.backward.outputs
            writer.line(f"dk = k.new_{'empty' if has_dk else 'zeros'}(batch, kv_heads, m, d)")
            writer.line("dv = v.new_empty(batch, kv_heads, m, e)")
            if self.plan.reads_delta:
                less = " - d_lse.float()" if self.plan.has_lse else ""
                writer.line(f"delta = (d_out.float() * _unrounded(out, residual)).sum(-1){less}")
            for node in self.columns.statistics:
                if node.name != "delta":
                    writer.line(f"{node.name} = {node.name}.contiguous()")
            self._print_numbers(writer)
            writer.line("starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)")
            with writer.block("if dv.numel():"):
                self._print_launch(writer, self.columns)
            if self.rows is not None:
                with writer.block("if dq.numel():"):
                    self._print_launch(writer, self.rows)
            writer.line("return dq, dk, dv")

    def _print_launch(self, writer: Writer, kernel: Kernel) -> None:
        rows = kernel.fixed is Axis.ROW
        length, block, heads = ("n", "BLOCK_M", "heads") if rows else ("m", "BLOCK_N", "kv_heads")
        operands = [node.name for node in kernel.operands]
        pointers = operands + [node.name for node in kernel.statistics] + [node.name for node in kernel.stores]
        if kernel is self.forward and self.plan.reads_delta:
            pointers.append("residual if keep_residual else None")
        strides = [f"{name}.stride()[:3]" for name in operands]
        numbers = [node.name for node in kernel.uniform if not isinstance(node.expr, Const)]
        writer.line(f'grid = _grid({length}, "{block}", {heads}, batch)')
        groups = [pointers, ["starts", "lengths"], strides, ["n", "m", "k_start", *numbers]]
        writer.listing(f'_launch(_{kernel.name}_kernel, "{kernel.name}", grid, q, k, v,', groups, ")")


_HOST = '''


def _dense(x):
    """`x`, copied only if its last axis is strided or offsets within a tile could pass 32 bits."""
    return x if x.stride(-1) == 1 and x.stride(-2) < 2**23 else x.contiguous()


def _block(width):
    """The tile width that holds a vector: a power of two, at least a matrix instruction's 16."""
    return max(16, 1 << (width - 1).bit_length())


def _prune(configs, arguments, *, BLOCK_D, BLOCK_E, **_):
    """The configs that fit into shared memory: resident and streamed tiles, two tiles of pairs."""
    q = arguments["q_ptr"]
    on_amd = torch.version.hip is not None  # tiles pass through registers there, resident ones stay
    device = triton.runtime.driver.active.utils.get_device_properties(q.device.index)

    def size(config):
        rows, columns = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        held, streamed = (columns, rows) if "dv_ptr" in arguments else (rows, columns)
        resident = 0 if on_amd else held * (BLOCK_D if "out_ptr" in arguments else BLOCK_D + BLOCK_E)
        stages = max(config.num_stages - on_amd, 1)
        return (resident + stages * streamed * (BLOCK_D + BLOCK_E) + 2 * rows * columns) * q.element_size()

    # A warp of 64 lanes has half the registers a lane when there are eight of them.
    configs = [config for config in configs if config.num_warps <= 4 or not on_amd] or configs
    return [config for config in configs if size(config) <= device["max_shared_mem"]] or [min(configs, key=size)]


@functools.cache
def _tuned(kernel, name, element_size, width):
    """The kernel with what it may try; Triton's interpreter cannot time and gets one config."""
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _TILES[name, element_size, width]
        ]
    key = ["GROUP", "D", "E", "PRECISION"]  # and the dtypes, which triton adds
    return triton.autotune(configs, key=key, prune_configs_by={"early_config_prune": _prune})(kernel)


def _grid(length, block, heads, batch):
    """One program for every tile of an axis, every head and every batch entry."""
    return lambda meta: (triton.cdiv(length, meta[block]), heads, batch)


def _launch(kernel, name, grid, q, k, v, *arguments):
    """Run a kernel, specialised by the widths of q and v."""
    d, e = q.shape[-1], v.shape[-1]
    block_d, block_e = _block(d), _block(e)
    _tuned(kernel, name, q.element_size(), max(64, block_d, block_e))[grid](
        *arguments,
        GROUP=q.shape[1] // k.shape[1], D=d, E=e, BLOCK_D=block_d, BLOCK_E=block_e,
        PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        enable_fp_fusion=True,
    )  # fmt: skip


def _places(q, k, q_start, q_starts, kv_lengths):
    """The position of the first row and the number of keys of every batch entry, [batch] each."""
    starts = torch.full((q.shape[0],), q_start, dtype=torch.int32, device=q.device)
    if q_starts is not None:
        starts = (starts + q_starts).to(torch.int32)
    if kv_lengths is None:
        return starts, torch.full_like(starts, k.shape[2])
    return starts, kv_lengths.clamp(0, k.shape[2]).to(torch.int32)
'''
