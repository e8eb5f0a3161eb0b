package measure

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestPercentile: a percentile is always one of the samples, and never a mean of two.
func TestPercentile(t *testing.T) {
	for _, tc := range []struct {
		sorted []float64
		p      float64
		want   float64
	}{
		{[]float64{7}, 50, 7},
		{[]float64{7}, 99, 7},
		{[]float64{1, 2}, 50, 1},
		{[]float64{1, 2}, 51, 2},
		{[]float64{1, 2, 3, 4}, 50, 2},
		{[]float64{1, 2, 3, 4}, 75, 3},
		{[]float64{1, 2, 3, 4}, 76, 4},
		{[]float64{1, 2, 3, 4}, 100, 4},
		{[]float64{1, 2, 3, 4}, 0, 1},
	} {
		if got := Percentile(tc.sorted, tc.p); got != tc.want {
			t.Errorf("percentile %g of %v is %g, want %g", tc.p, tc.sorted, got, tc.want)
		}
	}
	hundred := make([]float64, 1000)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	if p50, p99 := Percentile(hundred, 50), Percentile(hundred, 99); p50 != 500 || p99 != 990 {
		t.Errorf("of 1 to 1000: p50 %g, p99 %g", p50, p99)
	}
}

func TestReport(t *testing.T) {
	var r Report
	samples := Milliseconds([]time.Duration{3 * time.Millisecond, time.Millisecond, 2500 * time.Microsecond})
	if err := r.Samples("a.ms", "ms", samples); err != nil {
		t.Fatal(err)
	}
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
	if err := r.Samples("b", "ms", []float64{1, 9}); err != nil {
		t.Fatal(err)
	}
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
		if err := Renew(results, of); err != nil {
			t.Fatal(err)
		}
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

// TestTables: each run names its scenarios, a goal that was not measured fails, and only the tables of a document change.
func TestTables(t *testing.T) {
	first, second := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2026, 1, 3, 3, 4, 5, 0, time.UTC)
	one, two := 1.0, 2.0
	f := File{
		Runs:    []Run{{first, Machine{"X", 2, 1 << 30, "6.1"}, "go1"}, {second, Machine{"Y", 4, 2 << 30, "6.2"}, "go2"}},
		Results: []Result{{Name: "a.x", Unit: "s", Run: second, Value: &one}, {Name: "a.y", Unit: "s", Run: first, Value: &two}, {Name: "c.x", Unit: "s", Run: second, Value: &two}},
	}
	goals := []Goal{{"B1", "a.*", "value", 2, false}, {"B2", "a.x", "value", 1, false}}
	if _, err := f.GoalsTable(append(goals, Goal{"B3", "b", "value", 1, false})); err == nil || !strings.Contains(err.Error(), "no result b") {
		t.Errorf("a goal without a result: %v", err)
	}
	const wantGoals = `| figure | measured | goal | |
|---|---|---|---|
| ` + "`a.*`" + ` | 1 to 2 | <= 2 | all 2 met |
| ` + "`a.x`" + ` | 1 | <= 1 | met |
`
	if got, err := f.GoalsTable(goals); err != nil || got != wantGoals {
		t.Errorf("got %s, %v, want %s", got, err, wantGoals)
	}
	const wantRuns = `1. 2026-01-02 03:04 UTC, 2 cores of X, 1 GiB, Linux 6.1, go1: a
2. 2026-01-03 03:04 UTC, 4 cores of Y, 2 GiB, Linux 6.2, go2: a, c
`
	if got := f.ListRuns(); got != wantRuns {
		t.Errorf("got %s, want %s", got, wantRuns)
	}

	document := filepath.Join(t.TempDir(), "d.md")
	const begin, end = "<!-- made by make bench-table: begin -->\n", "<!-- made by make bench-table: end -->\n"
	for _, step := range []struct{ text, want string }{
		{"above\n" + begin + "old\n" + end + "below\n", "above\n" + begin + "\nnew\n\n" + end + "below\n"},
		{"above\nbelow\n", "above\nbelow\n"},
	} {
		if err := os.WriteFile(document, []byte(step.text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := WriteTables(document, "new\n")
		if text, readErr := os.ReadFile(document); readErr != nil || string(text) != step.want || (err == nil) != (step.text != step.want) {
			t.Errorf("%s: got %s, %v, %v, want %s", step.text, text, err, readErr, step.want)
		}
	}
}
