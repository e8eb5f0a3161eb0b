package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/refvol/refvol/e2e/bench/measure"
)

// data is what the benchmarks measured.
type data struct {
	resultsFile, samplesFile string
	results                  map[string]measure.Result
	samples                  map[string][]float64
}

func readData(results, samples string) (*data, error) {
	file, err := measure.ReadFile(results)
	if err != nil {
		return nil, err
	}
	d := &data{resultsFile: results, samplesFile: samples, results: map[string]measure.Result{}}
	for _, r := range file.Results {
		d.results[r.Name] = r
	}
	d.samples, err = measure.ReadSamples(samples)
	return d, err
}

// all returns the samples of a name, sorted.
func (d *data) all(name string) ([]float64, error) {
	samples := d.samples[name]
	if len(samples) == 0 {
		return nil, missing(name, d.samplesFile)
	}
	return samples, nil
}

// value returns the single figure that a result has.
func (d *data) value(name string) (float64, error) {
	r, ok := d.results[name]
	if !ok {
		return 0, missing(name, d.resultsFile)
	}
	return r.Figure("value")
}

// missing says what makes what is not there. A name starts with its scenario's.
func missing(name, file string) error {
	scenario, _, _ := strings.Cut(name, ".")
	return fmt.Errorf("no %s in %s: run make bench SCENARIO=%s", name, filepath.Base(file), scenario)
}

// collect calls get for each of a list and joins all errors.
func collect[T, R any](list []T, get func(T) (R, error)) ([]R, error) {
	var (
		out    []R
		failed []error
	)
	for _, item := range list {
		got, err := get(item)
		if err != nil {
			failed = append(failed, err)
		}
		out = append(out, got)
	}
	return out, errors.Join(failed...)
}
