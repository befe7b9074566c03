"""What is the answer to a query? A checked syntax tree and a store in, values over a grid of times out."""
