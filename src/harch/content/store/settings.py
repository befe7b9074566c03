"""How is a content store set up, and what are its limits?"""

# harch: pure

from __future__ import annotations

from msgspec import Struct

IDS_MAX = 32_768  # of one question: as many as fit into a body of 1 MiB
READ_BYTES_MAX = 64 * 1024 * 1024  # of one call
MISSING_LISTED_MAX = 1000  # names of chunks in an error
SEEN_SHARE = 4  # what was seen within this part of the grace period is not noted again, and kept for that much longer
TENANTS_MAX = 10_000
HOLDER_BYTES_MAX = 256
COLLECT_PACKS_MAX = 512  # that are rewritten in one collection; the next one goes on
MERGED_PACKS_MIN = 8  # small packs of one tenant before they are put together
TREE_CACHE_ENTRIES = 200_000  # files and chunks of trees in memory: about 60 MB
ID_CACHE_ENTRIES = 500_000  # names of chunks in memory: about 50 MB


class StoreSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`location`: `s3://bucket/prefix`, or empty for the store's folder. The index is always in the folder.

    Without keys here the bucket is opened with those of the environment (`AWS_ACCESS_KEY_ID`, …).
    """

    location: str = ""
    endpoint: str = ""  # of services that are not Amazon's
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    timeout_s: float = 30.0  # of a request to the bucket
    grace_s: float = 3600.0  # what nobody holds stays for at least so long after somebody sent it or asked for it
    pack_bytes: int = 32 * 1024 * 1024
    quota_bytes: int | None = None  # of tenants without a quota of their own; None: no limit
