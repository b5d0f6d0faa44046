"""One html file that holds everything: sentences, figures that answer to the mouse, tables that sort.

    pieces      what a page is made of, whatever it shows: charts, maps, tables, sections
    runs        a run, and tables of its layers, laws and tensors
    growth      norms, directions and budgets of runs, laid over each other
    folders     what lies in folders -> sections -> a page
    networks    saturation, heads and scaling
    sweeps      a grid of cells
    paper       claims with their verdicts, errata, and figures beside the published ones
    document    sections -> html; page.css and page.js beside it

Charts are drawn in the browser by BokehJS, which is taken from the installed package `bokeh`. What the page says is
there without it: sentences, tables, and a text for every chart. Names come from checkpoints and are data: they reach
the page escaped, and its script as JSON that no html can end.
"""
