"""What travels between stages? Batches of events: a header of 64 bytes, then one column after another.

`header` is the head and its checks, `schema` says which columns follow, `columns` turns arrays into bytes and back,
`rows` and `arrow` read what the outside world sends, `subject` names where a batch goes, `credit` is what flows back.
"""
