package status

import (
	"errors"
	"fmt"
	"strings"
)

// ErrAbnormal is that somebody should look at a node, a plugin or a volume.
var ErrAbnormal = errors.New("not all is normal")

// Counts says how much of what some reports tell is abnormal. All programs end with the same status for the same counts.
type Counts struct {
	// Nodes is how many were asked, and Problems how many of these have a problem of their own.
	Nodes, Problems int
	// Volumes is how many were reported, Abnormal how many of these are abnormal, and NotReported how many should have been
	// reported.
	Volumes, Abnormal, NotReported int
	// Refused is how many publishes failed.
	Refused int
	// NotReady is how many plugins are not ready, and WithoutRight how many lack a right.
	NotReady, WithoutRight int
}

// Add counts the report of a node that is counted already.
func (c *Counts) Add(r *Report) {
	c.Volumes += len(r.Volumes)
	c.Abnormal += r.Unhealthy()
	c.Refused += len(r.Refused)
	if len(r.NotReady) > 0 {
		c.NotReady++
	}
	if len(r.MissingRights) > 0 {
		c.WithoutRight++
	}
}

// String returns the last line of a table.
func (c *Counts) String() string {
	return fmt.Sprintf("%s on %s, %d abnormal", number(c.Volumes, "volume"), number(c.Nodes, "node"), c.Abnormal)
}

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Err returns an error that wraps ErrAbnormal, nil if all is normal.
func (c *Counts) Err() error {
	var parts []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(c.Problems, "nodes with a problem: %d of %d", c.Problems, c.Nodes)
	add(c.Abnormal, "volumes that are abnormal: %d of %d", c.Abnormal, c.Volumes)
	add(c.NotReported, "volumes that no plugin reports: %d", c.NotReported)
	add(c.Refused, "publishes that failed in the last ten minutes: %d", c.Refused)
	add(c.NotReady, "plugins that are not ready: %d", c.NotReady)
	add(c.WithoutRight, "plugins that lack a right: %d", c.WithoutRight)
	if len(parts) == 0 {
		return nil
	}
	return &abnormalError{"status: " + strings.Join(parts, ", ")}
}

type abnormalError struct{ text string }

func (e *abnormalError) Error() string { return e.text }

func (*abnormalError) Is(target error) bool { return target == ErrAbnormal }
