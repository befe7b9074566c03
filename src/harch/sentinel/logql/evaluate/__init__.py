"""What is the answer to a LogQL query? Lines or numbers, from a store of logs."""
