package measure

import (
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
	all := r.Results()
	if len(all) != 2 || all[0].N != 3 || *all[0].P50 != 2.5 || *all[0].P99 != 3 || *all[0].Max != 3 || *all[1].Value != 2 {
		t.Errorf("got %+v", all)
	}
	if samples[0] != 3 {
		t.Errorf("the caller's samples are %v", samples)
	}
	if got, none := r.P50("a.ms"), r.P50("c.lost"); got != 2.5 || none != 0 || Median(samples) != 2.5 {
		t.Errorf("the medians are %v, %v and %v", got, none, Median(samples))
	}
}

func TestCheck(t *testing.T) {
	var r Report
	r.Value("a", "ratio", 1.2)
	if err := r.Samples("b", "ms", []float64{1, 9}); err != nil {
		t.Fatal(err)
	}
	ran := func(id string) bool { return id != "B9" }
	goals := []Goal{
		{Scenario: "B1", Result: "a", Figure: "value", Most: 1.2},
		{Scenario: "B1", Result: "a", Figure: "value", Most: 1.1},
		{Scenario: "B2", Result: "b", Figure: "p99", Most: 9, Least: true},
		{Scenario: "B2", Result: "b", Figure: "p50", Most: 2, Least: true},
		{Scenario: "B9", Result: "none", Figure: "p50"},
	}
	outcomes, err := Check(goals, r.Results(), ran)
	if err != nil {
		t.Fatal(err)
	}
	var met []bool
	for _, o := range outcomes {
		met = append(met, o.Met)
	}
	if want := []bool{true, false, true, false}; !reflect.DeepEqual(met, want) {
		t.Errorf("met: %v, want %v", met, want)
	}
	if got, want := outcomes[1].String(), "MISSED B1   a value: 1.2, goal <= 1.1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, bad := range []Goal{{Scenario: "B1", Result: "none", Figure: "p50"}, {Scenario: "B1", Result: "a", Figure: "p50"}} {
		if _, err := Check([]Goal{bad}, r.Results(), ran); err == nil {
			t.Errorf("%+v is taken for judged", bad)
		}
	}
}

// TestFiles: a run of one scenario renews what is its own, and nothing else.
func TestFiles(t *testing.T) {
	results := filepath.Join(t.TempDir(), "r.json")
	value := func(name string, v float64) Result { return Result{Name: name, Unit: "ms", Value: &v} }
	outcome := func(name string, got float64) Outcome {
		return Outcome{Goal: Goal{Scenario: "B1", Result: name, Figure: "p50", Most: 5}, Got: got, Met: got <= 5}
	}
	for _, file := range []File{
		{Results: []Result{value("b", 1), value("a", 2)}, Goals: []Outcome{outcome("b", 1), outcome("a", 2)}},
		{Results: []Result{value("b", 9)}, Goals: []Outcome{outcome("b", 9)}},
	} {
		old, err := ReadFile(results)
		if err != nil {
			t.Fatal(err)
		}
		if err := file.Write(results, old); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadFile(results)
	if err != nil || !reflect.DeepEqual(got.Results, []Result{value("a", 2), value("b", 9)}) ||
		!reflect.DeepEqual(got.Goals, []Outcome{outcome("a", 2), outcome("b", 9)}) {
		t.Errorf("got %+v, %v", got, err)
	}
}
