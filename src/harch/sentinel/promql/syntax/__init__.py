"""What does a query say? Text in, checked syntax tree out, and back to text.

`parse` reads, `nodes` holds the tree, `binding.bind` settles its durations, `printer.to_text` writes it.
"""
