# May it be processed, kept, moved, seen or run there? The compiled rules of HarchOS in words that can be read.
#
# input.action   what is asked: "process", "rest", "move", "see" or "workload"
# input.hub      where it would happen
# input.source   where the data is now ("move" and "see")
# input.tag      the tag of the data, or null if nobody has said what it permits
# input.workload what would run, and input.data: what it reads ("workload")
#
# data.world is written by HarchOS from the fleet, its safeguards and the jurisdictions: hubs, links, countries,
# frameworks. Hubs are looked up with object.get, which the engine does in one step. A rule that meets something unknown is undefined, and undefined never allows.
package harch.sovereignty

import rego.v1

default allow := false

allow if {
	input.action == "process"
	may_process(input.tag, input.hub)
}

allow if {
	input.action == "rest"
	may_rest(input.tag, input.hub)
}

allow if {
	input.action == "move"
	may_move(input.tag, input.source, input.hub)
}

allow if {
	input.action == "see"
	may_see(input.tag, input.source, input.hub)
}

allow if {
	input.action == "workload"
	count(input.not_found) == 0
	resident(input.workload, input.hub)
	every item in input.data {
		available(item, input.hub)
	}
}

# Processing, keeping, seeing

may_process(tag, hub) if {
	site := object.get(data.world.hubs, hub, {})
	site.country in tag.process_in
	lawful(tag, site)
	safe(tag, site)
}

may_rest(tag, hub) if {
	site := object.get(data.world.hubs, hub, {})
	site.country in tag.rest_in
	lawful(tag, site)
	safe(tag, site)
}

# Whatever arrives must be permitted to rest or to be processed there.
may_arrive(tag, hub) if may_process(tag, hub)

may_arrive(tag, hub) if may_rest(tag, hub)

may_move(tag, source, hub) if {
	may_arrive(tag, hub)
	reaches(tag, source, hub)
}

# To look is to process. Nothing is written, so encryption at rest is not asked for.
may_see(tag, source, hub) if {
	site := object.get(data.world.hubs, hub, {})
	site.country in tag.process_in
	lawful(tag, site)
	discreet(tag, source, hub)
	reaches(tag, source, hub)
}

discreet(tag, source, hub) if source == hub

discreet(tag, source, hub) if {
	source != hub
	tag.classification in {"public", "internal", "confidential"}
}

lawful(tag, site) if {
	every law in tag.frameworks {
		law in site.frameworks
	}
}

safe(tag, site) if tag.encrypt_at_rest == false

safe(tag, site) if {
	tag.encrypt_at_rest == true
	site.encrypts_at_rest == true
	some country in tag.key_in
	country in site.keys_in
}

# Travelling: data goes from hub to hub, over links that it may take.

reaches(tag, source, hub) if {
	source == hub
	known(hub)
}

reaches(tag, source, hub) if {
	source != hub
	known(source)
	links := open_links(tag)
	neighbours := joined(links)
	hub in graph.reachable(neighbours, {source})
}

known(hub) if object.get(data.world.hubs, hub, null) != null

open_links(tag) := [link.ends | some link in data.world.links; may_take(tag, link)]

joined(links) := {here: there |
	some here, _ in data.world.hubs
	there := {other | some ends in links; here in ends; some other in ends}
}

may_take(tag, link) if {
	count(link.countries_crossed) > 0
	every country in link.countries_crossed {
		country in tag.transit_in
	}
	border_permitted(tag, link)
	secret_enough(tag, link)
}

border_permitted(tag, link) if tag.may_cross_borders == true

border_permitted(tag, link) if {
	tag.may_cross_borders == false
	link.international == false
}

secret_enough(tag, link) if tag.encrypt_in_transit == false

secret_enough(tag, link) if {
	tag.encrypt_in_transit == true
	link.encrypted == true
}

# Workloads

# An empty list excludes no country, but the hub must be one that is known.
resident(workload, hub) if {
	count(workload.countries_allowed) == 0
	known(hub)
}

resident(workload, hub) if {
	site := object.get(data.world.hubs, hub, {})
	site.country in workload.countries_allowed
}

# Data is processed where the work runs, so it must be there or be able to get there.
available(item, hub) if {
	may_process(item.tag, hub)
	hub in item.hubs
}

available(item, hub) if {
	may_process(item.tag, hub)
	some source in item.hubs
	may_move(item.tag, source, hub)
}

# Why not, for people. The answer is `allow`; a reason that is missing here permits nothing.

deny contains reason if {
	input.action == "workload"
	not resident(input.workload, input.hub)
	reason := sprintf("%s is not in a country that the workload allows", [input.hub])
}

deny contains reason if {
	input.action == "workload"
	some name in input.not_found
	reason := sprintf("%s is not known", [name])
}

deny contains reason if {
	input.action == "workload"
	some item in input.data
	not may_process(item.tag, input.hub)
	reason := sprintf("%s may not be processed at %s", [item.name, input.hub])
}

deny contains reason if {
	input.action == "workload"
	some item in input.data
	may_process(item.tag, input.hub)
	not available(item, input.hub)
	reason := sprintf("%s is not at %s and has no permitted way there", [item.name, input.hub])
}

deny contains reason if {
	input.action in {"process", "rest", "move", "see"}
	not allow
	reason := sprintf("its tag does not permit to %s it at %s", [input.action, input.hub])
}
