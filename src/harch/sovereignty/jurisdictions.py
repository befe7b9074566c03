"""Which countries, legal frameworks, groups and places are there?

ISO 3166-1 codes, declared hosts outside of the fleet, and the registry that tags are compiled against.
"""

# harch: pure

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network

from msgspec import Struct

from harch.base.errors import HarchError, Problems
from harch.base.hosts import IpAddress, address_of

_TABLE = """
AD Andorra; AE United Arab Emirates; AF Afghanistan; AG Antigua and Barbuda; AI Anguilla; AL Albania; AM Armenia; AO
Angola; AQ Antarctica; AR Argentina; AS American Samoa; AT Austria; AU Australia; AW Aruba; AX Åland Islands; AZ
Azerbaijan; BA Bosnia and Herzegovina; BB Barbados; BD Bangladesh; BE Belgium; BF Burkina Faso; BG Bulgaria; BH
Bahrain; BI Burundi; BJ Benin; BL Saint Barthélemy; BM Bermuda; BN Brunei; BO Bolivia; BQ Caribbean Netherlands; BR
Brazil; BS Bahamas; BT Bhutan; BV Bouvet Island; BW Botswana; BY Belarus; BZ Belize; CA Canada; CC Cocos Islands; CD
Democratic Republic of the Congo; CF Central African Republic; CG Congo; CH Switzerland; CI Côte d'Ivoire; CK Cook
Islands; CL Chile; CM Cameroon; CN China; CO Colombia; CR Costa Rica; CU Cuba; CV Cape Verde; CW Curaçao; CX
Christmas Island; CY Cyprus; CZ Czechia; DE Germany; DJ Djibouti; DK Denmark; DM Dominica; DO Dominican Republic; DZ
Algeria; EC Ecuador; EE Estonia; EG Egypt; EH Western Sahara; ER Eritrea; ES Spain; ET Ethiopia; FI Finland; FJ
Fiji; FK Falkland Islands; FM Micronesia; FO Faroe Islands; FR France; GA Gabon; GB United Kingdom; GD Grenada; GE
Georgia; GF French Guiana; GG Guernsey; GH Ghana; GI Gibraltar; GL Greenland; GM Gambia; GN Guinea; GP Guadeloupe;
GQ Equatorial Guinea; GR Greece; GS South Georgia; GT Guatemala; GU Guam; GW Guinea-Bissau; GY Guyana; HK Hong Kong;
HM Heard Island and McDonald Islands; HN Honduras; HR Croatia; HT Haiti; HU Hungary; ID Indonesia; IE Ireland; IL
Israel; IM Isle of Man; IN India; IO British Indian Ocean Territory; IQ Iraq; IR Iran; IS Iceland; IT Italy; JE
Jersey; JM Jamaica; JO Jordan; JP Japan; KE Kenya; KG Kyrgyzstan; KH Cambodia; KI Kiribati; KM Comoros; KN Saint
Kitts and Nevis; KP North Korea; KR South Korea; KW Kuwait; KY Cayman Islands; KZ Kazakhstan; LA Laos; LB Lebanon;
LC Saint Lucia; LI Liechtenstein; LK Sri Lanka; LR Liberia; LS Lesotho; LT Lithuania; LU Luxembourg; LV Latvia; LY
Libya; MA Morocco; MC Monaco; MD Moldova; ME Montenegro; MF Saint Martin; MG Madagascar; MH Marshall Islands; MK
North Macedonia; ML Mali; MM Myanmar; MN Mongolia; MO Macau; MP Northern Mariana Islands; MQ Martinique; MR
Mauritania; MS Montserrat; MT Malta; MU Mauritius; MV Maldives; MW Malawi; MX Mexico; MY Malaysia; MZ Mozambique; NA
Namibia; NC New Caledonia; NE Niger; NF Norfolk Island; NG Nigeria; NI Nicaragua; NL Netherlands; NO Norway; NP
Nepal; NR Nauru; NU Niue; NZ New Zealand; OM Oman; PA Panama; PE Peru; PF French Polynesia; PG Papua New Guinea; PH
Philippines; PK Pakistan; PL Poland; PM Saint Pierre and Miquelon; PN Pitcairn; PR Puerto Rico; PS Palestine; PT
Portugal; PW Palau; PY Paraguay; QA Qatar; RE Réunion; RO Romania; RS Serbia; RU Russia; RW Rwanda; SA Saudi Arabia;
SB Solomon Islands; SC Seychelles; SD Sudan; SE Sweden; SG Singapore; SH Saint Helena; SI Slovenia; SJ Svalbard and
Jan Mayen; SK Slovakia; SL Sierra Leone; SM San Marino; SN Senegal; SO Somalia; SR Suriname; SS South Sudan; ST São
Tomé and Príncipe; SV El Salvador; SX Sint Maarten; SY Syria; SZ Eswatini; TC Turks and Caicos Islands; TD Chad; TF
French Southern Territories; TG Togo; TH Thailand; TJ Tajikistan; TK Tokelau; TL East Timor; TM Turkmenistan; TN
Tunisia; TO Tonga; TR Türkiye; TT Trinidad and Tobago; TV Tuvalu; TW Taiwan; TZ Tanzania; UA Ukraine; UG Uganda; UM
US Minor Outlying Islands; US United States; UY Uruguay; UZ Uzbekistan; VA Vatican City; VC Saint Vincent; VE
Venezuela; VG British Virgin Islands; VI US Virgin Islands; VN Vietnam; VU Vanuatu; WF Wallis and Futuna; WS Samoa;
YE Yemen; YT Mayotte; ZA South Africa; ZM Zambia; ZW Zimbabwe
"""

