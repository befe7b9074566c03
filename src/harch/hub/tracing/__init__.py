"""How is a workload followed from submission to its end? Spans from what the job machine did, at the runtime's edge."""
