"""What would the web APIs answer? Doubles with the documented shapes, for tests in memory and over loopback."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from harch.base.clock import Clock, iso

RECORDED = Path(__file__).parent / "recorded"
Answer = httpx.Response
Fault = Callable[[httpx.Request], httpx.Response]


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text("utf-8"))


def status(code: int, **headers: str) -> Fault:
    """A fault: this status, with a body that says nothing."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _request: Answer(code, headers=named, json={"error": "out of order"})


def timeout(request: httpx.Request) -> httpx.Response:
    """A fault: nobody answers. In memory no time passes; over a socket see the integration tests."""
    raise httpx.ReadTimeout("out of order", request=request)


def body(content: bytes) -> Fault:
    """A fault: 200 with these bytes."""
    return lambda _request: Answer(200, content=content)


class Double:
    """One API. `faults` are answered first, one each; `always` is a fault that stays."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.requests: list[httpx.Request] = []
        self.faults: list[Fault] = []
        self.always: Fault | None = None

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.faults:
            return self.faults.pop(0)(request)
        if self.always is not None:
            return self.always(request)
        return self.answer(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        raise NotImplementedError


class ElectricityMapsDouble(Double):
    """Hourly values; `g_per_kwh` may be changed by a test, also into something that is not true."""

    TOKEN = "em-secret-token"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.g_per_kwh: float | None = 617.0
        self.zone_answered: str | None = None
        self.factor_type_answered: str | None = None
        self.hour: datetime | None = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("auth-token") != self.TOKEN:
            return Answer(401, json={"status": "error", "message": "Invalid auth-token"})
        zone = self.zone_answered or request.url.params["zone"]
        hour = self.hour or self.clock.now().replace(minute=0, second=0, microsecond=0)
        match request.url.path:
            case "/v3/carbon-intensity/latest":
                kind = self.factor_type_answered or request.url.params["emissionFactorType"]
                shape = recorded("electricity_maps_latest")
                shape |= {"carbonIntensity": self.g_per_kwh, "emissionFactorType": kind}
            case "/v3/carbon-intensity/forecast":
                shape = recorded("electricity_maps_forecast")
                for ahead, point in enumerate(shape["forecast"], 1):
                    point["datetime"] = iso(hour + timedelta(hours=ahead))
            case "/v3/power-breakdown/latest":
                shape = recorded("electricity_maps_power_breakdown")
            case _:
                return Answer(404, json={"error": "not found"})
        return Answer(200, json=shape | {"zone": zone, "datetime": iso(hour)})


class WattTimeDouble(Double):
    """Tokens are counted, and good until the test ends them."""

    USER, PASSWORD = "freddo", "the-frog-password"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.logins = 0
        self.token_good = ""
        self.units = "lbs_co2_per_mwh"
        self.lbs_per_mwh = 1048.4131919701972

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/login":
            if request.headers.get("authorization") != httpx.BasicAuth(self.USER, self.PASSWORD)._auth_header:
                return Answer(403, json={"detail": "Forbidden"})
            self.logins += 1
            self.token_good = f"{recorded('watttime_login')['token']}{self.logins}"
            return Answer(200, json={"token": self.token_good})
        if request.headers.get("authorization") != f"Bearer {self.token_good}":
            return Answer(401, json={"detail": "Invalid token"})
        shape = recorded("watttime_forecast")
        now = self.clock.now()
        start = now.replace(minute=now.minute // 5 * 5, second=0, microsecond=0)
        shape["data"] = [
            {"point_time": (start + timedelta(minutes=5 * step)).isoformat(), "value": self.lbs_per_mwh + step}
            for step in range(288)
        ]
        shape["meta"] |= {"region": request.url.params["region"], "units": self.units}
        return Answer(200, json=shape)


class OpenMeteoDouble(Double):
    """Weather that does not change, at the times that were asked for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.wind_unit = "m/s"

    def answer(self, request: httpx.Request) -> httpx.Response:
        shape = recorded("open_meteo_forecast")
        now_s = int(self.clock.now().timestamp())
        shape["current"]["time"] = now_s // 900 * 900
        midnight_s = now_s // 86400 * 86400
        hours = int(request.url.params["forecast_days"]) * 24
        shape["hourly"] = {
            name: ([midnight_s + 3600 * hour for hour in range(hours)] if name == "time" else [values[0]] * hours)
            for name, values in shape["hourly"].items()
        }
        shape["current_units"]["wind_speed_10m"] = self.wind_unit
        return Answer(200, json=shape)


class PrometheusDouble(Double):
    """Answers each query with the text that a test has set for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.samples: dict[str, str] = {}

    def answer(self, request: httpx.Request) -> httpx.Response:
        shape = recorded("prometheus_vector")
        text = self.samples.get(request.url.params["query"])
        now_s = self.clock.now().timestamp()
        series = shape["data"]["result"][0]
        shape["data"]["result"] = [] if text is None else [series | {"value": [now_s, text]}]
        return Answer(200, json=shape)
