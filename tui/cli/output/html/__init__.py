"""The report on a run as one page of HTML, which needs no network and no script.

page   all that the page says, and the page
plots  the numbers of a run over its steps, as shapes of SVG

`page.html` is the template. Whatever a run calls itself or prints gets into the page as text.
"""
