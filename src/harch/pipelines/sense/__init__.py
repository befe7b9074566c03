"""What is happening out there? Events in, features of windows out, and an account of every event that was not used.

`stage` is the whole of it without input or output; `runner` feeds it. It composes `gate` (may this batch be here?),
`sources` (have we seen it, and how far is everybody?), `pending` (what waits?), `windows` (what do the values say?),
`features` (for THINK), `quarantine` (what was set aside, and why?) and `accounting`. `checkpoint` saves all of that as
one value. `edge` makes batches of rows at the rim, `inputs` are the ways in, and `flow_control` says how much may be
on its way.
"""