COUNTRIES: dict[str, str] = {
    row.strip()[:2]: row.strip()[3:] for row in _TABLE.replace("\n", " ").split(";")
}  # code to English name

# How the public clients write the hubs' own countries, besides the names above.
_ALIASES = {
    "maroc": "MA",
    "ivory-coast": "CI",
    "usa": "US",
    "uk": "GB",
    "great-britain": "GB",
    "turkey": "TR",
    "czech-republic": "CZ",
    "cape-verde": "CV",
    "swaziland": "SZ",
    "drc": "CD",
}


def country_of(word: str) -> str:
    """The ISO code behind a code of any case or a region word; raises E0901, because an unknown place means no."""
    code = _CODES.get(word)
    if code is None:
        code = _CODES.get(_slug(word))
    if code is None:
        raise HarchError("E0901", f"`{word[:64]}` is not a country or region", hint=_suggestion(word))
    return code


def countries_of(words: Iterable[str]) -> tuple[str, ...]:
    """The same for many, without repeats, in the order given."""
    return tuple(dict.fromkeys(country_of(word) for word in words))


def region_word(country: str) -> str:
    """The word that the public clients know a country by: `MA` is `morocco`, `CI` is `cote-divoire`."""
    return _REGIONS[country]


def _slug(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word).encode("ascii", "ignore").decode()
    return "-".join(plain.lower().replace("'", "").replace("_", " ").replace("-", " ").split())


def _suggestion(word: str) -> str:
    slug = _slug(word[:64])
    # Only names are matched: among two-letter codes everything is close to something.
    close = difflib.get_close_matches(slug, _REGIONS.values(), n=1) if len(slug) > 3 else []
    if not close:
        return "use an ISO 3166-1 alpha-2 code such as `MA`, `SN` or `CI`"
    code = _CODES[close[0]]
    return f"use `{code}` for {COUNTRIES[code]}"


_REGIONS = {code: _slug(name) for code, name in COUNTRIES.items()}
_CODES = {
    **{code.lower(): code for code in COUNTRIES},
    **{region: code for code, region in _REGIONS.items()},
    **_ALIASES,
    **{code: code for code in COUNTRIES},  # the common spelling, found without taking the word apart
}


# In which country does a host outside of the fleet stand? As the operator declared it; what nobody declared is
# nowhere, and nothing may go there. No I/O.
#
# A place is networks in one country, with names that are known to be in them. A name alone proves nothing: whoever
# answers for it can let it point anywhere, so its addresses are judged again when a connection is made.


HOME = ""  # this machine
HOME_NAME = "localhost"

_Network = IPv4Network | IPv6Network


class DeclaredPlace(Struct, frozen=True, kw_only=True):
    """`names`: hosts as `read_host` gives them, or `*.` with a domain."""

    id: str
    country: str
    networks: tuple[str, ...]
    names: tuple[str, ...] = ()


class Places(Struct, frozen=True, dict=True):
    """All that were declared. The narrowest network that holds an address says where it stands."""

    entries: tuple[DeclaredPlace, ...] = ()

    def of_host(self, host: str) -> str | None:
        """The country of a host as `read_host` gives it; `HOME` for this machine, None if nobody declared it."""
        address = address_of(host)
        if address is not None:
            return self.of_address(address)
        if host == HOME_NAME:
            return HOME
        if host in self._names:
            return self._names[host]
        labels = host.split(".")
        domains = (".".join(labels[at:]) for at in range(1, len(labels)))
        return next((self._names[f"*.{domain}"] for domain in domains if f"*.{domain}" in self._names), None)

    def of_address(self, address: IpAddress) -> str | None:
        if address.is_loopback:
            return HOME
        for network, country in self._networks:
            if address in network:
                return country
        return None

    @cached_property
    def _names(self) -> dict[str, str]:
        return {name: place.country for place in self.entries for name in place.names}

    @cached_property
    def _networks(self) -> list[tuple[_Network, str]]:
        found = [(ip_network(text), place.country) for place in self.entries for text in place.networks]
        return sorted(found, key=lambda one: -one[0].prefixlen)


