package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// words is what each picture has to have in it.
func words() map[string][]string {
	return map[string][]string{
		"latency.svg": {
			"How long an update takes to arrive", "refvol's part", "the floor", "from the write to the file",
			"the kubelet's own volume", "p50 64 s", "1 ms", "10 s", "share of all, %", "100",
		},
		"memory.svg":  {"Memory over volumes", "refvol", "client-go reflectors", "resident memory, MiB", "5000", "200"},
		"publish.svg": {"How long a publish takes", "warm", "cold", "the floor", "1 ms"},
		"burst.svg":   {"330 volumes at once", "volumes that are up", "all up after 660 ms", "300"},
	}
}

// invented writes made-up data into dir, and returns the arguments that name it.
func invented(t *testing.T, dir string) []string {
	t.Helper()
	report := &measure.Report{}
	around := func(name string, median, spread float64, n int) {
		samples := make([]float64, n)
		for i := range samples {
			share := (float64(i) + 0.5) / float64(n)
			samples[i] = median * math.Pow(spread, math.Log(share/(1-share)))
		}
		if err := report.Samples(name, "ms", samples); err != nil {
			t.Fatal(err)
		}
	}
	around("update.added_ms", 0.3, 1.4, 1000)
	around("update.write_to_watch_ms", 2.1, 1.2, 1000)
	around("update.write_to_file_ms", 2.4, 1.2, 1000)
	around("native.refvol_ms", 3.5, 1.3, 12)
	around("native.kubelet_ms", 65000, 1.1, 12)
	around("publish.warm_ms", 0.8, 1.3, 500)
	around("publish.cold_ms", 5, 1.2, 500)
	around("publish.floor_ms", 0.2, 1.2, 500)
	burst := make([]float64, 330)
	for i := range burst {
		burst[i] = 2 * float64(i+1)
	}
	if err := report.Samples("publish.burst_ms", "ms", burst); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 100, 1000, 5000} {
		report.Value(fmt.Sprintf("memory.refvol_rss_%d", n), "bytes", float64(30<<20+n*30<<10))
		report.Value(fmt.Sprintf("memory.reference_rss_%d", n), "bytes", float64(25<<20+n*33<<10))
	}
	results, samples := filepath.Join(dir, "results.json"), filepath.Join(dir, "samples.json")
	if err := (measure.File{Results: report.Results()}).Write(results, measure.File{}); err != nil {
		t.Fatal(err)
	}
	if err := measure.WriteSamples(samples, nil, report.Distributions()); err != nil {
		t.Fatal(err)
	}
	return []string{"-results", results, "-samples", samples}
}

// Each picture is well-formed, shows its series, axes and units, is not large, and is the
// same each time.
func TestPictures(t *testing.T) {
	dir := t.TempDir()
	args := invented(t, dir)
	first, second := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	for _, out := range []string{first, second} {
		if err := run(append(slices.Clone(args), "-out", out), io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range words() {
		svg := read(t, filepath.Join(first, file))
		if !bytes.Equal(svg, read(t, filepath.Join(second, file))) {
			t.Errorf("%s is another one each time", file)
		}
		if len(svg) > 100<<10 {
			t.Errorf("%s has %d bytes", file, len(svg))
		}
		texts, err := svgTexts(svg)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, w := range want {
			if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, w) }) {
				t.Errorf("%s: %q is not in %q", file, w, texts)
			}
		}
	}
	if names, err := os.ReadDir(first); err != nil || len(names) != len(words()) {
		t.Errorf("files: %v, %v", names, err)
	}
}

// What is missing is named with what to run for it, and the pictures of what is there are
// drawn.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	args := append(invented(t, dir), "-out", dir)
	samples := filepath.Join(dir, "samples.json")
	all, err := measure.ReadSamples(samples)
	if err != nil {
		t.Fatal(err)
	}
	delete(all, "native.kubelet_ms")
	delete(all, "publish.burst_ms")
	if err := errors.Join(os.Remove(samples), os.Remove(filepath.Join(dir, "results.json")), measure.WriteSamples(samples, nil, all)); err != nil {
		t.Fatal(err)
	}
	err = run(args, io.Discard)
	for _, want := range []string{
		"latency.svg: no native.kubelet_ms in samples.json: run make bench SCENARIO=native",
		"burst.svg: no publish.burst_ms in samples.json: run make bench SCENARIO=publish",
		"memory.svg: no memory.refvol_rss_0 in results.json: run make bench SCENARIO=memory",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	read(t, filepath.Join(dir, "publish.svg"))
	if _, err := os.Stat(filepath.Join(dir, "burst.svg")); !os.IsNotExist(err) {
		t.Errorf("burst.svg: %v", err)
	}
}

// A staircase starts at 0, ends at 100 and goes up at the samples.
func TestShares(t *testing.T) {
	got := fmt.Sprint(shares([]float64{-1, 2}))
	if want := "[{0.01 0} {0.01 0} {0.01 50} {2 50} {2 100}]"; got != want {
		t.Errorf("shares = %s, want %s", got, want)
	}
	many := make([]float64, 10*mostPoints+7)
	for i := range many {
		many[i] = float64(i + 1)
	}
	line := shares(many)
	if last := line[len(line)-1]; last.X != float64(len(many)) || last.Y != 100 || len(line) != 2*mostPoints+1 {
		t.Errorf("%d points, the last is %v", len(line), last)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// svgTexts returns the words in a picture.
func svgTexts(svg []byte) ([]string, error) {
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	var texts []string
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return texts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not well-formed: %w", err)
		}
		if words, ok := token.(xml.CharData); ok && len(bytes.TrimSpace(words)) > 0 {
			texts = append(texts, string(bytes.TrimSpace(words)))
		}
	}
}

// TestTables has results put into a document, twice.
func TestTables(t *testing.T) {
	document := filepath.Join(t.TempDir(), "document.md")
	text := "before\n" + tablesBegin + "old\n" + tablesEnd + "after\n"
	if err := os.WriteFile(document, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	value, p50 := 1234.5, 0.4321
	f := measure.File{
		Goals: []measure.Outcome{
			{Goal: measure.Goal{Scenario: "B10", Result: "cost.watches", Figure: "value", Most: 100, Least: true}, Got: 99},
			{Goal: measure.Goal{Scenario: "B2", Result: "native.ratio", Figure: "value", Most: 1000}, Got: 3, Met: true},
		},
		Results: []measure.Result{{Name: "a", Unit: "bytes", Value: &value}, {Name: "b", Unit: "ms", N: 7, P50: &p50, P99: &p50, Max: &value}},
	}
	for range 2 {
		if err := writeTables(document, f); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n<!--", "-->\nafter\n", "| B2 | `native.ratio` value | 3 | <= 1000 | met |\n| B10 | `cost.watches` value | 99 | >= 100 | **missed** |",
		"| `a` | bytes | | 1234 | | |", "| `b` | ms | 7 | 0.432 | 0.432 | 1234 |",
	} {
		if strings.Count(string(got), want) != 1 {
			t.Errorf("%d times %q in\n%s", strings.Count(string(got), want), want, got)
		}
	}
	if strings.Contains(string(got), "old") {
		t.Error("the old tables are there")
	}
	if err := writeTables(os.DevNull, f); err == nil {
		t.Error("a document without a place for tables is taken")
	}
}
