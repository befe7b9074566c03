"""What does power cost? Tariffs and bills, the predicted carbon price, procurement plans, bids and their book."""
