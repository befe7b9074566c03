"""What do hubs tell each other about themselves? Scuttlebutt gossip as a machine without clock, disk or network.

The invariant that everything rests on: who says "I know version v of hub h" holds every entry of h up to v that no
later entry has replaced. So a digest of a few numbers is enough to know what another hub lacks.
"""
