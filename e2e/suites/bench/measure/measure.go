// Package measure owns what a benchmark reports: samples and their percentiles, named
// results, the machine they come from, and the goals they are held against. It must not
// know how anything is measured.
package measure

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Result is one line of a report: a distribution, which has N, P50, P99 and Max, or a
// single Value.
type Result struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	// N is how many samples there are, all of which the percentiles come from.
	N     int      `json:"n,omitempty"`
	P50   *float64 `json:"p50,omitempty"`
	P99   *float64 `json:"p99,omitempty"`
	Max   *float64 `json:"max,omitempty"`
	Value *float64 `json:"value,omitempty"`
}

// Figure returns the result's figure of a name: p50, p99, max or value.
func (r Result) Figure(name string) (float64, error) {
	figure := map[string]*float64{"p50": r.P50, "p99": r.P99, "max": r.Max, "value": r.Value}[name]
	if figure == nil {
		return 0, fmt.Errorf("%s has no %s", r.Name, name)
	}
	return *figure, nil
}

// Percentile returns the value that p percent of the samples don't exceed, by the nearest
// rank: it is always one of the samples. The samples must be sorted, and at least one.
func Percentile(sorted []float64, p float64) float64 {
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
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

// Report collects results. It is safe for concurrent use.
type Report struct {
	mu      sync.Mutex
	results []Result
}

// Samples adds the distribution of all samples, of which there must be at least one.
func (r *Report) Samples(name, unit string, samples []float64) error {
	if len(samples) == 0 {
		return fmt.Errorf("result %s: there is no sample", name)
	}
	sorted := slices.Sorted(slices.Values(samples))
	p50, p99, most := Percentile(sorted, 50), Percentile(sorted, 99), sorted[len(sorted)-1]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, Result{Name: name, Unit: unit, N: len(sorted), P50: &p50, P99: &p99, Max: &most})
	return nil
}

// Value adds a single figure.
func (r *Report) Value(name, unit string, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, Result{Name: name, Unit: unit, Value: &value})
}

// Results returns what was added, in that order.
func (r *Report) Results() []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.results)
}

// P50 returns the median of a distribution that was added, or 0.
func (r *Report) P50(name string) float64 {
	for _, result := range r.Results() {
		if result.Name == name && result.P50 != nil {
			return *result.P50
		}
	}
	return 0
}
