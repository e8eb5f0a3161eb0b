package measure

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/must"
)

// TestReport: a percentile is always one of the samples. TestCheck has the two of an even number.
func TestReport(t *testing.T) {
	var r Report
	samples := Milliseconds([]time.Duration{3 * time.Millisecond, time.Millisecond, 2500 * time.Microsecond})
	must.Do(t, r.Samples("a.ms", "ms", samples))
	if err := r.Samples("b.ms", "ms", nil); err == nil || !strings.Contains(err.Error(), "b.ms") {
		t.Errorf("a result without samples: %v", err)
	}
	r.Value("c.lost", "updates", 2)
	all := r.Results
	if len(all) != 2 || all[0].N != 3 || *all[0].P50 != 2.5 || *all[0].P99 != 3 || *all[0].Max != 3 || *all[1].Value != 2 {
		t.Errorf("got %+v", all)
	}
	if samples[0] != 3 {
		t.Errorf("the caller's samples are %v", samples)
	}
	if got := r.P50("a.ms"); got != 2.5 || Median(samples) != 2.5 {
		t.Errorf("the medians are %v and %v", got, Median(samples))
	}
}

func TestCheck(t *testing.T) {
	var r Report
	r.Value("a", "ratio", 1.2)
	r.Value("a.x_s", "s", 250)
	r.Value("a.y_s", "s", 3)
	must.Do(t, r.Samples("b", "ms", []float64{1, 9}))
	for _, tc := range []struct {
		goal Goal
		want string
	}{
		{Goal{"B1", "a", "value", 1.2, false}, "| `a` | 1.2 | <= 1.2 | met |"},
		{Goal{"B1", "a", "value", 1.1, false}, "| `a` | 1.2 | <= 1.1 | **missed** |"},
		{Goal{"B2", "b", "p99", 9, true}, "| `b` p99 | 9 | >= 9 | met |"},
		{Goal{"B2", "b", "p50", 2, true}, "| `b` p50 | 1 | >= 2 | **missed** |"},
		{Goal{"B3", "a.*_s", "value", 250, false}, "| `a.*_s` | 3 to 250 | <= 250 | all 2 met |"},
		{Goal{"B3", "a.*_s", "value", 2, false}, "| `a.*_s` | 3 to 250 | <= 2 | **missed** by `a.x_s`, `a.y_s` |"},
	} {
		o, err := tc.goal.Check(r.Results)
		if err != nil || o.String() != tc.want {
			t.Errorf("%v: got %s, %v, want %s", tc.goal, o, err, tc.want)
		}
	}
	for _, bad := range []Goal{{"B1", "none", "p50", 1, false}, {"B1", "a", "p50", 1, false}, {"B1", "[", "p50", 1, false}} {
		if _, err := bad.Check(r.Results); err == nil {
			t.Errorf("%+v is taken for judged", bad)
		}
	}
}

// TestFiles: a run of one scenario renews what is its own, and nothing else.
func TestFiles(t *testing.T) {
	results := filepath.Join(t.TempDir(), "r.json")
	value := func(name string, v float64) Result { return Result{Name: name, Unit: "ms", Value: &v} }
	for _, of := range [][]Result{{value("b", 1), value("a", 2)}, {value("b", 9)}} {
		must.Do(t, Renew(results, of))
	}
	got, err := ReadFile(results)
	if err != nil || len(got.Runs) == 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	last := got.Runs[len(got.Runs)-1]
	for i, want := range []Result{value("a", 2), value("b", 9)} {
		want.Run = got.Results[i].Run
		if !reflect.DeepEqual(got.Results[i], want) || last.Machine.Cores == 0 || last.Go == "" {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
