package integration

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// switchCounter counts how often ..data is replaced in volumes, until the end of the test.
type switchCounter struct {
	*harness.SwitchWatch
	count atomic.Int64
}

func newSwitchCounter(t *testing.T) *switchCounter {
	t.Helper()
	c := &switchCounter{}
	var err error
	c.SwitchWatch, err = harness.WatchSwitches(func(string) error {
		c.count.Add(1)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *switchCounter) total() int64 { return c.count.Load() }

// await returns after as many more switches, or when over is closed.
func (c *switchCounter) await(t *testing.T, more int64, within time.Duration, over <-chan struct{}) {
	t.Helper()
	want := c.total() + more
	err := harness.Poll(t.Context(), within, 5*time.Millisecond, func() error {
		select {
		case <-over:
			return nil
		default:
		}
		if missing := want - c.total(); missing > 0 {
			return fmt.Errorf("%d of %d switches are missing", missing, more)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
