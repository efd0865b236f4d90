"""`attncc show`: every pair of every picture is what the pattern says, and every figure is a count."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from attncc.check.made_up import made_up_pairs
from attncc.check.oracle import related
from attncc.cli.picture.outline import path
from attncc.cli.picture.page import page
from attncc.cli.picture.pixels import GUTTER
from attncc.cli.picture.shades import COLORS, Shade, legend, shades
from attncc.diagnostics import Source
from attncc.plan.density import Call
from attncc.plan.domain import analyse
from attncc.plan.mask import Look, looks, usual_tile
from attncc.plan.ranges import Domain
from attncc.sources import read_source
from attncc.spec.model import Align, Spec
from attncc.spec.resolve import load
from tests.cli.pictures import drawn_pairs, filled, png_colors, svg_panels
from tests.cli.runs import ROOT, SPECS, process, run
from tests.modules import SMALL
from tests.plan.counts import tile_counts

HEADS = {
    "by_parity": "attention by_parity { pattern = h % 2 == 0 ? window(9) : causal & (i - j) % 4 == 0 }",
    "listed": "attention listed { pattern = causal & i - j < [3, 8, 3, 40][h] }",
    "affine": "attention affine { pattern = causal & i - j <= 5 * h + H }",
    "reads_lengths": "attention reads_lengths { pattern = j < m - n + 3 | i + j < n | h == 1 & j % 3 == 0 }",
    "from_start": "attention from_start { pattern = window(6, 2) | leading(2); align = start }",
    "nothing_early": "attention nothing_early { pattern = causal & j >= 5 & i - j > 3 }",
}
MECHANISMS = (
    "causal", "dilated_window", "full", "longformer", "look_around", "prefix_lm", "sparse_fixed", "sparse_strided",
    "streaming_sinks",
)  # fmt: skip
SIZES = ((64, 64), (1, 1), (7, 7), (203, 203), (1, 203), (7, 100), (130, 7))
H = 4


@cache
def spec_file(name: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The file of a spec, and the options that make it small."""
    if name not in HEADS:
        return SPECS / f"{name}.attn", tuple(
            part for key, value in SMALL[name].items() for part in ("-D", f"{key}={value}")
        )
    (folder / f"{name}.attn").write_text(HEADS[name], encoding="utf-8")
    return folder / f"{name}.attn", ()


@cache
def spec_of(name: str) -> Spec:
    if name in HEADS:
        return load(Source(f"{name}.attn", HEADS[name]))
    return load(read_source(SPECS / f"{name}.attn"), {key: str(value) for key, value in SMALL[name].items()})


@cache
def domain_of(name: str) -> Domain:
    return analyse(spec_of(name).pattern)


def call_of(spec: Spec, n: int, m: int, tile: tuple[int, int] | None = None) -> Call:
    return Call(n, m, H, 0 if spec.align is Align.START else m - n, tile or usual_tile(n, m))