class EgressRule(Struct, frozen=True):
    """Where the connections of one sink or source may lead: `country` was proved, `HOME` is this machine alone."""

    country: str = HOME
    places: Places = Places()

    def refusal(self, address: str) -> str:
        """Why this IP address may not be connected to; empty if it may."""
        found = address_of(address)
        country = self.places.of_address(found) if found is not None else None
        if country is None:
            return f"{address} is not in a declared place"
        if country != self.country:
            return f"{address} is {_country_text(country)}, and {_country_text(self.country)} was verified"
        return ""


def _country_text(country: str) -> str:
    return f"in {country}" if country else "this machine"


# Which countries, legal frameworks, groups and places are there? The registry that tags are compiled against.
#
# A grid zone is no jurisdiction: it says whose carbon intensity applies, and has no place in here.


WORLD = "WORLD"  # the group of every country that the registry knows


class Framework(Struct, frozen=True, kw_only=True):
    """A law or treaty about data. The summary tells what it is about and is not legal advice."""

    id: str
    bit: int
    name: str
    in_force: tuple[str, ...]
    summary: str
    aliases: tuple[str, ...] = ()


class CountryGroup(Struct, frozen=True, kw_only=True):
    """Countries with a common name. `mistaken_for`: country codes that people write when they mean the group."""

    id: str
    name: str
    countries: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    mistaken_for: tuple[str, ...] = ()


class Jurisdictions(Struct, frozen=True, dict=True, kw_only=True):
    """The registry. `countries` maps ISO codes to names; frameworks and groups are known by their ids. `places`: where
    networks outside of the fleet stand, as the operator says."""

    countries: dict[str, str]
    frameworks: dict[str, Framework]
    groups: dict[str, CountryGroup]
    places: Places = Places()

    def frameworks_in(self, country: str) -> tuple[str, ...]:
        """The frameworks in force in a country."""
        return self._in_force.get(country, ())

    def framework_mask(self, ids: Iterable[str]) -> int:
        """The mask of some frameworks by their bits. Raises E0905 for one that is not known."""
        mask = 0
        for id in ids:
            mask |= 1 << self.frameworks[self.framework(id)].bit
        return mask

    def country(self, word: str) -> str:
        """The code behind a code, a name or a region word. Raises E0901."""
        return word if word in self.countries else country_of(word)

    def framework(self, word: str) -> str:
        """The id behind an id or alias, in any case. Raises E0905."""
        found = self._framework_words.get(word.strip().lower())
        if found is None:
            raise HarchError(
                "E0905", f"`{word[:64]}` is not a known framework", hint=f"known: {', '.join(self.frameworks)}"
            )
        return found

    def expand(self, words: Iterable[str], where: str, problems: Problems) -> tuple[str, ...]:
        """Country codes for countries, names and groups. What is not understood is a problem and expands to none."""
        written = tuple(words)
        found: set[str] = set()
        for index, word in enumerate(written):
            group = self._group_words.get(word.strip().upper())
            if group is not None:
                found.update(group)
                continue
            try:
                found.add(self.country(word))
            except HarchError as error:
                problems.add(f"{where}[{index}]", f"{error.message}; {error.hint}")
        self._refuse_mistaken(written, found, where, problems)
        return tuple(sorted(found))

    def _refuse_mistaken(self, written: tuple[str, ...], found: set[str], where: str, problems: Problems) -> None:
        """`AU` is Australia. Alone or among African countries it was hardly meant, and guessing would move data."""
        for group in self.groups.values():
            for code in group.mistaken_for:
                if code in written and found - {code} <= set(group.countries):
                    problems.add(
                        where,
                        f"`{code}` is the code of {self.countries[code]}; write `{group.id}` for the {group.name}, "
                        f"or `{self.countries[code].lower()}` if you mean the country",
                    )

    @cached_property
    def _in_force(self) -> dict[str, tuple[str, ...]]:
        return {
            code: tuple(sorted(law.id for law in self.frameworks.values() if code in law.in_force))
            for code in self.countries
        }

    @cached_property
    def _framework_words(self) -> dict[str, str]:
        return {word.lower(): law.id for law in self.frameworks.values() for word in (law.id, *law.aliases)}

    @cached_property
    def _group_words(self) -> dict[str, tuple[str, ...]]:
        words = {word.upper(): g.countries for g in self.groups.values() for word in (g.id, *g.aliases)}
        return {**words, WORLD: tuple(sorted(self.countries))}


def bare_registry() -> Jurisdictions:
    """The countries of ISO 3166-1 and nothing else; files build on it."""
    return Jurisdictions(countries=dict(COUNTRIES), frameworks={}, groups={})


def country_bit(code: str) -> int:
    """The number of a country in masks, from its two letters: it never changes, whatever is added to the registry."""
    return (ord(code[0]) - 65) * 26 + ord(code[1]) - 65


def country_mask(codes: Iterable[str]) -> int:
    """The mask of some countries, a plain integer of up to 676 bits: compared when rules are compiled, not later."""
    mask = 0
    for code in codes:
        mask |= 1 << country_bit(code)
    return mask
