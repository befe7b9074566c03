"""Which power to buy, store, sell and when? A problem of arrays goes in, a plan or a reasoned failure comes out."""
