package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// The tables of a document stand between two lines like these.
const (
	tablesBegin = "<!-- made by make bench-plots: begin -->\n"
	tablesEnd   = "<!-- made by make bench-plots: end -->\n"
)

// writeTables puts the tables of a results.json into a document, in the place of those that
// it has.
func writeTables(document string, f measure.File) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(text, []byte(tablesBegin))
	_, after, ended := bytes.Cut(rest, []byte(tablesEnd))
	if !begun || !ended {
		return errors.New(document + ": has no place for tables")
	}
	return os.WriteFile(document, slices.Concat(before, []byte(tablesBegin+tables(f)+tablesEnd), after), 0o644)
}

// tables returns the goals and all figures as Markdown.
func tables(f measure.File) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nMeasured %s on %d cores of %s, %.0f GiB, Linux %s, %s.\n",
		f.Time.Format("2006-01-02 15:04 MST"), f.Machine.Cores, f.Machine.CPU, float64(f.Machine.Memory)/(1<<30), f.Machine.Kernel, f.Versions["go"])
	b.WriteString("\n| scenario | figure | measured | goal | |\n|---|---|---|---|---|\n")
	goals := slices.Clone(f.Goals)
	slices.SortStableFunc(goals, func(x, y measure.Outcome) int { return cmp.Compare(number(x.Scenario), number(y.Scenario)) })
	for _, o := range goals {
		met := "met"
		if !o.Met {
			met = "**missed**"
		}
		fmt.Fprintf(&b, "| %s | `%s` %s | %s | %s | %s |\n", o.Scenario, o.Result, o.Figure, figure(&o.Got), o.Bound(), met)
	}
	b.WriteString("\nAll figures:\n\n| figure | unit | n | p50 or value | p99 | max |\n|---|---|---|---|---|---|\n")
	for _, r := range f.Results {
		if r.Value != nil {
			fmt.Fprintf(&b, "| `%s` | %s | | %s | | |\n", r.Name, r.Unit, figure(r.Value))
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %d | %s | %s | %s |\n", r.Name, r.Unit, r.N, figure(r.P50), figure(r.P99), figure(r.Max))
	}
	b.WriteString("\n")
	return b.String()
}

// number is that of a scenario's id.
func number(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "B"))
	return n
}

// figure returns three digits of a small figure, and all of a large one.
func figure(f *float64) string {
	switch {
	case f == nil:
		return ""
	case *f >= 100 || *f <= -100:
		return strconv.FormatFloat(*f, 'f', 0, 64)
	}
	return strconv.FormatFloat(*f, 'g', 3, 64)
}
