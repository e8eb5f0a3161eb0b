package status

import "maps"

// Printed remembers the last look at each node, so that a table prints only what has changed since. It holds what is there now, and forgets
// the rest. The zero value has seen nothing.
type Printed struct {
	// before has the lines of the last look, by node and id, and now those of this one.
	before, now map[string]map[string]string
	changed     bool
}

// IsNew reports whether a node's line with this id was another one at the last look, and remembers the line. It is true for a nil Printed.
func (p *Printed) IsNew(node, id, line string) bool {
	if p == nil {
		return true
	}
	if p.now == nil {
		p.now = map[string]map[string]string{}
	}
	if p.now[node] == nil {
		p.now[node] = map[string]string{}
	}
	p.now[node][id] = line
	last, found := p.before[node][id]
	return !found || last != line
}

// Keep remembers the lines of a node that reports nothing at this look. It comes before IsNew for the node.
func (p *Printed) Keep(node string) {
	if p == nil || len(p.before[node]) == 0 {
		return
	}
	if p.now == nil {
		p.now = map[string]map[string]string{}
	}
	p.now[node] = maps.Clone(p.before[node])
}

// Changed reports whether the last look differs from the one before, also if it only lacks a line. The
// first look does.
func (p *Printed) Changed() bool { return p.changed }

// had reports whether the last look had a line.
func (p *Printed) had(node, id string) bool {
	if p == nil {
		return false
	}
	_, found := p.before[node][id]
	return found
}

// forget removes a line from this look.
func (p *Printed) forget(node, id string) {
	if p != nil {
		delete(p.now[node], id)
	}
}

// next ends a look.
func (p *Printed) next() {
	if p == nil {
		return
	}
	maps.DeleteFunc(p.now, func(_ string, lines map[string]string) bool { return len(lines) == 0 })
	if p.now == nil {
		p.now = map[string]map[string]string{}
	}
	p.changed = p.before == nil || !maps.EqualFunc(p.before, p.now, maps.Equal[map[string]string, map[string]string])
	p.before, p.now = p.now, nil
}
