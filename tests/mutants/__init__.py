"""Would a test notice? Mutants of the deciding and guarding modules, judged by the tests that run the mutated line."""
