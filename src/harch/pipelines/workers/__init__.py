"""Who runs a pipeline? Processes: sources, SENSE, THINK and ACT, alone or fused, and what keeps them safe together.

`python -m harch.pipelines.workers STAGE --config FILE` is one worker. `config` is what it is given, `names` where its
messages go, `deployment` what the message engine needs for it. Decisions are values without input or output:
`scaling` and the leases of `partition`; the stages themselves live in `sense`, `think` and `act`.

One name per role: a *worker* (`sense_worker`, `act_worker` ...) is the process of one stage; its *shell* is what all
workers share; a *stage* (`sense.stage`, `think.stage`, `act.stage`) is what it computes; a *runner* (`SenseRunner`,
`ThinkRunner`, `ActRunner`) drives a stage; a *supervisor*
(`harch.hub.pipelines.supervisor`) starts and restarts worker processes; a *partition* that a worker owns by lease is an
*owned partition*; *pending* batches wait in SENSE for a policy table or for other sources.
"""
