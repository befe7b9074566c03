"""How is the house kept in order? What looks at the source: modules, cycles, words, purity, what nothing reaches."""
