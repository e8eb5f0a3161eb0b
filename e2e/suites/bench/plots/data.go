package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// data is what the benchmarks measured.
type data struct {
	resultsFile, samplesFile string
	file                     measure.File
	results                  map[string]measure.Result
	samples                  map[string][]float64
}

func readData(results, samples string) (*data, error) {
	file, err := measure.ReadFile(results)
	if err != nil {
		return nil, err
	}
	d := &data{file: file, resultsFile: results, samplesFile: samples, results: map[string]measure.Result{}}
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
		return nil, &missingError{name, d.samplesFile}
	}
	return samples, nil
}

// value returns the single figure that a result has.
func (d *data) value(name string) (float64, error) {
	r, ok := d.results[name]
	if !ok {
		return 0, &missingError{name, d.resultsFile}
	}
	return r.Figure("value")
}

// missingError says what makes what is not there.
type missingError struct{ name, file string }

// scenario is that of the result: its name starts with it.
func (e *missingError) scenario() string {
	scenario, _, _ := strings.Cut(e.name, ".")
	return scenario
}

// Error names what is missing and what to run.
func (e *missingError) Error() string {
	return fmt.Sprintf("no %s in %s: run make bench SCENARIO=%s", e.name, filepath.Base(e.file), e.scenario())
}

// collect calls get for each of a list and joins the errors, but for those that only
// repeat what to run.
func collect[T, R any](list []T, get func(T) (R, error)) ([]R, error) {
	var (
		out    []R
		failed []error
		told   = map[string]bool{}
	)
	for _, item := range list {
		got, err := get(item)
		out = append(out, got)
		var missing *missingError
		if errors.As(err, &missing) {
			if told[missing.scenario()] {
				continue
			}
			told[missing.scenario()] = true
		}
		failed = append(failed, err)
	}
	return out, errors.Join(failed...)
}
