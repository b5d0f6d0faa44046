"""Shared parts of figures: the style, lines with gaps, axes, shades of layers."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Matrix
from normgrowth.results import Result
from normgrowth.text import visible
from normgrowth.workspace import origin_mark, refuse_foreign, refuse_other_origin, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

INK, GRAY, BLUE, ORANGE = "#1a1a1a", "#8c8c8c", "#0072b2", "#e69f00"
FORMATS = ("png", "svg", "pdf")
MARK = "drawn by normgrowth"  # in the metadata of every figure
MOST_ENTRIES = 6  # layers in a legend; more layers get a color bar
MOST_STACKS = 3  # panels side by side; with more stacks, all layers share one panel

ROUND = [1, 2, 2.5, 5, 10]  # ticks at multiples of these

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures look the same on every machine
    "font.size": 8.5,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#404040",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.02,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-3, 5),
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 220,
    "pdf.fonttype": 42,  # TrueType; publishers refuse Type 3 fonts
    "svg.hashsalt": "normgrowth",
}
_one_at_a_time = threading.RLock()  # matplotlib keeps one style per process, not per thread


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults with normgrowth's style inside the block; the user's settings are restored after it."""
    import matplotlib

    with _one_at_a_time, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def save(
    figures: "Mapping[str, tuple[str, Figure]]",
    folder: Path | str,
    formats: Sequence[str],
    text: str,
    *,
    origin: str = "",
    overwrite: bool = True,
) -> list[Path]:
    """Write figures, {name: (title, figure)}, and return the paths. text: a description for the metadata.

    origin: the source of the figures. Without overwrite, figures of another origin are kept and an error is raised.
    """
    paths = list[Path]()
    for path in (Path(folder) / f"{name}.{form}" for name in figures for form in known_formats(formats)):
        refuse_foreign(path, MARK.encode())
        if not overwrite:
            refuse_other_origin(path, origin)
    for name, (title, figure) in figures.items():
        Path(folder).mkdir(parents=True, exist_ok=True)
        for form in known_formats(formats):
            path = Path(folder) / f"{name}.{form}"
            with replacing(path) as temporary, style():
                figure.savefig(temporary, format=form, metadata=_metadata(form, title, text, origin))
            paths.append(path)
    return paths


def known_formats(formats: Sequence[str]) -> list[str]:
    """The formats without repetitions. Raises InputError for an unknown format."""
    unknown = [form for form in formats if form not in FORMATS]
    if unknown:
        raise InputError(f"unknown figure format {unknown[0]!r}; known: {', '.join(FORMATS)}")
    return list(dict.fromkeys(formats))


def _metadata(form: str, title: str, text: str, origin: str) -> dict[str, str | None]:
    """Metadata without dates, so that the same records give the same files."""
    mark = f"{MARK}, {origin_mark(origin)}" if origin else MARK
    if form == "pdf":
        return {"Title": title, "Subject": text, "Keywords": mark, "CreationDate": None}
    own = {"Title": title, "Description": text, "Source": mark}
    return own | ({"Date": None} if form == "svg" else {})


def laid_out(figure: "Figure") -> "Figure":
    """The figure with its layout computed once rather than at each saving."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


@dataclass(frozen=True)
class Drawing:
    """A figure of one kind of result.

    build: returns the figure, or None if the result lacks the data. needs: the data, for the error about their lack.
    """

    title: str
    build: Callable[..., "Figure | None"]
    needs: str = ""

    def __call__(self, result: Result, **options: Any) -> "Figure | None":
        """The figure in normgrowth's style, or None if the result lacks the data."""
        with style():
            figure = self.build(result, **options)
            return None if figure is None else laid_out(figure)

    def has_data(self, result: Result) -> bool:
        """Whether the result has the data that the figure shows."""
        with style():
            try:
                return self.build(result) is not None
            except InputError:
                return False

    def accepted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that this figure accepts."""
        known = inspect.signature(self.build).parameters
        return {name: value for name, value in options.items() if name in known}


def drawing(title: str, needs: str = "") -> Callable[[Callable[..., "Figure | None"]], Drawing]:
    """Decorate a function that builds a figure. title: the title in the metadata of the files."""
    return lambda build: Drawing(title, build, needs)


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> "tuple[Figure, Any]":
    """An empty figure of this size in inches, and its axes; an array if there are several, or with squeeze=False."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, **options)


def line(ax: "Axes", steps: Any, values: NDArray[np.float64], **look: Any) -> None:
    """A line with gaps at undefined values, and dots at isolated values."""
    good = np.isfinite(values)
    if not good.any():
        return
    before, after = np.append(False, good[:-1]), np.append(good[1:], False)
    dots = good if good.sum() <= 12 else good & ~before & ~after
    look = {
        "linewidth": 1.5,
        "markersize": 3.0,
        "marker": "o" if dots.any() else "",
        "markevery": list(np.flatnonzero(dots)),
    } | look
    ax.plot(steps, values, **look)


def step_axis(ax: "Axes", steps: Sequence[int]) -> None:
    """An axis from the first checkpoint to the last, also for quantities that start at the second."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if steps:
        margin = 0.02 * (steps[-1] - steps[0]) or 1.0
        ax.set_xlim(steps[0] - margin, steps[-1] + margin)
    ax.set_xlabel("training step")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=ROUND))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))


def value_axis(ax: "Axes", *, zero_below: float = 0.0) -> None:
    """Set a few round ticks. The axis begins at zero if the smallest value is at most zero_below times the largest.

    Panels that share the axis are considered together, so that no curve is cut.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))
    together = [panel.dataLim.intervaly for panel in ax.get_shared_y_axes().get_siblings(ax)]
    together = [interval for interval in together if np.isfinite(interval).all()]
    low, high = (np.min(together), np.max(together)) if together else (0.0, 0.0)
    if 0 <= low <= zero_below * high and high > 0:
        ax.set_ylim(0, 1.05 * high)
    if max(abs(low), abs(high)) >= 1e4:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _short(y)))