@cache
def truth(name: str, n: int, m: int) -> NDArray[np.bool_]:
    """The related pairs by brute force: [heads, n, m]."""
    return related(spec_of(name), n, m, H)[0].numpy()


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("name", [*MECHANISMS, *HEADS])
def test_every_pixel_of_a_png_is_what_brute_force_says(name: str, n: int, m: int, tmp_path: Path) -> None:
    file, options = spec_file(name, tmp_path)
    picture = tmp_path / "picture.png"
    result = run("show", file, *options, "--n", str(n), "--m", str(m), "--heads", str(H), "-o", picture)
    assert result.exit_code == 0, result.output
    colors = png_colors(picture.read_bytes())
    spec = spec_of(name)
    call = call_of(spec, n, m)
    found = page(spec, call, looks(domain_of(name), call, range(H), apart=True), GUTTER)
    assert colors.shape == (found.height, found.width, 3)
    assert [panel.look.heads for panel in found.panels] == [(head,) for head in range(H)]
    for head, panel in enumerate(found.panels):
        rows = np.array([panel.row(at) for at in range(n)])
        columns = np.array([panel.column(at) for at in range(m)])
        cells = colors[np.ix_(rows, columns)]  # the first pixel of each pair
        middle = colors[np.ix_(rows + panel.cell[0] // 2, columns + panel.cell[1] // 2)]
        assert (cells == middle).all()
        shown = _is(cells, Shade.PARTIAL) | _is(cells, Shade.FULL)
        assert (shown == truth(name, n, m)[head]).all()
        assert (shown | _is(cells, Shade.MASKED) | _is(cells, Shade.SKIPPED)).all()


def _is(colors: NDArray[np.uint8], shade: Shade) -> NDArray[np.bool_]:
    return (colors == np.array(COLORS[shade], dtype=np.uint8)).all(axis=-1)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("name", [*MECHANISMS, *HEADS])
def test_every_path_of_an_svg_is_what_brute_force_says(name: str, n: int, m: int, tmp_path: Path) -> None:
    file, options = spec_file(name, tmp_path)
    picture = tmp_path / "picture.svg"
    result = run(
        "show", file, *options, "--n", str(n), "--m", str(m), "--heads", str(H), "--tile", "8x4", "-o", picture
    )
    assert result.exit_code == 0, result.output
    panels = svg_panels(picture, n, m)
    assert [panel.heads for panel in panels] == [(head,) for head in range(H)]
    for head, panel in enumerate(panels):
        assert (panel.related == truth(name, n, m)[head]).all()
        assert (panel.visited >= panel.related).all() and (panel.unmasked <= panel.related).all()
    spec = spec_of(name)
    counts = tile_counts(domain_of(name), n, m, H, 8, 4, q_start=call_of(spec, n, m).start)
    assert counts.touched == sum(panel.visited[::8, ::4].sum() for panel in panels)
    assert counts.full == sum(panel.unmasked[::8, ::4].sum() for panel in panels)


@pytest.mark.parametrize("seed", range(20))
def test_an_outline_holds_its_cells(seed: int) -> None:
    random = np.random.default_rng(seed)
    cells = random.random((1 + seed, 23)) < random.random()
    assert (filled(path(cells), *cells.shape) == cells).all()


@pytest.mark.parametrize("name", [*MECHANISMS, *HEADS])
def test_a_drawing_in_a_terminal_is_what_brute_force_says(name: str, tmp_path: Path) -> None:
    file, options = spec_file(name, tmp_path)
    n, m = 33, 61
    for head in (0, 1, H - 1):
        more = ("--n", str(n), "--m", str(m), "--heads", str(H), "--head", str(head))
        result = run("show", file, *options, *more)
        assert (drawn_pairs(result.stdout, " ▀▄█", n, m) == truth(name, n, m)[head]).all()
        colored = run("show", file, *options, *more, "--color", "always").stdout
        assert "\x1b[0;38;5;" in colored
    assert drawn_pairs(result.stdout, " ▀▄█", n, m).shape == (n, m)


def test_plain_ascii_says_the_same() -> None:
    arguments = ("show", SPECS / "longformer.attn", "-D", "w=4", "-D", "g=1", "--n", "33", "--m", "28")
    unicode = process(*arguments)
    plain = process(*arguments, PYTHONIOENCODING="ascii")
    assert plain.stdout.isascii() and plain.stderr == ""
    both = [drawn_pairs(unicode.stdout, " ▀▄█", 33, 28), drawn_pairs(plain.stdout, " '.#", 33, 28)]
    assert (both[0] == both[1]).all()
    assert "A character is 2 queries i by 1 key j: ' is the upper pair" in plain.stdout


def test_a_large_drawing_is_scaled_down_and_says_so() -> None:
    result = run("show", SPECS / "sparse_strided.attn", "-D", "l=11", "--n", "700")
    wide = re.search(r"a character is (\d+) queries i by (\d+) keys j", result.stdout)
    assert wide and "Scaled down" in result.stdout
    rows, columns = int(wide[1]), int(wide[2])
    assert rows == 2 * columns > 2 and max(len(line) for line in result.stdout.splitlines() if "│" in line) <= 80
    pairs = related(load(read_source(SPECS / "sparse_strided.attn"), {"l": "11"}), 700, 700, 1)[0, 0].numpy()
    drawn = [line.split("│")[1] for line in result.stdout.splitlines() if line.count("│") == 2]
    for at, line in enumerate(drawn):
        for place, character in enumerate(line):
            block = pairs[at * rows : (at + 1) * rows, place * columns : (place + 1) * columns]
            assert (character == " ") == (not block.any()) and (character == "█") == block.all()


def terminal(*arguments: str, **environment: str) -> str:
    """What the command prints on a terminal of 60 columns and 30 lines."""
    ours, theirs = pty.openpty()
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    child = subprocess.Popen(
        [sys.executable, "-m", "attncc", *arguments],
        stdout=theirs,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=known | {"PYTHONPATH": str(ROOT), "COLUMNS": "60", "LINES": "30", "PYTHONUTF8": "1"} | environment,
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            more = os.read(ours, 1 << 16)
        except OSError:  # how a terminal says that nobody writes any more
            break
        if not more:
            break
        found += more
    os.close(ours)
    assert child.wait() == 0
    return found.decode("utf-8").replace("\r\n", "\n")


def test_a_terminal_gets_colours_unless_told_otherwise_and_nothing_wider_than_itself() -> None:
    arguments = ("show", "specs/sliding_window.attn", "-D", "w=20", "--n", "100")
    colored = terminal(*arguments)
    plain = terminal(*arguments, NO_COLOR="1")
    assert "\x1b[0;38;5;" in colored and "\x1b" not in plain
    for text in (plain, re.sub(r"\x1b\[[\d;]*m", "", colored)):
        drawn = [line for line in text.splitlines() if "│" in line or "─" in line]
        assert max(map(len, drawn)) <= 60 and len(drawn) <= 20


def test_a_map_of_too_many_tiles_is_left_out() -> None:
    result = run("show", SPECS / "causal.attn", "--n", "2048", "--tile", "16x16")
    assert "(128 x 128 tiles: too many to be shown)" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if "│" in line) <= 80


def test_figures_are_counts_per_head_and_in_total(tmp_path: Path) -> None:
    for name, (n, m) in (("by_parity", (100, 70)), ("affine", (65, 65)), ("longformer", (7, 521))):
        file, options = spec_file(name, tmp_path)
        result = run(
            "show", file, *options, "--n", str(n), "--m", str(m), "--heads", str(H), "--tile", "16x8", "--json"
        )
        found = json.loads(result.stdout)
        assert found["ok"] and found["command"] == "show" and found["tile"] == {"rows": 16, "columns": 8}
        assert [each["head"] for each in found["heads"]] == list(range(H))
        assert [each["pairs"] for each in found["heads"]] == truth(name, n, m).sum(axis=(1, 2)).tolist()
        counts = tile_counts(domain_of(name), n, m, H, 16, 8)
        assert {key: found["total"][key] for key in ("touched", "full", "partial", "pairs")} == {
            "touched": counts.touched,
            "full": counts.full,
            "partial": counts.partial,
            "pairs": counts.pairs,
        }
        assert found["total"]["waste"] == pytest.approx(counts.touched * 128 / counts.pairs, abs=1e-4)
        assert found["first_position"] == m - n and found["outputs"] == []


def test_heads_that_look_alike_share_a_panel_unless_they_are_asked_for(tmp_path: Path) -> None:
    file, _ = spec_file("by_parity", tmp_path)
    picture = tmp_path / "picture.svg"

    def panels(*arguments: str) -> list[tuple[int, ...]]:
        assert run("show", file, "--n", "20", "-o", picture, *arguments).exit_code == 0
        return [panel.heads for panel in svg_panels(picture, 20, 20)]

    assert panels() == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert panels("--heads", "3") == [(0,), (1,), (2,)]
    assert panels("--head", "5", "--head", "2") == [(2,), (5,)]
    listed, _ = spec_file("listed", tmp_path)
    assert run("show", listed, "--n", "20", "-o", picture).exit_code == 0
    assert [panel.heads for panel in svg_panels(picture, 20, 20)] == [(0, 2), (1,), (3,)]


def test_a_file_is_written_once_and_whole(tmp_path: Path) -> None:
    for name in ("a.png", "b.svg", "deeper/c.PNG"):
        picture = tmp_path / name
        first = run("show", SPECS / "causal.attn", "-o", picture)
        again = run("show", SPECS / "causal.attn", "-o", picture, "--json")
        assert first.stderr == f"wrote: {picture}\n" and first.stdout.startswith("causal\n")
        assert json.loads(again.stdout)["outputs"] == [{"path": str(picture), "changed": False}]
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("-o", "picture.jpg"),
        ("-o", "picture"),
        ("-o", "-"),
        ("-o", str(SPECS / "causal.attn" / "picture.png")),
        ("-o", "/proc/picture.png"),
        ("--n", "0"),
        ("--n", "4097"),
        ("--m", "0"),
        ("--heads", "0"),
        ("--head", "8"),
        ("--heads", "2", "--head", "2"),
        ("--heads", "9", "--n", "4096"),
        ("--heads", "65", "--n", "4", "-o", "picture.png"),
        ("--tile", "16"),
        ("--tile", "0x16"),
        ("--tile", "16x99999"),
    ],
)
def test_what_cannot_be_used_exits_2_and_prints_on_stderr_only(arguments: tuple[str, ...]) -> None:
    result = run("show", SPECS / "causal.attn", *arguments)
    assert result.exit_code == 2 and result.stdout == "" and result.stderr
    assert not Path("picture.png").exists()


