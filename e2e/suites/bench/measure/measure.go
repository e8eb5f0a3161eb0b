// Package measure owns what a benchmark reports: samples and their percentiles, named results, the machine they come
// from, and the goals they are held against. It must not know how anything is measured.
package measure

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"
)

// Result is one line of a report: a distribution, which has N, P50, P99 and Max, or a single Value.
type Result struct {
	Name string `json:"name"`
	// Run is the time of the run that measured it.
	Run  time.Time `json:"run,omitzero"`
	Unit string    `json:"unit"`
	// N is how many samples there are, all of which the percentiles come from.
	N     int      `json:"n,omitempty"`
	P50   *float64 `json:"p50,omitempty"`
	P99   *float64 `json:"p99,omitempty"`
	Max   *float64 `json:"max,omitempty"`
	Value *float64 `json:"value,omitempty"`
}

// String tells the result in a line.
func (r Result) String() string {
	if r.Value != nil {
		return fmt.Sprintf("%-50s %12.4g %s", r.Name, *r.Value, r.Unit)
	}
	return fmt.Sprintf("%-50s p50 %9.4g  p99 %9.4g  max %9.4g %s (n %d)", r.Name, *r.P50, *r.P99, *r.Max, r.Unit, r.N)
}

// Percentile returns the value that p percent of the samples don't exceed, by the nearest rank: it is always one of
// the samples. The samples must be sorted, and at least one.
func Percentile(sorted []float64, p float64) float64 {
	return sorted[max(int(math.Ceil(p/100*float64(len(sorted)))), 1)-1]
}

// Median returns the middle one of some samples, of which there must be one at least.
func Median(samples []float64) float64 {
	return Percentile(slices.Sorted(slices.Values(samples)), 50)
}

// Milliseconds converts durations for a report.
func Milliseconds(all []time.Duration) []float64 {
	out := make([]float64, 0, len(all))
	for _, d := range all {
		out = append(out, float64(d)/float64(time.Millisecond))
	}
	return out
}

// Report collects results. It is for one goroutine.
type Report struct{ Results []Result }

// Samples adds the distribution of all samples, of which there must be at least one.
func (r *Report) Samples(name, unit string, samples []float64) error {
	if len(samples) == 0 {
		return fmt.Errorf("result %s: there is no sample", name)
	}
	sorted := slices.Sorted(slices.Values(samples))
	p50, p99, most := Percentile(sorted, 50), Percentile(sorted, 99), sorted[len(sorted)-1]
	r.Results = append(r.Results, Result{Name: name, Unit: unit, N: len(sorted), P50: &p50, P99: &p99, Max: &most})
	return nil
}

// Value adds a single figure.
func (r *Report) Value(name, unit string, value float64) {
	r.Results = append(r.Results, Result{Name: name, Unit: unit, Value: &value})
}

// P50 returns the median of a distribution that was added.
func (r *Report) P50(name string) float64 {
	return *r.Results[slices.IndexFunc(r.Results, func(of Result) bool { return of.Name == name })].P50
}

// Goal is a bound on one figure of results.
type Goal struct {
	// Scenario is the id of the scenario that the goal is of, as B1.
	Scenario string
	// Results and Figure name what is bounded: results, by a pattern of path.Match, and p50, p99, max or value.
	Results, Figure string
	// Bound is the largest value that meets the goal; of a goal with Least it is the smallest one.
	Bound float64
	Least bool
}

// IsRatio reports whether the goal bounds ratios, which a busy machine changes least.
func (g Goal) IsRatio() bool { return strings.HasSuffix(g.Results, "ratio") }

// Outcome is what results say of a goal.
type Outcome struct {
	Goal
	// Lowest and Highest are the extremes of Count figures; Missed are the results that don't meet the goal.
	Lowest, Highest float64
	Count           int
	Missed          []string
}

// Check holds results against a goal; it fails if there are none of the goal's.
func (g Goal) Check(results []Result) (Outcome, error) {
	o := Outcome{Goal: g, Lowest: math.Inf(1), Highest: math.Inf(-1)}
	for _, r := range results {
		matches, err := path.Match(g.Results, r.Name)
		if err != nil {
			return o, err
		}
		got := map[string]*float64{"p50": r.P50, "p99": r.P99, "max": r.Max, "value": r.Value}[g.Figure]
		if !matches || got == nil {
			continue
		}
		o.Count, o.Lowest, o.Highest = o.Count+1, min(o.Lowest, *got), max(o.Highest, *got)
		if g.Least && *got < g.Bound || !g.Least && *got > g.Bound {
			o.Missed = append(o.Missed, r.Name)
		}
	}
	if o.Count == 0 {
		return o, fmt.Errorf("goal of %s: there is no result %s with a %s", g.Scenario, g.Results, g.Figure)
	}
	return o, nil
}

// String tells the outcome as the row of a table.
func (o Outcome) String() string {
	figure := "`" + o.Results + "`"
	if o.Figure != "value" {
		figure += " " + o.Figure
	}
	measured, bound, met := fmt.Sprintf("%.4g", o.Lowest), fmt.Sprintf("<= %g", o.Bound), "met"
	if o.Highest > o.Lowest {
		measured += fmt.Sprintf(" to %.4g", o.Highest)
	}
	if o.Least {
		bound = fmt.Sprintf(">= %g", o.Bound)
	}
	switch {
	case len(o.Missed) > 0 && o.Count > 1:
		met = fmt.Sprintf("**missed** by `%s`", strings.Join(o.Missed, "`, `"))
	case len(o.Missed) > 0:
		met = "**missed**"
	case o.Count > 1:
		met = fmt.Sprintf("all %d met", o.Count)
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", figure, measured, bound, met)
}
