// Package steps tells where the time of the plugin's updates goes, from an execution trace of the plugin (runtime/trace). It owns the names of
// the steps and which functions belong to each. It must not know how the trace was made.
package steps

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/exp/trace"
)

// step is a part of an update, and a function that is on the stack only then. The first step that matches counts.
type step struct{ name, function string }

func ofWorker() []step {
	return []step{
		{"prune", "pkg/writer.Prune"},
		{"list", "pkg/writer.list"},
		{"compare", "pkg/writer.(*update).compare"},
		{"replace", "pkg/writer.(*update).replace"},
		{"links", "pkg/writer.(*update).makeLinks"},
		{"links", "pkg/writer.(*update).dropLinks"},
		{"write_rest", "pkg/writer."},
		{"receipts", "pkg/receipts."},
		{"receipts", "pkg/opened."},
		{"measure", "publisher.(*files).measure"},
		{"prove", "pkg/mount."},
		{"reconcile", "publisher.(*worker).run"},
	}
}

// ofEvent are those of the goroutines that bring an event to that of the pod.
func ofEvent() []step {
	return []step{
		{"decode", "pkg/manager."},
		{"receive", "net/http"},
		{"receive", "crypto/tls"},
	}
}

const (
	// worker is a function that is on each stack of a pod's goroutine.
	worker = "publisher.(*worker).run"
	// server is one of the goroutines that answer requests, as that for the trace.
	server = "net/http.(*conn).serve"
)

// Names are the steps, in the order of an update, as Read returns them. wake is the time in which a goroutine could run and did not.
func Names() []string {
	return []string{"wake", "receive", "decode", "reconcile", "prove", "list", "compare", "replace", "links", "write_rest", "receipts", "measure", "prune"}
}

// Total is what all goroutines of the updates took in one step: their own time, and that of their system calls.
type Total struct{ Own, Calls time.Duration }

// routine is what is known about one goroutine.
type routine struct {
	since trace.Time
	// last is the step of the goroutine's latest stack.
	last     string
	isWorker bool
	// hasRun means that it was in a system call, or has waited. What the pod's goroutine does before is computing.
	hasRun bool
	totals map[string]Total
}

// Read returns what the updates in a trace took in each step. A stack is known only where a goroutine enters a system call or waits. Its own
// time until then belongs to the step of that stack, but until the first system call of a pod's goroutine, which starts for each change, it is
// that of reconcile.
func Read(from io.Reader) (map[string]Total, error) {
	r, err := trace.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("read the trace: %w", err)
	}
	all, steps := map[trace.GoID]*routine{}, map[string]Total{}
	for {
		event, err := r.ReadEvent()
		switch {
		case errors.Is(err, io.EOF):
			for _, g := range all {
				g.addTo(steps)
			}
			return steps, nil
		case err != nil:
			return nil, fmt.Errorf("read the trace: %w", err)
		case event.Kind() != trace.EventStateTransition || event.StateTransition().Resource.Kind != trace.ResourceGoroutine:
			continue
		}
		id := event.StateTransition().Resource.Goroutine()
		if all[id] == nil {
			all[id] = &routine{totals: map[string]Total{}}
		}
		all[id].change(event)
	}
}

func (g *routine) change(event trace.Event) {
	change := event.StateTransition()
	from, _ := change.Goroutine()
	took := time.Duration(event.Time() - g.since)
	known := g.since != 0
	var names []string
	for frame := range change.Stack.Frames() {
		names = append(names, frame.Func)
	}
	if len(names) > 0 {
		g.isWorker = g.isWorker || contains(names, worker)
		if now := stepOf(names); now != "" {
			g.last = now
		}
	}
	switch {
	case !known:
	case from == trace.GoRunning && g.isWorker && !g.hasRun:
		g.add("reconcile", Total{Own: took})
		g.hasRun = true
	case from == trace.GoRunning:
		g.add(g.last, Total{Own: took})
	case from == trace.GoSyscall:
		g.add(g.last, Total{Calls: took})
	case from == trace.GoRunnable:
		g.add("wake", Total{Own: took})
	}
	g.since = event.Time()
}

func (g *routine) add(step string, t Total) { add(g.totals, step, t) }

// addTo adds what the goroutine took, if it has a part in updates.
func (g *routine) addTo(all map[string]Total) {
	if g.last == "" {
		return
	}
	for step, t := range g.totals {
		if step != "" {
			add(all, step, t)
		}
	}
}

func add(to map[string]Total, name string, t Total) {
	now := to[name]
	to[name] = Total{now.Own + t.Own, now.Calls + t.Calls}
}

func contains(names []string, part string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, part) })
}

// stepOf returns the step of a stack, or "" for one that has no part in updates.
func stepOf(names []string) string {
	all := ofEvent()
	switch {
	case contains(names, server):
		return ""
	case contains(names, worker):
		all = ofWorker()
	}
	for _, s := range all {
		if contains(names, s.function) {
			return s.name
		}
	}
	return ""
}
