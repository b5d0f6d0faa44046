"""One self-contained HTML file: sentences, interactive charts, sortable tables.

    collect     the inputs of `report` (results, folders, names) -> labeled results
    content     the results of a page, and their runs with growth laws
    sections/   one file for each kind of result: content -> sections
    run_tables  tables of runs: layers, growth laws, tensors
    pieces      the parts of sections: charts, maps, tables, pictures
    write       content -> sections -> a file
    document    sections -> HTML; page.css and page.js are its style and script
    page_file   `Page`: the path of the written file
    packing     charts -> JSON for the script

BokehJS, from the installed package `bokeh`, draws the charts in the browser. Sentences, tables and the text of each
chart need no script. Names come from checkpoints and are untrusted: in HTML they are escaped, and in the JSON for the
script all characters that HTML interprets are escaped.
"""
