"""One HTML file that holds everything: sentences, interactive charts, tables that sort.

    collect     what `report` is given: results, folders, names -> labeled results
    content     the results of a page, and their runs with growth laws
    sections/   one file for each kind of result: content -> sections
    run_tables  tables of runs: layers, growth laws, tensors
    pieces      what sections are made of, whatever they show: charts, maps, tables
    write       content -> sections -> a file
    document    sections -> HTML; page.css and page.js are its style and script
    result      `Page`: where it was written

Charts are drawn in the browser by BokehJS, which is taken from the installed package `bokeh`. Sentences, tables and a
text for each chart need no script. Names come from checkpoints and are data: they reach the page escaped, and its
script as JSON that no HTML can end.
"""
