"""Reproduce: compute the figures and tables of the paper, and judge each of its claims.

out/stages/NAME/        the records of a stage, its working folder, and error.log if it failed
out/claims.json         the Reproduction: every claim, published, measured, rule, verdict and reason
out/figures/            Figures 1 to 6 as png, svg and pdf
out/report.html         everything on one page
out/finished.json       checksums, by which a second call finds that nothing has changed (`finished`)
"""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from normgrowth.engine import Engine
    from normgrowth.paper.reproduction import Reproduction
    from normgrowth.paper.stages.stage import Progress, Scale


def reproduce(
    out: "Path | str" = "reproduction",
    *,
    scale: "Scale" = "demo",
    only: "Sequence[str]" = (),
    data: "Path | str | None" = None,
    text: "Path | str | None" = None,
    t5: "Path | str | None" = None,
    models: "Sequence[Path | str]" = (),
    engine: "Engine | None" = None,
    progress: "Progress | None" = None,
    overwrite: bool = False,
) -> "Reproduction":
    """Reproduce the paper: run the required stages, judge its claims, draw its figures, write one page.

    out: output folder; a second call runs only stages whose version or settings changed, and adds its claims to those
    that the folder has. Return the claims of this call. scale: "demo" uses embedded
    data and takes minutes, "paper" trains models of the paper's sizes. only: claims ("heads-bimodal"), figures ("fig2")
    or "table1" (default: all). data: a folder with `penn`, `wikitext-2` or both. text: a file with a sentence per line,
    on which Figure 2 is measured (default: `brown.txt` in the folder data, else Python's documentation). t5:
    checkpoints of T5 or the output folder of their trace, on which the claims of Figures 1 and 5 are judged instead of
    the published points. models: folders or hub ids of pretrained models that Figure 2 is measured on instead of those
    of the scale; a folder is the model of its name ("t5-base"). engine: trains the models (default: one process per
    core). overwrite: replace a reproduction with another scale or corpus.

    >>> result = ng.reproduce("reproduction", only=["norm-sqrt"])
    >>> [(claim.id, str(claim.verdict)) for claim in result.claims]
    [('norm-sqrt', 'holds')]
    """
    from pathlib import Path

    from normgrowth.engine import given_or_processes
    from normgrowth.paper.evidence import Evidence
    from normgrowth.paper.finished import earlier_reproduction, finished, key_of, mark_finished
    from normgrowth.paper.paper_figures import draw_figures
    from normgrowth.paper.reproduction_page import write_page
    from normgrowth.paper.run_stages import judged, run_stages, select, settings_of, stage_keys
    from normgrowth.paper.stages.stage import demo_corpus, sentences_file
    from normgrowth.paper.t5_series import PublishedT5, traced_t5
    from normgrowth.workspace import Workspace

    claims, needed = select(only, traced_t5=t5 is not None)
    corpora = Path(data) if data else None
    read = sentences_file(Path(text) if text else None, corpora)
    loaded = [str(model) for model in models]
    settings = settings_of(scale, corpora, read, loaded)
    request = {"scale": scale, "corpus": demo_corpus(corpora)[0] if scale == "demo" else "paper"}
    with (
        Workspace.open(out, "reproduction", request, overwrite=overwrite) as workspace,
        given_or_processes(engine) as on,
    ):
        assert workspace.folder is not None
        key = key_of({**request, "only": list(only), "stages": stage_keys(needed, settings)})
        part = (only, {claim.id for claim in claims}, needed)
        if t5 is None and (kept := finished(workspace.folder, key)) is not None:
            return kept.selected(*part)
        stages = workspace.folder / "stages"
        series = PublishedT5() if t5 is None else traced_t5(t5, stages / "t5", progress)
        outcomes, found = run_stages(needed, settings, scale, stages, on, corpora, read, progress)
        evidence = Evidence(found, {one.name: one.reason for one in outcomes if one.failed}, series)
        given = {"--data": data, "--text": text, "--t5": t5}
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        options += ["--models", *loaded] if loaded else []
        result = judged(evidence, claims, outcomes, scale=scale, only=tuple(only), options=tuple(options))
        whole = result.added_to(earlier) if (earlier := earlier_reproduction(workspace.folder)) else result
        workspace.save(whole)
        figures = workspace.folder / "figures"
        draw_figures(evidence, figures, only=only)
        write_page(workspace.folder, whole, figures)
        if t5 is None and not (result.failed or result.incomplete):
            mark_finished(workspace.folder, key)
        return result
