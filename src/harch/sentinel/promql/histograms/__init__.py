"""What can be computed from native histograms? Pure mathematics on the model's type, as Prometheus does it.

Every function takes histograms and returns a new one or a number. What a person should read beside the result
(bounds that were reconciled, resets that collide) comes back as values, never as a side effect.
"""
