# The rules that need no fleet, on examples. What needs one is compared with the compiled rules on random fleets.
package harch.sovereignty_test

import rego.v1

import data.harch.sovereignty

moroccan := {
	"process_in": ["MA"],
	"rest_in": ["MA"],
	"transit_in": ["MA"],
	"may_cross_borders": false,
	"frameworks": ["ma-law-09-08"],
	"classification": "restricted",
	"encrypt_at_rest": true,
	"encrypt_in_transit": true,
	"key_in": ["MA"],
}

vault := {"country": "MA", "frameworks": ["ma-law-09-08"], "encrypts_at_rest": true, "keys_in": ["MA"]}

abroad := {"country": "SN", "frameworks": ["sn-law-2008-12"], "encrypts_at_rest": true, "keys_in": ["SN"]}

domestic := {"countries_crossed": ["MA"], "international": false, "encrypted": true}

crossing := {"countries_crossed": ["MA", "MR", "SN"], "international": true, "encrypted": true}

test_a_hub_that_upholds_the_law_is_lawful if sovereignty.lawful(moroccan, vault)

test_a_hub_under_another_law_is_not if not sovereignty.lawful(moroccan, abroad)

test_a_key_store_in_the_right_country_is_safe if sovereignty.safe(moroccan, vault)

test_a_key_store_abroad_is_not if not sovereignty.safe(moroccan, abroad)

test_a_link_inside_the_country_may_be_taken if sovereignty.may_take(moroccan, domestic)

test_a_link_across_the_border_may_not if not sovereignty.may_take(moroccan, crossing)

test_a_link_that_names_no_country_may_not if {
	not sovereignty.may_take(moroccan, {"countries_crossed": [], "international": true, "encrypted": true})
}

test_restricted_data_is_seen_where_it_is if sovereignty.discreet(moroccan, "a", "a")

test_restricted_data_is_not_seen_elsewhere if not sovereignty.discreet(moroccan, "a", "b")

test_an_unknown_tag_permits_nothing if not sovereignty.may_take(null, domestic)