def test_specs_that_cannot_be_shown(tmp_path: Path) -> None:
    assert run("show", SPECS).exit_code == 2
    assert run("show", "nowhere.attn").exit_code == 2
    assert run("show", "-", stdin="attention x { pattern = windw(3) }").exit_code == 1
    short = run("show", "-", "--heads", "3", stdin="attention x { pattern = i - j < [2, 3][h] }")
    assert short.exit_code == 2 and "a pattern to 2 heads" in short.stderr
    scattered = run("show", SPECS / "dilated_window.attn", "--n", "1024", "-o", tmp_path / "x.svg")
    assert scattered.exit_code == 2 and "write a .png" in scattered.stderr and not list(tmp_path.iterdir())


def test_a_pattern_without_pairs_is_shown_as_it_is() -> None:
    result = run("show", "-", "--n", "9", stdin="attention x { pattern = causal & j > i + 3 }")
    assert result.exit_code == 0 and "no pair is related at n = 9, m = 9" in result.stderr
    assert not drawn_pairs(result.stdout, " ▀▄█", 9, 9).any()


def test_ranges_that_miss_a_pair_would_be_seen() -> None:
    one = domain_of("causal").classes[0]
    pairs = np.array([[True, False], [True, True]])
    states = np.array([[0, 1], [2, 2]], dtype=np.uint8)
    found = shades(Look((0,), one, range(2), range(2), (1, 1), pairs, states))
    assert found.tolist() == [[Shade.WRONG, Shade.MASKED], [Shade.FULL, Shade.FULL]]
    assert Shade.WRONG in legend([found]) and Shade.WRONG not in legend([found[1:]])


