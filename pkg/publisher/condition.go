package publisher

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/refvol/refvol/pkg/payload"
)

// condition is what ails a volume, for NodeGetVolumeStats. It is safe for
// concurrent use, so that stats don't wait for a write.
type condition struct {
	mu      sync.Mutex
	kind    string
	problem string
}

// set stores what ails the volume, nil for nothing, and says whether that is news.
// The same failure often has another text at each retry, with the name of a new
// generation or what other volumes take just then; that is no news.
func (c *condition) set(err error) bool {
	kind, problem := "", ""
	if err != nil {
		kind, problem = kindOf(err), err.Error()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.kind != kind
	c.kind, c.problem = kind, problem
	return news
}

// kindOf returns what tells one failure from another: all that is missing or refused, else
// the reason and the system's error.
func kindOf(err error) string {
	var missing *payload.MissingError
	var refused *refusedError
	lacks := ""
	if errors.As(err, &missing) {
		lacks = missing.Error()
	}
	if errors.As(err, &refused) {
		lacks += "; " + refused.Error()
	}
	if lacks != "" {
		return lacks
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	return fmt.Sprintf("reason %d, errno %d, stale %t", ReasonOf(err), errno, errors.Is(err, errStale))
}

func (c *condition) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}
