"""A stage of `reproduce` is a named computation by whose records claims are judged.

Each stage is declared next to its function:

    SCALING = Stage(name="scaling", title=..., version=1, settings={"demo": ..., "paper": ...}, takes=..., run=...)

demo    embedded data: the Python documentation, MiniLM, random weights; minutes on two cores. With a folder of
        corpora, Penn Treebank or WikiText-2 replaces the documentation
paper   the paper's sizes: WikiText-2 and Penn Treebank, 12 layers of 768, a grid of 20 × 20; a GPU or a cluster
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

from normgrowth.engine import Engine
from normgrowth.errors import InputError
from normgrowth.paper.evidence import StageResult
from normgrowth.results import Result, load
from normgrowth.serialization.checksums import digest
from normgrowth.stored_result import SIDECAR

BROWN = "brown.txt"
Scale = Literal["demo", "paper"]
R = TypeVar("R", bound=Result)
Progress = Callable[
    [int, int, str], None
]  # number of finished parts, number of all parts, name of the last part


@dataclass(frozen=True)
class StageSettings:
    """The settings of a stage at one scale. Equal settings and an equal version give equal numbers."""

    def with_corpus(self, corpus: str, min_count: int) -> Self:
        """The settings for another corpus; words with fewer than min_count occurrences become <unk>. Most stages use no
        corpus.
        """
        del corpus, min_count
        return self

    def with_text(self, text: Path) -> Self:
        """The settings for another file of sentences. Most stages read none."""
        del text
        return self

    def with_models(self, models: Sequence[str]) -> Self:
        """The settings for other pretrained models. Most stages load none."""
        del models
        return self


@dataclass(frozen=True)
class StageContext:
    """The inputs of a running stage. folder: its working folder, kept between calls. data: the corpora. text: a file of
    sentences for Figure 2. left_out: the parts that could not be measured, and why.
    """

    folder: Path
    engine: Engine
    data: Path | None = None
    text: Path | None = None
    progress: Progress | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def cached(self, name: str, kind: type[R], make: Callable[[], R]) -> R:
        """The result of a part of a stage, saved immediately, so that an interrupted stage resumes after it."""
        folder = self.folder / name
        if (folder / SIDECAR).is_file():  # the last file that is written
            try:
                found = load(folder)
            except InputError:  # damaged
                found = None
            if isinstance(found, kind):
                return found
        made = make()
        made.write(folder)
        return made

    def leave_out(self, part: str, error: Exception) -> None:
        """Continue without a part. The stage is then incomplete: the next call tries this part again."""
        self.left_out[part] = next(iter(str(error).splitlines()), type(error).__name__)

    def done(self, count: int, of: int, label: str) -> None:
        if self.progress:
            self.progress(count, of, label)


S = TypeVar("S", bound=StageSettings)


@dataclass(frozen=True, kw_only=True)
class Stage(Generic[S]):
    """A stage. version: increased when equal settings give different numbers. takes: the running time in words.
    read: the result in a folder.
    """

    name: str
    title: str
    version: int
    settings: Mapping[Scale, S]
    takes: Mapping[Scale, str]
    run: Callable[[StageContext, S], StageResult] = field(compare=False)
    read: Callable[[Path], StageResult] = field(default=load, compare=False)

    def key(self, settings: StageSettings) -> str:
        """A key that contains everything on which the records depend."""
        return digest([self.name, self.version, asdict(settings)])

    def facts(self, scale: Scale, settings: StageSettings) -> dict[str, Any]:
        return {
            "key": self.key(settings),
            "version": self.version,
            "scale": scale,
            "settings": asdict(settings),
        }


def sentences_file(text: Path | None, data: Path | None) -> Path | None:
    """The sentences of Figure 2: a given file, or the Brown corpus in the folder of corpora, or None."""
    brown = None if data is None else data / BROWN
    if text is None and brown is not None and brown.is_file():
        return brown
    return text


def demo_corpus(data: Path | None) -> tuple[str, int]:
    """The corpus of small models, and the min_count that keeps a few thousand words."""
    if data is None:
        return "pydoc", 3
    there = [name for name in ("penn", "wikitext-2") if (data / name).is_dir()]
    if not there:
        raise InputError(f"{data}: contains neither penn nor wikitext-2")
    return there[0], 20
