"""How much may one request to the hub's API carry, and one page of an answer?"""

from __future__ import annotations

from harch.content.frames import BATCH_BYTES_MAX, FRAME_BYTES_MAX

PER_PAGE_DEFAULT, PER_PAGE_MAX = 20, 100
EVENTS_PER_PAGE_MAX = 1000
AUDIT_PER_PAGE_MAX = 1000
AUDIT_LINES_PER_READ = 1000  # of an export; about half a megabyte
LOG_BYTES_PER_PAGE = 1024 * 1024
SECRET_BYTES_MAX = 64 * 1024
IDEMPOTENCY_KEY_LENGTH_MAX = 255
CHUNKS_BYTES_MAX = BATCH_BYTES_MAX + FRAME_BYTES_MAX  # of one upload; a batch ends with the chunk that fills it
CHUNK_NAMES_BYTES_MAX = 1024 * 1024
# Paths whose bodies may be larger than others; their routes read them only after they know who is calling.
LARGE_BODIES = {"/v1/content/chunks": CHUNKS_BYTES_MAX, "/v1/agents/content/chunks": CHUNKS_BYTES_MAX}
