"""`attncc check`: modules against dense attention, as the user gave them and with parameters that fit test sizes."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from attncc.cli.command import FOUND, OK, code_of, command
from attncc.cli.compiling import build_all, warnings_of
from attncc.cli.inputs import define_option, files_argument, sources_of, stdin_option
from attncc.cli.render import Screen

if TYPE_CHECKING:
    from attncc.check.report import Property, Report, Verdict
    from attncc.compiler import Built

_KINDS = 2  # of types and widths, each of which is compiled, where C was not asked for
_FORMS = {
    "torch": ("torch",),
    "c": ("c",),
    "triton": ("triton",),
    "both": ("torch", "triton"),
    "cpu": ("torch", "c"),
}


@dataclass(frozen=True, slots=True)
class Checked:
    """The report of one spec with one set of parameters."""

    compiled: Built
    is_smaller: bool
    report: Report
    note: str = ""

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return self.report.ok

    @property
    def title(self) -> str:
        """`sliding_window (w = 13; smaller, so that test sizes are cut)`."""
        spec = self.compiled.spec
        values = ", ".join(f"{each.name} = {each.value}" for each in spec.parameters if each.value is not None)
        reason = "smaller, so that test sizes are cut" if self.is_smaller else ""
        inside = "; ".join(part for part in (values, reason) if part)
        return f"{spec.name} ({inside})" if inside else spec.name

    @property
    def text(self) -> str:
        """The table, what was checked beside numbers, and what failed."""
        properties = [f"  {each.text}" for each in self.report.properties]
        failures = [f"  FAILED {each}" for each in self.report.failures]
        count = len(self.report.verdicts)
        verdict = f"ok: {count} cases" if self.ok else f"{len(failures)} of {count + len(properties)} checks failed"
        indented = [f"  {line}" for line in self.report.table.splitlines()]
        note = [f"  {self.note}"] if self.note else []
        return "\n".join((self.title, *indented, *note, *properties, *failures, f"  {verdict}"))


@click.command("check")
@files_argument
@define_option
@stdin_option
@click.option("--quick", is_flag=True, help="Fewer and smaller cases.")
@click.option(
    "--form",
    type=click.Choice(tuple(_FORMS)),
    help="What to check; by default both where there is a GPU, else torch, and c in a few cases. Without a GPU Triton "
    "kernels are interpreted. `both` is torch and triton, `cpu` torch and c in all cases.",
)
@command(
    "Compare modules with dense attention, outputs and gradients alike.",
    "attncc check specs/sliding_window.attn --quick",
    "attncc check specs/sliding_window.attn -D w=7 --form both",
    "attncc check specs/ --json > report.json",
)
def check(
    screen: Screen,
    files: tuple[str, ...],
    define: Mapping[str, str],
    stdin_filename: str,
    quick: bool,
    form: str | None,
) -> int:
    """The command's body; its help is made above."""
    sources, unread = sources_of(files, stdin_filename)
    compiled, faults = build_all(sources, define)
    findings = [*unread, *faults, *warnings_of(compiled)]
    found = check_all(screen, compiled, define, quick=quick, form=form)
    code = max(code_of(findings), OK if all(each.ok for each in found) else FOUND)
    if screen.is_json:
        screen.json(code == OK, findings, reports=[_as_json(each) for each in found])
        return code
    shown = [each.text for each in found if not screen.quiet or not each.ok]
    if shown:
        screen.data("\n\n".join(shown))
    screen.diagnostics(findings)
    return code


def check_all(
    screen: Screen, given: Sequence[Built], define: Mapping[str, str], *, quick: bool, form: str | None
) -> list[Checked]:
    """Check every module; where the numbers of its spec exceed test sizes, a copy with smaller ones as well."""
    from attncc.check.layers.sizes import smaller_layer
    from attncc.check.shrink import smaller
    from attncc.compiler import CompiledLayer, compile_any, compile_source

    planned: list[tuple[Built, bool]] = []
    for each in given:
        planned.append((each, False))
        if isinstance(each, CompiledLayer):
            copy = smaller_layer(each.spec, define)
            planned += [(compile_any(each.spec.source, copy), True)] if copy is not None else []
            continue
        small = smaller(each.spec, define)
        if small is not None:
            planned.append((compile_source(each.spec.source, small), True))
    gc.enable()  # from here on tensors are made and dropped
    return [_checked(screen, each, is_smaller, quick, form) for each, is_smaller in planned]


def _checked(screen: Screen, compiled: Built, is_smaller: bool, quick: bool, form: str | None) -> Checked:
    import torch

    has_gpu = torch.cuda.is_available()
    forms = _FORMS[form or ("both" if has_gpu else "torch")]
    if "triton" in forms and not has_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when a module defines its kernels

    from attncc.check.compare import check as run
    from attncc.check.layers.compare import check_layer
    from attncc.check.load import load_module
    from attncc.compiler import CompiledLayer

    module = load_module(compiled.text, compiled.spec.name)
    done = 0

    def progress(_: Verdict | Property) -> None:
        nonlocal done
        done += 1
        screen.progress(f"{compiled.spec.name}: {done} checks")

    def report_of(forms: tuple[str, ...], quick: bool, kinds: int | None = None) -> Report:
        device = "cuda" if has_gpu and "c" not in forms else "cpu"
        if isinstance(compiled, CompiledLayer):
            return check_layer(module, compiled.plan, forms, quick, device=device, progress=progress)
        return run(module, compiled.spec, forms, quick, device=device, progress=progress, kinds=kinds)

    report = report_of(forms, quick)
    in_c = getattr(module, "_c_command", lambda: None)  # layers without attention have none
    if form is None and not has_gpu and in_c() is not None:
        report += report_of(("c",), quick=True, kinds=_KINDS)
    screen.progress("")
    if "triton" in forms and not has_gpu:
        return Checked(compiled, is_smaller, _without_interpreted_bfloat16(report), _BFLOAT16)
    return Checked(compiled, is_smaller, report)


_BFLOAT16 = "triton in bfloat16 is left out: Triton's interpreter rounds towards zero where GPUs round to nearest"


def _without_interpreted_bfloat16(report: Report) -> Report:
    """The report without cases whose errors are those of Triton's interpreter."""
    import torch

    kept = [each for each in report.verdicts if each.form != "triton" or each.case.dtype != torch.bfloat16]
    return replace(report, verdicts=tuple(kept))


def _as_json(each: Checked) -> dict[str, Any]:
    spec = each.compiled.spec
    return {
        "name": spec.name,
        "spec": spec.source.name,
        "parameters": {one.name: one.value for one in spec.parameters},
        "smaller_parameters": each.is_smaller,
        "note": each.note,
        "ok": each.ok,
        "failures": list(each.report.failures),
        "cases": [_verdict_json(verdict) for verdict in each.report.verdicts],
        "properties": [
            {"name": one.name, "form": one.form, "ok": one.ok, "text": one.text} for one in each.report.properties
        ],
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "case": verdict.case.name,
        "form": verdict.form,
        "in_pieces": verdict.in_pieces,
        "ok": verdict.ok,
        "fault": verdict.fault,
        "tensors": [
            {
                "tensor": one.tensor,
                "error": _finite(one.error),
                "row_error": _finite(one.row_error),
                "of_limit": _finite(one.used),
                "fault": one.fault,
            }
            for one in verdict.comparisons
        ],
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value - value == 0 else None
