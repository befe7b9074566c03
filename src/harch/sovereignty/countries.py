"""Which country is meant? ISO 3166-1 alpha-2 codes, and the region words that the public clients use for them."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

from harch.base.errors import HarchError

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
