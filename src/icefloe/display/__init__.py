"""Text, HTML and SVG representations of plain values.

This package imports nothing of the library except `errors`, so that every class can describe itself with it.
Terminal output with colours and tables is in `icefloe.cli`.

Modules
-------
- `card`: Numbers and times as text, cards of facts for notebooks (HTML) and terminals (rich markup), and lists of
  fields.
- `graph`: The graph of a history: its layout, drawn as text or as SVG.
"""