def test_nothing_heavy_is_imported() -> None:
    heavy = ("torch", "triton", "sympy", "networkx", "jinja2", "PIL", "matplotlib")
    code = (
        "import sys; from attncc.cli.main import cli\n"
        "cli(['show', 'specs/longformer.attn'], standalone_mode=False)\n"
        f"sys.exit(any(name in sys.modules for name in {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_picture_in_the_readme_is_what_its_command_draws(tmp_path: Path) -> None:
    (command,) = re.findall(r"attncc (show .*) -o examples/show.svg", (ROOT / "README.md").read_text(encoding="utf-8"))
    name, *options = command.split()[1:]
    assert run("show", ROOT / name, *options, "-o", tmp_path / "show.svg").exit_code == 0
    assert (tmp_path / "show.svg").read_bytes() == (ROOT / "examples/show.svg").read_bytes()


def test_help_is_one_line_and_examples() -> None:
    usage, _, summary, _, examples, first, *_ = run("show", "--help").stdout.splitlines()
    assert usage.startswith("Usage:") and summary.endswith(".")
    assert examples.strip() == "EXAMPLES" and first.strip().startswith("attncc show")


def test_pieces_are_listed() -> None:
    spec = SPECS / "sparse_fixed.attn"
    lines = run("show", spec, "--n", "64").stdout.splitlines()
    heading = next(at for at, line in enumerate(lines) if line.startswith("Pieces that suit calls with "))
    assert "positions as they stand" in lines[heading + 1] and "keys on strips of 8" in lines[heading + 2]
    told = json.loads(run("show", spec, "--n", "64", "--json").stdout)["pieces"]
    assert told["least_keys"] and [len(piece) for piece in told["pieces"]] == [1, 1]
    assert json.loads(run("show", SPECS / "causal.attn", "--json").stdout)["pieces"]["pieces"] == []


@pytest.mark.parametrize("name", ["documents", "routing", "longformer_marked", "bigbird", "ranges", "time_window"])
def test_data_are_made_up_the_same_every_time(name: str, tmp_path: Path) -> None:
    file, options = spec_file(name, tmp_path)
    picture, n, m = tmp_path / "picture.svg", 70, 70
    call = ("show", file, *options, "--n", n, "--heads", H, "--tile", "16x8")
    result = run(*map(str, call), "-o", str(picture))
    assert result.exit_code == 0, result.output
    panels = svg_panels(picture, n, m)
    expected = made_up_pairs(spec_of(name), n, m, H, 0)
    assert expected is not None and 0.02 < expected.double().mean() < 0.9
    for head, panel in enumerate(panels):
        assert (panel.related == expected[head].numpy()).all()
        held = panel.related[:64, :64].reshape(4, 16, 8, 8).any(axis=(1, 3))
        assert (panel.visited[:64:16, :64:8] == held).all() and not panel.unmasked.any()
    assert "data made up" in picture.read_text()
    text, found = run(*map(str, call)).stdout, json.loads(run(*map(str, call), "--json").stdout)
    assert "Data decide which pairs are related: these are made up, the same every time." in text
    assert text == run(*map(str, call)).stdout
    assert found["data"] == "made up"
    assert [each["pairs"] for each in found["heads"]] == expected.sum((1, 2)).tolist()


def test_what_data_decide_is_drawn_for_short_calls() -> None:
    result = run("show", str(SPECS / "documents.attn"), "--n", "4096")
    assert result.exit_code == 2 and "lower --n or --heads" in result.stderr
