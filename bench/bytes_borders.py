"""Does content stay where its tag says? Attempts to move or read it over a border, by people, by work and by peers.

Three members of one federation. Dakhla (MA) has a dataset, an artifact made of it, an image and code, all of which may
be processed and rest in MA only. Dakar (SN) is a hub like any other, with everybody's keys. Abidjan (CI) is hostile: it
runs in this process with its own identity, asks what it likes, and checks nothing. An attempt has succeeded if a chunk
or a list of files was given out, if the work has run, or if a copy is found afterwards. That the same calls work where
they are allowed is checked first: attempts that nothing could answer prove nothing.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import bytes_borders_peer
from bytes_attempts import Attempts, Held, client_of, held_at, tree_of
from bytes_files import MB, Noise, write_file
from bytes_goals import ATTEMPTS, SUCCEEDED
from bytes_world import LinkedHub, holds_bytes, linked_hubs
from harch.base.errors import HarchError
from harch.content.frames import decode_ids, encode_ids
from harch.testing.images import LayerFile, LayoutWriter, layer
from verdict import Verdict

COUNTRIES = {"Dakhla": "MA", "Dakar": "SN", "Abidjan": "CI"}
HOME, ABROAD, HOSTILE = "dakhla", "dakar", "abidjan"
PLAIN = ("--plain-at-rest", "--plain-in-transit")
STAYS = ("--process-in", "MA", "--rest-in", "MA", *PLAIN)
CROSSES = ("--process-in", "MA", "--process-in", "SN", "--rest-in", "MA", "--may-cross-borders", *PLAIN)
TRAVELS = (*CROSSES, "--rest-in", "SN")
TO_ALL = (
    "--process-in",
    "MA",
    "--process-in",
    "CI",
    "--rest-in",
    "MA",
    "--rest-in",
    "CI",
    "--may-cross-borders",
    *PLAIN,
)
UNENCRYPTED = {"encrypt_at_rest": False, "encrypt_in_transit": False}
WITHIN_S = 60.0
UPKEEP_WITHIN_S = 100.0  # hubs look at what they keep once a minute
LINGER_S = 5.0
CACHED = 6  # data sets that pass through Dakar
RETAGGED = 4  # that are on their way when their tag is tightened
RETAGGED_MB = 100


def measure(verdict: Verdict, chosen: argparse.Namespace) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="harch-borders-") as name,
        linked_hubs(Path(name), COUNTRIES, real=(HOME, ABROAD), short_tickets=HOME) as (fleet, hubs),
    ):
        borders = Borders(Path(name), hubs[HOME], hubs[ABROAD], chosen.seed)
        borders.prepare()
        borders.check_that_it_works_at_home()
        attempts = borders.attempts
        for tried in (borders.api, borders.commands, borders.work, borders.caches, borders.retagged):
            tried()
        bytes_borders_peer.attack(attempts, fleet, HOSTILE, borders.home, borders.abroad, borders.secrets)
        borders.look_for_copies()
        borders.relabelled()
        attempts.show()
    ATTEMPTS.met(verdict, attempts.total)
    SUCCEEDED.met(verdict, len(attempts.successes))


class Borders:
    """What is at home, and what people and work try from there and from abroad."""

    def __init__(self, folder: Path, home: LinkedHub, abroad: LinkedHub, seed: int) -> None:
        self.folder, self.home, self.abroad = folder, home, abroad
        self.attempts = Attempts()
        self.secrets: list[Held] = []
        self._noise = Noise(seed)
        self._own, self._theirs = client_of(home), client_of(abroad)
        self._agent_abroad = abroad.home / f"{abroad.hub_id}-agent"

    # What there is

    def prepare(self) -> None:
        patients, image, code = (self._place(name) for name in ("patients", "image", "code"))
        write_file(patients / "scans.bin", 3 * MB, self._noise)
        write_file(patients / "names.csv", 20_000, self._noise)
        image.mkdir(parents=True)
        LayoutWriter(image).write(layer([LayerFile("weights", self._block(MB))]), compress=False)
        write_file(code / "train.py", 10_000, self._noise)
        self._add("patients", patients, *STAYS)
        self._add("image", image, "--kind", "image", *STAYS)
        self._add("code", code, "--kind", "code", *STAYS)
        words = ("sh", "-c", "cp -r $HARCH_DATA/patients out && chmod -R u+w out && head -c 1000 out/names.csv >out/a")
        self._do(self.home, "run", "--name", "work", "--data", "patients", "--artifact", "model=out", "--", *words)
        for what, files in (("dataset", patients), ("artifact", patients), ("image", image), ("code", code)):
            ref = {"dataset": "patients", "artifact": "model"}.get(what, what)
            self.secrets.append(held_at(self.home, ref, what, files))

    def check_that_it_works_at_home(self) -> None:
        """Raises RuntimeError if what is tried abroad would not even work at home."""
        for secret in self.secrets:
            got = self._own.content.fetch(secret.id, encode_ids(secret.ids))
            if not all(mark in got for mark in secret.marks):
                raise RuntimeError(f"{secret.name} cannot be read at home")
        there = self.folder / "read-at-home"
        self._do(self.home, "data", "get", "patients", str(there))
        self._do(self.home, "artifacts", "get", "model", str(self.folder / "model-at-home"))
        self._do(self.home, "cp", "work:out", str(self.folder / "work-at-home"))
        self._add("travels", self._filled("travels", MB), *TRAVELS)
        words = ("sh", "-c", "cat $HARCH_DATA/travels/* | wc -c")
        ran = self._do(self.home, "run", "--country", "SN", "--data", "travels", "--no-code", "--", *words)
        if int(ran) != MB:
            raise RuntimeError(f"work abroad has read {ran} bytes of data that may travel")
        print(
            "  as it should be: all of it is read at home, and data that may travel is read by work in SN", flush=True
        )

    # Attempts

    def api(self) -> None:
        """Everything that takes a name, with each name, at the hub abroad."""
        user = self._key("user")
        theirs = {"admin": self._theirs, "user": client_of(self.abroad, user)}
        there = self._theirs.data.add(
            "there", tag={"process_in": ["SN"], "rest_in": ["SN"], **UNENCRYPTED}, content=self._sent_there()
        )
        for secret, (who, client) in itertools.product(self.secrets, theirs.items()):
            names = (secret.id, secret.name, secret.digest, f"data:{secret.id}", f"image:{secret.name}")
            for ref in names:
                self._try("API", f"{who} reads the tree of {ref}", lambda c=client, r=ref: tree_of(c, r))
                self._try(
                    "API",
                    f"{who} fetches chunks of {ref}",
                    lambda c=client, r=ref, s=secret: c.content.fetch(r, encode_ids(s.ids)),
                )
            self._try(
                "API",
                f"{who} fetches chunks of {secret.name} as if they were of another tree",
                lambda c=client, s=secret: c.content.fetch(there.id, encode_ids(s.ids)),
            )
            tag = {"process_in": ["SN"], "rest_in": ["SN"], **UNENCRYPTED}
            self._try(
                "API",
                f"{who} registers {secret.name} abroad by its digest",
                lambda c=client, s=secret, t=tag: c.data.add(f"mine-{s.name}", tag=t, content=s.digest),
            )

    def commands(self) -> None:
        """`harch data get`, `artifacts get` and `cp`, at the hub abroad, and of work that must not be seen there."""
        for number, secret in enumerate(self.secrets):
            for ref in (secret.id, secret.name):
                for words in (("data", "get", ref), ("artifacts", "get", ref)):
                    self._typed(self.abroad, *words, str(self.folder / f"stolen-{number}-{words[0]}"))
                    self._typed(
                        self.home,
                        *words,
                        str(self.folder / f"stolen-{number}-{words[0]}-2"),
                        "--hub",
                        self.abroad.hub_id,
                    )
        for path in ("out", "out/scans.bin", "."):
            self._typed(self.abroad, "cp", f"work:{path}", str(self.folder / "stolen-files"))
        # Work of the hub abroad that may run in MA only: what it makes there stays there.
        words = ("sh", "-c", "mkdir out && head -c 200000 /dev/urandom >out/model.bin")
        run = ("run", "--name", "sent-home", "--country", "MA", "--artifact", "made-at-home=out", "--no-code", "--")
        self._do(self.abroad, *run, *words)
        for path in ("out", "out/model.bin", "."):
            self._typed(self.abroad, "cp", f"sent-home:{path}", str(self.folder / "stolen-files"))
        for ref in ("made-at-home", "sent-home"):
            self._typed(self.abroad, "artifacts", "get", ref, str(self.folder / f"stolen-{ref}"))
        self._typed(self.abroad, "data", "get", "made-at-home", str(self.folder / "stolen-made"))

    def work(self) -> None:
        """Work that names what is tagged and would run abroad: because it says so, or because there is no room."""
        places: tuple[list[str], ...] = (["SN"], ["CI"], ["SN", "CI"])
        submitted: list[tuple[str, str]] = []
        for secret, countries in itertools.product(self.secrets, places):
            for how in ({"data": [secret.id]}, {"image": f"data:{secret.name}"}, {"code": secret.id}):
                self._submit(self.home, submitted, {"countries_allowed": countries, **how})
            self._submit(self.abroad, submitted, {"data": [secret.id]})
            self._submit(self.abroad, submitted, {"image": f"data:{secret.id}"})
        filling = self._fill(self.home)
        for secret in self.secrets:
            ways = ({"data": [secret.id]}, {"data": [secret.name, "travels"]})
            for how in ways if secret.what != "code" else ({"code": secret.id},):
                self._submit(self.home, submitted, how)
        self._submit(self.home, submitted, {"image": "data:image"})
        time.sleep(LINGER_S)  # long enough for offers and bids
        for work_id, what in submitted:
            found = self._own.workloads.get(work_id)
            abroad = bool(found.runner_hub) and found.runner_hub != self.home.hub_id
            ran = abroad or found.status in ("running", "completed")
            self.attempts.note("work", what, f"{found.status} {found.runner_hub}".strip(), succeeded=ran)
            self._own.workloads.stop(work_id)
        for work_id in filling:
            self._own.workloads.stop(work_id)
        self._until(lambda: self.home.summary()["gpus_free"] == self.home.summary()["gpus_total"], "free GPUs")

    def caches(self) -> None:
        """Data that may be read abroad and not kept there: what is left when the work has ended?"""
        passed = []
        for number in range(CACHED):
            name = f"passes-{number}"
            files = self._filled(name, MB)
            self._add(name, files, *CROSSES)
            passed.append(held_at(self.home, name, "dataset that passes", files))
            words = ("sh", "-c", f"cat $HARCH_DATA/{name}/* | wc -c; readlink -f $HARCH_DATA/{name}")
            said = self._do(self.home, "run", "--country", "SN", "--data", name, "--no-code", "--", *words).split()
            if said[0] != str(MB):
                raise RuntimeError(f"work abroad has read {said[0]} bytes of {name}")
            spy = (
                "sh",
                "-c",
                f"cat {said[1]}/* $HARCH_DATA/{name}/* {self.abroad.home}/*/content/*/*/* 2>/dev/null; true",
            )
            got = self.abroad.harch("run", "--country", "SN", "--no-code", "--", *spy)
            leaked = any(mark.decode("latin-1") in got.stdout for mark in passed[-1].marks) or len(got.stdout) > MB // 2
            self.attempts.note("caches", f"other work reads {name}", "read" if leaked else "nothing", succeeded=leaked)
        self._wait_until_gone(passed)
        for held in passed:
            self.attempts.note(
                "caches", f"{held.name} stays at the hub", "looked", succeeded=bool(self._is_there(held))
            )
            places = [place for mark in held.marks for place in holds_bytes(self._agent_abroad, mark)]
            self.attempts.note("caches", f"{held.name} stays at the node: {places}", "looked", succeeded=bool(places))

    def relabelled(self) -> None:
        """The same files once more, under a name or in a place that carries another tag."""
        loose = {"process_in": ["MA", "SN"], "rest_in": ["MA", "SN"], "may_cross_borders": True, **UNENCRYPTED}
        for secret in self.secrets:
            self._relabel(f"{secret.name} with a looser tag", {"tag": loose, "content": secret.digest}, "data")
            as_code = {"kind": "code", "content": secret.digest, "countries": ["SN"]}
            self._relabel(f"{secret.name} as code for SN", as_code, "code")
        filling = self._fill(self.abroad)
        body = {"name": "between", "command": ["sleep", "300"], "countries_allowed": ["MA", "SN"]}
        between = self._theirs.workloads.submit({**body, "resources": {"gpus": 1}}).id
        self._until(lambda: self._theirs.workloads.get(between).status == "running", "work of SN that runs in MA")
        for secret in self.secrets:
            what = f"{secret.name} placed into work of SN, and copied from there"
            try:
                self._own.workloads.place_files(between, f"in/{secret.name}", secret.digest)
            except HarchError as error:
                self.attempts.note("relabelled", what, error.code, succeeded=False)
            else:
                self._typed(self.abroad, "cp", f"between:in/{secret.name}", str(self.folder / f"placed-{secret.name}"))
        for work_id in (between, *filling):
            self._theirs.workloads.stop(work_id)

    def _relabel(self, what: str, fields: Mapping[str, Any], how: str) -> None:
        """Registers it at home, and has work abroad read it."""
        name = f"mine-{self.attempts.total}"
        with self.home.client() as client:
            answer = client.post("/v1/data", json={"name": name, **fields})
        if not answer.is_success:
            code = answer.json().get("error", {}).get("code", str(answer.status_code))
            self.attempts.note("relabelled", what, code, succeeded=False)
            return
        data_id = answer.json()["id"]
        reads = {"data": [data_id]} if how == "data" else {"code": data_id}
        body = {"name": name, "command": ["ls"], "countries_allowed": ["SN"], **reads}
        try:
            work_id = self._own.workloads.submit(body).id
        except HarchError as error:
            self.attempts.note("relabelled", what, error.code, succeeded=False)
        else:
            status = self._own.workloads.wait(work_id).status
            self.attempts.note("relabelled", what, status, succeeded=status == "completed")
        self._own.data.remove(data_id)

    def retagged(self) -> None:
        """The tag is tightened while it is on its way, or when it has long been there."""
        moving = []
        for number in range(RETAGGED):
            name = f"moves-{number}"
            self._add(name, self._filled(name, RETAGGED_MB * MB), *TRAVELS)
            held = held_at(self.home, name, "dataset on its way", self._place(name))
            moving.append(held)
            body = {"name": f"reads-{name}", "command": ["sleep", "60"], "countries_allowed": ["SN"], "data": [name]}
            self._own.workloads.submit(body)
            self._until(lambda held=held: self._is_there(held) > 0, f"{name} on its way")  # type: ignore[misc]
            time.sleep(0.3 * number)
            self._do(self.home, "data", "tag", name, *STAYS)
            time.sleep(1)
            before = self._is_there(held)
            time.sleep(LINGER_S)
            after = self._is_there(held)
            came = f"{after - before} of {len(held.chunks)} chunks came after that"
            self.attempts.note("retagged", f"{name}: {came}", "looked", succeeded=after > before)
            print(f"  {name}: {before} of {len(held.chunks)} chunks were there when its tag was tightened", flush=True)
            self._read_abroad(held)
        travels = held_at(self.home, "travels", "dataset that was there", self._place("travels"))
        self._do(self.home, "data", "tag", "travels", *STAYS)
        moving.append(travels)
        self._read_abroad(travels)
        self._wait_until_gone(moving)
        for held in moving:
            there = self._is_there(held)
            what = f"{there} chunks of {held.name} that were there are there still"
            self.attempts.note("retagged", what, "looked", succeeded=there > 0)
            places = [place for mark in held.marks for place in holds_bytes(self._agent_abroad, mark)]
            self.attempts.note("retagged", f"{held.name} is at the node: {places}", "looked", succeeded=bool(places))

    def _read_abroad(self, held: Held) -> None:
        self._try("retagged", f"tree of {held.name}", lambda: tree_of(self._theirs, held.id))
        names = encode_ids(held.ids[:9])
        self._try("retagged", f"chunks of {held.name}", lambda: self._theirs.content.fetch(held.id, names))

    def _wait_until_gone(self, objects: Sequence[Held]) -> None:
        began_s = time.monotonic()
        while any(map(self._is_there, objects)) and time.monotonic() < began_s + UPKEEP_WITHIN_S:
            time.sleep(1)
        waited = f"{time.monotonic() - began_s:.0f} s"
        print(f"  after {waited} {sum(map(self._is_there, objects))} of their chunks are abroad", flush=True)

    def look_for_copies(self) -> None:
        """In the stores of the other hubs, and on the disks of their nodes."""
        for secret in self.secrets:
            there = self._is_there(secret)
            self.attempts.note("copies", f"{there} chunks of {secret.name} in SN", "looked", succeeded=there > 0)
            for hub in (ABROAD, HOSTILE):
                for folder in (self.folder / hub, self.folder / f"{hub}-agent"):
                    places = [place for mark in secret.marks for place in holds_bytes(folder, mark)]
                    what = f"{secret.name} below {folder.name}: {places}"
                    self.attempts.note("copies", what, "looked", succeeded=bool(places))

    # How

    def _try(self, family: str, what: str, call: Callable[[], object]) -> None:
        self.attempts.refused(family, what, call)

    def _typed(self, hub: LinkedHub, *words: str) -> None:
        done = hub.harch(*words)
        code = done.stderr.partition("error[")[2].partition("]")[0]
        what = f"harch {' '.join(words)} at {hub.hub_id}"
        self.attempts.note("commands", what, code or f"exit {done.returncode}", succeeded=done.returncode == 0)

    def _submit(self, hub: LinkedHub, submitted: list[tuple[str, str]], fields: Mapping[str, Any]) -> None:
        number = len(submitted) + self.attempts.total
        body = {"name": f"try-{number}", "command": ["ls"], "resources": {"gpus": 1}, **fields}
        what = f"{fields} at {hub.hub_id}"
        client = self._own if hub is self.home else self._theirs
        try:
            taken = client.workloads.submit(body)
        except HarchError as error:
            self.attempts.note("work", what, error.code, succeeded=False)
        else:
            if hub is not self.home:
                self.attempts.note("work", what, "taken", succeeded=True)
            submitted.append((taken.id, what))

    def _fill(self, hub: LinkedHub) -> list[str]:
        """All of its GPUs: what comes next waits, or goes elsewhere."""
        client = self._own if hub is self.home else self._theirs
        body = {"modelled_duration_s": 600, "resources": {"gpus": 4}, "stay_home": True}
        names = [f"fills-{self.attempts.total}-{number}" for number in range(int(hub.summary()["gpus_free"]) // 4)]
        taken = [client.workloads.submit({"name": name, **body}).id for name in names]
        self._until(lambda: hub.summary()["gpus_free"] == 0, f"{hub.hub_id} without free GPUs")
        return taken

    def _is_there(self, held: Held) -> int:
        """How many of its chunks the hub abroad has."""
        return len(held.ids) - len(decode_ids(self._theirs.content.missing(encode_ids(held.ids))))

    def _sent_there(self) -> str:
        self._do(self.abroad, "data", "add", "seed", "--files", str(self._filled("seed", 5_000)), *self._tag_there())
        return str(self._theirs.data.get("seed").content)

    @staticmethod
    def _tag_there() -> tuple[str, ...]:
        return ("--process-in", "SN", "--rest-in", "SN", *PLAIN)

    def _key(self, role: str) -> str:
        with self.abroad.client() as client:
            answer = client.post("/v1/auth/keys", json={"name": f"a-{role}", "role": role})
        return str(answer.raise_for_status().json()["key"])

    def _place(self, name: str) -> Path:
        return self.folder / "files" / name

    def _filled(self, name: str, size: int) -> Path:
        write_file(self._place(name) / "part.bin", size, self._noise)
        return self._place(name)

    def _block(self, size: int) -> bytes:
        return b"".join(self._noise.blocks(size))

    def _add(self, name: str, files: Path, *words: str) -> None:
        self._do(self.home, "data", "add", name, "--files", str(files), *words)

    def _do(self, hub: LinkedHub, *words: str) -> str:
        """Raises RuntimeError if it fails."""
        done = hub.harch(*words)
        if done.returncode:
            raise RuntimeError(f"`harch {' '.join(words)}` exits with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    @staticmethod
    def _until(condition: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + WITHIN_S
        while not condition():
            if time.monotonic() > end_s:
                raise TimeoutError(f"waited {WITHIN_S:g} s for {what}")
            time.sleep(0.02)
