"""What travels between stages? Batches of events: a header of 64 bytes, then one column after another.

`header` is the head and its checks, `columns` says which columns follow and turns arrays into bytes and back, `rows`
reads what the outside world sends, `subject` names where a batch goes.
"""
