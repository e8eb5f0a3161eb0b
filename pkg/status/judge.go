package status

import (
	"errors"
	"fmt"
	"strings"
)

// ErrAbnormal says that somebody should look at a node, a plugin or a volume.
var ErrAbnormal = errors.New("not all is normal")

// Counts has the numbers of abnormal things in some reports. All commands derive their exit status from it.
type Counts struct {
	// Nodes is the number of nodes that were asked. Problems is the number of those that have a problem of their own.
	Nodes, Problems int
	// Volumes is the number of reported volumes, and Abnormal how many of them are abnormal. NotReported is the number of volumes that are
	// missing in the reports.
	Volumes, Abnormal, NotReported int
	// Refused is the number of failed publishes.
	Refused int
	// NotReady is the number of plugins that are not ready. WithoutRight is the number of those that lack a right.
	NotReady, WithoutRight int
}

// Add counts the report of a node. It does not change Nodes, Problems and NotReported.
func (c *Counts) Add(r *Report) {
	c.Volumes += len(r.Volumes)
	c.Abnormal += r.Abnormal()
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

// Err returns an error that matches ErrAbnormal, or nil if nothing is abnormal.
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
