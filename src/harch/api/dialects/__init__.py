"""How do the public clients say it? Every dialect is translated here; the model never bends to a client.

Native: the fields of `WorkloadSpec`. SDK 0.2: nested `compute`. SDK 0.3: the same, flat. JavaScript: `workload_type`.
Terraform client (known by its User-Agent): flat objects with `replicas`, `region`, `tags`.
"""
