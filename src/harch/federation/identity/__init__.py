"""Who is a hub? Trust domain, certificate authority, keys, certificates, member records and invitations."""
