"""Questions over all hubs: each hub keeps its telemetry and answers with what its law lets out."""
