"""How much may one request to the hub's API carry, and one page of an answer?"""

from __future__ import annotations

PER_PAGE_DEFAULT, PER_PAGE_MAX = 20, 100
EVENTS_PER_PAGE_MAX = 1000
AUDIT_PER_PAGE_MAX = 1000
AUDIT_LINES_PER_READ = 1000  # of an export; about half a megabyte
LOG_BYTES_PER_PAGE = 1024 * 1024
SECRET_BYTES_MAX = 64 * 1024
IDEMPOTENCY_KEY_LENGTH_MAX = 255
