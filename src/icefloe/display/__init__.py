"""Pictures for people, made of plain values: text, HTML and SVG as strings.

This room stands at the bottom, next to `errors`: it knows no class of the library and imports nothing but the standard
library. So every class above can describe itself in a few lines (`_repr_html_` hands its facts to `card`), and the
library loads no slower for it. What needs a terminal, colours and tables is in `icefloe.cli`, with rich.
"""