def log_axis(axis: "XAxis | YAxis") -> None:
    """Ticks at 1, 2, 5, 10, ... written out, also where the axis spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))
    axis.set_minor_formatter(NullFormatter())


def _short(x: float) -> str:
    """A tick label such as 50k for 50000."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(x) < 1e12:
            return f"{x / size:g}{letter}".replace("-", "−")
    return f"{x:g}".replace("-", "−")


def label(name: str, longest: int = 32) -> str:
    """A name for a figure: characters that the font lacks are escaped, and the middle of a long name is cut."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont("DejaVu Sans")).get_charmap()
    start, end = longest * 5 // 8, longest - longest * 5 // 8 - 1
    short = name if len(name) <= longest else f"{name[:start]}…{name[-end:]}"
    return "".join(c if ord(c) in known else c.encode("unicode_escape").decode() for c in visible(short))


def label_ends(ax: "Axes", ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names at the ends of lines, moved apart if they would overlap. ends: (value, name, color) of each line."""
    ordered = sorted(ends)
    place = ax.transData.transform([(0.0, end) for end, *_ in ordered])
    spots = ax.transAxes.inverted().transform(place)[:, 1]
    gap = min(0.055, 1 / len(ordered))
    for i in range(1, len(spots)):  # push up, then back below the top
        spots[i] = max(spots[i], spots[i - 1] + gap)
    spots[-1] = min(spots[-1], 1.0)
    for i in range(len(spots) - 2, -1, -1):
        spots[i] = min(spots[i], spots[i + 1] - gap)
    for spot, (_, name, color) in zip(spots, ordered, strict=True):
        look = {"color": color, "fontsize": 8, "va": "center", "parse_math": False}
        ax.text(1.01, float(spot), label(name), transform=ax.transAxes, **look)


def _every(count: int) -> int:
    """The distance between ticks, a power of two, so that there are at most 12."""
    return 1 << max(0, -(-count // 12) - 1).bit_length()


class Layers:
    """The panel and the shade of each layer, the same in every figure."""

    def __init__(self, grid: Matrix, *, published: bool = False) -> None:
        import matplotlib

        self.stacks = grid.stacks()
        if len(self.stacks) > MOST_STACKS:
            self.stacks = {"": grid.names}
        numbers = [number for number in grid.layers if number is not None]
        if numbers == grid.layers and (len(self.stacks) > 1 or len(set(numbers)) == len(numbers)):
            self.numbers = sorted(set(numbers))
            self.depth = {
                name: self.numbers.index(number) for name, number in zip(grid.names, numbers, strict=True)
            }
        else:
            self.numbers = list(range(len(grid.names)))
            self.depth = {name: i for i, name in enumerate(grid.names)}
        # The palest yellow is left out, since it is invisible on paper. Published data are gray next to measured data.
        colors, ends = ("Greys", (0.35, 0.9)) if published else ("viridis", (0.9, 0.0))
        self._shades = matplotlib.colormaps[colors](np.linspace(*ends, max(len(self.numbers), 2)))

    def color(self, name: str) -> Any:
        return tuple(self._shades[self.depth.get(name, 0)])

    def key(self, figure: "Figure", axes: list["Axes"]) -> None:
        """Add the key of shades and layers: a legend for a few layers, a color bar for many."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap
        from matplotlib.lines import Line2D

        count = len(self.numbers)
        if count < 2:
            return
        if count <= MOST_ENTRIES:
            shown = zip(reversed(self._shades), reversed(self.numbers), strict=False)
            handles = [Line2D([], [], color=tuple(shade), label=str(number)) for shade, number in shown]
            figure.legend(handles=handles, title="layer", loc="outside right upper", handlelength=1.2)
            return
        shades = ScalarMappable(
            BoundaryNorm(np.arange(count + 1) - 0.5, count), ListedColormap(list(self._shades))
        )
        bar = figure.colorbar(shades, ax=axes, aspect=45, pad=0.015, fraction=0.05)
        ticks = range(0, count, _every(count))
        bar.set_ticks(list(ticks), labels=[str(self.numbers[i]) for i in ticks])
        bar.ax.minorticks_off()
        bar.ax.tick_params(length=0)
        bar.ax.spines[:].set_visible(False)
        bar.ax.set_title("layer", fontsize=8, loc="center")

    def side_by_side(self, ax: "Axes") -> Iterator[tuple[NDArray[np.float64], list[str]]]:
        """The positions on the x axis of the layers of each stack in turn; sets the ticks and names of the axis."""
        ticks, numbers, start = list[float](), list[str](), 0.0
        every = _every(sum(map(len, self.stacks.values())))
        for stack, names in self.stacks.items():
            position = start + np.arange(len(names), dtype=np.float64)
            ticks += list(position[::every])
            numbers += [str(self.numbers[self.depth[name]]) for name in names[::every]]
            if len(self.stacks) > 1:
                look = {
                    "ha": "center",
                    "va": "top",
                    "parse_math": False,
                    "transform": ax.get_xaxis_transform(),
                }
                ax.text(float(position.mean()), -0.12, f"{label(stack)} layer", **look)
            yield position, names
            start = float(position[-1]) + 2.0
        ax.set_xticks(ticks, numbers)
        if len(self.stacks) == 1:
            ax.set_xlabel("layer")
