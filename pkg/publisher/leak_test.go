package publisher

import (
	"testing"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/failure"
)

func TestNoValueLeavesTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("db"), "password", canary, "long", canary+pages(1))
		r := e.request("v1", "secret", "db")
		e.publish(r)
		e.objects.put(secret("db"), "password", canary+"2")
		e.settle()
		e.wantFiles(r, "password", canary+"2")
		// The failures whose texts come near to values.
		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(secret("db"), "password", canary+"3")
		e.settle()
		e.writes.set(nil, nil)
		e.objects.put(secret("db"), "password", canary+pages(300))
		e.settle()
		e.wantProblem(r, "bytes of memory")
		e.restart()
		e.objects.remove(secret("db"))
		e.settle()
		e.wantProblem(r, "not found")
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "secret", "db", "items", "[{key: x, path: x}]")), failure.ReasonNotFound, "")

		text := e.encoded(r)
		if err := leak.Check("the record", text); err != nil || text == "" || len(e.logs.With("")) < 3 {
			t.Errorf("there was nothing to search, or too much: %v", err)
		}
		e.searchAll()
	})
}
