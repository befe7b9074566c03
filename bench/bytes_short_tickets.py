"""`harch`, but tickets for the bulk channel are good for seconds instead of an hour: expired ones can be tried out."""

from __future__ import annotations

from datetime import timedelta

from harch.cli.main import main
from harch.federation.bulk.tickets import TicketRegistry

VALID_FOR = timedelta(seconds=8)

if __name__ == "__main__":
    TicketRegistry.issue.__kwdefaults__["valid_for"] = VALID_FOR
    main()
