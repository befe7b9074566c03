"""Does content stay where its tag says? 200 attempts to move or read it over a border, by people, work and peers.

Three members of one federation: Dakhla (MA) has a dataset, an artifact made of it, an image and code, all of which may
be processed and rest in MA only. Dakar (SN) is a hub like any other, with everybody's keys. Abidjan (CI) is hostile: it
runs in this process with its own identity, asks what it likes, and checks nothing. An attempt has succeeded if a chunk,
or a list of files, was given out, if the work has run, or if a copy is found afterwards. That the same calls work
where they are allowed is checked first.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import bytes_peer_attempts
from bytes_attempts import Attempts, Borders, Held
from bytes_files import MB, Noise, write_file
from bytes_world import holds_bytes, linked_hubs, refusal_of
from harch.base.errors import HarchError
from harch.cli.content.sending import HubDoor
from harch.content.frames import encode_ids
from harch.content.model import ChunkRef, chunks_of
from harch.content.exchange import read_tree
from harch.sdk import Client
from harch.testing.images import LayerFile, LayoutWriter, layer, programs
from harch.wire.content import TransferView, TreeView
from verdict import Verdict

ATTEMPTS = "attempts to move or read a tagged chunk, artifact or image layer over a border"
SUCCEEDED = "of these attempts, succeeded"
COUNTRIES = {"Dakhla": "MA", "Dakar": "SN", "Abidjan": "CI"}
HOME, ABROAD, HOSTILE = "dakhla", "dakar", "abidjan"
