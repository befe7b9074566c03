"""Who runs a pipeline? Processes: sources, SENSE, THINK and ACT, alone or fused, and what keeps them safe together.

`python -m harch.pipelines.workers STAGE --config FILE` is one worker. `config` is what it is told, `names` where its
messages go, `deployment` what the message engine needs for it, and `local` runs all of them on one machine. Decisions
are values without input or output: `leases`, `assignment`, `scaling`, `model_plan`; the stages themselves live in
`sense`, `think` and `act`.
"""
