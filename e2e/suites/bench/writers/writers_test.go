package writers

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}

// Both writers write what they are asked to, and each step is in the report. With
// REFVOL_LONG=1 at all sizes, and then the goals are held.
func TestRun(t *testing.T) {
	short := harness.Scaled(true, false)
	report := &measure.Report{}
	if err := Run(t.Context(), t.TempDir(), short, report); err != nil {
		t.Fatal(err)
	}
	results := report.Results()
	reported := map[string]bool{}
	for _, r := range results {
		reported[r.Name] = true
	}
	for _, n := range sizes(short) {
		for _, step := range []string{"first", "change", "same", "relisted"} {
			for _, figure := range []string{"ms", "upstream_ms", "ratio"} {
				if want := name(step, n, figure); !reported[want] {
					t.Errorf("there is no %s", want)
				}
			}
		}
	}
	if short {
		return
	}
	t.Log(table(report))
	outcomes, err := measure.Check(Goals(), results, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outcomes {
		if t.Log(o); !o.Met {
			t.Errorf("%s is missed", o.Result)
		}
	}
}

// table lists the results, a line each.
func table(report *measure.Report) string {
	var b strings.Builder
	for _, r := range report.Results() {
		if r.Value != nil {
			fmt.Fprintf(&b, "\n%-34s %8.2f", r.Name, *r.Value)
			continue
		}
		fmt.Fprintf(&b, "\n%-34s p50 %8.4f p99 %8.4f max %8.4f n %d", r.Name, *r.P50, *r.P99, *r.Max, r.N)
	}
	return b.String()
}

// A volume that shows something else than it was asked to is found out.
func TestCheck(t *testing.T) {
	d := duel{dir: t.TempDir(), keys: 3}
	err := d.withVolumes(func(ours, upstream *volume) error {
		keys := newContents(d.keys)
		if err := new(pair).take(t.Context(), ours, upstream, keys, newGeneration); err != nil {
			return err
		}
		generation, err := ours.generation()
		if err != nil {
			return err
		}
		other := keys.copy()
		other.change(1)
		if ours.check(other, generation, sameGeneration) == nil {
			t.Error("an old content is not noticed")
		}
		if ours.check(keys, generation, newGeneration) == nil {
			t.Error("a generation that stayed is not noticed")
		}
		if ours.check(keys.without(0), generation, sameGeneration) == nil {
			t.Error("a key that should have gone is not noticed")
		}
		return ours.check(keys, generation, sameGeneration)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// without returns the contents but for key i.
func (c contents) without(i int) contents {
	rest := c.copy()
	delete(rest, keyName(i))
	return rest
}
