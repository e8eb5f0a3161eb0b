package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/refvol/refvol/e2e/tools/controlplane"
)

// traffic is what the API server was asked for since it started, by the plugin and by the
// bench; what it asks itself is left out.
type traffic struct {
	// watches of ConfigMaps were begun.
	watches int
	// others are all requests that are no watches, by what they are.
	others map[controlplane.Request]int
}

// traffic counts what the API server was asked for.
func (l *lab) traffic(ctx context.Context) (traffic, error) {
	requests, err := l.Requests(ctx)
	if err != nil {
		return traffic{}, err
	}
	// A watch is counted as a request only when it ends.
	open, err := l.OpenWatches(ctx, "configmaps")
	if err != nil {
		return traffic{}, err
	}
	t := traffic{watches: open, others: map[controlplane.Request]int{}}
	for r, n := range requests {
		switch {
		case ownResource(r.Resource):
		case r.Verb != "WATCH":
			t.others[r] = n
		case r.Resource == "configmaps":
			t.watches += n
		}
	}
	return t, nil
}

// ownResource says whether it is the API server itself that asks for a resource, at its
// start or all the time: the plugin has no right to any of these, and the bench asks for
// none. The metrics have no resource.
func ownResource(resource string) bool {
	return slices.Contains([]string{
		"", "apiservices", "endpoints", "endpointslices", "flowschemas", "ipaddresses", "leases",
		"prioritylevelconfigurations", "servicecidrs", "services",
	}, resource)
}

// since returns what was asked for after before was counted.
func (t traffic) since(before traffic) traffic {
	later := traffic{watches: t.watches - before.watches, others: map[controlplane.Request]int{}}
	for r, n := range t.others {
		if more := n - before.others[r]; more > 0 {
			later.others[r] = more
		}
	}
	return later
}

// asked is how many requests other than watches there were.
func (t traffic) asked() int {
	n := 0
	for _, count := range t.others {
		n += count
	}
	return n
}

// reads is how many of the requests read ConfigMaps.
func (t traffic) reads() int {
	return t.others[controlplane.Request{Verb: "GET", Resource: "configmaps"}] + t.others[controlplane.Request{Verb: "LIST", Resource: "configmaps"}]
}

func (t traffic) String() string {
	parts := []string{fmt.Sprintf("%d watches", t.watches)}
	byName := func(a, b controlplane.Request) int {
		return strings.Compare(a.Resource+a.Verb, b.Resource+b.Verb)
	}
	for _, r := range slices.SortedFunc(maps.Keys(t.others), byName) {
		parts = append(parts, fmt.Sprintf("%d %s %s", t.others[r], r.Verb, r.Resource))
	}
	return strings.Join(parts, ", ")
}
