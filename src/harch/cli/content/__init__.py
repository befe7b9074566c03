"""What people send and fetch: the code that travels with a command, data, files of running work."""
