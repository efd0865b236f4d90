"""`attncc bench`: a spec against dense attention and FlexAttention, interleaved in one run."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attncc.cli.command import OK, command
from attncc.cli.inputs import DTYPES, define_option, files_argument, sources_of, stdin_option
from attncc.cli.render import Screen
from attncc.diagnostics import AttnError

if TYPE_CHECKING:
    from attncc.plan.model import Planned


def _lengths(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(each) for each in text.split(","))
    except ValueError:
        raise click.BadParameter(f"found `{text}`, expected whole numbers such as `1024,4096`") from None
    if any(value < 1 for value in values):
        raise click.BadParameter(f"found `{text}`, expected lengths of at least 1")
    return values


@click.command("bench")
@files_argument
@define_option
@stdin_option
@click.option("--n", "lengths", default="1024,4096", show_default=True, callback=_lengths, help="Lengths, n = m.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1))
@click.option("--heads", default=8, show_default=True, type=click.IntRange(1))
@click.option("--kv-heads", type=click.IntRange(1), help="Heads of k and v; as many as --heads by default.")
@click.option("--d", "width", default=64, show_default=True, type=click.IntRange(1, 256), help="Width of q, k and v.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES))
@click.option("--backward", is_flag=True, help="Forward and backward together.")
@click.option("--repeat", default=7, show_default=True, type=click.IntRange(1), help="Rounds; contenders take turns.")
@click.option(
    "--lines", type=click.Path(dir_okay=False, path_type=Path), help="Also append the results here as JSON lines."
)
@command(
    "Time modules against dense attention and FlexAttention in one interleaved run.",
    "attncc bench specs/sliding_window.attn -D w=256 --n 4096,16384",
    "attncc bench specs/alibi.attn --backward --lines results.jsonl",
)
def bench(
    screen: Screen,
    files: tuple[str, ...],
    define: Mapping[str, str],
    stdin_filename: str,
    lengths: tuple[int, ...],
    batch: int,
    heads: int,
    kv_heads: int | None,
    width: int,
    dtype: str,
    backward: bool,
    repeat: int,
    lines: Path | None,
) -> int:
    """The command's body; its help is made above."""
    from attncc.check.bench import Setting, Timing, device_name, table
    from attncc.check.bench import bench as run
    from attncc.check.load import load_module
    from attncc.cli.compiling import compile_all
    from attncc.compiler import compile_source

    if heads % (kv_heads or heads):
        raise click.BadParameter(f"{heads} heads are no multiple of {kv_heads} key heads")
    if lines is not None:
        lines.open("a").close()  # a file that cannot be written is better known before than after
    gc.enable()  # unlike a build, this runs long and frees much
    records: list[dict[str, object]] = []
    sources, unread = sources_of(files, stdin_filename)
    specs, faults = compile_all(sources, define)
    if unread or faults:
        raise AttnError(*unread, *faults)
    for compiled in specs:
        spec = compiled.spec

        def ours(spec=spec):  # type: ignore[no-untyped-def]
            """From the text of the spec to the function that is timed."""
            return load_module(compile_source(spec.source, define).text, spec.name).attention

        timings: list[Timing] = []
        for n in lengths:
            setting = Setting(
                n=n, batch=batch, heads=heads, kv_heads=kv_heads or heads, d=width, e=width,
                dtype=dtype, backward=backward, repeat=repeat,
            )  # fmt: skip
            timings += run(spec, ours, setting, screen.progress, _pairs(compiled.plan, n, heads))
        screen.progress("")
        records += [each.record() for each in timings]
        if not screen.is_json:
            what = "forward and backward" if backward else "forward"
            screen.data(
                f"{spec.name}: {what}, {dtype}, {heads} heads of {width}, {device_name()}\n{table(tuple(timings))}\n"
            )
    written = "".join(f"{json.dumps(_without_nan(each))}\n" for each in records)
    if screen.is_json:
        screen.data(written.rstrip("\n"))
    if lines is not None:
        with lines.open("a", encoding="utf-8") as file:
            file.write(written)
    return OK


def _pairs(plan: Planned, n: int, heads: int) -> int | None:
    """How many pairs are related where positions alone decide, and each costs the products of its vectors."""
    from attncc.graph.ops import Op
    from attncc.plan.density import Call, density
    from attncc.plan.model import Mixture

    if isinstance(plan, Mixture) or plan.lists is not None or plan.states is not None:
        return None
    if not any(node.op is Op.DOT for node in plan.torch.forward):
        return None
    return density(plan.domain, Call(n, n, heads, 0, (64, 64))).pairs


def _without_nan(record: dict[str, object]) -> dict[str, object]:
    """JSON has no NaN."""
    return {name: None if isinstance(value, float) and value != value else value for name, value in record.items()}
