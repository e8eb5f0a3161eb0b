package measure

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The table of a document stands between two lines like these.
const (
	tableBegin = "<!-- made by make bench-table: begin -->\n"
	tableEnd   = "<!-- made by make bench-table: end -->\n"
)

// WriteTable puts the goals, and what came of them, into a Markdown document, in the place of the
// table that it has.
func (f File) WriteTable(document string) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(text, []byte(tableBegin))
	_, after, ended := bytes.Cut(rest, []byte(tableEnd))
	if !begun || !ended {
		return errors.New(document + ": has no place for a table")
	}
	return os.WriteFile(document, slices.Concat(before, []byte(tableBegin+f.table()+tableEnd), after), 0o644)
}

func (f File) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nMeasured %s on %d cores of %s, %.0f GiB, Linux %s, %s.\n",
		f.Time.Format("2006-01-02 15:04 MST"), f.Machine.Cores, f.Machine.CPU, float64(f.Machine.Memory)/(1<<30), f.Machine.Kernel, f.Versions["go"])
	b.WriteString("\n| scenario | figure | measured | goal | |\n|---|---|---|---|---|\n")
	goals := slices.Clone(f.Goals)
	slices.SortStableFunc(goals, func(x, y Outcome) int { return cmp.Compare(number(x.Scenario), number(y.Scenario)) })
	for _, o := range goals {
		met := "met"
		if !o.Met {
			met = "**missed**"
		}
		fmt.Fprintf(&b, "| %s | `%s` %s | %s | %s | %s |\n", o.Scenario, o.Result, o.Figure, figure(o.Got), o.Bound(), met)
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
func figure(f float64) string {
	if f >= 100 || f <= -100 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}
